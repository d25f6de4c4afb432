// What the loss kernels promise: the order of their sums and the errors of their elementary functions.
#pragma once

#include <cstddef>

#include "fast/math/generated/limits.h"
#include "reference/operator.hpp"

namespace sumzero::fast {

/// Elements that are summed side by side, two cache lines; the same on every instruction set.
template <class A>
inline constexpr std::size_t kBlock = 128 / sizeof(A);
/// Additions after which a lane is flushed into the pairwise cascade: keeps the height at 16 + log2 n.
inline constexpr std::size_t kFlush = 16;

/// Contract of a kernel with arithmetic in A. An ulp is at most two unit roundoffs.
template <class A>
Contract LossContract(const char* note) {
  constexpr bool wide = sizeof(A) == sizeof(double);
  Contract contract;
  contract.accumulator = wide ? Format::f64 : Format::f32;
  contract.exp_error = 2 * (wide ? kExpMaxUlpF64 : kExpMaxUlpF32);
  contract.log_error = 2 * (wide ? kLog1pMaxUlpF64 : kLog1pMaxUlpF32);
  contract.expm1_error = 2 * (wide ? kExpm1MaxUlpF64 : kExpm1MaxUlpF32);
  contract.summation = {SummationTree::Kind::lanes, static_cast<int>(kBlock<A>), static_cast<int>(kFlush)};
  contract.note = note;
  return contract;
}

}  // namespace sumzero::fast
