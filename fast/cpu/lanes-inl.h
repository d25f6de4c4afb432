// What the losses share on a row of vector lanes: loading, sums in a fixed order, the tail state D1, scaled stores.
//
// A is the arithmetic type, T the type of the row. Rows are copied to working arrays and padded with dead entries (-inf) to
// whole blocks of kBlock elements, whatever the width of a vector: sums have the same order, and results the same bits, on
// every instruction set.

#if defined(SUMZERO_FAST_CPU_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SUMZERO_FAST_CPU_LANES_INL_H_
#undef SUMZERO_FAST_CPU_LANES_INL_H_
#else
#define SUMZERO_FAST_CPU_LANES_INL_H_
#endif

#include "fast/math/math-inl.h"
// math-inl.h first: it chooses the targets.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>

#include "fast/cpu/loss_contract.h"
#include "fast/cpu/scratch.h"
#include "reference/operator.hpp"

HWY_BEFORE_NAMESPACE();
namespace sumzero::fast::HWY_NAMESPACE {

template <class A>
using Lanes = hn::ScalableTag<A>;
template <class A>
using Vector = hn::Vec<Lanes<A>>;
template <class A>
using Mask = hn::Mask<Lanes<A>>;

template <class A>
inline constexpr std::size_t kLanes = hn::MaxLanes(Lanes<A>());
template <class A>
inline constexpr std::size_t kVectors = kBlock<A> / kLanes<A>;

template <class A>
inline constexpr A kInfinity = std::numeric_limits<A>::infinity();

template <class A>
HWY_INLINE Vector<A> Splat(A value) {
  return hn::Set(Lanes<A>(), value);
}
template <class A>
HWY_INLINE Vector<A> Read(const A* from) {
  return hn::Load(Lanes<A>(), from);
}
template <class A>
HWY_INLINE void Write(Vector<A> value, A* to) {
  hn::Store(value, Lanes<A>(), to);
}
template <class A>
HWY_INLINE A ScalarLog1p(A x) {
  return hn::GetLane(Log1p(Lanes<A>(), Splat<A>(x)));
}
template <class A>
HWY_INLINE A ScalarLog(A x) {
  return hn::GetLane(Log(Lanes<A>(), Splat<A>(x)));
}

template <class A>
constexpr std::size_t Padded(std::size_t n) {
  return (n + kBlock<A> - 1) / kBlock<A> * kBlock<A>;
}

/// What decides how a row is handled.
template <class A>
struct RowRange {
  A largest = -kInfinity<A>;  ///< over the entries that are numbers
  A least = 0;                ///< over the finite entries and 0
  bool has_nan = false, has_dead = false;
  bool regular() const { return !has_nan && largest < kInfinity<A> && largest > -kInfinity<A>; }
};

template <class A, class T>
HWY_INLINE Vector<A> Widen(const T* from) {
  if constexpr (std::is_same_v<A, T>) {
    return hn::LoadU(Lanes<A>(), from);
  } else {
    return hn::PromoteTo(Lanes<A>(), hn::LoadU(hn::Rebind<T, Lanes<A>>(), from));
  }
}

/// Copies a row and pads it.
template <class A, class T>
HWY_INLINE void LoadPadded(const T* from, std::size_t n, A padding, A* to) {
  std::size_t i = 0;
  for (; i + kLanes<A> <= n; i += kLanes<A>) Write<A>(Widen<A>(from + i), to + i);
  for (; i < n; ++i) to[i] = static_cast<A>(from[i]);
  for (; i < Padded<A>(n); ++i) to[i] = padding;
}

/// Copies logits, pads them with dead entries and finds their range.
template <class A, class T>
HWY_INLINE RowRange<A> LoadLogits(const T* from, std::size_t n, A* to) {
  const Lanes<A> tag;
  LoadPadded<A>(from, n, -kInfinity<A>, to);
  const Vector<A> minus_infinity = Splat<A>(-kInfinity<A>);
  Vector<A> largest[2] = {minus_infinity, minus_infinity}, least[2] = {hn::Zero(tag), hn::Zero(tag)};
  Mask<A> nan = hn::Lt(hn::Zero(tag), hn::Zero(tag)), dead = nan;
  const auto visit = [&](Vector<A> x, std::size_t which) HWY_ATTR {
    // The second operand where either is NaN: a NaN never enters the extremes.
    largest[which] = MaxOrSecond(x, largest[which]);
    const auto is_dead = hn::Eq(x, minus_infinity);
    least[which] = MinOrSecond(hn::IfThenZeroElse(is_dead, x), least[which]);
    nan = hn::Or(nan, hn::IsNaN(x));
    dead = hn::Or(dead, is_dead);
  };
  std::size_t i = 0;
  if constexpr (kLanes<A> > 1) {
    for (; i + 2 * kLanes<A> <= n; i += 2 * kLanes<A>) {
      visit(Read<A>(to + i), 0);
      visit(Read<A>(to + i + kLanes<A>), 1);
    }
  }
  for (; i + kLanes<A> <= n; i += kLanes<A>) visit(Read<A>(to + i), 0);
  RowRange<A> range;
  HWY_ALIGN A buffer[kLanes<A>];
  const auto fold = [&](Vector<A> v, auto combine) HWY_ATTR {
    Write<A>(v, buffer);
    A result = buffer[0];
    for (std::size_t lane = 1; lane < kLanes<A>; ++lane) result = combine(result, buffer[lane]);
    return result;
  };
  range.largest = fold(MaxOrSecond(largest[0], largest[1]), [](A a, A b) { return std::max(a, b); });
  range.least = fold(MinOrSecond(least[0], least[1]), [](A a, A b) { return std::min(a, b); });
  range.has_nan = !hn::AllFalse(tag, nan);
  range.has_dead = !hn::AllFalse(tag, dead);
  for (; i < n; ++i) {
    range.has_nan |= std::isnan(to[i]);
    range.has_dead |= to[i] == -kInfinity<A>;
    range.largest = std::max(range.largest, to[i] == to[i] ? to[i] : range.largest);
    if (to[i] != -kInfinity<A> && to[i] < range.least) range.least = to[i];
  }
  return range;
}

/// First index whose entry equals `value`; there is one.
template <class A>
HWY_INLINE std::size_t FirstIndexOf(const A* x, A value) {
  const Lanes<A> tag;
  const Vector<A> wanted = Splat<A>(value);
  for (std::size_t i = 0;; i += kLanes<A>) {
    const std::intptr_t lane = hn::FindFirstTrue(tag, hn::Eq(Read<A>(x + i), wanted));
    if (lane >= 0) return i + static_cast<std::size_t>(lane);
  }
}

/// The pairwise cascade that chunks of a sum are flushed into, one per lane; level l holds the sum of 2^l chunks.
template <class A>
class Cascade {
 public:
  HWY_INLINE void Push(const Vector<A> (&chunk)[kVectors<A>]) {
    Vector<A> sum[kVectors<A>];
    for (std::size_t v = 0; v < kVectors<A>; ++v) sum[v] = chunk[v];
    std::size_t level = 0;
    for (std::size_t carry = chunks_; carry & 1; carry >>= 1) Accumulate(level++, sum);
    for (std::size_t v = 0; v < kVectors<A>; ++v) Write<A>(sum[v], levels_[level] + v * kLanes<A>);
    ++chunks_;
  }
  /// Adds the levels from small to large, then the lanes in halves.
  HWY_INLINE A Total() const {
    const Lanes<A> tag;
    Vector<A> sum[kVectors<A>];
    for (std::size_t v = 0; v < kVectors<A>; ++v) sum[v] = hn::Zero(tag);
    for (std::size_t level = 0; chunks_ >> level; ++level)
      if (chunks_ >> level & 1) Accumulate(level, sum);
    for (std::size_t half = kVectors<A> / 2; half > 0; half /= 2)
      for (std::size_t v = 0; v < half; ++v) sum[v] = hn::Add(sum[v], sum[v + half]);
    HWY_ALIGN A lanes[kLanes<A>];
    Write<A>(sum[0], lanes);
    for (std::size_t half = kLanes<A> / 2; half > 0; half /= 2)
      for (std::size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    return lanes[0];
  }

 private:
  HWY_INLINE void Accumulate(std::size_t level, Vector<A> (&sum)[kVectors<A>]) const {
    for (std::size_t v = 0; v < kVectors<A>; ++v)
      sum[v] = hn::Add(Read<A>(levels_[level] + v * kLanes<A>), sum[v]);
  }
  static constexpr std::size_t kLevels = 40;
  HWY_ALIGN A levels_[kLevels][kBlock<A>];
  std::size_t chunks_ = 0;
};

template <class A, std::size_t Count>
struct Sums {
  A total[Count];
};

/// Count sums over the padded elements at once: visit(i, terms) gives the terms of the vector at element i. The order
/// is that of SummationTree::lanes with width kBlock and flush_every kFlush.
template <class A, std::size_t Count, class Visit>
HWY_INLINE Sums<A, Count> SumOver(std::size_t padded, Visit visit) {
  Cascade<A> cascade[Count];
  for (std::size_t begin = 0; begin < padded; begin += kFlush * kBlock<A>) {
    const std::size_t end = std::min(padded, begin + kFlush * kBlock<A>);
    Vector<A> sum[Count][kVectors<A>];
    for (auto& of_term : sum)
      for (auto& vector : of_term) vector = hn::Zero(Lanes<A>());
    for (std::size_t i = begin; i < end; i += kBlock<A>) {
      for (std::size_t v = 0; v < kVectors<A>; ++v) {
        Vector<A> terms[Count];
        visit(i + v * kLanes<A>, terms);
        for (std::size_t c = 0; c < Count; ++c) sum[c][v] = hn::Add(sum[c][v], terms[c]);
      }
    }
    for (std::size_t c = 0; c < Count; ++c) cascade[c].Push(sum[c]);
  }
  Sums<A, Count> result;
  for (std::size_t c = 0; c < Count; ++c) result.total[c] = cascade[c].Total();
  return result;
}

/// x - m as difference and exact remainder (Knuth's TwoSum of x and -m).
template <class A>
HWY_INLINE Vector<A> TwoDiff(Vector<A> x, Vector<A> m, Vector<A>& low) {
  const Vector<A> difference = hn::Sub(x, m);
  const Vector<A> part = hn::Sub(difference, x);
  low = hn::Sub(hn::Sub(x, hn::Sub(difference, part)), hn::Add(m, part));
  return difference;
}
template <class A>
HWY_INLINE Vector<A> TwoSum(Vector<A> x, Vector<A> y, Vector<A>& low) {
  const Vector<A> sum = hn::Add(x, y);
  const Vector<A> part = hn::Sub(sum, x);
  low = hn::Add(hn::Sub(x, hn::Sub(sum, part)), hn::Sub(y, part));
  return sum;
}

/// D1 of x: e_j = exp(x_j - x_k), r = their sum without index k. With a compensated shift the rounding error of
/// x_j - x_k enters to first order. x[k] is put back afterwards.
template <class A>
struct Tail {
  std::size_t k;
  A m, r, s, log_s;
};
template <class A, bool compensated>
HWY_INLINE Tail<A> TailOf(A* x, A largest, std::size_t padded, A* e) {
  const Lanes<A> tag;
  Tail<A> tail;
  tail.m = largest;
  tail.k = FirstIndexOf<A>(x, largest);
  // Dead during the sum, so that its 1 is not in r.
  x[tail.k] = -kInfinity<A>;
  const Vector<A> m = Splat<A>(largest);
  tail.r = SumOver<A, 1>(padded, [&](std::size_t i, Vector<A>* terms) HWY_ATTR {
             Vector<A> value;
             if constexpr (compensated) {
               Vector<A> low;
               const Vector<A> d = TwoDiff<A>(Read<A>(x + i), m, low);
               value = ExpNonPositive(tag, d);
               // The remainder of a dead entry is NaN.
               value = FusedMulAdd(value, hn::IfThenZeroElse(hn::Eq(value, hn::Zero(tag)), low), value);
             } else {
               value = ExpNonPositive(tag, hn::Sub(Read<A>(x + i), m));
             }
             Write<A>(value, e + i);
             terms[0] = value;
           }).total[0];
  x[tail.k] = largest;
  e[tail.k] = 1;
  tail.s = 1 + tail.r;
  tail.log_s = ScalarLog1p<A>(tail.r);
  return tail;
}

/// A factor that is applied after a gradient has been formed: rounded once to A, in two steps where A's range asks for it.
template <class A>
struct Scale {
  A first = 1, second = 1;
  bool finite = true;

