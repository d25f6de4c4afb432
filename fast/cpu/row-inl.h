// The pieces that every row kernel is made of: loads and stores of whole and partial vectors, the first maximum, sums
// with a fixed tree, and the tail state (m, k, r) of a row in three arithmetics.
//
// Include this from a source that is compiled once per target (hwy/foreach_target.h). A kernel is a template over an
// arithmetic A:
//
//   A                 rows of     lanes    tail     exponential of x - m
//   Plain<T>          T           T        T        of the rounded difference
//   Wide<T>           T           double   double   relative error 2^-43, strictly monotone; T is float or double
//   Compensated       double      double   double   of the difference as an unevaluated pair
//   CompensatedFloat  float       float    double   of the difference as an unevaluated pair
//
// and uses, in this order:
//
//   const Tail<A> tail = TailOf<A>(x, n, e);            // e: n lanes that take exp(x_j - m), or NoStore{}
//     or ScaledTailOf, cheaper: e takes A::kScale exp(x_j - m)
//   if (!tail.regular) { const RowClassification c = Classify(x, n); ...; return; }
//   ForEach(A::d, n, [&](size_t i, auto at) HWY_ATTR {  // vectors in order; `at` is Whole or Partial
//     const auto p = hn::Mul(Load(at, A::d, e + i, 0), inverse);
//     Store(at, A::d, p, out + i);                      // rounds lanes to the type of `out`
//   });
//   const auto q = SumExcept(A::d, n, tail.k, [&](size_t i, auto at) HWY_ATTR { return term; });
//
// Results do not depend on the target: element i of a sum belongs to logical lane i mod kWidth whatever the vector
// length, all other operations are element by element, and every multiply-add is either fused on all targets or on
// none. They do not depend on addresses either.
//
// Lambdas that use vectors must carry HWY_ATTR, those of the innermost loops SUMZERO_INLINE_LAMBDA.

#if defined(SUMZERO_FAST_CPU_ROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SUMZERO_FAST_CPU_ROW_INL_H_
#undef SUMZERO_FAST_CPU_ROW_INL_H_
#else
#define SUMZERO_FAST_CPU_ROW_INL_H_
#endif

#include "fast/math/math-inl.h"
// math-inl.h first: it chooses the targets.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "fast/cpu/scratch.hpp"

#undef SUMZERO_INLINE_LAMBDA
#define SUMZERO_INLINE_LAMBDA HWY_ATTR __attribute__((always_inline))

HWY_BEFORE_NAMESPACE();
namespace sumzero::fast::HWY_NAMESPACE {

using std::size_t;

template <class T>
inline constexpr T kInfinity = std::numeric_limits<T>::infinity();

// ---------------------------------------------------------------------------------------------------------
// Vectors of a row

/// A vector that lies inside the row, and one of which only the first `count` lanes do.
struct Whole {};
struct Partial {
  size_t count;
};

/// 0, 1, 2, ... in memory: hn::Iota, and hn::FirstN through it, loops over the lanes.
template <class T>
alignas(64) inline constexpr T kIndices[] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                             16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};

template <class D>
HWY_INLINE hn::Mask<D> FirstLanes(D d, size_t count) {
  using T = hn::TFromD<D>;
  return hn::Lt(hn::Load(d, kIndices<T>), hn::Set(d, static_cast<T>(static_cast<int>(count))));
}

/// Lanes of `d` from elements of type T: float elements are widened exactly, lanes narrowed with one rounding. E is the
/// tag of as many elements.
template <class D, class E>
HWY_INLINE hn::Vec<D> Widen(D d, hn::Vec<E> elements) {
  if constexpr (std::is_same_v<D, E>) return elements;
  else return hn::PromoteTo(d, elements);
}
template <class E, class D>
HWY_INLINE hn::Vec<E> Narrow(hn::Vec<D> lanes) {
  if constexpr (std::is_same_v<D, E>) return lanes;
#if HWY_TARGET == HWY_SCALAR
  else return hn::Set(E(), static_cast<hn::TFromD<E>>(lanes.raw));  // Highway's scalar DemoteTo clamps infinities
#else
  else return hn::DemoteTo(E(), lanes);
#endif
}

/// The lanes of a row from `from` on; lanes beyond the row hold `pad`.
template <class D, class T>
HWY_INLINE hn::Vec<D> Load(Whole, D d, const T* from, std::type_identity_t<T>) {
  using E = hn::Rebind<T, D>;
  return Widen<D, E>(d, hn::LoadU(E(), from));
}
template <class D, class T>
HWY_INLINE hn::Vec<D> Load(Partial at, D d, const T* from, std::type_identity_t<T> pad) {
  using E = hn::Rebind<T, D>;
  const auto inside = FirstLanes(E(), at.count);
  return Widen<D, E>(d, hn::IfThenElse(inside, hn::MaskedLoad(inside, E(), from), hn::Set(E(), pad)));
}
/// Writes the lanes that lie inside the row.
template <class D, class T>
HWY_INLINE void Store(Whole, D, hn::Vec<D> v, T* to) {
  using E = hn::Rebind<T, D>;
  hn::StoreU(Narrow<E, D>(v), E(), to);
}
template <class D, class T>
HWY_INLINE void Store(Partial at, D, hn::Vec<D> v, T* to) {
  using E = hn::Rebind<T, D>;
  hn::BlendedStore(Narrow<E, D>(v), FirstLanes(E(), at.count), E(), to);
}

