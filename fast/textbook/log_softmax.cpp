// log_softmax as libraries compute it. All forms but log1p_forward_only take log s with the maximum's 1 among
// the terms of s (defect H1), and all backwards round exp(logp) sum g alone and subtract it from g (H2).
#include <cmath>

#include "fast/textbook/sequential_forms.hpp"
#include "fast/textbook/summation.hpp"
#include "fast/textbook/torch_forms.hpp"

namespace sumzero::textbook {
namespace {

constexpr std::size_t x = 0, g = 1;      // inputs
constexpr std::size_t logp = 0, gx = 1;  // outputs

template <class T>
bool wants_gradient(const Row<T>& row) {
  return row.out[gx] && row.in[g];
}

/// PyTorch CPU: logp = (x-m) - log s in vector lanes; gx = g - exp(logp) sum g from the stored logp.
/// f32, f64; 16-bit storage in f32 arithmetic. IEEE special values: a NaN or +inf row and a row of -inf are
/// NaN. Deterministic.
template <class T>
void torch_cpu(const Row<T>& row) {
  const Values<T> out = torch::log_softmax(row.storage, row.in[x], row.n);
  write(row.out[logp], out);
  if (wants_gradient(row)) write(row.out[gx], torch::log_softmax_backward(row.storage, row.in[g], out));
}
static const Registered torch_cpu_kernel{
    RowKernel{.op = "log_softmax",
              .name = "textbook.torch_cpu",
              .summary = "PyTorch CPU: (x-m) - log s; backward g - exp(out)*sum g",
              .f32 = torch_cpu<float>,
              .f64 = torch_cpu<double>,
              .contract_f32 = torch_contract<float>(false),
              .contract_f64 = torch_contract<double>(false),
              .aliases = {"textbook.pytorch"}}};

/// g - exp(logp) sum g over Lanes threads.
template <std::size_t Lanes, class T>
void cuda_backward(const Row<T>& row, const Values<T>& out) {
  const T* upstream = row.in[g];
  const T sum = lane_sum<Lanes, T>(row.n, [&](std::size_t i) { return upstream[i]; });
  for (std::size_t j = 0; j < row.n; ++j) row.out[gx][j] = upstream[j] - std::exp(out[j]) * sum;
}
template <class T>
Contract torch_cuda_contract(std::size_t lanes, const char* note) {
  Contract claim = contract<T>(lane_tree(lanes));
  claim.stores_intermediates = true;
  claim.note = note;
  return claim;
}

/// PyTorch CUDA, one block of 1024 threads per row (rows wider than 1024; narrow rows use the same order
/// here): (x-m) - log s. Special values as torch_cpu.
template <class T>
void torch_cuda_wide(const Row<T>& row) {
  const T* in = row.in[x];
  const T m = maximum(in, row.n);
  const T log_sum = std::log(lane_sum<1024, T>(row.n, [&](std::size_t i) { return std::exp(in[i] - m); }));
  const Values<T> out =
      stored_row<T>(row.storage, row.n, [&](std::size_t j) { return (in[j] - m) - log_sum; });
  write(row.out[logp], out);
  if (wants_gradient(row)) cuda_backward<1024>(row, out);
}
static const Registered torch_cuda_wide_kernel{
    RowKernel{.op = "log_softmax",
              .name = "textbook.torch_cuda_wide",
              .summary = "PyTorch CUDA, block per row: (x-m) - log s; backward g - exp(out)*sum g",
              .f32 = torch_cuda_wide<float>,
              .f64 = torch_cuda_wide<double>,
              .contract_f32 = torch_cuda_contract<float>(1024, ""),
              .contract_f64 = torch_cuda_contract<double>(1024, "")}};

/// PyTorch CUDA, one warp per row, an older revision: m + log s is formed first, then subtracted from x.
/// Loses u |m| absolutely and breaks shift invariance. Special values as torch_cpu.
template <class T>
void torch_cuda_warp_old(const Row<T>& row) {
  const T* in = row.in[x];
  const T m = maximum(in, row.n);
  const T s = lane_sum<32, T>(row.n, [&](std::size_t i) { return std::exp(in[i] - m); });
  const T lse = m + std::log(s);
  const Values<T> out = stored_row<T>(row.storage, row.n, [&](std::size_t j) { return in[j] - lse; });
  write(row.out[logp], out);
  if (wants_gradient(row)) cuda_backward<32>(row, out);
}
static const Registered torch_cuda_warp_old_kernel{RowKernel{
    .op = "log_softmax",
    .name = "textbook.torch_cuda_warp_old",
    .summary = "PyTorch CUDA, warp per row, older: x - (m + log s); backward g - exp(out)*sum g",
    .f32 = torch_cuda_warp_old<float>,
    .f64 = torch_cuda_warp_old<double>,
    .contract_f32 = torch_cuda_contract<float>(32, "m + log s is rounded before the subtraction"),
    .contract_f64 = torch_cuda_contract<double>(32, "m + log s is rounded before the subtraction")}};

/// JAX: shifted - log sum exp(shifted), sums from left to right; autodiff backward g + exp(shifted) (-sum g /
/// s) from the saved exponentials, not from logp. Special values as torch_cpu.
template <class T>
void jax(const Row<T>& row) {
  const T m = maximum(row.in[x], row.n);
  Values<T> shifted(row.n), e(row.n);
  for (std::size_t j = 0; j < row.n; ++j) {
    shifted[j] = row.in[x][j] - m;
    e[j] = std::exp(shifted[j]);
  }
  const T s = sequential_sum<T>(row.n, [&](std::size_t i) { return e[i]; });
  const T log_sum = std::log(s);
  if (row.out[logp])
    for (std::size_t j = 0; j < row.n; ++j) row.out[logp][j] = shifted[j] - log_sum;
  if (!wants_gradient(row)) return;
  const T* upstream = row.in[g];
  const T to_sum = -sequential_sum<T>(row.n, [&](std::size_t i) { return upstream[i]; }) / s;
  for (std::size_t j = 0; j < row.n; ++j) row.out[gx][j] = upstream[j] + e[j] * to_sum;
}
static const Registered jax_kernel{
    RowKernel{.op = "log_softmax",
              .name = "textbook.jax",
              .summary = "JAX: shifted - log sum exp(shifted); autodiff g + exp(shifted)*(-sum g / s)",
              .f32 = jax<float>,
              .f64 = jax<double>,
              .contract_f32 = contract<float>(sequential_tree()),
              .contract_f64 = contract<double>(sequential_tree())}};

/// The oneDNN-style log-softmax variant: separate passes, sums from left to right; gx = g - exp(logp) sum g
/// from the stored logp. Special values as torch_cpu.
template <class T>
void onednn_old(const Row<T>& row) {
  const T* in = row.in[x];
  const T m = maximum(in, row.n);
  const T log_sum = std::log(sequential_sum<T>(row.n, [&](std::size_t i) { return std::exp(in[i] - m); }));
  const Values<T> out =
      stored_row<T>(row.storage, row.n, [&](std::size_t j) { return (in[j] - m) - log_sum; });
  write(row.out[logp], out);
  if (!wants_gradient(row)) return;
  const T* upstream = row.in[g];
  const T sum = sequential_sum<T>(row.n, [&](std::size_t i) { return upstream[i]; });
  for (std::size_t j = 0; j < row.n; ++j) row.out[gx][j] = upstream[j] - std::exp(out[j]) * sum;
}
template <class T>
Contract onednn_old_contract() {
  Contract claim = contract<T>(sequential_tree());
  claim.stores_intermediates = true;
  return claim;
}
static const Registered onednn_old_kernel{
    RowKernel{.op = "log_softmax",
              .name = "textbook.onednn_old",
              .summary = "oneDNN, older, variant: (x-m) - log s left to right; backward g - exp(y)*sum g",
              .f32 = onednn_old<float>,
              .f64 = onednn_old<double>,
              .contract_f32 = onednn_old_contract<float>(),
              .contract_f64 = onednn_old_contract<double>()}};

/// ONNX Runtime (MLAS), forward only, f32 arithmetic: (x + (-m)) - log s, s in four accumulators of four
/// lanes. Special values as torch_cpu.
void onnxruntime(const Row<float>& row) {
  if (!row.out[logp]) return;
  const float* in = row.in[x];
  const float negative_maximum = -maximum(in, row.n);
  const float log_sum =
      std::log(lane_sum<16, float>(row.n, [&](std::size_t i) { return std::exp(in[i] + negative_maximum); }));
  for (std::size_t j = 0; j < row.n; ++j) row.out[logp][j] = (in[j] + negative_maximum) - log_sum;
}
static const Registered onnxruntime_kernel{
    RowKernel{.op = "log_softmax",
              .name = "textbook.onnxruntime",
              .summary = "ONNX Runtime MLAS: x + (-m) - log s; no backward",
              .f32 = onnxruntime,
              .contract_f32 = contract<float>(lane_tree(16)),
              .contract_f64 = {},
              .outputs = {"logp"}}};

/// The half fix: logp = (x-m) - log1p(r) with r the sum without the first maximum, but the backward still is
/// g - exp(logp) sum g: its component at the maximum collapses once 1 - p <= u/2. r is seeded with m - m,
/// which keeps a NaN or +inf maximum. f32, f64; 16-bit storage in f32 arithmetic without stores.
/// Deterministic.
template <class T>
void log1p_forward_only(const Row<T>& row) {
  const T* in = row.in[x];
  const std::size_t k = first_maximum(in, row.n);
  const T m = in[k];
  const T r = sequential_sum<T>(row.n, [&](std::size_t i) { return i == k ? m - m : std::exp(in[i] - m); });
  const T log_sum = std::log1p(r);
  Values<T> out(row.n);
  for (std::size_t j = 0; j < row.n; ++j) out[j] = (in[j] - m) - log_sum;
  write(row.out[logp], out);
  if (!wants_gradient(row)) return;
  const T* upstream = row.in[g];
  const T sum = sequential_sum<T>(row.n, [&](std::size_t i) { return upstream[i]; });
  for (std::size_t j = 0; j < row.n; ++j) row.out[gx][j] = upstream[j] - std::exp(out[j]) * sum;
}
static const Registered log1p_forward_only_kernel{
    RowKernel{.op = "log_softmax",
              .name = "textbook.log1p_forward_only",
              .summary = "tail form and log1p in the forward, g - exp(logp)*sum g in the backward",
              .f32 = log1p_forward_only<float>,
              .f64 = log1p_forward_only<double>,
              .contract_f32 = contract<float>(sequential_tree()),
              .contract_f64 = contract<double>(sequential_tree())}};

/// The textbook order with every operation rounded to the storage format. Special values as torch_cpu.
template <class T>
void sequential_order(const Row<T>& row) {
  const PureArithmetic arithmetic(row.storage);
  const std::vector<double> out = sequential::log_softmax(arithmetic, sequential::read(row.in[x], row.n));
  sequential::write(row.out[logp], out);
  if (wants_gradient(row))
    sequential::write(row.out[gx],
                      sequential::log_softmax_backward(arithmetic, sequential::read(row.in[g], row.n), out));
}
Registered register_sequential(Format format) {
  return Registered{sequential::kernel(format, "log_softmax", "textbook.sequential",
                                       "every operation rounded to storage, sums from left to right",
                                       sequential_order<float>, sequential_order<double>, false)};
}
static const Registered sequential_kernels[] = {
    register_sequential(Format::f32), register_sequential(Format::bf16), register_sequential(Format::f16),
    register_sequential(Format::f64)};

}  // namespace
}  // namespace sumzero::textbook
