// How a reference is evaluated: one templated row function per operator, instantiated for every number type.
#pragma once

#include <array>
#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "reference/number/arb.hpp"
#include "reference/number/array.hpp"
#include "reference/number/enclosure.hpp"
#include "reference/operator.hpp"

namespace sumzero {

/// What the reference says about one row (or problem). Outputs are sized by their shape: n, or 1 for a per-row value; the loss
/// of a reducing case is the row's own term, before upstream and denominator.
template <class N>
struct RowValues {
  std::array<Array<N>, max_outputs> out;
  std::vector<double> scalars;              ///< upper bounds of the signature's quantities
  std::vector<std::vector<double>> arrays;  ///< upper bounds, per class or per entry of the outputs that use them
  std::array<bool, max_outputs> sums_hold{};  ///< does the mark zero_sum of this output hold for this very input?
  bool want_quantities = false;
};

/// One row as the reference sees it. Inputs are exact: the rounded inputs of the kernel under test.
template <class N>
struct RowProblem {
  std::size_t n = 0;
  std::array<const double*, max_inputs> in{};  ///< n values or one; null when absent
  const double* attribute = nullptr;
  std::int64_t label = -1;
  N factor{1.0};                               ///< upstream over the denominator of the reduction, exact
  const std::int64_t* extents = nullptr;       ///< of the case
  RowValues<N>* values = nullptr;

  bool has(std::size_t input) const { return in[input] != nullptr; }
  Array<N>& out(std::size_t index) { return values->out[index]; }
  void fill(std::size_t index, double constant) {
    Array<N>& entries = values->out[index];
    for (std::size_t j = 0; j < entries.size(); ++j) entries[j] = N(constant);
  }
  bool wants_quantities() const { return values->want_quantities; }
  void scalar(std::size_t slot, double upper) { values->scalars[slot] = upper; }
  std::vector<double>& array(std::size_t slot) { return values->arrays[slot]; }
};

/// A registered operator. Instances are made by reference/register.hpp.
class OperatorReference {
 public:
  virtual ~OperatorReference() = default;
  const Signature& signature() const { return signature_; }
  virtual void row(RowProblem<Ball>& problem) const = 0;
  virtual void row(RowProblem<Enclosure>& problem) const = 0;
  virtual void row(RowProblem<Arb>& problem) const = 0;

 protected:
  Signature signature_;
};

/// Reads the rows of a validated case and evaluates its reference on a number type.
class CaseEvaluator {
 public:
  /// Throws InvalidInput when the case breaks its signature. The case must outlive the evaluator.
  CaseEvaluator(const OperatorReference& reference, const Case& input);

  const OperatorReference& reference() const { return reference_; }
  const Signature& signature() const { return reference_.signature(); }
  const Case& input() const { return input_; }
  std::int64_t rows() const { return problem_count(signature(), input_); }
  std::size_t classes() const { return static_cast<std::size_t>(normalised_extent(signature(), input_)); }
  const std::vector<double>& attributes() const { return attributes_; }
  Reduction reduction() const { return reduction_; }
  bool kept(std::int64_t row) const;

  /// Exact input values of a row, widened to double; the pointers stay valid until the next call.
  const std::array<const double*, max_inputs>& row_inputs(std::int64_t row);

  template <class N>
  void row(std::int64_t row, RowValues<N>& values) {
    RowProblem<N> problem;
    problem.n = classes();
    problem.in = row_inputs(row);
    problem.attribute = attributes_.data();
    problem.extents = input_.extents.data();
    problem.values = &values;
    resize(values);
    if (!kept(row)) {
      for (std::size_t i = 0; i < signature().outputs.size(); ++i) problem.fill(i, 0.0);
      return;
    }
    problem.label = label_of(signature(), input_, row);
    problem.factor = factor<N>(row);
    reference_.row(problem);
  }

  /// Denominator of the reduction: 1 unless the case takes a mean. A mean over nothing is a special NaN, or zero
  /// under the policy `all_ignored_policy = zero`.
  template <class N>
  N denominator() const {
    if (reduction_ != Reduction::mean) return N(1.0);
    return mean_denominator<N>(signature(), input_, attributes_);
  }
  bool mean_over_nothing() const { return mean_over_nothing_; }
  /// What the reduced loss is when nothing was kept: NaN or 0 by policy.
  double loss_over_nothing() const;

 private:
  template <class N>
  N factor(std::int64_t row) const {
    if (upstream_ < 0) return N(1.0);
    const Tensor* tensor = tensors_[static_cast<std::size_t>(upstream_)];
    if (!tensor) return N(1.0);
    const double upstream = tensor->get(reduction_ == Reduction::none ? row : 0);
    if (!std::isfinite(upstream)) return N(std::nan(""));
    if (reduction_ != Reduction::mean) return N(upstream);
    if (mean_over_nothing_) return N(loss_over_nothing());
    return N(upstream) / denominator<N>();
  }
  template <class N>
  void resize(RowValues<N>& values) const {
    const Signature& s = signature();
    for (std::size_t i = 0; i < s.outputs.size(); ++i)
      values.out[i].resize(static_cast<std::size_t>(part_elements(s.outputs[i].shape, input_)));
    values.sums_hold.fill(true);
    if (!values.want_quantities) return;
    values.scalars.assign(s.quantities.size(), 0.0);
    values.arrays.resize(s.arrays.size());
    for (auto& array : values.arrays) array.assign(classes(), 0.0);  // rows with a special value leave them so
  }

  const OperatorReference& reference_;
  const Case& input_;
  std::vector<double> attributes_;
  Reduction reduction_ = Reduction::none;
  int upstream_ = -1;  // index of the loss upstream, -1 for operators without a reduction
  bool mean_over_nothing_ = false;
  std::array<const Tensor*, max_inputs> tensors_{};
  std::array<std::vector<double>, max_inputs> buffers_;
  std::array<const double*, max_inputs> pointers_{};
};

}  // namespace sumzero
