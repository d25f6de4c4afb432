// Orders in which library kernels add a row up, and its maximum. Every sum includes the maximum's own term.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>

#include "reference/operator.hpp"

namespace sumzero::textbook {

/// Lanes of a 256-bit vector: 8 for float, 4 for double.
template <class T>
constexpr std::size_t vector_lanes = 32 / sizeof(T);

/// Maximum of n >= 1 values; NaN if one of them is NaN, as the vector maxima of the frameworks have it.
template <class T>
T maximum(const T* values, std::size_t n) {
  T result = values[0];
  for (std::size_t i = 1; i < n; ++i)
    if (values[i] > result || std::isnan(values[i])) result = values[i];
  return result;
}

/// First index of the maximum of n >= 1 values; the first NaN counts as the maximum.
template <class T>
std::size_t first_maximum(const T* values, std::size_t n) {
  std::size_t index = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (std::isnan(values[i])) return i;
    if (values[i] > values[index]) index = i;
  }
  return index;
}

/// term(0) + term(1) + ... from left to right; Accumulator may be wider than the terms.
template <class Accumulator, class Term>
Accumulator sequential_sum(std::size_t n, Term term) {
  Accumulator sum = static_cast<Accumulator>(term(0));
  for (std::size_t i = 1; i < n; ++i) sum += static_cast<Accumulator>(term(i));
  return sum;
}

/// Term i goes to lane i mod Lanes; the lanes are folded in halves. Lanes is a power of two.
template <std::size_t Lanes, class T, class Term>
T lane_sum(std::size_t n, Term term) {
  static_assert(std::has_single_bit(Lanes));
  // Lanes beyond the row hold zeros: folding them changes nothing, so they are not formed.
  const std::size_t used = std::min(Lanes, std::bit_ceil(n));
  std::array<T, Lanes> lanes;
  std::fill_n(lanes.begin(), used, T(0));
  for (std::size_t i = 0; i < n; ++i) lanes[i % Lanes] += term(i);
  for (std::size_t half = used / 2; half > 0; half /= 2)
    for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

/// Order of PyTorch's vectorised CPU reductions: a row shorter than one vector is added from left to right,
/// a longer one in the lanes of a 256-bit vector.
template <class T, class Term>
T vector_sum(std::size_t n, Term term) {
  if (n < vector_lanes<T>) return sequential_sum<T>(n, term);
  return lane_sum<vector_lanes<T>, T>(n, term);
}

inline SummationTree sequential_tree() {
  return {SummationTree::Kind::sequential, 1, 0};
}
inline SummationTree lane_tree(std::size_t lanes) {
  return {SummationTree::Kind::lanes, static_cast<int>(lanes), 0};
}

/// What a textbook form claims in arithmetic of type T: exp and log rounded correctly (glibc's float versions
/// stay below 0.52 ulp), and the summation order given.
template <class T>
Contract contract(SummationTree summation) {
  Contract claim;
  claim.policies = false;  // plain IEEE arithmetic
  claim.accumulator = sizeof(T) == sizeof(double) ? Format::f64 : Format::f32;
  claim.summation = summation;
  return claim;
}

/// The claim of a form that adds up by vector_sum.
template <class T>
Contract vector_contract() {
  Contract claim = contract<T>(lane_tree(vector_lanes<T>));
  claim.note = "rows shorter than a 256-bit vector are added from left to right";
  return claim;
}

}  // namespace sumzero::textbook
