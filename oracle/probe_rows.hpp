// The rows that a probe feeds to a kernel, and where in the outputs the sum of a row and a single exponential show.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "oracle/kernel/guarded_run.hpp"
#include "oracle/probe.hpp"

namespace sumzero {

/// A measurement that this operator, format or kernel does not allow; the message is the reason.
struct NotMeasurable : std::runtime_error {
  using std::runtime_error::runtime_error;
};

using Logits = std::vector<double>;

/// How an output depends on s = 1 + r, r the sum of exp(x_j - max) over all entries but the first maximum, in a row whose
/// maximum is 0.
enum class SumView : std::uint8_t { none, reciprocal, negative_log, log, tail };

/// How an output shows a single exponential exp(x_1) / s of the row {0, x_1}.
struct ExponentialView {
  int output = -1;       ///< -1: nowhere
  int entry = 1;
  double sign = 1;
  bool gradient = false; ///< shown by a gradient: the backward may compute the exponential anew
};

class ProbeRows {
 public:
  ProbeRows(const OperatorReference& reference, const Kernel& kernel, const ProbeOptions& options);

  const Signature& signature() const { return reference_.signature(); }
  const OperatorReference& reference() const { return reference_; }
  const Kernel& kernel() const { return kernel_; }
  Format storage() const { return options_.format; }
  std::uint64_t seed() const { return options_.seed; }
  std::size_t longest() const { return options_.longest; }
  double seconds() const { return options_.seconds; }
  /// Format of the kernel's arithmetic as far as a storage format implies it.
  Format accumulator() const { return accumulator_of(options_.format); }
  bool time_left(double fraction = 1) const;

  /// Rows of equal length with label, target and upstream at the first maximum, no reduction: what makes ExponentialView show.
  Case rows(const std::vector<Logits>& logits) const;
  /// Runs a case; throws NotMeasurable with the reason when there are no outputs to look at.
  std::vector<Tensor> run(const Case& input, const GuardedOptions& options = {}) const;

  SumView sum_view() const { return view_; }
  const std::string& sum_output() const;
  Format sum_format() const;
  /// What the sum's output shows, one value per row.
  std::vector<double> observed_sums(const std::vector<Logits>& logits) const;
  /// exp(x_1) / s as seen for rows {0, x_1}, or rows of n entries with `entry` of them.
  const ExponentialView& exponential_view() const { return exponential_; }
  std::vector<double> observed_exponentials(const std::vector<Logits>& logits, std::int64_t entry = 1) const;

  /// The value that the sum's output has in exact arithmetic for this r.
  double shown(long double r) const;
  /// A logit whose exponential is exactly 0 in every arithmetic up to the accumulator.
  double dead() const { return accumulator() == Format::f64 ? -1000 : -400; }

 private:
  const OperatorReference& reference_;
  const Kernel& kernel_;
  ProbeOptions options_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  SumView view_ = SumView::none;
  int sum_output_ = -1;
  ExponentialView exponential_;
};

/// What was found so far; later measurements build on earlier ones.
struct ProbeState {
  const ProbeRows& rows;
  ProbeResult& result;
  double log_slack = 0;        ///< largest absolute error of the logarithm seen
  std::optional<Format> accumulator;

  void found(std::string property, std::string value, std::string evidence) {
    result.findings.push_back({std::move(property), std::move(value), std::move(evidence)});
  }
};

// The measurements, in the order in which they run; each adds its findings and fills its part of the draft contract.
void probe_logarithm(ProbeState& state);
void probe_summation(ProbeState& state);
void probe_saturation(ProbeState& state);
void probe_exponential(ProbeState& state);
void probe_subnormals(ProbeState& state);
void probe_special_values(ProbeState& state);
void probe_determinism(ProbeState& state);
void probe_shift(ProbeState& state);
void probe_division(ProbeState& state);
void probe_stores(ProbeState& state);

}  // namespace sumzero
