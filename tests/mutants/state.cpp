// Mutants of softmax.state, softmax.merge and softmax.online. Planted elsewhere: the pair (m, l) with the maximum inside l
// (kernels `textbook.*`).
#include <algorithm>

#include "tests/mutants/tail_first.hpp"

namespace sumzero::mutants {
namespace {

// ---------------------------------------------------------------------------------------------------------
// softmax.state

/// m, r, empty and gx_j = gr e_j, gx_k = gm - gr r.
template <class T>
void write_state(const Row<T>& row, const Tail<T>& tail) {
  const bool empty = dead(tail.m);
  const T gm = row.in[1] ? row.in[1][0] : T(0), gr = row.in[2] ? row.in[2][0] : T(0);
  if (row.out[0]) row.out[0][0] = tail.m;
  if (row.out[1]) row.out[1][0] = empty ? T(0) : tail.r;
  if (row.out[2]) row.out[2][0] = empty;
  if (!row.out[3]) return;
  for (std::size_t j = 0; j < row.n; ++j) row.out[3][j] = empty ? T(0) : tail.e[j] == 0 && !std::isnan(tail.r) ? T(0) : gr * tail.e[j] + (tail.r - tail.r);
  if (!empty) row.out[3][tail.k] = gm - gr * tail.r;
}

/// r includes the maximum: l handed out as r.
struct MaximumInTail {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    auto tail = tail_first(row);
    write_state(row, tail);
    if (planted && row.out[1] && !dead(tail.m)) row.out[1][0] = 1 + tail.r;
  }
};
const Catalogued maximum_in_tail{in_row<MaximumInTail>("softmax.state", "maximum inside r", "l handed out as r", "bound")};

struct NanLost {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    auto tail = tail_first(row);
    if (planted && !std::isfinite(tail.m)) {
      tail.r = 0;
      for (std::size_t j = 0; j < row.n; ++j)
        if (j != tail.k && std::isfinite(tail.e[j])) tail.r += tail.e[j];
    }
    write_state(row, tail);
  }
};
const Catalogued nan_lost{in_row<NanLost>("softmax.state", "r not seeded with m - m", "NaN at the index of the maximum", "special values")};

/// The empty row by arithmetic: exp(-inf - -inf).
struct EmptyByArithmetic {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    const auto tail = tail_first(row);
    write_state(row, tail);
    if (planted && dead(tail.m)) fill(row, 1, tail.r, 1);
  }
};
const Catalogued empty_by_arithmetic{in_row<EmptyByArithmetic>("softmax.state", "empty state by arithmetic", "exp(-inf - -inf)", "special values")};

struct EmptyFlagForgotten {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    write_state(row, tail_first(row));
    if (planted) fill(row, 2, T(0), 1);
  }
};
const Catalogued empty_flag_forgotten{in_row<EmptyFlagForgotten>("softmax.state", "empty flag forgotten", "masked tile taken as live", "flag")};

/// The gradient of m goes to the last of equal maxima.
struct LastMaximum {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    auto tail = tail_first(row);
    if (planted)
      for (std::size_t j = tail.k; j < row.n; ++j)
        if (row.in[0][j] == tail.m) tail.k = j;
    write_state(row, tail);
  }
};
const Catalogued last_maximum{in_row<LastMaximum>("softmax.state", "last of tied maxima", "first maximum by contract", "bound")};

// ---------------------------------------------------------------------------------------------------------
// softmax.merge

enum class MergeDefect { none, forgets_one, unscaled, scaled_twice, unordered, by_arithmetic, larger_first, identity_rounds, flag_or, gradient_unscaled };

template <MergeDefect defect, class T>
void merge(const Row<T>& row) {
  const auto in = [&](std::size_t i) { return row.in[i] ? T(row.in[i][0]) : T(0); };
  const auto write = [&](std::initializer_list<T> values) {
    std::size_t output = 0;
    for (const T value : values) fill(row, output++, value, 1);
  };
  T m1 = in(0), r1 = in(1), m2 = in(3), r2 = in(4);
  const T gm = in(6), gr = in(7);
  const bool empty1 = in(2) != 0, empty2 = in(5) != 0;
  if (defect != MergeDefect::by_arithmetic) {
    const T flag = defect == MergeDefect::flag_or && empty1 != empty2;
    const auto kept = [](T r) { return defect == MergeDefect::identity_rounds ? (1 + r) - 1 : r; };
    if (empty1 && empty2) return write({m1, 0, 1, 0, 0, 0, 0});
    if (empty2) return write({m1, kept(r1), flag, gm, gr, 0, 0});
    if (empty1) return write({m2, kept(r2), flag, 0, 0, gm, gr});
  }
  bool first = m1 >= m2 || std::isnan(m1);
  if (defect == MergeDefect::unordered || defect == MergeDefect::larger_first) first = true;
  const T larger = first ? m1 : m2, r_larger = first ? r1 : r2, r_smaller = first ? r2 : r1;
  T w = std::exp((first ? m2 : m1) - larger);
  if (defect == MergeDefect::unscaled) w = 1;
  if (defect == MergeDefect::scaled_twice) w *= w;
  if (defect == MergeDefect::larger_first) w = std::min(w, T(1));
  const T moved = (defect == MergeDefect::forgets_one ? r_smaller : 1 + r_smaller) * w;
  const T seed = (m1 - m1) + (m2 - m2);  // NaN where either is not finite
  const T r = r_larger + moved + seed, at_larger = gm - gr * moved + seed, at_smaller = gr * moved + seed;
  const T gr_larger = gr + seed, gr_smaller = (defect == MergeDefect::gradient_unscaled ? gr : gr * w) + seed + (r - r);
  const T m = std::isnan(m1) || std::isnan(m2) ? m1 + m2 : larger;
  if (first) write({m, r, T(empty1 && empty2), at_larger, gr_larger, at_smaller, gr_smaller});
  else write({m, r, T(empty1 && empty2), at_smaller, gr_smaller, at_larger, gr_larger});
}

