// Softmax of a regular row with its VJP, shared by the operators that return probabilities.

#if defined(SUMZERO_FAST_CPU_SOFTMAX_VJP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SUMZERO_FAST_CPU_SOFTMAX_VJP_INL_H_
#undef SUMZERO_FAST_CPU_SOFTMAX_VJP_INL_H_
#else
#define SUMZERO_FAST_CPU_SOFTMAX_VJP_INL_H_
#endif

#include "fast/cpu/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sumzero::fast::HWY_NAMESPACE {

/// sink(i, at, gradient) for every vector of gx_j = p_j (c_j - q), c_j = g_j - g_k, in lanes of A::Backward; p_j is
/// e_j times `inverse`, dead entries give +0. With c_k = 0 exactly, the component at the maximum is -p_k q without
/// cancellation.
template <class A, class Exponentials, class Upstream, class Sink>
HWY_INLINE void SoftmaxVjp(const typename A::Element* x, size_t n, const Tail<A>& tail, const Exponentials* e,
                           typename A::Backward inverse, const Upstream* g, Sink sink) {
  using Lane = typename A::Backward;
  const hn::ScalableTag<Lane> d;
  const auto inverses = hn::Set(d, inverse);
  const auto g_k = hn::Set(d, static_cast<Lane>(g[tail.k]));
  const auto p = [&](size_t i, auto at) HWY_ATTR { return hn::Mul(Load(at, d, e + i, 0), inverses); };
  // Lanes beyond the row have p = 0 and c = 0.
  const auto c = [&](size_t i, auto at) HWY_ATTR { return hn::Sub(Load(at, d, g + i, g[tail.k]), g_k); };
  const auto q = hn::Set(
      d, SumExcept(d, n, tail.k, [&](size_t i, auto at) HWY_ATTR { return hn::Mul(p(i, at), c(i, at)); }));
  ForEach(d, n, [&](size_t i, auto at) HWY_ATTR {
    sink(i, at, ZeroIfDead(at, d, x + i, hn::Mul(p(i, at), hn::Sub(c(i, at), q))));
  });
}

/// Writes p if wanted, and gx if wanted (zeros when g is null). False for an irregular row, whose outputs are then
/// unspecified.
template <class A>
HWY_INLINE bool SoftmaxWithVjp(const typename A::Element* x, size_t n, typename A::Element* p,
                               const typename A::Element* g, typename A::Element* gx) {
  using Element = typename A::Element;
  using Lane = typename A::Lane;
  const bool backward = gx && g;
  Lane* e = nullptr;
  // Without a backward that reads them again, exponentials may live in p until they are scaled.
  if constexpr (std::is_same_v<Element, Lane>) e = p && !backward ? p : scratch<Lane, 0>(n);
  else e = scratch<Lane, 0>(n);
  const Tail<A> tail = ScaledTailOf<A>(x, n, e, nullptr, backward ? Index::wanted : Index::unwanted);
  if (!tail.regular) return false;
  const auto inverse = tail.Inverse(A::kScale);
  if (p) {
    const auto inverses = hn::Set(A::d, static_cast<Lane>(inverse));
    ForEach(A::d, n, [&](size_t i, auto at) HWY_ATTR {
      Store(at, A::d, hn::Mul(Load(at, A::d, e + i, 0), inverses), p + i);
    });
  }
  if (!backward) {
    Fill(gx, n, 0);
    return true;
  }
  const hn::ScalableTag<typename A::Backward> d;
  SoftmaxVjp<A>(x, n, tail, e, inverse, g, [&](size_t i, auto at, auto v) HWY_ATTR { Store(at, d, v, gx + i); });
  return true;
}

/// What an irregular row gives: `value` everywhere, and p = 1 at `index` if one_hot. `attribute` points at inf_policy,
/// which masked_policy follows.
struct Irregular {
  float value;
  bool one_hot;
  size_t index;
};
inline Irregular IrregularSoftmax(const RowClassification& row, const double* attribute) {
  using Kind = RowClassification::Kind;
  const bool one_hot = row.kind == Kind::one_infinity && attribute[0] != 0;
  const bool zeros = row.kind == Kind::empty && attribute[1] != 0;
  return {one_hot || zeros ? 0.0f : std::numeric_limits<float>::quiet_NaN(), one_hot, row.index};
}

}  // namespace sumzero::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // SUMZERO_FAST_CPU_SOFTMAX_VJP_INL_H_
