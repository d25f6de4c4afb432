// logsumexp over the classes of a row: lse = m + log1p(r), gradient gx_j = g p_j.
//
// Rows of -inf have lse = -inf and rows with +inf have lse = +inf; only their gradients are a matter of policy.
#pragma once

#include "reference/register.hpp"
#include "reference/softmax/tail_state.hpp"

namespace sumzero {

struct LogSumExp {
  static Signature signature() {
    Signature s;
    s.name = "logsumexp";
    s.summary = "logarithm of the sum of exponentials of a row, with its gradient";
    s.inputs = {{"x", Role::logits, Shape::row}, {"g", Role::upstream, Shape::per_row, Element::storage, true, 0}};
    s.outputs = {{"lse", Shape::per_row},
                 {"gx", Shape::row, Element::storage, ties | shift_invariant | linear_upstream, 0}};
    s.attributes = {inf_policy_attribute(), masked_policy_attribute()};
    s.quantities = tail_scalars();
    s.quantities.push_back("g");
    s.arrays = tail_arrays();
    return s;
  }

  template <class N>
  static void row(RowProblem<N>& problem) {
    TailState<N>& state = thread_scratch<TailState<N>>();
    const double* x = problem.in[0];
    const double g = problem.in[1] ? *problem.in[1] : 0.0;
    tail_state<N>(x, problem.n, state);
    if (state.row_class == RowClass::regular) {
      problem.out(0)[0] = N(x[state.k]) + state.log_s;
      Array<N>& gx = problem.out(1);
      each(problem.n, [&](std::size_t j) { gx[j] = N(g) * state.p(j); });
      if (problem.wants_quantities()) {
        tail_quantities(state, problem);
        problem.scalar(4, std::fabs(g));
      }
      return;
    }
    const double infinity = std::numeric_limits<double>::infinity();
    const bool limit = state.row_class == RowClass::plus_infinity && state.infinities == 1 && problem.attribute[0] != 0;
    const bool zeros = state.row_class == RowClass::empty && problem.attribute[1] != 0;
    problem.fill(1, limit || zeros ? 0.0 : std::nan(""));
    if (limit) problem.out(1)[state.k] = N(g);
    problem.fill(0, state.row_class == RowClass::has_nan ? std::nan("")
                    : state.row_class == RowClass::empty ? -infinity : infinity);
  }
};

SUMZERO_OPERATOR(LogSumExp)

}  // namespace sumzero
