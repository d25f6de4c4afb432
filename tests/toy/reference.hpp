// toy: twice the logsumexp of a row, with gradient gx_j = 2 g p_j. What a new operator looks like.
#pragma once

#include "reference/register.hpp"
#include "reference/softmax/tail_state.hpp"

namespace sumzero {

struct Toy {
  static Signature signature() {
    Signature s;
    s.name = "toy";
    s.summary = "twice the logarithm of the sum of exponentials of a row";
    s.inputs = {{"x", Role::logits, Shape::row}, {"g", Role::upstream, Shape::per_row, Element::storage, true, 0}};
    s.outputs = {{"y", Shape::per_row}, {"gx", Shape::row, Element::storage, ties | shift_invariant | linear_upstream, 0}};
    s.quantities = tail_scalars();
    s.quantities.push_back("g");
    s.arrays = tail_arrays();
    return s;
  }

  template <class N>
  static void row(RowProblem<N>& problem) {
    TailState<N>& state = thread_scratch<TailState<N>>();
    tail_state<N>(problem.in[0], problem.n, state);
    if (state.row_class != RowClass::regular) {
      problem.fill(0, std::nan(""));
      problem.fill(1, std::nan(""));
      return;
    }
    const double g = problem.in[1] ? *problem.in[1] : 0.0;
    problem.out(0)[0] = N(2.0) * (N(problem.in[0][state.k]) + state.log_s);
    Array<N>& gx = problem.out(1);
    each(problem.n, [&](std::size_t j) { gx[j] = N(2.0) * N(g) * state.p(j); });
    if (!problem.wants_quantities()) return;
    tail_quantities(state, problem);
    problem.scalar(4, std::fabs(g));
  }
};

SUMZERO_OPERATOR(Toy)

}  // namespace sumzero
