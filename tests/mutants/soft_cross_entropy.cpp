// Mutants of cross_entropy.soft. Planted elsewhere: log s with the maximum inside, exp(logp) sum g - q (kernels `textbook.*`).
#include "tests/mutants/tail_first.hpp"

namespace sumzero::mutants {
namespace {

enum class Defect { none, no_target_sum, zero_times_infinity, lse_minus_dot, weight_missing_in_sum, log_of_probability, gq_sign, zero_rows_softmax };

template <Defect defect, class T>
void soft(const Row<T>& row) {
  const auto tail = tail_first(row);
  const T log_s = std::log1p(tail.r), nan = tail.r - tail.r, factor = static_cast<T>(row.factor);
  const auto w = [&](std::size_t j) { return row.in[2] ? row.in[2][j] : T(1); };
  const auto nll = [&](std::size_t j) { return defect == Defect::log_of_probability ? -std::log(tail.p(j)) : (tail.m - row.in[0][j]) + log_s; };
  const auto product = [](T a, T b) { return a == 0 && defect != Defect::zero_times_infinity ? T(0) : a * b; };
  T loss = 0, sum = 0, targets = 0, dot = 0;
  for (std::size_t j = 0; j < row.n; ++j) {
    const T target = w(j) * row.in[1][j];
    loss += product(target, nll(j));
    sum += defect == Defect::weight_missing_in_sum ? row.in[1][j] : target;
    targets += target;
    dot += product(target, row.in[0][j]);
  }
  if (defect == Defect::lse_minus_dot) loss = targets * (tail.m + log_s) - dot;
  if (defect == Defect::no_target_sum || (defect == Defect::zero_rows_softmax && sum == 0)) sum = 1;
  if (row.out[0]) row.out[0][0] = loss + nan;
  for (std::size_t j = 0; j < row.n; ++j) {
    if (row.out[1]) row.out[1][j] = factor * (tail.p(j) * sum - w(j) * row.in[1][j]) + nan;
    if (row.out[2]) row.out[2][j] = (defect == Defect::gq_sign ? -1 : 1) * product(factor * w(j), nll(j)) + nan;
  }
}

template <Defect defect>
struct Soft {
  template <bool planted, class T>
  static void row(const Row<T>& row) {
    soft<planted ? defect : Defect::none>(row);
  }
};
const char op[] = "cross_entropy.soft";
const Catalogued rows[] = {
    Catalogued{in_row<Soft<Defect::no_target_sum>>(op, "p - q without the sum of q", "targets that do not sum to one", "gradient sum")},
    Catalogued{in_row<Soft<Defect::zero_times_infinity>>(op, "0 times -inf", "optax 896", "special values")},
    Catalogued{in_row<Soft<Defect::lse_minus_dot>>(op, "lse - <q, x>", "cancellation of two large terms", "shift")},
    Catalogued{in_row<Soft<Defect::weight_missing_in_sum>>(op, "weights missing in the sum of targets", "weights", "gradient sum")},
    Catalogued{in_row<Soft<Defect::log_of_probability>>(op, "log of the probability", "pytorch 94043", "finite")},
    Catalogued{in_row<Soft<Defect::gq_sign>>(op, "sign of the target gradient", "dL/dq = -logp", "bound")},
    Catalogued{in_row<Soft<Defect::zero_rows_softmax>>(op, "all-zero targets return softmax", "factor sum q missing", "bound")}};

/// batchmean over rows times classes.
const Catalogued mean_over_elements{around_rows<Soft<Defect::none>>(op, "mean over rows times classes", "reduction mean of elements", "bound",
                                                                    [](const Kernel& right, const Call& call) {
  right.run(call);
  if (reduction_of(call.signature, attribute_values(call.signature, call.input)) != Reduction::mean) return;
  for (Tensor& output : call.outputs)
    for (std::int64_t i = 0; !output.bytes.empty() && i < output.elements(); ++i)
      output.set(i, output.get(i) / static_cast<double>(call.input.extents[1]));
})};

}  // namespace
}  // namespace sumzero::mutants
