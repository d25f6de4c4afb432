// The commands. Parsing is CLI11's; everything else calls the library and turns its errors into one sentence.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <set>
#include <thread>
#include <tuple>

#include "fuzz/batch.hpp"
#include "fuzz/bench.hpp"
#include "fuzz/campaign.hpp"
#include "fuzz/examine.hpp"
#include "fuzz/exhaustive.hpp"
#include "fuzz/explain.hpp"
#include "fuzz/merge.hpp"
#include "fuzz/minimise.hpp"
#include "fuzz/recipe.hpp"
#include "fuzz/selftest.hpp"
#include "fuzz/sumzero.hpp"
#include "oracle/contract.hpp"
#include "oracle/file.hpp"
#include "oracle/gate.hpp"
#include "oracle/json.hpp"
#include "oracle/kernel/plugin_worker.hpp"
#include "oracle/kernel/worker_kernel.hpp"
#include "oracle/probe.hpp"
#include "oracle/report.hpp"
#include "oracle/report_html.hpp"
#include "oracle/witness.hpp"

namespace sumzero {
namespace {

namespace fs = std::filesystem;

std::atomic<bool> interrupted{false};
char crash_message[512];

void on_interrupt(int) { interrupted = true; }

/// A kernel that dies takes the process with it: say which campaign it was and leave with the documented code. Only
/// functions that are safe in a signal handler.
void on_crash(int) {
  const std::size_t length = std::char_traits<char>::length(crash_message);
  if (::write(2, crash_message, length) < 0) ::_exit(static_cast<int>(Exit::crash));
  ::_exit(static_cast<int>(Exit::crash));
}

/// A number and the unit behind it; NaN where no number stands.
std::pair<double, std::string> number_and_unit(const std::string& text) {
  std::size_t used = 0;
  try {
    const double value = std::stod(text, &used);
    return {value, text.substr(used)};
  } catch (const std::exception&) {
    return {std::nan(""), text};
  }
}

double parse_seconds(const std::string& text, const std::string& option) {
  const auto [value, unit] = number_and_unit(text);
  const double scale = unit.empty() || unit == "s" ? 1 : unit == "m" || unit == "min" ? 60 : unit == "h" ? 3600 : -1;
  if (scale < 0 || !(value > 0) || !(value < 1e9))
    throw InvalidInput(option + " '" + text + "' is not a positive duration; write for example 30s, 5m or 1h");
  return value * scale;
}

std::uint64_t parse_memory(const std::string& text) {
  const auto [value, unit] = number_and_unit(text);
  const double scale = unit.empty() ? 1 : unit == "K" ? 0x1p10 : unit == "M" ? 0x1p20 : unit == "G" ? 0x1p30 : -1;
  if (scale < 0 || !(value > 0) || !(value * scale < 0x1p60))
    throw InvalidInput("--memory-limit '" + text + "' is not a size; write for example 512M or 4G");
  return static_cast<std::uint64_t>(value * scale);
}

/// A whole number of the environment; null when the variable is not set.
std::optional<std::uint64_t> environment_number(const char* variable) {
  const char* text = std::getenv(variable);
  if (!text) return std::nullopt;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
  if (error != std::errc() || *end) throw InvalidInput(fmt::format("{} is '{}'; it must be a whole number", variable, text));
  return value;
}

/// Index and count of shards as the batch system that started this process gives them; a count of 0 where it gives none.
std::pair<std::uint64_t, std::uint64_t> shard_of_environment() {
  if (const auto task = environment_number("SLURM_ARRAY_TASK_ID")) {
    const std::uint64_t first = environment_number("SLURM_ARRAY_TASK_MIN").value_or(0), step = environment_number("SLURM_ARRAY_TASK_STEP").value_or(1);
    if (*task < first || step == 0) throw InvalidInput(fmt::format("SLURM_ARRAY_TASK_ID {} does not fit SLURM_ARRAY_TASK_MIN {} and SLURM_ARRAY_TASK_STEP {}", *task, first, step));
    return {(*task - first) / step, environment_number("SLURM_ARRAY_TASK_COUNT").value_or(0)};
  }
  if (const auto index = environment_number("JOB_COMPLETION_INDEX")) return {*index, 0};  // Kubernetes
  if (const auto number = environment_number("PARALLEL_SEQ"); number && *number > 0) return {*number - 1, 0};  // GNU parallel counts from 1
  throw InvalidInput("--shard auto finds no SLURM_ARRAY_TASK_ID, JOB_COMPLETION_INDEX or PARALLEL_SEQ; write i/N");
}

std::pair<std::uint64_t, std::uint64_t> parse_shard(const std::string& text) {
  std::pair<std::uint64_t, std::uint64_t> shard{0, 0};
  const auto number = [&](std::string_view digits, std::uint64_t& to) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), to);
    return error == std::errc() && end == digits.data() + digits.size() && !digits.empty();
  };
  const std::size_t slash = text.find('/');
  const std::string index = text.substr(0, slash);
  bool good = index == "auto" || number(index, shard.first);
  if (index == "auto") shard = shard_of_environment();
  if (slash != std::string::npos) good = good && number(std::string_view(text).substr(slash + 1), shard.second);
  if (!good || shard.second == 0 || shard.first >= shard.second)
    throw InvalidInput(fmt::format("--shard '{}'{} must be i/N with 0 <= i < N, or auto/N", text,
                                   index == "auto" && good ? fmt::format(" means {} of {}; it", shard.first, shard.second) : ""));
  return shard;
}

