// What the arithmetics of row-inl.h promise.
#pragma once

#include "reference/operator.hpp"

namespace sumzero::fast {

/// The reduction tree of row-inl.h: kWidth<T> lanes, each flushed after kFlush additions.
inline SummationTree row_tree(Format accumulator) {
  return {SummationTree::Kind::lanes, accumulator == Format::f64 ? 16 : 32, 16};
}

/// Wide. exp_error: the exponent is rounded to a multiple of 2^-42 and its product with log2(e) uses a rounded
/// constant, 0.70 (1024 + 90) units of 2^-53; the polynomial adds 2^-45.9 = 137 units and its evaluation 3.
inline Contract wide_contract() {
  Contract claim;
  claim.accumulator = Format::f64;
  claim.exp_error = 1000;
  claim.log_error = 2;
  claim.summation = row_tree(Format::f64);
  claim.reciprocal = true;
  claim.note = "double lanes, one rounding to float; same bits on every SIMD target";
  return claim;
}

/// Compensated and CompensatedFloat. exp_error in double: 2 for the exponential, 1 for the fused correction, the rest for
/// the product of the two errors and for low^2 / 2. In float the correction enters the reduced argument and rounds
/// there, 1.43 + 0.25; the sum rounds twice in float, and its double part, below 2^-47 for every n, is in the margin.
inline Contract compensated_contract(Format accumulator) {
  const bool wide = accumulator == Format::f64;
  Contract claim;
  claim.accumulator = accumulator;
  claim.exp_error = wide ? 3.01 : 1.75;
  claim.log_error = 2;
  claim.summation = wide ? row_tree(accumulator) : SummationTree{SummationTree::Kind::compensated, 1, 0};
  claim.compensated_shift = true;
  claim.reciprocal = true;
  claim.monotone = false;  // neighbours can be inverted by an ulp, even with a correctly rounded exponential
  claim.note = "x - max enters as a pair; same bits on every SIMD target";
  return claim;
}

/// Plain. The float exponential is monotone (every negative float was tried); for double that is not proved.
inline Contract plain_contract(Format accumulator) {
  Contract claim;
  claim.accumulator = accumulator;
  claim.exp_error = accumulator == Format::f32 ? 1.5 : 2;
  claim.log_error = 2;
  claim.summation = row_tree(accumulator);
  claim.reciprocal = true;
  claim.monotone = accumulator == Format::f32;
  claim.note = "arithmetic of the row's type; same bits on every SIMD target";
  return claim;
}

}  // namespace sumzero::fast
