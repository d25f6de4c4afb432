#include "reference/operator.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <cstring>
#include <mutex>
#include <ranges>
#include <tuple>

#include "reference/evaluate.hpp"

namespace sumzero {
namespace {

template <class Specs>
int index_of(const Specs& specs, std::string_view name) {
  for (std::size_t i = 0; i < specs.size(); ++i)
    if (specs[i].name == name) return static_cast<int>(i);
  return -1;
}

template <class Names>
std::string joined(const Names& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

template <class Specs>
std::string joined_names(const Specs& specs) {
  std::vector<std::string> names;
  for (const auto& spec : specs) names.push_back(spec.name);
  return joined(names);
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  return text + "]";
}

// Every element that the strides can reach must lie inside the storage.
void check_tensor(const std::string& what, const Tensor& tensor) {
  if (tensor.strides.size() != tensor.shape.size())
    throw InvalidInput(what + ": " + std::to_string(tensor.strides.size()) + " strides for " +
                       std::to_string(tensor.shape.size()) + " axes; give one stride an axis");
  std::int64_t lowest = tensor.offset, highest = tensor.offset;
  for (std::size_t axis = 0; axis < tensor.shape.size(); ++axis) {
    const std::int64_t reach = checked_product(tensor.shape[axis] - 1, tensor.strides[axis], what);
    if (__builtin_add_overflow(reach < 0 ? lowest : highest, reach, reach < 0 ? &lowest : &highest))
      throw InvalidInput(what + ": strides leave the range of a 64-bit index; use smaller strides");
  }
  if (lowest < 0 || highest >= static_cast<std::int64_t>(tensor.bytes.size()) / tensor.width())
    throw InvalidInput(what + ": strides reach elements " + std::to_string(lowest) + " to " + std::to_string(highest) +
                       " of a storage of " +
                       std::to_string(static_cast<std::int64_t>(tensor.bytes.size()) / tensor.width()) +
                       " elements; correct shape, strides or data");
}

}  // namespace

int Signature::input(std::string_view n) const { return index_of(inputs, n); }
int Signature::output(std::string_view n) const { return index_of(outputs, n); }
int Signature::attribute(std::string_view n) const { return index_of(attributes, n); }
int Signature::input_with(Role role) const {
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].role == role) return static_cast<int>(i);
  return -1;
}

AttributeSpec reduction_attribute(Reduction default_value) {
  return {"reduction", static_cast<double>(default_value), 0, 2, false, {"none", "sum", "mean"}};
}
AttributeSpec inf_policy_attribute() { return {"inf_policy", 0, 0, 1, false, {"nan", "limit"}}; }
AttributeSpec masked_policy_attribute() { return {"masked_policy", 0, 0, 1, false, {"nan", "zeros"}}; }

std::vector<double> attribute_values(const Signature& signature, const Case& input) {
  std::vector<double> values;
  values.reserve(signature.attributes.size());
  for (const AttributeSpec& spec : signature.attributes) {
    const auto found = input.attributes.find(spec.name);
    values.push_back(found == input.attributes.end() ? spec.default_value : found->second);
  }
  return values;
}

Reduction reduction_of(const Signature& signature, const std::vector<double>& attributes) {
  const int index = signature.attribute("reduction");
  return index < 0 ? Reduction::none : static_cast<Reduction>(static_cast<int>(attributes[static_cast<std::size_t>(index)]));
}

Format element_format(Element element, Format storage) {
  switch (element) {
    case Element::storage: return storage;
    case Element::accumulator: return accumulator_of(storage);
    case Element::boolean: return Format::boolean;
    case Element::index: return Format::index;
  }
  return storage;
}

std::vector<std::int64_t> tensor_shape(Shape shape, const Case& input, Reduction reduction) {
  switch (shape) {
    case Shape::row: return {input.extents[0], input.extents[1]};
    case Shape::per_row: return {input.extents[0]};
    case Shape::classes: return {input.extents[1]};
    case Shape::reduced: return reduction == Reduction::none ? std::vector<std::int64_t>{input.extents[0]}
                                                             : std::vector<std::int64_t>{};
    default: break;
  }
  std::vector<std::int64_t> extents;
  for (const std::size_t axis : axes_of(shape)) extents.push_back(input.extents[axis]);
  return extents;
}

