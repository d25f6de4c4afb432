#include "fuzz/merge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "oracle/file.hpp"
#include "oracle/json.hpp"
#include "oracle/report.hpp"
#include "oracle/witness.hpp"

namespace sumzero {
namespace {

namespace fs = std::filesystem;

bool same(const Violation& violation, const Complaint& complaint) {
  return violation.property == complaint.property && violation.kind == complaint.kind && violation.output == complaint.output;
}

/// Which of two reports found the place that a join kept; places are found again in every report that has them.
template <class Key>
bool found_by(const std::map<Key, Place>& places, const Key& key, const Place& kept) {
  const auto found = places.find(key);
  return found != places.end() && found->second == kept;
}

void join_record(IndexRecord& mine, const IndexRecord& other, const std::map<std::string, Place>& places, const std::map<std::string, Place>& joined) {
  const auto largest = largest_of(joined);
  if (largest != joined.end() && !(largest_of(places) != places.end() && *largest_of(places) == *largest)) mine = other;
}

/// Every witness that a report names.
std::set<std::string> witnesses_of(const Report& report) {
  std::set<std::string> names{report.gradient_sum_index.witness, report.sum_index.witness};
  for (const auto& [output, worst] : report.worst) names.insert({worst.witness, worst.bound_witness});
  for (const Violation& violation : report.violations) names.insert(violation.witness);
  names.erase("");
  return names;
}

/// A finished report and its folder.
struct Finished {
  fs::path path;
  Report report;
};

Finished read_finished(const fs::path& path) {
  Finished finished{path, read_report(path)};
  if (!finished.report.tally) throw InvalidInput(path.string() + ": has no `campaign`, so it is no report of a campaign's share; give folders that `sumzero fuzz --out` wrote");
  return finished;
}

/// A share that was killed has a state that is ahead of its report.
void refuse_unfinished(const fs::path& state) {
  const fs::path report = state.parent_path() / "report.json";
  const auto unfinished = [&](const std::string& what) {
    throw InvalidInput(fmt::format("{}: {}; go on with --resume, or remove the folder", state.parent_path().string(), what));
  };
  if (!fs::exists(report)) unfinished("its campaign was not finished");
  const nlohmann::json text = parse_json(read_file(state), state.string());
  const Tally tally = tally_from_json(JsonValue(text, state.string()).at("campaign"));
  const std::optional<Tally> reported = read_report(report).tally;
  if (!reported || reported->total().drawn < tally.total().drawn) unfinished(fmt::format("its report lacks some of the {} cases that were run", tally.total().drawn));
}

std::vector<Finished> finished_below(const std::vector<fs::path>& places) {
  std::set<fs::path> reports, states;
  for (const fs::path& place : places) {
    if (!fs::exists(place)) throw InvalidInput(place.string() + ": no such file or folder; give a folder that `sumzero fuzz --out` wrote");
    if (!fs::is_directory(place)) {
      reports.insert(place);
      continue;
    }
    const std::size_t before = reports.size() + states.size();
    for (const auto& entry : fs::recursive_directory_iterator(place)) {
      if (entry.path().filename() == "report.json") reports.insert(entry.path());
      if (entry.path().filename() == "state.json") states.insert(entry.path());
    }
    if (reports.size() + states.size() == before) throw InvalidInput(place.string() + ": holds no report.json; give a folder that `sumzero fuzz --out` wrote");
  }
  for (const fs::path& state : states) refuse_unfinished(state);
  std::vector<Finished> finished;
  for (const fs::path& path : reports) finished.push_back(read_finished(path));
  return finished;
}

/// Witness files beside the reports, checked against their names.
void copy_witnesses(const Report& report, const std::vector<Finished>& from, const fs::path& out) {
  for (const std::string& address : witnesses_of(report)) {
    const auto violation = std::find_if(report.violations.begin(), report.violations.end(), [&](const Violation& v) { return v.witness == address; });
    if (violation != report.violations.end() && content_address(violation->input) == address) {
      write_witness(out / "witness", violation->input);
      continue;
    }
    for (const Finished& part : from) {
      const fs::path file = part.path.parent_path() / "witness" / (address + ".json");
      if (!fs::exists(file)) continue;
      const Case input = read_witness(file);
      if (content_address(input) != address)
        throw InvalidInput(file.string() + ": does not hold the case that its name promises; remove it and run its share again with --resume");
      write_witness(out / "witness", input);
      break;
    }
  }
}

}  // namespace

std::map<std::string, Place>::const_iterator largest_of(const std::map<std::string, Place>& places) {
  return std::max_element(places.begin(), places.end(), [](const auto& a, const auto& b) {
    return std::tuple(a.second.value, b.second.index) < std::tuple(b.second.value, a.second.index);
  });
}

void order_violations(Report& report) {
  static const std::vector<std::string> order = {"gradient sum", "exact zero", "probability sum", "finite", "special values", "bound"};
  const auto rank = [](const Violation& v) {
    const auto place = std::find(order.begin(), order.end(), v.property) - order.begin();
    std::int64_t size = 0;
    for (const auto& [input, tensor] : v.input.inputs) size += tensor.elements();
    return std::tuple(place, v.kind.empty(), size);
  };
  std::stable_sort(report.violations.begin(), report.violations.end(), [&](const Violation& a, const Violation& b) { return rank(a) < rank(b); });
}

Report merge_reports(const Report& a, const Report& b) {
  if (!a.tally || !b.tally) throw InvalidInput("a report without `campaign` cannot be merged; write it again with `sumzero fuzz --out`");
  Tally tally = *a.tally;
  tally.join(*b.tally);
  if (a.contract != b.contract || a.classes_required != b.classes_required)
    throw InvalidInput(fmt::format("{}/{}/{}: the reports come from different versions of the kernel's contract; merge shares of one version", a.op, a.kernel, a.format));
  Report merged = a;
  merged.environment = std::min(a.environment, b.environment);
  for (const auto& [output, place] : tally.ulp) {
    Worst worst = found_by(a.tally->ulp, output, place) ? a.worst.at(output) : b.worst.at(output);
    const Worst& ratio = found_by(a.tally->ratio, output, tally.ratio[output]) ? a.worst.at(output) : b.worst.at(output);
    worst.bound_ratio = ratio.bound_ratio, worst.bound_witness = ratio.bound_witness;
    merged.worst[output] = worst;
  }
  join_record(merged.gradient_sum_index, b.gradient_sum_index, a.tally->gradient_sum, tally.gradient_sum);
  join_record(merged.sum_index, b.sum_index, a.tally->sum, tally.sum);
  merged.violations.clear();
  for (const auto& [complaint, place] : tally.complaints) {
    const Report& from = found_by(a.tally->complaints, complaint, place) ? a : b;
    for (const Violation& violation : from.violations)
      if (same(violation, complaint)) merged.violations.push_back(violation);
  }
  order_violations(merged);
  merged.count(tally);
  merged.tally = std::move(tally);
  merged.verdict = "pass";  // what the parts could not tell, the whole may
  merged.verdict = verdict_word(merged);
  return merged;
}

std::vector<Report> merge_campaigns(const std::vector<fs::path>& places, const fs::path& out) {
  std::vector<fs::path> all = places;
  const FolderLock lock(out);
  for (const auto& entry : fs::recursive_directory_iterator(out))
    if (entry.path().filename() == "report.json") all.push_back(entry.path());
  std::map<std::tuple<std::string, std::string, std::string>, std::vector<Finished>> groups;
  for (Finished& part : finished_below(all)) groups[{part.report.op, part.report.kernel, part.report.format}].push_back(std::move(part));
  std::vector<Report> merged;
  for (const auto& [key, parts] : groups) {
    Report report = parts.front().report;
    for (const Finished& part : parts) report = merge_reports(report, part.report);
    const auto& [op, kernel, format] = key;
    const fs::path folder = groups.size() == 1 ? out : out / fmt::format("{}.{}.{}", op, kernel, format);
    copy_witnesses(report, parts, folder);
    write_report(folder / "report.json", report);
    merged.push_back(std::move(report));
  }
  return merged;
}

}  // namespace sumzero
