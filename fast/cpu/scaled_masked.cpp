// softmax over { scale x_j + bias_j : mask_j } with the gradients of x, bias and scale: gbias = gs, gx = scale gs,
// gscale = sum gs_j x_j, where gs is the softmax VJP of the scaled row.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fast/cpu/scaled_masked.cpp"
#include "fast/math/simd.h"
// simd.h first: it chooses the targets.
#include "hwy/foreach_target.h"
#include "fast/cpu/softmax_vjp-inl.h"
#include "reference/operator.hpp"

HWY_BEFORE_NAMESPACE();
namespace sumzero::fast::HWY_NAMESPACE {

/// z_j = scale x_j + bias_j, fused in double, rounded to Logit; -inf where the mask is 0. The attribute is a double, so
/// a float scale would add an error of its own.
template <class Logit, class T>
void ScaledLogits(const Row<T>& row, Logit* z) {
  const hn::ScalableTag<double> d;
  const T *x = row.in[0], *bias = row.in[1], *mask = row.in[2];
  const auto scale = hn::Set(d, row.attribute[0]), dead = hn::Set(d, -kInfinity<double>);
  ForEach(d, row.n, [&](size_t i, auto at) HWY_ATTR {
    auto logit = Load(at, d, x + i, 0);
    // Without a bias, x times 1 keeps its bits, the sign of zero included.
    logit = bias ? FusedMulAdd(logit, scale, Load(at, d, bias + i, 0)) : hn::Mul(logit, scale);
    if (mask) logit = hn::IfThenElse(hn::Eq(Load(at, d, mask + i, 1), hn::Zero(d)), dead, logit);
    Store(at, d, logit, z + i);
  });
}

/// A computes with rows of logits; T is the type of the row. False for a row whose logits are not regular.
template <class A, class T>
bool ScaledMaskedWith(const Row<T>& row) {
  using Logit = typename A::Element;
  using Lane = typename A::Lane;
  const size_t n = row.n;
  Logit* z = scratch<Logit, 1>(n);
  ScaledLogits(row, z);
  Lane* e = scratch<Lane, 0>(n);
  const Tail<A> tail = ScaledTailOf<A>(z, n, e);
  if (!tail.regular) return false;
  const Lane inverse = tail.Inverse(A::kScale);
  const auto inverses = hn::Set(A::d, inverse);
  if (T* p = row.out[0])
    ForEach(A::d, n, [&](size_t i, auto at) HWY_ATTR {
      Store(at, A::d, hn::Mul(Load(at, A::d, e + i, 0), inverses), p + i);
    });
  const T *x = row.in[0], *g = row.in[3];
  T *gx = row.out[1], *gbias = row.out[2], *gscale = row.out[3];
  if (!g) {
    Fill(gx, n, 0);
    Fill(gbias, n, 0);
    Fill(gscale, 1, 0);
    return true;
  }
  if (!gx && !gbias && !gscale) return true;
  // The exponentials are read for the last time where a gradient overwrites them.
  Lane* gs = e;
  SoftmaxVjp<A>(z, n, tail, e, inverse, g, [&](size_t i, auto at, auto v) HWY_ATTR { Store(at, A::d, v, gs + i); });
  const hn::ScalableTag<double> wide;
  const auto scale = hn::Set(wide, row.attribute[0]);
  if (gbias) ForEach(A::d, n, [&](size_t i, auto at) HWY_ATTR { Store(at, A::d, Load(at, A::d, gs + i, 0), gbias + i); });
  if (gx)
    ForEach(wide, n, [&](size_t i, auto at) HWY_ATTR {
      Store(at, wide, hn::Mul(Load(at, wide, gs + i, 0), scale), gx + i);
    });
  if (gscale)
    *gscale = static_cast<T>(Sum(A::d, n, [&](size_t i, auto at) HWY_ATTR {
      // x of a dead entry may be infinite.
      return ZeroIfDead(at, A::d, z + i, hn::Mul(Load(at, A::d, gs + i, 0), Load(at, A::d, x + i, 0)));
    }));
  return true;
}

/// Logits in double decide what an irregular row is: a float logit may be infinite because it overflowed.
template <class A, class T>
void ScaledMaskedRow(const Row<T>& row) {
  if (ScaledMaskedWith<A>(row)) return;
  if constexpr (std::is_same_v<typename A::Element, float>)
    if (ScaledMaskedWith<Wide<double>>(row)) return;
  double* z = scratch<double, 1>(row.n);
  ScaledLogits(row, z);
  const Irregular limit = IrregularSoftmax(Classify(z, row.n), row.attribute + 1);
  const T value = static_cast<T>(limit.value);
  Fill(row.out[0], row.n, value);
  Fill(row.out[1], row.n, value);
  Fill(row.out[2], row.n, value);
  Fill(row.out[3], 1, value);
  if (row.out[0] && limit.one_hot) row.out[0][limit.index] = 1;
}

void ScaledMaskedWide(const Row<float>& row) { ScaledMaskedRow<Wide<double>>(row); }
void ScaledMaskedCompensated(const Row<double>& row) { ScaledMaskedRow<Compensated>(row); }
void ScaledMaskedPlainF32(const Row<float>& row) { ScaledMaskedRow<Plain<float>>(row); }
void ScaledMaskedPlainF64(const Row<double>& row) { ScaledMaskedRow<Plain<double>>(row); }

}  // namespace sumzero::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "fast/cpu/row_contract.hpp"