std::vector<Format> parse_formats(const std::string& text, const std::string& op, const std::string& kernel) {
  if (text == "all") {
    std::vector<Format> formats;
    for (const Format format : floating_formats)
      for (const Kernel* candidate : Registry::global().kernels(op)) {
        const auto& aliases = candidate->aliases;
        if ((candidate->name == kernel || std::find(aliases.begin(), aliases.end(), kernel) != aliases.end()) &&
            candidate->supports(format)) {
          formats.push_back(format);
          break;
        }
      }
    if (formats.empty()) Registry::global().kernel_named(op, kernel, Format::f32);  // throws with the known names
    return formats;
  }
  const std::optional<Format> format = floating_format_named(text);
  if (!format)
    throw InvalidInput(fmt::format("unknown dtype '{}'; known: {}, all", text, floating_format_names));
  return {*format};
}

void progress_line(const Report& report, std::optional<double> left) {
  double ulp = 0, ratio = 0;
  for (const auto& [output, worst] : report.worst) ulp = std::max(ulp, worst.ulp), ratio = std::max(ratio, worst.bound_ratio);
  std::uint64_t violations = 0;
  for (const auto& [property, count] : report.violation_counts) violations += count;
  std::string line = fmt::format("\r{} {} {}: {} {}, {:.0f}/s, worst {:.4g} ulp, {:.3g} of bound, {} violations{}", report.op, report.kernel,
                                 report.format, report.judged(), report.unit(), static_cast<double>(report.judged()) / std::max(report.seconds, 1e-9), ulp, ratio,
                                 violations, left ? fmt::format(", {:.0f} s left", *left) : "");
  std::fprintf(stderr, "%-110s", line.c_str());
  std::fflush(stderr);
}

// ---------------------------------------------------------------------------------------------------------

struct Outputs {
  std::string json, junit, markdown_path, sarif_path;
  bool quiet = false;
  void add(CLI::App& app) {
    app.add_option("--json", json, "Write the report(s) as JSON");
    app.add_option("--junit", junit, "Write JUnit XML");
    app.add_option("--markdown", markdown_path, "Write a Markdown summary");
    app.add_option("--sarif", sarif_path, "Write SARIF 2.1.0");
    app.add_flag("-q,--quiet", quiet, "No progress and no summary");
  }
  void write(const std::vector<Report>& reports) const {
    if (!json.empty()) {
      nlohmann::json all = nlohmann::json::array();
      for (const Report& report : reports) all.push_back(to_json(report));
      write_file(json, pretty(reports.size() == 1 ? all[0] : all));
    }
    if (!junit.empty()) write_file(junit, junit_xml(reports));
    if (!markdown_path.empty()) write_file(markdown_path, markdown(reports));
    if (!sarif_path.empty()) write_file(sarif_path, sarif(reports));
  }
};

Exit worst_exit(const std::vector<Report>& reports) {
  Exit exit = reports.empty() ? Exit::inconclusive : reports.front().exit_code();
  for (const Report& report : reports) exit = worse(exit, report.exit_code());
  return exit;
}

/// Kernels as the command line names them: limits of the processes that foreign ones run in, and what the judged one promises.
struct Subjects {
  std::string timeout, memory, contract;
  WorkerOptions options;
  std::unique_ptr<Kernel> promising;

  void add(CLI::App& app) {
    app.add_option("--contract", contract,
                   "JSON file of what the kernel promises in place of its own contract, by the fields of oracle/contract.hpp or as `sumzero probe -o` writes it");
    add_limits(app);
  }
  void add_limits(CLI::App& app) {
    app.add_option("--timeout", timeout, "Time limit of one call of a foreign kernel (default 10s)");
    app.add_option("--memory-limit", memory, "Memory that a foreign kernel may allocate, for example 4G (default: no limit)");
  }
  /// Opens the foreign ones among these kernels.
  void open(const std::vector<std::string>& kernels) {
    if (!timeout.empty()) options.limits.seconds = parse_seconds(timeout, "--timeout");
    if (!memory.empty()) options.limits.memory = parse_memory(memory);
    for (const std::string& kernel : kernels)
      if (is_foreign_kernel(kernel)) open_foreign_kernel(kernel, options);
  }
  /// The kernel to judge, by its own contract or by that of --contract.
  const Kernel& judged(const std::string& op, const std::string& name, Format format) {
    const Kernel& kernel = Registry::global().kernel_named(op, name, format);
    if (contract.empty()) return kernel;
    promising = with_contract(kernel, format, contract);
    return *promising;
  }
};

