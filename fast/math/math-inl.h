// exp, expm1, log1p and log on vectors of float or double, the same bits on every target.
//
// Polynomials, constants and the order of operations are in <function>.json, from which generated/ is made.
// Here is what the JSON does not say: splitting into exponent and significand, scaling by powers of two,
// special values. Every function handles all inputs; the mode is round to nearest with gradual underflow (no
// FTZ, no DAZ). Compile with -ffp-contract=off, or the compiler fuses multiplications and additions that are
// written apart.
//
// NaN in, NaN out: the quiet version of the same NaN, sign and payload kept. The largest errors stand in
// limits.h too, where the tests read them; for float they are exhaustive over all 2^32 inputs, for double the
// largest in several million inputs against MPFR.

#if defined(SUMZERO_FAST_MATH_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SUMZERO_FAST_MATH_MATH_INL_H_
#undef SUMZERO_FAST_MATH_MATH_INL_H_
#else
#define SUMZERO_FAST_MATH_MATH_INL_H_
#endif

#include "fast/math/fused-inl.h"
// fused-inl.h first: it chooses the targets.
#include <limits>

#include "fast/math/generated/exp_f32-inl.h"
#include "fast/math/generated/exp_f64-inl.h"
#include "fast/math/generated/expm1_f32-inl.h"
#include "fast/math/generated/expm1_f64-inl.h"
#include "fast/math/generated/log1p_f32-inl.h"
#include "fast/math/generated/log1p_f64-inl.h"
#include "fast/math/generated/log_f32-inl.h"
#include "fast/math/generated/log_f64-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sumzero::fast::HWY_NAMESPACE {

// The fields of an IEEE format with lane type T.
template <typename T>
struct Layout {
  using Bits = hwy::MakeUnsigned<T>;
  static constexpr int kFraction = hwy::MantissaBits<T>();  // stored significand bits
  static constexpr Bits kBias = (Bits{1} << (8 * sizeof(T) - 2 - kFraction)) - 1;
  static constexpr Bits kOne = kBias << kFraction;  // bits of 1.0
  static constexpr Bits kExponent = hwy::ExponentMask<T>();
  static constexpr T kIntegral = static_cast<T>(Bits{1} << kFraction);  // 2^kFraction
  static constexpr T kInfinity = std::numeric_limits<T>::infinity();
};

// 2^k as a float, where the low bits of kt hold k plus the exponent bias (see the Magic constant): they are
// shifted into the exponent field. A NaN in kt gives some power of two or infinity, never a NaN, so that NaN
// results come from the other factor alone.
template <class D, class V = hn::Vec<D>>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> PowerOfTwoBits(D, V kt) {
  const hn::RebindToUnsigned<D> du;
  return hn::ShiftLeft<Layout<hn::TFromD<D>>::kFraction>(hn::BitCast(du, kt));
}

// y where x is a number, the quiet NaN x elsewhere.
template <class V>
HWY_INLINE V KeepNan(V x, V y) {
  return hn::IfThenElse(hn::Eq(x, x), y, hn::Add(x, x));
}

template <class Constants, class D, class V = hn::Vec<D>>
HWY_INLINE V ExpNonPositiveWith(D d, V x) {
  // Below InputMin the result is 0; the clamp keeps k in the range of the scale. MaxOrSecond returns a NaN x.
  x = MaxOrSecond(hn::Set(d, Constants::InputMin), x);
  V kt, r;
  ExpReduce<Constants>(d, x, kt, r);
  const V p = ExpPolynomial<Constants>(d, r);
  // The exponent bias in Magic is too large by -log2(Unscale), so the first product is a normal number and
  // exact even where the result is subnormal; only the second one rounds.
  const V scale = hn::BitCast(d, PowerOfTwoBits(d, kt));
  return hn::Mul(hn::Mul(p, scale), hn::Set(d, Constants::Unscale));
}

