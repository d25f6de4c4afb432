// cross_entropy: hard labels with class weights and label smoothing, loss and gradient by D1 and D2.
//
//   loss = (1-a) w_t nll + (a/n) sum_j w_j (-logp_j), nll = (m - x_t) + log1p(r)
//   gx = factor [ (1-a) w_t D2 + (a/n) (p_j W - w_j) ], W = sum w
//   D2: j != t: e_j/s;  t = k: -r/s;  t != k: -(1 + (r - e_t))/s
// p is never subtracted from 1 (Softmax Collapse: Prieto, Barsbey, Mediano, Birdal, ICLR 2025, arXiv 2501.04697). The two
// parts of the smoothed gradient are formed separately, then added; the factor multiplies last.
//
// Contract of both kernels. Dtypes: f32, bf16, f16 and f64 rows. Bounds: loss T2, gradient T4 and T3, its sum T5, sign and range
// T6 (oracle/bounds/cross_entropy.json), for every finite logit, n >= 1. A logit of -inf is dead; a row with NaN is NaN, with
// +inf NaN or the limit, without a live entry NaN or zeros, by policy. Deterministic: the bits depend on the row alone, not on
// threads, position or instruction set. Outputs may overlap the logits.
//   fast        float rows in double arithmetic, rounded once; double rows with the compensated shift.
//   fast.plain  arithmetic of the row's type, p by one reciprocal.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fast/cpu/cross_entropy.cpp"
#include "fast/math/simd.h"
// simd.h first: it chooses the targets.
#include "hwy/foreach_target.h"

#include "fast/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sumzero::fast::HWY_NAMESPACE {

namespace cross_entropy {

template <class T>
void Irregular(const Row<T>& row) {
  using Kind = RowClassification::Kind;
  const RowClassification found = Classify(row.in[0], row.n);
  const std::size_t t = static_cast<std::size_t>(row.label);
  const bool limit = found.kind == Kind::one_infinity && row.attribute[3] != 0 && row.attribute[0] == 0;
  const bool zeros = found.kind == Kind::empty && row.attribute[4] != 0;
  const bool right = t == found.index;
  const T nan = std::numeric_limits<T>::quiet_NaN();
  Fill(row.out[0], 1, limit ? (right ? T(0) : kInfinity<T>) : zeros ? T(0) : nan);
  Fill(row.out[1], row.n, limit || zeros ? T(0) : nan);
  if (!row.out[1] || !limit || right) return;
  const double scale = std::isfinite(row.factor) ? row.factor * static_cast<double>(row.in[2] ? row.in[2][t] : T(1)) : nan;
  row.out[1][t] = static_cast<T>(-scale);
  row.out[1][found.index] = static_cast<T>(scale);
}

template <class A, bool compensated, bool reciprocal, class T>
HWY_INLINE void Run(const Row<T>& row) {
  const std::size_t n = row.n, padded = Padded<A>(n), t = static_cast<std::size_t>(row.label);
  const Arrays<A, 3> arrays(padded);
  A *x = arrays[0], *e = arrays[1], *w = arrays[2];
  const RowRange<A> range = LoadLogits<A>(row.in[0], n, x);
  if (!range.regular()) return Irregular(row);

  const double smoothing = row.attribute[0];
  const A w_t = row.in[2] ? static_cast<A>(row.in[2][t]) : A(1);
  const A hard = smoothing == 0 ? w_t : static_cast<A>(1 - smoothing) * w_t;
  const A smooth = static_cast<A>(smoothing / static_cast<double>(n));
  const LossTail<A> tail = TailOfLogits<A, compensated>(x, range.largest, padded, e);
  const bool target_dead = x[t] == -kInfinity<A>;

  A weight_sum = static_cast<A>(n), smooth_sum = 0;
  if (smoothing > 0) {
    if (row.in[2]) LoadPadded<A>(row.in[2], n, A(0), w);
    else for (std::size_t j = 0; j < padded; ++j) w[j] = j < n;
    const Vector<A> m = Splat<A>(tail.m), log_s = Splat<A>(tail.log_s), dead = Splat<A>(-kInfinity<A>);
    const auto sums = SumOver<A, 2>(padded, [&](std::size_t i, Vector<A>* terms) HWY_ATTR {
      const Vector<A> logit = Read<A>(x + i);
      terms[0] = Read<A>(w + i);
      terms[1] = hn::IfThenZeroElse(hn::Eq(logit, dead), hn::Mul(terms[0], hn::Sub(log_s, hn::Sub(logit, m))));
    });
    if (row.in[2]) weight_sum = sums.total[0];
    smooth_sum = sums.total[1];
    if (range.has_dead)
      for (std::size_t j = 0; j < n; ++j)
        if (x[j] == -kInfinity<A> && w[j] > 0) smooth_sum = kInfinity<A>;
  }

  if (row.out[0]) {
    A loss = target_dead ? (smoothing < 1 && w_t > 0 ? kInfinity<A> : A(0)) : hard * ((tail.m - x[t]) + tail.log_s);
    if (smoothing > 0) loss += smooth * smooth_sum;
    *row.out[0] = static_cast<T>(loss);
  }
  if (!row.out[1]) return;
  T* gx = row.out[1];
  const Scale<A> scale = Scale<A>::Of(row.factor);
  if (!scale.finite) {
    std::fill_n(gx, n, std::numeric_limits<T>::quiet_NaN());
    return;
  }
  const A inverse = 1 / tail.s;
  const auto over_s = [&](A numerator) { return reciprocal ? numerator * inverse : numerator / tail.s; };
  // r - e_t needs no care: it is at least e_t's rounding error, and 1 + (r - e_t) >= r. 0 - r: +0 where nothing is left.
  A target = t == tail.k ? over_s(0 - tail.r) : -over_s(1 + (tail.r - e[t]));
  target *= hard;
  if (smoothing > 0) target += smooth * (over_s(e[t]) * weight_sum - w[t]);

  const Vector<A> s = Splat<A>(reciprocal ? inverse : tail.s), hard_part = Splat<A>(hard);
  const auto p_at = [&](std::size_t i) HWY_ATTR {
    return reciprocal ? hn::Mul(Read<A>(e + i), s) : hn::Div(Read<A>(e + i), s);
  };
  if (smoothing > 0) {
    const Vector<A> total = Splat<A>(weight_sum), smooth_part = Splat<A>(smooth);
    ForEachVector<A>(padded, [&](std::size_t i) HWY_ATTR {
      const Vector<A> p = p_at(i);
      const Vector<A> uniform = hn::Sub(hn::Mul(p, total), Read<A>(w + i));
      StoreRow<A>(scale(hn::Add(hn::Mul(hard_part, p), hn::Mul(smooth_part, uniform))), i, n, gx);
    });
  } else {
    ForEachVector<A>(padded, [&](std::size_t i) HWY_ATTR { StoreRow<A>(scale(hn::Mul(hard_part, p_at(i))), i, n, gx); });
  }
  gx[t] = static_cast<T>(scale(target));
}

}  // namespace cross_entropy