struct FuzzCommand {
  Subjects subjects;
  CampaignOptions options;
  std::string time, dtype = "f32", out, shard;
  std::uint64_t cases = 0;
  std::int64_t length = 0;
  bool exhaustive = false;
  Outputs outputs;

  void add_fuzz(CLI::App& app) {
    add(app, fmt::format("{} or all", floating_format_names));
    app.add_option("--time", time, "Time limit, for example 30s or 5m (default 10s)");
    app.add_option("--cases", cases, "Case limit")->check(CLI::PositiveNumber);
    app.add_option("--seed", options.seed, "Seed; the same seed gives the same cases")->capture_default_str();
  }
  void add_exhaust(CLI::App& app) {
    exhaustive = true;
    add(app, std::string(floating_format_names));
    app.add_option("--length", length, "Logits of a row (default: as many as 32 bits hold, for example 2 of bf16, 4 of e4m3)")->check(CLI::PositiveNumber);
    app.add_option("--time", time, "Stop after such a time, to go on later with --resume");
  }
  void add(CLI::App& app, const std::string& dtypes) {
    app.add_option("operator", options.op, "Operator, see `sumzero list`")->required();
    app.add_option("--kernel", options.kernel, "Kernel under test: a name of `sumzero list`, FILE.py, FILE.so or process:COMMAND")->default_val("fast");
    auto* dtype_option = app.add_option("--dtype", dtype, dtypes);
    if (exhaustive) dtype_option->required();
    else dtype_option->capture_default_str();
    app.add_option("--threads", options.threads, "Worker threads")->check(CLI::Range(1, 1024))->capture_default_str();
    app.add_option("--shard", shard,
                   "i/N: take the i-th of N disjoint shares, 0 <= i < N; auto/N, or auto in a Slurm array: i from the environment (Slurm, "
                   "Kubernetes Indexed Job, GNU parallel); results go to OUT/i-of-N, see `sumzero merge`");
    app.add_option("--out", out, "Folder for report, witnesses and state");
    app.add_flag("--resume", options.resume, "Go on where the folder's state ends");
    subjects.add(app);
    outputs.add(app);
  }

  Exit run() {
    if (!time.empty()) options.seconds = parse_seconds(time, "--time");
    if (cases > 0) options.cases = cases;
    if (!shard.empty()) std::tie(options.shard, options.shards) = parse_shard(shard);
    if (options.shards > 1 && !out.empty()) out = (fs::path(out) / fmt::format("{}-of-{}", options.shard, options.shards)).string();
    if (options.resume && out.empty()) throw InvalidInput("--resume needs --out, the folder to go on from");
    const Signature& signature = Registry::global().operator_named(options.op).signature();
    if (!out.empty()) subjects.options.running = fs::path(out) / "running";
    subjects.open({options.kernel});
    const std::vector<Format> formats = parse_formats(dtype, options.op, options.kernel);
    if (exhaustive) {
      if (formats.size() != 1) throw InvalidInput(fmt::format("exhaust takes one --dtype: {}", floating_format_names));
      options.exhaust = length > 0 ? length : Exhaustive::default_length(signature, formats[0]);
    }
    options.stop = &interrupted;
    const bool terminal = ::isatty(2) && !outputs.quiet;
    std::vector<Report> reports;
    for (const Format format : formats) {
      options.format = format;
      options.subject = &subjects.judged(options.op, options.kernel, format);
      if (!out.empty()) options.out = formats.size() == 1 ? fs::path(out) : fs::path(out) / std::string(name(format));
      fmt::format_to_n(crash_message, sizeof crash_message - 1,
                       "sumzero: kernel '{}' of {} crashed on {}; repeat with --seed {} --threads 1 under a debugger\n", options.kernel,
                       options.op, name(format), options.seed)
          .out[0] = '\0';
      auto last = std::chrono::steady_clock::now();
      if (terminal)
        options.progress = [last](const Report& report, double, std::optional<double> left) mutable {
          const auto now = std::chrono::steady_clock::now();
          if (now - last < std::chrono::milliseconds(100)) return;
          last = now;
          progress_line(report, left);
        };
      reports.push_back(run_campaign(options));
      if (terminal) std::fprintf(stderr, "\r%-110s\r", "");
      if (!outputs.quiet) std::cout << terminal_summary(reports.back()) << std::flush;
      if (interrupted) break;
    }
    outputs.write(reports);
    return worst_exit(reports);
  }
};

