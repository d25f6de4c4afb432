#include "oracle/properties.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "oracle/attention_properties.hpp"

namespace sumzero {
namespace {

bool any_output_marked(const Signature& signature, std::uint32_t mark) {
  return std::any_of(signature.outputs.begin(), signature.outputs.end(),
                     [mark](const OutputSpec& spec) { return (spec.marks & mark) != 0; });
}

std::string place(const PropertyContext& context, int output, std::int64_t problem, std::int64_t entry) {
  const OutputSpec& spec = context.signature.outputs[static_cast<std::size_t>(output)];
  return place_text(spec.name, spec.shape, context.input, problem, entry);
}

/// Calls visit(output, row, index, value) for every entry of every offered output with one of the marks.
template <class Visit>
void for_marked(const PropertyContext& context, std::uint32_t marks, Visit visit) {
  for (std::size_t i = 0; i < context.signature.outputs.size(); ++i) {
    const Tensor& tensor = context.outputs[i];
    if (tensor.bytes.empty() || !(context.signature.outputs[i].marks & marks)) continue;
    for (std::int64_t e = 0; e < tensor.elements(); ++e) {
      const auto [problem, entry] = problem_entry(context.signature.outputs[i].shape, context.input, e);
      visit(static_cast<int>(i), problem, entry, tensor.get(e));
    }
  }
}

bool same_bits(double a, double b) { return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b) || (std::isnan(a) && std::isnan(b)); }

/// Breach at an element of an output; `what` goes on after its name.
Breach breach_at(const PropertyContext& context, int output, std::int64_t element, double computed, const std::string& what) {
  const OutputSpec& spec = context.signature.outputs[static_cast<std::size_t>(output)];
  const auto [problem, entry] = problem_entry(spec.shape, context.input, element);
  return {output, problem, entry, computed, place_text(spec.name, spec.shape, context.input, problem, entry) + " " + what};
}

/// First entry in which two results differ in their bits, among outputs selected by `take`.
std::optional<Breach> first_difference(const PropertyContext& context, const std::vector<Tensor>& other,
                                       const std::function<bool(const OutputSpec&)>& take, const std::string& what) {
  for (std::size_t i = 0; i < context.outputs.size(); ++i) {
    const Tensor& a = context.outputs[i];
    const Tensor& b = other[i];
    if (a.bytes.empty() || !take(context.signature.outputs[i])) continue;
    for (std::int64_t e = 0; e < a.elements(); ++e)
      if (!same_bits(a.get(e), b.get(e)))
        return breach_at(context, static_cast<int>(i), e, b.get(e), fmt::format("is {:.9g}, but {:.9g} {}", a.get(e), b.get(e), what));
  }
  return std::nullopt;
}

const Tensor* tensor_with(const PropertyContext& context, Role role) {
  const int index = context.signature.input_with(role);
  if (index < 0) return nullptr;
  const auto found = context.input.inputs.find(context.signature.inputs[static_cast<std::size_t>(index)].name);
  return found == context.input.inputs.end() ? nullptr : &found->second;
}

bool has_upstream_tensor(const PropertyContext& context, const OutputSpec& output, std::int64_t a, std::int64_t b) {
  if (output.gradient_of < 0) return true;
  // Gradients agree only where the upstream does.
  for (const InputSpec& spec : context.signature.inputs) {
    if (spec.role != Role::upstream || spec.shape != Shape::row) continue;
    const auto found = context.input.inputs.find(spec.name);
    if (found != context.input.inputs.end() && !same_bits(found->second.get(a), found->second.get(b))) return false;
  }
  return true;
}

class Range final : public Property {
 public:
  Range() : Property("range", Verdict::invariant_broken, false) {}
  bool applies(const Signature& signature, const Contract&) const override {
    return any_output_marked(signature, non_negative | at_most_zero | at_most_one);
  }
  std::optional<Breach> check(const PropertyContext& context) const override {
    std::optional<Breach> breach;
    for_marked(context, non_negative | at_most_zero | at_most_one, [&](int output, std::int64_t row, std::int64_t index, double value) {
      const std::uint32_t marks = context.signature.outputs[static_cast<std::size_t>(output)].marks;
      const char* rule = marks & non_negative && value < 0   ? "at least 0"
                         : marks & at_most_zero && value > 0 ? "at most 0"
                         : marks & at_most_one && value > 1  ? "at most 1"
                                                             : nullptr;
      if (rule && !breach)
        breach = Breach{output, row, index, value,
                        fmt::format("{} is {:.9g}; it must be {}", place(context, output, row, index), value, rule)};
    });
    return breach;
  }
};

class TargetSign final : public Property {
 public:
  TargetSign() : Property("target sign", Verdict::invariant_broken, false) {}
  bool applies(const Signature& signature, const Contract&) const override {
    return any_output_marked(signature, negative_only_at_target);
  }
  std::optional<Breach> check(const PropertyContext& context) const override {
    const std::vector<double> attributes = attribute_values(context.signature, context.input);
    const int smoothing = context.signature.attribute("label_smoothing");
    if (smoothing >= 0 && attributes[static_cast<std::size_t>(smoothing)] != 0) return std::nullopt;
    const Tensor* upstream = tensor_with(context, Role::upstream);
    std::optional<Breach> breach;
    for_marked(context, negative_only_at_target, [&](int output, std::int64_t row, std::int64_t index, double value) {
      const double sign = upstream ? upstream->get(upstream->shape.empty() ? 0 : row) : 1.0;
      const bool target = label_of(context.signature, context.input, row) == index;
      const double oriented = std::copysign(1.0, sign) * value * (target ? -1 : 1);
      if (oriented < 0 && !breach)
        breach = Breach{output, row, index, value,
                        fmt::format("{} is {:.9g}: the {} has the wrong sign", place(context, output, row, index), value, target ? "target's gradient" : "gradient of another class")};
    });
    return breach;
  }
};

/// Visits pairs of entries of one row that are neighbours in the order of the logits.
template <class Visit>
void for_neighbours(const PropertyContext& context, Visit visit) {
  const Tensor* x = tensor_with(context, Role::logits);
  if (!x) return;
  const std::int64_t rows = x->shape[0], n = x->shape[1];
  std::vector<double> values(static_cast<std::size_t>(n));
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  for (std::int64_t row = 0; row < rows; ++row) {
    bool has_nan = false;
    for (std::int64_t j = 0; j < n; ++j) {
      values[static_cast<std::size_t>(j)] = x->get(row * n + j);
      has_nan = has_nan || std::isnan(values[static_cast<std::size_t>(j)]);
    }
    if (has_nan) continue;
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      return values[static_cast<std::size_t>(a)] < values[static_cast<std::size_t>(b)];
    });
    for (std::size_t i = 1; i < order.size(); ++i)
      visit(row, order[i - 1], order[i], values[static_cast<std::size_t>(order[i - 1])] == values[static_cast<std::size_t>(order[i])]);
  }
}

