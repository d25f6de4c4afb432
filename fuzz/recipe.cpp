#include "fuzz/recipe.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fuzz/attention_recipe.hpp"
#include "fuzz/random.hpp"

namespace sumzero {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Precision thresholds where Softmax Collapse sets in for the accumulator: p ln 2.
double collapse_gap(Format storage) { return traits(accumulator_of(storage)).precision * 0.6931471805599453; }
/// Gap beyond which exp underflows to zero in the accumulator.
double underflow_gap(Format storage) { return accumulator_of(storage) == Format::f64 ? 745.2 : 103.98; }
double largest_offset_exponent(Format storage) {
  return storage == Format::f64 ? 60 : std::min(40, traits(storage).max_exponent - 1);
}

struct Logits {
  const Recipe& recipe;
  Format storage;
  Random& random;

  std::size_t place(std::size_t n) const {
    switch (recipe.position) {
      case 0: return 0;
      case 1: return n / 2;
      case 2: return n - 1;
      default: return static_cast<std::size_t>(random.below(static_cast<std::int64_t>(n)));
    }
  }
  double sigma() const { return std::ldexp(1.0, recipe.spread - 4); }  // 1/16 .. 2^6

  void gaussian(std::vector<double>& x) const {
    for (double& v : x) v = sigma() * random.normal();
  }

  std::vector<double> row(std::size_t n) const {
    const std::string& s = recipe.stratum;
    std::vector<double> x(n);
    const double step = recipe.gap / 64.0;  // 0..1
    const double limit = underflow_gap(storage) + 6;
    if (s == "peak") {
      // One leader over a flat, Gaussian or staircase tail; the lead sweeps the whole range of exp.
      const double lead = recipe.variant % 4 == 3 ? random.uniform(0, limit) : step * limit;
      for (std::size_t j = 0; j < n; ++j)
        x[j] = recipe.variant % 4 == 1 ? 0.25 * random.normal()
               : recipe.variant % 4 == 2 ? -static_cast<double>(j % 32)
                                         : 0.0;
      x[place(n)] = *std::max_element(x.begin(), x.end()) + lead;
    } else if (s == "collapse") {
      // Within one unit of the gap at which a textbook gradient vanishes: p ln 2, and p ln 2 + ln(n-1).
      const double base = collapse_gap(storage) + (recipe.variant % 2 ? std::log(std::max<double>(1, static_cast<double>(n) - 1)) : 0.0);
      const double stored = traits(storage).precision * 0.6931471805599453 + (recipe.variant % 2 ? std::log(std::max<double>(1, static_cast<double>(n) - 1)) : 0.0);
      for (double& v : x) v = recipe.variant % 3 ? 0.0 : -0.01 * random.uniform();
      x[place(n)] = (recipe.variant & 4 ? stored : base) + 2 * step - 1;
    } else if (s == "underflow") {
      // Tail terms around the smallest normal and the smallest subnormal of exp.
      const double normal = accumulator_of(storage) == Format::f64 ? 708.4 : 87.34;
      const double least = recipe.variant % 3 == 2 ? underflow_gap(storage) : normal - 2;  // or all of it beyond
      for (double& v : x) v = -random.uniform(least, underflow_gap(storage) + 2);
      x[place(n)] = 0;
    } else if (s == "ties") {
      const double value = recipe.variant % 3 == 0 ? 0.0 : sigma() * random.normal();
      for (double& v : x) v = value;
      if (recipe.variant % 3 == 2)  // several maxima over a tail
        for (double& v : x) v = random.chance(0.5) ? value : value - 1 - std::floor(random.uniform(0, 8));
    } else if (s == "long") {
      const double value = sigma() * random.normal();
      for (double& v : x) v = value + (recipe.variant % 2 ? 0.001 * random.normal() : 0.0);
    } else if (s == "ramp") {
      for (std::size_t j = 0; j < n; ++j)
        x[j] = static_cast<double>(recipe.variant % 2 ? j : n - j) * 64 / static_cast<double>(n) * (0.25 + step);
    } else {
      gaussian(x);
      if (n > 1 && recipe.gap > 0) x[place(n)] += step * 20;
    }
    if (s == "shift" || recipe.offset > 0) {
      const double exponent = std::min<double>(recipe.offset, largest_offset_exponent(storage));
      const double c = std::ldexp(1 + random.uniform(), static_cast<int>(exponent)) * (random.chance(0.5) ? 1 : -1);
      for (double& v : x) v += c;
    }
    if (s == "special") {
      const int kind = recipe.variant % 8;
      const auto put = [&](double value) { x[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(n)))] = value; };
      if (kind == 0) put(std::nan(""));
      if (kind == 1) put(infinity);
      if (kind == 2) put(-infinity);
      if (kind == 3) std::fill(x.begin(), x.end(), -infinity);
      if (kind == 4) for (double& v : x) if (random.chance(0.5)) v = -infinity;
      if (kind == 5) put(infinity), put(-infinity);
      if (kind == 6) put(infinity), put(std::nan(""));
      if (kind == 7) put(0x1p-149), put(-0.0);
    }
    const double largest = largest_finite(storage);
    // Where the format has no infinity, an infinite logit is its largest number.
    for (double& v : x) v = round_to(storage, std::isfinite(v) ? std::clamp(v, -largest, largest) : v);
    return x;
  }
};