struct ProbeCommand {
  std::string op, kernel, dtype = "f32", json, to;
  ProbeOptions options;
  Subjects subjects;
  void add(CLI::App& app) {
    app.add_option("operator", op, "Operator, see `sumzero list`")->required();
    app.add_option("--kernel", kernel, "Kernel to measure: a name of `sumzero list`, FILE.py, FILE.so or process:COMMAND")->required();
    app.add_option("--dtype", dtype, std::string(floating_format_names))->capture_default_str();
    app.add_option("--seed", options.seed, "Seed of the random rows")->capture_default_str();
    app.add_option("--json", json, "Write the findings as JSON");
    app.add_option("-o", to, "Write the draft contract, for --contract of fuzz, check, replay, explain, minimise and compare");
    subjects.add_limits(app);
  }
  Exit run() {
    const std::optional<Format> format = floating_format_named(dtype);
    if (!format) throw InvalidInput(fmt::format("unknown dtype '{}'; known: {}", dtype, floating_format_names));
    options.format = *format;
    const OperatorReference& reference = Registry::global().operator_named(op);
    subjects.open({kernel});
    const ProbeResult result = probe(reference, Registry::global().kernel_named(op, kernel, *format), options);
    std::cout << probe_text(result);
    if (!json.empty()) write_file(json, pretty(to_json(result)));
    if (result.refused) return Exit::skipped;
    if (!to.empty()) write_file(to, pretty(draft_contract(result)));
    return Exit::pass;
  }
};

struct SelftestCommand {
  SelftestOptions options;
  std::string dtype, json;
  bool quiet = false;
  void add(CLI::App& app) {
    app.add_option("operator", options.op, "Operator (default: all)");
    app.add_option("--kernel", options.kernel, "Kernel that is broken, and must be right itself")->capture_default_str();
    app.add_option("--dtype", dtype, std::string(floating_format_names) + " (default: f32 and bf16)");
    app.add_option("--cases", options.cases, "Cases until a mutant counts as survivor")->check(CLI::PositiveNumber)->capture_default_str();
    app.add_option("--seed", options.seed, "Seed; the same seed gives the same cases")->capture_default_str();
    app.add_option("--threads", options.threads, "Worker threads")->check(CLI::Range(1, 1024))->capture_default_str();
    app.add_option("--json", json, "Write every mutant's outcome as JSON");
    app.add_flag("-q,--quiet", quiet, "No progress and no table");
  }
  Exit run() {
    if (!dtype.empty()) options.formats = parse_formats(dtype, "", "");
    options.twin_cases = std::min(options.twin_cases, options.cases);
    options.stop = &interrupted;
    if (::isatty(2) && !quiet) options.progress = [](std::size_t done, std::size_t all) { std::fprintf(stderr, "\r%zu of %zu mutants", done, all); };
    fmt::format_to_n(crash_message, sizeof crash_message - 1, "sumzero: a broken kernel crashed; repeat with --threads 1 under a debugger\n").out[0] = '\0';
    const SelftestResult result = selftest(options);
    if (options.progress) std::fprintf(stderr, "\r%40s\r", "");
    if (!quiet) std::cout << selftest_text(result);
    if (!json.empty()) write_file(json, pretty(to_json(result)));
    return result.exit_code();
  }
};

struct GenerateCommand {
  BatchOptions options;
  std::string dtype = "f32", to;
  void add(CLI::App& app) {
    app.add_option("operator", options.op, "Operator, see `sumzero list`")->required();
    app.add_option("--dtype", dtype, std::string(floating_format_names))->capture_default_str();
    app.add_option("--cases", options.cases, "Number of cases")->check(CLI::PositiveNumber)->capture_default_str();
    app.add_option("--seed", options.seed, "Seed; the same seed gives the same cases")->capture_default_str();
    app.add_option("-o", to, "Batch file: .safetensors or .npz")->required();
  }
  Exit run() {
    const std::optional<Format> format = floating_format_named(dtype);
    if (!format) throw InvalidInput(fmt::format("unknown dtype '{}'; known: {}", dtype, floating_format_names));
    options.format = *format;
    generate_batch(options, to);
    return Exit::pass;
  }
};

struct CheckCommand {
  CampaignOptions options;
  std::string batch, results, contract, out;
  Outputs outputs;
  void add(CLI::App& app) {
    app.add_option("batch", batch, "File that `sumzero generate` wrote")->required();
    app.add_option("results", results, "File with the kernel's outputs, .safetensors or .npz")->required();
    app.add_option("--contract", contract,
                   "JSON file of what the kernel promises, by the fields of oracle/contract.hpp, for example accumulator, exp_error (in u), "
                   "summation; default: the accumulator of the dtype, exp and log within 2 u, unknown order");
    app.add_option("--threads", options.threads, "Worker threads")->check(CLI::Range(1, 1024))->capture_default_str();
    app.add_option("--out", out, "Folder for report and witnesses");
    outputs.add(app);
  }
  Exit run() {
    if (!out.empty()) options.out = out;
    options.stop = &interrupted;
    const std::vector<Report> reports = {check_batch(batch, results, contract, options)};
    if (!outputs.quiet) std::cout << terminal_summary(reports.front()) << std::flush;
    outputs.write(reports);
    return worst_exit(reports);
  }
};