std::span<const std::string_view> axis_names(Axes axes) {
  static constexpr std::string_view rows[] = {"rows", "classes"};
  static constexpr std::string_view attention[] = {"batch", "heads", "kv_heads", "queries", "keys", "head_size", "value_size"};
  if (axes == Axes::rows) return rows;
  return attention;
}

std::span<const std::size_t> axes_of(Shape shape) {
  static constexpr std::size_t row[] = {axis::rows, axis::classes};
  static constexpr std::size_t query[] = {axis::batch, axis::heads, axis::queries, axis::head_size};
  static constexpr std::size_t key[] = {axis::batch, axis::kv_heads, axis::keys, axis::head_size};
  static constexpr std::size_t value[] = {axis::batch, axis::kv_heads, axis::keys, axis::value_size};
  static constexpr std::size_t attended[] = {axis::batch, axis::heads, axis::queries, axis::value_size};
  static constexpr std::size_t scores[] = {axis::batch, axis::heads, axis::queries, axis::keys};
  switch (shape) {
    case Shape::row: return row;
    case Shape::per_row:
    case Shape::reduced: return std::span(row).first(1);
    case Shape::classes: return std::span(row).last(1);
    case Shape::query: return query;
    case Shape::key: return key;
    case Shape::value: return value;
    case Shape::attended: return attended;
    case Shape::scores: return scores;
    case Shape::per_query: return std::span(scores).first(3);
  }
  return {};
}

namespace {

bool over_rows(Shape shape) { return shape == Shape::row || shape == Shape::per_row || shape == Shape::classes || shape == Shape::reduced; }

/// Heads of a tensor that belong to one problem.
std::int64_t heads_of(Shape shape, const Case& input) {
  return shape == Shape::key || shape == Shape::value ? 1 : input.extents[axis::heads] / input.extents[axis::kv_heads];
}

}  // namespace

std::int64_t problem_count(const Signature& signature, const Case& input) {
  return signature.axes == Axes::rows ? input.extents[axis::rows] : input.extents[axis::batch] * input.extents[axis::kv_heads];
}

std::int64_t normalised_extent(const Signature& signature, const Case& input) {
  return input.extents[signature.axes == Axes::rows ? axis::classes : axis::keys];
}

std::int64_t part_elements(Shape shape, const Case& input) {
  if (over_rows(shape)) return shape == Shape::row || shape == Shape::classes ? input.extents[axis::classes] : 1;
  std::int64_t count = heads_of(shape, input);
  for (const std::size_t axis : axes_of(shape).subspan(2)) count *= input.extents[axis];
  return count;
}

Part part_of(const Tensor& tensor, Shape shape, const Case& input, std::int64_t problem) {
  if (over_rows(shape)) {
    const RowAddress address = row_address(tensor, shape, problem);
    return {address.first, {1, 1, address.count}, {0, 0, address.stride}};
  }
  const std::int64_t groups = input.extents[axis::kv_heads], heads = heads_of(shape, input);
  const auto& strides = tensor.strides;
  const std::int64_t position = tensor.offset + problem / groups * strides[0] + problem % groups * heads * strides[1];
  const std::byte* first = tensor.bytes.data() + position * tensor.width();
  if (shape == Shape::per_query) return {first, {1, heads, tensor.shape[2]}, {0, strides[1], strides[2]}};
  return {first, {heads, tensor.shape[2], tensor.shape[3]}, {strides[1], strides[2], strides[3]}};
}

namespace {

/// visit(address, first entry) for every run along the last axis.
template <class Visit>
void each_run(const Part& part, Format format, Visit visit) {
  const auto width = static_cast<std::int64_t>(traits(format).bytes);
  for (std::int64_t a = 0; a < part.counts[0]; ++a)
    for (std::int64_t b = 0; b < part.counts[1]; ++b)
      visit(part.first + (a * part.strides[0] + b * part.strides[1]) * width, (a * part.counts[1] + b) * part.counts[2]);
}
template <class T>
void load_runs(const Part& part, Format format, T* to) {
  each_run(part, format, [&](const std::byte* first, std::int64_t entry) {
    load_elements(first, format, part.strides[2], part.counts[2], to + entry);
  });
}
template <class T>
void store_runs(const Part& part, Format format, const T* from) {
  each_run(part, format, [&](const std::byte* first, std::int64_t entry) {
    store_elements(const_cast<std::byte*>(first), format, part.strides[2], part.counts[2], from + entry);
  });
}

}  // namespace

