// softmax and its vector-Jacobian product: p_j = e_j / (1 + r), gx_j = p_j (c_j - q) with c_j = g_j - g_k and
// q = sum over j != k of p_j c_j.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fast/cpu/softmax.cpp"
#include "fast/math/simd.h"
// simd.h first: it chooses the targets.
#include "hwy/foreach_target.h"
#include "fast/cpu/softmax_vjp-inl.h"
#include "reference/operator.hpp"

HWY_BEFORE_NAMESPACE();
namespace sumzero::fast::HWY_NAMESPACE {

template <class A>
void SoftmaxRow(const Row<typename A::Element>& row) {
  using Element = typename A::Element;
  const Element* x = row.in[0];
  const Element* g = row.in[1];
  Element* p = row.out[0];
  Element* gx = row.out[1];
  if (!SoftmaxWithVjp<A>(x, row.n, p, g, gx)) {
    const Irregular limit = IrregularSoftmax(Classify(x, row.n), row.attribute);
    Fill(p, row.n, limit.value);
    Fill(gx, row.n, limit.value);
    if (p && limit.one_hot) p[limit.index] = 1;
  }
}

void SoftmaxCompensatedF32(const Row<float>& row) { SoftmaxRow<CompensatedFloat>(row); }
void SoftmaxCompensatedF64(const Row<double>& row) { SoftmaxRow<Compensated>(row); }
void SoftmaxPlainF32(const Row<float>& row) { SoftmaxRow<Plain<float>>(row); }
void SoftmaxPlainF64(const Row<double>& row) { SoftmaxRow<Plain<double>>(row); }

}  // namespace sumzero::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "fast/cpu/row_contract.hpp"

namespace sumzero::fast {
namespace {

HWY_EXPORT(SoftmaxCompensatedF32);
HWY_EXPORT(SoftmaxCompensatedF64);
HWY_EXPORT(SoftmaxPlainF32);
HWY_EXPORT(SoftmaxPlainF64);

/// f32, bf16, f16: float lanes with x - max as a pair, tail in double: p within (2 c_e + 5) u whatever n and the gaps
/// (T3), c_e = 1.75; seen: 2.3 ulp, 0.501 ulp after rounding to 16 bits. Gradients from the same exponentials in double
/// (T7). f64: p within (2 c_e + h + 3) u, c_e = 3.01, h <= 20 + log2(n / 256).
/// All finite inputs, any n. NaN anywhere: NaN. +inf: NaN, or one-hot by `inf_policy` if there is one. -inf: p = 0 and
/// gradient +0. Only -inf: NaN or zeros by `masked_policy`. Bitwise deterministic, the same on every target.
static const Registered accurate{
    RowKernel{.op = "softmax",
              .name = "fast",
              .summary = "tail-first softmax with a compensated shift (T3, T7)",
              .f32 = [](const Row<float>& row) { HWY_DYNAMIC_DISPATCH(SoftmaxCompensatedF32)(row); },
              .f64 = [](const Row<double>& row) { HWY_DYNAMIC_DISPATCH(SoftmaxCompensatedF64)(row); },
              .contract_f32 = compensated_contract(Format::f32),
              .contract_f64 = compensated_contract(Format::f64)}};

/// Arithmetic of the row's type: p_j within (|d_j| + ln n + 2 c_e + h + 3) u (T3), c_e = 1.5 and h <= 21 + log2(n / 512) for
/// float, 2 and 20 + log2(n / 256) for double; gradient T7. Differences of two upstream entries must not overflow.
/// Special values and determinism as `fast`.
static const Registered plain{
    RowKernel{.op = "softmax",
              .name = "fast.plain",
              .summary = "tail-first softmax in the row's arithmetic (T3, T7)",
              .f32 = [](const Row<float>& row) { HWY_DYNAMIC_DISPATCH(SoftmaxPlainF32)(row); },
              .f64 = [](const Row<double>& row) { HWY_DYNAMIC_DISPATCH(SoftmaxPlainF64)(row); },
              .contract_f32 = plain_contract(Format::f32),
              .contract_f64 = plain_contract(Format::f64)}};

}  // namespace
}  // namespace sumzero::fast

#endif  // HWY_ONCE
