// Sums over a row, for every number type.
#pragma once

#include <cstddef>
#include <type_traits>

#include "reference/number/ball.hpp"

namespace sumzero {

/// The Ball form adds midpoints in eight independent lanes: a tree of height n/8 + 8, so the midpoint errs by at
/// most (n/8 + 8) u sum|mid| to first order; the factor 1 + 2^-40 covers higher orders up to n = 2^30 and the rounding
/// of the bound itself.
template <class Term>
Ball sum_except_ball(std::size_t n, std::size_t skip, Term term) {
  constexpr std::size_t lanes = 8;
  double mid[lanes] = {}, size[lanes] = {}, rad[lanes] = {};
  std::size_t j = 0;
  for (; j + lanes <= n; j += lanes)
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      const Ball value = j + lane == skip ? Ball() : term(j + lane);
      mid[lane] += value.mid;
      size[lane] += std::fabs(value.mid);
      rad[lane] += value.rad;
    }
  for (std::size_t lane = 0; j < n; ++j, ++lane) {
    const Ball value = j == skip ? Ball() : term(j);
    mid[lane] += value.mid;
    size[lane] += std::fabs(value.mid);
    rad[lane] += value.rad;
  }
  double total = 0, magnitude = 0, radius = 0;
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    total += mid[lane];
    magnitude += size[lane];
    radius += rad[lane];
  }
  const double height = static_cast<double>(n) / lanes + lanes;
  // The radii are added the same way; their sum is inflated by the same first-order factor, at least 2^-40.
  const double slack = height * Ball::u * 2 + 0x1p-40;
  return {total, (height * Ball::u * magnitude * (1 + 0x1p-40) + radius * (1 + slack)) * Ball::outward};
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
