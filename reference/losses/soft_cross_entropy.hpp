// cross_entropy.soft: cross-entropy with target probabilities q, class weights w and reductions (mean over rows).
//
//   loss = sum_j w_j q_j (-logp_j), each term non-negative, 0 (-inf) = 0
//   gx_j = factor (p_j T - w_j q_j), T = sum w q;  gq_j = factor w_j (-logp_j)
// The factor T makes the gradient sum to zero whether or not q sums to one.
#pragma once

#include "reference/register.hpp"
#include "reference/softmax/tail_state.hpp"

namespace sumzero {

struct SoftCrossEntropy {
  static Signature signature() {
    Signature s;
    s.name = "cross_entropy.soft";
    s.summary = "cross-entropy of logits and target probabilities, with the gradients of both";
    s.inputs = {{"x", Role::logits, Shape::row},
                {"q", Role::probabilities, Shape::row},
                {"weight", Role::weights, Shape::classes, Element::storage, true},
                {"g", Role::upstream, Shape::reduced, Element::storage, true, 0}};
    s.outputs = {{"loss", Shape::reduced, Element::storage, non_negative | shift_invariant},
                 {"gx", Shape::row, Element::storage, zero_sum | shift_invariant | linear_upstream, 0},
                 {"gq", Shape::row, Element::storage, shift_invariant | linear_upstream, 1}};
    s.attributes = {reduction_attribute(Reduction::mean), inf_policy_attribute(), masked_policy_attribute()};
    s.quantities = tail_scalars();
    s.quantities.insert(s.quantities.end(), {"factor", "target_sum"});  // target_sum = T
    s.arrays = tail_arrays();
    s.arrays.insert(s.arrays.end(), {"target", "weight"});  // target = w_j q_j
    return s;
  }

  template <class N>
  static void row(RowProblem<N>& problem) {
    TailState<N>& state = thread_scratch<TailState<N>>();
    const std::size_t n = problem.n;
    const double infinity = std::numeric_limits<double>::infinity();
    const double* q = problem.in[1];
    const double* weight = problem.in[2];
    const auto w = [&](std::size_t j) { return weight ? weight[j] : 1.0; };
    tail_state<N>(problem.in[0], n, state);
    if (state.row_class != RowClass::regular) {
      const bool zeros = state.row_class == RowClass::empty && problem.attribute[2] != 0;
      for (std::size_t output = 0; output < 3; ++output) problem.fill(output, zeros ? 0.0 : std::nan(""));
      return;
    }
    const auto target = [&](std::size_t j) { return weight ? N(w(j)) * N(q[j]) : N(q[j]); };
    const N total = sum_of<N>(n, target);
    bool infinite = false;
    for (std::size_t j = 0; j < n; ++j) infinite |= state.is_dead(j) && w(j) * q[j] > 0;
    problem.out(0)[0] = infinite ? N(infinity) : sum_of<N>(n, [&](std::size_t j) {
      return state.is_dead(j) ? N(0.0) : target(j) * (state.log_s - state.d[j]);
    });
    for (std::size_t j = 0; j < n; ++j) {
      problem.out(1)[j] = problem.factor * (state.p(j) * total - target(j));
      if (!state.is_dead(j)) problem.out(2)[j] = problem.factor * N(w(j)) * (state.log_s - state.d[j]);
      else problem.out(2)[j] = w(j) == 0 || is_exact_zero(problem.factor)
                                   ? N(0.0)
                                   : N(midpoint_hint(problem.factor) > 0 ? infinity : -infinity);
    }
    if (is_special(problem.factor)) {
      problem.fill(1, std::nan(""));
      problem.fill(2, std::nan(""));
    }
    if (!problem.wants_quantities()) return;
    tail_quantities(state, problem);
    problem.scalar(4, magnitude_upper(problem.factor));
    problem.scalar(5, magnitude_upper(total));
    for (std::size_t j = 0; j < n; ++j) {
      problem.array(2)[j] = w(j) * q[j] * (1 + 0x1p-50);
      problem.array(3)[j] = w(j);
    }
  }
};

SUMZERO_OPERATOR(SoftCrossEntropy)

}  // namespace sumzero
