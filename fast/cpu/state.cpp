// softmax.state: a row reduced to (m, r, empty), and the gradient of that reduction.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fast/cpu/state.cpp"
#include "fast/math/simd.h"
// simd.h first: it chooses the targets.
#include "hwy/foreach_target.h"
#include "fast/cpu/state_row-inl.h"
#include "reference/operator.hpp"

HWY_BEFORE_NAMESPACE();
namespace sumzero::fast::HWY_NAMESPACE {

template <class A>
void StateRowTwoPass(const Row<typename A::Element>& row) {
  StateRow<A>(row, [](const typename A::Element* x, size_t n) HWY_ATTR { return TailOf<A>(x, n, NoStore()); });
}

void StateWide(const Row<float>& row) { StateRowTwoPass<Wide<float>>(row); }
void StateCompensated(const Row<double>& row) { StateRowTwoPass<Compensated>(row); }
void StatePlainF32(const Row<float>& row) { StateRowTwoPass<Plain<float>>(row); }
void StatePlainF64(const Row<double>& row) { StateRowTwoPass<Plain<double>>(row); }

}  // namespace sumzero::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "fast/cpu/row_contract.hpp"

namespace sumzero::fast {
namespace {

HWY_EXPORT(StateWide);
HWY_EXPORT(StateCompensated);
HWY_EXPORT(StatePlainF32);
HWY_EXPORT(StatePlainF64);

/// f32, bf16, f16: double lanes, so T1 holds with u = 2^-53 and r is the exact tail rounded. f64: compensated shift,
/// r within (c_e + h) u relative, c_e = 3.01, h <= 20 + log2(n / 256). m is exact.
/// All finite inputs, any n. Only -inf: the identity, empty = 1, m = -inf, r = 0, gradient +0. NaN: m, r and gradient
/// NaN; +inf: m = +inf, r and gradient NaN. -inf among others: gradient +0. Bitwise deterministic, the same on every
/// target.
static const Registered accurate{
    RowKernel{.op = "softmax.state",
              .name = "fast",
              .summary = "state (m, r) of a row in double, compensated for f64 (T1)",
              .f32 = [](const Row<float>& row) { HWY_DYNAMIC_DISPATCH(StateWide)(row); },
              .f64 = [](const Row<double>& row) { HWY_DYNAMIC_DISPATCH(StateCompensated)(row); },
              .contract_f32 = wide_contract(),
              .contract_f64 = compensated_contract(Format::f64)}};

/// Arithmetic of the row's type: r within (ln((n-1)/r) + c_e + h) u relative (T1), c_e <= 2, h <= 21 + log2(n / 512) for
/// float and 20 + log2(n / 256) for double. m is exact. Special values and determinism as `fast`.
static const Registered plain{
    RowKernel{.op = "softmax.state",
              .name = "fast.plain",
              .summary = "state (m, r) of a row in the row's arithmetic (T1)",
              .f32 = [](const Row<float>& row) { HWY_DYNAMIC_DISPATCH(StatePlainF32)(row); },
              .f64 = [](const Row<double>& row) { HWY_DYNAMIC_DISPATCH(StatePlainF64)(row); },
              .contract_f32 = plain_contract(Format::f32),
              .contract_f64 = plain_contract(Format::f64)}};

}  // namespace
}  // namespace sumzero::fast

#endif  // HWY_ONCE
