#include "fuzz/selftest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include "fuzz/campaign.hpp"
#include "fuzz/examine.hpp"
#include "fuzz/mutation.hpp"
#include "oracle/json.hpp"
#include "reference/evaluate.hpp"

namespace sumzero {
namespace {

struct Task {
  const Mutation* mutation;
  const Kernel* right;
};

/// Bytes that can be allocated without swapping; none where the system does not say.
std::uint64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  for (std::uint64_t kibibytes; file >> key; file.ignore(256, '\n'))
    if (key == "MemAvailable:" && file >> kibibytes) return kibibytes << 10;
  return 0;
}

/// The property of the first confirmed violation and the number of cases until then; an empty one after all cases.
std::pair<std::string, std::uint64_t> first_violation(const Kernel& kernel, const Task& task, Format format, const SelftestOptions& options, std::uint64_t cases) {
  const OperatorReference& reference = Registry::global().operator_named(kernel.op);
  const Examiner examiner(reference, kernel, format);
  const auto look = [&](const Case& input, bool reruns) -> std::string {
    const Examination examination = examiner.examine(input, reruns);
    for (const Examination::Item& item : examination.items)
      if (examiner.confirm(input, examination, item)) return item.complaint.property;
    return "";
  };
  if (task.mutation->only_case) return {look(task.mutation->only_case(reference.signature(), format), false), 1};
  for (std::uint64_t index = 0; index < cases && !(options.stop && *options.stop); ++index)
    if (const std::string property = look(campaign_case(reference.signature(), format, options.seed, index), campaign_reruns(index)); !property.empty())
      return {property, index + 1};
  return {"", cases};
}

/// Calls and kills of one mutation over operators and formats.
struct TableRow {
  std::size_t run = 0, killed = 0;
  std::vector<std::uint64_t> calls;
  std::map<std::string, std::size_t> properties;
};

}  // namespace

std::size_t SelftestResult::run() const {
  return static_cast<std::size_t>(std::count_if(mutants.begin(), mutants.end(), [](const MutantOutcome& mutant) { return mutant.skipped.empty(); }));
}
std::size_t SelftestResult::killed() const {
  return static_cast<std::size_t>(std::count_if(mutants.begin(), mutants.end(), [](const MutantOutcome& mutant) { return !mutant.property.empty(); }));
}
std::size_t SelftestResult::false_alarms() const {
  return static_cast<std::size_t>(std::count_if(mutants.begin(), mutants.end(), [](const MutantOutcome& mutant) { return !mutant.false_alarm.empty(); }));
}
double SelftestResult::kill_rate() const { return run() == 0 ? 0 : static_cast<double>(killed()) / static_cast<double>(run()); }
Exit SelftestResult::exit_code() const {
  if (!complete || run() == 0) return Exit::inconclusive;
  return kill_rate() < required_rate || false_alarms() > 0 ? Exit::violation : Exit::pass;
}

SelftestResult selftest(const SelftestOptions& options) {
  SelftestResult result;
  std::vector<Task> tasks;
  if (!options.op.empty()) Registry::global().kernel_named(options.op, options.kernel, options.formats.front());  // throws with the known names
  for (const OperatorReference* reference : Registry::global().operators()) {
    const Signature& signature = reference->signature();
    if (!options.op.empty() && signature.name != options.op) continue;
    for (const Kernel* kernel : Registry::global().kernels(signature.name))
      if (kernel->name == options.kernel || std::find(kernel->aliases.begin(), kernel->aliases.end(), options.kernel) != kernel->aliases.end())
        for (const Format format : options.formats)
          for (const Mutation& mutation : mutations()) {
            // The narrowest formats are there for what only they can show.
            if (!kernel->supports(format) || (format == Format::e4m3 && !mutation.only_case) || !mutation.applies(signature, *kernel, format)) continue;
            tasks.push_back({&mutation, kernel});
            MutantOutcome mutant;
            mutant.op = signature.name, mutant.mutation = mutation.name, mutant.defect = mutation.defect, mutant.format = format;
            result.mutants.push_back(mutant);
          }
  }
  if (tasks.empty()) throw InvalidInput(fmt::format("no operator has a kernel '{}'; see `sumzero list`", options.kernel));
  std::atomic<std::size_t> cursor{0}, done{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    for (std::size_t i; (i = cursor.fetch_add(1)) < tasks.size();) try {
        if (options.stop && *options.stop) return;
        MutantOutcome& mutant = result.mutants[i];
        const Task& task = tasks[i];
        if (task.mutation->memory > 0 && available_memory() < task.mutation->memory) {
          mutant.skipped = fmt::format("needs {} GiB of free memory", task.mutation->memory >> 30);
        } else {
          const auto planted = task.mutation->make(*task.right, true), twin = task.mutation->make(*task.right, false);
          std::tie(mutant.property, mutant.calls) = first_violation(*planted, task, mutant.format, options, options.cases);
          mutant.false_alarm = first_violation(*twin, task, mutant.format, options, options.twin_cases).first;
        }
        const std::lock_guard lock(mutex);
        if (options.progress) options.progress(++done, tasks.size());
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        cursor = tasks.size();
      }
  };
  std::vector<std::thread> threads;
  for (int t = 1; t < options.threads; ++t) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
  result.complete = !(options.stop && *options.stop);
  return result;
}

