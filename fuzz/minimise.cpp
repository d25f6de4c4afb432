#include "fuzz/minimise.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>

namespace sumzero {
namespace {

/// The case without the entries [first, first + count) of an axis, contiguous. Empty when a label points at a removed class.
std::optional<Case> without(const Signature& signature, const Case& input, std::size_t axis, std::int64_t first, std::int64_t count) {
  Case result = input;
  result.extents[axis] -= count;
  if (result.extents[axis] < 1) return std::nullopt;
  for (const InputSpec& spec : signature.inputs) {
    const auto found = result.inputs.find(spec.name);
    if (found == result.inputs.end()) continue;
    const Tensor& whole = input.inputs.at(spec.name);
    const auto axes = axes_of(spec.shape);
    const auto dimension = static_cast<std::size_t>(std::find(axes.begin(), axes.end(), axis) - axes.begin());
    if (dimension < whole.shape.size()) {
      std::vector<std::int64_t> shape = whole.shape;
      shape[dimension] -= count;
      Tensor part = Tensor::contiguous(whole.format, shape);
      std::int64_t target = 0, inner = 1;
      for (std::size_t i = dimension + 1; i < shape.size(); ++i) inner *= shape[i];
      for (std::int64_t i = 0; i < whole.elements(); ++i) {
        const std::int64_t place = i / inner % whole.shape[dimension];
        if (place >= first && place < first + count) continue;
        std::memcpy(part.bytes.data() + target++ * part.width(), whole.bytes.data() + whole.position(i) * whole.width(),
                    static_cast<std::size_t>(part.width()));
      }
      found->second = std::move(part);
    }
    if (spec.role == Role::label && axis == axis::classes) {
      const std::vector<double> attributes = attribute_values(signature, input);
      for (std::int64_t row = 0; row < found->second.elements(); ++row) {
        const auto label = static_cast<std::int64_t>(found->second.get(row));
        if (!row_is_kept(signature, attributes, label) || label < first) continue;
        if (label < first + count) return std::nullopt;
        found->second.set(row, static_cast<double>(label - count));
      }
    }
  }
  return result;
}

class Minimiser {
 public:
  Minimiser(const Signature& signature, Case input, const std::function<bool(const Case&)>& fails, int budget)
      : signature_(signature), best_(std::move(input)), fails_(fails), budget_(budget) {}

  Case run() {
    make_contiguous();
    for (int before = budget_ + 1; budget_ > 0 && budget_ < before;) {
      before = budget_;
      const Case start = best_;
      for (std::size_t axis = 0; axis < best_.extents.size(); ++axis) drop_from(axis);
      drop_groups();
      drop_optional();
      simplify_attributes();
      simplify_numbers();
      if (start == best_) break;
    }
    return best_;
  }

 private:
  bool accept(const Case& candidate) {
    if (budget_ <= 0 || candidate == best_) return false;
    --budget_;
    try {
      validate(signature_, candidate);
    } catch (const InvalidInput&) {
      return false;
    }
    if (!fails_(candidate)) return false;
    best_ = candidate;
    return true;
  }

  void make_contiguous() {
    Case candidate = best_;
    for (auto& [key, tensor] : candidate.inputs) tensor = tensor.packed();
    accept(candidate);
  }

  /// Removes ever smaller blocks (delta debugging: A. Zeller, R. Hildebrandt, IEEE TSE 28 (2002) 183).
  void drop_from(std::size_t axis) {
    for (std::int64_t block = best_.extents[axis] / 2; block >= 1; block /= 2)
      for (std::int64_t first = 0; first + block <= best_.extents[axis] && budget_ > 0;) {
        const auto candidate = without(signature_, best_, axis, first, block);
        if (!candidate || !accept(*candidate)) first += block;
      }
  }

  /// Attention: one key-value head with the heads that read it.
  void drop_groups() {
    if (signature_.axes != Axes::attention) return;
    for (std::int64_t group = 0; group < best_.extents[axis::kv_heads] && budget_ > 0;) {
      const std::int64_t heads = best_.extents[axis::heads] / best_.extents[axis::kv_heads];
      auto candidate = without(signature_, best_, axis::kv_heads, group, 1);
      if (candidate) candidate = without(signature_, *candidate, axis::heads, group * heads, heads);
      if (!candidate || !accept(*candidate)) ++group;
    }
  }

  void drop_optional() {
    for (const InputSpec& spec : signature_.inputs) {
      if (!spec.optional || spec.role == Role::upstream || !best_.inputs.contains(spec.name)) continue;
      Case candidate = best_;
      candidate.inputs.erase(spec.name);
      accept(candidate);
    }
  }

  void simplify_attributes() {
    for (const auto& [attribute, value] : std::map<std::string, double>(best_.attributes)) {
      Case candidate = best_;
      candidate.attributes.erase(attribute);
      // Dropping a reduction changes the shape of the upstream.
      for (const InputSpec& spec : signature_.inputs) {
        const auto found = candidate.inputs.find(spec.name);
        if (spec.shape != Shape::reduced || found == candidate.inputs.end()) continue;
        const Reduction reduction = reduction_of(signature_, attribute_values(signature_, candidate));
        Tensor reshaped = Tensor::contiguous(found->second.format, tensor_shape(spec.shape, candidate, reduction));
        for (std::int64_t i = 0; i < reshaped.elements(); ++i) reshaped.set(i, found->second.get(std::min(i, found->second.elements() - 1)));
        found->second = std::move(reshaped);
      }
      accept(candidate);
    }
  }

  void simplify_numbers() {
    for (const InputSpec& spec : signature_.inputs) {
      if (!best_.inputs.contains(spec.name) || spec.element == Element::index) continue;
      for (std::int64_t i = 0; i < best_.inputs.at(spec.name).elements() && budget_ > 0; ++i) simplify_number(spec.name, i);
    }
  }

  bool try_number(const std::string& input, std::int64_t i, double value) {
    Case candidate = best_;
    Tensor& tensor = candidate.inputs.at(input);
    if (tensor.get(i) == value) return false;
    tensor.set(i, value);
    return tensor.get(i) == value && accept(candidate);
  }

  void simplify_number(const std::string& input, std::int64_t i) {
    const double value = best_.inputs.at(input).get(i);
    if (value == 0 || (value == 1 && !std::signbit(value))) return;
    if (try_number(input, i, 0) || try_number(input, i, 1)) return;
    if (!std::isfinite(value)) return;
    if (try_number(input, i, std::nearbyint(value))) return;
    // Fewest significant bits that still fail.
    int exponent;
    std::frexp(value, &exponent);
    for (int bits = 2; bits <= 12; bits += 2) {
      const double step = std::ldexp(1.0, exponent - bits);
      if (try_number(input, i, std::nearbyint(value / step) * step)) return;
    }
  }

  const Signature& signature_;
  Case best_;
  const std::function<bool(const Case&)>& fails_;
  int budget_;
};

}  // namespace

Case minimise(const Signature& signature, Case input, const std::function<bool(const Case&)>& fails, int budget) {
  return Minimiser(signature, std::move(input), fails, budget).run();
}

}  // namespace sumzero
