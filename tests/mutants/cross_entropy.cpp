// Mutants of cross_entropy. Planted elsewhere: p - onehot, log1p in the forward alone, the patch for double alone
// (kernels `textbook.*`); labels out of range never reach a kernel (validate).
#include <algorithm>

#include "tests/mutants/tail_first.hpp"

namespace sumzero::mutants {
namespace {

/// w v with 0 inf = 0.
template <class T>
T weighted(T w, T v) {
  return w == 0 && !std::isnan(v) ? T(0) : w * v;
}

/// Everything that a row needs; mutants change a step.
template <class T>
struct HardLabel {
  const Row<T>& row;
  Tail<T> tail;
  std::size_t n, t;
  T a, log_s, factor;

  explicit HardLabel(const Row<T>& r)
      : row(r), tail(tail_first(r)), n(r.n), t(static_cast<std::size_t>(r.label)), a(static_cast<T>(r.attribute[0])),
        log_s(std::log1p(tail.r)), factor(static_cast<T>(r.factor)) {}

  T w(std::size_t j) const { return row.in[2] ? row.in[2][j] : T(1); }
  T nll(std::size_t j) const { return (tail.m - row.in[0][j]) + log_s; }
  /// The gradient of nll(t): -r/s at t = k, -(1 + (r - e_t))/s elsewhere, e_j/s beside the target.
  T hard(std::size_t j) const {
    if (j != t) return tail.p(j);
    return t == tail.k ? -(tail.r / (1 + tail.r)) : -(1 + (tail.r - tail.e[t])) / (1 + tail.r);
  }
  void loss(T smooth_weight_sum = 0) const {
    if (!row.out[0]) return;
    T total = weighted((1 - a) * w(t), nll(t)) + smooth_weight_sum;
    if (a > 0) {
      T uniform = 0;
      for (std::size_t j = 0; j < n; ++j) uniform += weighted(w(j), nll(j));
      total += a / static_cast<T>(n) * uniform;
    }
    row.out[0][0] = total + (tail.r - tail.r);
  }
  template <class Hard>
  void gradient(Hard target) const {
    if (!row.out[1]) return;
    T sum = 0;
    for (std::size_t j = 0; j < n; ++j) sum += w(j);
    for (std::size_t j = 0; j < n; ++j) {
      T g = (1 - a) * w(t) * target(j);
      if (a > 0) g += a / static_cast<T>(n) * (tail.p(j) * sum - w(j));
      row.out[1][j] = factor * g + (tail.r - tail.r);
    }
  }
  void gradient() const {
    gradient([this](std::size_t j) { return hard(j); });
  }
  void write() const { loss(), gradient(); }
};

struct Right {
  template <bool, class T>
  static void row(const Row<T>& row) {
    HardLabel<T>(row).write();
  }
};

enum class Target { fixed_only_below, minus_s, by_value, early_scale, stored };

/// The target's component by another formula.
template <Target form>
struct TargetGradient {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    const HardLabel<T> loss(row);
    loss.write();
    if constexpr (planted) {
      const T s = 1 + loss.tail.r, e = loss.tail.e[loss.t], p = loss.tail.p(loss.t), factor = loss.factor;
      if (form == Target::early_scale && row.out[1] && loss.a == 0 && !row.in[2]) row.out[1][loss.t] = factor * p - factor;
      else loss.gradient([&](std::size_t j) -> T {
        if (j != loss.t || form == Target::early_scale) return loss.hard(j);
        if (form == Target::fixed_only_below) return -loss.tail.r / s;
        if (form == Target::minus_s) return -(s - e) / s;
        if (form == Target::stored) return rounded(row.storage, p) - 1;
        T r = 0;  // by_value: equal maxima drop out of the tail
        for (std::size_t i = 0; i < row.n; ++i)
          if (row.in[0][i] != loss.tail.m) r += loss.tail.e[i];
        return loss.t == loss.tail.k ? -r / s : loss.hard(j);
      });
    }
  }
};
const Catalogued targets[] = {
    Catalogued{in_row<TargetGradient<Target::fixed_only_below>>("cross_entropy", "-r/s for every target", "fixed for the maximum alone", "gradient sum")},
    Catalogued{in_row<TargetGradient<Target::minus_s>>("cross_entropy", "s - e at the target", "pytorch 195531, tensorflow 126748", "gradient sum", float_formats)},
    Catalogued{in_row<TargetGradient<Target::by_value>>("cross_entropy", "tied maximum lost", "fixed for a unique maximum alone", "gradient sum")},
    Catalogued{in_row<TargetGradient<Target::early_scale>>("cross_entropy", "factor before the subtraction", "1/B multiplied into p and one-hot apart", "gradient sum", float_formats)},
    Catalogued{in_row<TargetGradient<Target::stored>>("cross_entropy", "target re-read from 16 bits", "Liger-Kernel 1329, TransformerEngine 3193", "gradient sum", half_formats)}};

enum class Loss { lse_first, lse_stored, zero_times_infinity, one_sided_smoothing, label_weight_on_all, unweighted, target_weight_missing };

template <Loss form>
struct WrongLoss {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    const HardLabel<T> loss(row);
    loss.write();
    if (!planted || !row.out[0]) return;
    const T lse = loss.tail.m + loss.log_s, x = row.in[0][loss.t];
    T sum = 0, weights = 0;
    for (std::size_t j = 0; j < row.n; ++j) {
      sum += (j == loss.t ? T(1) : T(0)) * loss.nll(j);
      weights += weighted(loss.w(j), loss.nll(j));
    }
    const T a = loss.a, n = static_cast<T>(row.n), nll = loss.nll(loss.t), w = loss.w(loss.t);
    if (form == Loss::lse_first && a == 0) row.out[0][0] = weighted(w, lse - x);
    if (form == Loss::lse_stored && a == 0) row.out[0][0] = weighted(w, rounded(row.storage, lse) - x);
    if (form == Loss::zero_times_infinity && a == 0) row.out[0][0] = w * sum;
    if (form == Loss::one_sided_smoothing && a > 0 && row.n > 1) row.out[0][0] = weighted((1 - a) * w, nll) + a / (n - 1) * weights;
    if (form == Loss::label_weight_on_all && a > 0) {
      T plain = 0;
      for (std::size_t j = 0; j < row.n; ++j) plain += loss.nll(j);
      row.out[0][0] = w * ((1 - a) * nll + a / n * plain);
    }
    if (form == Loss::unweighted && a > 0) {
      T plain = 0;
      for (std::size_t j = 0; j < row.n; ++j) plain += loss.nll(j);
      row.out[0][0] = weighted((1 - a) * w, nll) + a / n * plain;
    }
    if (form == Loss::target_weight_missing) row.out[0][0] = (1 - a) * nll + (a > 0 ? a / n * weights : T(0));
  }
};
const Catalogued losses[] = {
    Catalogued{in_row<WrongLoss<Loss::lse_first>>("cross_entropy", "lse - x", "pytorch 11752, mlx 4169", "shift")},
    Catalogued{in_row<WrongLoss<Loss::lse_stored>>("cross_entropy", "lse stored in 16 bits", "optax 1020", "bound", half_formats)},
    Catalogued{in_row<WrongLoss<Loss::zero_times_infinity>>("cross_entropy", "one-hot times -inf", "tensorflow 40606", "special values")},
    Catalogued{in_row<WrongLoss<Loss::one_sided_smoothing>>("cross_entropy", "smoothing mass a/(n-1)", "label smoothing", "bound")},
    Catalogued{in_row<WrongLoss<Loss::label_weight_on_all>>("cross_entropy", "label weight on the smooth part", "weights with smoothing", "bound")},
    Catalogued{in_row<WrongLoss<Loss::unweighted>>("cross_entropy", "smooth part unweighted", "weights with smoothing", "bound")},
    Catalogued{in_row<WrongLoss<Loss::target_weight_missing>>("cross_entropy", "label weight missing", "weights", "bound")}};