bool has(const Signature& signature, Role role) { return signature.input_with(role) >= 0; }

/// Puts a row-major tensor into another storage order; the logical contents stay. A vector is padded, offset, broadcast or
/// reversed.
Tensor with_layout(const Tensor& tensor, int layout) {
  if (tensor.shape.empty() || tensor.shape.size() > 2 || layout == 0) return tensor;
  Tensor result = tensor;
  const bool vector = tensor.shape.size() == 1;
  const std::int64_t rows = tensor.shape[0], classes = vector ? 1 : tensor.shape[1], width = tensor.width();
  std::int64_t storage = rows * classes;
  if (vector && (layout == 2 || layout == 5)) {
    result.strides = {-1};
    result.offset = rows - 1;
    layout = 0;
  }
  switch (layout) {
    case 0: break;
    case 1: result.strides = {classes + 3, 1}; storage = rows * (classes + 3); break;
    case 2: result.strides = {1, rows}; break;
    case 3: result.offset = 5; storage += 5; break;
    case 4: result.strides = {0, 1}; storage = classes; break;
    default: result.strides = {classes, -1}; result.offset = classes - 1; break;
  }
  result.strides.resize(tensor.shape.size());
  // Gaps hold a poison that a kernel which ignores strides would pick up.
  result.bytes.assign(static_cast<std::size_t>(storage * width), std::byte{0x7b});
  for (std::int64_t i = 0; i < rows * classes; ++i) result.set(i, tensor.get(i));
  return result;
}

void choose_attributes(const Recipe& recipe, const Signature& signature, Format storage, Random& random, Case& result) {
  const Format compute = accumulator_of(storage);
  for (const AttributeSpec& spec : signature.attributes) {
    double value = spec.default_value;
    if (!spec.choices.empty()) {
      // Policies keep their default outside the stratum that is about them.
      const bool policy = spec.name.ends_with("_policy");
      if (policy && recipe.stratum != "special" && recipe.stratum != "mask" && recipe.stratum != "label") continue;
      const auto choices = static_cast<std::int64_t>(spec.choices.size());
      // The other choices take turns, each with every kind of the stratum.
      value = static_cast<double>(policy ? random.below(choices) : (recipe.variant + recipe.variant / 4) % choices);
      if (policy && recipe.attributes % 3 != 2) value = spec.default_value;
    } else if (spec.name == "T") {
      static constexpr double ordinary[] = {1, 1, 2, 4, 0.5, 3, 0.7};
      static constexpr double extreme[] = {20, 0.05, 1000, 0x1p-10, 7.3, 65536};
      value = recipe.stratum == "temperature" ? extreme[recipe.attributes % 6] : ordinary[recipe.attributes % 7];
    } else if (spec.name == "beta") {
      static constexpr double choices[] = {0.5, 0.5, 0.1, 0.9, 0.25, 0x1p-10, 1 - 0x1p-10};
      value = choices[(recipe.attributes / 2) % 7];
    } else if (spec.name == "scale") {
      static constexpr double ordinary[] = {1, 0.125, 2, 0.3, 0.7071067811865476};
      value = recipe.stratum == "scale" ? std::exp2(random.uniform(-20, 20)) : ordinary[recipe.attributes % 5];
    } else if (spec.name == "label_smoothing") {
      static constexpr double choices[] = {0, 0.1, 0.25, 0.01, 1, 0.9};
      value = recipe.stratum == "smoothing" ? choices[1 + recipe.attributes % 5] : recipe.attributes % 4 == 3 ? 0.1 : 0;
    } else if (spec.name == "ignore_index") {
      static constexpr double choices[] = {-100, 0, -1};
      value = recipe.stratum == "label" ? choices[recipe.attributes % 3] : -100;
    }
    if (spec.choices.empty() && spec.name != "ignore_index") value = round_to(compute, value);
    if (value != spec.default_value) result.attributes[spec.name] = value;
  }
}

