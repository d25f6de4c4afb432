#include "fuzz/attention_recipe.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "fuzz/random.hpp"

namespace sumzero {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t most_products = 60000;  // of a case, so that its reference stays cheap

class AttentionRecipe {
 public:
  AttentionRecipe(const Recipe& recipe, const Signature& signature, Format storage)
      : recipe_(recipe), signature_(signature), storage_(storage), random_(recipe.seed) {}

  Case expand() {
    result_.op = signature_.name;
    result_.storage = storage_;
    choose_sizes();
    choose_attributes();
    operands();
    masks();
    upstreams();
    if (in("layout"))
      for (auto& [key, tensor] : result_.inputs) tensor = with_layout(tensor);
    return result_;
  }

 private:
  bool in(std::string_view stratum) const { return recipe_.stratum == stratum; }
  std::int64_t extent(std::size_t axis) const { return result_.extents[axis]; }

  void choose_sizes() {
    static constexpr std::int64_t head_sizes[] = {4, 1, 2, 3, 8, 16, 17, 32, 64, 5, 7};
    std::int64_t head = head_sizes[recipe_.closeness % 11], width = head_sizes[recipe_.attributes % 11];
    std::int64_t kv_heads = recipe_.options % 4 / 2 + 1, heads = kv_heads * (recipe_.options % 2 + 1);
    if (in("grouped")) kv_heads = 1 + recipe_.variant % 2, heads = kv_heads * (2 + recipe_.variant / 2 % 2);
    std::int64_t batch = in("layout") || recipe_.options / 4 % 4 == 3 ? 2 : 1;
    std::int64_t queries = std::max(1, recipe_.rows), keys = std::max(1, recipe_.classes);
    if (in("causal") && recipe_.variant % 3 == 0) queries = keys = std::min<std::int64_t>(keys, 24);
    // Cut what multiplies the work, last what the stratum is about.
    const auto products = [&] { return batch * heads * queries * keys * (head + width); };
    while (products() > most_products && (head > 8 || width > 8)) head = std::min<std::int64_t>(head, 8), width = std::min<std::int64_t>(width, 8);
    while (products() > most_products && queries > 2) queries = (queries + 1) / 2;
    while (products() > most_products && keys > 64 && !in("long")) keys /= 2;
    result_.extents = {batch, heads, kv_heads, queries, keys, head, width};
  }

  void set(const std::string& attribute, double value) {
    const AttributeSpec& spec = signature_.attributes[static_cast<std::size_t>(signature_.attribute(attribute))];
    if (value != spec.default_value) result_.attributes[attribute] = value;
  }

  void choose_attributes() {
    const Format compute = accumulator_of(storage_);
    tau_ = 1 / std::sqrt(static_cast<double>(extent(axis::head_size)));
    if (in("tau")) {
      static constexpr double scales[] = {0, 1, 0x1p-10, 3, 0.3};
      tau_ = recipe_.variant % 6 == 5 ? -tau_ : scales[recipe_.variant % 6];
    }
    tau_ = round_to(compute, tau_);
    set("tau", tau_);
    if (in("softcap")) set("softcap", recipe_.variant % 3 == 0 ? 50 : recipe_.variant % 3 == 1 ? round_to(compute, 0.3) : 8);
    if (in("causal") || (in("mask") && recipe_.options & 32)) set("causal", 1 + recipe_.attributes % 2);
    if (in("window")) {
      set("window", static_cast<double>(1 + random_.below(std::max<std::int64_t>(1, extent(axis::keys)))));
      set("causal", recipe_.attributes % 3);
    }
    if (in("sink") || recipe_.options % 64 == 21) set("sink", 1);
    if (recipe_.attributes % 5 == 4) set("lse_base", 1);
    if (in("empty") && recipe_.attributes % 3 == 2) set("empty_row_policy", 1);
  }

  void put(Tensor& tensor, std::int64_t element, double value) const {
    const double largest = largest_finite(storage_);
    tensor.set(element, round_to(storage_, std::isfinite(value) ? std::clamp(value, -largest, largest) : value));
  }

  Tensor& make(const std::string& name) {
    const InputSpec& spec = signature_.inputs[static_cast<std::size_t>(signature_.input(name))];
    return result_.inputs[name] = Tensor::contiguous(element_format(spec.element, storage_), tensor_shape(spec.shape, result_, Reduction::none));
  }

  /// Element of key `j`'s channel `c` in the part of every key-value head.
  template <class Visit>
  void each_key(std::int64_t width, Visit visit) const {
    const std::int64_t parts = extent(axis::batch) * extent(axis::kv_heads);
    for (std::int64_t p = 0; p < parts; ++p)
      for (std::int64_t j = 0; j < extent(axis::keys); ++j)
        for (std::int64_t c = 0; c < width; ++c) visit((p * extent(axis::keys) + j) * width + c, j, c);
  }

