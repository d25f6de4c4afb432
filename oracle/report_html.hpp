// A report as one HTML file that needs no network: verdict, worst case and command first, then tables and charts.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "oracle/gate.hpp"
#include "oracle/report.hpp"

namespace sumzero {

/// Time of a kernel in times of a copy of the same data, as `sumzero bench --json` measures it.
struct KernelSpeed {
  std::string op, kernel;
  double time_over_copy = 0;
};

struct PageParts {
  std::string script, style;           ///< contents of report.js and report.css
  std::optional<Baseline> baseline;    ///< drawn against the reports
  std::vector<KernelSpeed> speeds;     ///< drawn against the errors
  std::vector<std::string> folders;    ///< by report: where its witnesses lie; may be empty
};

/// Script and style as the build put them beside the tool. Throws InvalidInput when the tool was built without Vega.
PageParts page_parts();

/// Reads the speeds of a file that `sumzero bench --json` wrote.
std::vector<KernelSpeed> read_speeds(const std::filesystem::path& path);

std::string html(const std::vector<Report>& reports, const PageParts& parts);

}  // namespace sumzero