struct GradientZero {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    HardLabel<T>(row).write();
    if (planted) fill(row, 1, T(0), row.n);
  }
};
const Catalogued gradient_zero{in_row<GradientZero>("cross_entropy", "gradient all zero", "DirectML 740, Liger-Kernel 968", "bound")};

// Defects about ignored rows, reductions and the upstream of rows.

struct Kept {
  std::vector<bool> row;
  std::int64_t count = 0;
  double weight = 0;
};
Kept kept_rows(const Call& call) {
  Kept kept;
  const auto attributes = attribute_values(call.signature, call.input);
  const auto weight = call.input.inputs.find("weight");
  for (std::int64_t row = 0; row < call.input.extents[0]; ++row) {
    const std::int64_t label = label_of(call.signature, call.input, row);
    kept.row.push_back(row_is_kept(call.signature, attributes, label));
    if (!kept.row.back()) continue;
    ++kept.count;
    kept.weight += weight == call.input.inputs.end() ? 1 : weight->second.get(label);
  }
  return kept;
}
Reduction reduction(const Call& call) { return reduction_of(call.signature, attribute_values(call.signature, call.input)); }
double attribute(const Call& call, const char* name) {
  return attribute_values(call.signature, call.input)[static_cast<std::size_t>(call.signature.attribute(name))];
}
void multiply(Tensor& tensor, double factor) {
  for (std::int64_t i = 0; i < tensor.elements(); ++i) tensor.set(i, tensor.get(i) * factor);
}

