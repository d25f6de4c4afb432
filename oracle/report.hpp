// The output formats of a run, all written from `Report`. Texts are UTF-8 whatever bytes the names hold.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "oracle/json.hpp"
#include "oracle/verdict.hpp"

namespace sumzero {

constexpr std::string_view report_schema = "sumzero-report/1";
static_assert(Report::schema == 1, "a change of the report's fields needs a new schema name");

/// The report as JSON: field names are those of `Report`, with `operator` for op, `dtype` for format, `bound` for bounds,
/// and `classes` {reached, required, missing}. Numbers that are not finite are the strings "inf", "-inf", "nan".
nlohmann::json to_json(const Report& report);
/// Reads such an object back; unknown fields are ignored. Throws InvalidInput naming `source` and field.
Report report_from_json(const nlohmann::json& value, const std::string& source = "report");

/// `to_json` as a file, and back.
void write_report(const std::filesystem::path& path, const Report& report);
Report read_report(const std::filesystem::path& path);

/// What a report holds against one property.
struct Finding {
  std::vector<const Violation*> violations;  ///< the listed ones; they point into the report
  std::uint64_t cases = 0;                   ///< all cases, listed or not
  /// Warnings alone do not fail; cases that are counted but not listed do, since their severity is not known.
  bool failed() const;
};
/// By property: everything in `violations` and `violation_counts`, properties with a count of 0 included.
std::map<std::string, Finding> findings(const Report& report);
/// Property under which the judge files exceeded bounds.
constexpr std::string_view bound_property = "bound";

/// One word for the exit code of a report: pass, violation, crashed, inconclusive or refused.
std::string_view verdict_word(const Report& report);
/// Reasons of an inconclusive report, a sentence each.
std::vector<std::string> inconclusive_reasons(const Report& report);

/// JUnit XML: a suite per report; test cases for the bound of each output, each other property that was counted, class
/// coverage and undecided rows. A report whose exit code is neither 0 nor 77 has at least one failure.
std::string junit_xml(const std::vector<Report>& reports);

/// Largest size of a Markdown summary, in bytes: reviews of pull requests take no longer text.
constexpr std::size_t largest_markdown = 200'000;
/// Summary for a review: one table row per report, then the violations, with witnesses of at most 8 logits typed out. What
/// does not fit is counted.
std::string markdown(const std::vector<Report>& reports);

/// SARIF 2.1.0 (OASIS), one result per violation, and one per report that is inconclusive.
std::string sarif(const std::vector<Report>& reports);

/// About ten aligned lines for a terminal.
std::string terminal_summary(const Report& report);

}  // namespace sumzero
