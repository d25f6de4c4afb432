// Rows of logits as the kernels of TensorFlow, JAX, ONNX Runtime and ggml prepare them for a loss.
#pragma once

#include <cmath>
#include <cstddef>

#include "fast/textbook/summation.hpp"
#include "fast/textbook/torch_forms.hpp"

namespace sumzero::textbook {

/// x_j - m, its exponential, and the sum s of the exponentials, the maximum's 1 among them (defect H1).
template <class T>
struct ShiftedRow {
  T m = 0, s = 0;
  Values<T> d, e;

  ShiftedRow(const T* x, std::size_t n) : m(maximum(x, n)), d(n), e(n) {
    for (std::size_t j = 0; j < n; ++j) {
      d[j] = x[j] - m;
      e[j] = std::exp(d[j]);
    }
  }
};

/// tensorflow/core/kernels/xent_op.h: vector lanes; prob = exp(x-m)/s.
template <class T>
class TensorflowRow : public ShiftedRow<T> {
 public:
  TensorflowRow(const T* x, std::size_t n) : ShiftedRow<T>(x, n) {
    this->s = lane_sum<vector_lanes<T>, T>(n, [this](std::size_t i) { return this->e[i]; });
    log_sum_ = std::log(this->s);
  }
  T negative_log(std::size_t j) const { return log_sum_ - this->d[j]; }
  Values<T> probabilities() const {
    Values<T> p(this->e);
    for (T& entry : p) entry /= this->s;
    return p;
  }

  /// The double-only patch: where the label is exactly 1 and the maximum is unique, the gradient at the
  /// maximum is -tail/(1+tail), tail summed over the other entries. Every other element type, soft labels and
  /// label smoothing keep prob - label. Returns whether it applies to entry `k` and sets `gradient`.
  bool patched_gradient(T label_at_maximum, std::size_t k, T& gradient) const {
    if constexpr (sizeof(T) != sizeof(double)) return false;
    if (label_at_maximum != T(1)) return false;
    for (std::size_t j = 0; j < this->d.size(); ++j)
      if (j != k && this->d[j] == 0) return false;
    const T tail = lane_sum<vector_lanes<T>, T>(this->e.size(),
                                                [&](std::size_t i) { return i == k ? T(0) : this->e[i]; });
    gradient = -tail / (T(1) + tail);
    return true;
  }

 private:
  T log_sum_;
};

/// JAX: sums from left to right.
template <class T>
class JaxRow : public ShiftedRow<T> {
 public:
  JaxRow(const T* x, std::size_t n) : ShiftedRow<T>(x, n) {
    this->s = sequential_sum<T>(n, [this](std::size_t i) { return this->e[i]; });
    log_sum_ = std::log(this->s);
  }
  T logsumexp() const { return this->m + log_sum_; }
  T log_probability(std::size_t j) const { return this->d[j] - log_sum_; }

 private:
  T log_sum_;
};

/// ONNX Runtime, MLAS log-softmax: (x + (-m)) - log s in four accumulators of four lanes, f32.
class OnnxruntimeRow : public ShiftedRow<float> {
 public:
  OnnxruntimeRow(const float* x, std::size_t n) : ShiftedRow<float>(x, n) {
    s = lane_sum<16, float>(n, [this](std::size_t i) { return e[i]; });
    log_sum_ = std::log(s);
  }
  float log_probability(std::size_t j) const { return d[j] - log_sum_; }
  /// exp(logp): a second rounding path beside e/s.
  Values<float> probabilities() const {
    Values<float> p(d.size());
    for (std::size_t j = 0; j < p.size(); ++j) p[j] = std::exp(log_probability(j));
    return p;
  }

 private:
  float log_sum_;
};

/// ggml: float exponentials, their sum in double from left to right; log s is taken of the sum rounded to
/// float, and the row is scaled by float(1/s).
class GgmlRow : public ShiftedRow<float> {
 public:
  GgmlRow(const float* x, std::size_t n) : ShiftedRow<float>(x, n) {
    const double wide = sequential_sum<double>(n, [this](std::size_t i) { return e[i]; });
    s = static_cast<float>(wide);
    log_sum_ = std::log(s);
    scale_ = static_cast<float>(1.0 / wide);
  }
  float log_probability(std::size_t j) const { return d[j] - log_sum_; }
  Values<float> probabilities() const {
    Values<float> p(e);
    for (float& entry : p) entry *= scale_;
    return p;
  }

 private:
  float log_sum_, scale_;
};

}  // namespace sumzero::textbook