/// Takes the place of an output that nobody wants.
struct NoStore {
  NoStore operator+(size_t) const { return {}; }
};
template <class At, class D>
HWY_INLINE void Store(At, D, hn::Vec<D>, NoStore) {}

/// body(integral constant u) for u = 0 .. Count - 1, unrolled.
template <size_t Count, class Body>
HWY_INLINE void Unroll(Body body) {
  [&]<size_t... U>(std::index_sequence<U...>) HWY_ATTR {
    (body(std::integral_constant<size_t, U>()), ...);
  }(std::make_index_sequence<Count>());
}

/// body(i, at) for every vector of the row, in order.
template <class D, class Body>
HWY_INLINE void ForEach(D d, size_t n, Body body) {
  constexpr size_t N = hn::MaxLanes(D());
  (void)d;
  size_t i = 0;
  for (; i + 4 * N <= n; i += 4 * N) Unroll<4>([&](auto u) HWY_ATTR { body(i + u * N, Whole()); });
  for (; i + N <= n; i += N) body(i, Whole());
  if (i < n) body(i, Partial{n - i});
}

// ---------------------------------------------------------------------------------------------------------
// Maximum

/// Largest number of x[0..n) and its first index. NaN is skipped; index == n when no entry is above -inf.
template <class T>
struct Peak {
  T value;
  size_t index;
};

template <class T>
HWY_INLINE size_t FirstEqual(const T* x, size_t begin, size_t end, T value) {
  const hn::ScalableTag<T> d;
  constexpr size_t N = hn::MaxLanes(d);
  const auto wanted = hn::Set(d, value);
  size_t i = begin;
  for (; i + N <= end; i += N) {
    const intptr_t found = hn::FindFirstTrue(d, hn::Eq(hn::LoadU(d, x + i), wanted));
    if (found >= 0) return i + static_cast<size_t>(found);
  }
  while (i < end && x[i] != value) ++i;
  return i;
}

/// The largest number, -inf if there is none. Of +0 and -0, either.
template <class T>
HWY_INLINE T Largest(const T* x, size_t begin, size_t end) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr size_t N = hn::MaxLanes(d), kAccumulators = 4, kStep = kAccumulators * N;
  V lanes[kAccumulators];
  Unroll<kAccumulators>([&](auto u) HWY_ATTR { lanes[u] = hn::Set(d, -kInfinity<T>); });
  size_t i = begin;
  // MaxOrSecond keeps the second operand where the first is NaN.
  for (; i + kStep <= end; i += kStep)
    Unroll<kAccumulators>([&](auto u) HWY_ATTR { lanes[u] = MaxOrSecond(hn::LoadU(d, x + i + u * N), lanes[u]); });
  for (; i + N <= end; i += N) lanes[0] = MaxOrSecond(hn::LoadU(d, x + i), lanes[0]);
  if (i < end) lanes[1] = MaxOrSecond(Load(Partial{end - i}, d, x + i, -kInfinity<T>), lanes[1]);
  const V joint = MaxOrSecond(MaxOrSecond(lanes[0], lanes[1]), MaxOrSecond(lanes[2], lanes[3]));
  return hn::GetLane(hn::MaxOfLanes(d, joint));
}

template <class T>
HWY_INLINE Peak<T> FirstMaximum(const T* x, size_t n) {
  // The block that holds the maximum is known from the pass itself, so that only this block is searched.
  constexpr size_t kBlock = 1024;
  T best = -kInfinity<T>;
  size_t block_of_best = n;
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const T largest = Largest(x, begin, std::min(begin + kBlock, n));
    if (largest > best) best = largest, block_of_best = begin;
  }
  if (block_of_best == n) return {best, n};
  const size_t index = FirstEqual(x, block_of_best, std::min(block_of_best + kBlock, n), best);
  return {x[index], index};  // x[index], because the maximum of +0 and -0 depends on the order
}

// ---------------------------------------------------------------------------------------------------------
// Sums

/// Logical accumulators of a sum, and the additions after which they are flushed into a pairwise cascade.
template <class T>
inline constexpr size_t kWidth = 128 / sizeof(T);
inline constexpr size_t kFlush = 16;

/// Lane i takes lane i + Count / 2, until one is left.
template <size_t Count, class T>
HWY_INLINE T FoldHalves(const T* lanes) {
  if constexpr (Count == 1) {
    return lanes[0];
  } else {
    T folded[Count / 2];
    Unroll<Count / 2>([&](auto i) SUMZERO_INLINE_LAMBDA { folded[i] = lanes[i] + lanes[i + Count / 2]; });
    return FoldHalves<Count / 2>(folded);
  }
}

