#include "fuzz/explain.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "fuzz/campaign.hpp"
#include "oracle/json.hpp"
#include "oracle/witness.hpp"

namespace sumzero {
namespace {

constexpr std::size_t longest_row = 16;

/// One sentence on the mechanism behind an error, read off the numbers.
std::string reading(const OutputSpec& spec, const Measurement& entry, Format format) {
  if (entry.bound_ratio <= 1) return "within the bound";
  const double u = unit_roundoff(format);
  if (entry.exact_zero) return "the exact value is zero: two roundings of equal quantities were subtracted";
  if (entry.computed == 0 && spec.gradient_of >= 0)
    return "a representable gradient came back as 0: the tail was added to 1, or p subtracted from 1, before it was needed";
  if (std::isnan(entry.computed) || std::isinf(entry.computed)) return "overflow, or an invalid operation, on the way to a finite result";
  const double multiple = std::fabs(entry.computed) / (2 * u);
  if (spec.gradient_of >= 0 && multiple == std::floor(multiple) && std::fabs(entry.exact_value) < 1e3 * u)
    return "the computed value is a multiple of 2u: it is 1 - p with p rounded to nearest";
  return fmt::format("{:.1f} of {} significant bits are right", std::max(0.0, -std::log2(std::fabs((entry.computed - entry.exact_value) / entry.exact_value))),
                     traits(format).precision);
}

}  // namespace

std::string explain(const Examiner& examiner, const Case& input) {
  const Signature& signature = examiner.signature();
  std::string text = fmt::format("{} on {}, kernel {}\n", input.op, name(input.storage), examiner.kernel().name);
  for (const auto& [attribute, value] : input.attributes) text += fmt::format("  {} = {:g}\n", attribute, value);
  for (const auto& [input_name, tensor] : input.inputs) {
    text += fmt::format("  {} =", input_name);
    const std::int64_t count = std::min<std::int64_t>(tensor.elements(), static_cast<std::int64_t>(longest_row));
    for (std::int64_t i = 0; i < count; ++i) text += fmt::format(" {:.9g}", tensor.get(i));
    text += count < tensor.elements() ? fmt::format(" ... ({} elements)\n", tensor.elements()) : "\n";
  }
  const GuardedRun run = run_guarded(signature, examiner.kernel(), input);
  if (run.verdict != Verdict::pass) return text + fmt::format("{}: {}\n", name(run.verdict), run.detail);
  for (std::size_t i = 0; i < signature.outputs.size(); ++i) {
    const Tensor& tensor = run.outputs[i];
    if (tensor.bytes.empty()) continue;
    const OutputSpec& spec = signature.outputs[i];
    std::vector<std::pair<std::int64_t, Measurement>> entries;
    std::map<std::int64_t, std::vector<Measurement>> measured;  // by problem
    for (std::int64_t e = 0; e < tensor.elements(); ++e) {
      const ProblemEntry place = problem_entry(spec.shape, input, e);
      const auto [found, added] = measured.try_emplace(place.problem);
      if (added) found->second = examiner.judge().measure_all(input, run.outputs, static_cast<int>(i), place.problem);
      entries.emplace_back(e, found->second[static_cast<std::size_t>(place.entry)]);
    }
    if (entries.size() > longest_row) {
      std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.second.bound_ratio > b.second.bound_ratio; });
      text += fmt::format("{}: the worst {} of {} entries\n", spec.name, longest_row, entries.size());
      entries.resize(longest_row);
    } else {
      text += spec.name + ":\n";
    }
    for (const auto& [e, entry] : entries) {
      const ProblemEntry place = problem_entry(spec.shape, input, e);
      text += fmt::format("  {} exact {}  computed {:.17g} ({})  {:.4g} ulp, {:.3g} of the bound: {}\n",
                          place_text("", spec.shape, input, place.problem, place.entry), entry.exact, entry.computed, hex_text(entry.computed),
                          entry.ulp, entry.bound_ratio, reading(spec, entry, tensor.format));
    }
    if (!(spec.marks & (zero_sum | sums_to_one))) continue;
    std::size_t shown = 0;
    for (std::int64_t problem = 0; problem < problem_count(signature, input); ++problem)
      for (std::int64_t which = 0; which < sums_of(spec.shape, input).count && shown < longest_row; ++which, ++shown) {
        const SumMeasurement sum = examiner.judge().measure_sum(input, run.outputs, static_cast<int>(i), problem, which);
        text += fmt::format("  {} sums to {:.9g}; bound {:.3g}", sum_text(spec.name, spec.shape, input, problem, which), sum.sum, sum.bound);
        if (sum.gradient_sum_index) text += fmt::format("; gradient-sum index {:.6g}", *sum.gradient_sum_index);
        if (sum.sum_index) text += fmt::format("; sum index {:.6g}", *sum.sum_index);
        text += '\n';
      }
    const std::int64_t all = problem_count(signature, input) * sums_of(spec.shape, input).count;
    if (all > static_cast<std::int64_t>(shown)) text += fmt::format("  ... and {} more sums\n", all - static_cast<std::int64_t>(shown));
  }
  return text;
}

