// Mutants of softmax. Planted elsewhere, not repeated here: the maximum summed first and g - sum p g (kernels `textbook.*`),
// strides ignored (RowKernels in row_kernel_test), writes out of bounds, outputs never written, inputs changed
// (GuardedRun), results that depend on threads, on the call or on the batch (Properties.EachPlantedKernelIsCaught).
#include <algorithm>

#include "tests/mutants/tail_first.hpp"

namespace sumzero::mutants {
namespace {

struct HalfAccumulator {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    auto tail = tail_first(row);
    if constexpr (planted) {
      tail.r = tail.m - tail.m;
      for (std::size_t j = 0; j < row.n; ++j)
        if (j != tail.k) tail.r = rounded(row.storage, tail.r + tail.e[j]);
    }
    write_softmax(row, tail);
  }
};
const Catalogued half_accumulator{in_row<HalfAccumulator>("softmax", "half accumulator", "candle 3727, tract 2586", "probability sum", half_formats)};

/// The last n mod 4 terms are left out of the sum, as by a vector loop without a remainder.
struct RemainderLost {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    auto tail = tail_first(row);
    if constexpr (planted)
      for (std::size_t j = row.n / 4 * 4; j < row.n; ++j)
        if (j != tail.k) tail.r -= tail.e[j];
    write_softmax(row, tail);
  }
};
const Catalogued remainder_lost{in_row<RemainderLost>("softmax", "remainder lanes lost", "NNPACK 174, Megatron-LM 132", "probability sum")};

/// Lanes beyond the row hold logits 0 instead of -inf.
struct PadsCounted {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    auto tail = tail_first(row);
    if constexpr (planted)
      for (std::size_t j = row.n; j % 8 != 0; ++j) tail.r += std::exp(std::min(-tail.m, T(0)));
    write_softmax(row, tail);
  }
};
const Catalogued pads_counted{in_row<PadsCounted>("softmax", "padding counted", "Megatron-LM 132, sycl-tla 813", "probability sum")};

/// A maximum that drops NaN, and a sum that skips its index.
struct NanDropped {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    auto tail = tail_first(row);
    if constexpr (planted) {
      if (std::isnan(tail.m)) {
        std::vector<T> clean(row.in[0], row.in[0] + row.n);
        std::replace_if(clean.begin(), clean.end(), [](T v) { return std::isnan(v); }, -std::numeric_limits<T>::max());
        tail = tail_first(clean.data(), row.n);
      }
    }
    write_softmax(row, tail);
  }
};
const Catalogued nan_dropped{in_row<NanDropped>("softmax", "NaN dropped", "tt-metal 56056, oneflow 10469", "special values")};

/// The maximum of whole vectors only.
struct MaximumWithoutRemainder {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    auto tail = tail_first(row);
    if constexpr (planted) {
      const std::size_t whole = std::max<std::size_t>(1, row.n / 8 * 8);
      tail.k = textbook::first_maximum(row.in[0], whole);
      tail.m = row.in[0][tail.k];
      tail.r = tail.m - tail.m;
      for (std::size_t j = 0; j < row.n; ++j) {
        tail.e[j] = std::exp(row.in[0][j] - tail.m);
        if (j != tail.k) tail.r += tail.e[j];
      }
    }
    write_softmax(row, tail);
  }
};
const Catalogued maximum_without_remainder{in_row<MaximumWithoutRemainder>("softmax", "maximum of whole vectors", "a shift that is no maximum", "special values")};

struct NoShift {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    auto tail = tail_first(row);
    if constexpr (planted) {
      T s = 0;
      for (std::size_t j = 0; j < row.n; ++j) s += tail.e[j] = std::exp(row.in[0][j]);
      tail.r = s - 1;
    }
    write_softmax(row, tail);
  }
};
const Catalogued no_shift{in_row<NoShift>("softmax", "no maximum subtracted", "overflow of a bare exponential", "special values")};

