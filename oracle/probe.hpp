// What a kernel does inside, measured from outputs alone: the kernel is called on rows whose sums, roundings and special
// values are known for every candidate construction, and the candidates that do not predict its outputs are dropped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "reference/evaluate.hpp"

namespace sumzero {

struct ProbeOptions {
  Format format = Format::f32;
  std::uint64_t seed = 1;   ///< of the random rows that confirm a summation order
  double seconds = 20;      ///< after this time no longer row is tried; what is missing is said
  std::size_t longest = std::size_t{1} << 25;  ///< longest row of the search for a saturation length
};

/// One measured property.
struct ProbeFinding {
  std::string property;
  std::string value;     ///< empty: not measurable, for the reason in `evidence`
  std::string evidence;  ///< how it was measured, one sentence
};

struct ProbeResult {
  static constexpr int schema = 1;
  std::string op, kernel;
  Format format = Format::f32;
  std::uint64_t seed = 0;
  std::vector<ProbeFinding> findings;
  /// Draft: what was measured, figures rounded up; default_contract where nothing was. Its kind is `declared`.
  Contract contract;
  bool refused = false;  ///< the kernel declined an ordinary row: nothing was measured

  /// Value of a finding; empty where it was not measurable.
  std::string_view value(std::string_view property) const;
};

/// Probes one kernel in one storage format. Throws InvalidInput when the kernel does not support the format, Crashed or
/// TimedOut when it dies on an ordinary row. Deaths on special rows are findings.
ProbeResult probe(const OperatorReference& reference, const Kernel& kernel, const ProbeOptions& options);

/// Table for a terminal: property, value, and how it was measured.
std::string probe_text(const ProbeResult& result);
nlohmann::ordered_json to_json(const ProbeResult& result);
/// The contract file of `--contract` with the operator, kernel and dtype that it belongs to.
nlohmann::ordered_json draft_contract(const ProbeResult& result);

}  // namespace sumzero
