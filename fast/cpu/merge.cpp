// softmax.merge: (m1, r1) and (m2, r2) to (m1, r1 + (1 + r2) exp(m2 - m1)) for m1 >= m2, with gradients.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fast/cpu/merge.cpp"
#include "fast/math/simd.h"
// simd.h first: it chooses the targets.
#include "hwy/foreach_target.h"
#include "fast/cpu/state_row-inl.h"
#include "reference/operator.hpp"

HWY_BEFORE_NAMESPACE();
namespace sumzero::fast::HWY_NAMESPACE {

template <class A>
void MergeRow(const Row<typename A::Element>& row) {
  using Element = typename A::Element;
  using Lane = typename A::Lane;
  const auto in = [&](size_t i) { return row.in[i] ? *row.in[i] : Element(0); };
  const Element m1 = in(0), r1 = in(1), m2 = in(3), r2 = in(4), gm = in(6), gr = in(7);
  const bool empty1 = in(2) != 0, empty2 = in(5) != 0;
  const auto write = [&](Element m, Element r, bool empty, Element gm1, Element gr1, Element gm2, Element gr2) {
    const Element values[] = {m, r, Element(empty), gm1, gr1, gm2, gr2};
    for (size_t i = 0; i < std::size(values); ++i) Fill(row.out[i], 1, values[i]);
  };
  // The identity is a flag, not arithmetic: exp(-inf - (-inf)) is no number.
  if (empty1 && empty2) return write(-kInfinity<Element>, 0, true, 0, 0, 0, 0);
  if (empty2) return write(m1, r1, false, gm, gr, 0, 0);
  if (empty1) return write(m2, r2, false, 0, 0, gm, gr);
  if (!std::isfinite(m1) || !std::isfinite(m2) || !std::isfinite(r1) || !std::isfinite(r2)) {
    const Element nan = std::numeric_limits<Element>::quiet_NaN();
    return write(std::isnan(m1) || std::isnan(m2) ? nan : std::max(m1, m2), nan, false, nan, nan, nan, nan);
  }
  const bool first = m1 >= m2;
  const Lane upstream = static_cast<Lane>(gr);
  const auto [moved, w] = MoveTail<A>(static_cast<Lane>(first ? m1 : m2), static_cast<Lane>(first ? m2 : m1),
                                      static_cast<Lane>(first ? r2 : r1));
  const auto r = static_cast<Element>(static_cast<Lane>(first ? r1 : r2) + moved);
  const auto of_larger = static_cast<Element>(static_cast<Lane>(gm) - upstream * moved);
  const auto of_smaller = static_cast<Element>(upstream * moved), of_tail = static_cast<Element>(upstream * w);
  if (first) write(m1, r, false, of_larger, gr, of_smaller, of_tail);
  else write(m2, r, false, of_smaller, of_tail, of_larger, gr);
}

void MergeWide(const Row<float>& row) { MergeRow<Wide<float>>(row); }
void MergeCompensated(const Row<double>& row) { MergeRow<Compensated>(row); }
void MergePlainF32(const Row<float>& row) { MergeRow<Plain<float>>(row); }
void MergePlainF64(const Row<double>& row) { MergeRow<Plain<double>>(row); }

}  // namespace sumzero::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "fast/cpu/row_contract.hpp"

namespace sumzero::fast {
namespace {

HWY_EXPORT(MergeWide);
HWY_EXPORT(MergeCompensated);
HWY_EXPORT(MergePlainF32);
HWY_EXPORT(MergePlainF64);

/// f32, bf16, f16: double arithmetic, so T1-merge holds with u = 2^-53 and every output is the exact one rounded. f64:
/// compensated shift, r within u r + (c_e + 3) u moved with moved = (1 + r2) exp(m2 - m1), c_e = 3.01. m is exact.
/// An operand whose flag is set is the identity: the other one and its gradients pass bit for bit. A non-finite operand
/// gives r = NaN and NaN gradients. At m1 = m2 the first operand counts as the larger. Bitwise deterministic, the same
/// on every target.
static const Registered accurate{
    RowKernel{.op = "softmax.merge",
              .name = "fast",
              .summary = "merge of two states in double, compensated for f64 (T1-merge)",
              .f32 = [](const Row<float>& row) { HWY_DYNAMIC_DISPATCH(MergeWide)(row); },
              .f64 = [](const Row<double>& row) { HWY_DYNAMIC_DISPATCH(MergeCompensated)(row); },
              .contract_f32 = wide_contract(),
              .contract_f64 = compensated_contract(Format::f64)}};

/// Arithmetic of the row's type: r within u r + (|m1 - m2| + c_e + 3) u moved (T1-merge), c_e <= 2. m is exact. Special
/// values and determinism as `fast`.
static const Registered plain{
    RowKernel{.op = "softmax.merge",
              .name = "fast.plain",
              .summary = "merge of two states in the row's arithmetic (T1-merge)",
              .f32 = [](const Row<float>& row) { HWY_DYNAMIC_DISPATCH(MergePlainF32)(row); },
              .f64 = [](const Row<double>& row) { HWY_DYNAMIC_DISPATCH(MergePlainF64)(row); },
              .contract_f32 = plain_contract(Format::f32),
              .contract_f64 = plain_contract(Format::f64)}};

}  // namespace
}  // namespace sumzero::fast

#endif  // HWY_ONCE
