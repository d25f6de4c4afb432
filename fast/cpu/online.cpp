// softmax.online: the state (m, r) of a row from one pass over its elements. Chunks that stay in the first-level cache
// are reduced to states, which are merged pairwise: one rescaling a chunk and level, none per element.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fast/cpu/online.cpp"
#include "fast/math/simd.h"
// simd.h first: it chooses the targets.
#include "hwy/foreach_target.h"
#include "fast/cpu/state_row-inl.h"
#include "reference/operator.hpp"

HWY_BEFORE_NAMESPACE();
namespace sumzero::fast::HWY_NAMESPACE {

/// Elements of a chunk: one block of the reduction tree, so that the merges are the upper levels of the same tree.
template <class Lane>
inline constexpr size_t kChunk = kWidth<Lane> * kFlush;

template <class A>
Tail<A> MergeStates(const Tail<A>& a, const Tail<A>& b) {
  using Lane = typename A::Lane;
  const bool first = a.m >= b.m;  // a comes before b: ties keep the first index
  const Tail<A>&larger = first ? a : b, &smaller = first ? b : a;
  const Lane moved = MoveTail<A>(static_cast<Lane>(larger.m), static_cast<Lane>(smaller.m), smaller.r).moved;
  return {larger.m, larger.k, larger.r + moved, larger.regular && smaller.regular};
}

/// Partial states by level: level L holds the merge of 2^L consecutive chunks that have a live entry.
template <class A>
Tail<A> OnlineTail(const typename A::Element* x, size_t n) {
  using Lane = typename A::Lane;
  using Element = typename A::Element;
  Tail<A> level[64];
  size_t chunks = 0;
  for (size_t begin = 0; begin < n; begin += kChunk<Lane>) {
    const size_t count = std::min(kChunk<Lane>, n - begin);
    Tail<A> state = TailOf<A>(x + begin, count, NoStore());
    if (!state.regular) {
      const bool dead = std::all_of(x + begin, x + begin + count, [](Element v) { return v == -kInfinity<Element>; });
      if (!dead) return state;
      continue;
    }
    state.k += begin;
    size_t l = 0;
    for (; chunks >> l & 1; ++l) state = MergeStates(level[l], state);
    level[l] = state;
    ++chunks;
  }
  Tail<A> total;
  bool started = false;
  for (size_t l = 0; chunks >> l != 0; ++l) {
    if (!(chunks >> l & 1)) continue;
    total = started ? MergeStates(level[l], total) : level[l];
    started = true;
  }
  return total;
}

template <class A>
void OnlineRow(const Row<typename A::Element>& row) {
  StateRow<A>(row, [](const typename A::Element* x, size_t n) HWY_ATTR { return OnlineTail<A>(x, n); });
}

void OnlineWide(const Row<float>& row) { OnlineRow<Wide<float>>(row); }
void OnlineCompensated(const Row<double>& row) { OnlineRow<Compensated>(row); }
void OnlinePlainF32(const Row<float>& row) { OnlineRow<Plain<float>>(row); }
void OnlinePlainF64(const Row<double>& row) { OnlineRow<Plain<double>>(row); }

}  // namespace sumzero::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "fast/cpu/row_contract.hpp"

namespace sumzero::fast {
namespace {

HWY_EXPORT(OnlineWide);
HWY_EXPORT(OnlineCompensated);
HWY_EXPORT(OnlinePlainF32);
HWY_EXPORT(OnlinePlainF64);

/// f32, bf16, f16: double lanes, so T1-online holds with u = 2^-53 and r is the exact tail rounded. f64: compensated
/// shift in chunks and merges, r within ((h + 1)(c_e + 3) + ln((n-1)/r)) u relative, c_e = 3.01,
/// h <= 20 + log2(n / 256) of which log2(n / 256) levels rescale. m is exact.
/// All finite inputs, any n. Only -inf: the identity, empty = 1, m = -inf, r = 0, gradient +0. NaN: m, r and gradient
/// NaN; +inf: m = +inf, r and gradient NaN. -inf among others: gradient +0. Bitwise deterministic, the same on every
/// target.
static const Registered accurate{
    RowKernel{.op = "softmax.online",
              .name = "fast",
              .summary = "one-pass state (m, r) in double, compensated for f64 (T1-online)",
              .f32 = [](const Row<float>& row) { HWY_DYNAMIC_DISPATCH(OnlineWide)(row); },
              .f64 = [](const Row<double>& row) { HWY_DYNAMIC_DISPATCH(OnlineCompensated)(row); },
              .contract_f32 = wide_contract(),
              .contract_f64 = compensated_contract(Format::f64)}};

/// Arithmetic of the row's type: r within ((h + 1)(c_e + 3) + ln((n-1)/r)) u relative (T1-online), c_e <= 2,
/// h <= 21 + log2(n / 512) for float and 20 + log2(n / 256) for double. m is exact. Special values and determinism as
/// `fast`.
static const Registered plain{
    RowKernel{.op = "softmax.online",
              .name = "fast.plain",
              .summary = "one-pass state (m, r) in the row's arithmetic (T1-online)",
              .f32 = [](const Row<float>& row) { HWY_DYNAMIC_DISPATCH(OnlinePlainF32)(row); },
              .f64 = [](const Row<double>& row) { HWY_DYNAMIC_DISPATCH(OnlinePlainF64)(row); },
              .contract_f32 = plain_contract(Format::f32),
              .contract_f64 = plain_contract(Format::f64)}};

}  // namespace
}  // namespace sumzero::fast

#endif  // HWY_ONCE
