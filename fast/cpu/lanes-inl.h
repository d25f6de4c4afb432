// What the losses share beyond row-inl.h: rows in working arrays of whole steps, several sums in one pass, scaled stores.
//
// A is the arithmetic type, T the type of the row. A loss reads its logits several times, so they are converted once, into an
// array that is padded with dead entries (-inf) to whole steps of kWidth elements. Sums have the tree of row-inl.h and the same
// bits on every instruction set.

#if defined(SUMZERO_FAST_CPU_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SUMZERO_FAST_CPU_LANES_INL_H_
#undef SUMZERO_FAST_CPU_LANES_INL_H_
#else
#define SUMZERO_FAST_CPU_LANES_INL_H_
#endif

#include "fast/cpu/row-inl.h"
// row-inl.h first: it chooses the targets.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>

#include "fast/cpu/loss_contract.hpp"
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
HWY_INLINE A LogOf(A x) {
  return hn::GetLane(Log(Lanes<A>(), Splat<A>(x)));
}

template <class A>
constexpr std::size_t Padded(std::size_t n) {
  return (n + kWidth<A> - 1) / kWidth<A> * kWidth<A>;
}

/// Count working arrays of `length` elements, 64-byte aligned; valid until the thread's next request with the same A.
template <class A, std::size_t Count>
class Arrays {
 public:
  explicit Arrays(std::size_t length) {
    constexpr std::size_t line = 64 / sizeof(A);
    // Three cache lines between the arrays keep equal indices of power-of-two rows out of the same cache set.
    stride_ = ((length + line - 1) / line + 3) * line;
    first_ = scratch<A, kLossSlot>(Count * stride_);
  }
  A* operator[](std::size_t index) const { return first_ + index * stride_; }

 private:
  static constexpr int kLossSlot = 16;
  std::size_t stride_;
  A* first_;
};

/// What decides how a row is handled.
template <class A>
struct RowRange {
  A largest = -kInfinity<A>;  ///< over the entries that are numbers
  A least = 0;                ///< over the finite entries and 0
  bool has_nan = false, has_dead = false;
  bool regular() const { return !has_nan && largest < kInfinity<A> && largest > -kInfinity<A>; }
};

/// Copies a row and pads it.
template <class A, class T>
HWY_INLINE void LoadPadded(const T* from, std::size_t n, std::type_identity_t<A> padding, A* to) {
  std::size_t i = 0;
  for (; i + kLanes<A> <= n; i += kLanes<A>) Write<A>(Load(Whole(), Lanes<A>(), from + i, T(0)), to + i);
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

template <class A, std::size_t Count>
struct Sums {
  A total[Count];
};

/// Count sums over the padded elements at once: visit(i, terms) gives the terms of the vector at element i.
template <class A, std::size_t Count, class Visit>
HWY_INLINE Sums<A, Count> SumOver(std::size_t padded, Visit visit) {
  using Block = Accumulators<Lanes<A>>;
  constexpr std::size_t kStep = kWidth<A>, kChunk = kStep * kFlush;
  Block block[Count];
  const auto sum_chunk = [&](std::size_t begin, std::size_t end) HWY_ATTR {
    Unroll<Count>([&](auto c) HWY_ATTR { block[c].Clear(); });
    for (std::size_t i = begin; i < end; i += kStep) {
      Unroll<Block::kVectors>([&](auto u) HWY_ATTR {
        Vector<A> terms[Count];
        visit(i + u * Block::N, terms);
        Unroll<Count>([&](auto c) HWY_ATTR { block[c].template Add<u>(terms[c]); });
      });
    }
  };
  Sums<A, Count> result;
  if (padded <= kChunk) {
    sum_chunk(0, padded);
    Unroll<Count>([&](auto c) HWY_ATTR { result.total[c] = block[c].Fold(); });
    return result;
  }
  Cascade<Block> cascade[Count];
  for (std::size_t begin = 0; begin < padded; begin += kChunk) {
    sum_chunk(begin, std::min(padded, begin + kChunk));
    Unroll<Count>([&](auto c) HWY_ATTR { cascade[c].Push(block[c]); });
  }
  Unroll<Count>([&](auto c) HWY_ATTR { result.total[c] = cascade[c].Total(block[c]); });
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

/// D1 of a row in a working array: e_j = exponential(vector at j), r their sum without index k, where x holds `largest`.
/// x[k] is dead during the sum, so that its 1 is not in r.
template <class A>
struct LossTail {
  std::size_t k;
  A m, r, s, log_s;
};
template <class A, class Exponential>
HWY_INLINE LossTail<A> TailOfArray(A* x, A largest, std::size_t padded, A* e, Exponential exponential) {
  LossTail<A> tail;
  tail.m = largest;
  tail.k = FirstEqual(x, 0, padded, largest);
  x[tail.k] = -kInfinity<A>;
  const Vector<A> m = Splat<A>(largest);
  tail.r = SumOver<A, 1>(padded, [&](std::size_t i, Vector<A>* terms) HWY_ATTR {
             terms[0] = exponential(Read<A>(x + i), m);
             Write<A>(terms[0], e + i);
           }).total[0];
  x[tail.k] = largest;
  e[tail.k] = 1;
  tail.s = 1 + tail.r;
  tail.log_s = Log1pOf(tail.r);
  return tail;
}

/// Exponential of the rounded difference, or of the difference as a pair.
template <class A, bool compensated>
HWY_INLINE LossTail<A> TailOfLogits(A* x, A largest, std::size_t padded, A* e) {
  return TailOfArray<A>(x, largest, padded, e, [](Vector<A> v, Vector<A> m) HWY_ATTR {
    if constexpr (compensated) return Compensated::ScaledExp(v, m);
    else return ExpNonPositive(Lanes<A>(), hn::Sub(v, m));
  });
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
  if (i + kLanes<A> <= n) Store(Whole(), Lanes<A>(), value, out + i);
  else if (i < n) Store(Partial{n - i}, Lanes<A>(), value, out + i);
}

template <class A, class Visit>
HWY_INLINE void ForEachVector(std::size_t padded, Visit visit) {
  for (std::size_t i = 0; i < padded; i += kLanes<A>) visit(i);
}

}  // namespace sumzero::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // SUMZERO_FAST_CPU_LANES_INL_H_
