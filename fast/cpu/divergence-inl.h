// What the distillation losses share: two tempered softmaxes, the logarithm of their ratio, their difference and
// divergence without cancellation (D4 and P5).
//
// Base b = softmax(base/T), other o = softmax(other/T), k = first argmax of the base. Near form, while every d_j <= 80 and
// both rows have the same dead entries:
//
//   d_j = ((other_j - base_j) - (other_k - base_k))/T, kept as high + low;  w = expm1(d)
//   S = sum b w;  D = 1 + S, or sum b (1 + w) when S < -1/2;  o - b = b (w - S)/D;  h = log(o/b) = d - log D
//   KL(b || o) = sum b phi2(h), phi2(h) = e^h - 1 - h, which for |h| > 1 is (w - S)/D - h;  x = d - sum b d
// Far form: both softmaxes by D1, h from their logarithms, o - b directly with the complement at k, b phi2(h) = o - b (1 + h)
// for |h| > 1, and an entry with a dead base adds its limit o. x stays d - sum b d, which is h + KL without its cancellation:
// exactly zero where one base entry holds all the mass.

#if defined(SUMZERO_FAST_CPU_DIVERGENCE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SUMZERO_FAST_CPU_DIVERGENCE_INL_H_
#undef SUMZERO_FAST_CPU_DIVERGENCE_INL_H_
#else
#define SUMZERO_FAST_CPU_DIVERGENCE_INL_H_
#endif

#include "fast/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sumzero::fast::HWY_NAMESPACE {

namespace divergence {

/// The temperature as an unevaluated pair, so that a float kernel divides by the T that was asked for.
template <class A>
struct Temperature {
  bool one;
  A high, low, inverse;

  explicit Temperature(double t)
      : one(t == 1), high(static_cast<A>(t)), low(static_cast<A>(t - static_cast<double>(high))), inverse(1 / high) {}

  /// (x + low)/T as a pair with an error far below one rounding of its head: the quotient by the reciprocal, corrected
  /// by its remainder. Powers of two divide exactly.
  HWY_INLINE Vector<A> Divide(Vector<A> x, Vector<A>& x_low) const {
    if (one) return x;
    const Vector<A> reciprocal = Splat<A>(inverse);
    const Vector<A> q = hn::Mul(x, reciprocal);
    const Vector<A> remainder = hn::Add(hn::Sub(NegFusedMulAdd(q, Splat<A>(high), x), hn::Mul(q, Splat<A>(low))), x_low);
    const Vector<A> correction = hn::Mul(remainder, reciprocal);
    const Vector<A> sum = hn::Add(q, correction);
    // An infinite quotient has no remainder.
    const auto finite = hn::Lt(hn::Abs(q), Splat<A>(kInfinity<A>));
    x_low = hn::IfThenElseZero(finite, hn::Add(hn::Sub(q, sum), correction));
    return hn::IfThenElse(finite, sum, q);
  }
  HWY_INLINE Vector<A> Divide(Vector<A> x) const {
    Vector<A> low = hn::Zero(Lanes<A>());
    return Divide(x, low);
  }
};

/// D1 of x/T.
template <class A>
HWY_INLINE LossTail<A> TemperedTail(A* x, A largest, std::size_t padded, const Temperature<A>& t, A* e) {
  return TailOfArray<A>(x, largest, padded, e, [&](Vector<A> v, Vector<A> m) HWY_ATTR {
    return ExpNonPositive(Lanes<A>(), t.Divide(hn::Sub(v, m)));
  });
}

/// phi2(h)/h^2 for |h| <= 1 by the series 1/2 (1 + h/3 (1 + h/4 (1 + ...))), as a polynomial: the first omitted term is
/// below 2^-28 of the sum for float (15 terms would give 2^-47) and below 2^-64 for double.
template <class A>
HWY_INLINE Vector<A> SeriesPhi2(Vector<A> h) {
  constexpr int terms = sizeof(A) == sizeof(double) ? 20 : 12;
  struct Coefficients {
    A c[terms];
    constexpr Coefficients() : c() {
      double factorial = 2;
      for (int k = 0; k < terms; ++k) {
        c[k] = static_cast<A>(1 / factorial);
        factorial *= k + 3;
      }
    }
  };
  static constexpr Coefficients coefficients;
  Vector<A> p = Splat<A>(coefficients.c[terms - 1]);
  for (int k = terms - 2; k >= 0; --k) p = FusedMulAdd(p, h, Splat<A>(coefficients.c[k]));
  return hn::Mul(hn::Mul(h, h), p);
}

/// Both rows of a distillation loss. All arrays have `padded` entries; padding behaves like an entry dead on both sides.
template <class A>
struct Rows {
  std::size_t n, padded;
  A *base, *other;         ///< logits
  A *b, *o;                ///< probabilities; o only in the far form or when asked for
  A *d, *w;                ///< d is 0 where the base is dead; w is h in the far form
  LossTail<A> base_tail, other_tail;
  bool regular = false, near = false;
  bool infinite = false;   ///< the other is dead where the base is live
  A sum = 0, inverse = 1, log_d = 0, mean = 0, correction = 0;  ///< S, 1/D, log D, sum b d, sum b (d - mean)

