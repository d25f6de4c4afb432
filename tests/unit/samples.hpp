// Samples for the tests of witnesses, reports and the gate: the Collapse pair, and reports with every field set to a value
// of its own.
#pragma once

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "oracle/verdict.hpp"
#include "oracle/witness.hpp"

namespace sumzero {

/// The text with the first `what` replaced; a test whose text no longer holds it fails.
inline std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what << " is not in\n" << text;
  return at == std::string::npos ? text : text.replace(at, what.size(), by);
}

/// cross_entropy on f32 logits 17 and 0 with label 0: the pair whose textbook gradient collapses.
inline Case collapse_pair() {
  Case input;
  input.op = "cross_entropy";
  input.storage = Format::f32;
  input.extents = {1, 2};
  input.attributes = {{"reduction", 2}};
  Tensor x = Tensor::contiguous(Format::f32, {1, 2});
  x.set(0, 17);
  input.inputs = {{"x", x}, {"label", Tensor::contiguous(Format::index, {1})}};
  return input;
}

/// A run in which everything held.
inline Report passing_report() {
  Report report;
  report.op = "cross_entropy";
  report.kernel = "cpu.tail";
  report.format = "f32";
  report.seed = std::numeric_limits<std::uint64_t>::max();
  report.cases = 1000;
  report.rows = 2000;
  report.elements = 64000;
  report.seconds = 1.5;
  report.violation_counts = {{"gradient sum", 0}};
  report.worst["gx"] = {1.25, 1, 0.5, 0x1.5p-25, "4.1e-8", "sampled", "aa11", "bb22", 3, 1, 7, 64000};
  report.worst["loss"] = {0.75, 1, 0.25, 0x1p-30, "9.3e-10", "exhaustive", "cc33", "dd44", 0, 0, 2, 2000};
  report.bounds["gx"] = {"proved", "T4", "t4.json"};
  report.bounds["loss"] = {"derived", "T2", "t2.json"};
  report.gradient_sum_index = {0.8, "gx", "ee55"};
  report.bias["gx"] = {-0.01, 64000};
  report.classes_reached = {{"ties", 12}, {"gap", 40}};
  report.classes_required = {"gap", "ties"};
  report.escalated = 5;
  report.environment = {{"cpu", "Example CPU"}, {"compiler", "gcc 12"}};
  report.contract = {{"accumulator", "f32"}};
  return report;
}

/// A run that found the collapse.
inline Report failing_report() {
  Report report = passing_report();
  report.kernel = "textbook.pytorch";
  report.verdict = "violation";
  Violation violation;
  violation.property = "gradient sum";
  violation.kind = "collapse";
  violation.verdict = Verdict::invariant_broken;
  violation.output = "gx";
  violation.row = 0;
  violation.index = 0;
  violation.computed = 0;
  violation.exact = "-4.1399375473943306e-08";
  violation.exact_value = -4.1399375473943306e-08;
  violation.ulp = std::numeric_limits<double>::infinity();
  violation.bound_ratio = 2.5;
  violation.gradient_sum_index = 0x1p23;
  violation.message = "The gradient of a row sums to 4.1e-8 instead of 0";
  violation.stratum = "gap";
  violation.case_index = 41;
  violation.input = collapse_pair();
  violation.witness = content_address(violation.input);
  report.violations = {violation};
  report.gradient_sum_index = {0x1p23, "gx", violation.witness};
  report.violation_counts = {{"gradient sum", 17}};
  return report;
}

}  // namespace sumzero
