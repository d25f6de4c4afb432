// Operations as PyTorch's CPU kernels perform them, one framework call per function.
//
// Arithmetic inside a call is in T (float for 8- and 16-bit storage). What a call returns is a tensor of the storage
// format: `stored` rounds it, and the next call, backward calls included, reads the rounded value. In f32 and
// f64 that rounding is the identity.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "fast/textbook/summation.hpp"
#include "reference/format.hpp"
#include "reference/operator.hpp"

namespace sumzero::textbook {

template <class T>
using Values = std::vector<T>;

/// `value` after a round trip through a tensor of `storage`; T is the accumulator of `storage`.
inline double stored(Format, double value) {
  return value;
}
inline float stored(Format storage, float value) {
  switch (storage) {
    case Format::bf16: return decode_bf16(encode_bf16(value));
    case Format::f16: return decode_f16(encode_f16(value));
    case Format::e4m3: return decode_e4m3(encode_e4m3(value));
    case Format::e5m2: return decode_e5m2(encode_e5m2(value));
    default: return value;
  }
}

/// A tensor row of `storage` with the elements term(0), ..., term(n-1).
template <class T, class Term>
Values<T> stored_row(Format storage, std::size_t n, Term term) {
  Values<T> row(n);
  for (std::size_t i = 0; i < n; ++i) row[i] = stored(storage, T(term(i)));
  return row;
}

/// Writes a requested output; a null address means that nobody asked.
template <class T>
void write(T* output, const Values<T>& values) {
  if (output) std::copy(values.begin(), values.end(), output);
}
template <class T>
void write(T* output, T value) {
  if (output) *output = value;
}

/// Contract of a composition of the calls below.
template <class T>
Contract torch_contract(bool reciprocal) {
  Contract claim = vector_contract<T>();
  claim.reciprocal = reciprocal;
  claim.stores_intermediates = true;
  return claim;
}

namespace torch {

/// (x_j - m) - log s, s = sum_i exp(x_i - m) with the maximum's 1 among the terms (defect H1).
template <class T>
Values<T> log_softmax(Format storage, const T* x, std::size_t n) {
  const T m = maximum(x, n);
  const T log_sum = std::log(vector_sum<T>(n, [&](std::size_t i) { return std::exp(x[i] - m); }));
  return stored_row<T>(storage, n, [&](std::size_t j) { return (x[j] - m) - log_sum; });
}

/// g_j - exp(out_j) sum_i g_i: the probability is rounded alone, then subtracted (defect H2).
template <class T>
Values<T> log_softmax_backward(Format storage, const T* g, const Values<T>& out) {
  const T sum = vector_sum<T>(out.size(), [&](std::size_t i) { return g[i]; });
  return stored_row<T>(storage, out.size(), [&](std::size_t j) { return g[j] - std::exp(out[j]) * sum; });
}

/// exp(x_j - m) * (1/s), the reciprocal rounded.
template <class T>
Values<T> softmax(Format storage, const T* x, std::size_t n) {
  const T m = maximum(x, n);
  Values<T> e(n);
  for (std::size_t j = 0; j < n; ++j) e[j] = std::exp(x[j] - m);
  const T reciprocal = T(1) / vector_sum<T>(n, [&](std::size_t i) { return e[i]; });
  return stored_row<T>(storage, n, [&](std::size_t j) { return e[j] * reciprocal; });
}

/// (g_j - sum_i g_i out_i) out_j.
template <class T>
Values<T> softmax_backward(Format storage, const T* g, const Values<T>& out) {
  const T sum = vector_sum<T>(out.size(), [&](std::size_t i) { return g[i] * out[i]; });
  return stored_row<T>(storage, out.size(), [&](std::size_t j) { return (g[j] - sum) * out[j]; });
}

/// tensor.sum(-1)
template <class T>
T sum(Format storage, const Values<T>& values) {
  return stored(storage, vector_sum<T>(values.size(), [&](std::size_t i) { return values[i]; }));
}

/// tensor / scalar
template <class T>
Values<T> divide(Format storage, const T* x, std::size_t n, T divisor) {
  return stored_row<T>(storage, n, [&](std::size_t j) { return x[j] / divisor; });
}

/// The sum of two gradients that reach one tensor.
template <class T>
Values<T> accumulate(Format storage, const Values<T>& a, const Values<T>& b) {
  return stored_row<T>(storage, a.size(), [&](std::size_t j) { return a[j] + b[j]; });
}

/// kl_div with log_target: sum_j e^(l_j) (l_j - input_j) and both gradients, by autograd of that product.
template <class T>
class LogTargetDivergence {
 public:
  LogTargetDivergence(Format storage, const Values<T>& input, const Values<T>& target)
      : storage_(storage),
        probability_(
            stored_row<T>(storage, target.size(), [&](std::size_t j) { return std::exp(target[j]); })),
        difference_(
            stored_row<T>(storage, target.size(), [&](std::size_t j) { return target[j] - input[j]; })) {}

  T loss() const {
    return sum(storage_, stored_row<T>(storage_, probability_.size(),
                                       [&](std::size_t j) { return probability_[j] * difference_[j]; }));
  }
  /// -e^(l_j) g
  Values<T> input_gradient(T g) const {
    return stored_row<T>(storage_, probability_.size(),
                         [&](std::size_t j) { return -(probability_[j] * g); });
  }
  /// e^(l_j) (g (l_j - input_j)) + e^(l_j) g
  Values<T> target_gradient(T g) const {
    return stored_row<T>(storage_, probability_.size(), [&](std::size_t j) {
      const T through_exponential = stored(storage_, stored(storage_, g * difference_[j]) * probability_[j]);
      return through_exponential + stored(storage_, g * probability_[j]);
    });
  }

 private:
  Format storage_;
  Values<T> probability_, difference_;
};

}  // namespace torch
}  // namespace sumzero::textbook
