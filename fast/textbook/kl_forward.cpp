// kl_forward, T^2 KL(softmax(t/T) || softmax(s/T)), as frameworks compute it: Softmax Cancellation. Student
// and teacher probabilities are rounded on their own and then subtracted, so the gradient at equality is
// noise of size u p_j, and near equality the relative error is u over the difference. The loss sums terms of
// both signs and can be negative. The teacher is detached: no dt. Common to all: loss of a row without the
// factor, f32 arithmetic for 16-bit storage, IEEE special values (q_j = 0 with log q_j = -inf is skipped only
// where said), deterministic.
#include <cmath>

#include "fast/textbook/distillation_rows.hpp"
#include "fast/textbook/sequential_forms.hpp"
#include "fast/textbook/summation.hpp"
#include "fast/textbook/torch_forms.hpp"

namespace sumzero::textbook {
namespace {

using namespace distillation;

/// PyTorch CPU: kl_div(log_softmax(s/T), softmax(t/T)) T^2, loss q (log q - logp) where q > 0; gradient -q g,
/// then log_softmax backward exp(logp) sum q - q: teacher and student take two rounding paths. Every
/// intermediate, s/T and t/T included, is a stored tensor.
template <class T>
void torch_kl_div(const Row<T>& row) {
  const Format f = row.storage;
  const Values<T> student = torch::divide(f, row.in[s], row.n, temperature_of(row));
  const Values<T> teacher = torch::divide(f, row.in[t], row.n, temperature_of(row));
  const Values<T> logp = torch::log_softmax(f, student.data(), row.n);
  const Values<T> q = torch::softmax(f, teacher.data(), row.n);
  const T scale = loss_scale(row);
  if (row.out[loss])
    *row.out[loss] =
        scale * torch::sum(f, stored_row<T>(f, row.n, [&](std::size_t j) {
                             return q[j] > 0 ? q[j] * (std::log(q[j]) - logp[j]) : (q[j] == 0 ? T(0) : q[j]);
                           }));
  if (!row.out[ds]) return;
  const T upstream = stored(f, static_cast<T>(row.factor) * scale);
  const Values<T> g = stored_row<T>(f, row.n, [&](std::size_t j) { return -q[j] * upstream; });
  write(row.out[ds], through_log_softmax(row, g, logp));
}
static const Registered torch_kl_div_kernel{
    RowKernel{.op = "kl_forward",
              .name = "textbook.torch_kl_div",
              .summary = "PyTorch CPU: kl_div(log_softmax, softmax); backward exp(out)*sum q - q",
              .f32 = torch_kl_div<float>,
              .f64 = torch_kl_div<double>,
              .contract_f32 = torch_contract<float>(true),
              .contract_f64 = torch_contract<double>(true),
              .aliases = {"textbook.pytorch"},
              .outputs = {"loss", "ds"}}};

/// PyTorch CPU with log_target: e^l (l - logp), l = log_softmax(t/T); gradient -e^l g, then log_softmax
/// backward. One rounding path, but sum e^l still differs from 1: zero at equality only when that sum rounds
/// to 1.
template <class T>
void torch_kl_div_log_target(const Row<T>& row) {
  const Format f = row.storage;
  const Values<T> student = torch::divide(f, row.in[s], row.n, temperature_of(row));
  const Values<T> teacher = torch::divide(f, row.in[t], row.n, temperature_of(row));
  const Values<T> logp = torch::log_softmax(f, student.data(), row.n);
  const torch::LogTargetDivergence<T> divergence(f, logp, torch::log_softmax(f, teacher.data(), row.n));
  const T scale = loss_scale(row);
  write(row.out[loss], scale * divergence.loss());
  if (!row.out[ds]) return;
  const Values<T> g = divergence.input_gradient(stored(f, static_cast<T>(row.factor) * scale));
  write(row.out[ds], through_log_softmax(row, g, logp));
}
static const Registered torch_kl_div_log_target_kernel{
    RowKernel{.op = "kl_forward",
              .name = "textbook.torch_kl_div_log_target",
              .summary = "PyTorch CPU: kl_div with log_target; backward exp(out)*sum e^l - e^l",
              .f32 = torch_kl_div_log_target<float>,
              .f64 = torch_kl_div_log_target<double>,
              .contract_f32 = torch_contract<float>(false),
              .contract_f64 = torch_contract<double>(false),
              .outputs = {"loss", "ds"}}};

/// Half a fix: teacher and student through the same softmax instructions, gradient T (p - q). Exactly zero at
/// equality, as inaccurate as the others near it. Loss sum q (log q - log p).
template <class T>
void same_path(const Row<T>& row) {
  const TemperedRows<T> rows(row, row.storage);
  const T scale = loss_scale(row);
  write(row.out[loss], scale * naive_divergence(rows.q, rows.log_q, rows.log_p));
  if (!row.out[ds]) return;
  const T factor = static_cast<T>(row.factor) * (scale / temperature_of(row));
  for (std::size_t j = 0; j < row.n; ++j) row.out[ds][j] = (rows.p[j] - rows.q[j]) * factor;
}
static const Registered same_path_kernel{RowKernel{
    .op = "kl_forward",
    .name = "textbook.same_path",
    .summary = "softmax of both rows by one path, gradient p - q; zero at equality, inaccurate near it",
    .f32 = same_path<float>,
    .f64 = same_path<double>,
    .contract_f32 = torch_contract<float>(true),
    .contract_f64 = torch_contract<double>(true),
    .outputs = {"loss", "ds"}}};

/// What both sequential orders share: the divergence and its gradient from target probabilities `q` and their
/// logs, every operation rounded to the storage format, sums from left to right.
template <class T>
void sequential_divergence(const Row<T>& row, const PureArithmetic& a, const std::vector<double>& logp,
                           const std::vector<double>& q, const std::vector<double>& log_q) {
  const double scale = a.round(loss_scale(row)), temperature = a.round(temperature_of(row));
  if (row.out[loss])
    *row.out[loss] = static_cast<T>(a.multiply(scale, a.sum(row.n, [&](std::size_t j) {
      return q[j] == 0 ? 0.0 : a.multiply(q[j], a.subtract(log_q[j], logp[j]));
    })));
  if (!row.out[ds]) return;
  const double upstream = a.multiply(a.round(row.factor), scale);
  std::vector<double> g(row.n);
  for (std::size_t j = 0; j < row.n; ++j) g[j] = -a.multiply(q[j], upstream);
  std::vector<double> gradient = sequential::log_softmax_backward(a, g, logp);
  for (double& entry : gradient) entry = a.divide(entry, temperature);
  sequential::write(row.out[ds], gradient);
}
template <class T>
std::vector<double> tempered(const Row<T>& row, const PureArithmetic& a, std::size_t input) {
  std::vector<double> x = sequential::read(row.in[input], row.n);
  for (double& entry : x) entry = a.divide(entry, a.round(temperature_of(row)));
  return x;
}

/// torch_kl_div in the arithmetic of the storage format: exp(logp) sum q - q with q = exp (1/s).
template <class T>
void sequential_order(const Row<T>& row) {
  const PureArithmetic a(row.storage);
  const std::vector<double> q = sequential::softmax(a, tempered(row, a, t));
  std::vector<double> log_q(q);
  for (double& entry : log_q) entry = a.log(entry);
  sequential_divergence(row, a, sequential::log_softmax(a, tempered(row, a, s)), q, log_q);
}
Registered register_sequential(Format format) {
  return Registered{
      sequential::kernel(format, "kl_forward", "textbook.sequential",
                         "kl_div with every operation rounded to storage, sums from left to right",
                         sequential_order<float>, sequential_order<double>, true, {"loss", "ds"})};
}
static const Registered sequential_kernels[] = {
    register_sequential(Format::f32), register_sequential(Format::bf16), register_sequential(Format::f16),
    register_sequential(Format::f64)};

/// torch_kl_div_log_target in the arithmetic of the storage format.
template <class T>
void sequential_log_target(const Row<T>& row) {
  const PureArithmetic a(row.storage);
  const std::vector<double> log_q = sequential::log_softmax(a, tempered(row, a, t));
  std::vector<double> q(log_q);
  for (double& entry : q) entry = a.exp(entry);
  sequential_divergence(row, a, sequential::log_softmax(a, tempered(row, a, s)), q, log_q);
}
Registered register_sequential_log_target(Format format) {
  return Registered{sequential::kernel(
      format, "kl_forward", "textbook.sequential_log_target",
      "kl_div with log_target, every operation rounded to storage, sums from left to right",
      sequential_log_target<float>, sequential_log_target<double>, false, {"loss", "ds"})};
}
static const Registered sequential_log_target_kernels[] = {
    register_sequential_log_target(Format::f32), register_sequential_log_target(Format::bf16),
    register_sequential_log_target(Format::f16), register_sequential_log_target(Format::f64)};

}  // namespace
}  // namespace sumzero::textbook
