// C += A B with small blocks of C in registers: the inner loop of attention.
//
// Lanes run over the columns of C, so every entry is one chain of fused multiply-adds over k in order: the same bits on every
// instruction set, whatever block an entry falls into.

#if defined(SUMZERO_FAST_CPU_MULTIPLY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SUMZERO_FAST_CPU_MULTIPLY_INL_H_
#undef SUMZERO_FAST_CPU_MULTIPLY_INL_H_
#else
#define SUMZERO_FAST_CPU_MULTIPLY_INL_H_
#endif

#include "fast/cpu/row-inl.h"
// row-inl.h first: it chooses the targets.
#include <cstddef>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace sumzero::fast::HWY_NAMESPACE {

/// Rows of B and C are padded to whole cache lines.
template <class E>
constexpr size_t Columns(size_t n) {
  constexpr size_t line = 64 / sizeof(E);
  return (n + line - 1) / line * line;
}

/// Entry (i, k) lies at first[i * row + k * column]: a matrix or its transpose.
template <class E>
struct Strided {
  const E* first;
  size_t row, column;
};
/// Rows aligned to cache lines, `step` elements apart.
template <class E>
struct Padded2d {
  E* first;
  size_t step;
};

enum class Start : std::uint8_t { zero, current };  // what the chains of an entry begin with

// Accumulators that fit the registers: 16, or 32 with AVX-512.
inline constexpr size_t kBlockRows = HWY_TARGET == HWY_SCALAR ? 2 : 6;
inline constexpr size_t kBlockVectors = HWY_TARGET == HWY_AVX3 ? 4 : 2;

template <size_t Rows, size_t Vectors, Start start, class E>
HWY_INLINE void MultiplyBlock(Strided<E> a, const E* b, size_t b_step, size_t depth, E* c, size_t c_step) {
  const hn::ScalableTag<E> d;
  using V = hn::Vec<decltype(d)>;
  constexpr size_t N = hn::MaxLanes(d);
  V sum[Rows][Vectors];
  Unroll<Rows>([&](auto i) SUMZERO_INLINE_LAMBDA {
    Unroll<Vectors>([&](auto u) SUMZERO_INLINE_LAMBDA {
      sum[i][u] = start == Start::zero ? hn::Zero(d) : hn::Load(d, c + i * c_step + u * N);
    });
  });
  for (size_t k = 0; k < depth; ++k, b += b_step, a.first += a.column) {
    V factor[Vectors];
    Unroll<Vectors>([&](auto u) SUMZERO_INLINE_LAMBDA { factor[u] = hn::Load(d, b + u * N); });
    Unroll<Rows>([&](auto i) SUMZERO_INLINE_LAMBDA {
      const V entry = hn::Set(d, a.first[i * a.row]);
      Unroll<Vectors>([&](auto u) SUMZERO_INLINE_LAMBDA { sum[i][u] = FusedMulAdd(entry, factor[u], sum[i][u]); });
    });
  }
  Unroll<Rows>([&](auto i) SUMZERO_INLINE_LAMBDA {
    Unroll<Vectors>([&](auto u) SUMZERO_INLINE_LAMBDA { hn::Store(sum[i][u], d, c + i * c_step + u * N); });
  });
}

template <size_t Vectors, Start start, class E>
HWY_INLINE void MultiplyColumns(size_t rows, Strided<E> a, const E* b, size_t b_step, size_t depth, E* c, size_t c_step) {
  size_t i = 0;
  for (; i + kBlockRows <= rows; i += kBlockRows)
    MultiplyBlock<kBlockRows, Vectors, start>({a.first + i * a.row, a.row, a.column}, b, b_step, depth, c + i * c_step, c_step);
  const auto rest = [&](auto few) HWY_ATTR {
    if (rows - i == few) MultiplyBlock<few, Vectors, start>({a.first + i * a.row, a.row, a.column}, b, b_step, depth, c + i * c_step, c_step);
  };
  if constexpr (kBlockRows > 2) rest(std::integral_constant<size_t, 5>()), rest(std::integral_constant<size_t, 4>()), rest(std::integral_constant<size_t, 3>()), rest(std::integral_constant<size_t, 2>());
  rest(std::integral_constant<size_t, 1>());
}

/// C [rows, columns] = or += A [rows, depth] B [depth, columns]; columns are rounded up to whole cache lines.
template <Start start, class E>
HWY_NOINLINE void Multiply(size_t rows, size_t columns, size_t depth, Strided<E> a, Padded2d<const E> b, Padded2d<E> c) {
  constexpr size_t N = hn::MaxLanes(hn::ScalableTag<E>());
  const size_t end = Columns<E>(columns);
  size_t j = 0;
  for (; j + kBlockVectors * N <= end; j += kBlockVectors * N)
    MultiplyColumns<kBlockVectors, start>(rows, a, b.first + j, b.step, depth, c.first + j, c.step);
  for (; j < end; j += N) MultiplyColumns<1, start>(rows, a, b.first + j, b.step, depth, c.first + j, c.step);
}

}  // namespace sumzero::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // SUMZERO_FAST_CPU_MULTIPLY_INL_H_