/// The same of the lanes of a vector.
template <class D>
HWY_INLINE hn::TFromD<D> FoldLanes(D, hn::Vec<D> v) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (hn::MaxLanes(D()) > 1) {
    const hn::Half<D> half;
    return FoldLanes(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else
#endif
    return hn::GetLane(v);
}

/// Sums of vectors with lanes as narrow as the terms: logical lane i mod kWidth takes element i.
template <class D>
class Accumulators {
 public:
  using T = hn::TFromD<D>;
  using V = hn::Vec<D>;
  static constexpr size_t N = hn::MaxLanes(D()), kLanes = kWidth<T>, kVectors = kLanes / N;

  HWY_INLINE void Clear() {
    Unroll<kVectors>([&](auto u) HWY_ATTR { lane_[u] = hn::Zero(D()); });
  }
  template <size_t U>
  HWY_INLINE void Add(V v) {
    lane_[U] = hn::Add(lane_[U], v);
  }
  HWY_INLINE void AddStep(const V* terms) {
    Unroll<kVectors>([&](auto u) HWY_ATTR { lane_[u] = hn::Add(lane_[u], terms[u]); });
  }
  HWY_INLINE void AddFrom(const T* p) {
    Unroll<kVectors>([&](auto u) HWY_ATTR { lane_[u] = hn::Add(hn::LoadU(D(), p + u * N), lane_[u]); });
  }
  HWY_INLINE void StoreTo(T* p) const {
    Unroll<kVectors>([&](auto u) HWY_ATTR { hn::StoreU(lane_[u], D(), p + u * N); });
  }
  /// Folded in halves: lane i takes lane i + half.
  HWY_INLINE T Fold() {
    FoldVectors<kVectors>(lane_);
    return FoldLanes(D(), lane_[0]);
  }
  /// The same fold over whole vectors, until `Last` of them are left.
  template <size_t Count, size_t Last = 1>
  static HWY_INLINE void FoldVectors(V* v) {
    if constexpr (Count > Last) {
      Unroll<Count / 2>([&](auto u) HWY_ATTR { v[u] = hn::Add(v[u], v[u + Count / 2]); });
      FoldVectors<Count / 2, Last>(v);
    }
  }

 private:
  V lane_[kVectors];
};

/// Sums of float vectors in eight double lanes: of the kWidth terms of a step, element i takes i + 16 and then i + 8 in
/// float, two roundings; the rest of the tree rounds in double.
template <class D>
class WideAccumulators {
 public:
  using T = double;
  using V = hn::Vec<D>;
  static constexpr size_t N = hn::MaxLanes(D()), kLanes = 8;

  HWY_INLINE void Clear() {
    Unroll<kVectors>([&](auto u) HWY_ATTR { lane_[u] = hn::Zero(wide_); });
  }
  HWY_INLINE void AddStep(V* terms) {
    constexpr size_t kTerms = kWidth<float> / N, kLeft = N > kLanes ? 1 : kLanes / N;
    Accumulators<D>::template FoldVectors<kTerms, kLeft>(terms);
#if HWY_TARGET == HWY_SCALAR
    Unroll<kVectors>([&](auto u) HWY_ATTR { lane_[u] = hn::Add(lane_[u], hn::PromoteTo(wide_, terms[u])); });
#else
    const hn::Half<D> half;
    if constexpr (N > kLanes) {
      const auto eight = hn::Add(hn::LowerHalf(half, terms[0]), hn::UpperHalf(half, terms[0]));
      lane_[0] = hn::Add(lane_[0], hn::PromoteTo(wide_, eight));
    } else {
      lane_[0] = hn::Add(lane_[0], hn::PromoteTo(wide_, hn::LowerHalf(half, terms[0])));
      lane_[kVectors - 1] = hn::Add(lane_[kVectors - 1], hn::PromoteTo(wide_, hn::UpperHalf(half, terms[0])));
    }
#endif
  }
  HWY_INLINE void AddFrom(const T* p) {
    Unroll<kVectors>([&](auto u) HWY_ATTR { lane_[u] = hn::Add(hn::LoadU(wide_, p + u * kWide), lane_[u]); });
  }
  HWY_INLINE void StoreTo(T* p) const {
    Unroll<kVectors>([&](auto u) HWY_ATTR { hn::StoreU(lane_[u], wide_, p + u * kWide); });
  }
  HWY_INLINE T Fold() {
    HWY_ALIGN T lanes[kLanes];
    StoreTo(lanes);
    return FoldHalves<kLanes>(lanes);
  }

 private:
  static constexpr hn::ScalableTag<double> wide_{};
  static constexpr size_t kWide = hn::MaxLanes(wide_), kVectors = kLanes / kWide;
  hn::Vec<hn::ScalableTag<double>> lane_[kVectors];
};

/// Blocks of accumulators summed pairwise: level L holds the sum of 2^L consecutive blocks.
template <class Block>
class Cascade {
 public:
  using T = typename Block::T;
  HWY_INLINE void Push(Block& block) {
    size_t level = 0;
    for (; blocks_ >> level & 1; ++level) block.AddFrom(level_[level]);
    block.StoreTo(level_[level]);
    ++blocks_;
  }
  HWY_INLINE T Total(Block& block) const {
    block.Clear();
    for (size_t level = 0; blocks_ >> level != 0; ++level)
      if (blocks_ >> level & 1) block.AddFrom(level_[level]);
    return block.Fold();
  }

 private:
  size_t blocks_ = 0;
  HWY_ALIGN T level_[48][Block::kLanes];
};

/// term(i, at) for i = 0 .. n - 1 without index k (none left out when k >= n); lanes beyond the row must give zero.
/// The height over n terms is that of SummationTree{lanes, kWidth, kFlush}; with WideAccumulators, two float roundings.
/// step(i, terms) gives the terms of a whole step.
template <class Block, class D, class Step, class Term>
HWY_INLINE typename Block::T SumExceptInto(D d, size_t n, size_t k, Step step, Term term) {
  using T = hn::TFromD<D>;
  using V = hn::Vec<D>;
  constexpr size_t N = Block::N, kStep = kWidth<T>, kVectors = kStep / N, kBlock = kStep * kFlush;
  Block block;
  Cascade<Block> cascade;
  for (size_t begin = 0;; begin += kBlock) {
    const size_t end = std::min(begin + kBlock, n), whole_end = end - (end - begin) % kStep;
    block.Clear();
    size_t i = begin;
    while (true) {
      const size_t stop = k >= i && k < whole_end ? k - (k - begin) % kStep : whole_end;
      for (; i < stop; i += kStep) {
        V terms[kVectors];
        step(i, terms);
        block.AddStep(terms);
      }
      if (i == whole_end) break;
      // The step that holds k.
      const auto left_out = hn::Set(d, static_cast<T>(static_cast<int>(k - i)));
      V terms[kVectors];
      Unroll<kVectors>([&](auto u) HWY_ATTR {
        const auto index = hn::Load(d, kIndices<T> + u * N);
        terms[u] = hn::IfThenZeroElse(hn::Eq(index, left_out), term(i + u * N, Whole()));
      });
      block.AddStep(terms);
      i += kStep;
    }
    if (i < end) {
      HWY_ALIGN T lanes[kStep];
      Unroll<kVectors>([&](auto u) HWY_ATTR { hn::Store(hn::Zero(d), d, lanes + u * N); });
      for (size_t j = 0; j < kStep && j < end - i; j += N) {
        if (end - i - j >= N) hn::Store(term(i + j, Whole()), d, lanes + j);
        else hn::Store(term(i + j, Partial{end - i - j}), d, lanes + j);
      }
      if (k - i < kStep) lanes[k - i] = T(0);
      V terms[kVectors];
      Unroll<kVectors>([&](auto u) HWY_ATTR { terms[u] = hn::Load(d, lanes + u * N); });
      block.AddStep(terms);
    }
    if (end == n && begin == 0) return block.Fold();
    cascade.Push(block);
    if (end == n) return cascade.Total(block);
  }
}

template <class D, class Term>
HWY_INLINE hn::TFromD<D> SumExcept(D d, size_t n, size_t k, Term term) {
  using Block = Accumulators<D>;
  const auto step = [&](size_t i, hn::Vec<D>* terms) HWY_ATTR {
    Unroll<Block::kVectors>([&](auto u) HWY_ATTR { terms[u] = term(i + u * Block::N, Whole()); });
  };
  return SumExceptInto<Block>(d, n, k, step, term);
}
template <class D, class Term>
HWY_INLINE hn::TFromD<D> Sum(D d, size_t n, Term term) {
  return SumExcept(d, n, n, term);
}

// ---------------------------------------------------------------------------------------------------------
// Arithmetics

/// Of Count vectors, each: 2^64 e^(difference + low) for difference <= 0 and a low part, if given, of at most half an ulp of
/// it; NaN when the difference is, 0 below e^-132. Relative error 1.43 units of 2^-24 for every difference (all were tried),
/// monotone without low. The factor keeps subnormal exponentials at full precision and saves the multiplication that would
/// round them. Stage by stage, since one vector alone waits for itself.
template <size_t Count, class D, class V = hn::Vec<D>, class... Low>
HWY_INLINE void ScaledExpF32(D d, V* x, const Low*... low) {
  using C = ExpConstants<float>;
  const V magic = hn::Set(d, C::Magic);
  V kt[Count], r[Count], q[Count];
  const auto each = [](auto body) SUMZERO_INLINE_LAMBDA { Unroll<Count>(body); };
  // At the clamp k = -191, for which the exponent field of 2^(k + 64) is zero, and so is the result.
  each([&](auto u) SUMZERO_INLINE_LAMBDA { x[u] = MaxOrSecond(hn::Set(d, -132.5f), x[u]); });
  each([&](auto u) SUMZERO_INLINE_LAMBDA { kt[u] = FusedMulAdd(x[u], hn::Set(d, C::InvLn2), magic); });
  each([&](auto u) SUMZERO_INLINE_LAMBDA { q[u] = hn::Sub(kt[u], magic); });
  each([&](auto u) SUMZERO_INLINE_LAMBDA { r[u] = NegFusedMulAdd(q[u], hn::Set(d, C::Ln2Hi), x[u]); });
  if constexpr (sizeof...(Low) > 0) each([&](auto u) SUMZERO_INLINE_LAMBDA { r[u] = hn::Add(r[u], low[u]...); });
  each([&](auto u) SUMZERO_INLINE_LAMBDA { r[u] = NegFusedMulAdd(q[u], hn::Set(d, C::Ln2Lo), r[u]); });
  each([&](auto u) SUMZERO_INLINE_LAMBDA { q[u] = FusedMulAdd(hn::Set(d, C::c6), r[u], hn::Set(d, C::c5)); });
  each([&](auto u) SUMZERO_INLINE_LAMBDA { q[u] = FusedMulAdd(q[u], r[u], hn::Set(d, C::c4)); });
  each([&](auto u) SUMZERO_INLINE_LAMBDA { q[u] = FusedMulAdd(q[u], r[u], hn::Set(d, C::c3)); });
  each([&](auto u) SUMZERO_INLINE_LAMBDA { q[u] = FusedMulAdd(q[u], r[u], hn::Set(d, C::c2)); });
  // 1 + (r + r^2 q): adding 1 last makes it monotone, which Horner's last step does not.
  each([&](auto u) SUMZERO_INLINE_LAMBDA { q[u] = FusedMulAdd(hn::Mul(r[u], r[u]), q[u], r[u]); });
  each([&](auto u) SUMZERO_INLINE_LAMBDA { q[u] = hn::Add(q[u], hn::Set(d, 1.0f)); });
  each([&](auto u) SUMZERO_INLINE_LAMBDA { x[u] = hn::Mul(q[u], hn::BitCast(d, PowerOfTwoBits(d, kt[u]))); });
}

/// x - m = high + low exactly (TwoDiff); low is dropped where high is too small for its exponential to matter.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Difference(D d, V x, V m, V& low) {
  using T = hn::TFromD<D>;
  const V high = hn::Sub(x, m);
  const V minus_m = hn::Sub(high, x);
  low = hn::Sub(hn::Sub(x, hn::Sub(high, minus_m)), hn::Add(m, minus_m));
  low = hn::IfThenElseZero(hn::Gt(high, hn::Set(d, std::is_same_v<T, float> ? T(-140) : T(-1000))), low);
  return high;
}

