// Candidate orders of summation: what a sum over a row gives in each, exactly as the machine would round it.
#pragma once

#include <string>
#include <vector>

#include "reference/operator.hpp"

namespace sumzero {

/// One way to add up the terms of a row.
struct SummationOrder {
  enum class Kind : std::uint8_t {
    sequential,  ///< from the first term to the last
    reversed,    ///< from the last to the first
    lanes,       ///< term i to accumulator i mod width, accumulators folded in halves
    chunks,      ///< `width` runs of neighbours, each sequential, folded in halves
    pairwise,    ///< halved until at most `block` terms are left, which are added sequentially (in `width` lanes)
    exact        ///< no rounding before the last: a wider accumulator, or a compensated sum
  } kind = Kind::sequential;
  int width = 1;
  int flush_every = 0;  ///< lanes: additions after which the accumulators enter a pairwise cascade
  int block = 1;

  std::string text() const;
  /// The order as a contract states it: a tree of at least this height.
  SummationTree tree() const;
  bool operator==(const SummationOrder&) const = default;
};

/// Every order that is tried, the simplest first.
const std::vector<SummationOrder>& summation_orders();

/// The sum of `terms` (numbers of `accumulator`, or anything for Kind::exact) with every addition rounded to `accumulator`.
long double sum_in_order(const SummationOrder& order, Format accumulator, const std::vector<double>& terms);

}  // namespace sumzero