  std::int64_t place() {
    const std::int64_t keys = extent(axis::keys);
    switch (recipe_.position) {
      case 0: return 0;
      case 1: return keys / 2;
      case 2: return keys - 1;
      default: return random_.below(keys);
    }
  }

  void operands() {
    const std::int64_t head = extent(axis::head_size), width = extent(axis::value_size), keys = extent(axis::keys);
    Tensor &q = make("q"), &k = make("k"), &v = make("v");
    std::vector<double> direction(static_cast<std::size_t>(head)), common(static_cast<std::size_t>(std::max(head, width)));
    for (double& x : direction) x = random_.chance(0.5) ? 1 : -1;
    for (double& x : common) x = random_.normal();
    const double step = recipe_.gap / 64.0;
    const bool directed = in("dominant") || in("late_maximum") || in("softcap");
    const double sigma = std::ldexp(1.0, recipe_.spread / 2 - 2) * (in("large_logits") ? 300 : 1);
    for (std::int64_t i = 0; i < q.elements(); ++i)
      put(q, i, directed ? direction[static_cast<std::size_t>(i % head)]
                : in("equal_logits") && recipe_.variant % 3 == 0 ? 0.0
                                                                  : sigma * random_.normal());
    // Along the direction a key of length x has the logit tau |direction|^2 x.
    const double unit = tau_ == 0 ? 0 : 1 / (tau_ * static_cast<double>(head));
    const std::int64_t leader = place();
    const double limit = accumulator_of(storage_) == Format::f64 ? 750 : 110;
    each_key(head, [&](std::int64_t element, std::int64_t j, std::int64_t c) {
      const double along = direction[static_cast<std::size_t>(c)] * unit;
      double value = random_.normal();
      if (in("dominant")) value = along * (j == leader ? step * limit : recipe_.variant % 2 ? 0.25 * value : 0);
      if (in("late_maximum")) value = along * (static_cast<double>(recipe_.variant % 2 ? keys - j : j) * 64 / static_cast<double>(keys) * (0.25 + step));
      if (in("softcap")) value = along * (recipe_.variant % 2 ? 5000 * step : 20) * value;
      if (in("equal_logits")) value = common[static_cast<std::size_t>(c)];
      if (in("shift")) value += std::ldexp(common[static_cast<std::size_t>(c)], recipe_.variant % 12);
      put(k, element, value);
    });
    const double scale = in("large_output") ? std::ldexp(1.0, recipe_.variant % 12) : 1;
    each_key(width, [&](std::int64_t element, std::int64_t, std::int64_t c) {
      double value = random_.normal();
      if (in("constant_values")) value = recipe_.variant % 3 == 0 ? 1 : common[static_cast<std::size_t>(c)];
      if (in("large_output")) value = scale * (1 + value / 8);
      put(v, element, value);
    });
  }

  void masks() {
    const std::int64_t queries = extent(axis::queries), keys = extent(axis::keys);
    if (in("bias") || recipe_.options & 8) {
      Tensor& bias = make("bias");
      for (std::int64_t i = 0; i < bias.elements(); ++i) {
        // In base 2 the log-sum-exp of the smallest number would overflow.
        const double lowest = result_.attributes.contains("lse_base") ? -1e30 : -largest_finite(storage_);
        const double fills[] = {-infinity, -1e4, -1e9, lowest};
        double fill = fills[recipe_.variant % 4];
        if (std::isinf(fill) && saturates(storage_)) fill = -largest_finite(storage_);
        put(bias, i, in("bias") && random_.chance(0.4) ? fill : random_.normal());
      }
    }
    if (!in("mask") && !in("empty") && !(recipe_.options & 16)) return;
    Tensor& mask = make("mask");
    for (std::int64_t i = 0; i < mask.elements(); ++i) {
      const std::int64_t j = i % keys, t = i / keys % queries;
      bool keep = true;
      switch (in("mask") ? recipe_.variant % 6 : 0) {
        case 0: keep = random_.chance(0.5); break;
        case 1: keep = j == keys / 2; break;              // one live key
        case 2: keep = j >= keys / 3; break;              // prefix hidden
        case 3: keep = j < (keys + 1) / 2; break;         // suffix hidden
        case 4: keep = j / 16 % 2 == t % 2; break;        // whole tiles hidden
        default: keep = t % 2 == 0 || random_.chance(0.2);
      }
      if (in("empty")) keep = recipe_.variant % 3 != 0 && t % 2 == 0 && (recipe_.variant % 3 == 1 || random_.chance(0.5));
      mask.set(i, keep);
    }
  }