  /// The product of two doubles.
  static Scale Of(double x, double y = 1) {
    Scale scale;
    if (!std::isfinite(x) || !std::isfinite(y)) {
      scale.finite = false;
      return scale;
    }
    int ex, ey;
    const double significand = std::frexp(x, &ex) * std::frexp(y, &ey);
    constexpr int limit = std::numeric_limits<A>::max_exponent * 3 / 4;
    const int exponent = std::clamp(ex + ey, -limit, limit);
    scale.first = static_cast<A>(std::ldexp(significand, exponent));
    scale.second = static_cast<A>(std::ldexp(1.0, std::clamp(ex + ey - exponent, -limit, limit)));
    return scale;
  }
  HWY_INLINE Vector<A> operator()(Vector<A> x) const {
    x = hn::Mul(x, Splat<A>(first));
    return second == 1 ? x : hn::Mul(x, Splat<A>(second));
  }
  A operator()(A x) const { return second == 1 ? x * first : x * first * second; }
};

/// Stores the vector at element i of a row of n, rounded to T.
template <class A, class T>
HWY_INLINE void StoreRow(Vector<A> value, std::size_t i, std::size_t n, T* out) {
  if (i + kLanes<A> <= n) {
    if constexpr (std::is_same_v<A, T>) {
      hn::StoreU(value, Lanes<A>(), out + i);
    } else if constexpr (kLanes<A> == 1) {
      out[i] = static_cast<T>(hn::GetLane(value));  // Highway's scalar DemoteTo clamps infinities
    } else {
      const hn::Rebind<T, Lanes<A>> narrow;
      hn::StoreU(hn::DemoteTo(narrow, value), narrow, out + i);
    }
  } else if (i < n) {
    HWY_ALIGN A buffer[kLanes<A>];
    Write<A>(value, buffer);
    for (std::size_t lane = 0; i + lane < n; ++lane) out[i + lane] = static_cast<T>(buffer[lane]);
  }
}

template <class A, class Visit>
HWY_INLINE void ForEachVector(std::size_t padded, Visit visit) {
  for (std::size_t i = 0; i < padded; i += kLanes<A>) visit(i);
}

}  // namespace sumzero::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // SUMZERO_FAST_CPU_LANES_INL_H_
