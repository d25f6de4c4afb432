#include "fuzz/campaign.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <thread>
#include <tuple>

#include "fuzz/examine.hpp"
#include "fuzz/minimise.hpp"
#include "fuzz/recipe.hpp"
#include "fuzz/recipe_generator.hpp"
#include "oracle/environment.hpp"
#include "oracle/file.hpp"
#include "oracle/json.hpp"
#include "oracle/report.hpp"
#include "oracle/witness.hpp"

namespace sumzero {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t batch_size = 64;
/// Properties that call the kernel again run on one case in this many; the index decides, not the clock.
constexpr std::uint64_t rerun_every = 3;
constexpr int recipe_budget = 150, minimise_budget = 600;
/// A campaign ends early after this many cases that killed their worker, and shrinks such a case for this long at most: each
/// try costs a restart or a whole time limit.
constexpr std::uint64_t most_killed = 20;
constexpr auto longest_shrinking = std::chrono::seconds(30);

/// Everything a worker learns from one case; small, so that memory does not grow with the campaign.
struct CaseResult {
  std::uint64_t index = 0;
  std::int64_t rows = 0;
  bool skipped = false, judged = false, refused = false;
  std::string refusal;
  CaseJudgement judgement;
  std::vector<std::string> classes;
  std::vector<std::pair<Complaint, double>> complaints;  // with the excess
  Verdict killed = Verdict::pass;                        // crashed or timed_out
  std::string last_words;
};

struct Place {
  std::uint64_t index = 0;
  std::int64_t row = 0, entry = 0;
  double value = -1;
};

/// Deterministic reduction of case results, in index order.
struct Best {
  std::map<std::string, Place> ulp, ratio;               // by output
  std::map<Complaint, std::vector<Place>> complaints;    // the first and the worst case of each
  std::map<std::string, std::string> last_words;         // of the first case that crashed, and that timed out
  Place gradient_sum, sum;
  int gradient_sum_output = -1, sum_output = -1;
  std::map<std::string, std::pair<double, std::uint64_t>> bias;
};

void take(Place& best, double value, std::uint64_t index, std::int64_t row, std::int64_t entry) {
  if (value > best.value) best = {index, row, entry, value};
}

std::map<std::string, std::string> printable(const Contract& contract) {
  static constexpr const char* kinds[] = {"unknown", "sequential", "pairwise", "lanes", "compensated"};
  std::map<std::string, std::string> text = {
      {"accumulator", std::string(name(contract.accumulator))},
      {"exp_error_u", fmt::format("{:g}", contract.exp_error)},
      {"log_error_u", fmt::format("{:g}", contract.log_error)},
      {"expm1_error_u", fmt::format("{:g}", contract.expm1_error)},
      {"summation", fmt::format("{}{}{}", kinds[static_cast<int>(contract.summation.kind)],
                                contract.summation.width > 1 ? fmt::format(" of {}", contract.summation.width) : "",
                                contract.summation.flush_every > 0 ? fmt::format(", flushed every {}", contract.summation.flush_every) : "")},
      {"flush_to_zero", contract.flush_to_zero ? "yes" : "no"},
      {"compensated_shift", contract.compensated_shift ? "yes" : "no"},
      {"reciprocal", contract.reciprocal ? "yes" : "no"},
      {"deterministic", contract.deterministic ? "yes" : "no"},
      {"monotone", contract.monotone ? "yes" : "no"},
      {"kind", contract.kind}};
  if (!contract.note.empty()) text["note"] = contract.note;
  return text;
}

class Campaign {
 public:
  explicit Campaign(const CampaignOptions& options)
      : options_(options),
        reference_(Registry::global().operator_named(options.op)),
        kernel_(options.subject ? *options.subject : Registry::global().kernel_named(options.op, options.kernel, options.format)),
        examiner_(reference_, kernel_, options.format) {
    const Signature& signature = reference_.signature();
    report_.op = options.op;
    report_.kernel = kernel_.name;
    report_.format = name(options.format);
    report_.seed = options.seed;
    report_.classes_required = required_classes(signature);
    report_.environment = environment();
    report_.contract = printable(examiner_.judge().contract());
    for (std::size_t i = 0; i < signature.outputs.size(); ++i)
      if (kernel_.offers(signature.outputs[i].name)) {
        report_.worst[signature.outputs[i].name];
        report_.bounds[signature.outputs[i].name] = examiner_.judge().bound_used(static_cast<int>(i));
      }
    for (const auto& property : properties())
      if (property->applies(signature, examiner_.judge().contract())) report_.violation_counts[property->name];
    for (const char* property : {"bound", "special values"}) report_.violation_counts[property];
    for (const OutputSpec& spec : signature.outputs) {
      if (spec.marks & zero_sum) report_.violation_counts["gradient sum"], report_.violation_counts["exact zero"];
      if (spec.marks & sums_to_one) report_.violation_counts["probability sum"];
    }
  }