class Ties final : public Property {
 public:
  Ties() : Property("ties", Verdict::invariant_broken, false) {}
  bool applies(const Signature& signature, const Contract&) const override { return any_output_marked(signature, ties); }
  std::optional<Breach> check(const PropertyContext& context) const override {
    std::optional<Breach> breach;
    for_neighbours(context, [&](std::int64_t row, std::int64_t a, std::int64_t b, bool equal) {
      if (!equal || breach) return;
      for (std::size_t i = 0; i < context.outputs.size(); ++i) {
        const OutputSpec& spec = context.signature.outputs[i];
        const Tensor& tensor = context.outputs[i];
        if (tensor.bytes.empty() || !(spec.marks & ties)) continue;
        const std::int64_t n = tensor.shape[1];
        const double at_a = tensor.get(row * n + a), at_b = tensor.get(row * n + b);
        if (at_a == at_b || same_bits(at_a, at_b) || !has_upstream_tensor(context, spec, row * n + a, row * n + b)) continue;
        breach = Breach{static_cast<int>(i), row, b, at_b,
                        fmt::format("equal logits {} and {} of row {} give {} = {:.9g} and {:.9g}", a, b, row, spec.name, at_a, at_b)};
      }
    });
    return breach;
  }
};

class Monotone final : public Property {
 public:
  Monotone() : Property("monotone", Verdict::invariant_broken, false) {}
  bool applies(const Signature& signature, const Contract& contract) const override {
    return contract.monotone && any_output_marked(signature, monotone);
  }
  std::optional<Breach> check(const PropertyContext& context) const override {
    std::optional<Breach> breach;
    for_neighbours(context, [&](std::int64_t row, std::int64_t a, std::int64_t b, bool) {
      for (std::size_t i = 0; i < context.outputs.size() && !breach; ++i) {
        const OutputSpec& spec = context.signature.outputs[i];
        const Tensor& tensor = context.outputs[i];
        if (tensor.bytes.empty() || !(spec.marks & monotone)) continue;
        const std::int64_t n = tensor.shape[1];
        const double at_a = tensor.get(row * n + a), at_b = tensor.get(row * n + b);
        if (!(at_a > at_b)) continue;
        breach = Breach{static_cast<int>(i), row, b, at_b,
                        fmt::format("{} falls from {:.9g} to {:.9g} although the logit rises from class {} to class {} of row {}",
                                    spec.name, at_a, at_b, a, b, row)};
      }
    });
    return breach;
  }
};