  /// h_j = log(o_j/b_j). Entries that are dead on one side: see FarRatios; on both: finite.
  HWY_INLINE Vector<A> Ratio(std::size_t i) const {
    return near ? hn::Sub(Read<A>(d + i), Splat<A>(log_d)) : Read<A>(w + i);
  }
};

/// Working arrays that Analyse uses.
inline constexpr std::size_t kArrays = 6;

/// The ratio that stands for a dead base: finite, and beyond every threshold of the series and of expm1.
template <class A>
inline constexpr A kBeyond = A(100);

template <class A>
HWY_INLINE void OtherSoftmax(Rows<A>& rows, A largest, const Temperature<A>& t) {
  rows.other_tail = TemperedTail<A>(rows.other, largest, rows.padded, t, rows.o);
  const Vector<A> inverse = Splat<A>(1 / rows.other_tail.s);
  ForEachVector<A>(rows.padded,
                   [&](std::size_t i) HWY_ATTR { Write<A>(hn::Mul(Read<A>(rows.o + i), inverse), rows.o + i); });
}

/// h from the two log-softmaxes, into w. Dead base: kBeyond; dead other: -kBeyond; dead on both sides: 0.
template <class A>
HWY_INLINE void FarRatios(Rows<A>& rows, const Temperature<A>& t) {
  const Vector<A> base_m = Splat<A>(rows.base_tail.m), other_m = Splat<A>(rows.other_tail.m);
  const Vector<A> base_log = Splat<A>(rows.base_tail.log_s), other_log = Splat<A>(rows.other_tail.log_s);
  const Vector<A> dead = Splat<A>(-kInfinity<A>), beyond = Splat<A>(kBeyond<A>);
  const Vector<A> least = Splat<A>(std::numeric_limits<A>::lowest() / 4);
  ForEachVector<A>(rows.padded, [&](std::size_t i) HWY_ATTR {
    const Vector<A> x = Read<A>(rows.base + i), y = Read<A>(rows.other + i);
    // The clamp keeps dead entries and overflowing quotients out of inf - inf.
    const Vector<A> log_b = hn::Sub(MaxOrSecond(t.Divide(hn::Sub(x, base_m)), least), base_log);
    const Vector<A> log_o = hn::Sub(MaxOrSecond(t.Divide(hn::Sub(y, other_m)), least), other_log);
    const auto base_dead = hn::Eq(x, dead), other_dead = hn::Eq(y, dead);
    Vector<A> h = hn::Sub(log_o, log_b);
    h = hn::IfThenElse(other_dead, hn::Neg(beyond), h);
    h = hn::IfThenElse(base_dead, beyond, h);
    h = hn::IfThenZeroElse(hn::And(base_dead, other_dead), h);
    Write<A>(h, rows.w + i);
  });
}

/// Loads both rows and forms everything that is shared. All inputs have been read afterwards.
template <class A, class T>
HWY_INLINE Rows<A> Analyse(const T* base, const T* other, std::size_t n, const Temperature<A>& t, const Arrays<A, kArrays>& arrays,
                           bool wants_other) {
  const Lanes<A> tag;
  Rows<A> rows;
  rows.n = n;
  rows.padded = Padded<A>(n);
  rows.base = arrays[0], rows.other = arrays[1], rows.b = arrays[2], rows.o = arrays[3], rows.d = arrays[4], rows.w = arrays[5];
  const std::size_t padded = rows.padded;
  const RowRange<A> base_range = LoadLogits<A>(base, n, rows.base);
  const RowRange<A> other_range = LoadLogits<A>(other, n, rows.other);
  rows.regular = base_range.regular() && other_range.regular();
  if (!rows.regular) return rows;
  bool one_sided = false;
  if (base_range.has_dead || other_range.has_dead) {
    for (std::size_t j = 0; j < n; ++j) {
      const bool base_dead = rows.base[j] == -kInfinity<A>, other_dead = rows.other[j] == -kInfinity<A>;
      one_sided |= base_dead != other_dead;
      rows.infinite |= other_dead && !base_dead;
    }
  }
  rows.base_tail = TemperedTail<A>(rows.base, base_range.largest, padded, t, rows.b);
  const Vector<A> inverse = Splat<A>(1 / rows.base_tail.s);

  if (!rows.infinite) {
    const std::size_t k = rows.base_tail.k;
    Vector<A> offset_low;
    const Vector<A> offset = TwoDiff<A>(Splat<A>(rows.other[k]), Splat<A>(rows.base[k]), offset_low);
    const Vector<A> dead = Splat<A>(-kInfinity<A>);
    Vector<A> largest = hn::Zero(tag);
    const auto sums = SumOver<A, 2>(padded, [&](std::size_t i, Vector<A>* terms) HWY_ATTR {
      const Vector<A> logit = Read<A>(rows.base + i);
      Vector<A> delta_low, low;
      const Vector<A> delta = TwoDiff<A>(Read<A>(rows.other + i), logit, delta_low);
      Vector<A> d = TwoDiff<A>(delta, offset, low);
      d = TwoSum<A>(d, hn::Add(low, hn::Sub(delta_low, offset_low)), low);
      const auto is_dead = hn::Eq(logit, dead);
      d = hn::IfThenZeroElse(is_dead, d);
      low = hn::IfThenZeroElse(is_dead, low);
      d = t.Divide(d, low);
      Vector<A> w = ExpM1(tag, d);
      w = FusedMulAdd(low, hn::Add(Splat<A>(1), w), w);
      const Vector<A> b = hn::Mul(Read<A>(rows.b + i), inverse);
      largest = MaxOrSecond(d, largest);
      Write<A>(b, rows.b + i);
      Write<A>(d, rows.d + i);
      Write<A>(w, rows.w + i);
      terms[0] = hn::Mul(b, w);
      terms[1] = hn::Mul(b, d);
    });
    rows.near = !one_sided && hn::AllTrue(tag, hn::Le(largest, Splat<A>(80)));
    rows.mean = sums.total[1];
    if (rows.near) {
      rows.sum = sums.total[0];
      if (rows.sum < A(-0.5)) {
        const A d = SumOver<A, 1>(padded, [&](std::size_t i, Vector<A>* terms) HWY_ATTR {
                      terms[0] = hn::Mul(Read<A>(rows.b + i), hn::Add(Splat<A>(1), Read<A>(rows.w + i)));
                    }).total[0];
        rows.inverse = 1 / d;
        rows.log_d = LogOf(d);
      } else {
        rows.inverse = 1 / (1 + rows.sum);
        rows.log_d = Log1pOf(rows.sum);
      }
    } else {
      // d is large somewhere, and so may be its mean: centre once more, so that the mean's own error and that of sum b = 1
      // count relative to what is left.
      const Vector<A> mean = Splat<A>(rows.mean);
      rows.correction = SumOver<A, 1>(padded, [&](std::size_t i, Vector<A>* terms) HWY_ATTR {
                          terms[0] = hn::Mul(Read<A>(rows.b + i), hn::Sub(Read<A>(rows.d + i), mean));
                        }).total[0];
    }
  } else {
    ForEachVector<A>(padded,
                     [&](std::size_t i) HWY_ATTR { Write<A>(hn::Mul(Read<A>(rows.b + i), inverse), rows.b + i); });
  }
  if (wants_other || !rows.near) OtherSoftmax<A>(rows, other_range.largest, t);
  if (!rows.near) FarRatios<A>(rows, t);
  return rows;
}

/// KL(b || o), every term non-negative.
template <class A>
HWY_INLINE A Loss(const Rows<A>& rows) {
  const Lanes<A> tag;
  const Vector<A> one = Splat<A>(1), s = Splat<A>(rows.sum), inverse = Splat<A>(rows.inverse);
  return SumOver<A, 1>(rows.padded, [&](std::size_t i, Vector<A>* terms) HWY_ATTR {
           const Vector<A> h = rows.Ratio(i), b = Read<A>(rows.b + i);
           const Vector<A> by_series = hn::Mul(b, SeriesPhi2<A>(h));
           Vector<A> beyond;
           if (rows.near) {
             beyond = hn::Mul(b, hn::Sub(hn::Mul(hn::Sub(Read<A>(rows.w + i), s), inverse), h));
           } else {
             beyond = hn::Sub(hn::Sub(Read<A>(rows.o + i), b), hn::Mul(b, h));
           }
           terms[0] = MaxOrSecond(hn::Zero(tag), hn::IfThenElse(hn::Le(hn::Abs(h), one), by_series, beyond));
         }).total[0];
}

/// scale (o - b), the gradient with respect to the other's logits.
template <class A, class T>
HWY_INLINE void StoreDifference(const Rows<A>& rows, const Scale<A>& scale, T* out) {
  if (rows.near) {
    const Vector<A> s = Splat<A>(rows.sum), inverse = Splat<A>(rows.inverse);
    ForEachVector<A>(rows.padded, [&](std::size_t i) HWY_ATTR {
      const Vector<A> g = hn::Mul(Read<A>(rows.b + i), hn::Sub(Read<A>(rows.w + i), s));
      StoreRow<A>(scale(hn::Mul(g, inverse)), i, rows.n, out);
    });
    return;
  }
  A* g = rows.other;  // its logits have been used
  const std::size_t k = rows.base_tail.k;
  ForEachVector<A>(rows.padded,
                   [&](std::size_t i) HWY_ATTR { Write<A>(hn::Sub(Read<A>(rows.o + i), Read<A>(rows.b + i)), g + i); });
  g[k] = 0;
  g[k] = 0 - SumOver<A, 1>(rows.padded, [&](std::size_t i, Vector<A>* terms) HWY_ATTR { terms[0] = Read<A>(g + i); }).total[0];
  ForEachVector<A>(rows.padded, [&](std::size_t i) HWY_ATTR { StoreRow<A>(scale(Read<A>(g + i)), i, rows.n, out); });
}

/// -scale b x, the gradient with respect to the base's logits.
template <class A, class T>
HWY_INLINE void StoreBaseGradient(const Rows<A>& rows, const Scale<A>& scale, T* out) {
  if (rows.infinite) {
    for (std::size_t j = 0; j < rows.n; ++j)
      out[j] = rows.base[j] == -kInfinity<A> ? T(0) : std::numeric_limits<T>::quiet_NaN();
    return;
  }
  const Vector<A> mean = Splat<A>(rows.mean), correction = Splat<A>(rows.correction);
  const bool near = rows.near;
  ForEachVector<A>(rows.padded, [&](std::size_t i) HWY_ATTR {
    Vector<A> minus_x = hn::Sub(mean, Read<A>(rows.d + i));
    if (!near) minus_x = hn::Add(minus_x, correction);
    StoreRow<A>(scale(hn::Mul(Read<A>(rows.b + i), minus_x)), i, rows.n, out);
  });
}

/// Factors of the losses: T^2 or 1, and of their gradients, T or 1/T.
struct Factors {
  double loss = 1, gradient = 1;
  explicit Factors(const double* attribute) {
    const double t = attribute[0];
    if (t == 1) return;
    if (attribute[1] != 0) loss = t * t, gradient = t;
    else gradient = 1 / t;
  }
};

/// NaN in every output of a row with NaN, +inf or no live entry; true where that was done.
template <class T>
bool FillNan(const Row<T>& row, bool loss, bool gradients) {
  for (std::size_t output = loss ? 0 : 1; output < (gradients ? 3 : 1); ++output)
    if (row.out[output]) std::fill_n(row.out[output], output == 0 ? 1 : row.n, std::numeric_limits<T>::quiet_NaN());
  return true;
}

/// KL(base || other): input indices of the two, output indices of their gradients.
struct Roles {
  std::size_t base, other;
  std::size_t base_gradient() const { return base + 1; }
  std::size_t other_gradient() const { return other + 1; }
};

template <class A, class T>
HWY_INLINE void RunKl(const Row<T>& row, Roles roles) {
  const Temperature<A> t(row.attribute[0]);
  const Arrays<A, kArrays> arrays(Padded<A>(row.n));
  const Rows<A> rows = Analyse<A>(row.in[roles.base], row.in[roles.other], row.n, t, arrays, false);
  if (!rows.regular) {
    FillNan(row, true, true);
    return;
  }
  const Factors factors(row.attribute);
  const Scale<A> scale = Scale<A>::Of(row.factor, factors.gradient);
  if (row.out[0]) *row.out[0] = static_cast<T>(factors.loss * static_cast<double>(rows.infinite ? kInfinity<A> : Loss<A>(rows)));
  if (!scale.finite) {
    FillNan(row, false, true);
    return;
  }
  if (T* out = row.out[roles.base_gradient()]) StoreBaseGradient<A>(rows, scale, out);
  if (T* out = row.out[roles.other_gradient()]) StoreDifference<A>(rows, scale, out);
}

}  // namespace divergence

}  // namespace sumzero::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // SUMZERO_FAST_CPU_DIVERGENCE_INL_H_