  Report run() {
    start_ = Clock::now();
    std::uint64_t next = options_.shard;
    std::optional<Report> earlier;
    if (options_.resume && options_.out) earlier = load_state(next);
    const std::uint64_t stride = options_.shards;
    std::uint64_t done = earlier ? (next - options_.shard) / stride : 0;
    std::vector<CaseResult> batch;
    while (!stopped() && !given_up() && elapsed() < limit_ && (!options_.cases || done < *options_.cases)) {
      const std::uint64_t count = options_.cases ? std::min<std::uint64_t>(batch_size, *options_.cases - done) : batch_size;
      batch.assign(count, {});
      for (std::uint64_t i = 0; i < count; ++i) batch[i].index = next + i * stride;
      work(batch);
      for (const CaseResult& result : batch) reduce(result);
      next += count * stride;
      done += count;
      if (options_.progress) {
        const double now = elapsed();
        report_.seconds = now;
        fill_live();
        std::optional<double> left;
        if (options_.seconds) left = std::max(0.0, *options_.seconds - now);
        else if (options_.cases && done > 0) left = now / static_cast<double>(done) * static_cast<double>(*options_.cases - done);
        options_.progress(report_, now, left);
      }
    }
    report_.seconds = elapsed();
    finish();
    Report result = earlier ? merge_reports(*earlier, report_) : report_;
    result.verdict = verdict_word(result);
    if (options_.out) save(result, next);
    return result;
  }

 private:
  bool stopped() const { return options_.stop && options_.stop->load(); }
  /// Enough cases killed their worker; or some did, which costs a time limit each, and the campaign's own time is over.
  bool given_up() const { return killed_ >= most_killed || (killed_ > 0 && elapsed() >= limit_); }
  double elapsed() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  Recipe recipe(std::uint64_t index) const { return generate_recipe(reference_.signature(), options_.seed, index); }
  Case case_of(std::uint64_t index) const { return expand(recipe(index), reference_.signature(), options_.format); }

  void work(std::vector<CaseResult>& batch) const {
    std::atomic<std::size_t> cursor{0};
    std::exception_ptr failure;
    std::atomic_flag failed = ATOMIC_FLAG_INIT;
    const auto loop = [&] {
      for (std::size_t i; (i = cursor.fetch_add(1)) < batch.size();) try {
          examine(batch[i]);
        } catch (...) {
          if (!failed.test_and_set()) failure = std::current_exception();
          cursor = batch.size();
        }
    };
    std::vector<std::thread> threads;
    for (int t = 1; t < options_.threads; ++t) threads.emplace_back(loop);
    loop();
    for (std::thread& thread : threads) thread.join();
    if (failure) std::rethrow_exception(failure);
  }

  void examine(CaseResult& result) const {
    result.skipped = given_up();
    if (result.skipped) return;
    const Recipe drawn = recipe(result.index);
    const Case input = expand(drawn, reference_.signature(), options_.format);
    const Examination examination = examiner_.examine(input, campaign_reruns(result.index));
    result.rows = problem_count(reference_.signature(), input);
    result.judged = examination.judged;
    result.refused = examination.run.verdict == Verdict::refused;
    if (result.refused) result.refusal = examination.run.detail;
    result.judgement = examination.judgement;
    if (result.judged) result.classes = classes_of(drawn, reference_.signature(), input);
    for (const Examination::Item& item : examination.items) {
      result.complaints.emplace_back(item.complaint, item.excess);
      if (!kills(item.verdict)) continue;
      result.killed = item.verdict;
      result.last_words = item.detail;
      ++killed_;
      keep_witness(input);
    }
    result.judgement.findings.clear();
  }

