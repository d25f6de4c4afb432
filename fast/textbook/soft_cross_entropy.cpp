// cross_entropy.soft, targets given as probabilities q with optional class weights w: loss sum_i w_i q_i
// (-logp_i). All forms take log s with the maximum's 1 among its terms (H1), subtract q from a separately
// rounded probability (H2), and form 0 * (-inf) = NaN where q_i = 0 meets a logit of -inf. Common to all:
// loss of a row without the factor, gq_i = -w_i logp_i factor where offered, f32 arithmetic for 16-bit
// storage, IEEE special values, deterministic.
#include <cmath>

#include "fast/textbook/library_rows.hpp"
#include "fast/textbook/summation.hpp"
#include "fast/textbook/torch_forms.hpp"

namespace sumzero::textbook {
namespace {

constexpr std::size_t x = 0, q = 1, weight = 2;  // inputs
constexpr std::size_t loss = 0, gx = 1, gq = 2;  // outputs

template <class T>
T class_weight(const Row<T>& row, std::size_t j) {
  return row.in[weight] ? row.in[weight][j] : T(1);
}
/// w_j q_j
template <class T>
T mass(const Row<T>& row, std::size_t j) {
  return row.in[weight] ? row.in[q][j] * row.in[weight][j] : row.in[q][j];
}

/// PyTorch CPU, a composition of stored tensors: -(log_softmax(x) * q * w).sum(); the factor is multiplied
/// into the cotangent first; gx = exp(logp) sum t - t with t = q w factor, so the sum of q is honoured.
template <class T>
void torch_cross_entropy(const Row<T>& row) {
  const Format f = row.storage;
  const Values<T> logp = torch::log_softmax(f, row.in[x], row.n);
  const auto weighted = [&](T value, std::size_t j) {
    return row.in[weight] ? stored(f, value * row.in[weight][j]) : value;
  };
  if (row.out[loss])
    *row.out[loss] = -torch::sum(f, stored_row<T>(f, row.n, [&](std::size_t j) {
                                   return weighted(stored(f, logp[j] * row.in[q][j]), j);
                                 }));
  if (!row.out[gx] && !row.out[gq]) return;
  const T cotangent = -stored(f, static_cast<T>(row.factor));
  const Values<T> to_product = stored_row<T>(f, row.n, [&](std::size_t j) { return weighted(cotangent, j); });
  if (row.out[gq])
    for (std::size_t j = 0; j < row.n; ++j) row.out[gq][j] = to_product[j] * logp[j];
  if (!row.out[gx]) return;
  const Values<T> g = stored_row<T>(f, row.n, [&](std::size_t j) { return to_product[j] * row.in[q][j]; });
  write(row.out[gx], torch::log_softmax_backward(f, g.data(), logp));
}
static const Registered torch_cross_entropy_kernel{
    RowKernel{.op = "cross_entropy.soft",
              .name = "textbook.torch_cross_entropy",
              .summary = "PyTorch CPU: -(log_softmax*q*w).sum(); backward exp(out)*sum t - t",
              .f32 = torch_cross_entropy<float>,
              .f64 = torch_cross_entropy<double>,
              .contract_f32 = torch_contract<float>(false),
              .contract_f64 = torch_contract<double>(false),
              .aliases = {"textbook.pytorch"}}};

/// Writes gx = factor (prob - q): the sum of q is taken to be 1, so a row whose q adds up to 1 + theta has a
/// gradient sum of -theta factor, and an all-zero label row returns the softmax. With class weights, which
/// these libraries do not know, the sum of w q is honoured.
template <class T>
void write_probability_minus_label(const Row<T>& row, const Values<T>& probability) {
  if (!row.out[gx]) return;
  const T factor = static_cast<T>(row.factor);
  const T total =
      row.in[weight] ? sequential_sum<T>(row.n, [&](std::size_t j) { return mass(row, j); }) : T(1);
  for (std::size_t j = 0; j < row.n; ++j) row.out[gx][j] = (probability[j] * total - mass(row, j)) * factor;
}

/// TensorFlow: loss sum t (log s - (x-m)), gradient exp(x-m)/s - t without the sum of t. In double only, the
/// entry of a unique maximum whose label is exactly 1 gets -tail/(1+tail).
template <class T>
void tensorflow_xent(const Row<T>& row) {
  const TensorflowRow<T> logits(row.in[x], row.n);
  const T factor = static_cast<T>(row.factor);
  if (row.out[loss])
    *row.out[loss] = lane_sum<vector_lanes<T>, T>(
        row.n, [&](std::size_t j) { return mass(row, j) * logits.negative_log(j); });
  if (row.out[gq])
    for (std::size_t j = 0; j < row.n; ++j)
      row.out[gq][j] = class_weight(row, j) * logits.negative_log(j) * factor;
  if (!row.out[gx]) return;
  write_probability_minus_label(row, logits.probabilities());
  const std::size_t k = first_maximum(row.in[x], row.n);
  T patched;
  if (logits.patched_gradient(mass(row, k), k, patched)) row.out[gx][k] = patched * factor;
}
static const Registered tensorflow_xent_kernel{
    RowKernel{.op = "cross_entropy.soft",
              .name = "textbook.tensorflow_xent",
              .summary = "TensorFlow: exp(x-m)/s - t, sum of t taken as 1; double, one-hot: -tail/(1+tail)",
              .f32 = tensorflow_xent<float>,
              .f64 = tensorflow_xent<double>,
              .contract_f32 = contract<float>(lane_tree(vector_lanes<float>)),
              .contract_f64 = contract<double>(lane_tree(vector_lanes<double>))}};

/// JAX with optax: -sum(q log_softmax(x)), sums from left to right; autodiff gradient exp(x-m) (sum t / s) -
/// t with t = q w factor.
template <class T>
void jax(const Row<T>& row) {
  const JaxRow<T> logits(row.in[x], row.n);
  const T factor = static_cast<T>(row.factor);
  if (row.out[loss])
    *row.out[loss] =
        -sequential_sum<T>(row.n, [&](std::size_t j) { return mass(row, j) * logits.log_probability(j); });
  if (row.out[gq])
    for (std::size_t j = 0; j < row.n; ++j)
      row.out[gq][j] = -(class_weight(row, j) * factor) * logits.log_probability(j);
  if (!row.out[gx]) return;
  Values<T> t(row.n);
  for (std::size_t j = 0; j < row.n; ++j) t[j] = mass(row, j) * factor;
  const T to_exponentials = sequential_sum<T>(row.n, [&](std::size_t i) { return t[i]; }) / logits.s;
  for (std::size_t j = 0; j < row.n; ++j) row.out[gx][j] = logits.e[j] * to_exponentials + -t[j];
}
static const Registered jax_kernel{
    RowKernel{.op = "cross_entropy.soft",
              .name = "textbook.jax",
              .summary = "JAX and optax: -sum q*log_softmax; autodiff exp(shifted)*(sum t / s) - t",
              .f32 = jax<float>,
              .f64 = jax<double>,
              .contract_f32 = contract<float>(sequential_tree()),
              .contract_f64 = contract<double>(sequential_tree())}};

/// ONNX Runtime training, dense labels, f32: loss -sum q logp, gradient (exp(logp) - label) dY without the
/// sum of q.
void onnxruntime(const Row<float>& row) {
  const OnnxruntimeRow logits(row.in[x], row.n);
  if (row.out[loss])
    *row.out[loss] =
        -lane_sum<16, float>(row.n, [&](std::size_t j) { return mass(row, j) * logits.log_probability(j); });
  if (row.out[gx]) write_probability_minus_label(row, logits.probabilities());
}
static const Registered onnxruntime_kernel{RowKernel{
    .op = "cross_entropy.soft",
    .name = "textbook.onnxruntime",
    .summary = "ONNX Runtime training, dense labels: (exp(logp) - label)*dY, sum of labels taken as 1",
    .f32 = onnxruntime,
    .contract_f32 = contract<float>(lane_tree(16)),
    .contract_f64 = {},
    .outputs = {"loss", "gx"}}};

/// ggml, f32: loss -sum logp label, gradient (softmax - label) d, also for all-zero label rows.
void ggml(const Row<float>& row) {
  const GgmlRow logits(row.in[x], row.n);
  if (row.out[loss])
    *row.out[loss] = -sequential_sum<float>(
        row.n, [&](std::size_t j) { return logits.log_probability(j) * mass(row, j); });
  if (row.out[gx]) write_probability_minus_label(row, logits.probabilities());
}
static const Registered ggml_kernel{
    RowKernel{.op = "cross_entropy.soft",
              .name = "textbook.ggml",
              .summary = "ggml: -sum logp*label; (softmax - label)*d, also for all-zero label rows",
              .f32 = ggml,
              .contract_f32 = contract<float>(sequential_tree()),
              .contract_f64 = {},
              .outputs = {"loss", "gx"}}};

}  // namespace
}  // namespace sumzero::textbook
