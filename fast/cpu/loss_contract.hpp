// What the loss kernels promise: the errors of their elementary functions; the sums are those of row-inl.h.
#pragma once

#include "fast/cpu/row_contract.hpp"
#include "fast/math/generated/limits.h"
#include "reference/operator.hpp"

namespace sumzero::fast {

/// Contract of a kernel with arithmetic in A. An ulp is at most two unit roundoffs.
template <class A>
Contract LossContract(const char* note) {
  constexpr bool wide = sizeof(A) == sizeof(double);
  Contract contract;
  contract.accumulator = wide ? Format::f64 : Format::f32;
  contract.exp_error = 2 * (wide ? kExpMaxUlpF64 : kExpMaxUlpF32);
  contract.log_error = 2 * (wide ? kLog1pMaxUlpF64 : kLog1pMaxUlpF32);
  contract.expm1_error = 2 * (wide ? kExpm1MaxUlpF64 : kExpm1MaxUlpF32);
  contract.summation = row_tree(contract.accumulator);
  contract.note = note;
  return contract;
}

}  // namespace sumzero::fast
