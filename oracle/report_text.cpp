// Reports for people and for the tools that show test results: JUnit XML, Markdown, SARIF, terminal.
#include "oracle/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "reference/evaluate.hpp"
#include "reference/operator.hpp"

namespace sumzero {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t longest_message = 1000;  // bytes of one quoted text; a kernel's message may be a page
constexpr std::int64_t typed_logits = 8;       // logits that a reader takes in at a glance

/// At most `longest` bytes, cut between characters.
std::string shortened(std::string text, std::size_t longest = longest_message) {
  if (text.size() <= longest) return text;
  std::size_t end = longest;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0u) == 0x80u) --end;
  return text.substr(0, end) + "...";
}

/// One line of valid UTF-8 without control characters.
std::string one_line(std::string_view text) {
  std::string line = valid_utf8(text.substr(0, 4 * longest_message));
  for (char& character : line)
    if (static_cast<unsigned char>(character) < 0x20 || character == 0x7f) character = ' ';
  return shortened(std::move(line));
}

std::string subject(const Report& report) { return report.op + "/" + report.kernel + "/" + report.format; }

double largest(const std::map<std::string, Worst>& worst, double Worst::* member) {
  double value = 0;
  for (const auto& [output, entry] : worst) value = std::max(value, entry.*member);
  return value;
}

std::string short_number(double value) { return fmt::format("{:.4g}", value); }
std::string short_number(const std::optional<double>& value) { return value ? short_number(*value) : "-"; }

/// Where a violation sits: "gx[0, 1]", "gx[0]" for a whole row.
std::string place(const Violation& violation) {
  if (violation.output.empty()) return "row " + std::to_string(violation.row);
  return violation.output + "[" + std::to_string(violation.row) +
         (violation.index < 0 ? "" : ", " + std::to_string(violation.index)) + "]";
}

std::string sentence(const Violation& violation) {
  return violation.message.empty() ? violation.property + " fails at " + place(violation) : violation.message;
}

std::string evidence(const Violation& violation) {
  return fmt::format("computed {} ({}), exact {}; error {} ulp, {} of the bound", decimal_text(violation.computed),
                     hex_text(violation.computed), violation.exact.empty() ? "-" : violation.exact,
                     short_number(violation.ulp), short_number(violation.bound_ratio));
}

/// "proved", "exhaustive" or "largest found in N cases": no maximum is printed without it.
std::string label(const Report& report, const Worst& worst) {
  return worst.kind == "sampled" ? fmt::format("largest found in {} {}", report.judged(), report.unit()) : worst.kind;
}

// ---------------------------------------------------------------------------------------------------------
// JUnit XML

/// Text for elements and attributes of XML 1.0, which has no way to write most control characters.
std::string xml(std::string_view text) {
  const std::string source = valid_utf8(text);
  std::string result;
  for (std::size_t i = 0; i < source.size(); ++i) {
    const unsigned char byte = static_cast<unsigned char>(source[i]);
    const std::string_view rest = std::string_view(source).substr(i, 3);
    if (rest == "\xef\xbf\xbe" || rest == "\xef\xbf\xbf") {  // U+FFFE and U+FFFF are no characters of XML
      result += "\xef\xbf\xbd";
      i += 2;
    } else if (byte == '&') result += "&amp;";
    else if (byte == '<') result += "&lt;";
    else if (byte == '>') result += "&gt;";
    else if (byte == '"') result += "&quot;";
    else if (byte == '\t' || byte == '\n' || byte == '\r') result += "&#" + std::to_string(byte) + ";";
    else if (byte < 0x20) result += "\xef\xbf\xbd";
    else result += source[i];
  }
  return result;
}

class Suite {
 public:
  explicit Suite(const Report& report) : report_(report) {}

