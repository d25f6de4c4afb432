// Mutants of softmax.scaled_masked. Planted elsewhere: scale * x rounded before the maximum, collapse (kernels `textbook.*`).
#include <algorithm>

#include "tests/mutants/tail_first.hpp"

namespace sumzero::mutants {
namespace {

/// The masked, scaled logits as one row; every mutant departs from this or from what is written below.
template <class T>
std::vector<T> scaled(const Row<T>& row, T scale) {
  std::vector<T> z(row.n);
  for (std::size_t j = 0; j < row.n; ++j) {
    z[j] = scale * row.in[0][j] + (row.in[1] ? row.in[1][j] : T(0));
    if (row.in[2] && row.in[2][j] == 0) z[j] = -std::numeric_limits<T>::infinity();
  }
  return z;
}

template <class T>
void write(const Row<T>& row, const Tail<T>& tail, T scale) {
  std::vector<T> gs(row.n);
  Row<T> softmax = row;
  softmax.in = {nullptr, row.in[3]};
  softmax.out = {row.out[0], gs.data()};
  write_softmax(softmax, tail);
  if (!row.in[3]) return;
  T gscale = 0;
  for (std::size_t j = 0; j < row.n; ++j) {
    if (row.out[1]) row.out[1][j] = scale * gs[j];
    if (row.out[2]) row.out[2][j] = gs[j];
    if (tail.e[j] != 0) gscale += gs[j] * row.in[0][j];
  }
  if (row.out[3]) row.out[3][0] = gscale;
}

template <class T>
T scale_of(const Row<T>& row) {
  return static_cast<T>(row.attribute[0]);
}

/// Masked keys filled with a finite number.
template <int fill_value>
struct FiniteFill {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    auto z = scaled(row, scale_of(row));
    if (planted && row.in[2])
      for (std::size_t j = 0; j < row.n; ++j)
        if (row.in[2][j] == 0) z[j] = -T(fill_value);
    write(row, tail_first(z.data(), row.n), scale_of(row));
  }
};
const Catalogued fill_of_ten_thousand{in_row<FiniteFill<10000>>("softmax.scaled_masked", "masked keys hold -1e4", "apex 1390", "special values")};
const Catalogued fill_of_a_billion{in_row<FiniteFill<1000000000>>("softmax.scaled_masked", "masked keys hold -1e9", "tensorflow 55682", "special values")};

struct MaskIgnored {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    Row<T> seen = row;
    if (planted) seen.in[2] = nullptr;
    const auto z = scaled(seen, scale_of(row));
    write(seen, tail_first(z.data(), row.n), scale_of(row));
  }
};
const Catalogued mask_ignored{in_row<MaskIgnored>("softmax.scaled_masked", "mask ignored", "tt-metal 39910", "bound")};

/// Masked entries are zero in p but stay in the sum.
struct MaskAfterSum {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    auto z = scaled(row, scale_of(row));
    auto tail = tail_first(z.data(), row.n);
    if (planted && row.in[2])
      for (std::size_t j = 0; j < row.n; ++j)
        if (row.in[2][j] == 0) tail.r += std::exp(std::min(T(0), scale_of(row) * row.in[0][j] - tail.m));
    write(row, tail, scale_of(row));
  }
};
const Catalogued mask_after_sum{in_row<MaskAfterSum>("softmax.scaled_masked", "masked keys in the sum", "mask applied after the exponentials", "probability sum")};

/// The maximum is taken over masked keys too: the live ones underflow to 0/0.
struct MaximumOfMasked {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    auto z = scaled(row, scale_of(row));
    auto tail = tail_first(z.data(), row.n);
    if (planted && row.in[2] && !std::isnan(tail.r)) {
      T m = tail.m, s = 0;
      for (std::size_t j = 0; j < row.n; ++j) m = std::max(m, scale_of(row) * row.in[0][j]);
      for (std::size_t j = 0; j < row.n; ++j) s += tail.e[j] = std::exp(z[j] - m);
      tail.r = s - 1;
    }
    write(row, tail, scale_of(row));
  }
};
const Catalogued maximum_of_masked{in_row<MaximumOfMasked>("softmax.scaled_masked", "maximum over masked keys", "a shift that is no maximum of the live keys", "special values")};

/// The mask of the last n mod 64 keys is not applied.
struct RemainderUnmasked {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    auto z = scaled(row, scale_of(row));
    if (planted)
      for (std::size_t j = row.n / 64 * 64; j < row.n; ++j) z[j] = scale_of(row) * row.in[0][j] + (row.in[1] ? row.in[1][j] : T(0));
    write(row, tail_first(z.data(), row.n), scale_of(row));
  }
};
const Catalogued remainder_unmasked{in_row<RemainderUnmasked>("softmax.scaled_masked", "remainder tile unmasked", "sycl-tla 813, pytorch 191937", "bound")};