template <class T>
struct Plain {
  using Element = T;
  using Lane = T;
  using Backward = T;
  using D = hn::ScalableTag<Lane>;
  using V = hn::Vec<D>;
  using Block = Accumulators<D>;
  static constexpr D d{};
  static constexpr T kScale = std::is_same_v<T, float> ? T(0x1p64) : T(1);

  /// kScale e^(x - m) in place of x <= m, for Count vectors; NaN where x is.
  template <size_t Count>
  static HWY_INLINE void ScaledExps(V* x, V m) {
    Unroll<Count>([&](auto u) SUMZERO_INLINE_LAMBDA { x[u] = hn::Sub(x[u], m); });
    if constexpr (std::is_same_v<T, float>) ScaledExpF32<Count>(d, x);
    else Unroll<Count>([&](auto u) HWY_ATTR { x[u] = ExpNonPositive(d, x[u]); });
  }
  /// (x - m) - log_s: never m + log_s first, which would lose an absolute u |m|.
  static HWY_INLINE V DifferenceLess(V x, V m, V log_s) { return hn::Sub(hn::Sub(x, m), log_s); }
};

struct CompensatedFloat {
  using Element = float;
  using Lane = float;
  using Backward = double;
  using D = hn::ScalableTag<float>;
  using V = hn::Vec<D>;
  using Block = WideAccumulators<D>;
  static constexpr D d{};
  static constexpr float kScale = 0x1p64f;

