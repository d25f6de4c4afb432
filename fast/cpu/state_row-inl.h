// What softmax.state and softmax.online share: the gradient of a state, irregular rows, and merging two states.

#if defined(SUMZERO_FAST_CPU_STATE_ROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SUMZERO_FAST_CPU_STATE_ROW_INL_H_
#undef SUMZERO_FAST_CPU_STATE_ROW_INL_H_
#else
#define SUMZERO_FAST_CPU_STATE_ROW_INL_H_
#endif

#include "fast/cpu/row-inl.h"
#include "reference/operator.hpp"

HWY_BEFORE_NAMESPACE();
namespace sumzero::fast::HWY_NAMESPACE {

/// What a merge of (m1, r1) and (m2, r2), m1 >= m2, adds to r1: moved = (1 + r2) w, w = exp(m2 - m1).
template <class A>
struct Moved {
  typename A::Lane moved, w;
};
template <class A>
HWY_INLINE Moved<A> MoveTail(typename A::Lane m1, typename A::Lane m2, typename A::Lane r2) {
  using Lane = typename A::Lane;
  const auto exponential = [](Lane x, Lane m) HWY_ATTR {
    return hn::GetLane(ExpOfDifference<A>(hn::Set(A::d, x), hn::Set(A::d, m)));
  };
  constexpr Lane kNearUnderflow = std::is_same_v<Lane, float> ? Lane(-80) : Lane(-690);
  if (m2 - m1 < kNearUnderflow) {
    // w alone may be subnormal where a large r2 makes the product normal. The second half's error is far below what the
    // rounded shift may cost at such a gap.
    const Lane half = exponential(m2 / 2, m1 / 2);
    return {(Lane(1) + r2) * half * half, half * half};
  }
  const Lane w = exponential(m2, m1);
  return {(Lane(1) + r2) * w, w};
}

/// m, r, the flag and gx_j = gr e_j, gx_k = gm - gr r of a row whose tail `reduce(x, n)` finds.
template <class A, class Reduce>
HWY_INLINE void StateRow(const Row<typename A::Element>& row, Reduce reduce) {
  using Element = typename A::Element;
  using Lane = typename A::Lane;
  using Kind = RowClassification::Kind;
  const Element *x = row.in[0], *gm = row.in[1], *gr = row.in[2];
  Element* gx = row.out[3];
  const Tail<A> tail = reduce(x, row.n);
  if (!tail.regular) {
    const Kind kind = Classify(x, row.n).kind;
    const bool empty = kind == Kind::empty;
    const Element nan = std::numeric_limits<Element>::quiet_NaN();
    Fill(row.out[0], 1, empty ? -kInfinity<Element> : kind == Kind::has_nan ? nan : kInfinity<Element>);
    Fill(row.out[1], 1, empty ? Element(0) : nan);
    Fill(row.out[2], 1, empty);
    return Fill(gx, row.n, empty ? Element(0) : nan);
  }
  Fill(row.out[0], 1, tail.m);
  Fill(row.out[1], 1, static_cast<Element>(tail.r));
  Fill(row.out[2], 1, 0);
  if (!gx) return;
  const Lane of_m = gm ? static_cast<Lane>(*gm) : Lane(0), of_r = gr ? static_cast<Lane>(*gr) : Lane(0);
  const auto m = hn::Set(A::d, static_cast<Lane>(tail.m)), upstream = hn::Set(A::d, of_r);
  ForEach(A::d, row.n, [&](size_t i, auto at) HWY_ATTR {
    const auto e = ExpOfDifference<A>(Load(at, A::d, x + i, -kInfinity<Element>), m);
    Store(at, A::d, ZeroIfDead(at, A::d, x + i, hn::Mul(upstream, e)), gx + i);
  });
  gx[tail.k] = static_cast<Element>(of_m - of_r * tail.r);
}

}  // namespace sumzero::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // SUMZERO_FAST_CPU_STATE_ROW_INL_H_