void load_part(const Part& part, Format format, float* to) { load_runs(part, format, to); }
void load_part(const Part& part, Format format, double* to) { load_runs(part, format, to); }
void store_part(const Part& part, Format format, const float* from) { store_runs(part, format, from); }
void store_part(const Part& part, Format format, const double* from) { store_runs(part, format, from); }

Sums sums_of(Shape shape, const Case& input) {
  const std::int64_t entries = part_elements(shape, input);
  if (over_rows(shape)) return {1, entries, 0, 1};
  const std::int64_t keys = input.extents[axis::keys];
  if (shape == Shape::scores) return {entries / keys, keys, keys, 1};
  return {entries / keys, keys, 1, entries / keys};
}

ProblemEntry problem_entry(Shape shape, const Case& input, std::int64_t element) {
  const std::int64_t entries = part_elements(shape, input);
  return shape == Shape::classes ? ProblemEntry{0, element} : ProblemEntry{element / entries, element % entries};
}

namespace {

/// Index of an entry along every axis of its tensor.
std::vector<std::int64_t> indices_of(Shape shape, const Case& input, std::int64_t problem, std::int64_t entry) {
  const auto axes = axes_of(shape);
  std::vector<std::int64_t> indices(axes.size());
  for (std::size_t i = axes.size(); i-- > 2;) {
    indices[i] = entry % input.extents[axes[i]];
    entry /= input.extents[axes[i]];
  }
  const std::int64_t groups = input.extents[axis::kv_heads];
  indices[0] = problem / groups;
  indices[1] = problem % groups * heads_of(shape, input) + entry;
  return indices;
}

}  // namespace

std::string place_text(const std::string& tensor, Shape shape, const Case& input, std::int64_t problem, std::int64_t entry) {
  if (over_rows(shape)) return tensor + "[" + std::to_string(problem) + ", " + std::to_string(entry) + "]";
  std::vector<std::string> indices;
  for (const std::int64_t index : indices_of(shape, input, problem, entry)) indices.push_back(std::to_string(index));
  return tensor + "[" + joined(indices) + "]";
}

std::string sum_text(const std::string& tensor, Shape shape, const Case& input, std::int64_t problem, std::int64_t sum) {
  if (over_rows(shape)) return "row " + std::to_string(problem) + " of " + tensor;
  const auto axes = axes_of(shape);
  std::vector<std::string> indices;
  for (const std::int64_t index : indices_of(shape, input, problem, sum * sums_of(shape, input).step_sum)) indices.push_back(std::to_string(index));
  indices[static_cast<std::size_t>(std::find(axes.begin(), axes.end(), axis::keys) - axes.begin())] = ":";
  return tensor + "[" + joined(indices) + "]";
}

RowAddress row_address(const Tensor& tensor, Shape shape, std::int64_t row) {
  if (shape == Shape::row)
    return {tensor.bytes.data() + (tensor.offset + row * tensor.strides[0]) * tensor.width(), tensor.strides[1],
            tensor.shape[1]};
  if (shape == Shape::classes)
    return {tensor.bytes.data() + tensor.offset * tensor.width(), tensor.strides[0], tensor.shape[0]};
  const std::int64_t step = tensor.strides.empty() ? 0 : tensor.strides[0];
  return {tensor.bytes.data() + (tensor.offset + row * step) * tensor.width(), 0, 1};
}

std::int64_t label_of(const Signature& signature, const Case& input, std::int64_t row) {
  const int index = signature.input_with(Role::label);
  if (index < 0) return -1;
  const Tensor& labels = input.inputs.at(signature.inputs[static_cast<std::size_t>(index)].name);
  std::int64_t label;
  std::memcpy(&label, row_address(labels, Shape::per_row, row).first, sizeof label);
  return label;
}

bool row_is_kept(const Signature& signature, const std::vector<double>& attributes, std::int64_t label) {
  const int index = signature.attribute("ignore_index");
  return index < 0 || static_cast<double>(label) != attributes[static_cast<std::size_t>(index)];
}

