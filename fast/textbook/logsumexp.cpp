// logsumexp as libraries compute it: m + log s with the maximum's 1 among the terms of s (defect H1: for a
// dominating entry the tail is lost; visible in lse only where lse is near 0).
#include <cmath>

#include "fast/textbook/summation.hpp"
#include "fast/textbook/torch_forms.hpp"

namespace sumzero::textbook {
namespace {

constexpr std::size_t x = 0, g = 1;     // inputs; g is one value per row
constexpr std::size_t lse = 0, gx = 1;  // outputs

template <class T>
bool wants_gradient(const Row<T>& row) {
  return row.out[gx] && row.in[g];
}

/// PyTorch CPU, a composition: m is replaced by 0 where it is infinite, so a row of -inf gives -inf and a
/// +inf row +inf; sum of exp(x-m), log, + m, each a stored tensor. Backward g exp(x - lse) from the stored
/// lse: loses u |lse| relatively. f32, f64; 16-bit storage in f32 arithmetic with stores. NaN rows give NaN.
/// Deterministic.
template <class T>
void torch_cpu(const Row<T>& row) {
  const Format f = row.storage;
  const T* in = row.in[x];
  T m = maximum(in, row.n);
  if (std::isinf(m)) m = 0;
  const Values<T> e = stored_row<T>(f, row.n, [&](std::size_t j) { return std::exp(stored(f, in[j] - m)); });
  const T result = stored(f, stored(f, std::log(torch::sum(f, e))) + m);
  write(row.out[lse], result);
  if (!wants_gradient(row)) return;
  for (std::size_t j = 0; j < row.n; ++j)
    row.out[gx][j] = row.in[g][0] * stored(f, std::exp(stored(f, in[j] - result)));
}
static const Registered torch_cpu_kernel{
    RowKernel{.op = "logsumexp",
              .name = "textbook.torch_cpu",
              .summary = "PyTorch CPU: log(sum exp(x-m)) + m; backward g*exp(x - lse)",
              .f32 = torch_cpu<float>,
              .f64 = torch_cpu<double>,
              .contract_f32 = torch_contract<float>(false),
              .contract_f64 = torch_contract<double>(false),
              .aliases = {"textbook.pytorch"}}};

/// JAX: m (0 where infinite) + log of the sequential sum; autodiff backward exp(x-m) (g / s).
/// Special values as torch_cpu.
template <class T>
void jax(const Row<T>& row) {
  const T* in = row.in[x];
  T m = maximum(in, row.n);
  if (std::isinf(m)) m = 0;
  Values<T> e(row.n);
  for (std::size_t j = 0; j < row.n; ++j) e[j] = std::exp(in[j] - m);
  const T s = sequential_sum<T>(row.n, [&](std::size_t i) { return e[i]; });
  write(row.out[lse], std::log(s) + m);
  if (!wants_gradient(row)) return;
  const T to_sum = row.in[g][0] / s;
  for (std::size_t j = 0; j < row.n; ++j) row.out[gx][j] = e[j] * to_sum;
}
static const Registered jax_kernel{RowKernel{.op = "logsumexp",
                                             .name = "textbook.jax",
                                             .summary = "JAX: log(sum exp(x-m)) + m; autodiff exp(x-m)*(g/s)",
                                             .f32 = jax<float>,
                                             .f64 = jax<double>,
                                             .contract_f32 = contract<float>(sequential_tree()),
                                             .contract_f64 = contract<double>(sequential_tree())}};

/// The half fix: m + log1p(r), but the backward exponentiates x - lse with lse rounded: u |lse| relatively.
/// Special values: a row of -inf and a row with +inf give NaN.
template <class T>
void log1p_forward_only(const Row<T>& row) {
  const T* in = row.in[x];
  const std::size_t k = first_maximum(in, row.n);
  const T m = in[k];
  const T r = sequential_sum<T>(row.n, [&](std::size_t i) { return i == k ? m - m : std::exp(in[i] - m); });
  const T result = m + std::log1p(r);
  write(row.out[lse], result);
  if (!wants_gradient(row)) return;
  for (std::size_t j = 0; j < row.n; ++j) row.out[gx][j] = row.in[g][0] * std::exp(in[j] - result);
}
static const Registered log1p_forward_only_kernel{
    RowKernel{.op = "logsumexp",
              .name = "textbook.log1p_forward_only",
              .summary = "tail form and log1p in the forward, g*exp(x - lse) in the backward",
              .f32 = log1p_forward_only<float>,
              .f64 = log1p_forward_only<double>,
              .contract_f32 = contract<float>(sequential_tree()),
              .contract_f64 = contract<double>(sequential_tree())}};

}  // namespace
}  // namespace sumzero::textbook
