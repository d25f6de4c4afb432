// cross_entropy with hard labels as libraries compute it. All forms take log s with the maximum's 1 among its
// terms (Softmax Collapse, H1), except where log1p is said, and subtract a separately rounded target (H2).
// Common to all: loss of a row without the factor, smoothing convention (1-a) w_t nll + (a/n) sum_j w_j
// (-logp_j), f32 arithmetic for 16-bit storage, IEEE special values (a NaN or +inf row and a row of -inf are
// NaN), deterministic.
#include <cmath>

#include "fast/textbook/hard_target.hpp"
#include "fast/textbook/library_rows.hpp"
#include "fast/textbook/sequential_forms.hpp"
#include "fast/textbook/summation.hpp"
#include "fast/textbook/torch_forms.hpp"

namespace sumzero::textbook {
namespace {

using cross_entropy::gx;
using cross_entropy::loss;
using cross_entropy::x;

/// PyTorch CPU, a composition of stored tensors: nll_loss(log_softmax(x)), smoothing as a second term; the
/// factor is multiplied into the cotangent first: gx = g - exp(logp) sum g with g_t = -w_t factor. At the
/// target that is exp(logp_t) factor - factor: 0 from a gap of 16.6 on in f32.
template <class T>
void torch_cross_entropy(const Row<T>& row) {
  const Format f = row.storage;
  const HardTarget<T> target(row);
  const std::size_t t = target.label();
  const Values<T> logp = torch::log_softmax(f, row.in[x], row.n);
  const T a = target.smoothing(), uniform = a / static_cast<T>(row.n), kept = T(1) - a;
  if (row.out[loss]) {
    const T nll = stored(f, -logp[t] * target.weight(t));
    T result = nll;
    if (target.is_smooth()) {
      const T smooth = torch::sum(
          f, stored_row<T>(f, row.n, [&](std::size_t j) { return -(logp[j] * target.weight(j)); }));
      result = stored(f, stored(f, nll * kept) + stored(f, smooth * uniform));
    }
    *row.out[loss] = result;
  }
  if (!row.out[gx]) return;
  const T factor = stored(f, static_cast<T>(row.factor));
  Values<T> g(row.n, T(0));
  if (target.is_smooth()) {
    const T to_nll = stored(f, factor * kept), to_smooth = stored(f, factor * uniform);
    for (std::size_t j = 0; j < row.n; ++j) {
      g[j] = stored(f, -to_smooth * target.weight(j));
      if (j == t) g[j] = stored(f, g[j] + stored(f, -to_nll * target.weight(j)));
    }
  } else {
    g[t] = stored(f, -target.weight(t) * factor);
  }
  write(row.out[gx], torch::log_softmax_backward(f, g.data(), logp));
}
static const Registered torch_cross_entropy_kernel{RowKernel{
    .op = "cross_entropy",
    .name = "textbook.torch_cross_entropy",
    .summary = "PyTorch CPU: nll(log_softmax); backward exp(out)*sum t - t, factor multiplied in first",
    .f32 = torch_cross_entropy<float>,
    .f64 = torch_cross_entropy<double>,
    .contract_f32 = torch_contract<float>(false),
    .contract_f64 = torch_contract<double>(false),
    .aliases = {"textbook.pytorch"}}};

/// TensorFlow: loss mass (log s - (x-m)), gradient exp(x-m)/s - label, then the factor. In double only, the
/// entry of a unique maximum whose label is exactly 1 gets -tail/(1+tail); f32, 16-bit storage, ties and
/// smoothing do not.
template <class T>
void tensorflow_xent(const Row<T>& row) {
  const HardTarget<T> target(row);
  const TensorflowRow<T> logits(row.in[x], row.n);
  if (row.out[loss])
    *row.out[loss] = hard_loss(row, target, [&](std::size_t j) { return logits.negative_log(j); });
  if (!row.out[gx]) return;
  write_probability_minus_target(row, target, logits.probabilities());
  const std::size_t k = first_maximum(row.in[x], row.n);
  const T label = T(!target.is_smooth() && k == target.label());
  T patched;
  if (logits.patched_gradient(label, k, patched))
    row.out[gx][k] = patched * (static_cast<T>(row.factor) * target.weight(k));
}
static const Registered tensorflow_xent_kernel{RowKernel{
    .op = "cross_entropy",
    .name = "textbook.tensorflow_xent",
    .summary = "TensorFlow: exp(x-m)/s - t; only double, unique maximum and hard label: -tail/(1+tail)",
    .f32 = tensorflow_xent<float>,
    .f64 = tensorflow_xent<double>,
    .contract_f32 = contract<float>(lane_tree(vector_lanes<float>)),
    .contract_f64 = contract<double>(lane_tree(vector_lanes<double>))}};

/// JAX with optax: loss = lse - x_t with lse = m + log s formed first (absolute error u |m|); autodiff
/// gradient exp(x-m) (g/s) - g at the target, the factor multiplied in first. Sums from left to right.
template <class T>
void jax(const Row<T>& row) {
  const HardTarget<T> target(row);
  const JaxRow<T> logits(row.in[x], row.n);
  if (row.out[loss]) {
    const T lse = logits.logsumexp();
    *row.out[loss] = hard_loss(row, target, [&](std::size_t j) { return lse - row.in[x][j]; });
  }
  if (!row.out[gx]) return;
  const T factor = static_cast<T>(row.factor);
  const T to_exponentials = factor * target.total(row.n) / logits.s;
  for (std::size_t j = 0; j < row.n; ++j)
    row.out[gx][j] = logits.e[j] * to_exponentials + -(factor * target.mass(j));
}
static const Registered jax_kernel{
    RowKernel{.op = "cross_entropy",
              .name = "textbook.jax",
              .summary = "JAX and optax: logsumexp - x_t; autodiff softmax*g + (-g)",
              .f32 = jax<float>,
              .f64 = jax<double>,
              .contract_f32 = contract<float>(sequential_tree()),
              .contract_f64 = contract<double>(sequential_tree())}};

/// ONNX Runtime training, f32: loss -logp_t, gradient (exp(logp) - [j=t]) dY.
void onnxruntime(const Row<float>& row) {
  const HardTarget<float> target(row);
  const OnnxruntimeRow logits(row.in[x], row.n);
  if (row.out[loss])
    *row.out[loss] = hard_loss(row, target, [&](std::size_t j) { return -logits.log_probability(j); });
  if (row.out[gx]) write_probability_minus_target(row, target, logits.probabilities());
}
static const Registered onnxruntime_kernel{
    RowKernel{.op = "cross_entropy",
              .name = "textbook.onnxruntime",
              .summary = "ONNX Runtime training: (exp(logp) - 1{j=t})*dY",
              .f32 = onnxruntime,
              .contract_f32 = contract<float>(lane_tree(16)),
              .contract_f64 = {}}};

/// ggml, f32: a dense one-hot label; loss -sum logp label over all classes, so a -inf logit of another class
/// gives 0 * (-inf) = NaN; gradient (softmax - label) d. The wide sum only feeds the softmax: log s is of a
/// float.
void ggml(const Row<float>& row) {
  const HardTarget<float> target(row);
  const GgmlRow logits(row.in[x], row.n);
  if (row.out[loss])
    *row.out[loss] = -sequential_sum<float>(
        row.n, [&](std::size_t j) { return logits.log_probability(j) * target.mass(j); });
  if (row.out[gx]) write_probability_minus_target(row, target, logits.probabilities());
}
static const Registered ggml_kernel{
    RowKernel{.op = "cross_entropy",
              .name = "textbook.ggml",
              .summary = "ggml: dense labels, -sum logp*label; (softmax - label)*d",
              .f32 = ggml,
              .contract_f32 = contract<float>(sequential_tree()),
              .contract_f64 = {}}};

/// The half fix: loss by the tail form, (m - x_j) + log1p(r), but gradient exp(logp_t) - 1, which collapses
/// once 1 - p_t <= u/2: in f32 at a gap of 25 ln 2 + ln(n-1). Sums from left to right, no stores.
template <class T>
void log1p_forward_only(const Row<T>& row) {
  const HardTarget<T> target(row);
  const T* in = row.in[x];
  const std::size_t k = first_maximum(in, row.n);
  const T m = in[k];
  const T log_sum = std::log1p(
      sequential_sum<T>(row.n, [&](std::size_t i) { return i == k ? m - m : std::exp(in[i] - m); }));
  if (row.out[loss])
    *row.out[loss] = hard_loss(row, target, [&](std::size_t j) { return (m - in[j]) + log_sum; });
  if (!row.out[gx]) return;
  Values<T> p(row.n);
  for (std::size_t j = 0; j < row.n; ++j) p[j] = std::exp((in[j] - m) - log_sum);
  write_probability_minus_target(row, target, p);
}
static const Registered log1p_forward_only_kernel{
    RowKernel{.op = "cross_entropy",
              .name = "textbook.log1p_forward_only",
              .summary = "tail form and log1p in the loss, exp(logp_t) - 1 in the gradient",
              .f32 = log1p_forward_only<float>,
              .f64 = log1p_forward_only<double>,
              .contract_f32 = contract<float>(sequential_tree()),
              .contract_f64 = contract<double>(sequential_tree())}};

/// The textbook order (max, exp, sum from left to right, log, exp, subtract) with every operation rounded to
/// the storage format. Target masses are formed in the accumulator and rounded to storage, as is the factor.
template <class T>
void sequential_order(const Row<T>& row) {
  const PureArithmetic a(row.storage);
  const HardTarget<T> target(row);
  const std::vector<double> logp = sequential::log_softmax(a, sequential::read(row.in[x], row.n));
  const auto mass = [&](std::size_t j) { return a.round(target.mass(j)); };
  if (row.out[loss])
    *row.out[loss] = static_cast<T>(
        a.sum(row.n, [&](std::size_t j) { return mass(j) == 0 ? 0.0 : a.multiply(mass(j), -logp[j]); }));
  if (!row.out[gx]) return;
  const double total = a.round(target.total(row.n)), factor = a.round(row.factor);
  std::vector<double> gradient(row.n);
  for (std::size_t j = 0; j < row.n; ++j)
    gradient[j] = a.multiply(a.subtract(a.multiply(a.exp(logp[j]), total), mass(j)), factor);
  sequential::write(row.out[gx], gradient);
}
Registered register_sequential(Format format) {
  return Registered{
      sequential::kernel(format, "cross_entropy", "textbook.sequential",
                         "every operation rounded to storage, sums from left to right, exp(logp) - 1",
                         sequential_order<float>, sequential_order<double>, false)};
}
static const Registered sequential_kernels[] = {
    register_sequential(Format::f32), register_sequential(Format::bf16), register_sequential(Format::f16),
    register_sequential(Format::f64)};

}  // namespace
}  // namespace sumzero::textbook