/// `folders`, if given, receives the folder of every report.
std::vector<Report> reports_below(const std::vector<std::string>& places, std::vector<std::string>* folders = nullptr) {
  std::vector<Report> reports;
  const auto read = [&](const fs::path& path) {
    reports.push_back(read_report(path));
    if (folders) folders->push_back(path.parent_path().string());
  };
  for (const std::string& place : places) {
    if (!fs::exists(place)) throw InvalidInput(place + ": no such file or folder; give a folder that `sumzero fuzz --out` wrote");
    if (fs::is_regular_file(place)) {
      read(place);
      continue;
    }
    std::set<fs::path> found;
    for (const auto& entry : fs::recursive_directory_iterator(place))
      if (entry.is_regular_file() && entry.path().filename() == "report.json") found.insert(entry.path());
    if (found.empty()) throw InvalidInput(place + ": holds no report.json; give a folder that `sumzero fuzz --out` wrote");
    for (const fs::path& path : found) read(path);
  }
  return reports;
}

struct MergeCommand {
  std::vector<std::string> places;
  std::string out;
  Outputs outputs;
  void add(CLI::App& app) {
    app.add_option("reports", places, "Folders or report.json files of the shares")->required();
    app.add_option("-o,--out", out, "Folder for the merged report and its witnesses; what it holds already is merged too")->required();
    outputs.add(app);
  }
  Exit run() {
    const std::vector<Report> reports = merge_campaigns({places.begin(), places.end()}, out);
    if (!outputs.quiet)
      for (const Report& report : reports) std::cout << terminal_summary(report) << std::flush;
    outputs.write(reports);
    return worst_exit(reports);
  }
};

/// Errors of today's kernels at the witnesses that the baseline stored, where the reports' folders still hold them.
std::map<BaselineKey, WitnessErrors> remeasure(const Baseline& baseline, const std::vector<std::string>& places) {
  std::map<std::string, fs::path> witnesses;
  for (const std::string& place : places)
    if (fs::is_directory(place))
      for (const auto& entry : fs::recursive_directory_iterator(place))
        if (entry.path().parent_path().filename() == "witness") witnesses[entry.path().stem().string()] = entry.path();
  std::map<BaselineKey, WitnessErrors> result;
  for (const auto& [key, entry] : baseline.entries)
    for (const auto& [address, errors] : entry.witnesses) {
      const auto found = witnesses.find(address);
      if (found == witnesses.end()) continue;
      try {
        const Case input = read_witness(found->second);
        const OperatorReference& reference = Registry::global().operator_named(key.op);
        const Kernel& kernel = Registry::global().kernel_named(key.op, key.kernel, input.storage);
        const Judge judge(reference, kernel, input.storage);
        const GuardedRun run = run_guarded(reference.signature(), kernel, input);
        if (run.verdict != Verdict::pass) continue;
        const CaseJudgement judgement = judge.judge(input, run.outputs);
        for (std::size_t i = 0; i < reference.signature().outputs.size(); ++i)
          if (judgement.outputs[i].elements > 0) result[key][address][reference.signature().outputs[i].name] = judgement.outputs[i].ulp;
      } catch (const InvalidInput&) {
        continue;  // a kernel or witness that is gone cannot be measured again; the gate says so
      }
    }
  return result;
}

struct GateCommand {
  std::vector<std::string> places, kernels;
  std::string baseline;
  Subjects subjects;
  bool update = false;
  Outputs outputs;
  void add(CLI::App& app) {
    app.add_option("reports", places, "Folders or report.json files")->required();
    app.add_option("--baseline", baseline, "Baseline file of the ratchet");
    app.add_flag("--update-baseline", update, "Write today's numbers into the baseline");
    app.add_option("--kernel", kernels, "Foreign kernels of the reports, to measure the baseline's witnesses again");
    subjects.add_limits(app);
    outputs.add(app);
  }
  Exit run() {
    if (update && baseline.empty()) throw InvalidInput("--update-baseline needs --baseline, the file to write");
    const std::vector<Report> reports = reports_below(places);
    subjects.open(kernels);
    std::optional<Baseline> stored;
    if (!baseline.empty() && (fs::exists(baseline) || !update)) stored = read_baseline(baseline);
    const GateResult result = gate(reports, stored, stored ? remeasure(*stored, places) : std::map<BaselineKey, WitnessErrors>{});
    if (!outputs.quiet) {
      for (const GateSentence& sentence : result.sentences) {
        static constexpr const char* levels[] = {"note", "warning", "FAIL"};
        std::cout << levels[static_cast<int>(sentence.level)] << ": " << sentence.text << '\n';
      }
      for (const GateRow& row : result.rows)
        std::cout << fmt::format("{:<24} {:<28} {:<5} bound {}  invariants {}  ratchet {}\n", row.key.op, row.key.kernel, row.key.format,
                                 row.bound_holds ? "holds" : "FAILS", row.invariants_hold ? "hold" : "FAIL", name(row.ratchet));
    }
    if (update) write_baseline(baseline, updated_baseline(reports, stored));
    outputs.write(reports);
    return result.exit;
  }
};

