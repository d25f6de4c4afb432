// Sums over a row, for every number type.
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "reference/number/array.hpp"

namespace sumzero {

/// The Ball form adds midpoints in four independent lanes by two-sum, so every rounding error of the sum is known: the
/// radius grows by the sum of their magnitudes, which for a row of similar terms is a few u of the total.
class BallSum {
 public:
  /// `count` terms, at most `block`; what lies behind them is overwritten.
  static constexpr std::size_t block = 256;
  struct Terms {
    double mid[block], rad[block];
  };

  void add(Terms& terms, std::size_t count) {
    for (; count % lane_count != 0; ++count) terms.mid[count] = terms.rad[count] = 0;
    for (std::size_t j = 0; j < count; j += lane_count) {
      Lanes mid, rad;
      load(terms.mid + j, mid);
      load(terms.rad + j, rad);
      const Lanes sum = mid_ + mid, part = sum - mid_;
      lost_ += (mid_ - (sum - part)) + (mid - part);
      mid_ = sum;
      rad_ += rad;
      size_ += mid < 0 ? -mid : mid;
    }
    count_ += count;
  }

  Ball total() const {
    Ball total;
    double radius = 0, correction = 0, magnitude = 0;
    for (std::size_t lane = 0; lane < lane_count; ++lane) {
      total = total + Ball(mid_[lane]);
      correction += lost_[lane];
      radius += rad_[lane];
      magnitude += size_[lane];
    }
    // Each lost part is at most u of a partial sum; adding up to n/4 + 4 of them loses at most (n/4 + 4)^2 u^2 of the
    // magnitude, below 2^-67 of it for every n up to 2^20 and charged as n^2 u^2.
    const double count = static_cast<double>(count_ + lane_count);
    const double second_order = count * Ball::u * (count * Ball::u) * magnitude;
    // Radii are added with a first-order loss of at most (n/4 + 4) u, below 2^-30.
    total.rad += (radius * (1 + 0x1p-30) + second_order) * Ball::outward;
    return total + Ball(correction);
  }

 private:
  Lanes mid_{}, rad_{}, lost_{}, size_{};
  std::size_t count_ = 0;
};

template <class Term>
Ball sum_except_ball(std::size_t n, std::size_t skip, Term term) {
  BallSum sum;
  BallSum::Terms terms;
  for (std::size_t begin = 0; begin < n; begin += BallSum::block) {
    const std::size_t count = std::min(BallSum::block, n - begin);
    each(count, [&](std::size_t j) {
      const Ball value = term(begin + j);
      terms.mid[j] = value.mid, terms.rad[j] = value.rad;
    });
    if (skip - begin < count) terms.mid[skip - begin] = terms.rad[skip - begin] = 0;  // wraps where skip < begin
    sum.add(terms, count);
  }
  return sum.total();
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
