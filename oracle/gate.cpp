#include "oracle/gate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "oracle/file.hpp"
#include "oracle/json.hpp"
#include "oracle/report.hpp"

namespace sumzero {
namespace {

using nlohmann::ordered_json;
using Level = GateSentence::Level;

BaselineKey key_of(const Report& report) { return {report.op, report.kernel, report.format}; }
std::string text_of(const BaselineKey& key) { return key.op + "/" + key.kernel + "/" + key.format; }

double worst_of(const std::map<std::string, BaselineOutput>& outputs) {
  double ulp = 0;
  for (const auto& [name, output] : outputs) ulp = std::max(ulp, output.ulp);
  return ulp;
}

/// What a baseline would store of a report.
BaselineEntry entry_of(const Report& report) {
  BaselineEntry entry;
  for (const auto& [output, worst] : report.worst) {
    entry.outputs[output] = {worst.ulp, worst.bound_ratio};
    if (!worst.witness.empty()) entry.witnesses[worst.witness][output] = worst.ulp;
  }
  entry.gradient_sum_index = report.gradient_sum_index.max;
  return entry;
}

void keep_larger(double& stored, double value) { stored = std::max(stored, value); }

void merge(BaselineEntry& into, const BaselineEntry& entry) {
  for (const auto& [name, output] : entry.outputs) {
    keep_larger(into.outputs[name].ulp, output.ulp);
    keep_larger(into.outputs[name].bound_ratio, output.bound_ratio);
  }
  if (entry.gradient_sum_index)
    into.gradient_sum_index = std::max(into.gradient_sum_index.value_or(0), *entry.gradient_sum_index);
  for (const auto& [address, outputs] : entry.witnesses)
    for (const auto& [name, ulp] : outputs) keep_larger(into.witnesses[address][name], ulp);
}

double size(const JsonValue& value) {
  const double number = value.number();
  if (!(number >= 0)) value.fail("must be a number of at least 0; correct it");
  return number;
}

class Judge {
 public:
  Judge(const std::optional<Baseline>& baseline, const std::map<BaselineKey, WitnessErrors>& remeasured, GateResult& result)
      : baseline_(baseline), remeasured_(remeasured), result_(result) {}

  void judge(const Report& report) {
    row_ = {};
    row_.key = key_of(report);
    row_.exit = report.exit_code();
    if (row_.exit == Exit::skipped) {
      say(Level::warning, "refused every case" + (report.refusal.empty() ? "" : ": " + report.refusal));
      result_.rows.push_back(row_);
      return;
    }
    bound(report);
    invariants(report);
    if (row_.exit == Exit::inconclusive)
      for (const std::string& reason : inconclusive_reasons(report)) say(Level::failure, "inconclusive: " + reason);
    ratchet(report);
    if (!row_.bound_holds || !row_.invariants_hold || row_.ratchet == Ratchet::worse)
      row_.exit = worse(row_.exit, Exit::violation);
    else if (row_.exit == Exit::violation || row_.exit == Exit::crash)
      say(Level::failure, fmt::format("the run was judged {}", verdict_word(report)));
    result_.rows.push_back(row_);
  }

 private:
  void say(Level level, const std::string& text) { result_.sentences.push_back({level, text_of(row_.key) + ": " + text + "."}); }

  static std::string first_of(const Finding& finding) {
    if (finding.violations.empty()) return "";
    const Violation& first = *finding.violations.front();
    std::string text = first.message;
    while (text.ends_with('.')) text.pop_back();
    if (!text.empty()) text = ": " + text;
    return text + (first.witness.empty() ? "" : " (witness " + first.witness + ")");
  }

  void bound(const Report& report) {
    const std::map<std::string, Finding> all = findings(report);
    const auto found = all.find(std::string(bound_property));
    if (found != all.end() && found->second.failed()) {
      row_.bound_holds = false;
      say(Level::failure, fmt::format("the bound is exceeded in {} {}", found->second.cases, report.unit()) + first_of(found->second));
    }
    for (const auto& [output, worst] : report.worst) {
      if (worst.bound_ratio <= 1) continue;
      if (row_.bound_holds)
        say(Level::failure, fmt::format("the error of {} is {:.4g} times its bound (witness {})", output, worst.bound_ratio,
                                        worst.bound_witness.empty() ? worst.witness : worst.bound_witness));
      row_.bound_holds = false;
    }
  }

