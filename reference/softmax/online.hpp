// softmax.online: the state of softmax.state, computed in one pass over a stream of elements. The exact result is the
// same; kernels and their bounds differ (one rescaling per new maximum).
#pragma once

#include "reference/softmax/state.hpp"

namespace sumzero {

struct OnlineSoftmax {
  static Signature signature() {
    return state_signature("softmax.online", "state (m, r) of a row from a single pass, with gradients");
  }
  template <class N>
  static void row(RowProblem<N>& problem) { state_row(problem); }
};

SUMZERO_OPERATOR(OnlineSoftmax)

}  // namespace sumzero
