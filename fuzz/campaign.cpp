#include "fuzz/campaign.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <thread>
#include <tuple>

#include "fuzz/examine.hpp"
#include "fuzz/exhaustive.hpp"
#include "fuzz/merge.hpp"
#include "fuzz/minimise.hpp"
#include "fuzz/random.hpp"
#include "fuzz/recipe.hpp"
#include "fuzz/recipe_generator.hpp"
#include "oracle/environment.hpp"
#include "oracle/file.hpp"
#include "oracle/json.hpp"
#include "oracle/report.hpp"
#include "oracle/survey.hpp"
#include "oracle/witness.hpp"

namespace sumzero {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t batch_size = 64, exhaustive_batch_size = 32;
/// Properties that call the kernel again run on about one case in this many; the index decides, not the clock.
constexpr std::uint64_t rerun_every = 3;
/// One case in this many enters the profile; of an exhaustive run one chunk in the second number.
constexpr std::uint64_t survey_every = 8, survey_chunks_every = 256;
constexpr auto save_every = std::chrono::seconds(5);
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
  std::map<Complaint, Place> complaints;               // the worst row of each
  std::map<std::string, std::uint64_t> violations;     // by property: 1, or the number of rows of an exhaustive run
  Verdict killed = Verdict::pass;                        // crashed or timed_out
  std::string last_words;
  Profile profile;
};

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

constexpr const char* state_schema = "sumzero-state/1";

class Campaign {
 public:
  explicit Campaign(const CampaignOptions& options)
      : options_(options),
        limit_(options.seconds.value_or(options.cases || options.exhaust != 0 ? 1e18 : 10.0)),
        reference_(Registry::global().operator_named(options.op)),
        kernel_(options.subject ? *options.subject : Registry::global().kernel_named(options.op, options.kernel, options.format)),
        examiner_(reference_, kernel_, options.format) {
    const Signature& signature = reference_.signature();
    report_.op = options.op;
    report_.kernel = kernel_.name;
    report_.format = name(options.format);
    report_.environment = environment();
    if (options.exhaust != 0) {
      exhaustive_.emplace(signature, options.format, options.exhaust);
      tally_.length = static_cast<std::uint64_t>(options.exhaust), tally_.chunks = exhaustive_->chunks();
      // Those of its own share.
      if (!options_.cases) options_.cases = (tally_.chunks + options.shards - 1 - options.shard) / options.shards;
      report_.classes_required = {every_row(tally_.length)};
      report_.command = "exhaust";
    } else {
      report_.seed = options.seed;
      report_.classes_required = required_classes(signature);
    }
    tally_.op = report_.op, tally_.kernel = report_.kernel, tally_.format = report_.format, tally_.seed = report_.seed;
    tally_.shares.emplace_back();
    share().shard = options.shard, share().shards = options.shards;
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
    std::optional<FolderLock> lock;
    if (options_.out) lock.emplace(*options_.out);
    if (options_.resume && options_.out) load_state();
    const double earlier = share().seconds;
    const std::uint64_t begin = share().drawn;
    Clock::time_point saved = start_;
    std::vector<CaseResult> batch;
    while (!stopped() && !given_up() && elapsed() < limit_ && (!options_.cases || share().drawn < *options_.cases)) {
      const std::uint64_t done = share().drawn;
      const std::uint64_t full = exhaustive_ ? exhaustive_batch_size : batch_size;
      const std::uint64_t count = options_.cases ? std::min<std::uint64_t>(full, *options_.cases - done) : full;
      batch.assign(count, {});
      for (std::uint64_t i = 0; i < count; ++i) batch[i].index = options_.shard + (done + i) * options_.shards;
      work(batch);
      for (const CaseResult& result : batch) reduce(result);
      share().drawn += count;
      const double now = elapsed();
      share().seconds = earlier + now;
      if (options_.out && Clock::now() - saved >= save_every) save_state(), saved = Clock::now();
      if (options_.progress) {
        fill_live();
        std::optional<double> left;
        if (options_.seconds) left = std::max(0.0, *options_.seconds - now);
        else if (options_.cases) left = now / static_cast<double>(share().drawn - begin) * static_cast<double>(*options_.cases - share().drawn);
        options_.progress(report_, now, left);
      }
    }
    share().seconds = earlier + elapsed();
    if (options_.out) save_state();
    report_.count(tally_);
    finish();
    report_.tally = tally_;
    report_.verdict = verdict_word(report_);
    if (options_.out) write_report(*options_.out / "report.json", report_);
    return report_;
  }

