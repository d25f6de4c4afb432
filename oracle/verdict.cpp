#include "oracle/verdict.hpp"

#include <algorithm>
#include <array>

namespace sumzero {
namespace {

constexpr std::array<std::string_view, 13> verdict_names = {
    "pass",          "bound_exceeded",    "invariant_broken",  "special_value", "out_of_bounds", "input_mutated",
    "not_fully_written", "not_deterministic", "crashed",       "timed_out",     "refused",       "undecided",
    "mistrusted"};

/// Strength of an exit code. 77 loses to everything but 0: a pass elsewhere does not judge what was skipped.
int rank(Exit code) {
  switch (code) {
    case Exit::pass: return 0;
    case Exit::skipped: return 1;
    case Exit::inconclusive: return 2;
    case Exit::violation: return 3;
    case Exit::crash: return 4;
    case Exit::usage: return 5;
  }
  return 5;
}

}  // namespace

std::string_view name(Verdict verdict) { return verdict_names[static_cast<std::size_t>(verdict)]; }

std::optional<Verdict> verdict_named(std::string_view text) {
  for (std::size_t i = 0; i < verdict_names.size(); ++i)
    if (verdict_names[i] == text) return static_cast<Verdict>(i);
  return std::nullopt;
}

Exit worse(Exit a, Exit b) { return rank(a) >= rank(b) ? a : b; }

std::vector<std::string> Report::classes_missing() const {
  std::vector<std::string> missing;
  for (const std::string& required : classes_required) {
    const auto found = classes_reached.find(required);
    if (found == classes_reached.end() || found->second == 0) missing.push_back(required);
  }
  return missing;
}

std::string every_row(std::uint64_t length) { return "every row of " + std::to_string(length) + (length == 1 ? " logit" : " logits"); }

void Report::count(const Tally& tally) {
  const Share total = tally.total();
  cases = total.cases, rows = total.rows, elements = total.elements, seconds = total.seconds;
  undecided = total.undecided, refused = total.refused, mistrusted = total.mistrusted, escalated = total.escalated;
  for (const auto& [property, count] : total.violation_counts) violation_counts[property] = count;
  classes_reached = total.classes_reached;
  if (tally.exhausted()) classes_reached[every_row(tally.length)] = tally.chunks;
  bias.clear();
  for (const auto& [output, elements_judged] : total.judged) {
    worst[output].elements = elements_judged;
    if (tally.exhausted()) worst[output].kind = "exhaustive";
    bias[output] = {total.signed_ulps.at(output) / static_cast<double>(elements_judged), elements_judged};
  }
  if (const auto first = tally.words.find(std::string(name(Verdict::refused))); first != tally.words.end()) refusal = first->second.text;
}

Exit Report::exit_code() const {
  Exit code = Exit::pass;
  const auto raise = [&](bool applies, Exit to) {
    if (applies) code = worse(code, to);
  };
  raise(verdict == "crashed", Exit::crash);
  raise(verdict == "violation", Exit::violation);
  for (const Violation& violation : violations) {
    raise(kills(violation.verdict), Exit::crash);
    raise(violation.severity == "error", Exit::violation);
  }
  // `cases` may count the refused ones or not: either way none was judged when it does not exceed them.
  const bool none_judged = verdict == "refused" || (refused > 0 && cases <= refused);
  raise(none_judged, Exit::skipped);
  if (none_judged) return code;
  // A run without a single judged case proves nothing.
  raise(verdict == "inconclusive" || undecided > 0 || cases == 0 || !classes_missing().empty(), Exit::inconclusive);
  return code;
}

}  // namespace sumzero
