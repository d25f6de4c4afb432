// kl_reverse: T^2 KL(softmax(s/T) || softmax(t/T)) of student logits s and teacher logits t, loss and both gradients.
//
//   dt = T (o - b),  ds = -T b x   (divergence-inl.h with base = student); without scale_T2 the loss by T^2 and the
//   gradients by T^2 smaller. The upstream factor multiplies last.
// Difference form D4 (Softmax Cancellation: p - q of two rounded softmaxes is noise near equality), loss in terms that are never
// negative.
//
// Contract of both kernels. Dtypes: f32, bf16, f16 and f64 rows. Bounds: loss T11, dt T9, ds T9-base
// (oracle/bounds/kl_reverse.json), n >= 1, for finite logits whose differences, and these over T, are finite in the arithmetic. Bitwise
// equal rows, and rows that differ by one exactly representable constant, give loss 0 and gradients 0. Loss never negative.
// NaN, +inf or no live entry on either side: NaN. -inf in both: as if deleted. -inf in t alone: loss +inf, ds NaN in live
// entries. Deterministic: the bits depend on the row alone, not on threads, position or instruction set. Outputs may overlap
// inputs.
//   fast        float rows in double arithmetic, rounded once; double rows in double arithmetic.
//   fast.plain  arithmetic of the row's type.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fast/cpu/kl_reverse.cpp"
#include "fast/math/simd.h"
// simd.h first: it chooses the targets.
#include "hwy/foreach_target.h"

#include "fast/cpu/divergence-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sumzero::fast::HWY_NAMESPACE {

namespace kl_reverse {
inline constexpr divergence::Roles roles{.base = 0, .other = 1};
}

void KlReverseWide(const Row<float>& row) { divergence::RunKl<double>(row, kl_reverse::roles); }
void KlReverseF64(const Row<double>& row) { divergence::RunKl<double>(row, kl_reverse::roles); }
void KlReversePlainF32(const Row<float>& row) { divergence::RunKl<float>(row, kl_reverse::roles); }

}  // namespace sumzero::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sumzero::fast {
namespace {

HWY_EXPORT(KlReverseWide);
HWY_EXPORT(KlReverseF64);
HWY_EXPORT(KlReversePlainF32);

const Registered fast{RowKernel{
    .op = "kl_reverse",
    .name = "fast",
    .summary = "difference form, loss in non-negative terms, double arithmetic",
    .f32 = [](const Row<float>& row) { HWY_DYNAMIC_DISPATCH(KlReverseWide)(row); },
    .f64 = [](const Row<double>& row) { HWY_DYNAMIC_DISPATCH(KlReverseF64)(row); },
    .contract_f32 = LossContract<double>("T9, T9-base, T11; double arithmetic, one rounding to the row's type"),
    .contract_f64 = LossContract<double>("T9, T9-base, T11")}};
const Registered plain{RowKernel{
    .op = "kl_reverse",
    .name = "fast.plain",
    .summary = "difference form, loss in non-negative terms, arithmetic of the row",
    .f32 = [](const Row<float>& row) { HWY_DYNAMIC_DISPATCH(KlReversePlainF32)(row); },
    .f64 = [](const Row<double>& row) { HWY_DYNAMIC_DISPATCH(KlReverseF64)(row); },
    .contract_f32 = LossContract<float>("T9, T9-base, T11"),
    .contract_f64 = LossContract<double>("T9, T9-base, T11")}};

}  // namespace
}  // namespace sumzero::fast
#endif  // HWY_ONCE