void validate(const Signature& signature, const Case& input) {
  const std::string& op = signature.name;
  if (!is_floating(input.storage))
    throw InvalidInput(op + ": storage format must be one of " + std::string(floating_format_names) + ", not " + std::string(name(input.storage)));
  const auto names = axis_names(signature.axes);
  if (input.extents.size() != names.size())
    throw InvalidInput(op + ": needs the " + std::to_string(names.size()) + " extents " + joined(names) + ", but the case has " +
                       std::to_string(input.extents.size()));
  for (std::size_t i = 0; i < names.size(); ++i)
    if (input.extents[i] < 1)
      throw InvalidInput(op + ": extent " + std::to_string(input.extents[i]) + " of " + std::string(names[i]) +
                         " is not positive; every extent must be at least 1");
  const auto check_index = [&](Shape shape) {
    std::int64_t elements = 8;
    for (const std::size_t axis : axes_of(shape)) elements = checked_product(elements, input.extents[axis], op);
  };
  for (const InputSpec& spec : signature.inputs) check_index(spec.shape);
  for (const OutputSpec& spec : signature.outputs) check_index(spec.shape);
  if (signature.axes == Axes::attention && input.extents[axis::heads] % input.extents[axis::kv_heads] != 0)
    throw InvalidInput(op + ": " + std::to_string(input.extents[axis::kv_heads]) + " kv_heads do not divide " +
                       std::to_string(input.extents[axis::heads]) + " heads; every key-value head must serve equally many heads");

  for (const auto& [attribute, value] : input.attributes) {
    const int index = signature.attribute(attribute);
    if (index < 0)
      throw InvalidInput(op + ": unknown attribute '" + attribute + "'; known: " + joined_names(signature.attributes));
    const AttributeSpec& spec = signature.attributes[static_cast<std::size_t>(index)];
    const bool inside = value <= spec.maximum && (spec.exclusive_minimum ? value > spec.minimum : value >= spec.minimum);
    if (!inside)
      throw InvalidInput(op + ": attribute " + attribute + " = " + std::to_string(value) + " must be " +
                         (spec.exclusive_minimum ? "above " : "at least ") + std::to_string(spec.minimum) +
                         " and at most " + std::to_string(spec.maximum));
    if (!spec.choices.empty() && value != std::floor(value))
      throw InvalidInput(op + ": attribute " + attribute + " must be one of " + joined(spec.choices));
  }
  const std::vector<double> attributes = attribute_values(signature, input);
  const Reduction reduction = reduction_of(signature, attributes);

  for (const auto& [tensor_name, tensor] : input.inputs)
    if (signature.input(tensor_name) < 0)
      throw InvalidInput(op + ": unknown input '" + tensor_name + "'; known: " + joined_names(signature.inputs));
  for (const InputSpec& spec : signature.inputs) {
    const auto found = input.inputs.find(spec.name);
    const std::string what = op + ": input '" + spec.name + "'";
    if (found == input.inputs.end()) {
      if (!spec.optional) throw InvalidInput(what + " is missing and is not optional");
      continue;
    }
    const Tensor& tensor = found->second;
    const Format expected = element_format(spec.element, input.storage);
    if (tensor.format != expected)
      throw InvalidInput(what + " has format " + std::string(name(tensor.format)) + "; storage " +
                         std::string(name(input.storage)) + " needs " + std::string(name(expected)));
    const std::vector<std::int64_t> shape = tensor_shape(spec.shape, input, reduction);
    if (tensor.shape != shape)
      throw InvalidInput(what + " has shape " + shape_text(tensor.shape) + "; the case's extents need " + shape_text(shape));
    check_tensor(what, tensor);
    const auto reject = [&](auto bad, const char* rule) {
      for (std::int64_t i = 0; i < tensor.elements(); ++i)
        if (const double value = tensor.get(i); bad(value))
          throw InvalidInput(what + ": element " + std::to_string(i) + " is " + std::to_string(value) + "; it must be " + rule);
    };
    const bool attention = signature.axes == Axes::attention || signature.input_with(Role::partial_lse) >= 0;
    if (attention && spec.element != Element::boolean) {
      if (spec.role == Role::bias || spec.role == Role::partial_lse)
        reject([](double value) { return std::isnan(value) || value > largest_finite(Format::f64); }, "finite or -inf");
      else
        reject([](double value) { return !std::isfinite(value); }, "finite");
    }
    const bool must_be_non_negative = spec.role == Role::probabilities || spec.role == Role::weights || spec.role == Role::state_tail;
    if (must_be_non_negative)
      reject([&](double value) { return !(value >= 0) && !(spec.role == Role::state_tail && std::isnan(value)); }, "at least 0");
  }
  if (signature.input_with(Role::label) >= 0)
    for (std::int64_t row = 0; row < input.extents[0]; ++row) {
      const std::int64_t label = label_of(signature, input, row);
      if (row_is_kept(signature, attributes, label) && (label < 0 || label >= input.extents[1]))
        throw InvalidInput(op + ": label " + std::to_string(label) + " of row " + std::to_string(row) +
                           " is outside 0.." + std::to_string(input.extents[1] - 1) +
                           " and is not ignore_index; correct it or set ignore_index");
    }
}