/// One of two equal maxima is lost: the tail takes every x_j != m and forgets count - 1.
struct TieLost {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    auto tail = tail_first(row);
    if constexpr (planted)
      for (std::size_t j = 0; j < row.n; ++j)
        if (j != tail.k && row.in[0][j] == tail.m) tail.r -= 1;
    write_softmax(row, tail);
  }
};
const Catalogued tie_lost{in_row<TieLost>("softmax", "tied maximum lost", "tail by value without its count", "probability sum")};

/// Within the bound of a coarse exponential, which both promise, but not in the order of the arguments.
struct NonMonotone {
  static void adjust(Contract& claim) { claim.exp_error = 64; }
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    auto tail = tail_first(row);
    if constexpr (planted)
      for (std::size_t j = 0; j < row.n; ++j)
        if (j != tail.k && std::fmod(std::floor((tail.m - row.in[0][j]) * 64), T(2)) == 0)
          tail.e[j] *= 1 - 32 * std::numeric_limits<T>::epsilon();
    write_softmax(row, tail);
  }
};
const Catalogued non_monotone{in_row<NonMonotone>("softmax", "non-monotone exponential", "approximate exp2 of GPUs", "monotone", {Format::f32, Format::f64})};

struct FlushToZero {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    auto tail = tail_first(row);
    if constexpr (planted)
      for (T& e : tail.e)
        if (e < std::numeric_limits<T>::min()) e = 0;
    write_softmax(row, tail);
  }
};
const Catalogued flush_to_zero{in_row<FlushToZero>("softmax", "subnormals flushed", "FTZ that the contract does not admit", "bound", float_formats)};

struct CoarseReciprocal {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    auto tail = tail_first(row);
    write_softmax(row, tail);
    if constexpr (planted)
      for (std::size_t j = 0; row.out[0] && j < row.n; ++j) row.out[0][j] = tail.e[j] * (1 / (1 + tail.r) * T(1 + 0x1p-12));
  }
};
const Catalogued coarse_reciprocal{in_row<CoarseReciprocal>("softmax", "12-bit reciprocal", "approximate reciprocal without a refinement", "probability sum", {Format::f32, Format::f64})};

/// x - m rounded to the storage format before the exponential.
struct EarlyRounding {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    auto tail = tail_first(row);
    if constexpr (planted) {
      tail.r = tail.m - tail.m;
      for (std::size_t j = 0; j < row.n; ++j) {
        tail.e[j] = std::exp(rounded(row.storage, row.in[0][j] - tail.m));
        if (j != tail.k) tail.r += tail.e[j];
      }
    }
    write_softmax(row, tail);
  }
};
const Catalogued early_rounding{in_row<EarlyRounding>("softmax", "shift rounded to storage", "Liger-Kernel 1432, oneDNN 1862", "bound", half_formats)};

/// A row of -inf as uniform weights.
struct MaskedRowUniform {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    const auto tail = tail_first(row);
    write_softmax(row, tail);
    if (planted && dead(tail.m)) fill(row, 0, 1 / static_cast<T>(row.n), row.n);
  }
};
const Catalogued masked_row_uniform{in_row<MaskedRowUniform>("softmax", "row of -inf uniform", "llama.cpp 24941, tt-metal 56056", "special values")};

/// NaN only where the +inf stands.
struct InfinityLocal {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    const auto tail = tail_first(row);
    write_softmax(row, tail);
    if (planted && std::isinf(tail.m) && tail.m > 0)
      for (std::size_t j = 0; row.out[0] && j < row.n; ++j) row.out[0][j] = std::isinf(row.in[0][j]) && row.in[0][j] > 0 ? tail.r : T(0);
  }
};
const Catalogued infinity_local{in_row<InfinityLocal>("softmax", "+inf poisons one entry", "openvino 33456, openvino 35897", "special values")};

struct MeanForgotten {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    const auto tail = tail_first(row);
    write_softmax(row, tail);
    if (planted && row.out[1] && row.in[1])
      for (std::size_t j = 0; j < row.n; ++j) row.out[1][j] = tail.p(j) * row.in[1][j];
  }
};
const Catalogued mean_forgotten{in_row<MeanForgotten>("softmax", "gradient without its mean", "backward p g", "gradient sum")};

