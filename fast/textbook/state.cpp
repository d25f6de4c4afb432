// softmax.state by the usual pair (m, l), l = sum exp(x-m) with the maximum's 1 in it; read out as r = l - 1.
// Defect H1: r is a multiple of 2u and is 0 once the tail is below u.
#include <cmath>
#include <limits>

#include "fast/textbook/summation.hpp"
#include "fast/textbook/torch_forms.hpp"

namespace sumzero::textbook {
namespace {

constexpr std::size_t x = 0, gm = 1, gr = 2;            // inputs
constexpr std::size_t m = 0, r = 1, empty = 2, gx = 3;  // outputs

/// PyTorch CPU, as its tiled attention keeps a row: m and l in vector lanes. There is no flag: a row counts
/// as empty when m = -inf, and its l is NaN. Backward by autodiff of l - 1: e_j gr everywhere, and at the
/// first maximum gm - l gr on top of 1 gr, which cancels. f32, f64; 16-bit storage in f32 arithmetic. IEEE
/// special values. Deterministic.
template <class T>
void torch_cpu(const Row<T>& row) {
  const T* in = row.in[x];
  const std::size_t k = first_maximum(in, row.n);
  const T top = in[k];
  Values<T> e(row.n);
  for (std::size_t j = 0; j < row.n; ++j) e[j] = std::exp(in[j] - top);
  const T l = vector_sum<T>(row.n, [&](std::size_t i) { return e[i]; });
  write(row.out[m], top);
  write(row.out[r], l - T(1));
  write(row.out[empty], T(top == -std::numeric_limits<T>::infinity() ? 1 : 0));
  if (!row.out[gx]) return;
  const T to_maximum = row.in[gm] ? row.in[gm][0] : T(0), to_tail = row.in[gr] ? row.in[gr][0] : T(0);
  for (std::size_t j = 0; j < row.n; ++j) row.out[gx][j] = e[j] * to_tail;
  row.out[gx][k] += to_maximum - l * to_tail;
}
static const Registered torch_cpu_kernel{
    RowKernel{.op = "softmax.state",
              .name = "textbook.torch_cpu",
              .summary = "PyTorch CPU attention rows: (m, l) with the maximum in l, r = l - 1",
              .f32 = torch_cpu<float>,
              .f64 = torch_cpu<double>,
              .contract_f32 = vector_contract<float>(),
              .contract_f64 = vector_contract<double>(),
              .aliases = {"textbook.pytorch"}}};

}  // namespace
}  // namespace sumzero::textbook
