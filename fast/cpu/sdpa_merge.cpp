// sdpa.merge: partial attention results (o1, L1) and (o2, L2) to w1 o1 + w2 o2 and L = logaddexp(L1, L2), with gradients. The
// weights are 1 / (1 + e) and e / (1 + e) with e = exp(-|L1 - L2|), never e^(L_i - L) from a rounded L.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fast/cpu/sdpa_merge.cpp"
#include "fast/math/simd.h"
// simd.h first: it chooses the targets.
#include "hwy/foreach_target.h"
#include "fast/cpu/row-inl.h"
#include "reference/operator.hpp"

HWY_BEFORE_NAMESPACE();
namespace sumzero::fast::HWY_NAMESPACE {

/// out_c = factor x_c; zeros where there is no x.
template <class A, class T>
HWY_INLINE void ScaleRow(const T* x, size_t n, typename A::Lane factor, T* out) {
  if (!out) return;
  if (!x) return Fill(out, n, 0);
  const auto scale = hn::Set(A::d, factor);
  ForEach(A::d, n, [&](size_t i, auto at) HWY_ATTR { Store(at, A::d, hn::Mul(scale, Load(at, A::d, x + i, T(0))), out + i); });
}

template <class A>
void SdpaMergeRow(const Row<typename A::Element>& row) {
  using T = typename A::Element;
  using Lane = typename A::Lane;
  const size_t n = row.n;
  const T *o1 = row.in[0], *o2 = row.in[2], *go = row.in[4];
  const T l1 = *row.in[1], l2 = *row.in[3], gl = row.in[5] ? *row.in[5] : T(0);
  if (l1 == -kInfinity<T> && l2 == -kInfinity<T>) {
    for (const size_t output : {0, 2, 4}) Fill(row.out[output], n, 0);
    Fill(row.out[1], 1, -kInfinity<T>);
    for (const size_t output : {3, 5}) Fill(row.out[output], 1, 0);
    return;
  }
  // An empty part is at an infinite distance: its weight is 0 and the other one 1, exactly.
  const bool first = l1 >= l2;
  const auto larger = hn::Set(A::d, static_cast<Lane>(first ? l1 : l2)), smaller = hn::Set(A::d, static_cast<Lane>(first ? l2 : l1));
  const Lane ratio = l1 == -kInfinity<T> || l2 == -kInfinity<T> ? Lane(0) : hn::GetLane(ExpOfDifference<A>(smaller, larger));
  const Lane w_large = 1 / (1 + ratio), w_small = ratio / (1 + ratio), w1 = first ? w_large : w_small, w2 = first ? w_small : w_large;
  if (row.out[1]) *row.out[1] = static_cast<T>(hn::GetLane(larger) + Log1pOf(ratio));
  if (row.out[0]) {
    const auto first_weight = hn::Set(A::d, w1), second_weight = hn::Set(A::d, w2);
    ForEach(A::d, n, [&](size_t i, auto at) HWY_ATTR {
      const auto part1 = hn::Mul(first_weight, Load(at, A::d, o1 + i, T(0))), part2 = hn::Mul(second_weight, Load(at, A::d, o2 + i, T(0)));
      Store(at, A::d, hn::Add(part1, part2), row.out[0] + i);
    });
  }
  ScaleRow<A>(go, n, w1, row.out[2]);
  ScaleRow<A>(go, n, w2, row.out[4]);
  if (!row.out[3] && !row.out[5]) return;
  // o_1 - o = w_2 (o_1 - o_2), so a pair of equal outputs gives exactly no gradient through the weights.
  const Lane pull = !go ? Lane(0) : Sum(A::d, n, [&](size_t i, auto at) HWY_ATTR {
    const auto difference = hn::Sub(Load(at, A::d, o1 + i, T(0)), Load(at, A::d, o2 + i, T(0)));
    return hn::Mul(Load(at, A::d, go + i, T(0)), difference);
  });
  Fill(row.out[3], 1, static_cast<T>(w1 * (static_cast<Lane>(gl) + w2 * pull)));
  Fill(row.out[5], 1, static_cast<T>(w2 * (static_cast<Lane>(gl) - w1 * pull)));
}

void SdpaMergeWide(const Row<float>& row) { SdpaMergeRow<Wide<float>>(row); }
void SdpaMergeCompensated(const Row<double>& row) { SdpaMergeRow<Compensated>(row); }
void SdpaMergePlainF32(const Row<float>& row) { SdpaMergeRow<Plain<float>>(row); }
void SdpaMergePlainF64(const Row<double>& row) { SdpaMergeRow<Plain<double>>(row); }

}  // namespace sumzero::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "fast/cpu/row_contract.hpp"

namespace sumzero::fast {
namespace {

HWY_EXPORT(SdpaMergeWide);
HWY_EXPORT(SdpaMergeCompensated);
HWY_EXPORT(SdpaMergePlainF32);
HWY_EXPORT(SdpaMergePlainF64);

/// f32 and narrower: double arithmetic, one rounding to float. f64: L1 - L2 as a pair, weights within (c_e + 4) u, c_e = 3.01.
/// A part with L = -inf has weight 0, and the other one passes unchanged; both: o = 0, L = -inf, zero gradients. Outputs must
/// be finite, L finite or -inf. Bitwise deterministic, the same on every target.
static const Registered accurate{
    RowKernel{.op = "sdpa.merge",
              .name = "fast",
              .summary = "merge of partial attention in double, compensated for f64 (L-merge)",
              .f32 = [](const Row<float>& row) { HWY_DYNAMIC_DISPATCH(SdpaMergeWide)(row); },
              .f64 = [](const Row<double>& row) { HWY_DYNAMIC_DISPATCH(SdpaMergeCompensated)(row); },
              .contract_f32 = wide_contract(),
              .contract_f64 = compensated_contract(Format::f64)}};

/// Arithmetic of the row's type: weights within (|L1 - L2| + c_e + 4) u, c_e <= 2. Special values and determinism as `fast`.
static const Registered plain{
    RowKernel{.op = "sdpa.merge",
              .name = "fast.plain",
              .summary = "merge of partial attention in the row's arithmetic (L-merge)",
              .f32 = [](const Row<float>& row) { HWY_DYNAMIC_DISPATCH(SdpaMergePlainF32)(row); },
              .f64 = [](const Row<double>& row) { HWY_DYNAMIC_DISPATCH(SdpaMergePlainF64)(row); },
              .contract_f32 = plain_contract(Format::f32),
              .contract_f64 = plain_contract(Format::f64)}};

}  // namespace
}  // namespace sumzero::fast

#endif  // HWY_ONCE
