// Multiply-add with one rounding on every target, and the two comparisons that treat NaN alike on every
// target.

#if defined(SUMZERO_FAST_MATH_FUSED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SUMZERO_FAST_MATH_FUSED_INL_H_
#undef SUMZERO_FAST_MATH_FUSED_INL_H_
#else
#define SUMZERO_FAST_MATH_FUSED_INL_H_
#endif

#include "fast/math/simd.h"
// simd.h first: it chooses the targets.
#include <cmath>
#include <concepts>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sumzero::fast::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

static_assert(HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SCALAR,
              "this target does not fuse multiply-add: include fast/math/simd.h before every Highway header");

#if HWY_TARGET == HWY_SCALAR

// a * b + c, rounded once. Highway's own scalar MulAdd rounds twice.
template <class V>
HWY_INLINE V FusedMulAdd(V a, V b, V c) {
  return V(std::fma(a.raw, b.raw, c.raw));
}

// c - a * b, rounded once. A NaN a keeps its sign, as in the x86 instruction.
template <class V>
HWY_INLINE V NegFusedMulAdd(V a, V b, V c) {
  return V(std::isnan(a.raw) ? a.raw + a.raw : std::fma(-a.raw, b.raw, c.raw));
}

// a > b ? a : b, hence b when either is NaN, as the x86 instruction does. Highway's scalar Max differs.
template <class V>
HWY_INLINE V MaxOrSecond(V a, V b) {
  return a.raw > b.raw ? a : b;
}

// a < b ? a : b, hence b when either is NaN.
template <class V>
HWY_INLINE V MinOrSecond(V a, V b) {
  return a.raw < b.raw ? a : b;
}

#else

template <class V>
HWY_INLINE V FusedMulAdd(V a, V b, V c) {
  return hn::MulAdd(a, b, c);
}

template <class V>
HWY_INLINE V NegFusedMulAdd(V a, V b, V c) {
  return hn::NegMulAdd(a, b, c);
}

template <class V>
HWY_INLINE V MaxOrSecond(V a, V b) {
  return hn::Max(a, b);
}

template <class V>
HWY_INLINE V MinOrSecond(V a, V b) {
  return hn::Min(a, b);
}

#endif

}  // namespace sumzero::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // SUMZERO_FAST_MATH_FUSED_INL_H_
