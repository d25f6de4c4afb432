// jsd, T^2 [beta KL(q||M) + (1-beta) KL(p||M)] with M = beta q + (1-beta) p and beta the teacher's weight,
// through the log of the averaged probability. Near equality loss and gradients are rounding noise, the loss
// can be negative, and an entry that underflows in both rows gives 0 * (-inf - (-inf)) = NaN. Common to both:
// loss of a row without the factor, f32 arithmetic for 16-bit storage, other special values by IEEE
// arithmetic, deterministic.
#include <cmath>

#include "fast/textbook/distillation_rows.hpp"
#include "fast/textbook/summation.hpp"
#include "fast/textbook/torch_forms.hpp"

namespace sumzero::textbook {
namespace {

using namespace distillation;

/// beta q + (1-beta) p, a tensor of `store`.
template <class T>
Values<T> mixture(const TemperedRows<T>& rows, T beta, Format store) {
  return stored_row<T>(store, rows.p.size(), [&](std::size_t j) {
    return stored(store, beta * rows.q[j]) + stored(store, (T(1) - beta) * rows.p[j]);
  });
}

/// PyTorch CPU: beta kl_div(log M, log q, log_target) + (1-beta) kl_div(log M, log p, log_target), times T^2.
/// Backward by autograd: to log p directly and to p through log M; each result is a stored tensor.
template <class T>
void torch_kl_div_log_target(const Row<T>& row) {
  const Format f = row.storage;
  const TemperedRows<T> rows(row, f);
  const T beta = static_cast<T>(row.attribute[teacher_weight]), rest = T(1) - beta;
  const Values<T> m = mixture(rows, beta, f);
  const Values<T> log_m = stored_row<T>(f, row.n, [&](std::size_t j) { return std::log(m[j]); });
  const torch::LogTargetDivergence<T> teacher(f, log_m, rows.log_q), student(f, log_m, rows.log_p);
  const T scale = loss_scale(row);
  if (row.out[loss])
    *row.out[loss] = scale * stored(f, stored(f, beta * teacher.loss()) + stored(f, rest * student.loss()));
  if (!row.out[ds] && !row.out[dt]) return;

  const T upstream = stored(f, static_cast<T>(row.factor) * scale);
  const T to_teacher = stored(f, beta * upstream), to_student = stored(f, rest * upstream);
  const Values<T> to_log_m =
      torch::accumulate(f, teacher.input_gradient(to_teacher), student.input_gradient(to_student));
  const Values<T> to_m = stored_row<T>(f, row.n, [&](std::size_t j) { return to_log_m[j] / m[j]; });
  // The gradient of one row's logits: its share of M through softmax, its own divergence through log_softmax.
  const auto write_gradient = [&](T* output, T share, const Values<T>& probability, const Values<T>& to_log,
                                  const Values<T>& log_probability) {
    if (!output) return;
    const Values<T> g = stored_row<T>(f, row.n, [&](std::size_t j) { return share * to_m[j]; });
    const Values<T> tempered =
        torch::accumulate(f, torch::softmax_backward(f, g.data(), probability),
                          torch::log_softmax_backward(f, to_log.data(), log_probability));
    write(output, torch::divide(f, tempered.data(), row.n, temperature_of(row)));
  };
  write_gradient(row.out[ds], rest, rows.p, student.target_gradient(to_student), rows.log_p);
  write_gradient(row.out[dt], beta, rows.q, teacher.target_gradient(to_teacher), rows.log_q);
}
static const Registered torch_kl_div_log_target_kernel{
    RowKernel{.op = "jsd",
              .name = "textbook.torch_kl_div_log_target",
              .summary = "PyTorch CPU: two kl_div against log(beta q + (1-beta) p), gradients by autograd",
              .f32 = torch_kl_div_log_target<float>,
              .f64 = torch_kl_div_log_target<double>,
              .contract_f32 = torch_contract<float>(true),
              .contract_f64 = torch_contract<double>(true),
              .aliases = {"textbook.pytorch"}}};

/// The formulas as papers print them, without stores: sum q (log q - log M) and sum p (log p - log M),
/// ds = T (1-beta) p (log(p/M) - KL_pM), dt = T beta q (log(q/M) - KL_qM).
template <class T>
void closed_form(const Row<T>& row) {
  const Format accumulator = accumulator_of(row.storage);
  const TemperedRows<T> rows(row, accumulator);
  const T beta = static_cast<T>(row.attribute[teacher_weight]), rest = T(1) - beta;
  Values<T> log_m = mixture(rows, beta, accumulator);
  for (T& entry : log_m) entry = std::log(entry);
  const T of_teacher = naive_divergence(rows.q, rows.log_q, log_m);
  const T of_student = naive_divergence(rows.p, rows.log_p, log_m);
  const T scale = loss_scale(row), factor = static_cast<T>(row.factor) * (scale / temperature_of(row));
  write(row.out[loss], scale * (beta * of_teacher + rest * of_student));
  for (std::size_t j = 0; j < row.n; ++j) {
    if (row.out[ds]) row.out[ds][j] = rest * rows.p[j] * ((rows.log_p[j] - log_m[j]) - of_student) * factor;
    if (row.out[dt]) row.out[dt][j] = beta * rows.q[j] * ((rows.log_q[j] - log_m[j]) - of_teacher) * factor;
  }
}
template <class T>
Contract closed_form_contract() {
  Contract claim = torch_contract<T>(true);
  claim.stores_intermediates = false;
  return claim;
}
static const Registered closed_form_kernel{
    RowKernel{.op = "jsd",
              .name = "textbook.closed_form",
              .summary = "log of the averaged probability; ds = T (1-beta) p (log(p/M) - KL_pM)",
              .f32 = closed_form<float>,
              .f64 = closed_form<double>,
              .contract_f32 = closed_form_contract<float>(),
              .contract_f64 = closed_form_contract<double>()}};

}  // namespace
}  // namespace sumzero::textbook