  void invariants(const Report& report) {
    for (const auto& [property, finding] : findings(report)) {
      if (property == bound_property) continue;
      if (finding.failed()) {
        row_.invariants_hold = false;
        say(Level::failure, fmt::format("{} fails in {} {}", property, finding.cases, report.unit()) + first_of(finding));
      } else if (finding.cases > 0) {
        say(Level::warning, fmt::format("{}, {} {}", property, finding.cases, report.unit()) + first_of(finding));
      }
    }
  }

  void compare(const std::string& what, double now, double stored) {
    const double budget = baseline_->budget_ulp;
    if (!(now <= stored + budget)) {
      row_.ratchet = Ratchet::worse;
      say(Level::failure, fmt::format("{} rose from {:.4g} to {:.4g}, more than the budget of {:.4g}; if this is wanted, store it "
                                      "with --update-baseline", what, stored, now, budget));
    } else if (now + budget < stored) {
      if (row_.ratchet != Ratchet::worse) row_.ratchet = Ratchet::better;
      say(Level::note, fmt::format("{} fell from {:.4g} to {:.4g}; store the gain with --update-baseline", what, stored, now));
    }
  }

  void ratchet(const Report& report) {
    for (const auto& [output, worst] : report.worst) row_.ulp = std::max(row_.ulp, worst.ulp);
    if (!baseline_) return;
    const auto found = baseline_->entries.find(row_.key);
    if (found == baseline_->entries.end())
      return say(Level::note, "is not in the baseline; add it with --update-baseline");
    const BaselineEntry& stored = found->second;
    row_.ratchet = Ratchet::held;
    row_.stored_ulp = worst_of(stored.outputs);
    for (const auto& [output, worst] : report.worst) {
      const auto entry = stored.outputs.find(output);
      if (entry == stored.outputs.end())
        say(Level::note, "output " + output + " is not in the baseline; add it with --update-baseline");
      else
        compare("the worst error of " + output + " in ulp", worst.ulp, entry->second.ulp);
    }
    for (const auto& [output, entry] : stored.outputs)
      if (!report.worst.contains(output))
        say(Level::warning, "output " + output + " of the baseline was not measured in this run");
    if (stored.gradient_sum_index && report.gradient_sum_index.max)
      compare("the gradient-sum index", *report.gradient_sum_index.max, *stored.gradient_sum_index);
    witnesses(report, stored);
  }

  void witnesses(const Report& report, const BaselineEntry& stored) {
    WitnessErrors now = entry_of(report).witnesses;
    if (const auto again = remeasured_.find(row_.key); again != remeasured_.end())
      for (const auto& [address, outputs] : again->second)
        for (const auto& [output, ulp] : outputs) now[address][output] = ulp;
    for (const auto& [address, outputs] : stored.witnesses) {
      const auto measured = now.find(address);
      if (measured == now.end()) continue;
      for (const auto& [output, ulp] : outputs)
        if (const auto entry = measured->second.find(output); entry != measured->second.end())
          compare("the error of " + output + " in ulp at witness " + address, entry->second, ulp);
    }
  }