/// The backward reads probabilities that were stored in 16 bits.
struct StoredProbability {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    const auto tail = tail_first(row);
    write_softmax(row, tail);
    if (!planted || !row.out[1] || !row.in[1]) return;
    const T* g = row.in[1];
    T mean = 0;
    for (std::size_t j = 0; j < row.n; ++j) mean += rounded(row.storage, tail.p(j)) * g[j];
    for (std::size_t j = 0; j < row.n; ++j) row.out[1][j] = rounded(row.storage, tail.p(j)) * (g[j] - mean);
  }
};
const Catalogued stored_probability{in_row<StoredProbability>("softmax", "probability stored in 16 bits", "saved output read by the backward", "gradient sum", half_formats)};

struct GradientZero {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    write_softmax(row, tail_first(row));
    if (planted) fill(row, 1, T(0), row.n);
  }
};
const Catalogued gradient_zero{in_row<GradientZero>("softmax", "gradient all zero", "DirectML 740", "bound")};

/// The row index of a class wraps at 16 bits.
struct NarrowIndex {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    const auto tail = tail_first(row);
    write_softmax(row, tail);
    if (planted)
      for (std::size_t j = 0x10000; row.out[0] && j < row.n; ++j) row.out[0][j] = row.out[0][j & 0xffff];
  }
};
const Catalogued narrow_index{in_row<NarrowIndex>("softmax", "16-bit class index", "pytorch 111484, pytorch 96602", "bound", float_formats,
                                                  "campaigns draw at most 6145 classes")};

/// One maximum for the whole batch; rows far below it underflow to 0/0.
const Catalogued batch_maximum{around_rows<RightSoftmax>("softmax", "maximum of the batch", "rows far below the largest", "special values",
                                                         [](const Kernel& right, const Call& call) {
  right.run(call);
  const Tensor& x = call.input.inputs.at("x");
  double largest = -std::numeric_limits<double>::infinity();
  for (std::int64_t i = 0; i < x.elements(); ++i) largest = std::max(largest, x.get(i));
  const std::int64_t n = x.shape[1];
  for (std::int64_t row = 0; row < x.shape[0]; ++row) {
    double s = 0;
    for (std::int64_t j = 0; j < n; ++j) s += std::exp(x.get(row * n + j) - largest);
    for (std::int64_t j = 0; j < n; ++j) call.outputs[0].set(row * n + j, std::exp(x.get(row * n + j) - largest) / s);
  }
})};

/// Storage taken as packed.
const Catalogued strides_ignored{around_rows<RightSoftmax>("softmax", "strides ignored", "rocm-libraries 5240, FlagGems 5723, pytorch 80006", "layout",
                                                           [](const Kernel& right, const Call& call) {
  Case packed = call.input;
  Tensor& x = packed.inputs.at("x");
  const auto stored = static_cast<std::int64_t>(x.bytes.size()) / x.width();
  if (x.elements() <= stored) x.strides = {x.shape[1], 1}, x.offset = 0;
  run_on(right, call, packed);
})};

/// The upstream gradient of row 0 for every row, as if it were broadcast.
const Catalogued upstream_broadcast{around_rows<RightSoftmax>("softmax", "upstream of the first row", "FlagGems 5723, pytorch 139740", "bound",
                                                              [](const Kernel& right, const Call& call) {
  Case first = call.input;
  if (const auto g = first.inputs.find("g"); g != first.inputs.end()) g->second.strides[0] = 0;
  run_on(right, call, first);
})};

/// What an earlier call of the same shape returned, as from a program compiled once with its operands inside.
const Catalogued stale_buffer{around_rows<RightSoftmax>("softmax", "result of an earlier call", "tt-metal 39910, openvino 22851", "linear upstream",
                                                        [](const Kernel& right, const Call& call) {
  static thread_local std::vector<Tensor> kept;
  right.run(call);
  const auto same_size = [](const Tensor& a, const Tensor& b) { return a.bytes.size() == b.bytes.size(); };
  if (std::equal(kept.begin(), kept.end(), call.outputs.begin(), call.outputs.end(), same_size))
    for (std::size_t i = 0; i < kept.size(); ++i) call.outputs[i].bytes = kept[i].bytes;
  else kept = call.outputs;
})};

}  // namespace
}  // namespace sumzero::mutants