struct ReportCommand {
  std::vector<std::string> places;
  std::string to, baseline, speeds;
  Outputs outputs;
  void add(CLI::App& app) {
    app.add_option("reports", places, "Folders or report.json files")->required();
    app.add_option("-o", to, "HTML (.html) or Markdown file; Markdown on standard output otherwise");
    app.add_option("--baseline", baseline, "HTML: draw this baseline beside the reports");
    app.add_option("--speeds", speeds, "HTML: draw errors over the speeds of this file, which `sumzero bench --json` wrote");
    outputs.add(app);
  }
  Exit run() {
    std::vector<std::string> folders;
    const std::vector<Report> reports = reports_below(places, &folders);
    const std::string ending = fs::path(to).extension().string();
    if (ending == ".html" || ending == ".htm") {
      PageParts parts = page_parts();
      parts.folders = folders;
      if (!baseline.empty()) parts.baseline = read_baseline(baseline);
      if (!speeds.empty()) parts.speeds = read_speeds(speeds);
      write_file(to, html(reports, parts));
    } else if (!baseline.empty() || !speeds.empty()) {
      throw InvalidInput("--baseline and --speeds are drawn into an HTML report; write it with -o FILE.html");
    } else if (!to.empty()) {
      write_file(to, markdown(reports));
    } else if (!outputs.quiet) std::cout << markdown(reports);
    outputs.write(reports);
    return Exit::pass;
  }
};

/// A witness and the kernel that it is replayed on.
struct WitnessCommand {
  std::string path, kernel = "fast", property, output, out;
  Subjects subjects;
  void add(CLI::App& app) {
    app.add_option("case", path, "Witness file")->required();
    app.add_option("--kernel", kernel, "Kernel: a name of `sumzero list`, FILE.py, FILE.so or process:COMMAND")->capture_default_str();
    subjects.add(app);
  }
  Case read() const { return read_witness(path); }
  Examiner examiner(const Case& input) {
    subjects.open({kernel});
    const OperatorReference& reference = Registry::global().operator_named(input.op);
    return Examiner(reference, subjects.judged(input.op, kernel, input.storage), input.storage);
  }

  Exit replay() {
    const Case input = read();
    const Examiner looker = examiner(input);
    const Examination examination = looker.examine(input, true);
    if (examination.run.verdict == Verdict::refused) {
      std::cout << "refused: " << examination.run.detail << '\n';
      return Exit::skipped;
    }
    int shown = 0;
    bool killed = false;
    for (const Examination::Item& item : examination.items)
      if (const auto violation = looker.confirm(input, examination, item)) {
        std::cout << violation->property << (violation->kind.empty() ? "" : " (" + violation->kind + ")") << ": " << violation->message << '\n';
        ++shown;
        killed |= kills(violation->verdict);
      }
    const auto& outputs = looker.signature().outputs;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const OutputRecord& record = examination.judgement.outputs[i];
      if (record.elements > 0)
        std::cout << fmt::format("{}: worst {:.6g} ulp, {:.4g} of the bound\n", outputs[i].name, record.ulp, record.ratio);
    }
    if (examination.judgement.gradient_sum_index.value >= 0)
      std::cout << fmt::format("gradient-sum index {:.6g}\n", examination.judgement.gradient_sum_index.value);
    if (shown == 0) std::cout << "pass\n";
    if (killed) return Exit::crash;
    return shown > 0 ? Exit::violation : examination.judgement.undecided_rows > 0 ? Exit::inconclusive : Exit::pass;
  }

  Exit minimise_case() {
    const Case input = read();
    const Examiner looker = examiner(input);
    const Examination examination = looker.examine(input, true);
    for (const Examination::Item& item : examination.items) {
      if (!property.empty() && item.complaint.property != property) continue;
      if (!output.empty() && item.complaint.output != output) continue;
      const Complaint complaint = item.complaint;
      const bool killed = kills(item.verdict);
      const Case small = minimise(looker.signature(), input, [&](const Case& candidate) { return looker.shows(candidate, complaint); }, 5000);
      if (!out.empty()) std::cout << (fs::path(out) / (write_witness(out, small) + ".json")).string() << '\n';
      else std::cout << witness_text(small);
      return killed ? Exit::crash : Exit::violation;
    }
    std::cout << "nothing to minimise: kernel '" << kernel << "' shows no violation" << (property.empty() ? "" : " of '" + property + "'") << " on this case\n";
    return Exit::pass;
  }
};

