#include "oracle/probe_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace sumzero {
namespace {

struct NamedView {
  const char* output;
  SumView view;
};
constexpr NamedView sum_views[] = {{"p", SumView::reciprocal},
                                   {"logp", SumView::negative_log},
                                   {"lse", SumView::log},
                                   {"loss", SumView::log},
                                   {"r", SumView::tail}};

/// Divergences compare two rows: no output of theirs shows one sum alone. A merged state sums nothing.
bool shows_one_row(const Signature& signature) {
  return signature.input_with(Role::logits) >= 0 && signature.input_with(Role::teacher_logits) < 0 && signature.input_with(Role::state_tail) < 0;
}

}  // namespace

ProbeRows::ProbeRows(const OperatorReference& reference, const Kernel& kernel, const ProbeOptions& options)
    : reference_(reference), kernel_(kernel), options_(options) {
  const Signature& s = signature();
  if (!shows_one_row(s)) return;
  for (const auto& [name, view] : sum_views)
    if (const int output = s.output(name); output >= 0 && kernel.offers(name)) {
      view_ = view;
      sum_output_ = output;
      break;
    }
  if (s.output("p") >= 0 && kernel.offers("p")) exponential_ = {s.output("p"), 1, 1, false};
  else if (s.output("r") >= 0 && kernel.offers("r")) exponential_ = {s.output("r"), 0, 1, false};
  else if (s.output("gx") >= 0 && kernel.offers("gx"))
    // With the upstream at the maximum, log-softmax's gradient at the other entry is -p; a loss's with the target there is p.
    exponential_ = {s.output("gx"), 1, s.output("logp") >= 0 ? -1.0 : 1.0, true};
}

bool ProbeRows::time_left(double fraction) const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count() < fraction * options_.seconds;
}

Case ProbeRows::rows(const std::vector<Logits>& logits) const {
  const Signature& s = signature();
  const auto count = static_cast<std::int64_t>(logits.size()), n = static_cast<std::int64_t>(logits[0].size());
  Case input;
  input.op = s.name;
  input.storage = options_.format;
  input.extents = {count, n};
  if (const int reduction = s.attribute("reduction"); reduction >= 0) input.attributes["reduction"] = static_cast<double>(Reduction::none);
  for (std::size_t i = 0; i < s.inputs.size(); ++i) {
    const InputSpec& spec = s.inputs[i];
    if (spec.optional && spec.role != Role::upstream) continue;
    Tensor tensor = Tensor::contiguous(element_format(spec.element, input.storage), tensor_shape(spec.shape, input, Reduction::none));
    const std::int64_t width = spec.shape == Shape::row ? n : 1;
    for (std::int64_t row = 0; row < count; ++row) {
      const Logits& x = logits[static_cast<std::size_t>(row)];
      if (spec.role == Role::logits || spec.role == Role::teacher_logits || spec.role == Role::state_maximum) {
        for (std::int64_t j = 0; j < width; ++j) tensor.set(row * width + j, x[static_cast<std::size_t>(j)]);
        continue;
      }
      const std::int64_t top = std::max_element(x.begin(), x.end()) - x.begin();
      if (spec.role == Role::label) tensor.set(row, static_cast<double>(top));
      else if (spec.role == Role::state_empty) tensor.set(row, 0);
      else if (spec.role == Role::state_tail) tensor.set(row, 1);
      else tensor.set(width == 1 ? row : row * width + top, 1);
    }
    input.inputs[spec.name] = std::move(tensor);
  }
  return input;
}

std::vector<Tensor> ProbeRows::run(const Case& input, const GuardedOptions& options) const {
  GuardedRun run = run_guarded(signature(), kernel_, input, options);
  if (run.verdict == Verdict::pass) return std::move(run.outputs);
  throw NotMeasurable(fmt::format("{}: {}", name(run.verdict), run.detail));
}

const std::string& ProbeRows::sum_output() const { return signature().outputs[static_cast<std::size_t>(sum_output_)].name; }

Format ProbeRows::sum_format() const {
  return element_format(signature().outputs[static_cast<std::size_t>(sum_output_)].element, options_.format);
}

std::vector<double> ProbeRows::observed_sums(const std::vector<Logits>& logits) const {
  if (view_ == SumView::none)
    throw NotMeasurable(shows_one_row(signature()) ? "the kernel offers no output that shows the sum of a row" : "no output of this operator shows the sum of one row");
  const Tensor output = run(rows(logits))[static_cast<std::size_t>(sum_output_)];
  std::vector<double> values;
  for (std::size_t row = 0; row < logits.size(); ++row) {
    const Logits& x = logits[row];
    const bool wide = signature().outputs[static_cast<std::size_t>(sum_output_)].shape == Shape::row;
    const auto top = std::max_element(x.begin(), x.end()) - x.begin();
    values.push_back(output.get(wide ? static_cast<std::int64_t>(row * x.size()) + top : static_cast<std::int64_t>(row)));
  }
  return values;
}

std::vector<double> ProbeRows::observed_exponentials(const std::vector<Logits>& logits, std::int64_t entry) const {
  if (exponential_.output < 0)
    throw NotMeasurable(shows_one_row(signature()) ? "the kernel offers no output that shows a single exponential" : "no output of this operator shows a single exponential");
  const Tensor output = run(rows(logits))[static_cast<std::size_t>(exponential_.output)];
  std::vector<double> values;
  for (std::size_t row = 0; row < logits.size(); ++row) {
    const bool wide = exponential_.entry > 0;
    values.push_back(exponential_.sign * output.get(wide ? static_cast<std::int64_t>(row * logits[row].size()) + entry : static_cast<std::int64_t>(row)));
  }
  return values;
}

double ProbeRows::shown(long double r) const {
  switch (view_) {
    case SumView::reciprocal: return static_cast<double>(1 / (1 + r));
    case SumView::negative_log: return static_cast<double>(-std::log1p(r));
    case SumView::log: return static_cast<double>(std::log1p(r));
    default: return static_cast<double>(r);
  }
}

}  // namespace sumzero
