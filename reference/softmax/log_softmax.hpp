// log_softmax over the classes of a row, and its vector-Jacobian product.
//
//   logp_j = d_j - log1p(r)                                              (D1)
//   gx_k = g_k r/s - p_k sum over j != k of g_j;  gx_j = g_j - p_j G, G = sum g   (D3)
//
// Dead entries (-inf logits) behave as if deleted: logp = -inf, their upstream is ignored, their gradient is 0.
#pragma once

#include "reference/register.hpp"
#include "reference/softmax/tail_state.hpp"

namespace sumzero {

struct LogSoftmax {
  static Signature signature() {
    Signature s;
    s.name = "log_softmax";
    s.summary = "logarithm of the softmax of a row, with its vector-Jacobian product";
    s.inputs = {{"x", Role::logits, Shape::row}, {"g", Role::upstream, Shape::row, Element::storage, true, 0}};
    s.outputs = {{"logp", Shape::row, Element::storage, at_most_zero | monotone | ties | shift_invariant},
                 {"gx", Shape::row, Element::storage, zero_sum | shift_invariant | linear_upstream, 0}};
    s.attributes = {inf_policy_attribute(), masked_policy_attribute()};
    s.quantities = tail_scalars();
    // g_others = sum over j != k of |g_j|, g_total = sum |g_j|
    s.quantities.insert(s.quantities.end(), {"g_others", "g_total"});
    s.arrays = tail_arrays();
    // keep: |g_k| r/s at k, 0 elsewhere (where g_j enters without an error);
    // give: magnitude of the sum that p_j multiplies, g_others at k and g_total elsewhere.
    s.arrays.insert(s.arrays.end(), {"keep", "give"});
    return s;
  }

  template <class N>
  static void row(RowProblem<N>& problem) {
    TailState<N>& state = thread_scratch<TailState<N>>();
    const std::size_t n = problem.n;
    const double* g = problem.in[1];
    tail_state<N>(problem.in[0], n, state);
    const auto upstream = [&](std::size_t j) { return g ? g[j] : 0.0; };
    if (state.row_class != RowClass::regular) return irregular(state, problem, upstream);

    Array<N>& logp = problem.out(0);
    each(n, [&](std::size_t j) {
      logp[j] = state.is_dead(j) ? N(-std::numeric_limits<double>::infinity()) : state.log_p(j);
    });
    if (!g) problem.fill(1, 0.0);
    else {
      Array<N>& gx = problem.out(1);
      const N others =
          sum_except<N>(n, state.k, [&](std::size_t j) { return state.is_dead(j) ? N(0.0) : N(g[j]); });
      const N total = others + N(g[state.k]);
      const N scaled = total * state.inverse_s;  // G / s, so that p_j G = e_j (G / s)
      each(n, [&](std::size_t j) { gx[j] = state.is_dead(j) ? N(0.0) : N(g[j]) - state.e[j] * scaled; });
      gx[state.k] = (N(g[state.k]) * state.r - others) / state.s;  // p_k = 1/s
    }
    if (problem.wants_quantities()) quantities(state, problem, upstream);
  }

 private:
  template <class N, class Upstream>
  static void irregular(const TailState<N>& state, RowProblem<N>& problem, Upstream g) {
    const double infinity = std::numeric_limits<double>::infinity();
    if (state.row_class == RowClass::plus_infinity && state.infinities == 1 && problem.attribute[0] != 0) {
      // Limit of a growing logit: r = 0, so logp is one-hot in the log domain and gx_j = g_j - [j = k] G.
      N others = sum_except<N>(problem.n, state.k, [&](std::size_t j) { return N(g(j)); });
      for (std::size_t j = 0; j < problem.n; ++j) {
        problem.out(0)[j] = N(j == state.k ? 0.0 : -infinity);
        problem.out(1)[j] = j == state.k ? -others : N(g(j));
      }
      return;
    }
    if (state.row_class == RowClass::empty && problem.attribute[1] != 0) {
      problem.fill(0, -infinity);  // zeros in the probability domain
      problem.fill(1, 0.0);
      return;
    }
    problem.fill(0, std::nan(""));
    problem.fill(1, std::nan(""));
  }

  template <class N, class Upstream>
  static void quantities(const TailState<N>& state, RowProblem<N>& problem, Upstream g) {
    tail_quantities(state, problem);
    const double total = magnitude_upper(sum_of<Ball>(problem.n, [&](std::size_t j) {
      return Ball(state.is_dead(j) ? 0.0 : std::fabs(g(j)));
    }));
    const double largest = std::fabs(g(state.k));
    const double others = std::max(0.0, total - largest) + total * 0x1p-50;
    problem.scalar(4, others);
    problem.scalar(5, total);
    std::vector<double>& keep = problem.array(2);
    std::vector<double>& give = problem.array(3);
    std::fill(keep.begin(), keep.end(), 0.0);
    std::fill(give.begin(), give.end(), total);
    const double tail_share = std::min(1.0, magnitude_upper(state.r / state.s));
    keep[state.k] = largest * tail_share * (1 + 0x1p-50);
    give[state.k] = others;
  }
};

SUMZERO_OPERATOR(LogSoftmax)

}  // namespace sumzero