  template <size_t Count>
  static HWY_INLINE void ScaledExps(V* x, V m) {
    V low[Count];
    Unroll<Count>([&](auto u) SUMZERO_INLINE_LAMBDA { x[u] = Difference(d, x[u], m, low[u]); });
    ScaledExpF32<Count>(d, x, low);
  }
  /// The rounding of x - m costs half an ulp here, where nothing magnifies it.
  static HWY_INLINE V DifferenceLess(V x, V m, V log_s) { return hn::Sub(hn::Sub(x, m), log_s); }
};

template <class T>
struct Wide {
  using Element = T;
  using Lane = double;
  using Backward = double;
  using D = hn::ScalableTag<double>;
  using V = hn::Vec<D>;
  using Block = Accumulators<D>;
  static constexpr D d{};
  static constexpr double kScale = 1;

  /// 2^y with y = (x - m) log2(e) rounded to a multiple of 2^-42, as 2^k P(f), |f| <= 1/2. P(0) = 1 and P is within
  /// 2^-45.9 of 2^f, so one step of y outweighs all other errors and the result is monotone. Below e^-350 it is zero:
  /// nothing that small reaches a float, not even multiplied by two of them.
  template <size_t Count>
  static HWY_INLINE void ScaledExps(V* x, V m) {
    Unroll<Count>([&](auto u) HWY_ATTR { x[u] = ScaledExp(x[u], m); });
  }
  static HWY_INLINE V ScaledExp(V x, V m) {
    const V difference = hn::Sub(x, m);
    const V grid = hn::Set(d, 0x1.8p10);  // adding it leaves 42 fraction bits
    const V magic = hn::Set(d, 0x1.80000000003ffp52);  // adding it leaves an integer, plus the exponent bias
    const V y = hn::Sub(FusedMulAdd(difference, hn::Set(d, 0x1.71547652b82fep0), grid), grid);
    const V biased = hn::Add(y, magic);
    const V f = hn::Sub(y, hn::Sub(biased, magic));
    V p = hn::Set(d, 0x1.b3de2bf109b9ep-24);
    p = FusedMulAdd(p, f, hn::Set(d, 0x1.63e6963436fcep-20));
    p = FusedMulAdd(p, f, hn::Set(d, 0x1.ffce2fc5e1b27p-17));
    p = FusedMulAdd(p, f, hn::Set(d, 0x1.430897f35dcb6p-13));
    p = FusedMulAdd(p, f, hn::Set(d, 0x1.5d87fd9387091p-10));
    p = FusedMulAdd(p, f, hn::Set(d, 0x1.3b2ab724120c2p-7));
    p = FusedMulAdd(p, f, hn::Set(d, 0x1.c6b08d70c8817p-5));
    p = FusedMulAdd(p, f, hn::Set(d, 0x1.ebfbdff81be06p-3));
    p = FusedMulAdd(p, f, hn::Set(d, 0x1.62e42fefa37d1p-1));
    p = FusedMulAdd(p, f, hn::Set(d, 1.0));
    const V e = hn::Mul(p, hn::BitCast(d, PowerOfTwoBits(d, biased)));
    return hn::IfThenZeroElse(hn::Lt(difference, hn::Set(d, -350.0)), e);
  }
  static HWY_INLINE V DifferenceLess(V x, V m, V log_s) { return hn::Sub(hn::Sub(x, m), log_s); }
};

