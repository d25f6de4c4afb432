// Mutants of sdpa and sdpa.merge. Planted elsewhere: the roundings of published kernels together (kernels `textbook.*`).
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/mutants/mutant.hpp"

namespace sumzero::mutants {
namespace {

enum class Defect {
  none,
  largest_term_in_the_mean,
  mean_from_stored_output,
  stored_adjoint,
  empty_tile_by_arithmetic,
  empty_gradient_by_arithmetic,
  stored_weights,
  base2_in_backward,
  numerator_not_rescaled,
  normaliser_not_rescaled,
  rescaled_twice,
  lse_cotangent_dropped,
  tau_missing_in_gq,
  tau_twice_in_gq,
  tau_missing_in_gk,
  tau_twice_in_gk,
  causal_off_by_one,
  empty_row_is_mean,
  weights_from_stored_lse,
  weights_from_lse,
  group_overwrites
};

/// Attention by an online softmax over tiles of a few keys, so that small cases meet several tiles.
template <Defect defect, class T>
class Attention {
 public:
  static constexpr int tile = 8;

  explicit Attention(const Row<T>& row) : row_(row) {
    for (std::size_t i = 2; i < 7; ++i)
      if (row.out[i]) std::fill_n(row.out[i], i == 2 ? rows_ * head_ : i == 3 ? keys_ * head_ : i == 4 ? keys_ * width_ : i == 5 ? rows_ * keys_ : rows_, T(0));
  }

  void run() {
    for (std::size_t t = 0; t < rows_; ++t) {
      logits(t);
      forward(t);
      if (row_.in[5] || row_.in[6]) backward(t);
    }
    for (std::size_t i = 0; row_.out[3] && i < keys_ * head_; ++i) row_.out[3][i] *= factor(Defect::tau_missing_in_gk, Defect::tau_twice_in_gk);
  }

 private:
  static constexpr T infinity = std::numeric_limits<T>::infinity();
  std::size_t extent(std::size_t axis) const { return static_cast<std::size_t>(row_.extents[axis]); }
  T attribute(std::size_t i) const { return static_cast<T>(row_.attribute[i]); }
  T factor(Defect missing, Defect twice) const { return defect == missing ? T(1) : defect == twice ? attribute(0) * attribute(0) : attribute(0); }
  T stored(T value) const { return rounded(row_.storage, value); }

  bool visible(std::size_t t, std::size_t j) const {
    const auto place = [](std::size_t i) { return static_cast<std::int64_t>(i); };
    const std::int64_t behind = place(t % queries_) + (row_.attribute[2] == 2 ? place(keys_) - place(queries_) : 0) - place(j);
    const bool limited = row_.attribute[3] > 0;
    if ((row_.attribute[2] != 0 || limited) && behind < (defect == Defect::causal_off_by_one ? -1 : 0)) return false;
    if (limited && static_cast<double>(behind) >= row_.attribute[3]) return false;
    return (!row_.in[4] || row_.in[4][t * keys_ + j] != 0) && (!row_.in[3] || !std::isinf(row_.in[3][t * keys_ + j]));
  }

  void logits(std::size_t t) {
    const T cap = attribute(1);
    product_.assign(keys_, T(0)), a_.assign(keys_, -infinity), slope_.assign(keys_, T(1));
    for (std::size_t j = 0; j < keys_; ++j) {
      for (std::size_t c = 0; c < head_; ++c) product_[j] += row_.in[0][t * head_ + c] * row_.in[1][j * head_ + c];
      if (!visible(t, j)) continue;
      const T a = attribute(0) * product_[j] + (row_.in[3] ? row_.in[3][t * keys_ + j] : T(0));
      a_[j] = a;
      if (cap == 0) continue;
      const T twice = -2 * std::fabs(a / cap), z = std::expm1(twice);
      a_[j] = std::copysign(cap * (z / (2 + z)), a);
      slope_[j] = 4 * std::exp(twice) / ((2 + z) * (2 + z));
    }
  }

