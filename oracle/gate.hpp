// The gate: may a change go in? Three switches over the reports of a run.
//
//   bound       an output's error exceeds its proved, derived or declared bound
//   invariants  any other property fails
//   ratchet     worse than the stored baseline of the same kernel by more than the budget, one ulp unless the file says else
#pragma once

#include <compare>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "oracle/verdict.hpp"

namespace sumzero {

constexpr std::string_view baseline_schema = "sumzero-baseline/1";

/// What a baseline and a report are matched by.
struct BaselineKey {
  std::string op, kernel, format;
  auto operator<=>(const BaselineKey&) const = default;
};

struct BaselineOutput {
  double ulp = 0, bound_ratio = 0;
  bool operator==(const BaselineOutput&) const = default;
};

/// Content address of a case -> output -> error in ulp.
using WitnessErrors = std::map<std::string, std::map<std::string, double>>;

struct BaselineEntry {
  std::map<std::string, BaselineOutput> outputs;
  std::optional<double> gradient_sum_index;
  WitnessErrors witnesses;  ///< the worst cases
  bool operator==(const BaselineEntry&) const = default;
};

/// The accepted state, a small text file in the user's repository. Its text has one order, so that a change is a diff.
struct Baseline {
  double budget_ulp = 1;  ///< how much worse a stored number may become
  std::map<BaselineKey, BaselineEntry> entries;
  bool operator==(const Baseline&) const = default;
};

std::string baseline_text(const Baseline& baseline);
/// Throws InvalidInput that names `source` and field for malformed, truncated or unknown text.
Baseline parse_baseline(std::string_view text, const std::string& source);
void write_baseline(const std::filesystem::path& path, const Baseline& baseline);
Baseline read_baseline(const std::filesystem::path& path);

/// The baseline after accepting these reports: their entries replaced, all others and the budget kept. Reports in which no
/// case was judged change nothing; of several reports of one kernel the worst numbers stay.
Baseline updated_baseline(const std::vector<Report>& reports, const std::optional<Baseline>& previous);

enum class Ratchet : std::uint8_t { no_baseline, held, better, worse };
std::string_view name(Ratchet ratchet);

/// One report before the gate.
struct GateRow {
  BaselineKey key;
  bool bound_holds = true, invariants_hold = true;
  Ratchet ratchet = Ratchet::no_baseline;
  double ulp = 0;                    ///< worst over the outputs
  std::optional<double> stored_ulp;  ///< worst over the outputs of the baseline
  Exit exit = Exit::pass;
};

struct GateSentence {
  enum class Level : std::uint8_t { note, warning, failure } level = Level::note;
  std::string text;
};

struct GateResult {
  Exit exit = Exit::pass;                ///< worst of all rows
  std::vector<GateSentence> sentences;   ///< in the order of the reports
  std::vector<GateRow> rows;             ///< one per report
};

/// Judges reports. `remeasured` holds errors at the baseline's stored witnesses where the caller replayed them; without it a
/// stored witness counts only if it is the worst case of a report again. No report at all is inconclusive.
GateResult gate(const std::vector<Report>& reports, const std::optional<Baseline>& baseline,
                const std::map<BaselineKey, WitnessErrors>& remeasured = {});

}  // namespace sumzero