  void reduce(const CaseResult& result) {
    if (result.skipped) return;
    ++report_.cases;
    report_.rows += static_cast<std::uint64_t>(result.rows);
    report_.elements += result.judgement.elements;
    report_.undecided += static_cast<std::uint64_t>(result.judgement.undecided_rows);
    report_.escalated += static_cast<std::uint64_t>(result.judgement.escalated_rows);
    if (result.refused) {
      ++report_.refused;
      if (report_.refusal.empty()) report_.refusal = result.refusal;
    }
    if (result.judged && result.judgement.vacuous && result.complaints.empty()) ++report_.mistrusted;
    for (const std::string& reached : result.classes) ++report_.classes_reached[reached];
    const auto& outputs = reference_.signature().outputs;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const OutputRecord& record = result.judgement.outputs[i];
      if (record.elements == 0) continue;
      const std::string& output = outputs[i].name;
      report_.worst[output].elements += record.elements;
      take(best_.ulp[output], record.ulp, result.index, record.ulp_row, record.ulp_index);
      take(best_.ratio[output], record.ratio, result.index, record.ratio_row, record.ratio_index);
      best_.bias[output].first += record.signed_ulp_sum;
      best_.bias[output].second += record.elements;
    }
    const auto take_index = [&](const IndexedMaximum& maximum, Place& place, int& output) {
      if (maximum.value > place.value) output = maximum.output;
      take(place, maximum.value, result.index, maximum.row, maximum.sum);
    };
    take_index(result.judgement.gradient_sum_index, best_.gradient_sum, best_.gradient_sum_output);
    take_index(result.judgement.sum_index, best_.sum, best_.sum_output);
    if (result.killed != Verdict::pass) best_.last_words.emplace(name(result.killed), result.last_words);
    std::set<std::string> counted;
    for (const auto& [complaint, excess] : result.complaints) {
      if (counted.insert(complaint.property).second) ++report_.violation_counts[complaint.property];
      std::vector<Place>& places = best_.complaints[complaint];
      if (places.empty()) places.assign(2, {result.index, 0, 0, excess});
      else if (excess > places[1].value) places[1] = {result.index, 0, 0, excess};
    }
  }

  void fill_live() {
    for (const auto& [output, place] : best_.ulp) report_.worst[output].ulp = place.value;
    for (const auto& [output, place] : best_.ratio) report_.worst[output].bound_ratio = place.value;
    if (best_.gradient_sum.value >= 0) report_.gradient_sum_index.max = best_.gradient_sum.value;
  }

  std::string keep_witness(const Case& input) const {
    return options_.out ? write_witness(*options_.out / "witness", input) : content_address(input);
  }