  void pass(const std::string& test, const std::string& note = "") {
    open(test);
    body_ += note.empty() ? "/>\n" : ">\n      <system-out>" + xml(note) + "</system-out>\n    </testcase>\n";
  }
  void fail(const std::string& test, const char* element, const std::string& message, const std::string& detail) {
    ++(element == std::string_view("error") ? errors : failures);
    open(test);
    body_ += fmt::format(">\n      <{0} message=\"{1}\" type=\"sumzero\">{2}</{0}>\n    </testcase>\n", element, xml(message),
                         xml(detail));
  }
  void skip(const std::string& test, const std::string& reason) {
    ++skipped;
    open(test);
    body_ += ">\n      <skipped message=\"" + xml(reason) + "\"/>\n    </testcase>\n";
  }
  std::string text() const {
    return fmt::format("  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\" time=\"{:.3f}\">\n{}"
                       "  </testsuite>\n",
                       xml(subject(report_)), tests, failures, errors, skipped, seconds(), body_);
  }
  double seconds() const { return std::isfinite(report_.seconds) ? report_.seconds : 0.0; }

  std::size_t tests = 0, failures = 0, errors = 0, skipped = 0;

 private:
  void open(const std::string& test) {
    ++tests;
    body_ += "    <testcase classname=\"" + xml("sumzero." + subject(report_)) + "\" name=\"" + xml(test) + "\"";
  }

  const Report& report_;
  std::string body_;
};

std::string details(const std::vector<const Violation*>& violations) {
  std::string text;
  for (const Violation* violation : violations)
    text += sentence(*violation) + "\n  " + place(*violation) + ": " + evidence(*violation) + "\n  witness " +
            (violation->witness.empty() ? "-" : violation->witness) + "\n";
  return text;
}

void add_property(Suite& suite, const std::string& test, const Finding& finding, const char* unit) {
  const std::string text = details(finding.violations);
  if (!finding.failed()) return suite.pass(test, text);
  const bool crash = std::any_of(finding.violations.begin(), finding.violations.end(),
                                 [](const Violation* violation) { return kills(violation->verdict); });
  const std::string message = finding.violations.empty() ? fmt::format("fails in {} {}", finding.cases, unit)
                                                         : sentence(*finding.violations.front());
  suite.fail(test, crash ? "error" : "failure", message, text);
}

void add_bounds(Suite& suite, const Report& report, const Finding& all) {
  std::map<std::string, Finding> by_output;
  for (const auto& [output, bound] : report.bounds) by_output[output];
  for (const auto& [output, worst] : report.worst) by_output[output];
  for (const Violation* violation : all.violations) by_output[violation->output].violations.push_back(violation);
  if (all.violations.empty() && all.cases > 0) add_property(suite, "bound", all, report.unit());
  for (const auto& [output, finding] : by_output) {
    const std::string test = "bound of " + output;
    const auto worst = report.worst.find(output);
    const double ratio = worst == report.worst.end() ? 0 : worst->second.bound_ratio;
    if (finding.violations.empty() && !(ratio <= 1))
      suite.fail(test, "failure", fmt::format("error is {} of the bound", short_number(ratio)),
                 "witness " + worst->second.bound_witness);
    else
      add_property(suite, test, finding, report.unit());
  }
}

Suite suite_of(const Report& report) {
  Suite suite(report);
  if (report.exit_code() == Exit::skipped) {
    suite.skip("contract", report.refusal.empty() ? "the kernel refused every case" : report.refusal);
    return suite;
  }
  std::map<std::string, Finding> properties = findings(report);
  add_bounds(suite, report, properties[std::string(bound_property)]);
  properties.erase(std::string(bound_property));
  for (const auto& [property, finding] : properties) add_property(suite, property, finding, report.unit());

  std::string missing;
  for (const std::string& name : report.classes_missing()) missing += (missing.empty() ? "" : ", ") + name;
  if (missing.empty()) suite.pass("class coverage");
  else suite.fail("class coverage", "failure", "classes not reached: " + missing, "run longer, or with other strata");
  if (report.undecided == 0) suite.pass("undecided rows");
  else
    suite.fail("undecided rows", "failure", fmt::format("{} rows could not be decided", report.undecided),
               "the reference reached its highest precision");
  // The run as a whole may fail for a reason that has no test case of its own.
  if (report.exit_code() != Exit::pass && suite.failures + suite.errors == 0)
    suite.fail("verdict", report.exit_code() == Exit::crash ? "error" : "failure",
               fmt::format("the run is judged {}", verdict_word(report)), fmt::format("{} {} were judged", report.judged(), report.unit()));
  return suite;
}

