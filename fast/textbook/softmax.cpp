// softmax as libraries compute it. All forms add the maximum's 1 into s (defect H1: the component of a
// dominating entry collapses) and all backwards subtract a separately rounded mean from g (defect H2).
#include <cmath>

#include "fast/textbook/sequential_forms.hpp"
#include "fast/textbook/summation.hpp"
#include "fast/textbook/torch_forms.hpp"

namespace sumzero::textbook {
namespace {

constexpr std::size_t x = 0, g = 1;   // inputs
constexpr std::size_t p = 0, gx = 1;  // outputs

template <class T>
bool wants_gradient(const Row<T>& row) {
  return row.out[gx] && row.in[g];
}

/// exp(x_j - m) into `e`; returns m.
template <class T>
Values<T> shifted_exponentials(const Row<T>& row) {
  const T m = maximum(row.in[x], row.n);
  Values<T> e(row.n);
  for (std::size_t j = 0; j < row.n; ++j) e[j] = std::exp(row.in[x][j] - m);
  return e;
}

/// PyTorch CPU: p = exp(x-m) (1/s) in vector lanes; gx = (g - sum g p) p from the stored p.
/// f32, f64; 16-bit storage in f32 arithmetic. IEEE special values: a NaN or +inf row and a row of -inf are
/// NaN. Deterministic.
template <class T>
void torch_cpu(const Row<T>& row) {
  const Values<T> out = torch::softmax(row.storage, row.in[x], row.n);
  write(row.out[p], out);
  if (wants_gradient(row)) write(row.out[gx], torch::softmax_backward(row.storage, row.in[g], out));
}
static const Registered torch_cpu_kernel{
    RowKernel{.op = "softmax",
              .name = "textbook.torch_cpu",
              .summary = "PyTorch CPU: exp(x-m) * (1/s); backward (g - sum g*p) * p",
              .f32 = torch_cpu<float>,
              .f64 = torch_cpu<double>,
              .contract_f32 = torch_contract<float>(true),
              .contract_f64 = torch_contract<double>(true),
              .aliases = {"textbook.pytorch"}}};

/// PyTorch CUDA: s over Lanes threads, p = exp(x-m) / s; gx = g p - p sum g p from the stored p. The
/// difference of two rounded products loses more than (g - sum) p. Special values as torch_cpu.
template <std::size_t Lanes, class T>
void torch_cuda(const Row<T>& row) {
  const Values<T> e = shifted_exponentials(row);
  const T s = lane_sum<Lanes, T>(row.n, [&](std::size_t i) { return e[i]; });
  const Values<T> out = stored_row<T>(row.storage, row.n, [&](std::size_t j) { return e[j] / s; });
  write(row.out[p], out);
  if (!wants_gradient(row)) return;
  const T* upstream = row.in[g];
  const T sum = lane_sum<Lanes, T>(row.n, [&](std::size_t i) { return upstream[i] * out[i]; });
  for (std::size_t j = 0; j < row.n; ++j) row.out[gx][j] = upstream[j] * out[j] - out[j] * sum;
}
template <class T>
Contract torch_cuda_contract(std::size_t lanes) {
  Contract claim = contract<T>(lane_tree(lanes));
  claim.stores_intermediates = true;
  return claim;
}
/// One block of 1024 threads per row (rows wider than 1024; narrow rows use the same order here).
static const Registered torch_cuda_wide_kernel{
    RowKernel{.op = "softmax",
              .name = "textbook.torch_cuda_wide",
              .summary = "PyTorch CUDA, block per row: exp(x-m) / s; backward g*p - p*sum(g*p)",
              .f32 = torch_cuda<1024, float>,
              .f64 = torch_cuda<1024, double>,
              .contract_f32 = torch_cuda_contract<float>(1024),
              .contract_f64 = torch_cuda_contract<double>(1024)}};
/// One warp per row (rows up to 1024; wider rows use the same order here).
static const Registered torch_cuda_warp_old_kernel{
    RowKernel{.op = "softmax",
              .name = "textbook.torch_cuda_warp_old",
              .summary = "PyTorch CUDA, warp per row: exp(x-m) / s; backward g*p - p*sum(g*p)",
              .f32 = torch_cuda<32, float>,
              .f64 = torch_cuda<32, double>,
              .contract_f32 = torch_cuda_contract<float>(32),
              .contract_f64 = torch_cuda_contract<double>(32)}};

/// JAX: p = exp(x-m) / s, sums from left to right; the transposed custom JVP, c = p g and gx = c - p sum c,
/// reads p as the saved residual (stored). Special values as torch_cpu.
template <class T>
void jax(const Row<T>& row) {
  const Values<T> e = shifted_exponentials(row);
  const T s = sequential_sum<T>(row.n, [&](std::size_t i) { return e[i]; });
  const Values<T> out = stored_row<T>(row.storage, row.n, [&](std::size_t j) { return e[j] / s; });
  write(row.out[p], out);
  if (!wants_gradient(row)) return;
  const T* upstream = row.in[g];
  const T sum = sequential_sum<T>(row.n, [&](std::size_t i) { return out[i] * upstream[i]; });
  for (std::size_t j = 0; j < row.n; ++j) row.out[gx][j] = out[j] * upstream[j] - out[j] * sum;
}
template <class T>
Contract jax_contract() {
  Contract claim = contract<T>(sequential_tree());
  claim.stores_intermediates = true;
  return claim;
}
static const Registered jax_kernel{
    RowKernel{.op = "softmax",
              .name = "textbook.jax",
              .summary = "JAX: exp(x-m) / s; transposed custom JVP p*g - p*sum(p*g)",
              .f32 = jax<float>,
              .f64 = jax<double>,
              .contract_f32 = jax_contract<float>(),
              .contract_f64 = jax_contract<double>()}};

/// oneDNN, older reference path: separate passes max, subtract, exp, sum (left to right), scale by 1/s;
/// gx = p (g - sum g p) from the stored p. Special values as torch_cpu.
template <class T>
void onednn_old(const Row<T>& row) {
  const Values<T> e = shifted_exponentials(row);
  const T reciprocal = T(1) / sequential_sum<T>(row.n, [&](std::size_t i) { return e[i]; });
  const Values<T> out = stored_row<T>(row.storage, row.n, [&](std::size_t j) { return e[j] * reciprocal; });
  write(row.out[p], out);
  if (!wants_gradient(row)) return;
  const T* upstream = row.in[g];
  const T sum = sequential_sum<T>(row.n, [&](std::size_t i) { return upstream[i] * out[i]; });
  for (std::size_t j = 0; j < row.n; ++j) row.out[gx][j] = out[j] * (upstream[j] - sum);
}
template <class T>
Contract onednn_old_contract() {
  Contract claim = jax_contract<T>();
  claim.reciprocal = true;
  return claim;
}
static const Registered onednn_old_kernel{
    RowKernel{.op = "softmax",
              .name = "textbook.onednn_old",
              .summary = "oneDNN, older: max, sub, exp, sum, *(1/s); backward p*(g - sum g*p)",
              .f32 = onednn_old<float>,
              .f64 = onednn_old<double>,
              .contract_f32 = onednn_old_contract<float>(),
              .contract_f64 = onednn_old_contract<double>()}};

/// Forward only, f32 arithmetic: exp(x-m) stored and added up in Lanes lanes, then scaled by 1/s.
/// Special values as torch_cpu.
template <std::size_t Lanes>
void inference(const Row<float>& row) {
  const Values<float> e = shifted_exponentials(row);
  const float reciprocal = 1.0f / lane_sum<Lanes, float>(row.n, [&](std::size_t i) { return e[i]; });
  if (row.out[p])
    for (std::size_t j = 0; j < row.n; ++j) row.out[p][j] = e[j] * reciprocal;
}
Contract inference_contract(std::size_t lanes) {
  Contract claim = contract<float>(lane_tree(lanes));
  claim.reciprocal = true;
  return claim;
}
/// XNNPACK: four accumulators of eight lanes.
static const Registered xnnpack_kernel{
    RowKernel{.op = "softmax",
              .name = "textbook.xnnpack",
              .summary = "XNNPACK: store exp(x-max) and reduce-add, *(1/s); no backward",
              .f32 = inference<32>,
              .contract_f32 = inference_contract(32),
              .contract_f64 = {},
              .outputs = {"p"}}};
/// ONNX Runtime (MLAS): four accumulators of four lanes.
static const Registered onnxruntime_kernel{
    RowKernel{.op = "softmax",
              .name = "textbook.onnxruntime",
              .summary = "ONNX Runtime MLAS: exp-sum, *scale; no backward",
              .f32 = inference<16>,
              .contract_f32 = inference_contract(16),
              .contract_f64 = {},
              .outputs = {"p"}}};

/// ggml: exponentials in float, their sum in double from left to right, row scaled by float(1/s). The wide
/// sum removes the summation error, not H1's loss in p. Forward only. Special values as torch_cpu.
void ggml(const Row<float>& row) {
  const Values<float> e = shifted_exponentials(row);
  const double s = sequential_sum<double>(row.n, [&](std::size_t i) { return e[i]; });
  const float scale = static_cast<float>(1.0 / s);
  if (row.out[p])
    for (std::size_t j = 0; j < row.n; ++j) row.out[p][j] = e[j] * scale;
}
Contract ggml_contract() {
  Contract claim = contract<float>({SummationTree::Kind::compensated, 1, 0});
  claim.reciprocal = true;
  claim.note = "float exponentials, sum kept in double";
  return claim;
}
static const Registered ggml_kernel{
    RowKernel{.op = "softmax",
              .name = "textbook.ggml",
              .summary = "ggml: sum in double, row scaled by 1/s in float; no backward",
              .f32 = ggml,
              .contract_f32 = ggml_contract(),
              .contract_f64 = {},
              .outputs = {"p"}}};

/// The textbook order with every operation rounded to the storage format. Special values as torch_cpu.
template <class T>
void sequential_order(const Row<T>& row) {
  const PureArithmetic arithmetic(row.storage);
  const std::vector<double> out = sequential::softmax(arithmetic, sequential::read(row.in[x], row.n));
  sequential::write(row.out[p], out);
  if (wants_gradient(row))
    sequential::write(row.out[gx],
                      sequential::softmax_backward(arithmetic, sequential::read(row.in[g], row.n), out));
}
Registered register_sequential(Format format) {
  return Registered{sequential::kernel(format, "softmax", "textbook.sequential",
                                       "every operation rounded to storage, sums from left to right",
                                       sequential_order<float>, sequential_order<double>, true)};
}
static const Registered sequential_kernels[] = {
    register_sequential(Format::f32), register_sequential(Format::bf16), register_sequential(Format::f16),
    register_sequential(Format::f64)};

}  // namespace
}  // namespace sumzero::textbook
