// Reports: JSON reads back, and every other format stays valid whatever the names hold.
#include "oracle/report.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <functional>

#include "oracle/environment.hpp"
#include "tests/unit/samples.hpp"

namespace sumzero {
namespace {

using nlohmann::json;

/// Names as a hostile plug-in would choose them: markup, control characters, bytes that are no UTF-8, non-characters.
const std::string hostile = "<a b=\"c\">&'|`]]>\n\x01\x7f\xff\xc3\x28\xef\xbf\xbf\xed\xa0\x80 --><script>*_[x](y)\\";

Report hostile_report() {
  Report report = failing_report();
  report.op = report.kernel = report.format = report.refusal = hostile;
  report.violations[0].property = report.violations[0].message = report.violations[0].output = hostile;
  report.violations[0].witness = report.violations[0].exact = report.violations[0].kind = hostile;
  report.worst[hostile] = report.worst["gx"];
  report.classes_required.push_back(hostile);
  report.environment[hostile] = hostile;
  report.violation_counts[hostile] = 3;
  return report;
}

// Well-formedness by the rules that matter here: one root, tags that nest, quoted unique attributes, known entities, and
// only characters that XML 1.0 allows. Returns the first fault, or nothing.
std::string xml_fault(std::string_view text) {
  try {
    static_cast<void>(json(std::string(text)).dump());
  } catch (const json::exception&) {
    return "not UTF-8";
  }
  const std::string_view head = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
  if (!text.starts_with(head)) return "no declaration";
  std::vector<std::string> open;
  int roots = 0;
  const auto characters = [](std::string_view part) -> std::string {
    for (std::size_t i = 0; i < part.size(); ++i) {
      const unsigned char byte = static_cast<unsigned char>(part[i]);
      if (byte < 0x20 && byte != '\n' && byte != '\t' && byte != '\r') return "control character";
      if (part.substr(i).starts_with("\xef\xbf\xbf") || part.substr(i).starts_with("\xef\xbf\xbe")) return "non-character";
      if (byte == '<' || byte == '>') return "bare angle bracket";
      if (byte != '&') continue;
      const std::string_view entity = part.substr(i, part.find(';', i) - i + 1);
      bool known = false;
      for (const char* name : {"&amp;", "&lt;", "&gt;", "&quot;", "&#9;", "&#10;", "&#13;"}) known |= entity == name;
      if (!known) return "unknown entity";
    }
    return "";
  };
  for (std::size_t at = head.size(); at < text.size();) {
    const std::size_t tag = text.find('<', at);
    const std::string_view between = text.substr(at, tag == std::string_view::npos ? tag : tag - at);
    if (const std::string fault = characters(between); !fault.empty()) return fault;
    if (open.empty() && between.find_first_not_of("\n") != std::string_view::npos) return "text outside the root";
    if (tag == std::string_view::npos) break;
    const std::size_t end = text.find('>', tag);
    if (end == std::string_view::npos) return "open tag";
    std::string_view inside = text.substr(tag + 1, end - tag - 1);
    at = end + 1;
    if (inside.starts_with('/')) {
      if (open.empty() || open.back() != inside.substr(1)) return "tags do not nest";
      open.pop_back();
      continue;
    }
    const bool empty = inside.ends_with('/');
    if (empty) inside.remove_suffix(1);
    std::size_t space = inside.find(' ');
    const std::string element(inside.substr(0, space));
    std::vector<std::string_view> seen;
    while (space != std::string_view::npos) {
      const std::size_t quote = inside.find("=\"", space), close = inside.find('"', quote + 2);
      if (quote == std::string_view::npos || close == std::string_view::npos) return "attribute without quotes";
      const std::string_view key = inside.substr(space + 1, quote - space - 1);
      for (const std::string_view other : seen)
        if (other == key) return "attribute twice";
      seen.push_back(key);
      if (const std::string fault = characters(inside.substr(quote + 2, close - quote - 2)); !fault.empty()) return fault;
      space = close + 1 < inside.size() ? close + 1 : std::string_view::npos;
      if (space != std::string_view::npos && inside[space] != ' ') return "no space between attributes";
    }
    if (open.empty() && ++roots > 1) return "two roots";
    if (!empty) open.push_back(element);
  }
  if (!open.empty()) return "element not closed";
  return roots == 1 ? "" : "no root";
}

std::size_t occurrences(std::string_view text, std::string_view what) {
  std::size_t count = 0;
  for (std::size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

std::string complaint(const json& value) {
  try {
    report_from_json(value, "run.json");
    return "";
  } catch (const InvalidInput& error) {
    return error.what();
  }
}

TEST(Verdicts, NamesReadBack) {
  for (int i = 0; i <= static_cast<int>(Verdict::mistrusted); ++i) {
    const auto verdict = static_cast<Verdict>(i);
    EXPECT_EQ(verdict_named(name(verdict)), verdict);
  }
  EXPECT_EQ(name(Verdict::mistrusted), "mistrusted");
  EXPECT_EQ(name(Verdict::special_value), "special_value");
  EXPECT_FALSE(verdict_named("passed"));
  EXPECT_FALSE(verdict_named(""));
}

TEST(Verdicts, WorseFollowsTheDocumentedOrder) {
  const Exit order[] = {Exit::pass, Exit::skipped, Exit::inconclusive, Exit::violation, Exit::crash, Exit::usage};
  for (int i = 0; i < 6; ++i)
    for (int j = 0; j < 6; ++j) EXPECT_EQ(worse(order[i], order[j]), order[std::max(i, j)]) << i << " " << j;
}

TEST(Verdicts, ExitCodes) {
  const auto with = [](const std::function<void(Report&)>& change) {
    Report report = passing_report();
    change(report);
    return report.exit_code();
  };
  EXPECT_EQ(passing_report().exit_code(), Exit::pass);
  EXPECT_EQ(failing_report().exit_code(), Exit::violation);
  EXPECT_EQ(with([](Report& r) { r.violations = failing_report().violations; }), Exit::violation);
  EXPECT_EQ(with([](Report& r) {
              r.violations = failing_report().violations;
              r.violations[0].severity = "warning";
            }),
            Exit::pass);
  EXPECT_EQ(with([](Report& r) {
              r.violations = failing_report().violations;
              r.violations[0].verdict = Verdict::timed_out;
            }),
            Exit::crash);
  EXPECT_EQ(with([](Report& r) { r.verdict = "crashed"; }), Exit::crash);
  EXPECT_EQ(with([](Report& r) { r.undecided = 1; }), Exit::inconclusive);
  EXPECT_EQ(with([](Report& r) { r.classes_required.push_back("layout"); }), Exit::inconclusive);
  EXPECT_EQ(with([](Report& r) { r.classes_reached["ties"] = 0; }), Exit::inconclusive);
  EXPECT_EQ(with([](Report& r) { r.cases = 0; }), Exit::inconclusive);
  EXPECT_EQ(with([](Report& r) { r.refused = 10; }), Exit::pass);
  EXPECT_EQ(with([](Report& r) { r.cases = 0, r.refused = 10, r.classes_reached.clear(); }), Exit::skipped);
  EXPECT_EQ(with([](Report& r) { r.cases = r.refused = 10, r.classes_reached.clear(); }), Exit::skipped);
  EXPECT_EQ(with([](Report& r) {
              r.undecided = 1;
              r.verdict = "violation";
            }),
            Exit::violation);
}

TEST(Verdicts, ClassesMissing) {
  Report report = passing_report();
  report.classes_required = {"gap", "layout", "ties", "masks"};
  report.classes_reached["masks"] = 0;
  EXPECT_EQ(report.classes_missing(), (std::vector<std::string>{"layout", "masks"}));
}

TEST(ReportJson, ReadsBack) {
  Report report = failing_report();
  report.worst["gx"].ulp = std::numeric_limits<double>::infinity();
  report.worst["gx"].computed = std::nan("");
  report.violations[0].computed = -0.0;
  report.sum_index = {std::nullopt, "", ""};
  report.gradient_sum_index.max = -std::numeric_limits<double>::infinity();
  report.bias["gx"].mean_ulp = std::nan("");
  const json written = to_json(report);
  const Report back = report_from_json(json::parse(written.dump()));
  EXPECT_EQ(to_json(back), written);
  // Equality of the two texts says nothing about a field that is never written: compare the fields too.
  EXPECT_EQ(back.op, report.op);
  EXPECT_EQ(back.seed, report.seed);
  EXPECT_EQ(back.violation_counts, report.violation_counts);
  EXPECT_TRUE(std::isinf(back.worst.at("gx").ulp));
  EXPECT_TRUE(std::isnan(back.worst.at("gx").computed));
  EXPECT_EQ(back.worst.at("gx").elements, 64000u);
  EXPECT_EQ(back.worst.at("loss").kind, "exhaustive");
  EXPECT_EQ(back.worst.at("loss").bound_witness, "dd44");
  EXPECT_EQ(back.bounds.at("gx").theorem, "T4");
  EXPECT_EQ(back.gradient_sum_index.max, -std::numeric_limits<double>::infinity());
  EXPECT_FALSE(back.sum_index.max);
  EXPECT_TRUE(std::isnan(back.bias.at("gx").mean_ulp));
  EXPECT_EQ(back.classes_required, report.classes_required);
  EXPECT_EQ(back.classes_reached, report.classes_reached);
  EXPECT_EQ(back.escalated, 5u);
  EXPECT_EQ(back.environment, report.environment);
  EXPECT_EQ(back.contract, report.contract);
  ASSERT_EQ(back.violations.size(), 1u);
  EXPECT_EQ(back.violations[0].input, collapse_pair());
  EXPECT_TRUE(std::signbit(back.violations[0].computed));
  EXPECT_EQ(back.violations[0].exact_value, report.violations[0].exact_value);
  EXPECT_EQ(back.violations[0].exact, report.violations[0].exact);
  EXPECT_EQ(back.violations[0].gradient_sum_index, 0x1p23);
  EXPECT_EQ(back.violations[0].kind, "collapse");
  EXPECT_EQ(back.violations[0].case_index, 41u);
  EXPECT_EQ(back.exit_code(), report.exit_code());
}

TEST(ReportJson, HasTheDocumentedFields) {
  const json value = to_json(failing_report());
  EXPECT_EQ(value["schema"], "sumzero-report/1");
  EXPECT_EQ(value["operator"], "cross_entropy");
  EXPECT_EQ(value["dtype"], "f32");
  EXPECT_EQ(value["violations"][0]["computed"]["hex"], "0x0p+0");
  EXPECT_EQ(value["violations"][0]["exact"]["decimal"], "-4.1399375473943306e-08");
  EXPECT_EQ(value["violations"][0]["ulp"], "inf");
  EXPECT_EQ(value["violations"][0]["case"]["schema"], "sumzero-case/1");
  EXPECT_EQ(value["classes"]["missing"], json::array());
  EXPECT_EQ(value["sum_index"]["max"], nullptr);
  Report without_case = failing_report();
  without_case.violations[0].input = {};
  EXPECT_EQ(to_json(without_case)["violations"][0]["case"], nullptr);
  EXPECT_EQ(complaint(to_json(without_case)), "");
}

TEST(ReportJson, MalformedReportsAreRefused) {
  const json good = to_json(failing_report());
  ASSERT_EQ(complaint(good), "");
  for (const auto& [key, member] : good.items()) {
    json missing = good;
    missing.erase(key);
    EXPECT_NE(complaint(missing).find("'" + key + "' is missing"), std::string::npos) << key;
    json wrong = good;
    wrong[key] = member.is_number() ? json("text") : json(17);
    const std::string message = complaint(wrong);
    EXPECT_NE(message.find("run.json, field " + key), std::string::npos) << message;
  }
  for (const auto& [key, member] : good["violations"][0].items()) {
    json wrong = good;
    wrong["violations"][0][key] = json::array({false});
    EXPECT_NE(complaint(wrong).find("field violations[0]." + key), std::string::npos) << key << ": " << complaint(wrong);
  }
  for (const auto& [key, member] : good["worst"]["gx"].items()) {
    json wrong = good;
    wrong["worst"]["gx"].erase(key);
    EXPECT_NE(complaint(wrong).find("field worst.gx: the field '" + key + "' is missing"), std::string::npos) << key;
  }
  json future = good;
  future["schema"] = "sumzero-report/2";
  EXPECT_NE(complaint(future).find("sumzero-report/2"), std::string::npos);
  json verdict = good;
  verdict["violations"][0]["verdict"] = "bad";
  EXPECT_NE(complaint(verdict), "");
  verdict = good;
  verdict["violations"][0]["severity"] = "fatal";
  EXPECT_NE(complaint(verdict), "");
  EXPECT_NE(complaint(json(nullptr)), "");
  EXPECT_NE(complaint(json::array()), "");
}

TEST(ReportJson, FilesReadBack) {
  const std::filesystem::path path = std::filesystem::temp_directory_path() / ("sumzero-report-" + std::to_string(::getpid()));
  write_report(path, failing_report());
  EXPECT_EQ(to_json(read_report(path)), to_json(failing_report()));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  EXPECT_THROW(read_report(path), InvalidInput);
  std::filesystem::remove(path);
}

TEST(ReportJson, HostileNamesSurviveAsUtf8) {
  const json value = to_json(hostile_report());
  const std::string text = value.dump();  // throws on text that is not UTF-8
  EXPECT_EQ(to_json(report_from_json(json::parse(text))), value);
}

TEST(XmlFault, FindsPlantedFaults) {
  const std::string head = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
  EXPECT_EQ(xml_fault(head + "<a b=\"c\" d=\"&lt;\"><e/>x&amp;</a>\n"), "");
  for (const char* bad : {"<a>", "<a></b>", "<a b=c/>", "<a b=\"1\" b=\"2\"/>", "<a>&nbsp;</a>", "<a>\x01</a>", "<a/><b/>", "text",
                          "<a b=\"<\"/>", "<a>\xff</a>", "<a>\xef\xbf\xbf</a>", "<a>]]></a>", ""})
    EXPECT_NE(xml_fault(head + bad), "") << bad;
}

TEST(Junit, HoldsTestsAndFailures) {
  const std::string text = junit_xml({passing_report(), failing_report()});
  EXPECT_EQ(xml_fault(text), "") << text;
  EXPECT_EQ(occurrences(text, "<testsuite "), 2u);
  EXPECT_EQ(occurrences(text, "name=\"bound of gx\""), 2u);
  EXPECT_EQ(occurrences(text, "name=\"bound of loss\""), 2u);
  EXPECT_EQ(occurrences(text, "name=\"gradient sum\""), 2u);
  EXPECT_EQ(occurrences(text, "name=\"class coverage\""), 2u);
  EXPECT_EQ(occurrences(text, "name=\"undecided rows\""), 2u);
  EXPECT_EQ(occurrences(text, "<failure "), 1u);
  EXPECT_NE(text.find("tests=\"10\" failures=\"1\" errors=\"0\" skipped=\"0\""), std::string::npos) << text;
  EXPECT_NE(text.find("witness " + content_address(collapse_pair())), std::string::npos);
  EXPECT_NE(text.find("sums to 4.1e-8 instead of 0"), std::string::npos);
}

// Whatever makes an exit code other than 0 and 77 must be red in a CI system that only reads the XML.
TEST(Junit, IsRedExactlyWhenTheRunFails) {
  const std::vector<std::function<void(Report&)>> faults = {
      [](Report& r) { r.undecided = 2; },
      [](Report& r) { r.classes_required.push_back("layout"); },
      [](Report& r) { r.verdict = "violation"; },
      [](Report& r) { r.verdict = "crashed"; },
      [](Report& r) { r.verdict = "inconclusive"; },
      [](Report& r) { r.cases = 0; },
      [](Report& r) { r.verdict = "violation", r.violation_counts["bound"] = 3; },
      [](Report& r) {
        r.violations = failing_report().violations;
        r.violations[0].verdict = Verdict::bound_exceeded;
      },
      [](Report& r) {
        r.violations = failing_report().violations;
        r.violations[0].verdict = Verdict::crashed;
      },
  };
  for (std::size_t i = 0; i < faults.size(); ++i) {
    Report report = passing_report();
    faults[i](report);
    const std::string text = junit_xml({report});
    EXPECT_EQ(xml_fault(text), "");
    EXPECT_EQ(occurrences(text, "<failure ") + occurrences(text, "<error "), 1u) << "fault " << i << "\n" << text;
  }
  EXPECT_EQ(occurrences(junit_xml({passing_report()}), "<failure "), 0u);
  Report warned = failing_report();
  warned.verdict = "pass";
  warned.violations[0].severity = "warning";
  EXPECT_EQ(occurrences(junit_xml({warned}), "<failure "), 0u);
  Report refused = passing_report();
  refused.verdict = "refused";
  refused.refusal = "takes at most 1024 classes";
  const std::string text = junit_xml({refused});
  EXPECT_NE(text.find("<skipped message=\"takes at most 1024 classes\"/>"), std::string::npos) << text;
}

TEST(Junit, StaysValidForHostileNames) {
  EXPECT_EQ(xml_fault(junit_xml({hostile_report(), passing_report()})), "") << junit_xml({hostile_report()});
  EXPECT_EQ(xml_fault(junit_xml({})), "");
}

TEST(Markdown, ShowsTableAndTypedWitness) {
  const std::string text = markdown({passing_report(), failing_report()});
  EXPECT_NE(text.find("| cross_entropy | cpu.tail | f32 | pass | 1.25 | 0.5 | 0.8 | 1000 |"), std::string::npos) << text;
  EXPECT_NE(text.find("| **violation** |"), std::string::npos) << text;
  EXPECT_NE(text.find("label = \\[0\\]; x = \\[17, 0\\]"), std::string::npos) << text;
  EXPECT_NE(text.find(content_address(collapse_pair())), std::string::npos);
  EXPECT_NE(text.find("0x0p+0"), std::string::npos);
}

TEST(Markdown, TypesOnlySmallWitnesses) {
  Report report = failing_report();
  Case& input = report.violations[0].input;
  input.op = "softmax";
  input.attributes.clear();
  input.inputs = {{"x", Tensor::contiguous(Format::f32, {1, 8})}};
  input.extents = {1, 8};
  EXPECT_NE(markdown({report}).find("input: x = "), std::string::npos);
  input.inputs = {{"x", Tensor::contiguous(Format::f32, {1, 9})}};
  input.extents = {1, 9};
  EXPECT_EQ(markdown({report}).find("input: "), std::string::npos);
  input.inputs["g"] = Tensor::contiguous(Format::f32, {1, 2});  // small, but of no use without its logits
  EXPECT_EQ(markdown({report}).find("input: "), std::string::npos);
  input.op = "operator_of_an_absent_plug_in";
  EXPECT_EQ(markdown({report}).find("input: x = "), std::string::npos);
}

TEST(Markdown, HostileNamesDoNotBreakTheTable) {
  const std::string text = markdown({hostile_report()});
  EXPECT_EQ(text.find("<script"), std::string::npos) << text;
  EXPECT_EQ(text.find('\x01'), std::string::npos);
  const std::size_t row = text.find("\n| &lt;a");
  ASSERT_NE(row, std::string::npos) << text;
  const std::string line = text.substr(row + 1, text.find('\n', row + 1) - row - 1);
  EXPECT_EQ(occurrences(line, "|") - occurrences(line, "\\|"), 9u) << line;
  EXPECT_NO_THROW(json(text).dump());
}

TEST(Markdown, StaysBelowItsLimitAndCountsTheRest) {
  Report report = failing_report();
  report.violations[0].message = std::string(5000, '|');
  report.violations.resize(500, report.violations[0]);
  const std::string many = markdown(std::vector<Report>(4, report));
  EXPECT_LT(many.size(), largest_markdown);
  EXPECT_GT(many.size(), largest_markdown / 2);
  const std::size_t listed = occurrences(many, "\n- **gradient sum**");
  EXPECT_NE(many.find("... and " + std::to_string(2000 - listed) + " more findings"), std::string::npos);

  const std::string wide = markdown(std::vector<Report>(5000, failing_report()));
  EXPECT_LT(wide.size(), largest_markdown);
  EXPECT_NE(wide.find("more reports"), std::string::npos);
  EXPECT_NE(wide.find("more findings"), std::string::npos);
  EXPECT_LT(markdown({}).size(), 1000u);
  EXPECT_EQ(markdown({passing_report()}).find("more "), std::string::npos);
}

TEST(Sarif, HasTheRequiredFields) {
  Report inconclusive = passing_report();
  inconclusive.undecided = 3;
  const json log = json::parse(sarif({passing_report(), failing_report(), inconclusive, hostile_report()}));
  EXPECT_EQ(log["version"], "2.1.0");
  ASSERT_TRUE(log["runs"].is_array());
  const json& run = log["runs"][0];
  EXPECT_EQ(run["tool"]["driver"]["name"], "sumzero");
  ASSERT_EQ(run["results"].size(), 3u);
  for (const json& result : run["results"]) {
    EXPECT_TRUE(result["message"]["text"].is_string());
    EXPECT_TRUE(result["level"] == "error" || result["level"] == "warning");
    bool known = false;
    for (const json& rule : run["tool"]["driver"]["rules"]) known |= rule["id"] == result["ruleId"];
    EXPECT_TRUE(known) << result["ruleId"];
    ASSERT_TRUE(result["locations"].is_array());
    ASSERT_TRUE(result["locations"][0].is_object());
    EXPECT_TRUE(result["locations"][0]["logicalLocations"].is_array());
    EXPECT_TRUE(result["locations"][0]["logicalLocations"][0]["fullyQualifiedName"].is_string());
  }
  EXPECT_EQ(run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"],
            content_address(collapse_pair()) + ".json");
  EXPECT_FALSE(run["results"][2]["locations"][0].contains("physicalLocation"));  // no URI is made of a hostile name
  EXPECT_EQ(json::parse(sarif({}))["runs"][0]["results"], json::array());
}

TEST(TerminalSummary, IsShortAndLabelled) {
  const std::string text = terminal_summary(failing_report());
  EXPECT_LE(occurrences(text, "\n"), 12u) << text;
  EXPECT_NE(text.find("violation"), std::string::npos);
  EXPECT_NE(text.find("largest found in 1000 cases"), std::string::npos) << text;
  EXPECT_NE(text.find("0.75 ulp, 0.25 of the bound (derived T2), exhaustive"), std::string::npos) << text;
  EXPECT_NE(text.find("8.389e+06"), std::string::npos) << "the collapse's index is not shown\n" << text;
  Report many = failing_report();
  many.violations.resize(50, many.violations[0]);
  EXPECT_LE(occurrences(terminal_summary(many), "\n"), 16u);
  EXPECT_NE(terminal_summary(many).find("... and 47 more"), std::string::npos);
  const std::string odd = terminal_summary(hostile_report());
  for (const char character : odd)
    EXPECT_TRUE(static_cast<unsigned char>(character) >= 0x20 || character == '\n') << static_cast<int>(character);
}

TEST(Environment, NamesLibrariesAndNoMachine) {
  const std::map<std::string, std::string> found = environment();
  for (const char* key : {"cpu", "compiler", "mpfr", "mpfi", "arb", "highway"}) EXPECT_FALSE(found.at(key).empty()) << key;
  EXPECT_NE(found.at("compiler").find_first_of("0123456789"), std::string::npos);
  EXPECT_FALSE(found.contains("host"));
  EXPECT_FALSE(found.contains("hostname"));
}

}  // namespace
}  // namespace sumzero