Exit list(const std::string& json_path) {
  nlohmann::json document = {{"schema", "sumzero-list/1"}};
  nlohmann::json operators = nlohmann::json::array();
  std::string text;
  for (const OperatorReference* reference : Registry::global().operators()) {
    const Signature& signature = reference->signature();
    text += fmt::format("{}\n  {}\n", signature.name, signature.summary);
    nlohmann::json entry = {{"name", signature.name}, {"summary", signature.summary}};
    entry["inputs"] = entry["outputs"] = entry["attributes"] = entry["kernels"] = nlohmann::json::array();
    const std::span<const std::string_view> axes = axis_names(signature.axes);
    entry["axes"] = axes;
    const auto axes_text = [&](Shape shape) {
      std::vector<std::string_view> names;
      for (const std::size_t axis : axes_of(shape)) names.push_back(axes[axis]);
      return names;
    };
    std::string inputs, outputs;
    for (const InputSpec& spec : signature.inputs) {
      const std::vector<std::string_view> names = axes_text(spec.shape);
      inputs += fmt::format("{}{}[{}]{}", inputs.empty() ? "" : ", ", spec.name, fmt::join(names, ", "), spec.optional ? " (optional)" : "");
      entry["inputs"].push_back({{"name", spec.name}, {"optional", spec.optional}, {"axes", names}});
    }
    for (const OutputSpec& spec : signature.outputs) {
      const std::vector<std::string_view> names = axes_text(spec.shape);
      outputs += fmt::format("{}{}[{}]", outputs.empty() ? "" : ", ", spec.name, fmt::join(names, ", "));
      nlohmann::json bound = {{"name", spec.name}, {"axes", names}};
      for (const Kernel* kernel : Registry::global().kernels(signature.name))
        if (kernel->supports(Format::f32) && kernel->offers(spec.name)) {
          const Judge judge(*reference, *kernel, Format::f32);
          const BoundUsed used = judge.bound_used(signature.output(spec.name));
          bound["theorem"] = used.theorem;
          bound["file"] = used.file;
          break;
        }
      entry["outputs"].push_back(bound);
    }
    text += fmt::format("  inputs   {}\n  outputs  {}\n", inputs, outputs);
    for (const AttributeSpec& spec : signature.attributes) {
      std::string range = spec.choices.empty() ? fmt::format("{:g} .. {:g}", spec.minimum, spec.maximum) : fmt::format("{}", fmt::join(spec.choices, ", "));
      text += fmt::format("  attribute {} = {} ({})\n", spec.name,
                          spec.choices.empty() ? fmt::format("{:g}", spec.default_value) : spec.choices[static_cast<std::size_t>(spec.default_value)], range);
      entry["attributes"].push_back({{"name", spec.name}, {"default", spec.default_value}, {"minimum", spec.minimum}, {"maximum", spec.maximum}, {"choices", spec.choices}});
    }
    for (const Kernel* kernel : Registry::global().kernels(signature.name)) {
      std::string formats;
      nlohmann::json dtypes = nlohmann::json::array();
      for (const Format format : floating_formats)
        if (kernel->supports(format)) {
          formats += (formats.empty() ? "" : " ") + std::string(name(format));
          dtypes.push_back(std::string(name(format)));
        }
      text += fmt::format("  kernel   {:<36} {:<20} {}\n", kernel->name + (kernel->aliases.empty() ? "" : fmt::format(" = {}", fmt::join(kernel->aliases, ", "))), formats, kernel->summary);
      entry["kernels"].push_back({{"name", kernel->name}, {"aliases", kernel->aliases}, {"dtypes", dtypes}, {"outputs", kernel->outputs}, {"summary", kernel->summary}});
    }
    entry["strata"] = strata_of(signature);
    text += fmt::format("  strata   {}\n\n", fmt::join(strata_of(signature), ", "));
    operators.push_back(entry);
  }
  document["operators"] = operators;
  if (json_path.empty()) std::cout << text;
  else if (json_path == "-") std::cout << pretty(document);
  else write_file(json_path, pretty(document));
  return Exit::pass;
}