// ---------------------------------------------------------------------------------------------------------
// Markdown

/// Text without a meaning in Markdown or HTML.
std::string plain(std::string_view text, std::size_t longest = longest_message) {
  std::string result;
  for (const char character : shortened(one_line(text), longest)) {
    if (character == '<') result += "&lt;";
    else if (character == '&') result += "&amp;";
    else if (std::string_view("\\|`*[]").find(character) != std::string_view::npos) result += std::string("\\") + character;
    else result += character;
  }
  return result;
}

std::string tensor_text(const Tensor& tensor) {
  std::string text;
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    const double value = tensor.get(i);
    text += (i ? ", " : "") + (is_floating(tensor.format) ? exact_text(value) : fmt::format("{:.0f}", value));
  }
  return "[" + text + "]";
}

/// The inputs of a case of at most eight logits, typed out; empty for larger ones.
std::string typed_out(const Case& input) {
  if (input.op.empty()) return "";
  std::int64_t logits = 0;
  try {
    const Signature& signature = Registry::global().operator_named(input.op).signature();
    for (const InputSpec& spec : signature.inputs) {
      const auto found = input.inputs.find(spec.name);
      if (found != input.inputs.end() && (spec.role == Role::logits || signature.input_with(Role::logits) < 0))
        logits = std::max(logits, found->second.elements());
    }
  } catch (const InvalidInput&) {
    return "";  // an operator of a plug-in that is not loaded here
  }
  if (logits > typed_logits) return "";
  std::string text;
  for (const auto& [key, tensor] : input.inputs)
    if (tensor.elements() <= typed_logits) text += (text.empty() ? "" : "; ") + key + " = " + tensor_text(tensor);
  return text;
}

std::string table_row(const Report& report) {
  const std::string_view word = verdict_word(report);
  return fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} |\n", plain(report.op, 100), plain(report.kernel, 100),
                     plain(report.format, 100), report.exit_code() == Exit::pass ? std::string(word) : fmt::format("**{}**", word),
                     short_number(largest(report.worst, &Worst::ulp)), short_number(largest(report.worst, &Worst::bound_ratio)),
                     short_number(report.gradient_sum_index.max), report.command == "exhaust" ? fmt::format("{} rows", report.rows) : std::to_string(report.cases));
}

std::string violation_item(const Report& report, const Violation& violation) {
  std::string text = fmt::format("- **{}**{} in {} of {}: {}\n", plain(violation.property, 100),
                                 violation.kind.empty() ? "" : " (" + plain(violation.kind, 100) + ")",
                                 plain(place(violation), 100), plain(subject(report), 300), plain(sentence(violation)));
  if (violation.severity != "error") text += "  - " + plain(violation.severity, 100) + "\n";
  text += "  - " + plain(evidence(violation)) + "\n";
  const std::string inputs = typed_out(violation.input);
  if (!inputs.empty()) text += "  - input: " + plain(inputs) + "\n";
  if (!violation.witness.empty()) text += "  - witness " + plain(violation.witness, 100) + "\n";
  return text;
}

// ---------------------------------------------------------------------------------------------------------
// SARIF

ordered_json sarif_result(const Report& report, const std::string& rule, const char* level, const std::string& message,
                          const std::string& witness) {
  ordered_json location;
  const bool addressed = !witness.empty() && std::all_of(witness.begin(), witness.end(), [](unsigned char character) {
    return std::isalnum(character) || character == '-' || character == '_';  // else it is no part of a URI
  });
  if (addressed) location["physicalLocation"]["artifactLocation"]["uri"] = witness + ".json";
  location["logicalLocations"] =
      ordered_json::array({ordered_json{{"fullyQualifiedName", one_line(subject(report))}, {"kind", "function"}}});
  ordered_json result;
  result["ruleId"] = rule;
  result["level"] = level;
  result["message"]["text"] = one_line(message);
  result["locations"] = ordered_json::array({location});
  return result;
}

}  // namespace