struct Compensated {
  using Element = double;
  using Lane = double;
  using Backward = double;
  using D = hn::ScalableTag<double>;
  using V = hn::Vec<D>;
  using Block = Accumulators<D>;
  static constexpr D d{};
  static constexpr double kScale = 1;

  template <size_t Count>
  static HWY_INLINE void ScaledExps(V* x, V m) {
    Unroll<Count>([&](auto u) HWY_ATTR { x[u] = ScaledExp(x[u], m); });
  }
  static HWY_INLINE V ScaledExp(V x, V m) {
    V low;
    const V e = ExpNonPositive(d, Difference(d, x, m, low));
    return FusedMulAdd(e, low, e);
  }
  static HWY_INLINE V DifferenceLess(V x, V m, V log_s) {
    V low;
    const V high = Difference(d, x, m, low);
    return hn::Sub(high, hn::Sub(log_s, low));
  }
};

// ---------------------------------------------------------------------------------------------------------
// Tail state

/// A::ScaledExps, and e^(x - m) with subnormal results rounded as such.
template <class A>
struct Scaled {
  static constexpr typename A::Lane kScale = A::kScale;
  template <size_t Count, class V>
  HWY_INLINE void operator()(std::integral_constant<size_t, Count>, V* x, V m) const {
    A::template ScaledExps<Count>(x, m);
  }
};
template <class A>
struct Unscaled {
  static constexpr typename A::Lane kScale = 1;
  template <size_t Count, class V>
  HWY_INLINE void operator()(std::integral_constant<size_t, Count>, V* x, V m) const {
    A::template ScaledExps<Count>(x, m);
    if constexpr (A::kScale != 1)
      Unroll<Count>([&](auto u) HWY_ATTR { x[u] = hn::Mul(x[u], hn::Set(A::d, 1 / A::kScale)); });
  }
};
/// e^(x - m) for x <= m, with subnormal results rounded as such; NaN when x is.
template <class A>
HWY_INLINE hn::Vec<typename A::D> ExpOfDifference(hn::Vec<typename A::D> x, hn::Vec<typename A::D> m) {
  Unscaled<A>()(std::integral_constant<size_t, 1>(), &x, m);
  return x;
}