std::string selftest_text(const SelftestResult& result) {
  std::vector<std::string> order;
  std::map<std::string, TableRow> rows;
  std::string survivors;
  for (const MutantOutcome& mutant : result.mutants) {
    if (std::find(order.begin(), order.end(), mutant.mutation) == order.end()) order.push_back(mutant.mutation);
    TableRow& row = rows[mutant.mutation];
    const std::string where = fmt::format("{}/{}", mutant.op, name(mutant.format));
    if (!mutant.skipped.empty()) {
      survivors += fmt::format("skipped      {:<34} {:<28} {}\n", mutant.mutation, where, mutant.skipped);
      continue;
    }
    ++row.run;
    if (!mutant.property.empty()) {
      ++row.killed, ++row.properties[mutant.property];
      row.calls.push_back(mutant.calls);
    } else {
      survivors += fmt::format("survived     {:<34} {:<28} {} cases; {}\n", mutant.mutation, where, mutant.calls, mutant.defect);
    }
    if (!mutant.false_alarm.empty())
      survivors += fmt::format("false alarm  {:<34} {:<28} the twin without the defect: {}\n", mutant.mutation, where, mutant.false_alarm);
  }
  std::string text = fmt::format("{:<34} {:>9} {:>13} {:>11}  {}\n", "mutation", "killed", "median calls", "most calls", "noticed by");
  for (const std::string& mutation : order) {
    TableRow& row = rows[mutation];
    if (row.run == 0) continue;
    std::sort(row.calls.begin(), row.calls.end());
    std::vector<std::pair<std::string, std::size_t>> properties(row.properties.begin(), row.properties.end());
    std::stable_sort(properties.begin(), properties.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
    std::string noticed;
    for (const auto& [property, count] : properties) noticed += fmt::format("{}{} {}", noticed.empty() ? "" : ", ", property, count);
    text += fmt::format("{:<34} {:>9} {:>13} {:>11}  {}\n", mutation, fmt::format("{}/{}", row.killed, row.run),
                        row.calls.empty() ? "-" : std::to_string(row.calls[row.calls.size() / 2]), row.calls.empty() ? "-" : std::to_string(row.calls.back()), noticed);
  }
  text += survivors;
  text += fmt::format("kill rate {:.1f} % ({} of {} mutants), {} false alarms: {}\n", 100 * result.kill_rate(), result.killed(), result.run(), result.false_alarms(),
                      result.exit_code() == Exit::pass        ? "pass"
                      : result.exit_code() == Exit::violation ? fmt::format("FAIL (at least {:.0f} % and no false alarm)", 100 * SelftestResult::required_rate)
                                                              : "inconclusive");
  return text;
}

nlohmann::json to_json(const SelftestResult& result) {
  nlohmann::json mutants = nlohmann::json::array();
  for (const MutantOutcome& mutant : result.mutants)
    mutants.push_back({{"operator", mutant.op}, {"dtype", name(mutant.format)}, {"mutation", mutant.mutation}, {"defect", mutant.defect}, {"killed", !mutant.property.empty()},
                       {"property", mutant.property}, {"calls", mutant.calls}, {"false_alarm", mutant.false_alarm}, {"skipped", mutant.skipped}});
  return {{"schema", "sumzero-selftest/1"}, {"kill_rate", result.kill_rate()}, {"mutants_run", result.run()}, {"killed", result.killed()},
          {"false_alarms", result.false_alarms()}, {"complete", result.complete}, {"mutants", mutants}};
}

}  // namespace sumzero