bool Finding::failed() const {
  const bool listed_error = std::any_of(violations.begin(), violations.end(),
                                        [](const Violation* violation) { return violation->severity == "error"; });
  return listed_error || (violations.empty() && cases > 0);
}

std::map<std::string, Finding> findings(const Report& report) {
  std::map<std::string, Finding> result;
  for (const auto& [property, cases] : report.violation_counts) result[property].cases = cases;
  for (const Violation& violation : report.violations) {
    const bool bound = violation.verdict == Verdict::bound_exceeded;
    Finding& finding = result[bound ? std::string(bound_property) : violation.property];
    finding.violations.push_back(&violation);
    finding.cases = std::max<std::uint64_t>(finding.cases, finding.violations.size());
  }
  return result;
}

std::string_view verdict_word(const Report& report) {
  switch (report.exit_code()) {
    case Exit::pass: return "pass";
    case Exit::violation: return "violation";
    case Exit::crash: return "crashed";
    case Exit::skipped: return "refused";
    case Exit::inconclusive:
    case Exit::usage: break;
  }
  return "inconclusive";
}

std::vector<std::string> inconclusive_reasons(const Report& report) {
  std::vector<std::string> reasons;
  if (report.cases == 0) reasons.push_back("no case was judged");
  std::string missing;
  for (const std::string& name : report.classes_missing()) missing += (missing.empty() ? "" : ", ") + name;
  if (!missing.empty()) reasons.push_back("classes not reached: " + missing);
  if (report.undecided > 0) reasons.push_back(fmt::format("{} rows undecided", report.undecided));
  if (reasons.empty()) reasons.push_back("the run was judged inconclusive");
  return reasons;
}

std::string junit_xml(const std::vector<Report>& reports) {
  std::size_t tests = 0, failures = 0, errors = 0, skipped = 0;
  double seconds = 0;
  std::string suites;
  for (const Report& report : reports) {
    const Suite suite = suite_of(report);
    tests += suite.tests;
    failures += suite.failures;
    errors += suite.errors;
    skipped += suite.skipped;
    seconds += suite.seconds();
    suites += suite.text();
  }
  return fmt::format("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"sumzero\" tests=\"{}\" failures=\"{}\" "
                     "errors=\"{}\" skipped=\"{}\" time=\"{:.3f}\">\n{}</testsuites>\n",
                     tests, failures, errors, skipped, seconds, suites);
}

std::string markdown(const std::vector<Report>& reports) {
  constexpr std::size_t closing = 500, table_limit = largest_markdown / 2;
  std::string text = "# Sumzero\n\n| operator | kernel | dtype | verdict | worst ulp | bound ratio | gradient-sum index | cases |\n"
                     "|---|---|---|---|---|---|---|---|\n";
  std::size_t rows = 0;
  for (const Report& report : reports) {
    const std::string row = table_row(report);
    if (text.size() + row.size() > table_limit) break;
    text += row;
    ++rows;
  }
  if (rows < reports.size()) text += fmt::format("\n... and {} more reports.\n", reports.size() - rows);

  std::size_t total = 0, listed = 0;
  bool full = false;
  for (const Report& report : reports) {
    std::vector<std::string> items;
    for (const Violation& violation : report.violations) items.push_back(violation_item(report, violation));
    if (report.exit_code() == Exit::inconclusive)
      for (const std::string& reason : inconclusive_reasons(report))
        items.push_back(fmt::format("- **inconclusive** {}: {}\n", plain(subject(report), 300), plain(reason)));
    if (!items.empty() && total == 0) text += "\n## Findings\n\n";
    total += items.size();
    for (const std::string& item : items) {
      full = full || text.size() + item.size() + closing > largest_markdown;
      if (full) break;
      text += item;
      ++listed;
    }
  }
  if (listed < total) text += fmt::format("\n... and {} more findings; the JSON reports hold all of them.\n", total - listed);
  return text;
}

