// softmax over the classes of a row, and its vector-Jacobian product.
//
//   p_j = e_j / s                                                       (D1)
//   gx_j = p_j (c_j - q), c_j = g_j - g_k, q = sum over j != k of p_j c_j   (D3)
//
// The Jacobian annihilates constants, so subtracting g_k changes nothing exactly and removes the cancellation
// of the textbook form p_j (g_j - sum p g) at the maximum.
#pragma once

#include "reference/register.hpp"
#include "reference/softmax/tail_state.hpp"

namespace sumzero {

/// VJP of a softmax row with tail state `state`, probabilities p and upstream g.
template <class N>
void softmax_vjp(const TailState<N>& state, const Array<N>& p, const double* g, Array<N>& gx) {
  const std::size_t n = p.size();
  const N g_k(g[state.k]);
  const N q = sum_except<N>(n, state.k, [&](std::size_t j) { return p[j] * (N(g[j]) - g_k); });
  each(n, [&](std::size_t j) { gx[j] = state.is_dead(j) ? N(0.0) : p[j] * ((N(g[j]) - g_k) - q); });
}

/// Scalars c_max, pc, pcd and the array c of the VJP bound T7, in double precision rounded up.
template <class Problem, class State>
void softmax_vjp_quantities(const State& state, const double* g, Problem& problem, std::size_t slot,
                            std::size_t array) {
  const std::vector<double>& d = problem.array(0);
  const std::vector<double>& p = problem.array(1);
  std::vector<double>& c = problem.array(array);
  const std::size_t n = problem.n;
  const double g_k = g[state.k];
  each(n, [&](std::size_t j) { c[j] = state.is_dead(j) ? 0 : std::fabs(g[j] - g_k) * (1 + 0x1p-50); });
  const auto total = [&](auto term) {
    return magnitude_upper(sum_of<Ball>(n, [&](std::size_t j) { return Ball(term(j)); })) * (1 + 0x1p-50);
  };
  problem.scalar(slot, *std::max_element(c.begin(), c.end()));
  problem.scalar(slot + 1, total([&](std::size_t j) { return p[j] * c[j]; }));
  problem.scalar(slot + 2, total([&](std::size_t j) { return p[j] * c[j] * d[j]; }));
}

/// Outputs 0 = p and 1 = gx of a regular row, and the quantities of the bounds.
template <class N>
void write_softmax(const TailState<N>& state, RowProblem<N>& problem, const double* g) {
  Array<N>& p = problem.out(0);
  each(problem.n, [&](std::size_t j) { p[j] = state.p(j); });
  if (g) softmax_vjp(state, p, g, problem.out(1));
  else problem.fill(1, 0.0);
  if (!problem.wants_quantities()) return;
  tail_quantities(state, problem);
  if (g) softmax_vjp_quantities(state, g, problem, tail_scalars().size(), tail_arrays().size());
}

/// Rows that are not regular. NaN anywhere gives NaN everywhere; a single +inf gives NaN or the one-hot limit by
/// `inf_policy` (attribute `policy`); no live entry gives NaN or zeros by `masked_policy` (attribute `policy` + 1).
template <class N>
void irregular_softmax(const TailState<N>& state, RowProblem<N>& problem, std::size_t policy) {
  const bool one_hot = state.row_class == RowClass::plus_infinity && state.infinities == 1 &&
                       problem.attribute[policy] != 0;
  const bool zeros = state.row_class == RowClass::empty && problem.attribute[policy + 1] != 0;
  for (std::size_t output = 0; output < max_outputs; ++output)
    problem.fill(output, one_hot || zeros ? 0.0 : std::nan(""));
  if (one_hot) problem.out(0)[state.k] = N(1.0);
}

struct Softmax {
  static Signature signature() {
    Signature s;
    s.name = "softmax";
    s.summary = "softmax over the classes of a row, with its vector-Jacobian product";
    s.inputs = {{"x", Role::logits, Shape::row},
                {"g", Role::upstream, Shape::row, Element::storage, true, 0}};
    s.outputs = {{"p", Shape::row, Element::storage,
                  sums_to_one | non_negative | at_most_one | monotone | ties | shift_invariant},
                 {"gx", Shape::row, Element::storage, zero_sum | exact_zero | ties | shift_invariant | linear_upstream, 0}};
    s.attributes = {inf_policy_attribute(), masked_policy_attribute()};
    s.quantities = tail_scalars();
    s.quantities.insert(s.quantities.end(), {"c_max", "pc", "pcd"});
    s.arrays = tail_arrays();
    s.arrays.push_back("c");
    return s;
  }

  template <class N>
  static void row(RowProblem<N>& problem) {
    TailState<N>& state = thread_scratch<TailState<N>>();
    const double* g = problem.in[1];
    tail_state<N>(problem.in[0], problem.n, state);
    if (state.row_class != RowClass::regular) return irregular_softmax(state, problem, 0);
    write_softmax(state, problem, g);
  }
};

SUMZERO_OPERATOR(Softmax)

}  // namespace sumzero