  /// Measures the records with the Enclosure and minimises one case per kind of violation.
  void finish() {
    const Signature& signature = reference_.signature();
    for (auto& [output, worst] : report_.worst) {
      const int index = signature.output(output);
      if (const auto found = best_.ulp.find(output); found != best_.ulp.end() && found->second.value >= 0) {
        const Case input = case_of(found->second.index);
        const GuardedRun run = run_guarded(signature, kernel_, input);
        if (run.verdict != Verdict::pass) continue;  // a kernel that does not repeat itself; its verdict is among the violations
        const Measurement entry = examiner_.judge().measure(input, run.outputs, index, found->second.row, found->second.entry);
        worst.ulp = entry.ulp;
        worst.grid = entry.grid;
        worst.computed = entry.computed;
        worst.exact = entry.exact;
        worst.row = found->second.row;
        worst.index = found->second.entry;
        worst.classes = normalised_extent(signature, input);
        worst.witness = keep_witness(input);
      }
      if (const auto found = best_.ratio.find(output); found != best_.ratio.end() && found->second.value >= 0) {
        const Case input = case_of(found->second.index);
        const GuardedRun run = run_guarded(signature, kernel_, input);
        if (run.verdict != Verdict::pass) continue;
        worst.bound_ratio = examiner_.judge().measure(input, run.outputs, index, found->second.row, found->second.entry).bound_ratio;
        worst.bound_witness = keep_witness(input);
      }
    }
    for (const auto& [output, sums] : best_.bias)
      if (sums.second > 0) report_.bias[output] = {sums.first / static_cast<double>(sums.second), sums.second};
    record_index(best_.gradient_sum, best_.gradient_sum_output, report_.gradient_sum_index, false);
    record_index(best_.sum, best_.sum_output, report_.sum_index, true);
    for (const auto& [complaint, places] : best_.complaints) add_violation(complaint, places[1].index);
    // The telling ones first, then the small ones.
    static const std::vector<std::string> order = {"gradient sum", "exact zero", "probability sum", "finite", "special values", "bound"};
    const auto rank = [](const Violation& v) {
      const auto place = std::find(order.begin(), order.end(), v.property) - order.begin();
      std::int64_t size = 0;
      for (const auto& [input, tensor] : v.input.inputs) size += tensor.elements();
      return std::tuple(place, v.kind.empty(), size);
    };
    std::stable_sort(report_.violations.begin(), report_.violations.end(),
                     [&](const Violation& a, const Violation& b) { return rank(a) < rank(b); });
  }

  void record_index(const Place& place, int output, IndexRecord& record, bool probability) {
    if (place.value < 0) return;
    const Case input = case_of(place.index);
    const GuardedRun run = run_guarded(reference_.signature(), kernel_, input);
    if (run.verdict != Verdict::pass) return;
    const SumMeasurement sum = examiner_.judge().measure_sum(input, run.outputs, output, place.row, place.entry);
    record.max = probability ? sum.sum_index : sum.gradient_sum_index;
    record.output = reference_.signature().outputs[static_cast<std::size_t>(output)].name;
    record.witness = keep_witness(input);
  }

  /// Shrinks the recipe, minimises the data, measures again.
  void add_violation(const Complaint& complaint, std::uint64_t index) {
    const Signature& signature = reference_.signature();
    const auto last_words = best_.last_words.find(complaint.property);
    const bool killed = last_words != best_.last_words.end();
    const Clock::time_point begun = Clock::now();
    const auto enough = [&] { return stopped() || (killed && Clock::now() - begun > longest_shrinking); };
    const Recipe small = shrink_recipe(
        signature, options_.seed, index,
        [&](const Recipe& candidate) { return !enough() && examiner_.shows(expand(candidate, signature, options_.format), complaint); },
        recipe_budget);
    Case input = expand(small, signature, options_.format);
    if (!examiner_.shows(input, complaint)) input = case_of(index);
    input = minimise(signature, input, [&](const Case& candidate) { return !enough() && examiner_.shows(candidate, complaint); }, minimise_budget);
    const Examination examination = examiner_.examine(input, Examiner::needs_reruns(complaint));
    for (const Examination::Item& item : examination.items) {
      if (item.complaint != complaint) continue;
      std::optional<Violation> violation = examiner_.confirm(input, examination, item);
      if (!violation) continue;
      violation->stratum = small.stratum;
      violation->case_index = index;
      violation->witness = keep_witness(input);
      report_.violations.push_back(std::move(*violation));
      return;
    }
    if (!killed) return;
    // It happened once, and that is enough.
    Violation violation;
    violation.property = complaint.property;
    violation.verdict = *verdict_named(complaint.property);
    violation.input = case_of(index);
    violation.message = last_words->second + " (once; it did not happen again on the same case)";
    violation.case_index = index;
    violation.witness = keep_witness(violation.input);
    report_.violations.push_back(std::move(violation));
  }

  std::filesystem::path state_path() const { return *options_.out / "state.json"; }

