// D1: the tail state of a row, shared by every operator that takes a softmax.
//
// m = max x, k = its first index, d_j = x_j - m, e_j = exp(d_j), r = sum over j != k of e_j, s = 1 + r, L = log1p(r).
// The maximum's own 1 enters only as 1 + r, so neither p nor log p cancels (shifted evaluation: Blanchard, D. Higham,
// N. Higham, IMA J. Numer. Anal. 41 (2021) 2311, arXiv 1909.03469). Any entry near the maximum may serve as k; the
// formulas are exact for every choice.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "reference/number/sum.hpp"

namespace sumzero {

enum class RowClass { regular, has_nan, plus_infinity, empty };

/// `empty`: no live entry. Entries of -inf are dead: they behave as if deleted.
template <class N>
struct TailState {
  RowClass row_class = RowClass::regular;
  std::size_t k = 0;           ///< index of the (first) maximum; for plus_infinity the first +inf entry
  std::size_t infinities = 0;  ///< number of +inf entries
  std::size_t live = 0;        ///< entries above -inf
  std::vector<bool> dead;      ///< empty when every entry is live
  Array<N> d, e;               ///< d = 0 where dead, e meaningless
  std::vector<double> hints;   ///< doubles near the logits, padded with -inf
  N r{0.0}, s{1.0}, inverse_s{1.0}, log_s{0.0};

  bool is_dead(std::size_t j) const { return !dead.empty() && dead[j]; }
  N p(std::size_t j) const { return is_dead(j) ? N(0.0) : e[j] * inverse_s; }
  N log_p(std::size_t j) const { return d[j] - log_s; }
};

/// hint(j): a double near logit j, exact as to its class (finite, infinite, NaN). difference(j, k): logit j - logit k.
template <class N, class Hint, class Difference>
void tail_state(std::size_t n, Hint hint, Difference difference, TailState<N>& state) {
  state.row_class = RowClass::regular;
  state.k = n;
  state.infinities = state.live = 0;
  state.dead.clear();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  std::vector<double>& hints = state.hints;
  hints.resize((n + lane_count - 1) / lane_count * lane_count);
  each(n, [&](std::size_t j) { hints[j] = hint(j); });
  std::fill(hints.begin() + static_cast<std::ptrdiff_t>(n), hints.end(), -infinity);
  Lanes largest = Lanes{} - infinity;
  LaneMask nans{}, infinities{}, live{};  // a true comparison is -1
  for (std::size_t j = 0; j < n; j += lane_count) {
    Lanes x;
    load(hints.data() + j, x);
    largest = x > largest ? x : largest;
    nans -= x != x;
    infinities -= x == infinity;
    live -= x > -infinity;
  }
  double maximum = -infinity;
  std::int64_t nan_count = 0;
  for (std::size_t lane = 0; lane < lane_count; ++lane) {
    maximum = std::max(maximum, largest[lane]);
    nan_count += nans[lane];
    state.infinities += static_cast<std::size_t>(infinities[lane]);
    state.live += static_cast<std::size_t>(live[lane]);
  }
  if (state.live > 0) state.k = static_cast<std::size_t>(std::find(hints.begin(), hints.end(), maximum) - hints.begin());
  if (nan_count > 0) state.row_class = RowClass::has_nan;
  else if (state.infinities > 0) state.row_class = RowClass::plus_infinity;
  else if (state.live == 0) state.row_class = RowClass::empty;
  if (state.row_class != RowClass::regular) return;
  if (state.live < n) {
    state.dead.resize(n);
    for (std::size_t j = 0; j < n; ++j) state.dead[j] = !(hints[j] > -infinity);
  }
  state.d.resize(n);
  state.e.resize(n);
  each(n, [&](std::size_t j) { state.d[j] = state.is_dead(j) ? N(0.0) : difference(j, state.k); });
  exp_each(state.d, state.e);
  state.r = sum_except<N>(n, state.k, [&](std::size_t j) { return state.is_dead(j) ? N(0.0) : state.e[j]; });
  state.s = N(1.0) + state.r;
  state.inverse_s = N(1.0) / state.s;
  state.log_s = log1p(state.r);
}

/// The state of a row of exact doubles.
template <class N>
void tail_state(const double* x, std::size_t n, TailState<N>& state) {
  tail_state<N>(
      n, [x](std::size_t j) { return x[j]; }, [x](std::size_t j, std::size_t k) { return N(x[j]) - N(x[k]); }, state);
}

/// The state of x / divisor.
template <class N>
void tail_state_divided(const double* x, std::size_t n, double divisor, TailState<N>& state) {
  if (divisor == 1) return tail_state<N>(x, n, state);
  const N t(divisor);
  tail_state<N>(
      n, [x](std::size_t j) { return x[j]; },
      [x, &t](std::size_t j, std::size_t k) { return (N(x[j]) - N(x[k])) / t; }, state);
}

/// Gap of the two largest entries.
template <class N>
double smallest_gap(const TailState<N>& state) {
  double gap = std::numeric_limits<double>::infinity();
  for (std::size_t j = 0; j < state.d.size(); ++j)
    if (j != state.k && !state.is_dead(j)) gap = std::min(gap, std::fabs(midpoint_hint(state.d[j])));
  return gap;
}

/// Upper bound of ln((live-1)/r), the spread term of theorem T1; 0 when there is no tail. Falls back to the gap of the
/// two largest entries when r underflows in double precision: r >= e^(-gap).
template <class N>
double log_inverse_tail(const TailState<N>& state) {
  if (state.live < 2) return 0;
  const double terms = static_cast<double>(state.live - 1), low = magnitude_lower(state.r);
  const double spread = low > 0x1p-1000 ? std::log(terms / low) : std::log(terms) + smallest_gap(state);
  return std::max(0.0, spread) * (1 + 0x1p-40) + 0x1p-40;
}

/// Quantities that the bounds of the softmax family share; an operator lists them first in its signature.
///   scalars: live (entries), log_tail = ln((live-1)/r), tail = r, log_sum = L; arrays: d = |d_j|, p.
inline const std::vector<std::string>& tail_scalars() {
  static const std::vector<std::string> names = {"live", "log_tail", "tail", "log_sum"};
  return names;
}
inline const std::vector<std::string>& tail_arrays() {
  static const std::vector<std::string> names = {"d", "p"};
  return names;
}

template <class N, class Problem>
void tail_quantities(const TailState<N>& state, Problem& problem) {
  problem.scalar(0, static_cast<double>(state.live));
  problem.scalar(1, log_inverse_tail(state));
  problem.scalar(2, magnitude_upper(state.r));
  problem.scalar(3, magnitude_upper(state.log_s));
  std::vector<double>& d = problem.array(0);
  std::vector<double>& p = problem.array(1);
  // p <= e / max(1, s_low): one reciprocal a row, rounded up.
  const double inverse = (1 / std::max(1.0, magnitude_lower(state.s))) * (1 + 0x1p-50);
  each(problem.n, [&](std::size_t j) {
    d[j] = state.is_dead(j) ? 0 : magnitude_upper(state.d[j]);
    p[j] = state.is_dead(j) ? 0 : magnitude_upper(state.e[j]) * inverse;
  });
}

}  // namespace sumzero
