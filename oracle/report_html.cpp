#include "oracle/report_html.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "oracle/file.hpp"
#include "reference/evaluate.hpp"

namespace sumzero {
namespace {

using nlohmann::json;

/// Text for elements and quoted attributes.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char character : valid_utf8(text)) {
    switch (character) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      default: result += static_cast<unsigned char>(character) < 0x20 && character != '\n' ? ' ' : character;
    }
  }
  return result;
}

std::string number(double value) { return fmt::format("{:.4g}", value); }
std::string subject(const Report& report) { return report.op + "/" + report.kernel + "/" + report.format; }

/// An argument of a shell command.
std::string argument(const std::string& text) {
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isalnum(c) || std::string_view("._-/+=:,").find(static_cast<char>(c)) != std::string_view::npos; });
  if (plain) return text;
  std::string quoted = "'";
  for (const char character : text) quoted += character == '\'' ? std::string("'\\''") : std::string(1, character);
  return quoted + "'";
}

std::string campaign_command(const Report& report) {
  std::string command = fmt::format("sumzero {} {} --kernel {} --dtype {}", report.command == "exhaust" ? "exhaust" : "fuzz", argument(report.op), argument(report.kernel), report.format);
  if (report.command == "exhaust") return command + (report.tally ? fmt::format(" --length {}", report.tally->length) : "");
  return command + fmt::format(" --seed {} --cases {}", report.seed, report.cases);
}

std::string replay_command(const Report& report, const std::string& folder, const std::string& witness) {
  const std::string path = (folder.empty() ? std::string("witness/") : folder + "/witness/") + witness + ".json";
  return fmt::format("sumzero replay {} --kernel {}", argument(path), argument(report.kernel));
}

/// Output whose error uses most of its bound.
const std::pair<const std::string, Worst>* worst_of(const Report& report) {
  const std::pair<const std::string, Worst>* worst = nullptr;
  for (const auto& entry : report.worst)
    if (!worst || entry.second.bound_ratio > worst->second.bound_ratio) worst = &entry;
  return worst && worst->second.elements > 0 ? worst : nullptr;
}

std::string pill(const Report& report) {
  const std::string_view word = verdict_word(report);
  return fmt::format("<span class=\"verdict {0}\">{0}</span>", word);
}

std::string label(const Report& report, const Worst& worst) {
  return worst.kind == "sampled" ? fmt::format("largest found in {} {}", report.judged(), report.unit()) : worst.kind;
}

/// What a reader sees first.
std::string summary(const Report& report, const std::string& folder) {
  std::string text = fmt::format("<p>{} {} {} and {} entries judged in {:.1f} s.", pill(report), report.judged(), report.unit(), report.elements, std::isfinite(report.seconds) ? report.seconds : 0.0);
  std::uint64_t broken = 0;
  for (const auto& [property, finding] : findings(report))
    if (finding.failed()) ++broken;
  text += broken == 0 ? " No property is broken.</p>\n" : fmt::format(" {} {} broken.</p>\n", broken, broken == 1 ? "property is" : "properties are");
  if (report.exit_code() == Exit::inconclusive)
    for (const std::string& reason : inconclusive_reasons(report)) text += "<p>Inconclusive: " + escaped(reason) + ".</p>\n";
  if (report.exit_code() == Exit::skipped) text += "<p>Refused: " + escaped(report.refusal) + "</p>\n";
  if (!report.violations.empty()) {
    const Violation& first = report.violations.front();
    text += fmt::format("<p><strong>{}</strong>: {}</p>\n", escaped(first.property), escaped(first.message));
    text += "<pre>" + escaped(replay_command(report, folder, first.witness)) + "</pre>\n";
  } else if (const auto* worst = worst_of(report)) {
    text += fmt::format("<p>Worst: {}, row {}, {} ulp, {} of the bound ({}).</p>\n", escaped(worst->first), worst->second.row, number(worst->second.ulp), number(worst->second.bound_ratio), label(report, worst->second));
    if (!worst->second.bound_witness.empty()) text += "<pre>" + escaped(replay_command(report, folder, worst->second.bound_witness)) + "</pre>\n";
  }
  return text + "<pre>" + escaped(campaign_command(report)) + "</pre>\n";
}