  void upstreams() {
    const std::int64_t width = extent(axis::value_size);
    const bool only_lse = in("upstream") && recipe_.variant % 5 == 4;
    if (!only_lse) {
      Tensor& go = make("go");
      for (std::int64_t i = 0; i < go.elements(); ++i) {
        double value = upstream_value(recipe_.upstream, static_cast<std::size_t>(i % width), static_cast<std::size_t>(width / 2), random_);
        if (recipe_.upstream == 5 && i < width) value = 0;
        put(go, i, value);
      }
    }
    if (!only_lse && !(in("upstream") ? recipe_.variant % 2 : recipe_.options % 8 == 5)) return;
    Tensor& glse = make("glse");
    for (std::int64_t i = 0; i < glse.elements(); ++i) glse.set(i, random_.normal());
  }

  /// Another storage order; broadcast layouts repeat the first batch entry or head.
  Tensor with_layout(const Tensor& tensor) {
    std::vector<std::size_t> order(tensor.shape.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    Tensor logical = tensor, result = tensor;
    std::int64_t padding = 0;
    const std::size_t last = order.size() - 1;
    switch (recipe_.layout) {
      case 1: padding = 3; break;                                     // padded rows
      case 2: std::swap(order[1], order[2]); break;                   // [batch, tokens, heads, ...]
      case 3: result.offset = 5; break;
      case 4: std::swap(order[last], order[last - 1]); break;         // transposed
      case 5: padding = 2 * tensor.shape[last]; break;                // a slice of joined q, k, v
      default: break;
    }
    std::int64_t step = 1;
    for (std::size_t i = order.size(); i-- > 0;) {
      result.strides[order[i]] = step;
      step *= tensor.shape[order[i]] + (i == last ? padding : 0);
    }
    if (recipe_.layout == 0) {
      const std::size_t axis = recipe_.variant % 2;
      const std::int64_t inner = axis == 0 ? tensor.elements() / tensor.shape[0] : tensor.elements() / (tensor.shape[0] * tensor.shape[1]);
      for (std::int64_t i = 0; i < tensor.elements(); ++i) {
        const std::int64_t outer = axis == 0 ? 0 : i / (inner * tensor.shape[1]) * tensor.shape[1];
        logical.set(i, tensor.get(outer * inner + i % inner));
      }
      result.strides[axis] = 0;
    }
    // Gaps hold a poison that a kernel which ignores strides would pick up.
    result.bytes.assign(static_cast<std::size_t>((step + result.offset) * tensor.width()), std::byte{0x7b});
    for (std::int64_t i = 0; i < logical.elements(); ++i) result.set(i, logical.get(i));
    return result;
  }

  const Recipe& recipe_;
  const Signature& signature_;
  Format storage_;
  Random random_;
  Case result_;
  double tau_ = 1;
};

}  // namespace

std::vector<std::string> attention_strata() {
  return {"plain", "equal_logits", "dominant", "large_logits", "late_maximum", "constant_values", "large_output", "shift", "tau", "long", "dimension",
          "mask", "bias", "empty", "causal", "window", "softcap", "sink", "grouped", "layout", "upstream"};
}

Case expand_attention(const Recipe& recipe, const Signature& signature, Format storage) {
  return AttentionRecipe(recipe, signature, storage).expand();
}

std::vector<std::string> attention_classes() {
  std::vector<std::string> classes;
  for (const std::string& stratum : attention_strata()) classes.push_back("stratum:" + stratum);
  classes.insert(classes.end(), {"keys:1", "keys:2", "keys:above 128", "heads:one", "heads:grouped", "heads:several", "causal:top_left", "causal:bottom_right",
                                 "lse cotangent:given", "lse cotangent:none", "queries:more than keys", "queries:fewer than keys"});
  return classes;
}

std::vector<std::string> attention_classes_of(const Recipe& recipe, const Signature& signature, const Case& input) {
  std::vector<std::string> classes = {"stratum:" + recipe.stratum};
  const auto extent = [&](std::size_t axis) { return input.extents[axis]; };
  const std::int64_t keys = extent(axis::keys), heads = extent(axis::heads), kv_heads = extent(axis::kv_heads);
  if (keys <= 2) classes.push_back("keys:" + std::to_string(keys));
  if (keys > 128) classes.push_back("keys:above 128");
  classes.push_back(heads > kv_heads ? "heads:grouped" : heads == 1 ? "heads:one" : "heads:several");
  const auto& causal = signature.attributes[static_cast<std::size_t>(signature.attribute("causal"))];
  if (const auto found = input.attributes.find("causal"); found != input.attributes.end())
    classes.push_back("causal:" + causal.choices[static_cast<std::size_t>(found->second)]);
  classes.push_back(input.inputs.contains("glse") ? "lse cotangent:given" : "lse cotangent:none");
  if (extent(axis::queries) != keys) classes.push_back(extent(axis::queries) > keys ? "queries:more than keys" : "queries:fewer than keys");
  return classes;
}

}  // namespace sumzero
