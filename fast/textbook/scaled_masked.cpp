// softmax.scaled_masked as frameworks compose it: scale, add the bias, fill masked entries with -inf,
// softmax. Carries H1 and H2 of softmax; a fully masked row is NaN.
#include <cmath>
#include <limits>

#include "fast/textbook/summation.hpp"
#include "fast/textbook/torch_forms.hpp"

namespace sumzero::textbook {
namespace {

constexpr std::size_t x = 0, bias = 1, mask = 2, g = 3;      // inputs
constexpr std::size_t p = 0, gx = 1, gbias = 2, gscale = 3;  // outputs; gscale is one value per row
constexpr std::size_t scale = 0;                             // attributes

/// scale x + bias, -inf where masked. Each of the operations leaves a tensor of `store`.
template <class T>
Values<T> masked_logits(const Row<T>& row, Format store) {
  const T factor = static_cast<T>(row.attribute[scale]);
  return stored_row<T>(store, row.n, [&](std::size_t j) {
    T y = stored(store, factor * row.in[x][j]);
    if (row.in[bias]) y = stored(store, y + row.in[bias][j]);
    return row.in[mask] && row.in[mask][j] == 0 ? -std::numeric_limits<T>::infinity() : y;
  });
}

/// Sends the softmax gradient gs through mask, bias and scale.
template <class T>
void write_gradients(const Row<T>& row, Values<T> gs, Format store) {
  const T factor = static_cast<T>(row.attribute[scale]);
  if (row.in[mask])
    for (std::size_t j = 0; j < row.n; ++j)
      if (row.in[mask][j] == 0) gs[j] = 0;
  write(row.out[gbias], gs);
  if (row.out[gx])
    for (std::size_t j = 0; j < row.n; ++j) row.out[gx][j] = gs[j] * factor;
  if (row.out[gscale])
    *row.out[gscale] =
        torch::sum(store, stored_row<T>(store, row.n, [&](std::size_t j) { return gs[j] * row.in[x][j]; }));
}

/// PyTorch CPU: stored tensors scale x, + bias, masked fill; softmax and its backward as in softmax's
/// torch_cpu; gx = scale gs, gbias = gs, gscale = sum gs x, masked entries 0. The tree of gscale's sum is the
/// softmax's. f32, f64; 16-bit storage in f32 arithmetic with stores. IEEE special values. Deterministic.
template <class T>
void torch_cpu(const Row<T>& row) {
  const Values<T> y = masked_logits(row, row.storage);
  const Values<T> out = torch::softmax(row.storage, y.data(), row.n);
  write(row.out[p], out);
  if (row.in[g]) write_gradients(row, torch::softmax_backward(row.storage, row.in[g], out), row.storage);
}
static const Registered torch_cpu_kernel{
    RowKernel{.op = "softmax.scaled_masked",
              .name = "textbook.torch_cpu",
              .summary = "PyTorch CPU: softmax(masked_fill(scale*x + bias)); backward (g - sum g*p) * p",
              .f32 = torch_cpu<float>,
              .f64 = torch_cpu<double>,
              .contract_f32 = torch_contract<float>(true),
              .contract_f64 = torch_contract<double>(true),
              .aliases = {"textbook.pytorch"}}};

/// JAX, one fused computation: no stores before p; p = exp(y-m) / s, sums of the softmax from left to right,
/// transposed custom JVP from the stored p. Special values as torch_cpu.
template <class T>
void jax(const Row<T>& row) {
  const Format accumulator = accumulator_of(row.storage);
  Values<T> e = masked_logits(row, accumulator);
  const T m = maximum(e.data(), row.n);
  for (T& entry : e) entry = std::exp(entry - m);
  const T s = sequential_sum<T>(row.n, [&](std::size_t i) { return e[i]; });
  const Values<T> out = stored_row<T>(row.storage, row.n, [&](std::size_t j) { return e[j] / s; });
  write(row.out[p], out);
  if (!row.in[g]) return;
  const T sum = sequential_sum<T>(row.n, [&](std::size_t i) { return out[i] * row.in[g][i]; });
  write_gradients(
      row,
      stored_row<T>(accumulator, row.n, [&](std::size_t j) { return out[j] * row.in[g][j] - out[j] * sum; }),
      accumulator);
}
template <class T>
Contract jax_contract() {
  Contract claim = contract<T>(sequential_tree());
  claim.stores_intermediates = true;
  return claim;
}
static const Registered jax_kernel{RowKernel{
    .op = "softmax.scaled_masked",
    .name = "textbook.jax",
    .summary = "JAX: softmax(where(mask, scale*x + bias, -inf)); transposed custom JVP p*g - p*sum(p*g)",
    .f32 = jax<float>,
    .f64 = jax<double>,
    .contract_f32 = jax_contract<float>(),
    .contract_f64 = jax_contract<double>()}};

/// ggml, forward only, f32 arithmetic: scale x + bias in float, exponentials in float, sum in double from
/// left to right, row scaled by float(1/s). Special values as torch_cpu.
void ggml(const Row<float>& row) {
  if (!row.out[p]) return;
  Values<float> e = masked_logits(row, Format::f32);
  const float m = maximum(e.data(), row.n);
  for (float& entry : e) entry = std::exp(entry - m);
  const float reciprocal =
      static_cast<float>(1.0 / sequential_sum<double>(row.n, [&](std::size_t i) { return e[i]; }));
  for (std::size_t j = 0; j < row.n; ++j) row.out[p][j] = e[j] * reciprocal;
}
Contract ggml_contract() {
  Contract claim = contract<float>({SummationTree::Kind::compensated, 1, 0});
  claim.reciprocal = true;
  claim.note = "float exponentials, sum kept in double";
  return claim;
}
static const Registered ggml_kernel{
    RowKernel{.op = "softmax.scaled_masked",
              .name = "textbook.ggml",
              .summary = "ggml: scale and mask in float, sum in double; no backward",
              .f32 = ggml,
              .contract_f32 = ggml_contract(),
              .contract_f64 = {},
              .outputs = {"p"}}};

}  // namespace
}  // namespace sumzero::textbook