  void forward(std::size_t t) {
    const bool sink = row_.attribute[4] != 0;
    m_ = sink ? T(0) : -infinity, l_ = sink;
    o_.assign(width_, T(0));
    for (std::size_t first = 0; first < keys_; first += tile) {
      const std::size_t last = std::min(first + tile, keys_);
      const T raised = std::max(m_, *std::max_element(a_.data() + first, a_.data() + last));
      const T shift = std::isinf(raised) && defect != Defect::empty_tile_by_arithmetic ? T(0) : raised;
      const T scale = std::exp(m_ - shift);
      l_ *= defect == Defect::normaliser_not_rescaled && m_ > -infinity ? T(1) : defect == Defect::rescaled_twice ? scale * scale : scale;
      for (T& value : o_) value *= defect == Defect::numerator_not_rescaled && m_ > -infinity ? T(1) : scale;
      for (std::size_t j = first; j < last; ++j) {
        const T e = std::exp(a_[j] - shift);
        l_ += e;
        for (std::size_t c = 0; c < width_; ++c) o_[c] += (defect == Defect::stored_weights ? stored(e) : e) * row_.in[2][j * width_ + c];
      }
      m_ = raised;
    }
    lse_ = m_ + std::log(l_);
    for (std::size_t c = 0; c < width_; ++c) {
      if (l_ != 0) o_[c] /= l_;
      else if (defect == Defect::empty_row_is_mean)
        for (std::size_t j = 0; j < keys_; ++j) o_[c] += row_.in[2][j * width_ + c] / static_cast<T>(keys_);
      if (row_.out[0]) row_.out[0][t * width_ + c] = o_[c];
    }
    if (row_.out[1]) row_.out[1][t] = lse_ * base();
  }
  T base() const { return row_.attribute[5] != 0 ? T(1.4426950408889634) : T(1); }

  T weight(std::size_t j) const {
    switch (defect) {
      case Defect::empty_gradient_by_arithmetic: return l_ == 0 ? std::exp(a_[j] - lse_) : std::exp(a_[j] - m_) / l_;
      case Defect::base2_in_backward: return l_ == 0 ? T(0) : std::exp(a_[j] - lse_ * base());
      case Defect::weights_from_stored_lse: return l_ == 0 ? T(0) : std::exp(a_[j] - stored(lse_));
      case Defect::weights_from_lse: return l_ == 0 ? T(0) : std::exp(a_[j] - lse_);
      default: return l_ == 0 ? T(0) : std::exp(a_[j] - m_) / l_;
    }
  }

  void backward(std::size_t t) {
    const T upstream = row_.in[6] && defect != Defect::lse_cotangent_dropped ? row_.in[6][t] * base() : T(0);
    const T* go = row_.in[5] ? row_.in[5] + t * width_ : nullptr;
    std::vector<T> p(keys_), pull(keys_, T(0));
    T mean = 0;
    for (std::size_t j = 0; j < keys_; ++j) {
      p[j] = weight(j);
      for (std::size_t c = 0; go && c < width_; ++c) pull[j] += go[c] * row_.in[2][j * width_ + c];
    }
    // Relative to the largest logit's, so that its own weight never meets a rounding error.
    const bool pivoted = defect != Defect::largest_term_in_the_mean && defect != Defect::mean_from_stored_output;
    const std::size_t largest = static_cast<std::size_t>(std::max_element(a_.begin(), a_.end()) - a_.begin());
    const T pivot = pivoted && a_[largest] >= (row_.attribute[4] != 0 ? T(0) : -infinity) ? pull[largest] : T(0);
    for (std::size_t j = 0; j < keys_; ++j) mean += p[j] * (pull[j] -= pivot);
    if (row_.attribute[4] != 0) mean -= std::exp(-m_) / l_ * pivot;
    if (defect == Defect::mean_from_stored_output) {
      mean = 0;
      for (std::size_t c = 0; go && c < width_; ++c) mean += go[c] * stored(o_[c]);
    }
    for (std::size_t j = 0; j < keys_; ++j) {
      const T da = p[j] * ((pull[j] - mean) + upstream) * slope_[j], operand = defect == Defect::stored_adjoint ? stored(da) : da;
      if (row_.out[5]) row_.out[5][t * keys_ + j] = da;
      if (row_.out[6]) row_.out[6][t] += da * product_[j];
      for (std::size_t c = 0; row_.out[2] && c < head_; ++c) row_.out[2][t * head_ + c] += operand * row_.in[1][j * head_ + c];
      for (std::size_t c = 0; row_.out[3] && c < head_; ++c) add(t, row_.out[3][j * head_ + c], operand * row_.in[0][t * head_ + c]);
      for (std::size_t c = 0; row_.out[4] && go && c < width_; ++c) add(t, row_.out[4][j * width_ + c], p[j] * go[c]);
    }
    for (std::size_t c = 0; row_.out[2] && c < head_; ++c) row_.out[2][t * head_ + c] *= factor(Defect::tau_missing_in_gq, Defect::tau_twice_in_gq);
  }
  /// Adds a query's share; the first query of a head must not start anew.
  void add(std::size_t t, T& sum, T share) const { sum = defect == Defect::group_overwrites && t % queries_ == 0 ? share : sum + share; }