/// m = x_k the first maximum, r = sum over j != k of exp(x_j - m). Not regular: a NaN, a +inf, or no entry above -inf;
/// then the other fields mean nothing.
template <class A>
struct Tail {
  using Sum = typename A::Block::T;
  typename A::Element m{};
  size_t k = 0;
  Sum r{};
  bool regular = false;

  /// 1 / (scale (1 + r)) for a power of two: what turns scaled exponentials into probabilities.
  Sum Inverse(Sum scale) const { return Sum(1) / (Sum(1) + r) * (Sum(1) / scale); }
};

/// Whether the caller of a tail reads k.
enum class Index : std::uint8_t { wanted, unwanted };

/// Rows of lanes D up to this length are one block of a sum.
template <class D>
inline constexpr size_t kShort = kWidth<hn::TFromD<D>> * kFlush;

/// Asks for the cache lines that the passes after the exponentials touch: the row is summed at the speed of arithmetic,
/// which leaves the memory idle. Only hints, so that an address outside any array does no harm.
template <class T>
class Prefetcher {
 public:
  /// `written`: n elements that are stored after the sum, or null.
  HWY_INLINE Prefetcher(const T* x, size_t n, const T* written)
      // Rows mostly lie one after the other. A long one would evict itself before it is used.
      : next_(Address(n <= kLongest ? x + n : x)), written_(Address(written ? written : x)) {}
  /// The lines of one step of the sum.
  HWY_INLINE void operator()(size_t i) const {
    for (const std::uintptr_t base : {next_, written_})
      for (size_t line = 0; line < kWidth<T> * sizeof(T); line += 64)
        __builtin_prefetch(reinterpret_cast<const void*>(base + i * sizeof(T) + line));
  }

 private:
  static constexpr size_t kLongest = (std::size_t{1} << 20) / sizeof(T);
  static std::uintptr_t Address(const T* p) { return reinterpret_cast<std::uintptr_t>(p); }
  std::uintptr_t next_, written_;
};

/// The tail of a row whose maximum occurs once: it is recognized by its value, so that neither a search for it nor a step
/// of its own is needed. False if the maximum occurs more than once. A function of its own has the registers to itself.
template <class A, class Exp, class Exponentials>
HWY_NOINLINE bool ShortTail(Tail<A>& tail, const typename A::Element* x, size_t n, Exponentials e, Index index) {
  using Element = typename A::Element;
  using Block = typename A::Block;
  using V = hn::Vec<typename A::D>;
  constexpr size_t N = Block::N, kStep = kWidth<typename A::Lane>, kVectors = kStep / N;
  tail.m = Largest(x, 0, n);
  if (!(std::abs(tail.m) < kInfinity<Element>)) return true;
  const hn::RebindToSigned<typename A::D> counts;
  const V m = hn::Set(A::d, static_cast<typename A::Lane>(tail.m));
  auto negative_count = hn::Zero(counts);
  Block block;
  block.Clear();
  const auto take = [&](size_t i, auto at, V v, V exponential) SUMZERO_INLINE_LAMBDA {
    Store(at, A::d, exponential, e + i);
    const auto is_maximum = hn::Eq(v, m);
    negative_count = hn::Add(negative_count, hn::BitCast(counts, hn::VecFromMask(A::d, is_maximum)));
    return hn::IfThenZeroElse(is_maximum, exponential);
  };
  const auto load = [&](size_t i, auto at) SUMZERO_INLINE_LAMBDA { return Load(at, A::d, x + i, -kInfinity<Element>); };
  size_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    V terms[kVectors];
    Unroll<kVectors>([&](auto u) SUMZERO_INLINE_LAMBDA { terms[u] = load(i + u * N, Whole()); });
    Exp()(std::integral_constant<size_t, kVectors>(), terms, m);
    Unroll<kVectors>([&](auto u) SUMZERO_INLINE_LAMBDA {
      terms[u] = take(i + u * N, Whole(), load(i + u * N, Whole()), terms[u]);
    });
    block.AddStep(terms);
  }
  if (i < n) {
    V terms[kVectors];
    const auto term = [&](size_t j, auto at) SUMZERO_INLINE_LAMBDA {
      const V v = load(j, at);
      V exponential = v;
      Exp()(std::integral_constant<size_t, 1>(), &exponential, m);
      return take(j, at, v, exponential);
    };
    Unroll<kVectors>([&](auto u) HWY_ATTR {
      const size_t j = i + u * N;
      if (j + N <= n) terms[u] = term(j, Whole());
      else if (j < n) terms[u] = term(j, Partial{n - j});
      else terms[u] = hn::Zero(A::d);
    });
    block.AddStep(terms);
  }
  if (hn::GetLane(hn::SumOfLanes(counts, negative_count)) != -1) return false;
  if (index == Index::wanted) tail.k = FirstEqual(x, 0, n, tail.m);
  tail.r = block.Fold() * (1 / Exp::kScale);
  tail.regular = tail.r < kInfinity<typename Tail<A>::Sum>;
  return true;
}