  std::optional<Report> load_state(std::uint64_t& next) const {
    if (!std::filesystem::exists(state_path())) return std::nullopt;
    const nlohmann::json text = parse_json(read_file(state_path()), state_path().string());
    const JsonValue state(text, state_path().string());
    const auto number = [&](const char* field) { return state.at(field).count(); };
    if (number("seed") != options_.seed || number("shard") != options_.shard || number("shards") != options_.shards)
      throw InvalidInput(state_path().string() + ": was written with another seed or shard; repeat them or choose another --out");
    Report earlier = read_report(*options_.out / "report.json");
    if (earlier.op != report_.op || earlier.kernel != report_.kernel || earlier.format != report_.format)
      throw InvalidInput((*options_.out / "report.json").string() + ": belongs to another operator, kernel or dtype; choose another --out");
    next = number("next");
    return earlier;
  }

  void save(const Report& report, std::uint64_t next) const {
    write_report(*options_.out / "report.json", report);
    nlohmann::json state = {{"seed", options_.seed}, {"shard", options_.shard}, {"shards", options_.shards}, {"next", next}};
    write_file(state_path(), pretty(state));
  }

  const CampaignOptions& options_;
  const OperatorReference& reference_;
  const Kernel& kernel_;
  Examiner examiner_;
  Report report_;
  Best best_;
  const double limit_ = options_.seconds.value_or(options_.cases ? 1e18 : 10.0);
  Clock::time_point start_;
  mutable std::atomic<std::uint64_t> killed_{0};
};

}  // namespace

Report run_campaign(const CampaignOptions& options) { return Campaign(options).run(); }

Case campaign_case(const Signature& signature, Format format, std::uint64_t seed, std::uint64_t index) {
  return expand(generate_recipe(signature, seed, index), signature, format);
}

bool campaign_reruns(std::uint64_t index) { return (index / 7) % rerun_every == 0; }

Report merge_reports(const Report& a, const Report& b) {
  Report merged = a;
  merged.cases += b.cases;
  merged.rows += b.rows;
  merged.elements += b.elements;
  merged.seconds += b.seconds;
  merged.undecided += b.undecided;
  merged.refused += b.refused;
  merged.mistrusted += b.mistrusted;
  merged.escalated += b.escalated;
  if (merged.refusal.empty()) merged.refusal = b.refusal;
  for (const auto& [property, count] : b.violation_counts) merged.violation_counts[property] += count;
  for (const auto& [reached, count] : b.classes_reached) merged.classes_reached[reached] += count;
  for (const auto& [output, worst] : b.worst) {
    Worst& mine = merged.worst[output];
    const std::uint64_t elements = mine.elements + worst.elements;
    const double ratio = std::max(mine.bound_ratio, worst.bound_ratio);
    const std::string ratio_witness = worst.bound_ratio > mine.bound_ratio ? worst.bound_witness : mine.bound_witness;
    if (worst.ulp > mine.ulp || mine.witness.empty()) mine = worst;
    mine.elements = elements;
    mine.bound_ratio = ratio;
    mine.bound_witness = ratio_witness;
  }
  for (const auto& [output, bias] : b.bias) {
    Bias& mine = merged.bias[output];
    const double total = static_cast<double>(mine.elements + bias.elements);
    mine.mean_ulp = (mine.mean_ulp * static_cast<double>(mine.elements) + bias.mean_ulp * static_cast<double>(bias.elements)) / total;
    mine.elements += bias.elements;
  }
  const auto larger = [](IndexRecord& mine, const IndexRecord& other) {
    if (other.max && (!mine.max || *other.max > *mine.max)) mine = other;
  };
  larger(merged.gradient_sum_index, b.gradient_sum_index);
  larger(merged.sum_index, b.sum_index);
  for (const Violation& violation : b.violations) {
    const bool known = std::any_of(merged.violations.begin(), merged.violations.end(), [&](const Violation& mine) {
      return mine.property == violation.property && mine.kind == violation.kind && mine.output == violation.output;
    });
    if (!known) merged.violations.push_back(violation);
  }
  merged.verdict = verdict_word(merged);
  return merged;
}

}  // namespace sumzero
