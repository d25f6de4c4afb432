#include "oracle/probe.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "oracle/contract.hpp"
#include "oracle/probe_rows.hpp"

namespace sumzero {
namespace {

struct Measurement {
  std::vector<const char*> properties;  ///< what it finds; said to be not measurable where it stops
  void (*measure)(ProbeState&);
};

const std::vector<Measurement>& measurements() {
  static const std::vector<Measurement> all = {
      {{"log error"}, probe_logarithm},
      {{"accumulator", "reduction order", "maximum in the sum"}, probe_summation},
      {{"saturation length"}, probe_saturation},
      {{"exp error"}, probe_exponential},
      {{"subnormal results", "exp is 0 from", "subnormal inputs"}, probe_subnormals},
      {{"x - max"}, probe_shift},
      {{"division"}, probe_division},
      {{"backward reads"}, probe_stores},
      {{"other policies"}, probe_special_values},
      {{"repeated runs", "threads", "other rows in the batch", "position in the batch", "layout"}, probe_determinism}};
  return all;
}

}  // namespace

std::string_view ProbeResult::value(std::string_view property) const {
  for (const ProbeFinding& finding : findings)
    if (finding.property == property) return finding.value;
  return {};
}

ProbeResult probe(const OperatorReference& reference, const Kernel& kernel, const ProbeOptions& options) {
  if (!kernel.supports(options.format))
    throw InvalidInput(fmt::format("kernel '{}' of {} does not support {}; see `sumzero list`", kernel.name, kernel.op, name(options.format)));
  if (reference.signature().axes != Axes::rows)
    throw InvalidInput(fmt::format("probe measures operators on rows of logits; {} has none: probe the softmax that its kernel is built on", kernel.op));
  ProbeResult result;
  result.op = kernel.op;
  result.kernel = kernel.name;
  result.format = options.format;
  result.seed = options.seed;
  result.contract = default_contract(options.format);
  result.contract.kind = "declared";
  const ProbeRows rows(reference, kernel, options);
  // A kernel that dies or refuses here has nothing to show.
  const GuardedRun ordinary = run_guarded(reference.signature(), kernel, rows.rows({{0, 1, 2, 3}}));
  if (ordinary.verdict == Verdict::crashed) throw Crashed("on an ordinary row: " + ordinary.detail);
  if (ordinary.verdict == Verdict::timed_out) throw TimedOut("on an ordinary row: " + ordinary.detail);
  if (ordinary.verdict != Verdict::pass) {
    result.refused = true;
    result.findings.push_back({"ordinary row", "", fmt::format("{}: {}", name(ordinary.verdict), ordinary.detail)});
    return result;
  }
  ProbeState state{rows, result, 0, std::nullopt};
  for (const auto& [properties, measure] : measurements()) {
    try {
      measure(state);
    } catch (const NotMeasurable& reason) {
      for (const char* property : properties) {
        const bool there = std::any_of(result.findings.begin(), result.findings.end(), [&](const ProbeFinding& f) { return f.property == property; });
        if (!there) state.found(property, "", reason.what());
      }
    }
  }
  return result;
}

std::string probe_text(const ProbeResult& result) {
  std::string text = fmt::format("{}/{}/{}\n", result.op, result.kernel, name(result.format));
  for (const ProbeFinding& finding : result.findings)
    text += fmt::format("  {:<24} {:<34} {}\n", finding.property, finding.value.empty() ? "not measurable" : finding.value, finding.evidence);
  return text;
}

nlohmann::ordered_json to_json(const ProbeResult& result) {
  nlohmann::ordered_json findings = nlohmann::ordered_json::array();
  for (const ProbeFinding& finding : result.findings)
    findings.push_back({{"property", finding.property},
                        {"value", finding.value.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(finding.value)},
                        {"evidence", valid_utf8(finding.evidence)}});
  return {{"schema", fmt::format("sumzero-probe/{}", ProbeResult::schema)},
          {"operator", result.op},
          {"kernel", result.kernel},
          {"dtype", std::string(name(result.format))},
          {"seed", result.seed},
          {"findings", findings},
          {"contract", draft_contract(result)}};
}

nlohmann::ordered_json draft_contract(const ProbeResult& result) {
  nlohmann::ordered_json draft = {{"operator", result.op}, {"kernel", result.kernel}, {"dtype", std::string(name(result.format))}};
  draft.update(contract_json(result.contract));
  draft["note"] = "draft by probe: largest errors found, no bound; unmeasured fields hold defaults";
  return draft;
}

}  // namespace sumzero