template <MergeDefect defect>
struct Merge {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    merge<planted ? defect : MergeDefect::none>(row);
  }
};
const Catalogued merges[] = {
    Catalogued{in_row<Merge<MergeDefect::forgets_one>>("softmax.merge", "1 of the smaller state forgotten", "r1 + r2 exp(m2 - m1)", "bound", float_formats)},
    Catalogued{in_row<Merge<MergeDefect::unscaled>>("softmax.merge", "not rescaled", "split-K attention", "bound", float_formats)},
    Catalogued{in_row<Merge<MergeDefect::scaled_twice>>("softmax.merge", "rescaled twice", "split-K attention", "bound", float_formats)},
    Catalogued{in_row<Merge<MergeDefect::unordered>>("softmax.merge", "without ordering", "exp(m2 - m1) for m2 > m1", "bound", float_formats)},
    Catalogued{in_row<Merge<MergeDefect::larger_first>>("softmax.merge", "first maximum kept", "stale maximum of the older state", "bound", float_formats)},
    Catalogued{in_row<Merge<MergeDefect::by_arithmetic>>("softmax.merge", "identity by arithmetic", "two empty partial results", "special values", float_formats)},
    Catalogued{in_row<Merge<MergeDefect::identity_rounds>>("softmax.merge", "identity rounds r", "(1 + r) - 1", "bound", float_formats)},
    Catalogued{in_row<Merge<MergeDefect::flag_or>>("softmax.merge", "empty flags joined by or", "one empty partial result", "flag", float_formats)},
    Catalogued{in_row<Merge<MergeDefect::gradient_unscaled>>("softmax.merge", "gradient of r not rescaled", "backward of split-K", "bound", float_formats)}};

// ---------------------------------------------------------------------------------------------------------
// softmax.online

enum class OnlineDefect { none, unscaled, scaled_twice, forgets_one, starts_at_zero, skips_first_tie, last_lost, no_flag };

template <OnlineDefect defect, class T>
Tail<T> online(const T* x, std::size_t n) {
  Tail<T> tail = tail_first(x, n);  // e and k serve the gradient
  if (!std::isfinite(tail.m)) {
    if (defect == OnlineDefect::no_flag && dead(x[0])) tail.m = std::nan("");
    return tail;
  }
  T m = defect == OnlineDefect::starts_at_zero ? T(0) : -std::numeric_limits<T>::infinity(), r = 0;
  bool seen = defect == OnlineDefect::no_flag || defect == OnlineDefect::starts_at_zero;
  const std::size_t end = defect == OnlineDefect::last_lost && n > 1 ? n - 1 : n;
  for (std::size_t j = 0; j < end; ++j) {
    if (dead(x[j]) && defect != OnlineDefect::no_flag) continue;
    if (!seen) {
      m = x[j], seen = true;
    } else if (x[j] > m) {
      T w = std::exp(m - x[j]);
      if (defect == OnlineDefect::unscaled) w = 1;
      if (defect == OnlineDefect::scaled_twice) w *= w;
      r = (defect == OnlineDefect::forgets_one ? r : 1 + r) * w;
      m = x[j];
    } else if (!(defect == OnlineDefect::skips_first_tie && x[j] == m)) {
      r += std::exp(x[j] - m);
    }
  }
  tail.m = m, tail.r = r;
  return tail;
}

template <OnlineDefect defect>
struct Online {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    write_state(row, online<planted ? defect : OnlineDefect::none>(row.in[0], row.n));
  }
};
const Catalogued onlines[] = {
    Catalogued{in_row<Online<OnlineDefect::unscaled>>("softmax.online", "not rescaled at a new maximum", "maximum arriving late", "bound")},
    Catalogued{in_row<Online<OnlineDefect::scaled_twice>>("softmax.online", "rescaled twice", "maximum arriving late", "bound")},
    Catalogued{in_row<Online<OnlineDefect::forgets_one>>("softmax.online", "1 of the old maximum forgotten", "r exp(m - x)", "bound")},
    Catalogued{in_row<Online<OnlineDefect::starts_at_zero>>("softmax.online", "stream starts at m = 0", "rows below zero", "bound")},
    Catalogued{in_row<Online<OnlineDefect::skips_first_tie>>("softmax.online", "tie adds nothing", "element equal to the maximum", "bound")},
    Catalogued{in_row<Online<OnlineDefect::last_lost>>("softmax.online", "last element lost", "wrong n", "bound")},
    Catalogued{in_row<Online<OnlineDefect::no_flag>>("softmax.online", "empty prefix by arithmetic", "exp(-inf - -inf)", "special values")}};

}  // namespace
}  // namespace sumzero::mutants