class Deterministic final : public Property {
 public:
  Deterministic() : Property("deterministic", Verdict::not_deterministic, true) {}
  bool applies(const Signature&, const Contract& contract) const override { return contract.deterministic; }
  std::optional<Breach> check(const PropertyContext& context) const override {
    const auto all = [](const OutputSpec&) { return true; };
    if (auto breach = first_difference(context, context.run(context.input, {}).outputs, all, "when the call is repeated")) return breach;
    return first_difference(context, context.run(context.input, {2, 7}).outputs, all, "with two threads and padded outputs");
  }
};

class LayoutIndependent final : public Property {
 public:
  LayoutIndependent() : Property("layout", Verdict::invariant_broken, true) {}
  bool applies(const Signature&, const Contract& contract) const override { return contract.deterministic; }
  std::optional<Breach> check(const PropertyContext& context) const override {
    Case packed = context.input;
    bool changed = false;
    for (auto& [key, tensor] : packed.inputs) {
      changed = changed || !tensor.is_contiguous();
      tensor = tensor.packed();
    }
    if (!changed) return std::nullopt;
    return first_difference(context, context.run(packed, {}).outputs, [](const OutputSpec&) { return true; },
                            "for the same values stored contiguously");
  }
};

class ShiftInvariant final : public Property {
 public:
  ShiftInvariant() : Property("shift", Verdict::invariant_broken, true) {}
  bool applies(const Signature& signature, const Contract& contract) const override {
    return contract.deterministic && any_output_marked(signature, shift_invariant);
  }
  std::optional<Breach> check(const PropertyContext& context) const override {
    const std::string& logits = context.signature.inputs[static_cast<std::size_t>(context.signature.input_with(Role::logits))].name;
    for (const double c : {1.0, -4.0, 64.0, 1024.0, -0x1p20}) {
      Case shifted = context.input;
      Tensor& x = shifted.inputs.at(logits);
      bool exact = true;
      for (std::int64_t i = 0; i < x.elements() && exact; ++i) {
        const double before = x.get(i), after = before + c;
        if (std::isfinite(before)) x.set(i, after);
        // Both steps must be exact: the addition in double and the store.
        exact = !std::isfinite(before) || (x.get(i) - c == before && x.get(i) == after && std::isfinite(x.get(i)));
      }
      // A broadcast row would be shifted once per row that shows it.
      if (!exact || std::find(x.strides.begin(), x.strides.end(), 0) != x.strides.end()) continue;
      if (auto breach = first_difference(context, context.run(shifted, {}).outputs,
                                         [](const OutputSpec& spec) { return (spec.marks & shift_invariant) != 0; },
                                         fmt::format("after adding {} exactly to every logit", c)))
        return breach;
    }
    return std::nullopt;
  }
};