namespace sumzero::fast {
namespace {

HWY_EXPORT(ScaledMaskedWide);
HWY_EXPORT(ScaledMaskedCompensated);
HWY_EXPORT(ScaledMaskedPlainF32);
HWY_EXPORT(ScaledMaskedPlainF64);

/// f32, bf16, f16: logits and everything after them in double, T3 and T7 hold with u = 2^-53. f64: compensated shift of
/// the rounded logits; a logit loses up to u (|z_j|) and every p at most twice the largest of it.
/// All finite inputs, any scale > 0, any n. NaN in an unmasked entry: NaN. +inf: NaN, or one-hot by `inf_policy` if there
/// is one. Masked or -inf: p = 0 and gradient +0. No live entry: NaN or zeros by `masked_policy`. Bitwise
/// deterministic, the same on every target.
static const Registered accurate{
    RowKernel{.op = "softmax.scaled_masked",
              .name = "fast",
              .summary = "tail-first masked softmax in double, compensated for f64 (T3, T7)",
              .f32 = [](const Row<float>& row) { HWY_DYNAMIC_DISPATCH(ScaledMaskedWide)(row); },
              .f64 = [](const Row<double>& row) { HWY_DYNAMIC_DISPATCH(ScaledMaskedCompensated)(row); },
              .contract_f32 = wide_contract(),
              .contract_f64 = compensated_contract(Format::f64)}};

/// Arithmetic of the row's type after logits that are rounded once: p_j within (8 max |z| + |d_j| + ln n + 2 c_e + h + 3) u
/// (T3), c_e <= 2, h <= 21 + log2(n / 512) for float and 20 + log2(n / 256) for double; gradients T7. Rows whose float
/// logits overflow are computed as `fast`. Differences of two upstream entries must not overflow. Special values and
/// determinism as `fast`.
static const Registered plain{
    RowKernel{.op = "softmax.scaled_masked",
              .name = "fast.plain",
              .summary = "tail-first masked softmax in the row's arithmetic (T3, T7)",
              .f32 = [](const Row<float>& row) { HWY_DYNAMIC_DISPATCH(ScaledMaskedPlainF32)(row); },
              .f64 = [](const Row<double>& row) { HWY_DYNAMIC_DISPATCH(ScaledMaskedPlainF64)(row); },
              .contract_f32 = plain_contract(Format::f32),
              .contract_f64 = plain_contract(Format::f64)}};

}  // namespace
}  // namespace sumzero::fast

#endif  // HWY_ONCE