void CrossEntropyWide(const Row<float>& row) { cross_entropy::Run<double, false, false>(row); }
void CrossEntropyCompensated(const Row<double>& row) { cross_entropy::Run<double, true, false>(row); }
void CrossEntropyPlainF32(const Row<float>& row) { cross_entropy::Run<float, false, true>(row); }
void CrossEntropyPlainF64(const Row<double>& row) { cross_entropy::Run<double, false, true>(row); }

}  // namespace sumzero::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sumzero::fast {
namespace {

HWY_EXPORT(CrossEntropyWide);
HWY_EXPORT(CrossEntropyCompensated);
HWY_EXPORT(CrossEntropyPlainF32);
HWY_EXPORT(CrossEntropyPlainF64);

Contract Compensated() {
  Contract contract = LossContract<double>("T2, T4, T5, T6; compensated shift");
  contract.compensated_shift = true;
  contract.exp_error = compensated_contract(Format::f64).exp_error;
  return contract;
}
template <class A>
Contract Plain() {
  Contract contract = LossContract<A>("T2, T4, T5, T6; p by one reciprocal");
  contract.reciprocal = true;
  return contract;
}

const Registered fast{RowKernel{
    .op = "cross_entropy",
    .name = "fast",
    .summary = "tail-first loss and gradient in double arithmetic, compensated shift on f64 rows",
    .f32 = [](const Row<float>& row) { HWY_DYNAMIC_DISPATCH(CrossEntropyWide)(row); },
    .f64 = [](const Row<double>& row) { HWY_DYNAMIC_DISPATCH(CrossEntropyCompensated)(row); },
    .contract_f32 = LossContract<double>("T2, T4, T5, T6; double arithmetic, one rounding to the row's type"),
    .contract_f64 = Compensated()}};
const Registered plain{RowKernel{
    .op = "cross_entropy",
    .name = "fast.plain",
    .summary = "tail-first loss and gradient in the arithmetic of the row",
    .f32 = [](const Row<float>& row) { HWY_DYNAMIC_DISPATCH(CrossEntropyPlainF32)(row); },
    .f64 = [](const Row<double>& row) { HWY_DYNAMIC_DISPATCH(CrossEntropyPlainF64)(row); },
    .contract_f32 = Plain<float>(),
    .contract_f64 = Plain<double>()}};

}  // namespace
}  // namespace sumzero::fast
#endif  // HWY_ONCE
