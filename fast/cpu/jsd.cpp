// jsd: generalised Jensen-Shannon divergence of student logits s and teacher logits t with teacher weight beta, loss and both
// gradients.
//
//   q = softmax(t/T), p = softmax(s/T), M = beta q + (1-beta) p, a = log(M/q), b = log(M/p)
//   L = T^2 sum_i [ beta q_i phi2(a_i) + (1-beta) p_i phi2(b_i) ],  phi2(v) = e^v - 1 - v
//   ds_i = -T (1-beta) p_i (b_i - sum p b),  dt_i = -T beta q_i (a_i - sum q a)
// With kappa = log(p/q) (divergence-inl.h, base = teacher) one of a, b is at most 0 and the other at least 0. For kappa >= 0 the
// first is b = log1p(beta expm1(-kappa)) and a = kappa + b; below, a = log1p((1-beta) expm1(kappa)) and b = a - kappa. Both e^a - 1
// and e^b - 1 are what went into the log1p, or the same with the other weight, so phi2 costs no further exponential. Without
// scale_T2 loss and gradients are T^2 times smaller. The upstream factor multiplies last.
//
// Contract of both kernels. Dtypes: f32, bf16, f16 and f64 rows. Bounds: T11-jsd for loss and gradients (oracle/bounds/jsd.json),
// n >= 1, for finite logits whose differences, and these over T, are finite in the arithmetic. Bitwise equal rows, and rows that
// differ by one exactly representable constant, give loss 0 and gradients 0. Loss never negative. NaN, +inf or no live entry on
// either side: NaN. -inf in both: as if deleted; in one: the limit. Deterministic: the bits depend on the row alone, not on
// threads, position or instruction set. Outputs may overlap inputs.
//   fast        float rows in double arithmetic, rounded once; double rows in double arithmetic.
//   fast.plain  arithmetic of the row's type.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fast/cpu/jsd.cpp"
#include "fast/math/simd.h"
// simd.h first: it chooses the targets.
#include "hwy/foreach_target.h"

#include "fast/cpu/divergence-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sumzero::fast::HWY_NAMESPACE {

