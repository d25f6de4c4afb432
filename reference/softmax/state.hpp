// softmax.state: a row reduced to (m, r, empty) with m = max x and r = sum over j != k of exp(x_j - m), the state that
// tiles and streams exchange. l = 1 + r, lse = m + log1p(r).
//
//   gx_j = gr e_j for j != k,  gx_k = gm - gr r.
// A row without a live entry is the identity: empty = 1, m = -inf, r = 0, gradient 0. NaN or +inf in the row give
// r = NaN and a NaN gradient; m is NaN or +inf.
#pragma once

#include "reference/register.hpp"
#include "reference/softmax/tail_state.hpp"

namespace sumzero {

inline Signature state_signature(std::string name, std::string summary) {
  Signature s;
  s.name = std::move(name);
  s.summary = std::move(summary);
  s.inputs = {{"x", Role::logits, Shape::row},
              {"gm", Role::upstream, Shape::per_row, Element::accumulator, true, 0},
              {"gr", Role::upstream, Shape::per_row, Element::accumulator, true, 1}};
  s.outputs = {{"m", Shape::per_row, Element::accumulator},
               {"r", Shape::per_row, Element::accumulator, non_negative | shift_invariant},
               {"empty", Shape::per_row, Element::boolean},
               {"gx", Shape::row, Element::storage, linear_upstream | shift_invariant, 0}};
  s.quantities = tail_scalars();
  s.quantities.insert(s.quantities.end(), {"gm", "gr"});
  s.arrays = tail_arrays();
  // at_k: 1 at the maximum, 0 elsewhere; e: exp(d_j) elsewhere.
  s.arrays.insert(s.arrays.end(), {"at_k", "e"});
  return s;
}

template <class N>
void state_row(RowProblem<N>& problem) {
  TailState<N>& state = thread_scratch<TailState<N>>();
  const double* x = problem.in[0];
  const double gm = problem.in[1] ? *problem.in[1] : 0.0;
  const double gr = problem.in[2] ? *problem.in[2] : 0.0;
  tail_state<N>(x, problem.n, state);
  problem.fill(2, state.row_class == RowClass::empty);
  if (state.row_class == RowClass::regular) {
    problem.out(0)[0] = N(x[state.k]);
    problem.out(1)[0] = state.r;
    Array<N>& gx = problem.out(3);
    each(problem.n, [&](std::size_t j) { gx[j] = state.is_dead(j) ? N(0.0) : N(gr) * state.e[j]; });
    gx[state.k] = N(gm) - N(gr) * state.r;
    if (!problem.wants_quantities()) return;
    tail_quantities(state, problem);
    problem.scalar(4, std::fabs(gm));
    problem.scalar(5, std::fabs(gr));
    std::vector<double>&at_k = problem.array(2), &e = problem.array(3);
    each(problem.n, [&](std::size_t j) {
      at_k[j] = 0;
      e[j] = state.is_dead(j) ? 0 : magnitude_upper(state.e[j]);
    });
    at_k[state.k] = 1, e[state.k] = 0;
    return;
  }
  const bool empty = state.row_class == RowClass::empty;
  const double infinity = std::numeric_limits<double>::infinity();
  problem.fill(0, empty ? -infinity : state.row_class == RowClass::plus_infinity ? infinity : std::nan(""));
  problem.fill(1, empty ? 0.0 : std::nan(""));
  problem.fill(3, empty ? 0.0 : std::nan(""));
}

struct SoftmaxState {
  static Signature signature() {
    return state_signature("softmax.state", "row reduced to its maximum and tail sum (m, r), with gradients");
  }
  template <class N>
  static void row(RowProblem<N>& problem) { state_row(problem); }
};

SUMZERO_OPERATOR(SoftmaxState)

}  // namespace sumzero
