// softmax.online by the naive pair (m, l), l including the maximum.
#include <cmath>
#include <limits>

#include "fast/textbook/summation.hpp"
#include "fast/textbook/torch_forms.hpp"

namespace sumzero::textbook {
namespace {

constexpr std::size_t x = 0;                    // inputs
constexpr std::size_t m = 0, r = 1, empty = 2;  // outputs

/// One pass: l <- l exp(m - m') + exp(x - m'), from the identity (-inf, 0) handled by arithmetic. Read out as
/// r = l - 1 (defect H1). A leading -inf gives exp(-inf - (-inf)) = NaN, which stays; a row of -inf is
/// reported as empty because its m is -inf. The form has no backward. f32, f64; 16-bit storage in f32
/// arithmetic. Other special values by IEEE arithmetic. Deterministic. The error of a rescaling, (2 + c_e +
/// |m - m'|) u, recurs with every new maximum: the tree is sequential.
template <class T>
void online_ml(const Row<T>& row) {
  T top = -std::numeric_limits<T>::infinity(), l = 0;
  for (std::size_t i = 0; i < row.n; ++i) {
    const T value = row.in[x][i];
    const T next = value > top || std::isnan(value) ? value : top;
    l = l * std::exp(top - next) + std::exp(value - next);
    top = next;
  }
  write(row.out[m], top);
  write(row.out[r], l - T(1));
  write(row.out[empty], T(top == -std::numeric_limits<T>::infinity() ? 1 : 0));
}
static const Registered online_ml_kernel{
    RowKernel{.op = "softmax.online",
              .name = "textbook.online_ml",
              .summary = "online pair (m, l) with the maximum in l, r = l - 1; no backward",
              .f32 = online_ml<float>,
              .f64 = online_ml<double>,
              .contract_f32 = contract<float>(sequential_tree()),
              .contract_f64 = contract<double>(sequential_tree()),
              .aliases = {"textbook.pytorch"},
              .outputs = {"m", "r", "empty"}}};

}  // namespace
}  // namespace sumzero::textbook
