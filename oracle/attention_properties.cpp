#include "oracle/attention_properties.hpp"

#include <fmt/format.h>

#include <cmath>

#include "reference/attention/visibility.hpp"

namespace sumzero {
namespace {

/// Which (head, query) of a batch entry sees a key.
class Sight {
 public:
  explicit Sight(const PropertyContext& context)
      : input_(context.input),
        visible_(attribute(context, "causal"), attribute(context, "window"), input_.extents[axis::queries], input_.extents[axis::keys]) {
    mask_ = tensor("mask"), bias_ = tensor("bias");
  }
  /// `query` counts over batch, heads and queries.
  bool sees(std::int64_t query, std::int64_t key) const {
    const std::int64_t score = query * input_.extents[axis::keys] + key;
    if (!visible_(query % input_.extents[axis::queries], key)) return false;
    return (!mask_ || mask_->get(score) != 0) && (!bias_ || !std::isinf(bias_->get(score)));
  }

 private:
  static double attribute(const PropertyContext& context, const char* name) {
    const int index = context.signature.attribute(name);
    return index < 0 ? 0 : attribute_values(context.signature, context.input)[static_cast<std::size_t>(index)];
  }
  const Tensor* tensor(const char* name) const {
    const auto found = input_.inputs.find(name);
    return found == input_.inputs.end() ? nullptr : &found->second;
  }

  const Case& input_;
  Visibility visible_;
  const Tensor *mask_ = nullptr, *bias_ = nullptr;
};

class HiddenKeys final : public Property {
 public:
  HiddenKeys() : Property("hidden keys", Verdict::invariant_broken, true) {}
  bool applies(const Signature& signature, const Contract& contract) const override {
    return contract.deterministic && signature.axes == Axes::attention && signature.input_with(Role::key) >= 0;
  }

  std::optional<Breach> check(const PropertyContext& context) const override {
    const Sight sight(context);
    const std::int64_t keys = context.input.extents[axis::keys];
    const std::int64_t queries = context.input.extents[axis::batch] * context.input.extents[axis::heads] * context.input.extents[axis::queries];
    for (const std::int64_t key : {keys - 1, keys / 2, std::int64_t{0}}) {
      std::vector<bool> hidden(static_cast<std::size_t>(queries));
      bool any = false;
      for (std::int64_t query = 0; query < queries; ++query) any |= hidden[static_cast<std::size_t>(query)] = !sight.sees(query, key);
      if (!any) continue;
      if (auto breach = unmoved(context, key, hidden)) return breach;
      return ungiven(context, key, hidden);
    }
    return std::nullopt;
  }

 private:
  /// Tensors whose elements of one key can be changed on their own.
  static Tensor changed(const Tensor& tensor, std::int64_t key, double value) {
    Tensor result = tensor.packed();
    const std::int64_t width = tensor.shape[3];
    for (std::int64_t i = 0; i < result.elements(); ++i)
      if (i / width % tensor.shape[2] == key) result.set(i, value);
    return result;
  }

  /// Other values behind a hidden key leave what belongs to the query.
  static std::optional<Breach> unmoved(const PropertyContext& context, std::int64_t key, const std::vector<bool>& hidden) {
    Case moved = context.input;
    for (const InputSpec& spec : context.signature.inputs) {
      if (spec.role != Role::key && spec.role != Role::value) continue;
      Tensor& tensor = moved.inputs.at(spec.name);
      tensor = changed(tensor, key, spec.role == Role::key ? 3 : -5);
    }
    const std::vector<Tensor> outputs = context.run(moved, {}).outputs;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const OutputSpec& spec = context.signature.outputs[i];
      const Tensor& before = context.outputs[i];
      if (before.bytes.empty() || outputs[i].bytes.empty() || spec.shape == Shape::key || spec.shape == Shape::value) continue;
      const std::int64_t each = before.elements() / static_cast<std::int64_t>(hidden.size());
      for (std::int64_t e = 0; e < before.elements(); ++e) {
        const double a = before.get(e), b = outputs[i].get(e);
        // The gradient of a hidden score is a zero of either sign.
        if (!hidden[static_cast<std::size_t>(e / each)] || a == b || (std::isnan(a) && std::isnan(b))) continue;
        return breach(context, static_cast<int>(i), e, b, fmt::format("changes from {:.9g} to {:.9g} with the hidden key {}", a, b, key));
      }
    }
    return std::nullopt;
  }

  /// A key gets nothing when only queries that do not see it have an upstream.
  static std::optional<Breach> ungiven(const PropertyContext& context, std::int64_t key, const std::vector<bool>& hidden) {
    Case silent = context.input;
    for (const InputSpec& spec : context.signature.inputs) {
      const auto found = silent.inputs.find(spec.name);
      if (spec.role != Role::upstream || found == silent.inputs.end()) continue;
      Tensor& tensor = found->second = found->second.packed();
      const std::int64_t each = tensor.elements() / static_cast<std::int64_t>(hidden.size());
      for (std::int64_t i = 0; i < tensor.elements(); ++i)
        if (!hidden[static_cast<std::size_t>(i / each)]) tensor.set(i, 0);
    }
    const std::vector<Tensor> outputs = context.run(silent, {}).outputs;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const Shape shape = context.signature.outputs[i].shape;
      if (outputs[i].bytes.empty() || (shape != Shape::key && shape != Shape::value)) continue;
      const std::int64_t width = outputs[i].shape[3];
      for (std::int64_t e = 0; e < outputs[i].elements(); ++e)
        if (e / width % outputs[i].shape[2] == key && outputs[i].get(e) != 0)
          return breach(context, static_cast<int>(i), e, outputs[i].get(e),
                        fmt::format("is {:.9g} although no query with an upstream sees key {}", outputs[i].get(e), key));
    }
    return std::nullopt;
  }

  static Breach breach(const PropertyContext& context, int output, std::int64_t element, double computed, const std::string& what) {
    const OutputSpec& spec = context.signature.outputs[static_cast<std::size_t>(output)];
    const auto [problem, entry] = problem_entry(spec.shape, context.input, element);
    return {output, problem, entry, computed, place_text(spec.name, spec.shape, context.input, problem, entry) + " " + what};
  }
};

}  // namespace

std::unique_ptr<Property> hidden_keys_property() { return std::make_unique<HiddenKeys>(); }

}  // namespace sumzero
