// Small cases written out by hand, their exact reference, and kernels planted into tests.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "reference/evaluate.hpp"
#include "reference/number/working_precision.hpp"
#include "reference/operator.hpp"

namespace sumzero {

using Numbers = std::vector<double>;

inline Tensor tensor_of(Format format, std::vector<std::int64_t> shape, const Numbers& values) {
  Tensor tensor = Tensor::contiguous(format, std::move(shape));
  for (std::size_t i = 0; i < values.size(); ++i) tensor.set(static_cast<std::int64_t>(i), values[i]);
  return tensor;
}

/// A case by rows: `CaseBuilder("kl_forward", Format::f32, 1, 3).rows("s", {1, 2, 3}).rows("t", {1, 2, 3})`.
struct CaseBuilder {
  Case input;

  CaseBuilder(const std::string& op, Format storage, std::int64_t rows, std::int64_t classes) {
    input.op = op;
    input.storage = storage;
    input.extents = {rows, classes};
  }
  /// An input of shape [rows, classes] in storage format.
  CaseBuilder& rows(const std::string& name, const Numbers& values) {
    input.inputs[name] = tensor_of(input.storage, input.extents, values);
    return *this;
  }
  CaseBuilder& labels(const Numbers& values) {
    input.inputs["label"] = tensor_of(Format::index, {input.extents[0]}, values);
    return *this;
  }
  CaseBuilder& tensor(const std::string& name, Format format, std::vector<std::int64_t> shape, const Numbers& values) {
    input.inputs[name] = tensor_of(format, std::move(shape), values);
    return *this;
  }
  CaseBuilder& attribute(const std::string& name, double value) {
    input.attributes[name] = value;
    return *this;
  }
  operator Case() const { return input; }
};

inline const OperatorReference& reference_of(const std::string& op) { return Registry::global().operator_named(op); }

/// Output `name` of one row of the case; valid in the caller's scope of working precision.
inline std::vector<Enclosure> exact_row(const OperatorReference& reference, const Case& input, const std::string& output,
                                        std::int64_t row = 0) {
  CaseEvaluator evaluator(reference, input);
  RowValues<Enclosure> values;
  evaluator.row(row, values);
  return values.out[static_cast<std::size_t>(reference.signature().output(output))];
}
inline std::vector<Enclosure> exact_row(const Case& input, const std::string& output, std::int64_t row = 0) {
  return exact_row(reference_of(input.op), input, output, row);
}

/// Lower bound of |mid a - mid b| over what the radii of both allow: 0 when the intervals meet.
inline double separation(const Enclosure& a, const Ball& b) {
  const double distance = magnitude_lower(a - Enclosure(b.mid));
  return distance > b.rad ? distance - b.rad : 0;
}
/// The same for Arb, whose midpoint is taken apart into doubles; what is left of it counts as radius.
inline double separation(const Enclosure& a, const Arb& b) {
  Enclosure sum;
  Arb rest = b;
  for (int part = 0; part < 5; ++part) {
    const double head = midpoint_hint(rest);
    sum = sum + Enclosure(head);
    rest = rest - Arb(head);
  }
  const double distance = magnitude_lower(a - sum), allowed = magnitude_upper(rest);
  return distance > allowed ? distance - allowed : 0;
}
/// Do two enclosures of one number meet?
inline bool meet(const Enclosure& a, const Enclosure& b) { return magnitude_lower(a - b) == 0; }

/// Same constant where at least one side is NaN or an infinity.
template <class A, class B>
bool same_special(const A& a, const B& b) {
  if (is_special(a) != is_special(b)) return false;
  const double x = midpoint_hint(a), y = midpoint_hint(b);
  return std::isnan(x) ? std::isnan(y) : x == y;
}

}  // namespace sumzero
