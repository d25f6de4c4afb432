// cross_entropy.soft: cross-entropy with target probabilities q and class weights w, loss and both gradients, by D1.
//
//   loss = sum_j w_j q_j (-logp_j), termwise: 0 (-inf) = 0
//   gx_j = factor (p_j T - w_j q_j), T = sum w q;  gq_j = factor w_j (-logp_j)
// Every term of the loss is non-negative; lse is never multiplied by T and reduced by <q, x>. The factor T makes gx sum to zero
// whether or not q sums to one. The upstream factor multiplies last.
//
// Contract of both kernels. Dtypes: f32, bf16, f16 and f64 rows. Bounds: loss and gq T2, gx T3 (oracle/bounds/soft_cross_entropy
// .json), for every finite logit and finite q, w >= 0. A dead logit (-inf) with w q > 0 gives loss +inf; its gq is 0 where w or
// the factor is 0, else infinite. A row with NaN or +inf is NaN, one without a live entry NaN or zeros, by policy.
// Deterministic: the bits depend on the row alone, not on threads, position or instruction set. Outputs may overlap inputs.
//   fast        float rows in double arithmetic, rounded once; double rows with the compensated shift.
//   fast.plain  arithmetic of the row's type, p by one reciprocal.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fast/cpu/soft_cross_entropy.cpp"
#include "fast/math/simd.h"
// simd.h first: it chooses the targets.
#include "hwy/foreach_target.h"

#include "fast/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sumzero::fast::HWY_NAMESPACE {

namespace soft_cross_entropy {

template <class A, bool compensated, bool reciprocal, class T>
HWY_INLINE void Run(const Row<T>& row) {
  const Lanes<A> tag;
  const std::size_t n = row.n, padded = Padded<A>(n);
  const T infinity = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
  const Arrays<A, 4> arrays(padded);
  A *x = arrays[0], *e = arrays[1], *target = arrays[2], *w = arrays[3];
  const RowRange<A> range = LoadLogits<A>(row.in[0], n, x);
  if (!range.regular()) {
    const bool zeros = !range.has_nan && range.largest == -kInfinity<A> && row.attribute[2] != 0;
    for (std::size_t output = 0; output < 3; ++output)
      if (row.out[output]) std::fill_n(row.out[output], output == 0 ? 1 : n, zeros ? T(0) : nan);
    return;
  }
  LoadPadded<A>(row.in[1], n, A(0), target);
  const bool weighted = row.in[2] != nullptr;
  if (weighted) {
    LoadPadded<A>(row.in[2], n, A(0), w);
    ForEachVector<A>(padded, [&](std::size_t i) HWY_ATTR {
      Write<A>(hn::Mul(Read<A>(w + i), Read<A>(target + i)), target + i);
    });
  }
  // Before an output that shares memory with q or w is written.
  bool infinite = false;
  if (range.has_dead)
    for (std::size_t j = 0; j < n; ++j)
      infinite |= x[j] == -kInfinity<A> &&
                  static_cast<double>(row.in[1][j]) * static_cast<double>(weighted ? row.in[2][j] : T(1)) > 0;

  const LossTail<A> tail = TailOfLogits<A, compensated>(x, range.largest, padded, e);
  const Vector<A> m = Splat<A>(tail.m), log_s = Splat<A>(tail.log_s);
  const auto negative_log = [&](std::size_t i) HWY_ATTR { return hn::Sub(log_s, hn::Sub(Read<A>(x + i), m)); };
  const auto sums = SumOver<A, 2>(padded, [&](std::size_t i, Vector<A>* terms) HWY_ATTR {
    terms[0] = Read<A>(target + i);
    // A dead entry with a zero target would give 0 inf.
    terms[1] = hn::IfThenZeroElse(hn::Eq(terms[0], hn::Zero(tag)), hn::Mul(terms[0], negative_log(i)));
  });
  const A total = sums.total[0];
  const Scale<A> scale = Scale<A>::Of(row.factor);
  if (row.out[0]) *row.out[0] = infinite ? infinity : static_cast<T>(sums.total[1]);
  for (std::size_t output = 1; output < 3; ++output)
    if (row.out[output] && !scale.finite) std::fill_n(row.out[output], n, nan);
  if (!scale.finite) return;
  if (T* gx = row.out[1]) {
    const Vector<A> s = Splat<A>(reciprocal ? 1 / tail.s : tail.s), t = Splat<A>(total);
    ForEachVector<A>(padded, [&](std::size_t i) HWY_ATTR {
      const Vector<A> p = reciprocal ? hn::Mul(Read<A>(e + i), s) : hn::Div(Read<A>(e + i), s);
      StoreRow<A>(scale(hn::Sub(hn::Mul(p, t), Read<A>(target + i))), i, n, gx);
    });
  }
  if (T* gq = row.out[2]) {
    ForEachVector<A>(padded, [&](std::size_t i) HWY_ATTR {
      const Vector<A> value = negative_log(i);
      StoreRow<A>(scale(weighted ? hn::Mul(Read<A>(w + i), value) : value), i, n, gq);
    });
    if (range.has_dead)
      for (std::size_t j = 0; j < n; ++j)
        if (x[j] == -kInfinity<A>)
          gq[j] = row.factor == 0 || (weighted && w[j] == 0) ? T(0) : row.factor > 0 ? infinity : -infinity;
  }
}

}  // namespace soft_cross_entropy

