// sdpa.merge as split-key kernels write it.
#include <algorithm>
#include <cmath>
#include <cstddef>

#include "fast/textbook/summation.hpp"
#include "fast/textbook/torch_forms.hpp"

namespace sumzero::textbook {
namespace {

/// L = m + log(e^(L1 - m) + e^(L2 - m)) with the maximum's 1 in the sum (defect H1), then weights e^(L_i - L) from that rounded L,
/// which scale both by 1 + u |L| and need not sum to 1; gL_i = w_i (go . o_i - go . o + gL), the difference of two rounded means
/// (defect H2). Two empty parts are NaN (-inf - (-inf)). f32, f64; narrower storage in f32 arithmetic. Deterministic.
template <class T>
void log_add_exp(const Row<T>& row) {
  const T *o1 = row.in[0], *o2 = row.in[2], *go = row.in[4], l1 = row.in[1][0], l2 = row.in[3][0], gl = row.in[5] ? row.in[5][0] : T(0);
  const T m = std::max(l1, l2), l = m + std::log(std::exp(l1 - m) + std::exp(l2 - m)), w1 = std::exp(l1 - l), w2 = std::exp(l2 - l);
  Values<T> o(row.n), go1(row.n), go2(row.n);
  for (std::size_t c = 0; c < row.n; ++c) {
    o[c] = w1 * o1[c] + w2 * o2[c];
    go1[c] = go ? w1 * go[c] : T(0);
    go2[c] = go ? w2 * go[c] : T(0);
  }
  const auto mean = [&](const T* values) { return go ? sequential_sum<T>(row.n, [&](std::size_t c) { return go[c] * values[c]; }) : T(0); };
  write(row.out[0], o);
  write(row.out[1], l);
  write(row.out[2], go1);
  write(row.out[3], w1 * (mean(o1) - mean(o.data()) + gl));
  write(row.out[4], go2);
  write(row.out[5], w2 * (mean(o2) - mean(o.data()) + gl));
}
const Registered log_add_exp_kernel{
    RowKernel{.op = "sdpa.merge",
              .name = "textbook.log_add_exp",
              .summary = "weights exp(L_i - L) from the rounded L; gradient from go.o_i - go.o",
              .f32 = log_add_exp<float>,
              .f64 = log_add_exp<double>,
              .contract_f32 = contract<float>(sequential_tree()),
              .contract_f64 = contract<double>(sequential_tree())}};

}  // namespace
}  // namespace sumzero::textbook