namespace jsd {

/// w phi2(l) from y = expm1(l); beyond 40, where y may be inaccurate or overflow, as mixed - w (1 + l).
template <class A>
HWY_INLINE Vector<A> Term(Vector<A> w, Vector<A> l, Vector<A> y, Vector<A> mixed) {
  const Vector<A> one = Splat<A>(1);
  const Vector<A> series = hn::Mul(w, divergence::SeriesPhi2<A>(l));
  const Vector<A> direct = hn::Mul(w, hn::Sub(y, l));
  const Vector<A> limit = hn::Sub(mixed, hn::Mul(w, hn::Add(one, l)));
  return hn::IfThenElse(hn::Le(hn::Abs(l), one), series, hn::IfThenElse(hn::Gt(l, Splat<A>(40)), limit, direct));
}

template <class A, class T>
HWY_INLINE void Run(const Row<T>& row) {
  const Lanes<A> tag;
  const divergence::Temperature<A> t(row.attribute[0]);
  const Arrays<A, divergence::kArrays> arrays(Padded<A>(row.n));
  const divergence::Rows<A> rows = divergence::Analyse<A>(row.in[1], row.in[0], row.n, t, arrays, true);
  if (!rows.regular) {
    divergence::FillNan(row, true, true);
    return;
  }
  const Vector<A> beta = Splat<A>(static_cast<A>(row.attribute[3])), rest = Splat<A>(static_cast<A>(1 - row.attribute[3]));
  const Vector<A> one = Splat<A>(1), zero = hn::Zero(tag);
  // The logits have been used: their arrays take a and b.
  A *log_q = rows.base, *log_p = rows.other;
  const A loss = SumOver<A, 1>(rows.padded, [&](std::size_t i, Vector<A>* terms) HWY_ATTR {
    const Vector<A> kappa = rows.Ratio(i), q = Read<A>(rows.b + i), p = Read<A>(rows.o + i);
    const auto at_least = hn::Ge(kappa, zero);
    const Vector<A> size = hn::Abs(kappa);
    // e^size - 1 and e^-size - 1 from one expm1; at 85 the second has reached -1, and above the first is not read.
    const Vector<A> up = ExpM1(tag, MinOrSecond(size, Splat<A>(85)));
    const Vector<A> down = hn::Neg(hn::Div(up, hn::Add(one, up)));
    const Vector<A> low_weight = hn::IfThenElse(at_least, beta, rest), high_weight = hn::IfThenElse(at_least, rest, beta);
    const Vector<A> low_y = hn::Mul(low_weight, down), high_y = hn::Mul(high_weight, up);
    const Vector<A> low = Log1p(tag, low_y), high = hn::Add(size, low);
    const Vector<A> mixed = hn::Add(hn::Mul(beta, q), hn::Mul(rest, p));
    const Vector<A> low_w = hn::IfThenElse(at_least, p, q), high_w = hn::IfThenElse(at_least, q, p);
    // The weight of p is rest, that of q beta: those of the other logarithm's expm1.
    terms[0] = MaxOrSecond(zero, hn::Add(hn::Mul(high_weight, Term<A>(low_w, low, low_y, mixed)),
                                         hn::Mul(low_weight, Term<A>(high_w, high, high_y, mixed))));
    const Vector<A> a = hn::IfThenElse(at_least, high, low), b = hn::IfThenElse(at_least, low, high);
    Write<A>(a, log_q + i);
    Write<A>(b, log_p + i);
  }).total[0];
  const divergence::Factors factors(row.attribute);
  if (row.out[0]) *row.out[0] = static_cast<T>(static_cast<double>(loss) * factors.loss);
  const Scale<A> scale = Scale<A>::Of(row.factor, factors.gradient);
  if (!scale.finite) {
    divergence::FillNan(row, false, true);
    return;
  }
  // -weight w (l - sum w l). Where one entry holds most of the mass, l is counted from its value there: exactly zero where it
  // holds all of it. Below one half, that would amplify the mean's rounding when this very entry is the odd one.
  const auto store = [&](T* out, Vector<A> weight, const A* w, const A* l, std::size_t largest) HWY_ATTR {
    if (!out) return;
    const Vector<A> origin = Splat<A>(w[largest] > A(0.5) ? l[largest] : A(0));
    const Vector<A> mean = Splat<A>(SumOver<A, 1>(rows.padded, [&](std::size_t i, Vector<A>* terms) HWY_ATTR {
                                      terms[0] = hn::Mul(Read<A>(w + i), hn::Sub(Read<A>(l + i), origin));
                                    }).total[0]);
    ForEachVector<A>(rows.padded, [&](std::size_t i) HWY_ATTR {
      const Vector<A> g = hn::Mul(Read<A>(w + i), hn::Sub(mean, hn::Sub(Read<A>(l + i), origin)));
      StoreRow<A>(scale(hn::Mul(g, weight)), i, row.n, out);
    });
  };
  store(row.out[1], rest, rows.o, log_p, rows.other_tail.k);
  store(row.out[2], beta, rows.b, log_q, rows.base_tail.k);
}

}  // namespace jsd

void JsdWide(const Row<float>& row) { jsd::Run<double>(row); }
void JsdF64(const Row<double>& row) { jsd::Run<double>(row); }
void JsdPlainF32(const Row<float>& row) { jsd::Run<float>(row); }

}  // namespace sumzero::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sumzero::fast {
namespace {

HWY_EXPORT(JsdWide);
HWY_EXPORT(JsdF64);
HWY_EXPORT(JsdPlainF32);

const Registered fast{RowKernel{
    .op = "jsd",
    .name = "fast",
    .summary = "log ratio by the difference form, loss in non-negative terms, double arithmetic",
    .f32 = [](const Row<float>& row) { HWY_DYNAMIC_DISPATCH(JsdWide)(row); },
    .f64 = [](const Row<double>& row) { HWY_DYNAMIC_DISPATCH(JsdF64)(row); },
    .contract_f32 = LossContract<double>("T11-jsd; double arithmetic, one rounding to the row's type"),
    .contract_f64 = LossContract<double>("T11-jsd")}};
const Registered plain{RowKernel{
    .op = "jsd",
    .name = "fast.plain",
    .summary = "log ratio by the difference form, loss in non-negative terms, arithmetic of the row",
    .f32 = [](const Row<float>& row) { HWY_DYNAMIC_DISPATCH(JsdPlainF32)(row); },
    .f64 = [](const Row<double>& row) { HWY_DYNAMIC_DISPATCH(JsdF64)(row); },
    .contract_f32 = LossContract<float>("T11-jsd"),
    .contract_f64 = LossContract<double>("T11-jsd")}};

}  // namespace
}  // namespace sumzero::fast
#endif  // HWY_ONCE
