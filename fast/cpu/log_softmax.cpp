// log_softmax and its vector-Jacobian product: logp_j = (x_j - m) - L with L = log1p(r); gx_j = g_j - p_j G with
// G = sum g, and at a dominating maximum gx_k = g_k r/s - p_k sum over j != k of g_j.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fast/cpu/log_softmax.cpp"
#include "fast/math/simd.h"
// simd.h first: it chooses the targets.
#include "hwy/foreach_target.h"
#include "fast/cpu/row-inl.h"
#include "reference/operator.hpp"

HWY_BEFORE_NAMESPACE();
namespace sumzero::fast::HWY_NAMESPACE {

/// e: scaled exponentials. Arithmetic in lanes of A::Backward.
template <class A>
HWY_INLINE void LogSoftmaxVjp(const typename A::Element* x, size_t n, const Tail<A>& tail, const typename A::Lane* e,
                              const typename A::Element* g, typename A::Element* gx) {
  using Lane = typename A::Backward;
  const hn::ScalableTag<Lane> d;
  const Lane g_k = static_cast<Lane>(g[tail.k]);
  // The upstream of dead entries is ignored, whatever it holds.
  const Lane others = SumExcept(d, n, tail.k, [&](size_t i, auto at) HWY_ATTR {
    return ZeroIfDead(at, d, x + i, Load(at, d, g + i, 0));
  });
  const auto total = hn::Set(d, others + g_k), inverses = hn::Set(d, tail.Inverse(A::kScale));
  ForEach(d, n, [&](size_t i, auto at) HWY_ATTR {
    const auto p = hn::Mul(Load(at, d, e + i, 0), inverses);
    Store(at, d, ZeroIfDead(at, d, x + i, NegFusedMulAdd(p, total, Load(at, d, g + i, 0))), gx + i);
  });
  // Where r < 1, g_k - p_k G would cancel. From 1 on it does not (p_k |g_k| <= |g_k| r/s), and the common formula gives
  // tied maxima equal gradients. Adding 0 turns the -0 of n = 1 into +0.
  const Lane inverse = tail.Inverse(1);
  if (tail.r < 1) gx[tail.k] = static_cast<typename A::Element>(g_k * (tail.r * inverse) - inverse * others + Lane(0));
}

template <class A>
void LogSoftmaxIrregular(const Row<typename A::Element>& row) {
  using Element = typename A::Element;
  using Kind = RowClassification::Kind;
  const RowClassification c = Classify(row.in[0], row.n);
  const Element* g = row.in[1];
  Element *logp = row.out[0], *gx = row.out[1];
  if (c.kind == Kind::one_infinity && row.attribute[0] != 0) {
    // Limit of a growing logit: r = 0, hence gx_j = g_j - [j = k] G.
    Fill(logp, row.n, -kInfinity<Element>);
    if (logp) logp[c.index] = 0;
    if (!gx || !g) return Fill(gx, row.n, 0);
    // The sum is the result itself: two doubles leave its one rounding.
    double high = 0, low = 0;
    for (size_t j = 0; j < row.n; ++j) {
      if (j == c.index) continue;
      const double sum = high + g[j], part = sum - high;
      low += (high - (sum - part)) + (g[j] - part);
      high = sum;
    }
    std::copy_n(g, row.n, gx);
    gx[c.index] = static_cast<Element>(0 - (std::isfinite(high) ? high + low : high));
    return;
  }
  const bool zeros = c.kind == Kind::empty && row.attribute[1] != 0;
  Fill(logp, row.n, zeros ? -kInfinity<Element> : std::numeric_limits<Element>::quiet_NaN());
  Fill(gx, row.n, zeros ? Element(0) : std::numeric_limits<Element>::quiet_NaN());
}

template <class A>
void LogSoftmaxRow(const Row<typename A::Element>& row) {
  using Element = typename A::Element;
  using Lane = typename A::Lane;
  const Element *x = row.in[0], *g = row.in[1];
  Element *logp = row.out[0], *gx = row.out[1];
  const bool backward = gx && g;
  Lane* e = backward ? scratch<Lane, 0>(row.n) : nullptr;
  const Tail<A> tail = backward ? ScaledTailOf<A>(x, row.n, e, logp)
                                : ScaledTailOf<A>(x, row.n, NoStore(), logp, Index::unwanted);
  if (!tail.regular) return LogSoftmaxIrregular<A>(row);
  if (logp) {
    const auto m = hn::Set(A::d, static_cast<Lane>(tail.m)), log_s = hn::Set(A::d, static_cast<Lane>(Log1pOf(tail.r)));
    ForEach(A::d, row.n, [&](size_t i, auto at) HWY_ATTR {
      Store(at, A::d, A::DifferenceLess(Load(at, A::d, x + i, 0), m, log_s), logp + i);
    });
  }
  if (backward) LogSoftmaxVjp<A>(x, row.n, tail, e, g, gx);
  else Fill(gx, row.n, 0);
}

void LogSoftmaxCompensatedF32(const Row<float>& row) { LogSoftmaxRow<CompensatedFloat>(row); }
void LogSoftmaxCompensatedF64(const Row<double>& row) { LogSoftmaxRow<Compensated>(row); }
void LogSoftmaxPlainF32(const Row<float>& row) { LogSoftmaxRow<Plain<float>>(row); }
void LogSoftmaxPlainF64(const Row<double>& row) { LogSoftmaxRow<Plain<double>>(row); }

}  // namespace sumzero::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "fast/cpu/row_contract.hpp"