std::string sarif(const std::vector<Report>& reports) {
  ordered_json results = ordered_json::array();
  std::map<std::string, std::string> rules;
  const auto add = [&](const Report& report, const std::string& property, const char* level, const std::string& message,
                       const std::string& witness) {
    const std::string rule = one_line(property.empty() ? "violation" : property);
    rules.emplace(rule, "The property '" + rule + "' holds for every input");
    results.push_back(sarif_result(report, rule, level, message, witness));
  };
  for (const Report& report : reports) {
    for (const Violation& violation : report.violations)
      add(report, violation.property, violation.severity == "error" ? "error" : "warning",
          sentence(violation) + " (" + evidence(violation) + ")", violation.witness);
    if (report.exit_code() == Exit::inconclusive)
      for (const std::string& reason : inconclusive_reasons(report)) add(report, "conclusive", "warning", reason, "");
  }
  ordered_json driver = {{"name", "sumzero"}, {"rules", ordered_json::array()}};
  for (const auto& [rule, description] : rules)
    driver["rules"].push_back({{"id", rule}, {"shortDescription", {{"text", description}}}});
  ordered_json log;
  log["$schema"] = "https://json.schemastore.org/sarif-2.1.0.json";
  log["version"] = "2.1.0";
  log["runs"] = ordered_json::array();
  log["runs"].push_back({{"tool", {{"driver", driver}}}, {"results", results}});
  return pretty(log);
}

std::string terminal_summary(const Report& report) {
  constexpr std::size_t most_outputs = 4, most_violations = 3;
  std::string text = fmt::format("{:<12}{}: {}\n", "kernel", one_line(subject(report)), verdict_word(report));
  const auto line = [&](std::string_view head, const std::string& rest) {
    text += fmt::format("  {:<10}{}\n", shortened(one_line(head), 9), one_line(rest));
  };
  if (report.command == "exhaust")
    line("rows", fmt::format("{} ({} elements) in {:.1f} s", report.rows, report.elements, report.seconds));
  else
    line("cases", fmt::format("{} ({} rows, {} elements) in {:.1f} s, seed {}", report.cases, report.rows, report.elements,
                              report.seconds, report.seed));
  std::size_t shown = 0;
  for (const auto& [output, worst] : report.worst) {
    if (++shown > most_outputs) break;
    const auto bound = report.bounds.find(output);
    line(output, fmt::format("{} ulp, {} of the bound{}, {}", short_number(worst.ulp), short_number(worst.bound_ratio),
                             bound == report.bounds.end() || bound->second.theorem.empty()
                                 ? ""
                                 : " (" + bound->second.kind + " " + bound->second.theorem + ")",
                             label(report, worst)));
  }
  if (report.worst.size() > most_outputs) line("", fmt::format("... and {} more outputs", report.worst.size() - most_outputs));
  line("sums", fmt::format("gradient-sum index {}, sum index {}", short_number(report.gradient_sum_index.max),
                           short_number(report.sum_index.max)));
  line("coverage", fmt::format("{} of {} classes; {} undecided, {} refused, {} mistrusted",
                               report.classes_required.size() - report.classes_missing().size(), report.classes_required.size(),
                               report.undecided, report.refused, report.mistrusted));
  if (report.exit_code() == Exit::inconclusive)
    for (const std::string& reason : inconclusive_reasons(report)) line("open", reason);
  if (report.exit_code() == Exit::skipped && !report.refusal.empty()) line("refused", report.refusal);
  for (std::size_t i = 0; i < std::min(most_violations, report.violations.size()); ++i) {
    const Violation& violation = report.violations[i];
    line(violation.severity, violation.property + " at " + place(violation) + ": " + sentence(violation));
    if (!violation.witness.empty()) line("", "witness " + violation.witness);
  }
  if (report.violations.size() > most_violations)
    line("", fmt::format("... and {} more", report.violations.size() - most_violations));
  return text;
}

}  // namespace sumzero