double SummationTree::height(double terms) const {
  if (terms <= 1) return 0;
  const double pairs = std::ceil(std::log2(terms));
  switch (kind) {
    case Kind::unknown:
    case Kind::sequential: return terms - 1;
    case Kind::pairwise: return pairs;
    case Kind::compensated: return 2;
    case Kind::lanes: {
      const double steps = std::ceil(terms / width), across = std::ceil(std::log2(width));
      if (flush_every <= 0 || steps <= flush_every) return steps + across;
      return flush_every + std::ceil(std::log2(std::ceil(steps / flush_every))) + across;
    }
  }
  return terms - 1;
}

std::string_view changed_policy(const Case& input, std::string_view except) {
  for (const auto& [attribute, value] : input.attributes)
    if (attribute.ends_with("_policy") && attribute != except && value != 0) return attribute;
  return {};
}

bool Kernel::offers(std::string_view output) const {
  return outputs.empty() || std::find(outputs.begin(), outputs.end(), output) != outputs.end();
}

struct Registry::Store {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<OperatorReference>, std::less<>> references;
  std::vector<std::unique_ptr<Kernel>> kernels;
};

Registry::Registry() : store_(std::make_unique<Store>()) {}
Registry::~Registry() = default;

Registry& Registry::global() {
  static Registry registry;
  return registry;
}

void Registry::add(std::unique_ptr<OperatorReference> reference) {
  const std::scoped_lock lock(store_->mutex);
  const std::string key = reference->signature().name;
  store_->references[key] = std::move(reference);
}

void Registry::add(std::unique_ptr<Kernel> kernel) {
  const std::scoped_lock lock(store_->mutex);
  store_->kernels.push_back(std::move(kernel));
}

const OperatorReference& Registry::operator_named(std::string_view name) const {
  const auto found = store_->references.find(name);
  if (found != store_->references.end()) return *found->second;
  std::vector<std::string> known;
  for (const auto& [key, value] : store_->references) known.push_back(key);
  throw InvalidInput("unknown operator '" + std::string(name) + "'; known: " + joined(known));
}

const Kernel& Registry::kernel_named(std::string_view op, std::string_view kernel, Format storage) const {
  std::vector<std::string> known;
  const Kernel* unsupported = nullptr;
  for (const auto& candidate : store_->kernels) {
    if (candidate->op != op) continue;
    const auto& aliases = candidate->aliases;
    const bool matches = candidate->name == kernel || std::find(aliases.begin(), aliases.end(), kernel) != aliases.end();
    if (matches && candidate->supports(storage)) return *candidate;
    if (matches) unsupported = candidate.get();
    known.push_back(candidate->name);
    known.insert(known.end(), aliases.begin(), aliases.end());
  }
  if (unsupported)
    throw InvalidInput("kernel '" + std::string(kernel) + "' of " + std::string(op) + " does not take " +
                       std::string(name(storage)) + "; choose another --dtype");
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  throw InvalidInput("unknown kernel '" + std::string(kernel) + "' of operator " + std::string(op) +
                     (known.empty() ? "; none is registered" : "; known: " + joined(known)));
}

std::vector<const OperatorReference*> Registry::operators() const {
  std::vector<const OperatorReference*> result;
  for (const auto& [key, value] : store_->references) result.push_back(value.get());
  return result;
}

std::vector<const Kernel*> Registry::kernels(std::string_view op) const {
  std::vector<const Kernel*> result;
  for (const auto& kernel : store_->kernels)
    if (op.empty() || kernel->op == op) result.push_back(kernel.get());
  std::stable_sort(result.begin(), result.end(), [](const Kernel* a, const Kernel* b) {
    return std::tie(a->op, a->name) < std::tie(b->op, b->name);
  });
  return result;
}

}  // namespace sumzero