/// Student logits near the teacher's: equal, shifted, or perturbed by 2^-closeness.
std::vector<double> near(const std::vector<double>& teacher, const Recipe& recipe, Format storage, Random& random) {
  std::vector<double> student = teacher;
  if (recipe.stratum == "equal") {
    if (recipe.variant % 3 == 1)
      for (double& v : student) v = round_to(storage, v + 0.5 * (1 << (recipe.variant % 4)));
    return student;
  }
  for (double& v : student) v = round_to(storage, v + std::ldexp(random.normal(), -recipe.closeness));
  if (student == teacher) {
    // Closer than the spacing of the format: the nearest student is one step away, towards zero.
    double& v = student[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(student.size())))];
    v = round_to(storage, v - std::copysign(std::max(smallest_subnormal(storage), 2 * unit_roundoff(storage) * std::fabs(v)), v));
  }
  return student;
}

}  // namespace

std::vector<std::string> strata_of(const Signature& signature) {
  if (signature.axes == Axes::attention) return attention_strata();
  if (has(signature, Role::state_maximum)) return {"merge", "merge_empty", "special", "layout"};
  if (has(signature, Role::partial_output)) return {"merge", "merge_empty", "layout", "upstream", "dimension"};
  std::vector<std::string> strata = {"plain", "peak", "collapse", "underflow", "ties", "long", "ramp", "shift",
                                     "dimension", "special", "layout", "upstream"};
  if (has(signature, Role::teacher_logits)) strata.insert(strata.end(), {"near", "equal", "temperature", "one_hot_teacher"});
  if (has(signature, Role::label)) strata.insert(strata.end(), {"label", "smoothing", "weights"});
  if (has(signature, Role::probabilities)) strata.insert(strata.end(), {"targets", "weights"});
  if (has(signature, Role::mask)) strata.push_back("mask");
  if (signature.attribute("scale") >= 0) strata.push_back("scale");
  return strata;
}