template <class Constants, class D, class V = hn::Vec<D>>
HWY_INLINE V ExpWith(D d, V x) {
  using T = hn::TFromD<D>;
  const hn::RebindToUnsigned<D> du;
  x = MaxOrSecond(hn::Set(d, Constants::InputMin), MinOrSecond(hn::Set(d, Constants::InputMax), x));
  V kt, r;
  ExpReduce<Constants>(d, x, kt, r);
  const V p = ExpPolynomial<Constants>(d, r);
  // For negative x as in ExpNonPositive: scale 2^k / Unscale, then times Unscale. For positive x the other
  // way round: scale 2^k * Unscale, then divided by Unscale. The two differ in the top exponent bit of both
  // factors.
  constexpr auto kTopExponentBit = typename Layout<T>::Bits{1} << (8 * sizeof(T) - 2);
  const auto positive = hn::AndNot(hn::ShiftRight<1>(hn::BitCast(du, x)), hn::Set(du, kTopExponentBit));
  const V scale = hn::BitCast(d, hn::Sub(PowerOfTwoBits(d, kt), positive));
  const V unscale = hn::BitCast(d, hn::Or(hn::BitCast(du, hn::Set(d, Constants::Unscale)), positive));
  return hn::Mul(hn::Mul(p, scale), unscale);
}

template <class Constants, class D, class V = hn::Vec<D>>
HWY_INLINE V ExpM1With(D d, V x) {
  const V one = hn::Set(d, Constants::One);
  // Below InputMin the result rounds to -1 and above InputMax to infinity.
  const V clamped =
      MaxOrSecond(hn::Set(d, Constants::InputMin), MinOrSecond(hn::Set(d, Constants::InputMax), x));
  V kt, r, r_low;
  Expm1Reduce<Constants>(d, clamped, kt, r, r_low);
  const V low = Expm1Polynomial<Constants>(d, r, r_low);
  // The largest k has no finite 2^k: halve large results and double them at the end, which is exact.
  const auto large = hn::Gt(clamped, hn::Set(d, Constants::HalveAbove));
  const V s = hn::BitCast(d, PowerOfTwoBits(d, hn::Sub(kt, hn::IfThenElseZero(large, one))));
  const V y = Expm1Compose<Constants>(d, s, r, low);
  const V doubled = hn::IfThenElse(large, hn::Add(y, y), y);
  // expm1(x) has the sign of x, -0 included.
  return KeepNan(x, hn::CopySign(doubled, x));
}

// x = 2^e (1 + f) with 1 + f in [Pivot, 2 Pivot) for a positive normal x; scale_bits are those of 2^-e,
// correct while that is a normal number.
template <class Constants, class D, class V = hn::Vec<D>>
HWY_INLINE void SplitExponent(D d, V x, V& e, V& f, hn::Vec<hn::RebindToUnsigned<D>>& scale_bits) {
  using L = Layout<hn::TFromD<D>>;
  const hn::RebindToUnsigned<D> du;
  const auto one_bits = hn::Set(du, static_cast<typename L::Bits>(L::kOne));
  const auto pivot_bits = hn::BitCast(du, hn::Set(d, Constants::Pivot));
  const auto bits = hn::Add(hn::BitCast(du, x), one_bits);
  // The exponent field of x / Pivot, that is e plus the bias.
  const auto exponent = hn::And(hn::Sub(bits, pivot_bits), hn::Set(du, L::kExponent));
  f = hn::Sub(hn::BitCast(d, hn::Sub(bits, exponent)), hn::Set(d, Constants::One));
  // Integer to float: as the low bits of 2^kFraction.
  const V integral = hn::Set(d, L::kIntegral);
  const auto biased = hn::Or(hn::ShiftRight<L::kFraction>(exponent), hn::BitCast(du, integral));
  e = hn::Sub(hn::BitCast(d, biased), hn::Set(d, L::kIntegral + static_cast<hn::TFromD<D>>(L::kBias)));
  scale_bits = hn::Sub(hn::Add(one_bits, one_bits), exponent);
}