namespace sumzero::fast {
namespace {

HWY_EXPORT(LogSoftmaxCompensatedF32);
HWY_EXPORT(LogSoftmaxCompensatedF64);
HWY_EXPORT(LogSoftmaxPlainF32);
HWY_EXPORT(LogSoftmaxPlainF64);

/// f32, bf16, f16: float lanes with x - max as a pair, tail in double: logp within (c_e + c_l + 3) u relative whatever n
/// and the gaps (T2), c_e = 1.75, c_l = 2; seen: 1.2 ulp. Gradients from the same exponentials in double (T8). f64: logp
/// within (c_e + h + c_l + 1) u relative, c_e = 3.01, h <= 20 + log2(n / 256).
/// All finite inputs, any n. NaN anywhere: NaN. +inf: NaN, or one-hot by `inf_policy` if there is one. -inf:
/// logp = -inf, gradient +0, upstream ignored. Only -inf: NaN, or -inf by `masked_policy`. Bitwise deterministic, the
/// same on every target.
static const Registered accurate{
    RowKernel{.op = "log_softmax",
              .name = "fast",
              .summary = "tail-first log_softmax with a compensated shift (T2, T8)",
              .f32 = [](const Row<float>& row) { HWY_DYNAMIC_DISPATCH(LogSoftmaxCompensatedF32)(row); },
              .f64 = [](const Row<double>& row) { HWY_DYNAMIC_DISPATCH(LogSoftmaxCompensatedF64)(row); },
              .contract_f32 = compensated_contract(Format::f32),
              .contract_f64 = compensated_contract(Format::f64)}};

/// Arithmetic of the row's type: logp within (ln((n-1)/r) + c_e + h + c_l + 1) u relative (T2), c_e, c_l <= 2,
/// h <= 21 + log2(n / 512) for float and 20 + log2(n / 256) for double; gradient T8. Sums of the upstream must not
/// overflow. Special values and determinism as `fast`.
static const Registered plain{
    RowKernel{.op = "log_softmax",
              .name = "fast.plain",
              .summary = "tail-first log_softmax in the row's arithmetic (T2, T8)",
              .f32 = [](const Row<float>& row) { HWY_DYNAMIC_DISPATCH(LogSoftmaxPlainF32)(row); },
              .f64 = [](const Row<double>& row) { HWY_DYNAMIC_DISPATCH(LogSoftmaxPlainF64)(row); },
              .contract_f32 = plain_contract(Format::f32),
              .contract_f64 = plain_contract(Format::f64)}};

}  // namespace
}  // namespace sumzero::fast

#endif  // HWY_ONCE
