// The right softmax family in plain loops, from which the mutants depart. Arithmetic in T throughout.
//
// m = max x at index k, e_j = exp(x_j - m), r = sum of e_j over j != k, seeded with m - m so that NaN and infinities stay.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "tests/mutants/mutant.hpp"

namespace sumzero::mutants {

template <class T>
struct Tail {
  std::size_t k = 0;
  T m = 0, r = 0;
  std::vector<T> e;
  T p(std::size_t j) const { return e[j] / (1 + r); }
};

template <class T>
Tail<T> tail_first(const T* x, std::size_t n) {
  Tail<T> tail;
  tail.k = textbook::first_maximum(x, n);
  tail.m = x[tail.k];
  tail.r = tail.m - tail.m;
  tail.e.resize(n);
  for (std::size_t j = 0; j < n; ++j) tail.e[j] = std::exp(x[j] - tail.m);
  for (std::size_t j = 0; j < n; ++j)
    if (j != tail.k) tail.r += tail.e[j];
  return tail;
}
template <class T>
Tail<T> tail_first(const Row<T>& row) {
  return tail_first(row.in[0], row.n);
}

template <class T>
bool dead(T logit) {
  return logit == -std::numeric_limits<T>::infinity();
}

template <class T>
void fill(const Row<T>& row, std::size_t output, T value, std::size_t count) {
  if (row.out[output]) std::fill_n(row.out[output], count, value);
}

/// p and its vector-Jacobian product p_j (c_j - sum p c), c_j = g_j - g_k.
template <class T>
void write_softmax(const Row<T>& row, const Tail<T>& tail) {
  for (std::size_t j = 0; row.out[0] && j < row.n; ++j) row.out[0][j] = tail.p(j);
  const T* g = row.in[1];
  if (!row.out[1] || !g) return;
  T q = 0;
  for (std::size_t j = 0; j < row.n; ++j)
    if (j != tail.k) q += tail.p(j) * (g[j] - g[tail.k]);
  for (std::size_t j = 0; j < row.n; ++j) row.out[1][j] = tail.p(j) * ((g[j] - g[tail.k]) - q);
}

/// logp and its vector-Jacobian product: g_k r/s - p_k sum over j != k of g at k, g_j - p_j sum g elsewhere.
template <class T>
void write_log_softmax(const Row<T>& row, const Tail<T>& tail) {
  const T* x = row.in[0];
  const T log_s = std::log1p(tail.r);
  for (std::size_t j = 0; row.out[0] && j < row.n; ++j) row.out[0][j] = (x[j] - tail.m) - log_s;
  const T* g = row.in[1];
  if (!row.out[1] || !g) return;
  T others = 0;
  for (std::size_t j = 0; j < row.n; ++j)
    if (j != tail.k && !dead(x[j])) others += g[j];
  const T total = others + g[tail.k];
  for (std::size_t j = 0; j < row.n; ++j) row.out[1][j] = dead(x[j]) && !std::isnan(tail.r) ? T(0) : g[j] - tail.p(j) * total;
  row.out[1][tail.k] = g[tail.k] * (tail.r / (1 + tail.r)) - tail.p(tail.k) * others;
}

/// m + log1p(r), which is m where m is infinite, and its gradient g p.
template <class T>
void write_logsumexp(const Row<T>& row, const Tail<T>& tail) {
  if (row.out[0]) row.out[0][0] = std::isinf(tail.m) ? tail.m : tail.m + std::log1p(tail.r);
  for (std::size_t j = 0; row.out[1] && row.in[1] && j < row.n; ++j) row.out[1][j] = row.in[1][0] * tail.p(j);
}

struct RightSoftmax {
  template <bool, class T>
  static void row(const Row<T>& row) {
    write_softmax(row, tail_first(row));
  }
};

}  // namespace sumzero::mutants
