#include "fuzz/examine.hpp"

#include <limits>

namespace sumzero {
namespace {

/// A property's own call of the kernel came to no result.
struct RerunFailed {
  GuardedRun run;
};

}  // namespace

Examination Examiner::examine(const Case& input, bool all_properties, const GuardedOptions& options) const {
  Examination result;
  result.run = run_guarded(signature(), kernel_, input, options);
  const auto output_name = [this](int output) { return signature().outputs[static_cast<std::size_t>(output)].name; };
  if (result.run.verdict == Verdict::refused) return result;
  if (result.run.verdict != Verdict::pass) {
    Examination::Item item;
    item.complaint = {std::string(name(result.run.verdict)), "", kills(result.run.verdict) ? "" : output_name(result.run.output)};
    item.verdict = result.run.verdict;
    item.detail = result.run.detail;
    item.excess = std::numeric_limits<double>::infinity();
    result.items.push_back(item);
    return result;
  }
  result.judged = true;
  result.judgement = judge_.judge(input, result.run.outputs);
  for (const Suspicion& suspicion : result.judgement.findings) {
    Examination::Item item;
    item.complaint = {suspicion.property, suspicion.kind, output_name(suspicion.output)};
    item.verdict = suspicion.verdict;
    item.suspicion = suspicion;
    item.excess = suspicion.excess;
    result.items.push_back(item);
  }
  const PropertyContext context{signature(), kernel_, judge_.contract(), input, result.run.outputs,
                                [this](const Case& other, const GuardedOptions& o) {
                                  GuardedRun run = run_guarded(signature(), kernel_, other, o);
                                  if (run.verdict != Verdict::pass) throw RerunFailed{std::move(run)};
                                  return run;
                                }};
  for (const auto& property : properties()) {
    if ((property->reruns && !all_properties) || !property->applies(signature(), judge_.contract())) continue;
    Examination::Item item;
    std::optional<Breach> breach;
    try {
      breach = property->check(context);
    } catch (const RerunFailed& failure) {
      // Refusing a derived case is a kernel's right; what else fails there fails as a case of its own.
      if (!kills(failure.run.verdict)) continue;
      item.complaint = {std::string(name(failure.run.verdict)), "", ""};
      item.verdict = failure.run.verdict;
      item.detail = failure.run.detail + " (called again for the property '" + property->name + "')";
      item.excess = std::numeric_limits<double>::infinity();
      result.items.push_back(item);
      break;
    }
    if (!breach) continue;
    item.complaint = {property->name, "", output_name(breach->output)};
    item.verdict = property->verdict;
    item.breach = breach;
    item.excess = std::numeric_limits<double>::infinity();
    result.items.push_back(item);
  }
  return result;
}

bool Examiner::needs_reruns(const Complaint& complaint) {
  const Property* property = property_named(complaint.property);
  if (property) return property->reruns;
  const std::optional<Verdict> verdict = verdict_named(complaint.property);
  return verdict && kills(*verdict);
}

bool Examiner::shows(const Case& input, const Complaint& complaint) const {
  const Examination examination = examine(input, needs_reruns(complaint));
  for (const Examination::Item& item : examination.items)
    if (item.complaint == complaint) return true;
  return false;
}

std::optional<Violation> Examiner::confirm(const Case& input, const Examination& examination, const Examination::Item& item) const {
  if (!item.breach && item.detail.empty()) return judge_.confirm(input, examination.run.outputs, item.suspicion);
  Violation violation;
  violation.property = item.complaint.property;
  violation.kind = item.complaint.kind;
  violation.output = item.complaint.output;
  violation.verdict = item.verdict;
  violation.input = input;
  if (!item.breach) {
    violation.message = item.detail;
    violation.row = examination.run.row;
    violation.index = examination.run.index;
    return violation;
  }
  violation.row = item.breach->row;
  violation.index = item.breach->index;
  violation.computed = item.breach->computed;
  violation.message = item.breach->message;
  if (violation.index >= 0) {
    const int output = signature().output(violation.output);
    const Measurement entry = judge_.measure(input, examination.run.outputs, output, violation.row, violation.index);
    violation.exact = entry.exact;
    violation.exact_value = entry.exact_value;
    violation.ulp = entry.ulp;
    violation.bound_ratio = entry.bound_ratio;
  }
  return violation;
}

}  // namespace sumzero