std::string compare(const Kernel& first, const Kernel& second, Format format, std::uint64_t seed, std::uint64_t cases) {
  const std::string &op = first.op, &kernel_a = first.name, &kernel_b = second.name;
  const OperatorReference& reference = Registry::global().operator_named(op);
  const Examiner a(reference, first, format), b(reference, second, format);
  struct Tally {
    double ulp_a = 0, ulp_b = 0, ratio_a = 0, ratio_b = 0;
    std::uint64_t entries = 0, differ = 0, wins_a = 0, wins_b = 0;
    std::uint64_t worst_a = 0, worst_b = 0;
  };
  const auto& outputs = reference.signature().outputs;
  std::vector<Tally> tallies(outputs.size());
  std::uint64_t refused = 0;
  for (std::uint64_t index = 0; index < cases; ++index) {
    const Case input = campaign_case(reference.signature(), format, seed, index);
    const GuardedRun run_a = run_guarded(reference.signature(), a.kernel(), input);
    const GuardedRun run_b = run_guarded(reference.signature(), b.kernel(), input);
    for (const GuardedRun* run : {&run_a, &run_b})
      if (run->verdict == Verdict::crashed) throw Crashed(fmt::format("{} on case {}: {}", run == &run_a ? kernel_a : kernel_b, index, run->detail));
      else if (run->verdict == Verdict::timed_out) throw TimedOut(fmt::format("{} on case {}: {}", run == &run_a ? kernel_a : kernel_b, index, run->detail));
    if (run_a.verdict != Verdict::pass || run_b.verdict != Verdict::pass) {
      ++refused;
      continue;
    }
    const CaseJudgement judged_a = a.judge().judge(input, run_a.outputs), judged_b = b.judge().judge(input, run_b.outputs);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const Tensor &x = run_a.outputs[i], &y = run_b.outputs[i];
      if (x.bytes.empty() || y.bytes.empty()) continue;
      Tally& tally = tallies[i];
      const OutputRecord &of_a = judged_a.outputs[i], &of_b = judged_b.outputs[i];
      if (of_a.ulp > tally.ulp_a) tally.ulp_a = of_a.ulp, tally.worst_a = index;
      if (of_b.ulp > tally.ulp_b) tally.ulp_b = of_b.ulp, tally.worst_b = index;
      tally.ratio_a = std::max(tally.ratio_a, of_a.ratio);
      tally.ratio_b = std::max(tally.ratio_b, of_b.ratio);
      tally.wins_a += of_a.ulp < of_b.ulp;
      tally.wins_b += of_b.ulp < of_a.ulp;
      for (std::int64_t e = 0; e < x.elements(); ++e) {
        ++tally.entries;
        const double p = x.get(e), q = y.get(e);
        tally.differ += !(p == q || (std::isnan(p) && std::isnan(q)));
      }
    }
  }
  std::string text = fmt::format("{} {}: {} against {} and the exact value, {} cases (seed {})\n", op, name(format), kernel_a, kernel_b, cases, seed);
  if (refused > 0) text += fmt::format("  {} cases were refused by one of the kernels\n", refused);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Tally& tally = tallies[i];
    if (tally.entries == 0) continue;
    text += fmt::format("  {}: {} of {} entries differ\n", outputs[i].name, tally.differ, tally.entries);
    text += fmt::format("    {:<28} worst {:>10.4g} ulp (case {}), {:>9.3g} of its bound, closer in {} cases\n", kernel_a, tally.ulp_a, tally.worst_a, tally.ratio_a, tally.wins_a);
    text += fmt::format("    {:<28} worst {:>10.4g} ulp (case {}), {:>9.3g} of its bound, closer in {} cases\n", kernel_b, tally.ulp_b, tally.worst_b, tally.ratio_b, tally.wins_b);
  }
  return text;
}

}  // namespace sumzero