int run(int argc, char** argv) {
  CLI::App app("Measure, prove and gate the numerical error of softmax-family kernels.", "sumzero");
  app.require_subcommand(1);
  app.footer("Exit codes: 0 pass, 1 violation, 2 usage or unreadable input, 3 kernel crashed or timed out, 4 inconclusive, 77 skipped.");

  FuzzCommand fuzz, exhaust;
  CLI::App* fuzz_app = app.add_subcommand("fuzz", "Search for violations of bound and invariants");
  fuzz.add_fuzz(*fuzz_app);
  CLI::App* exhaust_app = app.add_subcommand("exhaust", "Judge every row of a few logits that the dtype can hold");
  exhaust.add_exhaust(*exhaust_app);
  GenerateCommand generate;
  CLI::App* generate_app = app.add_subcommand("generate", "Write a batch of cases for a kernel that runs elsewhere");
  generate.add(*generate_app);
  CheckCommand check;
  CLI::App* check_app = app.add_subcommand("check", "Judge the outputs that come back for a batch");
  check.add(*check_app);
  GateCommand gate_command;
  CLI::App* gate_app = app.add_subcommand("gate", "Judge reports against bounds, invariants and a baseline");
  gate_command.add(*gate_app);
  ProbeCommand probing;
  CLI::App* probe_app = app.add_subcommand("probe", "Measure what a black box does inside, and draft its contract");
  probing.add(*probe_app);
  MergeCommand merge;
  CLI::App* merge_app = app.add_subcommand("merge", "Join the reports of shares of a campaign");
  merge.add(*merge_app);
  SelftestCommand selftest_command;
  CLI::App* selftest_app = app.add_subcommand("selftest", "Break kernels that are right in known ways: does the tool notice?");
  selftest_command.add(*selftest_app);
  ReportCommand report;
  CLI::App* report_app = app.add_subcommand("report", "Reports as an HTML page with charts, Markdown, JSON, JUnit XML or SARIF");
  report.add(*report_app);

  WitnessCommand witness;
  CLI::App* replay_app = app.add_subcommand("replay", "Run one witness again");
  witness.add(*replay_app);
  CLI::App* minimise_app = app.add_subcommand("minimise", "Make a failing witness as small as possible");
  witness.add(*minimise_app);
  minimise_app->add_option("--property", witness.property, "Keep this property failing (default: the first)");
  minimise_app->add_option("--output", witness.output, "Keep this output failing");
  minimise_app->add_option("--out", witness.out, "Write the witness into this folder");
  CLI::App* explain_app = app.add_subcommand("explain", "Exact value, computed value, and where the digits went");
  witness.add(*explain_app);

  std::string compare_op, kernel_a, kernel_b, compare_dtype = "f32", compare_time;
  std::uint64_t compare_seed = 1, compare_cases = 2000;
  CLI::App* compare_app = app.add_subcommand("compare", "Two kernels and the exact value, on the same cases");
  compare_app->add_option("operator", compare_op, "Operator")->required();
  compare_app->add_option("--kernel", kernel_a, "First kernel")->required();
  compare_app->add_option("--with", kernel_b, "Second kernel")->required();
  compare_app->add_option("--dtype", compare_dtype, std::string(floating_format_names))->capture_default_str();
  compare_app->add_option("--cases", compare_cases, "Number of cases")->check(CLI::PositiveNumber)->capture_default_str();
  compare_app->add_option("--seed", compare_seed, "Seed")->capture_default_str();
  Subjects compare_subjects;
  compare_subjects.add(*compare_app);

  BenchOptions bench;
  CLI::App* bench_app = app.add_subcommand("bench", "Speed as ratios, measured in one run");
  bench_app->add_flag("--quick", bench.quick, "Fewer repetitions");
  bench_app->add_option("--json", bench.json, "Write the figures as JSON");

  // The process in which a shared library is loaded; started by the tool alone.
  std::string plugin;
  CLI::App* worker_app = app.add_subcommand("worker", "")->group("");
  worker_app->add_option("library", plugin)->required();

  std::string list_path;
  CLI::App* list_app = app.add_subcommand("list", "Operators, kernels, strata");
  CLI::Option* list_option = list_app->add_option("--json", list_path, "Write the registry as JSON, to a file or to standard output")->expected(0, 1);

  std::vector<std::string> commands;
  for (const CLI::App* command : app.get_subcommands([&](const CLI::App* any) { return any != worker_app; })) commands.push_back(command->get_name());
  if (argc > 1 && argv[1][0] != '-' && argv[1] != worker_app->get_name() && std::find(commands.begin(), commands.end(), argv[1]) == commands.end())
    throw InvalidInput(fmt::format("unknown command '{}'; known: {}", argv[1], fmt::join(commands, ", ")));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    std::cerr << "sumzero: " << error.what() << "; see `sumzero --help`\n";
    return static_cast<int>(Exit::usage);
  }
  if (*worker_app) return serve_plugin(plugin);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) std::signal(signal, on_crash);
  std::signal(SIGINT, on_interrupt);
  std::signal(SIGTERM, on_interrupt);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that grows too large is an error of write, with a sentence

  if (*fuzz_app) return static_cast<int>(fuzz.run());
  if (*exhaust_app) return static_cast<int>(exhaust.run());
  if (*generate_app) return static_cast<int>(generate.run());
  if (*check_app) return static_cast<int>(check.run());
  if (*gate_app) return static_cast<int>(gate_command.run());
  if (*probe_app) return static_cast<int>(probing.run());
  if (*selftest_app) return static_cast<int>(selftest_command.run());
  if (*merge_app) return static_cast<int>(merge.run());
  if (*report_app) return static_cast<int>(report.run());
  if (*replay_app) return static_cast<int>(witness.replay());
  if (*minimise_app) return static_cast<int>(witness.minimise_case());
  if (*explain_app) {
    const Case input = witness.read();
    std::cout << explain(witness.examiner(input), input);
    return static_cast<int>(Exit::pass);
  }
  if (*compare_app) {
    compare_subjects.open({kernel_a, kernel_b});
    const std::vector<Format> formats = parse_formats(compare_dtype, compare_op, kernel_a);
    if (formats.size() != 1) throw InvalidInput(fmt::format("compare takes one --dtype: {}", floating_format_names));
    std::cout << compare(compare_subjects.judged(compare_op, kernel_a, formats[0]), Registry::global().kernel_named(compare_op, kernel_b, formats[0]),
                         formats[0], compare_seed, compare_cases);
    return static_cast<int>(Exit::pass);
  }
  if (*bench_app) return static_cast<int>(run_bench(bench));
  return static_cast<int>(list(list_option->count() == 0 ? "" : list_path.empty() ? "-" : list_path));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const InvalidInput& error) {
    std::cerr << "sumzero: " << error.what() << '\n';
    return static_cast<int>(Exit::usage);
  } catch (const std::exception& error) {
    std::cerr << "sumzero: kernel or tool failed: " << error.what() << '\n';
    return static_cast<int>(Exit::crash);
  }
}

}  // namespace sumzero
