// Mutants of logsumexp. Planted elsewhere: log s with the maximum inside, exp(x - lse) in the backward (kernels `textbook.*`).
#include <algorithm>

#include "tests/mutants/tail_first.hpp"

namespace sumzero::mutants {
namespace {

/// m + log1p(r) for an infinite m: inf - inf.
template <int sign>
struct InfiniteMaximum {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    const auto tail = tail_first(row);
    write_logsumexp(row, tail);
    if (planted && row.out[0] && std::isinf(tail.m) && std::signbit(tail.m) == (sign < 0)) row.out[0][0] = tail.m + std::log1p(tail.r);
  }
};
const Catalogued of_minus_infinity{in_row<InfiniteMaximum<-1>>("logsumexp", "NaN for a row of -inf", "rmcgibbo/logsumexp 2", "special values")};
const Catalogued of_plus_infinity{in_row<InfiniteMaximum<1>>("logsumexp", "NaN for one +inf", "mlx 576", "special values")};

struct NoShift {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    const auto tail = tail_first(row);
    write_logsumexp(row, tail);
    if (!planted || !row.out[0]) return;
    T s = 0;
    for (std::size_t j = 0; j < row.n; ++j) s += std::exp(row.in[0][j]);
    row.out[0][0] = std::log(s);
  }
};
const Catalogued no_shift{in_row<NoShift>("logsumexp", "no maximum subtracted", "overflow of a bare exponential", "finite")};

/// Tiles of 32 classes are merged without rescaling the older sum to the new maximum.
struct TilesUnscaled {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    const auto tail = tail_first(row);
    write_logsumexp(row, tail);
    if (!planted || !row.out[0] || std::isnan(tail.r)) return;
    T s = 0;
    for (std::size_t first = 0; first < row.n; first += 32) {
      const auto tile = tail_first(row.in[0] + first, std::min<std::size_t>(32, row.n - first));
      if (!dead(tile.m)) s += 1 + tile.r;
    }
    row.out[0][0] = tail.m + std::log(s);
  }
};
const Catalogued tiles_unscaled{in_row<TilesUnscaled>("logsumexp", "tiles merged unscaled", "split-K log-sum-exp", "bound")};

/// log2 in place of the natural logarithm.
struct BaseTwo {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    const auto tail = tail_first(row);
    write_logsumexp(row, tail);
    if (planted && row.out[0]) row.out[0][0] = std::isinf(tail.m) ? tail.m : tail.m + std::log1p(tail.r) * T(1.4426950408889634);
  }
};
const Catalogued base_two{in_row<BaseTwo>("logsumexp", "logarithm to base 2", "returned log-sum-exp of exp2 kernels", "bound")};

/// Softmax for a gradient: the upstream is forgotten.
struct UpstreamForgotten {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    const auto tail = tail_first(row);
    write_logsumexp(row, tail);
    if (planted && row.in[1])
      for (std::size_t j = 0; row.out[1] && j < row.n; ++j) row.out[1][j] = tail.p(j);
  }
};
const Catalogued upstream_forgotten{in_row<UpstreamForgotten>("logsumexp", "upstream forgotten", "Liger-Kernel 678", "linear upstream")};

/// Gradient of a row of -inf as uniform weights.
struct MaskedGradientUniform {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    const auto tail = tail_first(row);
    write_logsumexp(row, tail);
    if (planted && row.in[1] && dead(tail.m)) fill(row, 1, row.in[1][0] / static_cast<T>(row.n), row.n);
  }
};
const Catalogued masked_gradient_uniform{in_row<MaskedGradientUniform>("logsumexp", "gradient of -inf uniform", "pytorch 31829, jax 6811", "special values")};

}  // namespace
}  // namespace sumzero::mutants