 private:
  Share& share() { return tally_.shares.front(); }
  bool stopped() const { return options_.stop && options_.stop->load(); }
  /// Enough cases killed their worker; or some did, which costs a time limit each, and the campaign's own time is over.
  bool given_up() const { return killed_ >= most_killed || (killed_ > 0 && elapsed() >= limit_); }
  double elapsed() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  Recipe recipe(std::uint64_t index) const { return generate_recipe(reference_.signature(), options_.seed, index); }
  Case case_of(std::uint64_t index) const {
    return exhaustive_ ? exhaustive_->chunk(index) : expand(recipe(index), reference_.signature(), options_.format);
  }
  /// A case small enough to keep that holds the row in question.
  Case case_with(std::uint64_t index, std::int64_t row) const { return exhaustive_ ? exhaustive_->row(index, row) : case_of(index); }

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
    const Case input = case_of(result.index);
    const Examination examination = examiner_.examine(input, !exhaustive_ && campaign_reruns(result.index));
    result.rows = problem_count(reference_.signature(), input);
    result.judged = examination.judged;
    result.refused = examination.run.verdict == Verdict::refused;
    if (result.refused) result.refusal = examination.run.detail;
    result.judgement = examination.judgement;
    if (result.judged && !exhaustive_) result.classes = classes_of(recipe(result.index), reference_.signature(), input);
    if (result.judged && Random(~result.index).bits() % (exhaustive_ ? survey_chunks_every : survey_every) == 0)
      survey(examiner_.judge(), input, examination.run.outputs, result.profile);
    std::set<std::pair<std::string, std::int64_t>> rows;
    for (const Examination::Item& item : examination.items) {
      const std::int64_t row = item.breach ? item.breach->row : item.suspicion.row;
      take(result.complaints[item.complaint], {result.index, row, 0, item.excess});
      if (rows.emplace(item.complaint.property, exhaustive_ ? row : 0).second) ++result.violations[item.complaint.property];
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
    Share& counts = share();
    ++counts.cases;
    counts.rows += static_cast<std::uint64_t>(result.rows);
    counts.elements += result.judgement.elements;
    counts.undecided += static_cast<std::uint64_t>(result.judgement.undecided_rows);
    counts.escalated += static_cast<std::uint64_t>(result.judgement.escalated_rows);
    if (result.refused) {
      ++counts.refused;
      tally_.words.emplace(name(Verdict::refused), Words{result.index, result.refusal});
    }
    if (result.judged && result.judgement.vacuous && result.complaints.empty()) ++counts.mistrusted;
    counts.profile.join(result.profile);
    for (const std::string& reached : result.classes) ++counts.classes_reached[reached];
    const auto& outputs = reference_.signature().outputs;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const OutputRecord& record = result.judgement.outputs[i];
      if (record.elements == 0) continue;
      const std::string& output = outputs[i].name;
      counts.judged[output] += record.elements;
      counts.signed_ulps[output] += record.signed_ulp_sum;
      take(tally_.ulp[output], {result.index, record.ulp_row, record.ulp_index, record.ulp});
      take(tally_.ratio[output], {result.index, record.ratio_row, record.ratio_index, record.ratio});
    }
    const auto take_index = [&](const IndexedMaximum& maximum, std::map<std::string, Place>& places) {
      if (maximum.value >= 0) take(places[outputs[static_cast<std::size_t>(maximum.output)].name], {result.index, maximum.row, maximum.sum, maximum.value});
    };
    take_index(result.judgement.gradient_sum_index, tally_.gradient_sum);
    take_index(result.judgement.sum_index, tally_.sum);
    if (result.killed != Verdict::pass) tally_.words.emplace(name(result.killed), Words{result.index, result.last_words});
    for (const auto& [property, count] : result.violations) counts.violation_counts[property] += count;
    for (const auto& [complaint, place] : result.complaints) take(tally_.complaints[complaint], place);
  }

  void fill_live() {
    report_.count(tally_);
    for (const auto& [output, place] : tally_.ulp) report_.worst[output].ulp = place.value;
    for (const auto& [output, place] : tally_.ratio) report_.worst[output].bound_ratio = place.value;
    for (const auto& [output, place] : tally_.gradient_sum) report_.gradient_sum_index.max = std::max(report_.gradient_sum_index.max.value_or(0), place.value);
  }

  std::string keep_witness(const Case& input) const {
    return options_.out ? write_witness(*options_.out / "witness", input) : content_address(input);
  }

  /// Measures the records with the Enclosure and minimises one case per kind of violation.
  void finish() {
    const Signature& signature = reference_.signature();
    for (auto& [output, worst] : report_.worst) {
      const int index = signature.output(output);
      if (const auto found = tally_.ulp.find(output); found != tally_.ulp.end() && found->second.value >= 0) {
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
        worst.witness = keep_witness(case_with(found->second.index, found->second.row));
      }
      if (const auto found = tally_.ratio.find(output); found != tally_.ratio.end() && found->second.value >= 0) {
        const Case input = case_of(found->second.index);
        const GuardedRun run = run_guarded(signature, kernel_, input);
        if (run.verdict != Verdict::pass) continue;
        worst.bound_ratio = examiner_.judge().measure(input, run.outputs, index, found->second.row, found->second.entry).bound_ratio;
        worst.bound_witness = keep_witness(case_with(found->second.index, found->second.row));
      }
    }
    record_index(tally_.gradient_sum, report_.gradient_sum_index, false);
    record_index(tally_.sum, report_.sum_index, true);
    for (const auto& [complaint, place] : tally_.complaints) add_violation(complaint, place);
    order_violations(report_);
  }

  void record_index(const std::map<std::string, Place>& places, IndexRecord& record, bool probability) {
    record = {};
    const auto largest = largest_of(places);
    if (largest == places.end()) return;
    const auto& [output_name, place] = *largest;
    const int output = reference_.signature().output(output_name);
    const Case input = case_of(place.index);
    const GuardedRun run = run_guarded(reference_.signature(), kernel_, input);
    if (run.verdict != Verdict::pass) return;
    const SumMeasurement sum = examiner_.judge().measure_sum(input, run.outputs, output, place.row, place.entry);
    record.max = probability ? sum.sum_index : sum.gradient_sum_index;
    record.output = output_name;
    record.witness = keep_witness(case_with(place.index, place.row));
  }

  /// Shrinks the recipe, minimises the data, measures again.
  void add_violation(const Complaint& complaint, const Place& place) {
    const Signature& signature = reference_.signature();
    const auto last_words = tally_.words.find(complaint.property);
    const bool killed = last_words != tally_.words.end() && kills(*verdict_named(complaint.property));
    const Clock::time_point begun = Clock::now();
    const auto enough = [&] { return stopped() || (killed && Clock::now() - begun > longest_shrinking); };
    std::string stratum;
    Case input;
    if (exhaustive_) {
      input = exhaustive_->row(place.index, place.row);
    } else {
      const Recipe small = shrink_recipe(
          signature, options_.seed, place.index,
          [&](const Recipe& candidate) { return !enough() && examiner_.shows(expand(candidate, signature, options_.format), complaint); },
          recipe_budget);
      input = expand(small, signature, options_.format);
      stratum = small.stratum;
    }
    if (!examiner_.shows(input, complaint)) input = case_of(place.index);
    input = minimise(signature, input, [&](const Case& candidate) { return !enough() && examiner_.shows(candidate, complaint); }, minimise_budget);
    const Examination examination = examiner_.examine(input, Examiner::needs_reruns(complaint));
    for (const Examination::Item& item : examination.items) {
      if (item.complaint != complaint) continue;
      std::optional<Violation> violation = examiner_.confirm(input, examination, item);
      if (!violation) continue;
      violation->stratum = stratum;
      violation->case_index = place.index;
      violation->witness = keep_witness(input);
      report_.violations.push_back(std::move(*violation));
      return;
    }
    if (!killed) return;
    // It happened once, and that is enough.
    Violation violation;
    violation.property = complaint.property;
    violation.verdict = *verdict_named(complaint.property);
    violation.input = case_of(place.index);
    violation.message = last_words->second.text + " (once; it did not happen again on the same case)";
    violation.case_index = place.index;
    violation.witness = keep_witness(violation.input);
    report_.violations.push_back(std::move(violation));
  }

  std::filesystem::path state_path() const { return *options_.out / "state.json"; }

  /// Goes on where the folder's campaign ended, by itself or not.
  void load_state() {
    const std::string path = state_path().string();
    if (!std::filesystem::exists(state_path())) return;
    const nlohmann::json text = parse_json(read_file(state_path()), path);
    const JsonValue value(text, path);
    value.require_schema(state_schema);
    Tally earlier = tally_from_json(value.at("campaign"));
    const Share& mine = share();
    if (earlier.op != tally_.op || earlier.kernel != tally_.kernel || earlier.format != tally_.format)
      throw InvalidInput(path + ": belongs to another operator, kernel or dtype; choose another --out");
    if (earlier.length != tally_.length) throw InvalidInput(path + ": belongs to rows of another length or to a sampled campaign; choose another --out");
    if (earlier.seed != tally_.seed || earlier.shares.size() != 1 || earlier.shares[0].shard != mine.shard || earlier.shares[0].shards != mine.shards)
      throw InvalidInput(path + ": was written with another seed or shard; repeat them or choose another --out");
    tally_ = std::move(earlier);
  }

  void save_state() const { write_file(state_path(), pretty(nlohmann::json{{"schema", state_schema}, {"campaign", to_json(tally_)}})); }

  CampaignOptions options_;
  const double limit_;
  const OperatorReference& reference_;
  const Kernel& kernel_;
  std::optional<Exhaustive> exhaustive_;
  Examiner examiner_;
  Report report_;
  Tally tally_;
  Clock::time_point start_;
  mutable std::atomic<std::uint64_t> killed_{0};
};

}  // namespace

Report run_campaign(const CampaignOptions& options) { return Campaign(options).run(); }

Case campaign_case(const Signature& signature, Format format, std::uint64_t seed, std::uint64_t index) {
  return expand(generate_recipe(signature, seed, index), signature, format);
}

// A hash: strata take turns with a period of their own, and any period here would leave some of them out.
bool campaign_reruns(std::uint64_t index) { return Random(index).bits() % rerun_every == 0; }

}  // namespace sumzero
