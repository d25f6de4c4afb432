// Mutants of log_softmax. Planted elsewhere: log s with the maximum inside, g - exp(logp) sum g, the log-probability re-read
// from storage, log1p in the forward alone (kernels `textbook.*`); layouts and calls as in softmax.cpp.
#include "tests/mutants/tail_first.hpp"

namespace sumzero::mutants {
namespace {

/// x - (m + log s): the normaliser is rounded at the size of the logits.
struct NormaliserAddedFirst {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    const auto tail = tail_first(row);
    write_log_softmax(row, tail);
    if (planted)
      for (std::size_t j = 0; row.out[0] && j < row.n; ++j) row.out[0][j] = row.in[0][j] - (tail.m + std::log1p(tail.r));
  }
};
const Catalogued normaliser_added_first{in_row<NormaliserAddedFirst>("log_softmax", "maximum + log s first", "pytorch 38839, pytorch 11752, mlx 4169", "shift")};

struct LogOfProbability {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    const auto tail = tail_first(row);
    write_log_softmax(row, tail);
    if (planted)
      for (std::size_t j = 0; row.out[0] && j < row.n; ++j) row.out[0][j] = std::log(tail.p(j));
  }
};
const Catalogued log_of_probability{in_row<LogOfProbability>("log_softmax", "log of the probability", "pytorch 94043, pytorch2.0_ttnn 1341", "finite")};

/// exp of the bare logits underflows as a whole: -inf at the maximum.
struct NoShift {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    const auto tail = tail_first(row);
    write_log_softmax(row, tail);
    if (!planted) return;
    T s = 0;
    for (std::size_t j = 0; j < row.n; ++j) s += std::exp(row.in[0][j]);
    for (std::size_t j = 0; row.out[0] && j < row.n; ++j) row.out[0][j] = row.in[0][j] - std::log(s);
  }
};
const Catalogued no_shift{in_row<NoShift>("log_softmax", "no maximum subtracted", "pytorch 158310", "finite")};

/// log s rounded to the storage format.
struct NormaliserStored {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    const auto tail = tail_first(row);
    write_log_softmax(row, tail);
    if (planted)
      for (std::size_t j = 0; row.out[0] && j < row.n; ++j) row.out[0][j] = (row.in[0][j] - tail.m) - rounded(row.storage, std::log1p(tail.r));
  }
};
const Catalogued normaliser_stored{in_row<NormaliserStored>("log_softmax", "normaliser stored in 16 bits", "optax 1020", "bound", half_formats)};

/// The dot product with the output in place of exp(output) sum g.
struct WrongBackward {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    const auto tail = tail_first(row);
    write_log_softmax(row, tail);
    if (!planted || !row.in[1] || !row.out[1] || !row.out[0]) return;
    T dot = 0;
    for (std::size_t j = 0; j < row.n; ++j) dot += row.in[1][j] * row.out[0][j];
    for (std::size_t j = 0; j < row.n; ++j) row.out[1][j] = row.in[1][j] - tail.p(j) * dot;
  }
};
const Catalogued wrong_backward{in_row<WrongBackward>("log_softmax", "dot product with the output", "oneDNN 616", "gradient sum")};

/// Softmax gradient of g / p, with p underflowed.
struct DividesByProbability {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    const auto tail = tail_first(row);
    write_log_softmax(row, tail);
    if (!planted || !row.in[1] || !row.out[1]) return;
    T mean = 0;
    for (std::size_t j = 0; j < row.n; ++j) mean += tail.p(j) * (row.in[1][j] / tail.p(j));
    for (std::size_t j = 0; j < row.n; ++j) row.out[1][j] = tail.p(j) * (row.in[1][j] / tail.p(j) - mean);
  }
};
const Catalogued divides_by_probability{in_row<DividesByProbability>("log_softmax", "divides by a probability", "NNlib.jl 68", "special values")};

/// g_k (1 - p_k) by subtraction.
struct OneMinusP {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    const auto tail = tail_first(row);
    write_log_softmax(row, tail);
    if (!planted || !row.in[1] || !row.out[1]) return;
    T others = 0;
    for (std::size_t j = 0; j < row.n; ++j)
      if (j != tail.k && !dead(row.in[0][j])) others += row.in[1][j];
    row.out[1][tail.k] = row.in[1][tail.k] * (1 - tail.p(tail.k)) - tail.p(tail.k) * others;
  }
};
const Catalogued one_minus_p{in_row<OneMinusP>("log_softmax", "1 - p in the backward", "pytorch 195680, jax 40344, tensorflow 126525", "gradient sum", float_formats)};

/// Upstream of -inf logits enters the total.
struct DeadUpstreamCounted {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    const auto tail = tail_first(row);
    write_log_softmax(row, tail);
    if (!planted || !row.in[1] || !row.out[1]) return;
    T total = 0;
    for (std::size_t j = 0; j < row.n; ++j) total += row.in[1][j];
    for (std::size_t j = 0; j < row.n; ++j)
      if (j != tail.k && !dead(row.in[0][j])) row.out[1][j] = row.in[1][j] - tail.p(j) * total;
  }
};
const Catalogued dead_upstream_counted{in_row<DeadUpstreamCounted>("log_softmax", "upstream of -inf logits counted", "masked keys in the backward", "gradient sum",
                                                                 usual_formats, "campaigns give entries of -inf no upstream")};

/// One class: -log1p(0) is -0, not +0.
struct NegativeZero {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    const auto tail = tail_first(row);
    write_log_softmax(row, tail);
    if (planted && row.out[0]) row.out[0][tail.k] = -std::log1p(tail.r);
  }
};
const Catalogued negative_zero{in_row<NegativeZero>("log_softmax", "-0 for a row of one class", "the shortcut -log1p(r) at the maximum", "bound", float_formats,
                                                    "no check compares the sign of a zero")};

/// Positive by a rounding of the normaliser.
struct AboveZero {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    const auto tail = tail_first(row);
    write_log_softmax(row, tail);
    if (planted && row.out[0]) row.out[0][tail.k] = -std::log((1 + tail.r) * (1 - std::numeric_limits<T>::epsilon() / 2));
  }
};
const Catalogued above_zero{in_row<AboveZero>("log_softmax", "log-probability above zero", "sum rounded below its largest term", "range", float_formats)};

}  // namespace
}  // namespace sumzero::mutants