std::string worst_table(const Report& report, const std::string& folder) {
  std::string text =
      "<h3>Worst cases</h3>\n<div class=\"wide\"><table><thead><tr><th scope=\"col\">output</th><th scope=\"col\">entry</th><th scope=\"col\" class=\"number\">computed</th><th scope=\"col\" class=\"number\">exact</th><th scope=\"col\" "
      "class=\"number\">error, ulp</th><th scope=\"col\" class=\"number\">of the bound</th><th scope=\"col\" class=\"number\">margin</th><th scope=\"col\">bound</th><th scope=\"col\">maximum is</th><th scope=\"col\">replay</th></tr></thead><tbody>\n";
  for (const auto& [output, worst] : report.worst) {
    const auto bound = report.bounds.find(output);
    text += fmt::format("<tr><td>{}</td><td>row {}, {} of {}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                        escaped(output), worst.row, worst.index, worst.classes, number(worst.computed), number(std::strtod(worst.exact.c_str(), nullptr)), number(worst.ulp), number(worst.bound_ratio),
                        worst.bound_ratio > 0 ? number(1 / worst.bound_ratio) + "x" : "-",
                        bound == report.bounds.end() ? "-" : escaped(bound->second.kind + " " + bound->second.theorem), label(report, worst),
                        worst.witness.empty() ? "-" : "<code>" + escaped(replay_command(report, folder, worst.witness)) + "</code>");
  }
  return text + "</tbody></table></div>\n";
}

std::string violation_list(const Report& report, const std::string& folder) {
  if (report.violations.empty()) return "";
  std::string text = "<h3>Violations</h3>\n<ul>\n";
  for (const Violation& violation : report.violations) {
    text += fmt::format("<li><strong>{}</strong>{} {}", escaped(violation.property), violation.kind.empty() ? "" : " (" + escaped(violation.kind) + ")", escaped(violation.message));
    if (!violation.witness.empty()) text += "<pre>" + escaped(replay_command(report, folder, violation.witness)) + "</pre>";
    text += "</li>\n";
  }
  text += "</ul>\n";
  std::string counts;
  for (const auto& [property, count] : report.violation_counts)
    if (count > 0) counts += fmt::format("{}{}: {} {}", counts.empty() ? "" : ", ", property, count, report.unit());
  return counts.empty() ? text : text + "<p>In all: " + escaped(counts) + ".</p>\n";
}

std::string facts(const Report& report) {
  std::string missing;
  for (const std::string& name : report.classes_missing()) missing += (missing.empty() ? " (not: " : ", ") + name;
  if (!missing.empty()) missing += ")";
  std::string text = fmt::format("<details><summary>Coverage, contract and machine</summary>\n<p>{} of {} required classes reached{}; {} rows undecided, {} cases refused, {} mistrusted.</p>\n",
                                 report.classes_required.size() - report.classes_missing().size(), report.classes_required.size(),
                                 escaped(missing), report.undecided, report.refused, report.mistrusted);
  const auto table = [&](const char* title, const std::map<std::string, std::string>& entries) {
    if (entries.empty()) return;
    text += fmt::format("<h3>{}</h3><div class=\"wide\"><table><tbody>\n", title);
    for (const auto& [key, value] : entries) text += fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td></tr>\n", escaped(key), escaped(value));
    text += "</tbody></table></div>\n";
  };
  table("Contract of the kernel", report.contract);
  table("Machine", report.environment);
  return text + "</details>\n";
}

json chart_data(const Report& report) {
  json data = to_json(report.tally ? report.tally->total().profile : Profile{});
  data["subject"] = valid_utf8(subject(report));
  data["op"] = valid_utf8(report.op), data["kernel"] = valid_utf8(report.kernel), data["dtype"] = valid_utf8(report.format);
  bool attention = false, logits = true;
  for (const OperatorReference* reference : Registry::global().operators())
    if (reference->signature().name == report.op) attention = reference->signature().axes == Axes::attention, logits = reference->signature().input_with(Role::logits) >= 0;
  data["ordinal"] = logits ? "logit (a number of a whole row: its largest logit)" : "exact result";
  data["extent"] = attention ? "keys" : "classes";
  const std::optional<Format> format = floating_format_named(report.format);
  data["collapse"] = format ? 0.5 / unit_roundoff(*format) : 1.0;
  data["worst"] = json::object();
  for (const auto& [output, worst] : report.worst) data["worst"][valid_utf8(output)] = {{"ulp", number_json(worst.ulp)}, {"bound_ratio", number_json(worst.bound_ratio)}};
  return data;
}

std::string side_by_side(const std::vector<Report>& reports) {
  std::string text =
      "<div class=\"wide\"><table><thead><tr><th scope=\"col\">kernel</th><th scope=\"col\">verdict</th><th scope=\"col\" class=\"number\">worst ulp</th><th scope=\"col\" class=\"number\">of the bound</th><th scope=\"col\" "
      "class=\"number\">gradient-sum index</th><th scope=\"col\" class=\"number\">judged</th></tr></thead><tbody>\n";
  for (std::size_t i = 0; i < reports.size(); ++i) {
    const Report& report = reports[i];
    double ulp = 0, ratio = 0;
    for (const auto& [output, worst] : report.worst) ulp = std::max(ulp, worst.ulp), ratio = std::max(ratio, worst.bound_ratio);
    text += fmt::format("<tr><td><a href=\"#report-{}\">{}</a></td><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{} {}</td></tr>\n", i, escaped(subject(report)),
                        pill(report), number(ulp), number(ratio), report.gradient_sum_index.max ? number(*report.gradient_sum_index.max) : "-", report.judged(), report.unit());
  }
  return text + "</tbody></table></div>\n";
}

