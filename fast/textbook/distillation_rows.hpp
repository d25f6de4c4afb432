// Student and teacher rows of the divergences, as their textbook forms prepare them.
#pragma once

#include <cmath>
#include <cstddef>

#include "fast/textbook/sequential_forms.hpp"
#include "fast/textbook/torch_forms.hpp"
#include "reference/operator.hpp"

namespace sumzero::textbook {

/// Indices that kl_forward, kl_reverse and jsd share.
namespace distillation {
constexpr std::size_t s = 0, t = 1;                                       // inputs
constexpr std::size_t loss = 0, ds = 1, dt = 2;                           // outputs
constexpr std::size_t temperature = 0, scale_T2 = 1, teacher_weight = 3;  // attributes
}  // namespace distillation

template <class T>
T temperature_of(const Row<T>& row) {
  return static_cast<T>(row.attribute[distillation::temperature]);
}
/// T^2, or 1 where the factor is switched off.
template <class T>
T loss_scale(const Row<T>& row) {
  const T temperature = temperature_of(row);
  return row.attribute[distillation::scale_T2] != 0 ? temperature * temperature : T(1);
}

/// softmax and log_softmax of both tempered rows by PyTorch's CPU kernels; x/T, the probabilities and the
/// log-probabilities are tensors of `store`. p belongs to the student, q to the teacher.
template <class T>
struct TemperedRows {
  Values<T> p, q, log_p, log_q;
  TemperedRows(const Row<T>& row, Format store) {
    const Values<T> student = torch::divide(store, row.in[distillation::s], row.n, temperature_of(row));
    const Values<T> teacher = torch::divide(store, row.in[distillation::t], row.n, temperature_of(row));
    p = torch::softmax(store, student.data(), row.n);
    q = torch::softmax(store, teacher.data(), row.n);
    log_p = torch::log_softmax(store, student.data(), row.n);
    log_q = torch::log_softmax(store, teacher.data(), row.n);
  }
};

/// sum_j a_j (log a_j - log b_j): terms of both signs, which cancel near equality and can give a negative
/// sum.
template <class T>
T naive_divergence(const Values<T>& a, const Values<T>& log_a, const Values<T>& log_b) {
  return vector_sum<T>(a.size(), [&](std::size_t j) { return a[j] * (log_a[j] - log_b[j]); });
}

/// Sends a gradient in tempered log-probabilities back to the logits through PyTorch's log_softmax and x/T.
template <class T>
Values<T> through_log_softmax(const Row<T>& row, const Values<T>& gradient,
                              const Values<T>& log_probability) {
  const Values<T> tempered = torch::log_softmax_backward(row.storage, gradient.data(), log_probability);
  return torch::divide(row.storage, tempered.data(), row.n, temperature_of(row));
}

}  // namespace sumzero::textbook