Case expand(const Recipe& recipe, const Signature& signature, Format storage) {
  if (signature.axes == Axes::attention) return expand_attention(recipe, signature, storage);
  Random random(recipe.seed);
  Case result;
  result.op = signature.name;
  result.storage = storage;
  std::int64_t rows = std::max(1, recipe.rows), classes = std::max(1, recipe.classes);
  if (has(signature, Role::state_maximum)) classes = 1;
  result.extents = {rows, classes};
  choose_attributes(recipe, signature, storage, random, result);
  const std::vector<double> attributes = attribute_values(signature, result);
  const Reduction reduction = reduction_of(signature, attributes);
  const auto n = static_cast<std::size_t>(classes);
  const Logits logits{recipe, storage, random};
  const auto row_of = [&](Tensor& tensor, std::int64_t row, const std::vector<double>& values) {
    for (std::size_t j = 0; j < n; ++j) tensor.set(row * classes + static_cast<std::int64_t>(j), values[j]);
  };
  const bool broadcast = recipe.stratum == "layout" && recipe.layout == 4;
  std::vector<std::vector<double>> logit_rows;
  for (std::int64_t row = 0; row < rows; ++row)
    logit_rows.push_back(broadcast && row > 0 ? logit_rows[0] : logits.row(n));
  std::vector<std::vector<double>> teacher_rows = logit_rows;

  const bool sparse_weights = recipe.options & 1;
  for (const InputSpec& spec : signature.inputs) {
    Tensor tensor = Tensor::contiguous(element_format(spec.element, storage), tensor_shape(spec.shape, result, reduction));
    const std::int64_t count = tensor.elements();
    switch (spec.role) {
      case Role::logits:
        for (std::int64_t row = 0; row < rows; ++row) {
          auto values = logit_rows[static_cast<std::size_t>(row)];
          if (has(signature, Role::teacher_logits)) {
            const bool special = recipe.stratum == "special";
            const int side = recipe.variant / 8 % 3;  // of the special values: both vectors, the student's, the teacher's
            if (special && side > 0) {
              for (double& v : side == 1 ? teacher_rows[static_cast<std::size_t>(row)] : values)
                v = round_to(storage, logits.sigma() * random.normal());
            } else if (recipe.stratum == "near" || recipe.stratum == "equal" || recipe.stratum == "layout" || recipe.stratum == "upstream" ||
                recipe.stratum == "shift" || recipe.stratum == "long")
              values = near(values, recipe, storage, random);
            else if (!special || recipe.variant % 2)
              for (double& v : values) v = std::isfinite(v) ? round_to(storage, logits.sigma() * random.normal()) : v;
          }
          if (broadcast && row > 0)
            for (std::int64_t j = 0; j < classes; ++j) values[static_cast<std::size_t>(j)] = tensor.get(j);
          row_of(tensor, row, values);
        }
        break;
      case Role::teacher_logits:
        for (std::int64_t row = 0; row < rows; ++row) {
          auto values = teacher_rows[static_cast<std::size_t>(row)];
          if (recipe.stratum == "one_hot_teacher") {
            std::fill(values.begin(), values.end(), recipe.variant % 2 ? -infinity : -120.0);
            values[logits.place(n)] = 0;
          }
          row_of(tensor, row, values);
        }
        break;
      case Role::bias:
        if (!(recipe.options & 2)) continue;
        for (std::int64_t i = 0; i < count; ++i)
          tensor.set(i, recipe.stratum == "mask" && random.chance(0.4) ? (recipe.variant % 2 ? -infinity : -1e4) : random.normal());
        break;
      case Role::mask:
        if (recipe.stratum != "mask" && !(recipe.options & 4)) continue;
        for (std::int64_t i = 0; i < count; ++i) {
          const std::int64_t j = i % classes;
          const bool keep = recipe.variant % 5 == 0   ? random.chance(0.5)
                            : recipe.variant % 5 == 1 ? j <= i / classes  // causal
                            : recipe.variant % 5 == 2 ? j == classes / 2  // one live key
                            : recipe.variant % 5 == 3 ? j >= classes / 3  // prefix masked
                                                      : recipe.stratum != "mask" || i / classes % 2 == 0;
          tensor.set(i, keep);
        }
        break;
      case Role::label: {
        const int ignore = signature.attribute("ignore_index");
        for (std::int64_t row = 0; row < rows; ++row) {
          const auto& x = logit_rows[static_cast<std::size_t>(row)];
          std::vector<std::size_t> order(n);
          for (std::size_t j = 0; j < n; ++j) order[j] = j;
          const int rank = recipe.options / 8 % 4;
          std::int64_t label = random.below(classes);
          if (rank < 2) {
            // The target is the maximum or the runner-up.
            std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return x[a] > x[b]; });
            label = static_cast<std::int64_t>(order[std::min<std::size_t>(static_cast<std::size_t>(rank), n - 1)]);
          }
          const bool ignored = recipe.stratum == "label" && (recipe.variant % 4 == 0 || row == 1 || random.chance(0.4));
          const auto ignore_value = static_cast<std::int64_t>(attributes[static_cast<std::size_t>(ignore)]);
          const bool spare_first = recipe.variant % 4 != 0 && row == 0;
          if (ignored && !spare_first) {
            label = ignore_value;
            // What an ignored row holds must not matter.
            Tensor& logit_tensor = result.inputs.at(signature.inputs[static_cast<std::size_t>(signature.input_with(Role::logits))].name);
            if (recipe.variant % 3 == 1) logit_tensor.set(row * classes + random.below(classes), recipe.variant % 2 ? std::nan("") : infinity);
          } else if (label == ignore_value) label = classes > 1 ? (label + 1) % classes : label;
          tensor.set(row, static_cast<double>(label));
        }
        break;
      }
      case Role::probabilities:
        for (std::int64_t row = 0; row < rows; ++row) {
          double total = 0;
          std::vector<double> q(n);
          const std::size_t hot = logits.place(n);
          enum { plain, one_hot, sparse, heavy, zeros };
          const int kind = recipe.stratum == "targets" ? recipe.variant % 5 : plain;
          // Half of the rows with special values have no target where the class is dead: 0 times -inf.
          const bool spare_dead = recipe.stratum == "special" && recipe.variant / 8 % 2 == 0;
          const auto& x = logit_rows[static_cast<std::size_t>(row)];
          for (std::size_t j = 0; j < n; ++j) {
            q[j] = kind == one_hot ? (j == hot) : std::exp(random.normal());
            if ((kind == sparse && random.chance(0.5)) || (spare_dead && x[j] == -infinity)) q[j] = 0;
            total += q[j];
          }
          if (total == 0) q[hot] = total = 1;
          const double mass = kind == heavy ? 1.01 : kind == zeros && row == 0 ? 0.0 : 1.0;
          for (std::size_t j = 0; j < n; ++j) q[j] = round_to(storage, q[j] / total * mass);
          row_of(tensor, row, q);
        }
        break;
      case Role::weights:
        // Labels, weights and ignored rows meet in defects of the mean.
        if (recipe.stratum != "weights" && !(recipe.options & 2) && !(recipe.stratum == "label" && recipe.variant % 5 < 3)) continue;
        for (std::int64_t i = 0; i < count; ++i) tensor.set(i, sparse_weights && count > 1 && i == 0 ? 0.5 : std::exp2(random.uniform(-4, 4)));
        break;
      case Role::upstream: {
        const std::int64_t per_row = spec.shape == Shape::row ? classes : 1;
        for (std::int64_t i = 0; i < count; ++i) {
          const std::int64_t row = i / per_row;
          double value = upstream_value(recipe.upstream, static_cast<std::size_t>(i % per_row),
                                        logits.place(static_cast<std::size_t>(per_row)), random);
          if (recipe.upstream == 5 && row == 0 && rows > 1) value = 0;
          // A dead entry gets no upstream: what it should do there is policy, not accuracy.
          const auto& x = logit_rows[static_cast<std::size_t>(std::min(row, rows - 1))];
          if (spec.shape == Shape::row && !(x[static_cast<std::size_t>(i % per_row)] > -infinity)) value = 0;
          tensor.set(i, value);
        }
        break;
      }
      case Role::state_maximum:
        for (std::int64_t i = 0; i < count; ++i)
          tensor.set(i, (random.chance(0.5) ? 1 : -1) * (recipe.variant % 4 == 0 ? 0 : recipe.gap / 64.0 * underflow_gap(storage) * random.uniform()) +
                            logits.sigma() * random.normal());
        if (recipe.stratum == "special") tensor.set(random.below(count), recipe.variant % 2 ? infinity : std::nan(""));
        break;
      case Role::state_tail:
        for (std::int64_t i = 0; i < count; ++i)
          tensor.set(i, recipe.variant % 3 == 0 ? 0 : std::exp2(recipe.variant % 3 == 1 ? random.uniform(-140, 10) : random.uniform(0, 20)));
        break;
      case Role::query:
      case Role::key:
      case Role::value: continue;  // attention has its own recipes
      case Role::partial_output:
        for (std::int64_t i = 0; i < count; ++i) tensor.set(i, logits.sigma() * random.normal());
        break;
      case Role::partial_lse:
        for (std::int64_t i = 0; i < count; ++i) {
          const bool empty = recipe.stratum == "merge_empty" && random.chance(0.5);
          tensor.set(i, empty ? -infinity : logits.sigma() * random.normal() + (random.chance(0.5) ? 1 : -1) * recipe.gap / 64.0 * underflow_gap(storage) * random.uniform());
        }
        break;
      case Role::state_empty:
        for (std::int64_t i = 0; i < count; ++i) tensor.set(i, recipe.stratum == "merge_empty" && random.chance(0.5));
        break;
    }
    if (recipe.stratum == "layout") {
      if (recipe.layout == 4 && spec.shape != Shape::classes) {
        const std::int64_t period = spec.shape == Shape::row ? classes : 1;
        for (std::int64_t i = period; i < count; ++i) tensor.set(i, tensor.get(i % period));
      }
      if (recipe.layout != 4 || spec.shape != Shape::classes) tensor = with_layout(tensor, recipe.layout);
    }
    result.inputs[spec.name] = std::move(tensor);
  }
  // The identity state of a merge: m = -inf, r = 0.
  for (const char* side : {"1", "2"}) {
    const auto flag = result.inputs.find(std::string("e") + side);
    if (flag == result.inputs.end() || !has(signature, Role::state_empty)) continue;
    for (std::int64_t i = 0; i < flag->second.elements(); ++i)
      if (flag->second.get(i) != 0) {
        result.inputs.at(std::string("m") + side).set(i, -infinity);
        result.inputs.at(std::string("r") + side).set(i, 0);
      }
  }
  return result;
}

