// kl_forward: T^2 KL(softmax(t/T) || softmax(s/T)) of student logits s and teacher logits t, loss and both gradients.
//
//   ds = T (o - b),  dt = -T b x   (divergence-inl.h with base = teacher); without scale_T2 the loss by T^2 and the
//   gradients by T^2 smaller. The upstream factor multiplies last.
// Difference form D4 (Softmax Cancellation: p - q of two rounded softmaxes is noise near equality), loss in terms that are never
// negative.
//
// Contract of both kernels. Dtypes: f32, bf16, f16 and f64 rows. Bounds: loss T11, ds T9, dt T9-base
// (oracle/bounds/kl_forward.json), n >= 1, for finite logits whose differences, and these over T, are finite in the arithmetic. Bitwise
// equal rows, and rows that differ by one exactly representable constant, give loss 0 and gradients 0. Loss never negative.
// NaN, +inf or no live entry on either side: NaN. -inf in both: as if deleted. -inf in s alone: loss +inf, dt NaN in live
// entries. Deterministic: the bits depend on the row alone, not on threads, position or instruction set. Outputs may overlap
// inputs.
//   fast        float rows in double arithmetic, rounded once; double rows in double arithmetic.
//   fast.plain  arithmetic of the row's type.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fast/cpu/kl_forward.cpp"
#include "fast/math/simd.h"
// simd.h first: it chooses the targets.
#include "hwy/foreach_target.h"

#include "fast/cpu/divergence-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sumzero::fast::HWY_NAMESPACE {

namespace kl_forward {
inline constexpr divergence::Roles roles{.base = 1, .other = 0};
}

void KlForwardWide(const Row<float>& row) { divergence::RunKl<double>(row, kl_forward::roles); }
void KlForwardF64(const Row<double>& row) { divergence::RunKl<double>(row, kl_forward::roles); }
void KlForwardPlainF32(const Row<float>& row) { divergence::RunKl<float>(row, kl_forward::roles); }

}  // namespace sumzero::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sumzero::fast {
namespace {

HWY_EXPORT(KlForwardWide);
HWY_EXPORT(KlForwardF64);
HWY_EXPORT(KlForwardPlainF32);

const Registered fast{RowKernel{
    .op = "kl_forward",
    .name = "fast",
    .summary = "difference form, loss in non-negative terms, double arithmetic",
    .f32 = [](const Row<float>& row) { HWY_DYNAMIC_DISPATCH(KlForwardWide)(row); },
    .f64 = [](const Row<double>& row) { HWY_DYNAMIC_DISPATCH(KlForwardF64)(row); },
    .contract_f32 = LossContract<double>("T9, T9-base, T11; double arithmetic, one rounding to the row's type"),
    .contract_f64 = LossContract<double>("T9, T9-base, T11")}};
const Registered plain{RowKernel{
    .op = "kl_forward",
    .name = "fast.plain",
    .summary = "difference form, loss in non-negative terms, arithmetic of the row",
    .f32 = [](const Row<float>& row) { HWY_DYNAMIC_DISPATCH(KlForwardPlainF32)(row); },
    .f64 = [](const Row<double>& row) { HWY_DYNAMIC_DISPATCH(KlForwardF64)(row); },
    .contract_f32 = LossContract<float>("T9, T9-base, T11"),
    .contract_f64 = LossContract<double>("T9, T9-base, T11")}};

}  // namespace
}  // namespace sumzero::fast
#endif  // HWY_ONCE