void SoftCrossEntropyWide(const Row<float>& row) { soft_cross_entropy::Run<double, false, false>(row); }
void SoftCrossEntropyCompensated(const Row<double>& row) { soft_cross_entropy::Run<double, true, false>(row); }
void SoftCrossEntropyPlainF32(const Row<float>& row) { soft_cross_entropy::Run<float, false, true>(row); }
void SoftCrossEntropyPlainF64(const Row<double>& row) { soft_cross_entropy::Run<double, false, true>(row); }

}  // namespace sumzero::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sumzero::fast {
namespace {

HWY_EXPORT(SoftCrossEntropyWide);
HWY_EXPORT(SoftCrossEntropyCompensated);
HWY_EXPORT(SoftCrossEntropyPlainF32);
HWY_EXPORT(SoftCrossEntropyPlainF64);

Contract Compensated() {
  Contract contract = LossContract<double>("T2, T3; compensated shift");
  contract.compensated_shift = true;
  contract.exp_error = compensated_contract(Format::f64).exp_error;
  return contract;
}
template <class A>
Contract Plain() {
  Contract contract = LossContract<A>("T2, T3; p by one reciprocal");
  contract.reciprocal = true;
  return contract;
}

const Registered fast{RowKernel{
    .op = "cross_entropy.soft",
    .name = "fast",
    .summary = "termwise loss and both gradients in double arithmetic, compensated shift on f64 rows",
    .f32 = [](const Row<float>& row) { HWY_DYNAMIC_DISPATCH(SoftCrossEntropyWide)(row); },
    .f64 = [](const Row<double>& row) { HWY_DYNAMIC_DISPATCH(SoftCrossEntropyCompensated)(row); },
    .contract_f32 = LossContract<double>("T2, T3; double arithmetic, one rounding to the row's type"),
    .contract_f64 = Compensated()}};
const Registered plain{RowKernel{
    .op = "cross_entropy.soft",
    .name = "fast.plain",
    .summary = "termwise loss and both gradients in the arithmetic of the row",
    .f32 = [](const Row<float>& row) { HWY_DYNAMIC_DISPATCH(SoftCrossEntropyPlainF32)(row); },
    .f64 = [](const Row<double>& row) { HWY_DYNAMIC_DISPATCH(SoftCrossEntropyPlainF64)(row); },
    .contract_f32 = Plain<float>(),
    .contract_f64 = Plain<double>()}};

}  // namespace
}  // namespace sumzero::fast
#endif  // HWY_ONCE