template <class A, class Exp, class Exponentials>
HWY_INLINE Tail<A> TailWith(const typename A::Element* x, size_t n, Exponentials e, const typename A::Element* written,
                            Index index) {
  using Lane = typename A::Lane;
  using Element = typename A::Element;
  using V = hn::Vec<typename A::D>;
  if (n <= kShort<typename A::D>) {
    Tail<A> tail;
    if (ShortTail<A, Exp>(tail, x, n, e, index)) return tail;
  }
  const Peak<Element> peak = FirstMaximum(x, n);
  Tail<A> tail{peak.value, peak.index};
  if (!(std::abs(peak.value) < kInfinity<Element>)) return tail;
  const auto m = hn::Set(A::d, static_cast<Lane>(peak.value));
  const Prefetcher<Element> ahead(x, n, written);
  constexpr size_t N = A::Block::N, kVectors = kWidth<Lane> / N;
  const auto step = [&](size_t i, V* terms) SUMZERO_INLINE_LAMBDA {
    ahead(i);
    Unroll<kVectors>([&](auto u) SUMZERO_INLINE_LAMBDA { terms[u] = Load(Whole(), A::d, x + i + u * N, Element(0)); });
    Exp()(std::integral_constant<size_t, kVectors>(), terms, m);
    Unroll<kVectors>([&](auto u) SUMZERO_INLINE_LAMBDA { Store(Whole(), A::d, terms[u], e + (i + u * N)); });
  };
  const auto term = [&](size_t i, auto at) HWY_ATTR {
    V exponential = Load(at, A::d, x + i, -kInfinity<Element>);
    Exp()(std::integral_constant<size_t, 1>(), &exponential, m);
    Store(at, A::d, exponential, e + i);
    return exponential;
  };
  tail.r = SumExceptInto<typename A::Block>(A::d, n, peak.index, step, term);
  tail.r *= 1 / Exp::kScale;  // exact, a power of two
  // A NaN is never the maximum, so it is in the tail and makes r NaN.
  tail.regular = tail.r < kInfinity<typename Tail<A>::Sum>;
  return tail;
}

/// e takes A::kScale exp(x_j - m) of all n entries; NoStore{} when nobody wants them. `written`, a hint: n elements that
/// the caller stores next. tail.k means nothing unless wanted.
template <class A, class Exponentials>
HWY_INLINE Tail<A> ScaledTailOf(const typename A::Element* x, size_t n, Exponentials e,
                                const typename A::Element* written = nullptr, Index index = Index::wanted) {
  return TailWith<A, Scaled<A>>(x, n, e, written, index);
}
/// e takes exp(x_j - m).
template <class A, class Exponentials>
HWY_INLINE Tail<A> TailOf(const typename A::Element* x, size_t n, Exponentials e) {
  if constexpr (std::is_same_v<Exponentials, NoStore>) return ScaledTailOf<A>(x, n, e);
  else return TailWith<A, Unscaled<A>>(x, n, e, nullptr, Index::wanted);
}

/// log(1 + r), once per row.
template <class Lane>
HWY_INLINE Lane Log1pOf(Lane r) {
  const hn::ScalableTag<Lane> d;
  return hn::GetLane(Log1p(d, hn::Set(d, r)));
}

/// e^x for one x <= 0.
template <class Lane>
HWY_INLINE Lane ExpOf(Lane x) {
  const hn::ScalableTag<Lane> d;
  return hn::GetLane(ExpNonPositive(d, hn::Set(d, x)));
}

/// v where x is above -inf, +0 where it is -inf: dead entries.
template <class D, class T, class At>
HWY_INLINE hn::Vec<D> ZeroIfDead(At at, D d, const T* x, hn::Vec<D> v) {
  const auto dead = hn::Eq(Load(at, d, x, -kInfinity<T>), hn::Set(d, -kInfinity<hn::TFromD<D>>));
  return hn::IfThenZeroElse(dead, v);
}

// ---------------------------------------------------------------------------------------------------------
// Rows that are not regular

/// Exactly one kind holds. `index`: the first +inf entry.
struct RowClassification {
  enum class Kind : std::uint8_t { has_nan, one_infinity, several_infinities, empty } kind;
  size_t index;
};

template <class T>
RowClassification Classify(const T* x, size_t n) {
  size_t infinities = 0, index = n;
  for (size_t i = 0; i < n; ++i) {
    if (std::isnan(x[i])) return {RowClassification::Kind::has_nan, i};
    if (x[i] == kInfinity<T>) {
      if (infinities == 0) index = i;
      ++infinities;
    }
  }
  if (infinities == 0) return {RowClassification::Kind::empty, n};
  return {infinities == 1 ? RowClassification::Kind::one_infinity : RowClassification::Kind::several_infinities, index};
}

/// Fills an output if it is wanted.
template <class T>
void Fill(T* out, size_t n, std::type_identity_t<T> value) {
  if (out) std::fill_n(out, n, value);
}

}  // namespace sumzero::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // SUMZERO_FAST_CPU_ROW_INL_H_