/// The mean divides by another total.
CallDefect mean_over(double (*total)(const Call&, const Kept&)) {
  return [total](const Kernel& right, const Call& call) {
    right.run(call);
    const Kept kept = kept_rows(call);
    if (reduction(call) != Reduction::mean || kept.count == 0) return;
    for (Tensor& output : call.outputs)
      if (!output.bytes.empty()) multiply(output, kept.weight / total(call, kept));
  };
}
const Catalogued ignored_in_mean{around_rows<Right>("cross_entropy", "ignored rows in the mean", "tinygrad 3570", "bound",
                                                    mean_over([](const Call& call, const Kept&) { return static_cast<double>(call.input.extents[0]); }))};
const Catalogued mean_by_count{around_rows<Right>("cross_entropy", "weighted mean over the row count", "weights in the mean", "bound",
                                                  mean_over([](const Call&, const Kept& kept) { return static_cast<double>(kept.count); }))};
const Catalogued mean_over_elements{around_rows<Right>("cross_entropy", "mean over rows times classes", "reduction mean of elements", "bound",
                                                       mean_over([](const Call& call, const Kept& kept) { return kept.weight * static_cast<double>(call.input.extents[1]); }))};

/// Class weights are indexed by ignore_index wrapped into the classes.
const Catalogued weight_of_ignored{around_rows<Right>("cross_entropy", "ignore_index indexes the weights", "pytorch 69339, pytorch 72056", "bound",
                                                      [](const Kernel& right, const Call& call) {
  right.run(call);
  const Kept kept = kept_rows(call);
  const auto weight = call.input.inputs.find("weight");
  if (reduction(call) != Reduction::mean || kept.count == 0 || weight == call.input.inputs.end()) return;
  const std::int64_t n = call.input.extents[1], label = static_cast<std::int64_t>(attribute(call, "ignore_index"));
  const double extra = weight->second.get(((label % n) + n) % n) * static_cast<double>(call.input.extents[0] - kept.count);
  for (Tensor& output : call.outputs)
    if (!output.bytes.empty()) multiply(output, kept.weight / (kept.weight + extra));
})};