std::vector<std::string> required_classes(const Signature& signature) {
  if (signature.axes == Axes::attention) return attention_classes();
  std::vector<std::string> classes;
  for (const std::string& stratum : strata_of(signature)) classes.push_back("stratum:" + stratum);
  if (!has(signature, Role::logits)) return classes;
  classes.insert(classes.end(), {"maximum:first", "maximum:middle", "maximum:last", "gap:below collapse", "gap:above collapse",
                                 "gap:beyond underflow", "classes:1", "classes:2", "classes:above 512"});
  if (has(signature, Role::label)) classes.insert(classes.end(), {"target:maximum", "target:other", "target:ignored"});
  if (signature.reduces()) classes.insert(classes.end(), {"reduction:none", "reduction:sum", "reduction:mean"});
  return classes;
}

std::vector<std::string> classes_of(const Recipe& recipe, const Signature& signature, const Case& input) {
  if (signature.axes == Axes::attention) return attention_classes_of(recipe, signature, input);
  std::vector<std::string> classes = {"stratum:" + recipe.stratum};
  if (!has(signature, Role::logits)) return classes;
  const std::int64_t n = input.extents[1];
  const auto add = [&](std::string name) {
    if (std::find(classes.begin(), classes.end(), name) == classes.end()) classes.push_back(std::move(name));
  };
  if (n <= 2) add("classes:" + std::to_string(n));
  if (n > 512) add("classes:above 512");
  // Where two logit vectors are compared, the recipe shapes the teacher's.
  const Role shaped = has(signature, Role::teacher_logits) ? Role::teacher_logits : Role::logits;
  const auto& spec = signature.inputs[static_cast<std::size_t>(signature.input_with(shaped))];
  const Tensor& x = input.inputs.at(spec.name);
  const std::vector<double> attributes = attribute_values(signature, input);
  for (std::int64_t row = 0; row < input.extents[0]; ++row) {
    double first = -infinity, second = -infinity;
    std::int64_t k = 0;
    bool finite = true;
    for (std::int64_t j = 0; j < n; ++j) {
      const double v = x.get(row * n + j);
      finite = finite && std::isfinite(v);
      if (v > first) second = first, first = v, k = j;
      else if (v > second) second = v;
    }
    if (has(signature, Role::label)) {
      const std::int64_t label = label_of(signature, input, row);
      if (!row_is_kept(signature, attributes, label)) add("target:ignored");
      else add(label == k ? "target:maximum" : "target:other");
    }
    if (!finite || n < 2) continue;
    if (n > 2) add(k == 0 ? "maximum:first" : k == n - 1 ? "maximum:last" : "maximum:middle");
    const double gap = first - second;
    add(gap < collapse_gap(input.storage) ? "gap:below collapse" : "gap:above collapse");
    if (gap > underflow_gap(input.storage)) add("gap:beyond underflow");
  }
  if (signature.reduces()) {
    static constexpr const char* names[] = {"reduction:none", "reduction:sum", "reduction:mean"};
    add(names[static_cast<int>(reduction_of(signature, attributes))]);
  }
  return classes;
}

}  // namespace sumzero