/// fma(x, scale, -m) with m rounded: the exponent is the rounding error of the product where that is large.
struct FusedShift {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    const auto z = scaled(row, scale_of(row));
    auto tail = tail_first(z.data(), row.n);
    if (planted && !row.in[1] && !row.in[2] && std::isfinite(tail.m)) {
      T s = 0;
      for (std::size_t j = 0; j < row.n; ++j) s += tail.e[j] = std::exp(std::fma(row.in[0][j], scale_of(row), -tail.m));
      tail.r = s - 1;
    }
    write(row, tail, scale_of(row));
  }
};
const Catalogued fused_shift{in_row<FusedShift>("softmax.scaled_masked", "fused multiply-add in the shift", "pytorch 100775, jax 37234", "special values", float_formats)};

enum class Factor { twice, missing, rounded, inverted };
template <Factor factor>
struct WrongScale {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    T scale = scale_of(row);
    if constexpr (planted) {
      if (factor == Factor::twice) scale *= scale;
      if (factor == Factor::missing) scale = 1;
      if (factor == Factor::rounded) scale = rounded(Format::bf16, scale);
      if (factor == Factor::inverted) scale = 1 / scale;
    }
    const auto z = scaled(row, scale);
    write(row, tail_first(z.data(), row.n), scale);
  }
};
const Catalogued scaled_twice{in_row<WrongScale<Factor::twice>>("softmax.scaled_masked", "scale applied twice", "temperature factors", "bound")};
const Catalogued scale_missing{in_row<WrongScale<Factor::missing>>("softmax.scaled_masked", "scale missing", "temperature factors", "bound")};
const Catalogued scale_rounded{in_row<WrongScale<Factor::rounded>>("softmax.scaled_masked", "scale rounded to bf16", "attribute held in 16 bits", "bound")};
const Catalogued scale_inverted{in_row<WrongScale<Factor::inverted>>("softmax.scaled_masked", "temperature for scale", "temperature factors", "bound")};

/// scale (x + bias)
struct BiasScaled {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    auto z = scaled(row, scale_of(row));
    if (planted && row.in[1])
      for (std::size_t j = 0; j < row.n; ++j)
        if (!row.in[2] || row.in[2][j] != 0) z[j] = scale_of(row) * (row.in[0][j] + row.in[1][j]);
    write(row, tail_first(z.data(), row.n), scale_of(row));
  }
};
const Catalogued bias_scaled{in_row<BiasScaled>("softmax.scaled_masked", "bias before scale", "order of scale and bias", "bound")};

/// gx without the factor scale.
struct GradientUnscaled {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    const auto z = scaled(row, scale_of(row));
    write(row, tail_first(z.data(), row.n), scale_of(row));
    if (planted && row.in[3] && row.out[1] && row.out[2]) std::copy_n(row.out[2], row.n, row.out[1]);
  }
};
const Catalogued gradient_unscaled{in_row<GradientUnscaled>("softmax.scaled_masked", "gradient without scale", "temperature factors", "bound")};

/// 0 * -inf in the gradient of the scale.
struct DeadTimesInfinity {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    const auto z = scaled(row, scale_of(row));
    const auto tail = tail_first(z.data(), row.n);
    write(row, tail, scale_of(row));
    if (!planted || !row.in[3] || !row.out[3] || !row.out[2]) return;
    T sum = 0;
    for (std::size_t j = 0; j < row.n; ++j) sum += row.out[2][j] * row.in[0][j];
    row.out[3][0] = sum;
  }
};
const Catalogued dead_times_infinity{in_row<DeadTimesInfinity>("softmax.scaled_masked", "0 times -inf in gscale", "optax 896", "special values")};

struct RightScaledMasked {
  template <bool, class T>
  static void row(const Row<T>& row) {
    const auto z = scaled(row, scale_of(row));
    write(row, tail_first(z.data(), row.n), scale_of(row));
  }
};
/// The mask of row 0 for every row.
const Catalogued mask_broadcast{around_rows<RightScaledMasked>("softmax.scaled_masked", "mask of the first row", "tt-metal 39910", "bound",
                                                               [](const Kernel& right, const Call& call) {
  Case first = call.input;
  if (const auto mask = first.inputs.find("mask"); mask != first.inputs.end()) mask->second.strides[0] = 0;
  run_on(right, call, first);
})};

}  // namespace
}  // namespace sumzero::mutants