  const std::optional<Baseline>& baseline_;
  const std::map<BaselineKey, WitnessErrors>& remeasured_;
  GateResult& result_;
  GateRow row_;
};

}  // namespace

std::string_view name(Ratchet ratchet) {
  constexpr std::string_view names[] = {"no baseline", "held", "better", "worse"};
  return names[static_cast<int>(ratchet)];
}

std::string baseline_text(const Baseline& baseline) {
  ordered_json text;
  text["schema"] = baseline_schema;
  text["budget_ulp"] = number_json(baseline.budget_ulp);
  text["entries"] = ordered_json::array();
  for (const auto& [key, entry] : baseline.entries) {
    ordered_json item;
    item["operator"] = valid_utf8(key.op);
    item["kernel"] = valid_utf8(key.kernel);
    item["dtype"] = valid_utf8(key.format);
    item["outputs"] = ordered_json::object();
    for (const auto& [output, value] : entry.outputs) {
      ordered_json& numbers = item["outputs"][valid_utf8(output)];
      numbers["ulp"] = number_json(value.ulp);
      numbers["bound_ratio"] = number_json(value.bound_ratio);
    }
    item["gradient_sum_index"] = entry.gradient_sum_index ? ordered_json(number_json(*entry.gradient_sum_index)) : nullptr;
    item["witnesses"] = ordered_json::object();
    for (const auto& [address, outputs] : entry.witnesses) {
      ordered_json& numbers = item["witnesses"][valid_utf8(address)] = ordered_json::object();
      for (const auto& [output, ulp] : outputs) numbers[valid_utf8(output)] = number_json(ulp);
    }
    text["entries"].push_back(std::move(item));
  }
  return pretty(text);
}

Baseline parse_baseline(std::string_view text, const std::string& source) {
  const nlohmann::json parsed = parse_json(text, source);
  const JsonValue value(parsed, source);
  value.require_schema(baseline_schema);
  value.only({"schema", "budget_ulp", "entries"});
  Baseline baseline;
  if (const std::optional<JsonValue> budget = value.find("budget_ulp")) baseline.budget_ulp = size(*budget);
  for (const JsonValue& item : value.at("entries").items()) {
    item.only({"operator", "kernel", "dtype", "outputs", "gradient_sum_index", "witnesses"});
    const BaselineKey key{item.at("operator").text(), item.at("kernel").text(), item.at("dtype").text()};
    BaselineEntry entry;
    for (const auto& [output, numbers] : item.at("outputs").fields()) {
      numbers.only({"ulp", "bound_ratio"});
      entry.outputs[output] = {size(numbers.at("ulp")), size(numbers.at("bound_ratio"))};
    }
    const JsonValue index = item.at("gradient_sum_index");
    if (!index.raw().is_null()) entry.gradient_sum_index = size(index);
    for (const auto& [address, outputs] : item.at("witnesses").fields())
      for (const auto& [output, ulp] : outputs.fields()) entry.witnesses[address][output] = size(ulp);
    if (!baseline.entries.emplace(key, std::move(entry)).second)
      item.fail("a second entry for " + text_of(key) + "; keep one of them");
  }
  return baseline;
}

void write_baseline(const std::filesystem::path& path, const Baseline& baseline) { write_file(path, baseline_text(baseline)); }
Baseline read_baseline(const std::filesystem::path& path) { return parse_baseline(read_file(path), path.string()); }

Baseline updated_baseline(const std::vector<Report>& reports, const std::optional<Baseline>& previous) {
  Baseline baseline = previous.value_or(Baseline{});
  std::map<BaselineKey, BaselineEntry> fresh;
  for (const Report& report : reports)
    if (!report.worst.empty()) merge(fresh[key_of(report)], entry_of(report));
  for (auto& [key, entry] : fresh) baseline.entries[key] = std::move(entry);
  return baseline;
}

GateResult gate(const std::vector<Report>& reports, const std::optional<Baseline>& baseline,
                const std::map<BaselineKey, WitnessErrors>& remeasured) {
  GateResult result;
  Judge judge(baseline, remeasured, result);
  for (const Report& report : reports) judge.judge(report);
  for (const GateRow& row : result.rows) result.exit = worse(result.exit, row.exit);
  if (reports.empty()) {
    result.exit = Exit::inconclusive;
    result.sentences.push_back({Level::failure, "There is no report to judge; run sumzero fuzz first."});
  }
  if (!baseline) return result;
  std::set<BaselineKey> seen;
  for (const GateRow& row : result.rows) seen.insert(row.key);
  for (const auto& [key, entry] : baseline->entries)
    if (!seen.contains(key))
      result.sentences.push_back({Level::warning, text_of(key) + ": is in the baseline but was not run; run it, or remove its entry."});
  return result;
}

}  // namespace sumzero
