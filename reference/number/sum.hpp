// Sums over a row, for every number type.
#pragma once

#include <cstddef>
#include <type_traits>

#include "reference/number/ball.hpp"

namespace sumzero {

/// The Ball form adds midpoints in eight independent lanes by two-sum, so every rounding error of the sum is known: the
/// radius grows by the sum of their magnitudes, which for a row of similar terms is a few u of the total.
template <class Term>
Ball sum_except_ball(std::size_t n, std::size_t skip, Term term) {
  constexpr std::size_t lanes = 8;
  double mid[lanes] = {}, lost[lanes] = {}, rad[lanes] = {}, size[lanes] = {};
  const auto add = [&](std::size_t lane, const Ball& value) {
    const double sum = mid[lane] + value.mid, part = sum - mid[lane];
    lost[lane] += (mid[lane] - (sum - part)) + (value.mid - part);
    mid[lane] = sum;
    rad[lane] += value.rad;
    size[lane] += std::fabs(value.mid);
  };
  std::size_t j = 0;
  for (; j + lanes <= n; j += lanes)
    for (std::size_t lane = 0; lane < lanes; ++lane) add(lane, j + lane == skip ? Ball() : term(j + lane));
  for (std::size_t lane = 0; j < n; ++j, ++lane) add(lane, j == skip ? Ball() : term(j));
  Ball total;
  double radius = 0, correction = 0, magnitude = 0;
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    total = total + Ball(mid[lane]);
    correction += lost[lane];
    radius += rad[lane];
    magnitude += size[lane];
  }
  // Each lost part is at most u of a partial sum; adding up to n/8 + 8 of them loses at most (n/8 + 8)^2 u^2 of the
  // magnitude, below 2^-70 of it for every n up to 2^20 and charged as n^2 u^2.
  const double count = static_cast<double>(n) + lanes;
  const double second_order = count * Ball::u * (count * Ball::u) * magnitude;
  // Radii are added with a first-order loss of at most (n/8 + 8) u, below 2^-30.
  total.rad += (radius * (1 + 0x1p-30) + second_order) * Ball::outward;
  return total + Ball(correction);
}

/// Sum of term(j) for 0 <= j < n, j != skip.
template <class N, class Term>
N sum_except(std::size_t n, std::size_t skip, Term term) {
  if constexpr (std::is_same_v<N, Ball>) {
    return sum_except_ball(n, skip, term);
  } else {
    N total(0.0);
    for (std::size_t j = 0; j < n; ++j)
      if (j != skip) total = total + term(j);
    return total;
  }
}

/// Sum of term(j) over a whole row.
template <class N, class Term>
N sum_of(std::size_t n, Term term) {
  return sum_except<N>(n, n, term);
}

}  // namespace sumzero
