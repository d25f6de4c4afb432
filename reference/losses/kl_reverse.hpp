// kl_reverse: distillation loss T^2 KL(softmax(s/T) || softmax(t/T)) of student logits s and teacher logits t.
//
//   ds_i = -T p_i x_i,  dt_i = T (q_i - p_i)   (divergence.hpp with base = student); without scale_T2 divide all by T^2.
#pragma once

#include "reference/losses/divergence.hpp"

namespace sumzero {

struct KlReverse {
  static Signature signature() {
    return distillation_signature("kl_reverse", "distillation: KL(student || teacher) with temperature, both gradients");
  }
  template <class N>
  static void row(RowProblem<N>& problem) {
    Divergence<N>& row = thread_scratch<Divergence<N>>();
    divergence<N>(problem.in[0], problem.in[1], problem.n, problem.attribute[0], row);
    write_kl(row, problem, 2, 1);
  }
};

SUMZERO_OPERATOR(KlReverse)

}  // namespace sumzero