/// Text of a script element that no `</script` inside a name can end.
std::string script_text(const json& data) {
  std::string text;
  for (const char character : data.dump()) text += character == '<' ? std::string("\\u003c") : std::string(1, character);
  return text;
}

}  // namespace

PageParts page_parts() {
  PageParts parts;
  const std::filesystem::path script = shared_file("report/report.js"), style = shared_file("report/report.css");
  if (!std::filesystem::exists(script) || !std::filesystem::exists(style))
    throw InvalidInput("this tool was built without the charts of HTML reports: install esbuild and node-vega and build again, or write Markdown (-o report.md)");
  parts.script = read_file(script);
  parts.style = read_file(style);
  return parts;
}

std::vector<KernelSpeed> read_speeds(const std::filesystem::path& path) {
  const nlohmann::json text = parse_json(read_file(path), path.string());
  const JsonValue value(text, path.string());
  value.require_schema("sumzero-bench/1");
  constexpr std::string_view end = "/1024/in_cache/time_over_copy";
  std::vector<KernelSpeed> speeds;
  for (const auto& [key, figure] : value.at("figures").fields()) {
    if (!key.ends_with(end)) continue;
    const std::string subject_text = key.substr(0, key.size() - end.size());
    const std::size_t slash = subject_text.find('/');
    if (slash != std::string::npos) speeds.push_back({subject_text.substr(0, slash), subject_text.substr(slash + 1), figure.number()});
  }
  return speeds;
}

std::string html(const std::vector<Report>& reports, const PageParts& parts) {
  const auto folder = [&](std::size_t i) { return i < parts.folders.size() ? parts.folders[i] : std::string(); };
  json data = {{"reports", json::array()}, {"speeds", json::array()}, {"ratchet", json::array()}};
  for (const Report& report : reports) data["reports"].push_back(chart_data(report));
  for (const KernelSpeed& speed : parts.speeds) data["speeds"].push_back({{"op", valid_utf8(speed.op)}, {"kernel", valid_utf8(speed.kernel)}, {"time", number_json(speed.time_over_copy)}});
  if (parts.baseline)
    for (const Report& report : reports)
      if (const auto stored = parts.baseline->entries.find({report.op, report.kernel, report.format}); stored != parts.baseline->entries.end())
        for (const auto& [output, before] : stored->second.outputs)
          if (const auto now = report.worst.find(output); now != report.worst.end())
            data["ratchet"].push_back({{"output", valid_utf8(subject(report) + " " + output)}, {"before", number_json(before.ulp)}, {"now", number_json(now->second.ulp)}});

  const std::string title = reports.size() == 1 ? subject(reports[0]) : fmt::format("{} kernels", reports.size());
  std::string body;
  if (reports.size() == 1) {
    body += fmt::format("<h1>{}</h1>\n", escaped(title)) + summary(reports[0], folder(0));
  } else {
    body += fmt::format("<h1>{}</h1>\n", escaped(title)) + side_by_side(reports);
    const auto failing = std::find_if(reports.begin(), reports.end(), [](const Report& report) { return report.exit_code() != Exit::pass && report.exit_code() != Exit::skipped; });
    if (failing != reports.end()) body += fmt::format("<p>First to look at: {}</p>\n", escaped(subject(*failing))) + summary(*failing, folder(static_cast<std::size_t>(failing - reports.begin())));
  }
  body += "<div id=\"comparison\" class=\"charts\"></div>\n";
  for (std::size_t i = 0; i < reports.size(); ++i) {
    const Report& report = reports[i];
    body += fmt::format("<section id=\"report-{}\">\n", i);
    if (reports.size() > 1) body += fmt::format("<h2>{}</h2>\n", escaped(subject(report))) + summary(report, folder(i));
    body += worst_table(report, folder(i)) + violation_list(report, folder(i));
    const std::uint64_t surveyed = report.tally ? report.tally->total().profile.cases : 0;
    body += surveyed == 0 ? "<p>No case was surveyed for charts: run longer.</p>\n"
                          : fmt::format("<p>The charts show {} of the {}, one in about {}; the worst cases above are of all.</p>\n", surveyed, report.command == "exhaust" ? "parts" : "cases", report.command == "exhaust" ? 256 : 8);
    body += fmt::format("<div id=\"charts-{}\" class=\"charts\"></div>\n<noscript><p>The charts need JavaScript.</p></noscript>\n", i) + facts(report) + "</section>\n";
  }
  return fmt::format("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}: numerical error</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n",
                     escaped(title), parts.style) +
         body + "</main>\n<script type=\"application/json\" id=\"data\">" + script_text(data) + "</script>\n<script>" + parts.script + "</script>\n</body>\n</html>\n";
}

}  // namespace sumzero