/// Runs the kernel with every ignored row given label 0, then puts back what `keep` says.
void as_kept(const Kernel& right, const Call& call, const std::function<void(const Kept&, const std::vector<Tensor>& all)>& keep) {
  right.run(call);
  const Kept kept = kept_rows(call);
  Case all = call.input;
  for (std::size_t row = 0; row < kept.row.size(); ++row)
    if (!kept.row[row]) all.inputs.at("label").set(static_cast<std::int64_t>(row), 0);
  all.attributes["ignore_index"] = -100;
  std::vector<Tensor> outputs = call.outputs;
  right.run({call.signature, all, outputs, 1});
  keep(kept, outputs);
}
const Catalogued ignored_gradient{around_rows<Right>("cross_entropy", "ignored rows keep a gradient", "Paddle 28622", "bound",
                                                     [](const Kernel& right, const Call& call) {
  as_kept(right, call, [&](const Kept& kept, const std::vector<Tensor>& all) {
    const std::int64_t n = call.input.extents[1];
    for (std::size_t row = 0; row < kept.row.size() && !all[1].bytes.empty(); ++row)
      for (std::int64_t j = 0; j < n && !kept.row[row]; ++j) {
        const std::int64_t i = static_cast<std::int64_t>(row) * n + j;
        call.outputs[1].set(i, all[1].get(i));
      }
  });
})};
/// With smoothing on, an ignored row adds a loss.
const Catalogued ignored_smoothing{around_rows<Right>("cross_entropy", "ignored rows keep the smooth part", "pytorch 73205, tinygrad 3570", "bound",
                                                      [](const Kernel& right, const Call& call) {
  as_kept(right, call, [&](const Kept& kept, const std::vector<Tensor>& all) {
    if (attribute(call, "label_smoothing") == 0) return;
    if (reduction(call) == Reduction::sum && kept.count < call.input.extents[0]) call.outputs[0].set(0, all[0].get(0));
    for (std::size_t row = 0; reduction(call) == Reduction::none && row < kept.row.size(); ++row)
      if (!kept.row[row]) call.outputs[0].set(static_cast<std::int64_t>(row), attribute(call, "label_smoothing") * all[0].get(static_cast<std::int64_t>(row)));
  });
})};
/// 0 times the loss of an ignored row: NaN where its logits are special.
const Catalogued ignored_times_zero{around_rows<Right>("cross_entropy", "ignored rows multiplied by zero", "pytorch 41508", "special values",
                                                       [](const Kernel& right, const Call& call) {
  right.run(call);
  const Kept kept = kept_rows(call);
  const Tensor& x = call.input.inputs.at("x");
  const std::int64_t n = call.input.extents[1];
  double zeros = 0;
  for (std::size_t row = 0; row < kept.row.size(); ++row)
    for (std::int64_t j = 0; j < n && !kept.row[row]; ++j) zeros += 0 * x.get(static_cast<std::int64_t>(row) * n + j);
  if (reduction(call) != Reduction::none) call.outputs[0].set(0, call.outputs[0].get(0) + zeros);
})};
const Catalogued all_ignored_zero{around_rows<Right>("cross_entropy", "0 for the mean over no row", "pytorch 75181", "special values",
                                                     [](const Kernel& right, const Call& call) {
  right.run(call);
  if (kept_rows(call).count == 0) call.outputs[0].set(0, 0);
})};
/// The upstream of row 0 for every row of an unreduced loss.
const Catalogued upstream_broadcast{around_rows<Right>("cross_entropy", "upstream of the first row", "Liger-Kernel 678, Liger-Kernel 968", "bound",
                                                       [](const Kernel& right, const Call& call) {
  Case first = call.input;
  if (const auto g = first.inputs.find("g"); g != first.inputs.end() && !g->second.shape.empty()) g->second.strides[0] = 0;
  run_on(right, call, first);
})};
const Catalogued one_loss_written{around_rows<Right>("cross_entropy", "unreduced loss as a scalar", "Liger-Kernel 421", "not_fully_written",
                                                     [](const Kernel& right, const Call& call) {
  const std::vector<Tensor> before = call.outputs;
  right.run(call);
  if (reduction(call) != Reduction::none) return;
  const auto first = static_cast<std::ptrdiff_t>(before[0].width() * (before[0].position(0) + 1));
  std::copy(before[0].bytes.begin() + first, before[0].bytes.end(), call.outputs[0].bytes.begin() + first);
})};
/// Labels one row late.
const Catalogued labels_shifted{around_rows<Right>("cross_entropy", "label of the previous row", "stale label", "bound",
                                                   [](const Kernel& right, const Call& call) {
  Case shifted = call.input;
  const Tensor& label = call.input.inputs.at("label");
  for (std::int64_t row = 1; row < label.elements(); ++row) shifted.inputs.at("label").set(row, label.get(row - 1));
  run_on(right, call, shifted);
})};

}  // namespace
}  // namespace sumzero::mutants
