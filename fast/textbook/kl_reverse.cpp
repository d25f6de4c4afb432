// kl_reverse, T^2 KL(softmax(s/T) || softmax(t/T)), as it is usually written: sum p (log p - log q) over
// terms of both signs. Near equality loss and gradient are rounding noise, and the loss can be negative.
// Common to both: loss of a row without the factor, f32 arithmetic for 16-bit storage, IEEE special values
// (p_j = 0 with log p_j = -inf gives NaN), deterministic.
#include <cmath>

#include "fast/textbook/distillation_rows.hpp"
#include "fast/textbook/summation.hpp"
#include "fast/textbook/torch_forms.hpp"

namespace sumzero::textbook {
namespace {

using namespace distillation;

/// PyTorch CPU: kl_div(log_softmax(t/T), log_softmax(s/T), log_target) T^2, the student as the target.
/// Backward by autograd: e^l (l - input) g + e^l g, then log_softmax backward g - exp(out) sum g, then /T;
/// each a stored tensor.
template <class T>
void torch_kl_div_log_target(const Row<T>& row) {
  const Format f = row.storage;
  const Values<T> student = torch::divide(f, row.in[s], row.n, temperature_of(row));
  const Values<T> teacher = torch::divide(f, row.in[t], row.n, temperature_of(row));
  const Values<T> log_p = torch::log_softmax(f, student.data(), row.n);
  const Values<T> log_q = torch::log_softmax(f, teacher.data(), row.n);
  const torch::LogTargetDivergence<T> divergence(f, log_q, log_p);
  const T scale = loss_scale(row), upstream = stored(f, static_cast<T>(row.factor) * scale);
  write(row.out[loss], scale * divergence.loss());
  if (row.out[ds]) write(row.out[ds], through_log_softmax(row, divergence.target_gradient(upstream), log_p));
  if (row.out[dt]) write(row.out[dt], through_log_softmax(row, divergence.input_gradient(upstream), log_q));
}
static const Registered torch_kl_div_log_target_kernel{
    RowKernel{.op = "kl_reverse",
              .name = "textbook.torch_kl_div_log_target",
              .summary = "PyTorch CPU: kl_div(log q, log p, log_target), gradients by autograd",
              .f32 = torch_kl_div_log_target<float>,
              .f64 = torch_kl_div_log_target<double>,
              .contract_f32 = torch_contract<float>(false),
              .contract_f64 = torch_contract<double>(false),
              .aliases = {"textbook.pytorch"}}};

/// The formulas as papers print them, without stores: KL = sum p (log p - log q), ds = T p (rho - KL) with
/// rho = log p - log q, dt = T (q - p). p and log p come from two rounding paths.
template <class T>
void closed_form(const Row<T>& row) {
  const TemperedRows<T> rows(row, accumulator_of(row.storage));
  const T divergence = naive_divergence(rows.p, rows.log_p, rows.log_q);
  const T scale = loss_scale(row), factor = static_cast<T>(row.factor) * (scale / temperature_of(row));
  write(row.out[loss], scale * divergence);
  for (std::size_t j = 0; j < row.n; ++j) {
    if (row.out[ds]) row.out[ds][j] = rows.p[j] * ((rows.log_p[j] - rows.log_q[j]) - divergence) * factor;
    if (row.out[dt]) row.out[dt][j] = (rows.q[j] - rows.p[j]) * factor;
  }
}
template <class T>
Contract closed_form_contract() {
  Contract claim = torch_contract<T>(true);
  claim.stores_intermediates = false;
  return claim;
}
static const Registered closed_form_kernel{
    RowKernel{.op = "kl_reverse",
              .name = "textbook.closed_form",
              .summary = "sum p (log p - log q), ds = T p (rho - KL), dt = T (q - p)",
              .f32 = closed_form<float>,
              .f64 = closed_form<double>,
              .contract_f32 = closed_form_contract<float>(),
              .contract_f64 = closed_form_contract<double>()}};

}  // namespace
}  // namespace sumzero::textbook
