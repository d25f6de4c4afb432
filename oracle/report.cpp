// Report as JSON, and back. The other formats are in report_text.cpp.
#include "oracle/report.hpp"

#include "oracle/file.hpp"
#include "oracle/witness.hpp"

namespace sumzero {
namespace {

using nlohmann::json;

json text_json(std::string_view text) { return valid_utf8(text); }

template <class Map, class Convert>
json object_json(const Map& map, Convert convert) {
  json result = json::object();
  for (const auto& [key, value] : map) result[valid_utf8(key)] = convert(value);
  return result;
}

json texts_json(const std::vector<std::string>& texts) {
  json result = json::array();
  for (const std::string& text : texts) result.push_back(text_json(text));
  return result;
}

json optional_json(const std::optional<double>& value) { return value ? number_json(*value) : json(nullptr); }

/// A value twice: exact for machines, decimal for people.
json value_json(double value, std::string decimal) { return {{"hex", hex_text(value)}, {"decimal", std::move(decimal)}}; }

json violation_json(const Violation& violation) {
  return {{"property", text_json(violation.property)},
          {"kind", text_json(violation.kind)},
          {"severity", text_json(violation.severity)},
          {"verdict", name(violation.verdict)},
          {"output", text_json(violation.output)},
          {"row", violation.row},
          {"index", violation.index},
          {"witness", text_json(violation.witness)},
          {"computed", value_json(violation.computed, decimal_text(violation.computed))},
          {"exact", value_json(violation.exact_value, valid_utf8(violation.exact))},
          {"ulp", number_json(violation.ulp)},
          {"bound_ratio", number_json(violation.bound_ratio)},
          {"gradient_sum_index", optional_json(violation.gradient_sum_index)},
          {"stratum", text_json(violation.stratum)},
          {"case_index", violation.case_index},
          {"message", text_json(violation.message)},
          {"case", violation.input.op.empty() ? json(nullptr) : json(to_json(violation.input))}};
}

Violation violation_from(const JsonValue& value) {
  Violation violation;
  violation.property = value.at("property").text();
  violation.kind = value.at("kind").text();
  violation.severity = value.at("severity").text();
  if (violation.severity != "error" && violation.severity != "warning")
    value.at("severity").fail("must be error or warning");
  const std::optional<Verdict> verdict = verdict_named(value.at("verdict").text());
  if (!verdict) value.at("verdict").fail("is no verdict of this version; write the report again");
  violation.verdict = *verdict;
  violation.output = value.at("output").text();
  violation.row = value.at("row").integer(0);
  violation.index = value.at("index").integer(-1);
  violation.witness = value.at("witness").text();
  violation.computed = value.at("computed", "hex").number();
  violation.exact = value.at("exact", "decimal").text();
  violation.exact_value = value.at("exact", "hex").number();
  violation.ulp = value.at("ulp").number();
  violation.bound_ratio = value.at("bound_ratio").number();
  violation.gradient_sum_index = value.at("gradient_sum_index").number_or_null();
  violation.stratum = value.at("stratum").text();
  violation.case_index = value.at("case_index").count();
  violation.message = value.at("message").text();
  if (!value.at("case").raw().is_null()) violation.input = case_from_json(value.at("case"));
  return violation;
}

json worst_json(const Worst& worst) {
  return {{"ulp", number_json(worst.ulp)},
          {"grid", number_json(worst.grid)},
          {"bound_ratio", number_json(worst.bound_ratio)},
          {"kind", text_json(worst.kind)},
          {"witness", text_json(worst.witness)},
          {"bound_witness", text_json(worst.bound_witness)},
          {"computed", value_json(worst.computed, decimal_text(worst.computed))},
          {"exact", text_json(worst.exact)},
          {"row", worst.row},
          {"index", worst.index},
          {"classes", worst.classes},
          {"elements", worst.elements}};
}

Worst worst_from(const JsonValue& value) {
  Worst worst;
  worst.ulp = value.at("ulp").number();
  worst.grid = value.at("grid").number();
  worst.bound_ratio = value.at("bound_ratio").number();
  worst.kind = value.at("kind").text();
  worst.witness = value.at("witness").text();
  worst.bound_witness = value.at("bound_witness").text();
  worst.computed = value.at("computed", "hex").number();
  worst.exact = value.at("exact").text();
  worst.row = value.at("row").integer();
  worst.index = value.at("index").integer();
  worst.classes = value.at("classes").integer();
  worst.elements = value.at("elements").count();
  return worst;
}

json record_json(const IndexRecord& record) {
  return {{"max", optional_json(record.max)}, {"output", text_json(record.output)}, {"witness", text_json(record.witness)}};
}

IndexRecord record_from(const JsonValue& value) {
  return {value.at("max").number_or_null(), value.at("output").text(), value.at("witness").text()};
}

template <class Value, class Convert>
std::map<std::string, Value> map_from(const JsonValue& value, Convert convert) {
  std::map<std::string, Value> result;
  for (const auto& [key, member] : value.fields()) result.emplace(key, convert(member));
  return result;
}

std::string text_of(const JsonValue& value) { return value.text(); }
std::uint64_t count_of(const JsonValue& value) { return value.count(); }

}  // namespace

json to_json(const Report& report) {
  json violations = json::array();
  for (const Violation& violation : report.violations) violations.push_back(violation_json(violation));
  const auto same = [](const auto& value) { return json(value); };
  return {{"schema", report_schema},
          {"operator", text_json(report.op)},
          {"kernel", text_json(report.kernel)},
          {"dtype", text_json(report.format)},
          {"command", text_json(report.command)},
          {"seed", report.seed},
          {"cases", report.cases},
          {"rows", report.rows},
          {"elements", report.elements},
          {"seconds", number_json(report.seconds)},
          {"verdict", text_json(report.verdict)},
          {"violations", violations},
          {"violation_counts", object_json(report.violation_counts, same)},
          {"worst", object_json(report.worst, worst_json)},
          {"bound", object_json(report.bounds,
                                [](const BoundUsed& bound) {
                                  return json{{"kind", text_json(bound.kind)},
                                              {"theorem", text_json(bound.theorem)},
                                              {"file", text_json(bound.file)}};
                                })},
          {"gradient_sum_index", record_json(report.gradient_sum_index)},
          {"sum_index", record_json(report.sum_index)},
          {"bias", object_json(report.bias,
                               [](const Bias& bias) {
                                 return json{{"mean_ulp", number_json(bias.mean_ulp)}, {"elements", bias.elements}};
                               })},
          {"classes",
           {{"reached", object_json(report.classes_reached, same)},
            {"required", texts_json(report.classes_required)},
            {"missing", texts_json(report.classes_missing())}}},
          {"undecided", report.undecided},
          {"refused", report.refused},
          {"mistrusted", report.mistrusted},
          {"escalated", report.escalated},
          {"refusal", text_json(report.refusal)},
          {"environment", object_json(report.environment, text_json)},
          {"contract", object_json(report.contract, text_json)},
          {"campaign", report.tally ? to_json(*report.tally) : json(nullptr)}};
}

Report report_from_json(const json& raw, const std::string& source) {
  const JsonValue value(raw, source);
  value.require_schema(report_schema);
  Report report;
  report.op = value.at("operator").text();
  report.kernel = value.at("kernel").text();
  report.format = value.at("dtype").text();
  report.command = value.at("command").text();
  report.seed = value.at("seed").count();
  report.cases = value.at("cases").count();
  report.rows = value.at("rows").count();
  report.elements = value.at("elements").count();
  report.seconds = value.at("seconds").number();
  report.verdict = value.at("verdict").text();
  for (const JsonValue& violation : value.at("violations").items()) report.violations.push_back(violation_from(violation));
  report.violation_counts = map_from<std::uint64_t>(value.at("violation_counts"), count_of);
  report.worst = map_from<Worst>(value.at("worst"), worst_from);
  report.bounds = map_from<BoundUsed>(value.at("bound"), [](const JsonValue& bound) {
    return BoundUsed{bound.at("kind").text(), bound.at("theorem").text(), bound.at("file").text()};
  });
  report.gradient_sum_index = record_from(value.at("gradient_sum_index"));
  report.sum_index = record_from(value.at("sum_index"));
  report.bias = map_from<Bias>(value.at("bias"), [](const JsonValue& bias) {
    return Bias{bias.at("mean_ulp").number(), bias.at("elements").count()};
  });
  report.classes_reached = map_from<std::uint64_t>(value.at("classes", "reached"), count_of);
  for (const JsonValue& required : value.at("classes", "required").items())
    report.classes_required.push_back(required.text());
  report.undecided = value.at("undecided").count();
  report.refused = value.at("refused").count();
  report.mistrusted = value.at("mistrusted").count();
  report.escalated = value.at("escalated").count();
  report.refusal = value.at("refusal").text();
  report.environment = map_from<std::string>(value.at("environment"), text_of);
  report.contract = map_from<std::string>(value.at("contract"), text_of);
  if (const JsonValue tally = value.at("campaign"); !tally.raw().is_null()) report.tally = tally_from_json(tally);
  return report;
}

void write_report(const std::filesystem::path& path, const Report& report) { write_file(path, pretty(to_json(report))); }

Report read_report(const std::filesystem::path& path) {
  return report_from_json(parse_json(read_file(path), path.string()), path.string());
}

}  // namespace sumzero
