// logsumexp and its gradient: lse = m + log1p(r), gx_j = g p_j.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fast/cpu/logsumexp.cpp"
#include "fast/math/simd.h"
// simd.h first: it chooses the targets.
#include "hwy/foreach_target.h"
#include "fast/cpu/row-inl.h"
#include "reference/operator.hpp"

HWY_BEFORE_NAMESPACE();
namespace sumzero::fast::HWY_NAMESPACE {

template <class A>
void LogSumExpIrregular(const Row<typename A::Element>& row) {
  using Element = typename A::Element;
  using Kind = RowClassification::Kind;
  const RowClassification c = Classify(row.in[0], row.n);
  const Element nan = std::numeric_limits<Element>::quiet_NaN();
  Fill(row.out[0], 1, c.kind == Kind::has_nan ? nan : c.kind == Kind::empty ? -kInfinity<Element> : kInfinity<Element>);
  const bool limit = c.kind == Kind::one_infinity && row.attribute[0] != 0;
  const bool zeros = c.kind == Kind::empty && row.attribute[1] != 0;
  Fill(row.out[1], row.n, limit || zeros ? Element(0) : nan);
  if (row.out[1] && limit) row.out[1][c.index] = row.in[1] ? *row.in[1] : Element(0);
}

template <class A>
void LogSumExpRow(const Row<typename A::Element>& row) {
  using Element = typename A::Element;
  using Lane = typename A::Lane;
  const Element *x = row.in[0], *g = row.in[1];
  Element *lse = row.out[0], *gx = row.out[1];
  const bool backward = gx && g;
  Lane* e = backward ? scratch<Lane, 0>(row.n) : nullptr;
  const Tail<A> tail = backward ? ScaledTailOf<A>(x, row.n, e) : ScaledTailOf<A>(x, row.n, NoStore());
  if (!tail.regular) return LogSumExpIrregular<A>(row);
  if (lse) *lse = static_cast<Element>(static_cast<Lane>(tail.m) + Log1pOf(tail.r));
  if (!backward) return Fill(gx, row.n, 0);
  const auto inverse = hn::Set(A::d, tail.Inverse(A::kScale)), upstream = hn::Set(A::d, static_cast<Lane>(*g));
  ForEach(A::d, row.n, [&](size_t i, auto at) HWY_ATTR {
    const auto p = hn::Mul(Load(at, A::d, e + i, 0), inverse);
    Store(at, A::d, ZeroIfDead(at, A::d, x + i, hn::Mul(upstream, p)), gx + i);
  });
}

void LogSumExpWide(const Row<float>& row) { LogSumExpRow<Wide<float>>(row); }
void LogSumExpCompensated(const Row<double>& row) { LogSumExpRow<Compensated>(row); }
void LogSumExpPlainF32(const Row<float>& row) { LogSumExpRow<Plain<float>>(row); }
void LogSumExpPlainF64(const Row<double>& row) { LogSumExpRow<Plain<double>>(row); }

}  // namespace sumzero::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "fast/cpu/row_contract.hpp"

namespace sumzero::fast {
namespace {

HWY_EXPORT(LogSumExpWide);
HWY_EXPORT(LogSumExpCompensated);
HWY_EXPORT(LogSumExpPlainF32);
HWY_EXPORT(LogSumExpPlainF64);

/// f32, bf16, f16: double lanes, so T2-lse and T3 hold with u = 2^-53 and the result is the exact one rounded. f64:
/// compensated shift, lse within u |lse| + (c_e + h + c_l) u log1p(r), c_e = 3.01, h <= 20 + log2(n / 256).
/// All finite inputs, any n. NaN anywhere: NaN. +inf: lse = +inf, gradient NaN, or one-hot by `inf_policy` if there is
/// one. -inf: gradient +0. Only -inf: lse = -inf, gradient NaN or zeros by `masked_policy`. Bitwise deterministic, the
/// same on every target.
static const Registered accurate{
    RowKernel{.op = "logsumexp",
              .name = "fast",
              .summary = "tail-first logsumexp in double, compensated for f64 (T2-lse, T3)",
              .f32 = [](const Row<float>& row) { HWY_DYNAMIC_DISPATCH(LogSumExpWide)(row); },
              .f64 = [](const Row<double>& row) { HWY_DYNAMIC_DISPATCH(LogSumExpCompensated)(row); },
              .contract_f32 = wide_contract(),
              .contract_f64 = compensated_contract(Format::f64)}};

/// Arithmetic of the row's type: lse within u |lse| + (ln((n-1)/r) + c_e + h + c_l) u log1p(r) (T2-lse), c_e, c_l <= 2,
/// h <= 21 + log2(n / 512) for float and 20 + log2(n / 256) for double; gradient T3. Special values and determinism as
/// `fast`.
static const Registered plain{
    RowKernel{.op = "logsumexp",
              .name = "fast.plain",
              .summary = "tail-first logsumexp in the row's arithmetic (T2-lse, T3)",
              .f32 = [](const Row<float>& row) { HWY_DYNAMIC_DISPATCH(LogSumExpPlainF32)(row); },
              .f64 = [](const Row<double>& row) { HWY_DYNAMIC_DISPATCH(LogSumExpPlainF64)(row); },
              .contract_f32 = plain_contract(Format::f32),
              .contract_f64 = plain_contract(Format::f64)}};

}  // namespace
}  // namespace sumzero::fast

#endif  // HWY_ONCE
