// The textbook order of operations in the arithmetic of the storage format: maximum, exp, sum from left to
// right, log, each single operation rounded correctly to the storage format ("pure" bf16 or f16 arithmetic).
//
// A double holds every operation before its one rounding: sums, products and quotients of two numbers of at
// most 24 bits round innocuously from 53 bits, exp and log up to hard-to-round points. In f64 the operations
// are the machine's own.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "fast/textbook/summation.hpp"
#include "reference/format.hpp"
#include "reference/operator.hpp"

namespace sumzero::textbook {

/// Correctly rounded operations of one format.
class PureArithmetic {
 public:
  explicit PureArithmetic(Format format) : format_(format) {}
  double round(double value) const { return round_to(format_, value); }
  double add(double a, double b) const { return round(a + b); }
  double subtract(double a, double b) const { return round(a - b); }
  double multiply(double a, double b) const { return round(a * b); }
  double divide(double a, double b) const { return round(a / b); }
  double exp(double a) const { return round(std::exp(a)); }
  double log(double a) const { return round(std::log(a)); }

  template <class Term>
  double sum(std::size_t n, Term term) const {
    double total = term(0);
    for (std::size_t i = 1; i < n; ++i) total = add(total, term(i));
    return total;
  }

 private:
  Format format_;
};

namespace sequential {

/// exp(x_j - m) (1/s)
inline std::vector<double> softmax(const PureArithmetic& a, const std::vector<double>& x) {
  const double m = maximum(x.data(), x.size());
  std::vector<double> e(x.size());
  for (std::size_t j = 0; j < x.size(); ++j) e[j] = a.exp(a.subtract(x[j], m));
  const double reciprocal = a.divide(1, a.sum(x.size(), [&](std::size_t i) { return e[i]; }));
  for (double& entry : e) entry = a.multiply(entry, reciprocal);
  return e;
}

/// (x_j - m) - log s
inline std::vector<double> log_softmax(const PureArithmetic& a, const std::vector<double>& x) {
  const double m = maximum(x.data(), x.size());
  const double s = a.sum(x.size(), [&](std::size_t i) { return a.exp(a.subtract(x[i], m)); });
  const double log_sum = a.log(s);
  std::vector<double> out(x.size());
  for (std::size_t j = 0; j < x.size(); ++j) out[j] = a.subtract(a.subtract(x[j], m), log_sum);
  return out;
}

/// g_j - exp(out_j) sum g
inline std::vector<double> log_softmax_backward(const PureArithmetic& a, const std::vector<double>& g,
                                                const std::vector<double>& out) {
  const double total = a.sum(g.size(), [&](std::size_t i) { return g[i]; });
  std::vector<double> gx(g.size());
  for (std::size_t j = 0; j < g.size(); ++j) gx[j] = a.subtract(g[j], a.multiply(a.exp(out[j]), total));
  return gx;
}

/// (g_j - sum_i g_i out_i) out_j
inline std::vector<double> softmax_backward(const PureArithmetic& a, const std::vector<double>& g,
                                            const std::vector<double>& out) {
  const double total = a.sum(g.size(), [&](std::size_t i) { return a.multiply(g[i], out[i]); });
  std::vector<double> gx(g.size());
  for (std::size_t j = 0; j < g.size(); ++j) gx[j] = a.multiply(a.subtract(g[j], total), out[j]);
  return gx;
}

template <class T>
std::vector<double> read(const T* values, std::size_t n) {
  return std::vector<double>(values, values + n);
}

/// Writes a requested output; exact, because the values are numbers of the storage format.
template <class T>
void write(T* output, const std::vector<double>& values) {
  if (output)
    std::transform(values.begin(), values.end(), output, [](double v) { return static_cast<T>(v); });
}

/// The declaration of one format: the accumulator of a pure form is the storage format itself, so each format
/// has its own contract.
inline RowKernel kernel(Format format, std::string op, std::string name, std::string summary,
                        RowFunction<float> f32, RowFunction<double> f64, bool reciprocal,
                        std::vector<std::string> outputs = {}) {
  Contract claim = contract<double>(sequential_tree());
  claim.accumulator = format;
  claim.reciprocal = reciprocal;
  claim.note = "every operation is rounded to the storage format";
  RowKernel kernel;
  kernel.op = std::move(op);
  kernel.name = std::move(name);
  kernel.summary = std::move(summary);
  kernel.outputs = std::move(outputs);
  kernel.only = format;
  (format == Format::f64 ? kernel.contract_f64 : kernel.contract_f32) = claim;
  if (format == Format::f64)
    kernel.f64 = f64;
  else
    kernel.f32 = f32;
  return kernel;
}

}  // namespace sequential
}  // namespace sumzero::textbook