template <class Constants, class D, class V = hn::Vec<D>>
HWY_INLINE V Log1pWith(D d, V x) {
  using T = hn::TFromD<D>;
  const V infinity = hn::Set(d, Layout<T>::kInfinity);
  V u, res, e, f_high, f, f_low, s, tail;
  Log1pResidual<Constants>(d, x, u, res);
  hn::Vec<hn::RebindToUnsigned<D>> scale_bits;
  SplitExponent<Constants>(d, u, e, f_high, scale_bits);
  // From ResidualBelow up, the residual is far below one ulp and its scale is not always a normal number.
  const V scale =
      hn::IfThenElseZero(hn::Lt(x, hn::Set(d, Constants::ResidualBelow)), hn::BitCast(d, scale_bits));
  Log1pJoin<Constants>(d, f_high, res, scale, f, f_low);
  Log1pHead<Constants>(d, e, f, f_low, s, tail);
  // log1p(x) has the sign of x, -0 included.
  V y = hn::CopySign(Log1pFinish<Constants>(d, f, s, tail), x);
  const V minus_one = hn::Set(d, T{-1});
  y = hn::IfThenElse(hn::Eq(x, minus_one), hn::Neg(infinity), y);
  y = hn::IfThenElse(hn::Lt(x, minus_one), hn::Set(d, std::numeric_limits<T>::quiet_NaN()), y);
  return hn::IfThenElse(hn::Lt(x, infinity), y, hn::Add(x, x));
}

template <class Constants, class D, class V = hn::Vec<D>>
HWY_INLINE V LogWith(D d, V x) {
  using T = hn::TFromD<D>;
  const V zero = hn::Zero(d);
  const V infinity = hn::Set(d, Layout<T>::kInfinity);
  // A subnormal x is made normal by 2^(kFraction + 1), exactly.
  constexpr int kShift = Layout<T>::kFraction + 1;
  const auto tiny = hn::Lt(x, hn::Set(d, std::numeric_limits<T>::min()));
  const V normal = hn::IfThenElse(tiny, hn::Mul(x, hn::Set(d, T{2} * Layout<T>::kIntegral)), x);
  V e, f, s, tail;
  hn::Vec<hn::RebindToUnsigned<D>> scale_bits;
  SplitExponent<Constants>(d, normal, e, f, scale_bits);
  e = hn::Sub(e, hn::IfThenElseZero(tiny, hn::Set(d, static_cast<T>(kShift))));
  LogHead<Constants>(d, e, f, s, tail);
  V y = LogFinish<Constants>(d, f, s, tail);
  y = hn::IfThenElse(hn::Eq(x, zero), hn::Neg(infinity), y);
  y = hn::IfThenElse(hn::Lt(x, zero), hn::Set(d, std::numeric_limits<T>::quiet_NaN()), y);
  return hn::IfThenElse(hn::Lt(x, infinity), y, hn::Add(x, x));
}

// e^x. Lanes: float, double. Error: at most 0.9 ulp (float), 1 ulp (double). All x: +inf on overflow,
// subnormal results rounded as such, Exp(-inf) = +0, Exp(+-0) = 1.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp(D d, V x) {
  return ExpWith<ExpConstants<hn::TFromD<D>>>(d, x);
}

// The bits of Exp(x) for x <= 0 (-inf and +-0 included) and for NaN, in fewer instructions. Any other x:
// unspecified. Lanes and error as Exp.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpNonPositive(D d, V x) {
  return ExpNonPositiveWith<ExpConstants<hn::TFromD<D>>>(d, x);
}

// e^x - 1. Lanes: float, double. Error: at most 0.9 ulp (float), 0.95 ulp (double). All x: +inf on overflow,
// -1 at -inf, ExpM1(+-0) = +-0, subnormal x returned unchanged.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpM1(D d, V x) {
  return ExpM1With<Expm1Constants<hn::TFromD<D>>>(d, x);
}

// log(1 + x). Lanes: float, double. Error: at most 0.95 ulp (float, double). All x >= -1: -inf at -1, +inf at
// +inf, Log1p(+-0) = +-0, subnormal x returned unchanged. NaN below -1.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Log1p(D d, V x) {
  return Log1pWith<Log1pConstants<hn::TFromD<D>>>(d, x);
}

// log(x). Lanes: float, double. Error: at most 0.9 ulp (float), 0.95 ulp (double). All x >= 0, subnormal x
// included: -inf at +-0, +0 at 1, +inf at +inf. NaN below 0.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Log(D d, V x) {
  return LogWith<LogConstants<hn::TFromD<D>>>(d, x);
}

}  // namespace sumzero::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // SUMZERO_FAST_MATH_MATH_INL_H_
