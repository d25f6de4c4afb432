// Reports of shares of one campaign, joined to the report of all their cases.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "oracle/verdict.hpp"

namespace sumzero {

/// The place of the largest value; end() where there is none.
std::map<std::string, Place>::const_iterator largest_of(const std::map<std::string, Place>& places);
/// The telling violations first, then the small ones.
void order_violations(Report& report);

/// The report of the cases of both: associative, commutative and idempotent, equal to the report of one run over all cases
/// but for the rounding of the mean errors. Throws InvalidInput when the reports are not of one campaign, or share cases
/// without sharing a shard.
Report merge_reports(const Report& a, const Report& b);

/// Merges every report.json below `places`, and what `out` already holds, into `out`: one folder with report and witnesses,
/// or one for each operator, kernel and dtype where there are several. Can be repeated after an interruption at any point.
/// Throws InvalidInput for shares that were not finished, unreadable reports and witnesses, and different campaigns.
std::vector<Report> merge_campaigns(const std::vector<std::filesystem::path>& places, const std::filesystem::path& out);

}  // namespace sumzero