class LinearUpstream final : public Property {
 public:
  LinearUpstream() : Property("linear upstream", Verdict::invariant_broken, true) {}
  bool applies(const Signature& signature, const Contract& contract) const override {
    return contract.deterministic && any_output_marked(signature, linear_upstream);
  }
  std::optional<Breach> check(const PropertyContext& context) const override {
    Case doubled = context.input;
    for (const InputSpec& spec : context.signature.inputs) {
      const auto found = doubled.inputs.find(spec.name);
      if (spec.role != Role::upstream || found == doubled.inputs.end()) continue;
      Tensor& g = found->second;
      if (std::find(g.strides.begin(), g.strides.end(), 0) != g.strides.end()) return std::nullopt;
      for (std::int64_t i = 0; i < g.elements(); ++i) {
        const double value = g.get(i);
        g.set(i, 2 * value);
        if (g.get(i) != 2 * value) return std::nullopt;
      }
    }
    const std::vector<Tensor> outputs = context.run(doubled, {}).outputs;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const Tensor& a = context.outputs[i];
      if (a.bytes.empty() || !(context.signature.outputs[i].marks & linear_upstream)) continue;
      // Products below this size may have met the subnormal range of the accumulator or of the output on the way.
      // With intermediates in the output's format, products need the distance there, too.
      const Format wide = context.contract.stores_intermediates ? a.format : accumulator_of(a.format);
      const double floor = std::max(2 * smallest_normal(a.format), smallest_normal(wide) * 0x1p30), ceiling = largest_finite(a.format) / 4;
      for (std::int64_t e = 0; e < a.elements(); ++e) {
        const double once = a.get(e), twice = outputs[i].get(e);
        if (!(std::fabs(once) >= floor && std::fabs(once) <= ceiling) || twice == 2 * once) continue;
        return breach_at(context, static_cast<int>(i), e, twice,
                         fmt::format("is {:.9g}, and {:.9g} instead of its double for a doubled upstream", once, twice));
      }
    }
    return std::nullopt;
  }
};

/// The case that holds one row, or one entry of the batch, of another case, contiguous.
Case single_row(const Signature& signature, const Case& input, std::int64_t row) {
  Case result = input;
  result.extents[0] = 1;
  for (const InputSpec& spec : signature.inputs) {
    const auto found = result.inputs.find(spec.name);
    if (found == result.inputs.end() || spec.shape == Shape::classes) continue;
    const Tensor& whole = input.inputs.at(spec.name);
    if (whole.shape.empty()) continue;
    std::vector<std::int64_t> shape = whole.shape;
    shape[0] = 1;
    Tensor part = Tensor::contiguous(whole.format, shape);
    const std::int64_t count = part.elements();
    for (std::int64_t j = 0; j < count; ++j)
      std::memcpy(part.bytes.data() + j * part.width(), whole.bytes.data() + whole.position(row * count + j) * whole.width(),
                  static_cast<std::size_t>(part.width()));
    found->second = std::move(part);
  }
  return result;
}

class RowIndependent final : public Property {
 public:
  RowIndependent() : Property("row independence", Verdict::invariant_broken, true) {}
  bool applies(const Signature&, const Contract& contract) const override { return contract.deterministic; }
  std::optional<Breach> check(const PropertyContext& context) const override {
    const std::int64_t rows = context.input.extents[0];
    const Reduction reduction = reduction_of(context.signature, attribute_values(context.signature, context.input));
    if (rows < 2 || reduction != Reduction::none) return std::nullopt;
    const std::int64_t row = rows - 1;
    const std::vector<Tensor> alone = context.run(single_row(context.signature, context.input, row), {}).outputs;
    for (std::size_t i = 0; i < alone.size(); ++i) {
      const Tensor& batch = context.outputs[i];
      if (batch.bytes.empty()) continue;
      const std::int64_t count = alone[i].elements();
      for (std::int64_t j = 0; j < count; ++j)
        if (!same_bits(alone[i].get(j), batch.get(row * count + j)))
          return breach_at(context, static_cast<int>(i), row * count + j, batch.get(row * count + j),
                           fmt::format("is {:.9g} in the batch and {:.9g} alone", batch.get(row * count + j), alone[i].get(j)));
    }
    return std::nullopt;
  }
};

}  // namespace

const std::vector<std::unique_ptr<Property>>& properties() {
  static const auto all = [] {
    std::vector<std::unique_ptr<Property>> list;
    list.push_back(std::make_unique<Range>());
    list.push_back(std::make_unique<TargetSign>());
    list.push_back(std::make_unique<Ties>());
    list.push_back(std::make_unique<Monotone>());
    list.push_back(std::make_unique<Deterministic>());
    list.push_back(std::make_unique<LayoutIndependent>());
    list.push_back(std::make_unique<ShiftInvariant>());
    list.push_back(std::make_unique<LinearUpstream>());
    list.push_back(std::make_unique<RowIndependent>());
    list.push_back(hidden_keys_property());
    return list;
  }();
  return all;
}

const Property* property_named(std::string_view name) {
  for (const auto& property : properties())
    if (property->name == name) return property.get();
  return nullptr;
}

}  // namespace sumzero