  const Row<T>& row_;
  const std::size_t queries_ = extent(axis::queries), keys_ = extent(axis::keys), head_ = extent(axis::head_size), width_ = extent(axis::value_size),
                    rows_ = queries_ * extent(axis::heads) / extent(axis::kv_heads);
  std::vector<T> product_, a_, slope_, o_;
  T m_ = 0, l_ = 0, lse_ = 0;
};

template <Defect defect>
struct Sdpa {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    Attention<planted ? defect : Defect::none, T>(row).run();
  }
  static void adjust(Contract& claim) { claim.key_tile = Attention<Defect::none, float>::tile, claim.pivoted = true; }
};

template <Defect defect>
Catalogued attention(std::string name, std::string source, std::string expected, std::vector<Format> formats = usual_formats, std::string missed = {}) {
  return Catalogued{in_row<Sdpa<defect>>("sdpa", std::move(name), std::move(source), std::move(expected), std::move(formats), std::move(missed))};
}

const Catalogued attentions[] = {
    attention<Defect::largest_term_in_the_mean>("D with its largest term", "da = p (go.v - D): the largest weight's gradient rounds to zero", "gradient sum"),
    attention<Defect::mean_from_stored_output>("D from the stored output", "D = go . o with o in bf16", "gradient sum", half_formats),
    attention<Defect::stored_adjoint>("dS rounded before dQ and dK", "dS cast for the matrix units", "bound", half_formats),
    attention<Defect::empty_tile_by_arithmetic>("hidden tile by arithmetic", "exp(-inf - -inf) in a fully masked tile", "special values"),
    attention<Defect::empty_gradient_by_arithmetic>("empty gradient by arithmetic", "exp(a - lse) with lse = -inf", "special values"),
    attention<Defect::stored_weights>("P rounded, its sum not", "P cast for the product with V", "bound", half_formats),
    attention<Defect::base2_in_backward>("LSE of base 2 as natural", "backward reads the returned LSE", "bound"),
    attention<Defect::numerator_not_rescaled>("numerator not rescaled", "maximum arriving late", "bound"),
    attention<Defect::normaliser_not_rescaled>("normaliser not rescaled", "maximum arriving late", "bound"),
    attention<Defect::rescaled_twice>("normaliser rescaled twice", "maximum arriving late", "bound"),
    attention<Defect::lse_cotangent_dropped>("cotangent of LSE dropped", "da = p (go.v - D)", "bound"),
    attention<Defect::tau_missing_in_gq>("tau missing in dQ", "scale applied to the scores only", "bound"),
    attention<Defect::tau_twice_in_gq>("tau twice in dQ", "scaled keys scaled again", "bound"),
    attention<Defect::tau_missing_in_gk>("tau missing in dK", "scale applied to the scores only", "bound"),
    attention<Defect::tau_twice_in_gk>("tau twice in dK", "scaled queries scaled again", "bound"),
    attention<Defect::causal_off_by_one>("causal order off by one", "j <= t + 1", "bound"),
    attention<Defect::empty_row_is_mean>("empty row is the mean", "softmax of -1e9 everywhere", "bound"),
    attention<Defect::group_overwrites>("dK and dV of the last head only", "grouped heads overwrite", "bound"),
    attention<Defect::weights_from_stored_lse>("P from a stored LSE", "LSE kept in bf16", "bound", half_formats),
    attention<Defect::weights_from_lse>("P from the rounded LSE", "exp(a - lse), lse in the accumulator", "bound", float_formats,
                                        "u |LSE| is less than what the bound allows the logits' own rounding")};

// ---------------------------------------------------------------------------------------------------------
// sdpa.merge

enum class MergeDefect { none, unnormalised, base2, by_arithmetic, lse_cotangent_dropped, pull_unweighted };

template <MergeDefect defect, class Storage>
void merge(const Row<Storage>& row) {
  using T = double;
  const Storage *o1 = row.in[0], *o2 = row.in[2], *go = row.in[4];
  const T l1 = row.in[1][0], l2 = row.in[3][0], gl = row.in[5] && defect != MergeDefect::lse_cotangent_dropped ? row.in[5][0] : Storage(0);
  const T m = std::max(l1, l2), shift = std::isinf(m) && defect != MergeDefect::by_arithmetic ? T(0) : m;
  const auto exponential = [](T x) { return defect == MergeDefect::base2 ? std::exp2(x) : std::exp(x); };
  const T e1 = exponential(l1 - shift), e2 = exponential(l2 - shift), total = e1 + e2, divisor = defect == MergeDefect::unnormalised || total == 0 ? T(1) : total;
  const T w1 = e1 / divisor, w2 = e2 / divisor;
  T pull = 0;
  for (std::size_t c = 0; c < row.n; ++c) {
    const T upstream = go ? T(go[c]) : T(0);
    pull += upstream * (T(o1[c]) - T(o2[c]));
    if (row.out[0]) row.out[0][c] = static_cast<Storage>(w1 * o1[c] + w2 * o2[c]);
    if (row.out[2]) row.out[2][c] = static_cast<Storage>(w1 * upstream);
    if (row.out[4]) row.out[4][c] = static_cast<Storage>(w2 * upstream);
  }
  const T other1 = defect == MergeDefect::pull_unweighted ? T(1) : w2, other2 = defect == MergeDefect::pull_unweighted ? T(1) : w1;
  if (row.out[1]) row.out[1][0] = static_cast<Storage>(total == 0 ? -std::numeric_limits<T>::infinity() : m + std::log1p(std::min(e1, e2)));
  if (row.out[3]) row.out[3][0] = static_cast<Storage>(w1 * (gl + other1 * pull));
  if (row.out[5]) row.out[5][0] = static_cast<Storage>(w2 * (gl - other2 * pull));
}

template <MergeDefect defect>
struct Merge {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    merge<planted ? defect : MergeDefect::none>(row);
  }
};
const Catalogued merges[] = {
    Catalogued{in_row<Merge<MergeDefect::unnormalised>>("sdpa.merge", "weights not normalised", "exp(L_i - max)", "bound", float_formats)},
    Catalogued{in_row<Merge<MergeDefect::base2>>("sdpa.merge", "natural LSE as base 2", "parts from a kernel of the other base", "bound", float_formats)},
    Catalogued{in_row<Merge<MergeDefect::by_arithmetic>>("sdpa.merge", "two empty parts by arithmetic", "exp(-inf - -inf)", "special values", float_formats)},
    Catalogued{in_row<Merge<MergeDefect::lse_cotangent_dropped>>("sdpa.merge", "cotangent of L dropped", "backward of o alone", "bound", float_formats)},
    Catalogued{in_row<Merge<MergeDefect::pull_unweighted>>("sdpa.merge", "o_i - o_other for o_i - o", "weight of the other part forgotten", "bound", float_formats)}};

}  // namespace
}  // namespace sumzero::mutants
