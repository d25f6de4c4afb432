// softmax.merge by the naive pair (m, l), l including the maximum.
#include <cmath>
#include <limits>

#include "fast/textbook/summation.hpp"
#include "fast/textbook/torch_forms.hpp"

namespace sumzero::textbook {
namespace {

constexpr std::size_t m1 = 0, r1 = 1, e1 = 2, m2 = 3, r2 = 4, e2 = 5, gm = 6, gr = 7;  // inputs
constexpr std::size_t m = 0, r = 1, empty = 2, gm1 = 3, gr1 = 4, gm2 = 5, gr2 = 6;     // outputs

/// l_i = 1 + r_i on entry (absorbs r_i below u: defect H1), l = l1 exp(m1-m) + l2 exp(m2-m), r = l - 1 on
/// read-out. An empty state is (-inf, 0), handled by arithmetic: two empty states give exp(-inf - (-inf)) =
/// NaN in r, and merging with the identity does not return r's bits. Backward by autodiff; the maximum's
/// cotangent gm - l gr goes to the first state on a tie, and its l1 gr part cancels against l gr. f32, f64;
/// 16-bit storage in f32 arithmetic. Special values by IEEE arithmetic. Deterministic.
template <class T>
void online_ml(const Row<T>& row) {
  const auto absent = [&](std::size_t flag) { return row.in[flag] && row.in[flag][0] != 0; };
  const T identity = -std::numeric_limits<T>::infinity();
  const T top1 = absent(e1) ? identity : row.in[m1][0], top2 = absent(e2) ? identity : row.in[m2][0];
  const T l1 = absent(e1) ? T(0) : T(1) + row.in[r1][0], l2 = absent(e2) ? T(0) : T(1) + row.in[r2][0];
  const bool first_wins = top1 >= top2 || std::isnan(top1);
  const T top = first_wins ? top1 : top2;
  const T a1 = std::exp(top1 - top), a2 = std::exp(top2 - top);
  const T l = l1 * a1 + l2 * a2;
  write(row.out[m], top);
  write(row.out[r], l - T(1));
  write(row.out[empty], T(top == identity ? 1 : 0));

  const T to_maximum = row.in[gm] ? row.in[gm][0] : T(0), to_tail = row.in[gr] ? row.in[gr][0] : T(0);
  const T winner = to_maximum - to_tail * l;
  write(row.out[gr1], to_tail * a1);
  write(row.out[gr2], to_tail * a2);
  write(row.out[gm1], to_tail * l1 * a1 + (first_wins ? winner : T(0)));
  write(row.out[gm2], to_tail * l2 * a2 + (first_wins ? T(0) : winner));
}
static const Registered online_ml_kernel{
    RowKernel{.op = "softmax.merge",
              .name = "textbook.online_ml",
              .summary = "merge of (m, l) pairs with the maximum in l, r = l - 1",
              .f32 = online_ml<float>,
              .f64 = online_ml<double>,
              .contract_f32 = contract<float>(sequential_tree()),
              .contract_f64 = contract<double>(sequential_tree()),
              .aliases = {"textbook.pytorch"}}};

}  // namespace
}  // namespace sumzero::textbook
