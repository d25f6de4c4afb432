// Kernels of the operator `toy`: tail first, and with the maximum's 1 among the terms of the sum.
#include <algorithm>
#include <cmath>

#include "reference/operator.hpp"

namespace sumzero {
namespace {

template <class T, bool tail_first>
void toy_row(const Row<T>& row) {
  const T* x = row.in[0];
  std::size_t k = 0;
  bool finite = true;
  for (std::size_t j = 0; j < row.n; ++j) {
    if (x[j] > x[k]) k = j;
    finite = finite && x[j] < std::numeric_limits<T>::infinity();
  }
  if (!finite || !(x[k] > -std::numeric_limits<T>::infinity())) {
    if (row.out[0]) row.out[0][0] = std::numeric_limits<T>::quiet_NaN();
    if (row.out[1]) std::fill_n(row.out[1], row.n, std::numeric_limits<T>::quiet_NaN());
    return;
  }
  T r = tail_first ? 0 : 1;
  for (std::size_t j = 0; j < row.n; ++j)
    if (j != k) r += std::exp(x[j] - x[k]);
  const T log_s = tail_first ? std::log1p(r) : std::log(r), s = tail_first ? 1 + r : r;
  if (row.out[0]) row.out[0][0] = 2 * (x[k] + log_s);
  if (!row.out[1]) return;
  const T g = row.in[1] ? row.in[1][0] : T(0);
  for (std::size_t j = 0; j < row.n; ++j) row.out[1][j] = 2 * (std::exp(x[j] - x[k]) / s * g);
}

Contract contract(Format accumulator) {
  Contract c;
  c.accumulator = accumulator;
  c.exp_error = c.log_error = 2;  // 1 ulp
  c.summation = {SummationTree::Kind::sequential};
  c.monotone = false;
  return c;
}

const Registered accurate{RowKernel{.op = "toy", .name = "fast", .summary = "tail first", .f32 = toy_row<float, true>, .f64 = toy_row<double, true>,
                                    .contract_f32 = contract(Format::f32), .contract_f64 = contract(Format::f64)}};
const Registered textbook{RowKernel{.op = "toy", .name = "textbook", .summary = "log of the whole sum", .f32 = toy_row<float, false>,
                                    .f64 = toy_row<double, false>, .contract_f32 = contract(Format::f32), .contract_f64 = contract(Format::f64)}};

}  // namespace
}  // namespace sumzero
