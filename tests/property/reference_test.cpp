// The references against mathematics: every backward is the derivative of its forward, the number types agree, and
// the facts and limits of the softmax family hold. Generic over every registered operator.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <optional>

#include "fuzz/recipe.hpp"
#include "fuzz/recipe_generator.hpp"
#include "reference/losses/kl_forward.hpp"
#include "reference/losses/soft_cross_entropy.hpp"
#include "reference/register.hpp"
#include "reference/softmax/logsumexp.hpp"
#include "reference/softmax/softmax.hpp"
#include "tests/case_builder.hpp"

namespace sumzero {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr std::uint64_t seed = 20;

std::vector<const OperatorReference*> operators() { return Registry::global().operators(); }

/// Case `index` of an operator with small extents.
Recipe small_recipe(const Signature& signature, std::uint64_t index, int rows, int classes) {
  Recipe recipe = generate_recipe(signature, seed, index);
  recipe.rows = 1 + (recipe.rows - 1) % rows;
  recipe.classes = 1 + (recipe.classes - 1) % classes;
  if (signature.axes == Axes::attention) {
    recipe.closeness %= 4;  // head sizes of at most 4
    recipe.attributes -= recipe.attributes % 11 / 4 * 4;
  }
  return recipe;
}

// ---------------------------------------------------------------------------------------------------------
// Backward is the derivative of forward

constexpr double step = 0x1p-38;  // h
constexpr int derivative_bits = 1024;

/// Attribute value with its default.
double attribute_of(const Signature& signature, const Case& input, const std::string& name, double absent) {
  const int index = signature.attribute(name);
  return index < 0 ? absent : attribute_values(signature, input)[static_cast<std::size_t>(index)];
}

/// Inputs whose neighbours at +-h and +-2h are doubles: multiples of 2^-10 below 2^12 need 12 + 38 + 1 = 51 bits with the
/// steps. Probabilities and tails stay at least 2^-10, so that their neighbours are not negative. False when an entry is
/// too large.
bool make_differentiable(const Signature& signature, Case& input) {
  for (const OutputSpec& output : signature.outputs) {
    if (output.gradient_of < 0) continue;
    const InputSpec& spec = signature.inputs[static_cast<std::size_t>(output.gradient_of)];
    const auto found = input.inputs.find(spec.name);
    if (found == input.inputs.end()) continue;
    Tensor tensor = found->second.packed();
    const bool non_negative_input = spec.role == Role::probabilities || spec.role == Role::state_tail;
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
      const double value = tensor.get(i);
      if (!std::isfinite(value)) continue;
      if (std::fabs(value) > 4000) return false;
      tensor.set(i, std::nearbyint(value * 1024) / 1024);
      if (non_negative_input) tensor.set(i, std::max(tensor.get(i), 0x1p-10));
    }
    found->second = tensor;
  }
  return true;
}

/// <upstream, value outputs> of one row, or nothing where it is not finite. Losses: times the upstream over the
/// denominator; an absent upstream of a loss counts as 1 over 1, of any other output as 0.
std::optional<Enclosure> contraction(const OperatorReference& reference, const Case& input, std::int64_t row) {
  const Signature& signature = reference.signature();
  CaseEvaluator evaluator(reference, input);
  RowValues<Enclosure> values;
  evaluator.row(row, values);
  Enclosure total;
  for (const InputSpec& spec : signature.inputs) {
    if (spec.role != Role::upstream) continue;
    const std::vector<Enclosure>& out = values.out[static_cast<std::size_t>(spec.upstream_of)];
    const auto found = input.inputs.find(spec.name);
    const bool present = found != input.inputs.end();
    for (std::size_t j = 0; j < out.size(); ++j) {
      double upstream = spec.shape == Shape::reduced ? 1 : 0;
      if (present) {
        const Tensor& g = found->second;
        const auto place = static_cast<std::int64_t>(j) + row * static_cast<std::int64_t>(out.size());
        upstream = g.get(g.shape.empty() ? 0 : place);
      }
      if (upstream == 0) continue;
      if (is_special(out[j])) return std::nullopt;
      Enclosure term = Enclosure(upstream) * out[j];
      if (spec.shape == Shape::reduced && present) term = term / evaluator.denominator<Enclosure>();
      total = total + term;
    }
  }
  return total;
}

/// (8 (F(h) - F(-h)) - (F(2h) - F(-2h))) / 12h of a function of the signed step; F' - h^4/30 F^(5) + O(h^6).
std::optional<Enclosure> derivative(const std::function<std::optional<Enclosure>(double)>& function) {
  const auto p1 = function(step), m1 = function(-step), p2 = function(2 * step), m2 = function(-2 * step);
  if (!p1 || !m1 || !p2 || !m2) return std::nullopt;
  return (Enclosure(8.0) * (*p1 - *m1) - (*p2 - *m2)) / Enclosure(12 * step);
}

/// Largest magnitude of an input, 0 when it is absent.
double largest_entry(const Case& input, const char* name) {
  double largest = 0;
  if (const auto found = input.inputs.find(name); found != input.inputs.end())
    for (std::int64_t i = 0; i < found->second.elements(); ++i) largest = std::max(largest, std::fabs(found->second.get(i)));
  return largest;
}

/// What a step of an input is multiplied by on its way into an exponential or a cap: 1/T, the scale, or tau times the other
/// operand of the product.
double inner_factor(const Signature& signature, const Case& input) {
  const double cap = attribute_of(signature, input, "softcap", 0);
  const double product = std::fabs(attribute_of(signature, input, "tau", 0)) * std::max(largest_entry(input, "q"), largest_entry(input, "k"));
  return std::max({1.0, 1 / attribute_of(signature, input, "T", 1), attribute_of(signature, input, "scale", 1), product}) * (cap > 0 && cap < 1 ? 1 / cap : 1);
}

/// Bound of h^4/30 |F^(5)|, where F is a contraction. In one coordinate, sigmoids and their logarithms have derivatives up
/// to the fifth below 1, e^d and the tail stay below their own size, so by Leibniz every output is below
/// 2^5 (1 + magnitude)^2 n with `magnitude` the largest input of the row (log-ratios are differences of logits); an inner
/// factor c gives c^5, an outer T^2 itself.
/// A step of the scale or of tau is multiplied by a difference of logits or of products before it gets there.
double tolerance(const Signature& signature, const Case& input, const std::string& attribute = "") {
  double magnitude = 1, total_upstream = 1;
  for (const InputSpec& spec : signature.inputs) {
    const auto found = input.inputs.find(spec.name);
    if (found == input.inputs.end() || spec.element == Element::index) continue;
    for (std::int64_t i = 0; i < found->second.elements(); ++i) {
      const double value = std::fabs(found->second.get(i));
      if (std::isfinite(value)) (spec.role == Role::upstream ? total_upstream : magnitude) += value;
    }
  }
  double inner = inner_factor(signature, input);
  if (attribute == "scale") inner = std::max(inner, 2 * largest_entry(input, "x"));
  if (attribute == "tau") inner *= 2 * static_cast<double>(input.extents[axis::head_size]) * std::max({1.0, largest_entry(input, "q"), largest_entry(input, "k")});
  const double outer = std::max(1.0, std::pow(attribute_of(signature, input, "T", 1), 2));
  return std::pow(step, 4) / 30 * 32 * magnitude * magnitude * total_upstream * static_cast<double>(input.extents[1]) *
         std::pow(inner, 5) * outer;
}

/// The state (m, r) is not differentiable where two maxima are tied: is this row's lead above the steps?
bool differentiable(const Signature& signature, const Case& input, std::int64_t row) {
  if (signature.output("m") < 0) return true;
  std::vector<double> x;
  if (input.inputs.contains("x"))
    for (std::int64_t j = 0; j < input.extents[1]; ++j) x.push_back(input.inputs.at("x").get(row * input.extents[1] + j));
  else
    x = {input.inputs.at("m1").get(row), input.inputs.at("m2").get(row)};
  std::sort(x.begin(), x.end(), std::greater<>());
  return x.size() < 2 || !(x[0] - x[1] < 0x1p-12);
}

struct DerivativeCheck {
  std::int64_t entries = 0, wrong = 0;
  double worst = 0;  ///< |difference| over the gradient's size in its row, where that is not tiny
};

Enclosure sum_of_row(const std::vector<Enclosure>& values) {
  Enclosure sum;
  for (const Enclosure& value : values) sum = sum + value;
  return sum;
}

/// A fully masked row under the policy `nan`: its values are no function of the inputs.
bool undefined(const OperatorReference& reference, const Case& input, std::int64_t row) {
  const OutputSpec& value = reference.signature().outputs[0];
  const std::vector<Enclosure> values = exact_row(reference, input, value.name, row);
  return std::all_of(values.begin(), values.end(), [](const Enclosure& v) { return is_special(v) && std::isnan(midpoint_hint(v)); });
}

/// Compares every gradient entry of a case with the central difference.
void check_derivatives(const OperatorReference& reference, const Case& input, DerivativeCheck& check) {
  const Signature& signature = reference.signature();
  if (inner_factor(signature, input) > 32) return;  // the fifth power would leave nothing to compare
  for (std::int64_t row = 0; row < problem_count(signature, input); ++row) {
    if (!differentiable(signature, input, row) || undefined(reference, input, row) || !contraction(reference, input, row)) continue;
    for (const OutputSpec& output : signature.outputs) {
      const std::string attribute = output.name == "gscale" ? "scale" : output.name == "gtau" ? "tau" : "";
      if (output.gradient_of < 0 && attribute.empty()) continue;
      const double allowed = tolerance(signature, input, attribute);
      std::vector<Enclosure> gradient = exact_row(reference, input, output.name, row);
      if (!attribute.empty()) gradient = {sum_of_row(gradient)};  // every query gives its share
      double size = 0;
      for (const Enclosure& g : gradient) size = std::max(size, is_special(g) ? 0.0 : magnitude_upper(g));
      for (std::size_t j = 0; j < gradient.size(); ++j) {
        std::optional<Enclosure> expected;
        if (!attribute.empty()) {
          const double here = std::nearbyint(attribute_of(signature, input, attribute, 1) * 1024) / 1024;
          if (here != attribute_of(signature, input, attribute, 1)) continue;  // its neighbours are no doubles
          expected = derivative([&](double by) {
            Case other = input;
            other.attributes[attribute] = here + by;
            return contraction(reference, other, row);
          });
        } else {
          const std::string& name = signature.inputs[static_cast<std::size_t>(output.gradient_of)].name;
          const auto found = input.inputs.find(name);
          const auto place = row * static_cast<std::int64_t>(gradient.size()) + static_cast<std::int64_t>(j);
          if (found == input.inputs.end() || !std::isfinite(found->second.get(place))) continue;
          expected = derivative([&](double by) {
            Case other = input;
            Tensor& tensor = other.inputs.at(name);
            tensor.set(place, tensor.get(place) + by);
            EXPECT_EQ(tensor.get(place) - by, input.inputs.at(name).get(place));
            return contraction(reference, other, row);
          });
        }
        if (!expected) continue;
        ++check.entries;
        const double difference = is_special(gradient[j]) ? infinity : magnitude_upper(gradient[j] - *expected);
        if (difference > allowed) {
          ++check.wrong;
          if (check.wrong == 1)
            std::printf("  %s.%s[%lld, %zu]: %s, difference quotient %s\n", signature.name.c_str(), output.name.c_str(),
                        static_cast<long long>(row), j, decimal(gradient[j], 25).c_str(), decimal(*expected, 25).c_str());
        }
        if (size > 1e-3) check.worst = std::max(check.worst, difference / size);
      }
    }
  }
}

DerivativeCheck check_cases(const OperatorReference& reference, std::uint64_t cases) {
  const WorkingPrecision precision(derivative_bits);
  const Signature& signature = reference.signature();
  DerivativeCheck check;
  for (std::uint64_t index = 0; index < cases; ++index) {
    const Recipe recipe = small_recipe(signature, index, 2, 4);
    if (recipe.stratum == "special") continue;
    Case input = expand(recipe, signature, Format::f64);
    if (!make_differentiable(signature, input)) continue;
    check_derivatives(reference, input, check);
    if (index % 3 != 0) continue;
    // Without any optional input.
    for (const InputSpec& spec : signature.inputs)
      if (spec.optional) input.inputs.erase(spec.name);
    check_derivatives(reference, input, check);
  }
  return check;
}

TEST(Derivatives, BackwardIsTheDifferenceQuotientOfForward) {
  for (const OperatorReference* reference : operators()) {
    SCOPED_TRACE(reference->signature().name);
    const DerivativeCheck check = check_cases(*reference, 56);
    std::printf("  %-24s %lld entries, worst %.2g of the row's gradient\n", reference->signature().name.c_str(),
                static_cast<long long>(check.entries), check.worst);
    EXPECT_GE(check.entries, 40);
    EXPECT_EQ(check.wrong, 0);
    // h^4/30 F^(5) with h^4 = 1.8e-46 leaves 21 decades for the factors of `tolerance`.
    EXPECT_LE(check.worst, 1e-25);
  }
}

/// Planted: a softmax backward without the mean of the upstream, and a distillation loss without the T^2 factor.
struct SoftmaxWithoutMean : Softmax {
  template <class N>
  static void row(RowProblem<N>& problem) {
    Softmax::row(problem);
    if (!problem.in[1]) return;
    for (std::size_t j = 0; j < problem.n; ++j) problem.out(1)[j] = problem.out(0)[j] * N(problem.in[1][j]);
  }
};
struct KlWithoutTemperature : KlForward {
  template <class N>
  static void row(RowProblem<N>& problem) {
    KlForward::row(problem);
    const N t(problem.attribute[0]);
    problem.out(0)[0] = problem.out(0)[0] / (t * t);
  }
};
/// Wrong by 2^-80 of the entry: far below double, above the difference quotient's error.
struct SoftmaxSlightlyOff : Softmax {
  template <class N>
  static void row(RowProblem<N>& problem) {
    Softmax::row(problem);
    for (std::size_t j = 0; j < problem.n; ++j) problem.out(1)[j] = problem.out(1)[j] * (N(1.0) + N(0x1p-80));
  }
};

TEST(Derivatives, WrongBackwardsAreCaught) {
  EXPECT_GT(check_cases(ReferenceOf<SoftmaxWithoutMean>(), 28).wrong, 20);
  EXPECT_GT(check_cases(ReferenceOf<KlWithoutTemperature>(), 28).wrong, 20);
  EXPECT_GT(check_cases(ReferenceOf<SoftmaxSlightlyOff>(), 28).wrong, 20);
}

// ---------------------------------------------------------------------------------------------------------
// Number types agree

struct Agreement {
  std::int64_t entries = 0, unknown = 0, wrong = 0;
  std::string first;
};

/// N at its usual precision against the Enclosure at 256 bits.
template <class N>
void check_agreement(const OperatorReference& reference, const Case& input, Agreement& agreement) {
  const Signature& signature = reference.signature();
  CaseEvaluator evaluator(reference, input);
  const WorkingPrecision precision(128);
  for (std::int64_t row = 0; row < evaluator.rows(); ++row) {
    RowValues<N> values;
    evaluator.row(row, values);
    const WorkingPrecision finer(256);
    RowValues<Enclosure> exact;
    evaluator.row(row, exact);
    for (std::size_t i = 0; i < signature.outputs.size(); ++i)
      for (std::size_t j = 0; j < exact.out[i].size(); ++j) {
        ++agreement.entries;
        const N& value = values.out[i][j];
        const Enclosure& truth = exact.out[i][j];
        bool fine = true;
        if (is_special(value) || is_special(truth)) {
          // An overflowed Ball knows nothing: its radius is not finite.
          if (!is_special(value) && !(magnitude_upper(value) < infinity)) ++agreement.unknown;
          else fine = same_special(value, truth);
        } else if (!(magnitude_upper(value) < infinity)) {
          ++agreement.unknown;
        } else {
          fine = separation(truth, value) == 0;
        }
        if (fine) continue;
        ++agreement.wrong;
        if (agreement.first.empty())
          agreement.first = signature.outputs[i].name + "[" + std::to_string(row) + ", " + std::to_string(j) + "]: " + decimal(truth, 20) +
                            " against " + std::to_string(midpoint_hint(value)) + " +- " + std::to_string(magnitude_upper(value));
      }
  }
}

template <class N>
Agreement check_agreements(const OperatorReference& reference, Format storage, std::uint64_t cases) {
  Agreement agreement;
  for (std::uint64_t index = 0; index < cases; ++index)
    check_agreement<N>(reference, expand(small_recipe(reference.signature(), index, 3, 40), reference.signature(), storage), agreement);
  return agreement;
}

TEST(NumberTypes, BallMeetsEnclosure) {
  for (const OperatorReference* reference : operators())
    for (const Format storage : {Format::f32, Format::bf16, Format::f16, Format::e4m3, Format::e5m2}) {
      SCOPED_TRACE(reference->signature().name + " " + std::string(name(storage)));
      const Agreement agreement = check_agreements<Ball>(*reference, storage, 80);
      EXPECT_EQ(agreement.wrong, 0) << agreement.first;
      EXPECT_GT(agreement.entries, 500);
      EXPECT_LE(agreement.unknown * 5, agreement.entries) << "a filter that knows nothing would pass";
    }
}

TEST(NumberTypes, ArbMeetsEnclosure) {
  for (const OperatorReference* reference : operators()) {
    SCOPED_TRACE(reference->signature().name);
    const Agreement agreement = check_agreements<Arb>(*reference, Format::f64, 80);
    EXPECT_EQ(agreement.wrong, 0) << agreement.first;
    EXPECT_LE(agreement.unknown * 5, agreement.entries);
  }
}

/// Planted: radii a quarter of what the arithmetic needs, or a middle that is off by 2^-60 in the denser type.
struct LogSumExpTooSure : LogSumExp {
  template <class N>
  static void row(RowProblem<N>& problem) {
    LogSumExp::row(problem);
    auto&& lse = problem.out(0)[0];
    if constexpr (std::is_same_v<N, Ball>) lse.rad *= 0.25, lse.mid = std::nextafter(lse.mid, infinity);
    if constexpr (std::is_same_v<N, Arb>)
      if (!is_special(lse)) lse = lse + Arb(0x1p-60);
  }
};

TEST(NumberTypes, TooSmallRadiiAreCaught) {
  const ReferenceOf<LogSumExpTooSure> planted;
  EXPECT_GT(check_agreements<Ball>(planted, Format::f32, 40).wrong, 10);
  EXPECT_GT(check_agreements<Arb>(planted, Format::f64, 40).wrong, 10);
}

/// Entries of `input` whose interval at 384 bits is not inside the one at 96 bits. Interval arithmetic is monotone under
/// inclusion, so intervals nest as long as both precisions take the same branches; jsd chooses between two exact forms by
/// the sign of log p - log q, where it is an interval around 0 the intervals can only be asked to meet.
int not_nested(const OperatorReference& reference, const Case& input) {
  CaseEvaluator evaluator(reference, input);
  const bool branches = reference.signature().name == "jsd";
  int wrong = 0;
  for (std::int64_t row = 0; row < evaluator.rows(); ++row) {
    const WorkingPrecision coarse(96);
    RowValues<Enclosure> outer;
    evaluator.row(row, outer);
    const WorkingPrecision fine(384);
    RowValues<Enclosure> inner;
    evaluator.row(row, inner);
    for (std::size_t i = 0; i < reference.signature().outputs.size(); ++i)
      for (std::size_t j = 0; j < inner.out[i].size(); ++j) {
        const Enclosure &a = outer.out[i][j], &b = inner.out[i][j];
        if (is_special(a) || is_special(b)) wrong += !same_special(a, b);
        else wrong += branches ? !meet(a, b) : !contains(a, b);
      }
  }
  return wrong;
}

TEST(NumberTypes, EnclosuresAreNested) {
  for (const OperatorReference* reference : operators())
    for (const Format storage : {Format::f64, Format::f32}) {
      SCOPED_TRACE(reference->signature().name + " " + std::string(name(storage)));
      for (std::uint64_t index = 0; index < 60; ++index)
        EXPECT_EQ(not_nested(*reference, expand(small_recipe(reference->signature(), index, 3, 12), reference->signature(), storage)), 0) << index;
    }
}

/// Planted: a value that depends on the precision it is computed at.
struct LogSumExpDrifts : LogSumExp {
  template <class N>
  static void row(RowProblem<N>& problem) {
    LogSumExp::row(problem);
    if (WorkingPrecision::bits() > 100 && !is_special(problem.out(0)[0])) problem.out(0)[0] = problem.out(0)[0] + N(0x1p-60);
  }
};
TEST(NumberTypes, ADriftingValueIsCaught) {
  const ReferenceOf<LogSumExpDrifts> planted;
  EXPECT_EQ(not_nested(planted, CaseBuilder("logsumexp", Format::f32, 1, 2).rows("x", {0, 1})), 1);
}

// ---------------------------------------------------------------------------------------------------------
// Facts that hold on every row

bool all_regular(const std::vector<Enclosure>& values) {
  return std::none_of(values.begin(), values.end(), [](const Enclosure& v) { return is_special(v); });
}
bool below_zero(const Enclosure& a) { return midpoint_hint(a) + radius_upper(a) < 0; }
/// Is a provably above b?
bool above(const Enclosure& a, const Enclosure& b) { return below_zero(b - a); }

/// Broken facts among the marks of the signature, over all strata.
int broken_marks(const OperatorReference& reference, std::uint64_t cases) {
  const WorkingPrecision precision(256);
  int broken = 0;
  for (std::uint64_t index = 0; index < cases; ++index) {
    const Case input = expand(small_recipe(reference.signature(), index, 3, 40), reference.signature(), Format::f32);
    CaseEvaluator evaluator(reference, input);
    RowValues<Enclosure> values;
    for (std::int64_t row = 0; row < evaluator.rows(); ++row) {
      evaluator.row(row, values);
      for (std::size_t i = 0; i < reference.signature().outputs.size(); ++i) {
        const OutputSpec& spec = reference.signature().outputs[i];
        const std::vector<Enclosure>& out = values.out[i];
        if (!all_regular(out)) continue;
        const Sums sums = sums_of(spec.shape, input);
        for (std::int64_t s = 0; s < sums.count && spec.marks & (zero_sum | sums_to_one) && values.sums_hold[i]; ++s) {
          Enclosure sum;
          for (std::int64_t j = 0; j < sums.length; ++j) sum = sum + out[static_cast<std::size_t>(s * sums.step_sum + j * sums.step)];
          if (spec.marks & zero_sum) broken += !contains(sum, 0.0);
          // A masked row by policy is all zeros.
          if (spec.marks & sums_to_one && magnitude_upper(sum) > 0) broken += !contains(sum, 1.0);
        }
        for (const Enclosure& value : out) {
          if (spec.marks & non_negative) broken += below_zero(value);
          if (spec.marks & at_most_zero) broken += below_zero(-value);
          if (spec.marks & at_most_one) broken += above(value, Enclosure(1.0));
        }
      }
    }
  }
  return broken;
}

TEST(Facts, MarksHoldExactly) {
  for (const OperatorReference* reference : operators()) {
    SCOPED_TRACE(reference->signature().name);
    EXPECT_EQ(broken_marks(*reference, 100), 0);
  }
}

/// Planted: soft cross-entropy that returns p - q without the factor sum q: the gradient sums to 1 - sum q.
struct SoftCrossEntropyWithoutFactor : SoftCrossEntropy {
  template <class N>
  static void row(RowProblem<N>& problem) {
    SoftCrossEntropy::row(problem);
    thread_local TailState<N> state;
    tail_state<N>(problem.in[0], problem.n, state);
    if (state.row_class != RowClass::regular || is_special(problem.factor)) return;
    for (std::size_t j = 0; j < problem.n; ++j) problem.out(1)[j] = problem.factor * (state.p(j) - N(problem.in[1][j]));
  }
};
TEST(Facts, AMissingFactorIsCaught) { EXPECT_GT(broken_marks(ReferenceOf<SoftCrossEntropyWithoutFactor>(), 60), 10); }

// With d = (s - t)/T: KL <= range(d)^2/8 (Hoeffding, A lemma for sums of bounded variables, JASA 58 (1963) 13, applied to the
// cumulant of d), KL >= |p - q|_1^2/2 (Pinsker), JSD <= ln 2. The loss carries T^2, its gradient T (p - q).
TEST(Facts, DivergencesAreBracketed) {
  const WorkingPrecision precision(256);
  int rows = 0;
  for (const std::string op : {"kl_forward", "kl_reverse", "jsd"}) {
    const Signature& signature = reference_of(op).signature();
    for (std::uint64_t index = 0; index < 120; ++index) {
      Case input = expand(small_recipe(signature, index, 2, 20), signature, Format::f32);
      input.inputs.erase("g");
      if (op == "jsd") input.attributes.erase("beta");  // 1/2
      const double T = attribute_of(signature, input, "T", 1);
      const bool squared = attribute_of(signature, input, "scale_T2", 1) != 0;
      const Enclosure t(T), loss_scale = squared ? t * t : Enclosure(1.0);
      for (std::int64_t row = 0; row < input.extents[0]; ++row) {
        const Enclosure loss = exact_row(input, "loss", row)[0];
        if (is_special(loss)) continue;
        ++rows;
        const Enclosure divergence = loss / loss_scale;
        EXPECT_FALSE(below_zero(divergence));
        if (op == "jsd") {
          EXPECT_FALSE(above(divergence, log(Enclosure(2.0))));
          continue;
        }
        double low = infinity, high = -infinity;
        bool finite = true;
        for (std::int64_t j = 0; j < input.extents[1]; ++j) {
          const std::int64_t place = row * input.extents[1] + j;
          const double d = input.inputs.at("s").get(place) - input.inputs.at("t").get(place);
          finite = finite && std::isfinite(d);
          low = std::min(low, d), high = std::max(high, d);
        }
        if (finite) {
          // high - low in double loses at most one rounding of each difference: 2^-50 covers it.
          const Enclosure range = Enclosure((high - low) * (1 + 0x1p-50) + 0x1p-50 * (std::fabs(high) + std::fabs(low))) / t;
          EXPECT_FALSE(above(divergence, range * range / Enclosure(8.0)));
        }
        Enclosure distance;
        for (const Enclosure& g : exact_row(input, op == "kl_forward" ? "ds" : "dt", row)) distance = distance + abs(g);
        distance = squared ? distance / t : distance * t;
        EXPECT_FALSE(above(distance * distance / Enclosure(2.0), divergence));
      }
    }
  }
  EXPECT_GT(rows, 200);
  // Planted: without the factor 1/2 Pinsker would be a lie: KL((1/2, 1/2) || (3/4, 1/4)) = log(2/sqrt 3) = 0.1438, and the
  // distance 1/2 squared is 0.25.
  const Case flat = CaseBuilder("kl_forward", Format::f64, 1, 2).rows("t", {0, 0}).rows("s", {std::log(3.0), 0});
  EXPECT_TRUE(above(Enclosure(0.25), exact_row(flat, "loss")[0]));
}

// ---------------------------------------------------------------------------------------------------------
// Limits

/// |a - b| <= 2^-200 max(|a|, |b|), at 256 bits. A few dozen operations lose less than 2^-240.
testing::AssertionResult same(const Enclosure& a, const Enclosure& b) {
  if (is_special(a) || is_special(b)) {
    if (same_special(a, b)) return testing::AssertionSuccess();
  } else if (magnitude_upper(a - b) <= 0x1p-200 * std::max(magnitude_upper(a), magnitude_upper(b))) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << decimal(a, 30) << " is not " << decimal(b, 30);
}
testing::AssertionResult same(const std::vector<Enclosure>& a, const std::vector<Enclosure>& b) {
  if (a.size() != b.size()) return testing::AssertionFailure() << a.size() << " entries against " << b.size();
  for (std::size_t j = 0; j < a.size(); ++j)
    if (const auto result = same(a[j], b[j]); !result) return testing::AssertionFailure() << "entry " << j << ": " << result.message();
  return testing::AssertionSuccess();
}
bool exactly(const Enclosure& a, double value) { return !is_special(a) && magnitude_upper(a - Enclosure(value)) == 0; }
bool all_zero(const std::vector<Enclosure>& values) {
  return std::all_of(values.begin(), values.end(), [](const Enclosure& v) { return is_exact_zero(v); });
}

class Limits : public testing::Test {
 private:
  WorkingPrecision precision_{256};
};

TEST_F(Limits, TheComparisonCanFail) {
  EXPECT_FALSE(same(Enclosure(1.0), Enclosure(1.0) + Enclosure(0x1p-190)));
  EXPECT_FALSE(same(Enclosure(1.0), Enclosure(infinity)));
  EXPECT_FALSE(exactly(Enclosure(0x1p-1074), 0));
}

TEST_F(Limits, OneClass) {
  const Case row = CaseBuilder("softmax", Format::f32, 1, 1).rows("x", {-3.25}).rows("g", {7});
  EXPECT_TRUE(exactly(exact_row(row, "p")[0], 1));
  EXPECT_TRUE(all_zero(exact_row(row, "gx")));
  const Case logs = CaseBuilder("log_softmax", Format::f32, 1, 1).rows("x", {-3.25}).rows("g", {7});
  EXPECT_TRUE(all_zero(exact_row(logs, "logp")));
  EXPECT_TRUE(all_zero(exact_row(logs, "gx")));
  EXPECT_TRUE(exactly(exact_row(CaseBuilder("logsumexp", Format::f32, 1, 1).rows("x", {-3.25}), "lse")[0], -3.25));
  const Case hard = CaseBuilder("cross_entropy", Format::f32, 1, 1).rows("x", {-3.25}).labels({0});
  EXPECT_TRUE(all_zero(exact_row(hard, "loss")) && all_zero(exact_row(hard, "gx")));
  for (const std::string op : {"kl_forward", "kl_reverse", "jsd"}) {
    const Case pair = CaseBuilder(op, Format::f32, 1, 1).rows("s", {2}).rows("t", {-9});
    for (const std::string output : {"loss", "ds", "dt"})
      for (const Enclosure& value : exact_row(pair, output)) EXPECT_LE(magnitude_upper(value), 0x1p-200) << op;
  }
}

TEST_F(Limits, AllEqual) {
  for (const int n : {2, 3, 7, 300}) {
    const Numbers x(static_cast<std::size_t>(n), 2.5);
    const Enclosure size(static_cast<double>(n));
    for (const Enclosure& p : exact_row(CaseBuilder("softmax", Format::f32, 1, n).rows("x", x), "p")) EXPECT_TRUE(same(p, Enclosure(1.0) / size));
    for (const Enclosure& l : exact_row(CaseBuilder("log_softmax", Format::f32, 1, n).rows("x", x), "logp")) EXPECT_TRUE(same(l, -log(size)));
    EXPECT_TRUE(same(exact_row(CaseBuilder("logsumexp", Format::f32, 1, n).rows("x", x), "lse")[0], Enclosure(2.5) + log(size)));
    EXPECT_TRUE(exactly(exact_row(CaseBuilder("softmax.state", Format::f32, 1, n).rows("x", x), "r")[0], n - 1));
    const Case hard = CaseBuilder("cross_entropy", Format::f32, 1, n).rows("x", x).labels({n - 1.0});
    EXPECT_TRUE(same(exact_row(hard, "loss")[0], log(size)));
    EXPECT_TRUE(same(exact_row(hard, "gx")[0], Enclosure(1.0) / size));
    EXPECT_TRUE(same(exact_row(hard, "gx")[static_cast<std::size_t>(n - 1)], -Enclosure(n - 1.0) / size));
  }
}

// Entries of -inf behave as if deleted; what stands in their place is p = 0, log p = -inf and a zero gradient.
TEST_F(Limits, DeadEntriesAreDeleted) {
  const Numbers full = {-infinity, 1, 3, -infinity, -2}, live = {1, 3, -2};
  const Numbers full_g = {0, 2, -1, 0, 5}, live_g = {2, -1, 5};
  const std::size_t place[] = {1, 2, 4};
  for (const auto& [op, outputs] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"softmax", {"p", "gx"}}, {"log_softmax", {"logp", "gx"}}, {"softmax.scaled_masked", {"p", "gx", "gbias"}}}) {
    const Case a = CaseBuilder(op, Format::f32, 1, 5).rows("x", full).rows("g", full_g);
    const Case b = CaseBuilder(op, Format::f32, 1, 3).rows("x", live).rows("g", live_g);
    for (const std::string& output : outputs) {
      const auto with = exact_row(a, output), without = exact_row(b, output);
      for (std::size_t j = 0; j < 3; ++j) EXPECT_TRUE(same(with[place[j]], without[j])) << op << " " << output;
      for (const std::size_t j : {0u, 3u}) {
        EXPECT_TRUE(output == "logp" ? midpoint_hint(with[j]) == -infinity : is_exact_zero(with[j])) << op << " " << output;
      }
    }
  }
  // A mask does the same to a finite logit, and scale 1 without a mask is softmax.
  Case masked = CaseBuilder("softmax.scaled_masked", Format::f32, 1, 5).rows("x", {90, 1, 3, 70, -2}).rows("g", full_g);
  masked.inputs["mask"] = tensor_of(Format::boolean, {1, 5}, {0, 1, 1, 0, 1});
  const Case plain = CaseBuilder("softmax", Format::f32, 1, 3).rows("x", live).rows("g", live_g);
  for (std::size_t j = 0; j < 3; ++j) {
    EXPECT_TRUE(same(exact_row(masked, "p")[place[j]], exact_row(plain, "p")[j]));
    EXPECT_TRUE(same(exact_row(masked, "gx")[place[j]], exact_row(plain, "gx")[j]));
  }
  const Case unscaled = CaseBuilder("softmax.scaled_masked", Format::f32, 1, 3).rows("x", live).rows("g", live_g);
  EXPECT_TRUE(same(exact_row(unscaled, "p"), exact_row(plain, "p")));
  EXPECT_TRUE(same(exact_row(unscaled, "gx"), exact_row(plain, "gx")));
  const Case lse = CaseBuilder("logsumexp", Format::f32, 1, 5).rows("x", full);
  EXPECT_TRUE(same(exact_row(lse, "lse")[0], exact_row(CaseBuilder("logsumexp", Format::f32, 1, 3).rows("x", live), "lse")[0]));
}

// The state of a row is the merge of the states of its parts; the merge takes doubles, so the parts' r must be exact in
// them: ties at the maximum (r counts them) with a second block below. Its w = e^-8 makes the merged r irrational.
TEST_F(Limits, MergeOfPartsIsTheWhole) {
  const Numbers whole = {5, 5, 5, -3, -3};
  const Case all = CaseBuilder("softmax.state", Format::f64, 1, 5).rows("x", whole);
  for (const bool swapped : {false, true}) {
    CaseBuilder merge("softmax.merge", Format::f64, 1, 1);
    const auto side = [&](const std::string& which, double m, double r) {
      merge.tensor("m" + which, Format::f64, {1}, {m}).tensor("r" + which, Format::f64, {1}, {r}).tensor("e" + which, Format::boolean, {1}, {0});
    };
    side(swapped ? "2" : "1", 5, 2);
    side(swapped ? "1" : "2", -3, 1);
    EXPECT_TRUE(exactly(exact_row(merge, "m")[0], 5));
    EXPECT_TRUE(same(exact_row(merge, "r")[0], exact_row(all, "r")[0]));
  }
  // Two by hand: r = 2 + 2 e^-8.
  EXPECT_TRUE(same(exact_row(all, "r")[0], Enclosure(2.0) + Enclosure(2.0) * exp(Enclosure(-8.0))));
  // lse = m + log1p(r).
  EXPECT_TRUE(same(exact_row(CaseBuilder("logsumexp", Format::f64, 1, 5).rows("x", whole), "lse")[0], Enclosure(5.0) + log1p(exact_row(all, "r")[0])));
}

TEST_F(Limits, OnlineIsState) {
  for (std::uint64_t index = 0; index < 40; ++index) {
    const Signature& signature = reference_of("softmax.state").signature();
    Case input = expand(small_recipe(signature, index, 2, 20), signature, Format::f32);
    const auto m = exact_row(input, "m"), r = exact_row(input, "r"), gx = exact_row(input, "gx");
    input.op = "softmax.online";
    EXPECT_TRUE(same(exact_row(input, "m"), m) && same(exact_row(input, "r"), r) && same(exact_row(input, "gx"), gx));
  }
}

TEST_F(Limits, TargetsOfCrossEntropy) {
  const Numbers x = {1.5, -0.25, 4, 0.75};
  const Case hard = CaseBuilder("cross_entropy", Format::f64, 1, 4).rows("x", x).labels({1});
  // One-hot probabilities are hard labels.
  const Case soft = CaseBuilder("cross_entropy.soft", Format::f64, 1, 4).rows("x", x).rows("q", {0, 1, 0, 0});
  EXPECT_TRUE(same(exact_row(soft, "loss"), exact_row(hard, "loss")));
  EXPECT_TRUE(same(exact_row(soft, "gx"), exact_row(hard, "gx")));
  // Smoothing a is the soft target (1 - a) one-hot + a/n; with a = 1/2 and n = 4 it is exact.
  Case smooth = hard;
  smooth.attributes["label_smoothing"] = 0.5;
  const Case mixed = CaseBuilder("cross_entropy.soft", Format::f64, 1, 4).rows("x", x).rows("q", {0.125, 0.625, 0.125, 0.125});
  EXPECT_TRUE(same(exact_row(smooth, "loss"), exact_row(mixed, "loss")));
  EXPECT_TRUE(same(exact_row(smooth, "gx"), exact_row(mixed, "gx")));
  smooth.attributes["label_smoothing"] = 0;
  EXPECT_TRUE(same(exact_row(smooth, "gx"), exact_row(hard, "gx")));
  // a = 1: the uniform teacher, gradient p - 1/n.
  smooth.attributes["label_smoothing"] = 1;
  const auto p = exact_row(CaseBuilder("softmax", Format::f64, 1, 4).rows("x", x), "p");
  const auto uniform = exact_row(smooth, "gx");
  for (std::size_t j = 0; j < 4; ++j) EXPECT_TRUE(same(uniform[j], p[j] - Enclosure(0.25)));
  // The same residue from a distillation whose teacher is flat.
  EXPECT_TRUE(same(exact_row(CaseBuilder("kl_forward", Format::f64, 1, 4).rows("s", x).rows("t", {0, 0, 0, 0}), "ds"), uniform));
  // All weights 1 change nothing.
  Case weighted = hard;
  weighted.inputs["weight"] = tensor_of(Format::f64, {4}, {1, 1, 1, 1});
  EXPECT_TRUE(same(exact_row(weighted, "loss"), exact_row(hard, "loss")) && same(exact_row(weighted, "gx"), exact_row(hard, "gx")));
  // One-hot upstreams of log-probabilities give minus the hard-label gradient.
  const auto vjp = exact_row(CaseBuilder("log_softmax", Format::f64, 1, 4).rows("x", x).rows("g", {0, -1, 0, 0}), "gx");
  EXPECT_TRUE(same(vjp, exact_row(hard, "gx")));
  // A one-hot teacher is a hard label: T = 1.
  const Case distilled = CaseBuilder("kl_forward", Format::f64, 1, 4).rows("s", x).rows("t", {-infinity, 0, -infinity, -infinity});
  EXPECT_TRUE(same(exact_row(distilled, "loss"), exact_row(hard, "loss")));
  EXPECT_TRUE(same(exact_row(distilled, "ds"), exact_row(hard, "gx")));
}

TEST_F(Limits, EqualLogitsGiveExactZeros) {
  const Numbers t = {0.1, -7.3, 2.7, 0.1};
  for (const std::string op : {"kl_forward", "kl_reverse", "jsd"})
    for (const double T : {1.0, 0.7, 3.0})
      for (const double shift : {0.0, 0x1p10}) {
        Numbers s = t;
        bool exact = true;
        for (double& v : s) {
          const double moved = v + shift;
          exact = exact && moved - shift == v;
          v = moved;
        }
        if (!exact) {
          // A common shift that doubles hold: multiples of 2^-4.
          s = {1.5, -2.25, 3, 0};
          for (double& v : s) v += shift;
        }
        const Numbers teacher = exact ? t : Numbers{1.5, -2.25, 3, 0};
        const Case pair = CaseBuilder(op, Format::f64, 1, 4).rows("s", s).rows("t", teacher).attribute("T", T);
        for (const std::string output : {"loss", "ds", "dt"})
          EXPECT_TRUE(all_zero(exact_row(pair, output))) << op << " " << output << " T = " << T << ", shift " << shift;
      }
}

// T -> infinity: KL and KL reversed -> |d - mean|^2/(2n), JSD -> beta (1-beta) times that, with d = s - t; the next term is
// smaller by the third cumulant over T: |d|^3/(6 T) relative to |d|^2/2, here at most 3/T.
TEST_F(Limits, LargeTemperature) {
  const Numbers s = {0, 1, 3}, t = {2, 0, 1};
  // d = (-2, 1, 2): mean 1/3, sum of squares 9 - 3/9 = 26/3, over 6: 13/9.
  const double wanted = 13.0 / 9, T = 0x1p40;
  for (const auto& [op, factor] : std::vector<std::pair<std::string, double>>{{"kl_forward", 1}, {"kl_reverse", 1}, {"jsd", 0.25 * 0.75}}) {
    CaseBuilder pair = CaseBuilder(op, Format::f64, 1, 3).rows("s", s).rows("t", t).attribute("T", T);
    if (op == "jsd") pair.attribute("beta", 0.25);
    EXPECT_NEAR(midpoint_hint(exact_row(pair, "loss")[0]) / factor / wanted, 1, 10 / T) << op;
  }
}

// beta -> 0: L/beta -> kl_forward, with a relative remainder of the order of beta.
TEST_F(Limits, SmallBeta) {
  const Numbers s = {0, 1, 3}, t = {2, 0, 1};
  const double forward = midpoint_hint(exact_row(CaseBuilder("kl_forward", Format::f64, 1, 3).rows("s", s).rows("t", t), "loss")[0]);
  const double reverse = midpoint_hint(exact_row(CaseBuilder("kl_reverse", Format::f64, 1, 3).rows("s", s).rows("t", t), "loss")[0]);
  const auto jsd = [&](double beta) {
    return midpoint_hint(exact_row(CaseBuilder("jsd", Format::f64, 1, 3).rows("s", s).rows("t", t).attribute("beta", beta), "loss")[0]);
  };
  EXPECT_NEAR(jsd(0x1p-30) / 0x1p-30 / forward, 1, 100 * 0x1p-30);
  EXPECT_NEAR(jsd(1 - 0x1p-24) / 0x1p-24 / reverse, 1, 100 * 0x1p-24);
  // Symmetric at 1/2: exchanging the sides exchanges the gradients.
  const Case one = CaseBuilder("jsd", Format::f64, 1, 3).rows("s", s).rows("t", t), other = CaseBuilder("jsd", Format::f64, 1, 3).rows("s", t).rows("t", s);
  EXPECT_TRUE(same(exact_row(one, "loss"), exact_row(other, "loss")));
  EXPECT_TRUE(same(exact_row(one, "ds"), exact_row(other, "dt")));
}

// Euler: L(s, t, T) is homogeneous of degree 2, so with scale_T2 L(2s, 2t, 2T) = 4 L.
TEST_F(Limits, DoublingEverythingQuadruplesTheLoss) {
  for (const std::string op : {"kl_forward", "kl_reverse", "jsd"}) {
    const Case one = CaseBuilder(op, Format::f64, 1, 3).rows("s", {0, 1, 3}).rows("t", {2, 0, 1}).attribute("T", 1.5);
    const Case two = CaseBuilder(op, Format::f64, 1, 3).rows("s", {0, 2, 6}).rows("t", {4, 0, 2}).attribute("T", 3);
    EXPECT_TRUE(same(Enclosure(4.0) * exact_row(one, "loss")[0], exact_row(two, "loss")[0]));
  }
}

// Special rows by policy.
TEST_F(Limits, SpecialRows) {
  const auto softmax = [](const Numbers& x, const std::string& policy) {
    CaseBuilder row = CaseBuilder("softmax", Format::f32, 1, 3).rows("x", x);
    if (!policy.empty()) row.attribute(policy, 1);
    return exact_row(row, "p");
  };
  for (const auto& p : softmax({1, std::nan(""), 2}, "")) EXPECT_TRUE(std::isnan(midpoint_hint(p)));
  for (const auto& p : softmax({1, infinity, 2}, "")) EXPECT_TRUE(std::isnan(midpoint_hint(p)));
  for (const auto& p : softmax({-infinity, -infinity, -infinity}, "")) EXPECT_TRUE(std::isnan(midpoint_hint(p)));
  EXPECT_TRUE(exactly(softmax({1, infinity, 2}, "inf_policy")[1], 1));
  EXPECT_TRUE(exactly(softmax({1, infinity, 2}, "inf_policy")[0], 0));
  EXPECT_TRUE(all_zero(softmax({-infinity, -infinity, -infinity}, "masked_policy")));
  const Case dead_target = CaseBuilder("cross_entropy", Format::f32, 1, 2).rows("x", {-infinity, 3}).labels({0});
  EXPECT_EQ(midpoint_hint(exact_row(dead_target, "loss")[0]), infinity);
  EXPECT_TRUE(exactly(exact_row(dead_target, "gx")[0], -1) && exactly(exact_row(dead_target, "gx")[1], 1));
}

// ---------------------------------------------------------------------------------------------------------
// Pin values of the operators' specifications

class Pins : public Limits {};

/// Relative deviation from a decimal of 17 digits or more: 1e-15 as the specifications state it.
testing::AssertionResult pinned(const Enclosure& value, double pin, double relative = 1e-15) {
  const double deviation = magnitude_upper(value - Enclosure(pin)) / std::fabs(pin);
  if (deviation <= relative) return testing::AssertionSuccess();
  return testing::AssertionFailure() << decimal(value, 20) << " is off the pin " << pin << " by " << deviation;
}

TEST_F(Pins, ThePinCanFail) { EXPECT_FALSE(pinned(Enclosure(1 + 0x1p-49), 1)); }

struct CollapsePin {
  Format storage;
  double lead;
  std::int64_t n;
  double target;  ///< true g_t = -r/(1 + r), r = (n-1) e^-lead
};

TEST_F(Pins, HardLabelGradients) {
  for (const CollapsePin& pin : {CollapsePin{Format::f32, 17, 2, -4.1399375473943306e-8}, CollapsePin{Format::f32, 16.6, 2, -6.1760585981633705e-8},
                                 CollapsePin{Format::f32, 14, 2, -8.3152802766413214e-7}, CollapsePin{Format::f32, 22, 113, -3.124204166406676e-8},
                                 CollapsePin{Format::bf16, 6, 2, -0.0024726231566347743}, CollapsePin{Format::bf16, 5.5, 2, -0.0040701377158961273},
                                 CollapsePin{Format::f16, 8, 2, -3.353501304664781e-4}, CollapsePin{Format::f64, 40, 2, -4.248354255291589e-18}}) {
    Numbers x(static_cast<std::size_t>(pin.n), 0.0);
    x[0] = pin.lead;
    const Case input = CaseBuilder("cross_entropy", pin.storage, 1, pin.n).rows("x", x).labels({0});
    const auto gx = exact_row(input, "gx");
    EXPECT_TRUE(pinned(gx[0], pin.target)) << pin.lead;
    // And by the closed form on the rounded input.
    const Enclosure r = Enclosure(static_cast<double>(pin.n - 1)) * exp(-Enclosure(round_to(pin.storage, pin.lead)));
    EXPECT_TRUE(same(gx[0], -(r / (Enclosure(1.0) + r))));
    EXPECT_TRUE(contains(sum_of_row(gx), 0.0));
  }
  const Case seventeen = CaseBuilder("cross_entropy", Format::f32, 1, 2).rows("x", {17, 0}).labels({0});
  EXPECT_TRUE(pinned(exact_row(seventeen, "loss")[0], 4.1399376330897474e-8));
}

// [700, 0] in f64: g = -+e^-700/(1 + e^-700); e^-700 = 9.8596765437597708e-305 is a normal double, and 1 + e^-700 differs
// from 1 by less than 2^-1000.
TEST_F(Pins, ALeadOfSevenHundred) {
  const auto gx = exact_row(CaseBuilder("cross_entropy", Format::f64, 1, 2).rows("x", {700, 0}).labels({0}), "gx");
  const Enclosure tail = exp(Enclosure(-700.0));
  EXPECT_TRUE(pinned(gx[0], -midpoint_hint(tail), 0x1p-52));
  EXPECT_TRUE(pinned(gx[1], midpoint_hint(tail), 0x1p-52));
  EXPECT_EQ(decimal(gx[1], 17), decimal(tail, 17));
}

// Reported inputs: the softmax VJP with cotangent [1, 0] is +-p0 p1; p0 p1 = e^-x / (1 + e^-x)^2.
TEST_F(Pins, ReportedVectorJacobianProducts) {
  for (const double x : {40.0, 37.42994775023705}) {
    const auto gx = exact_row(CaseBuilder("softmax", Format::f64, 1, 2).rows("x", {x, 0}).rows("g", {1, 0}), "gx");
    const Enclosure e = exp(Enclosure(-x)), s = Enclosure(1.0) + e;
    EXPECT_TRUE(same(gx[0], e / (s * s)));
    EXPECT_TRUE(same(gx[1], -(e / (s * s))));
  }
  const auto reported = exact_row(CaseBuilder("softmax", Format::f64, 1, 2).rows("x", {40, 0}).rows("g", {0, 1}), "gx");
  EXPECT_TRUE(pinned(reported[0], -4.248354255291589e-18));
  // Given with three digits: 5.55e-17.
  const auto second = exact_row(CaseBuilder("softmax", Format::f64, 1, 2).rows("x", {37.42994775023705, 0}).rows("g", {1, 0}), "gx");
  EXPECT_TRUE(pinned(second[0], 5.55e-17, 1e-3));
}

// t = (0, 1, 2), s = (0, 1, 2.001): the pins are for the exact decimal 2.001; its double is off by up to 2^-53 relative to 2,
// 2.2e-16 absolute. KL moves by |p - q| times that, 2.2e-4 2.2e-16 / 1.1e-7 = 4.5e-13 relative; p - q by p (1 - p) times it,
// 0.22 2.2e-16 / 2.2e-4 = 2.2e-13. The exact decimal is reached by a third of a thousandth: scale s, t and T by 1000, which
// multiplies the loss by 10^6 and the gradients by 1000, and makes every input an integer.
TEST_F(Pins, Distillation) {
  const Numbers s = {0, 1000, 2001}, t = {0, 1000, 2000};
  const Enclosure million(1e6), thousand(1000.0);
  const auto build = [&](const std::string& op) { return CaseBuilder(op, Format::f64, 1, 3).rows("s", s).rows("t", t).attribute("T", 1000); };
  EXPECT_TRUE(pinned(exact_row(build("kl_forward"), "loss")[0] / million, 1.1133544401395785712e-7));
  EXPECT_TRUE(pinned(exact_row(build("kl_reverse"), "loss")[0] / million, 1.1132317164331846340e-7));
  const double difference[] = {-5.9882124575143344016e-5, -1.6277649108213297650e-4, 2.2265861565727632052e-4};
  const auto ds = exact_row(build("kl_forward"), "ds"), dt = exact_row(build("kl_reverse"), "dt");
  for (std::size_t j = 0; j < 3; ++j) {
    EXPECT_TRUE(pinned(ds[j] / thousand, difference[j]));
    EXPECT_TRUE(pinned(dt[j] / thousand, -difference[j]));
  }
}

// phi2 at the doubles nearest to the decimals: phi2'(x) x/phi2(x) <= 2, so 2^-53 relative in x is 2.3e-16 in phi2.
TEST_F(Pins, SecondOrderExponential) {
  EXPECT_TRUE(pinned(phi2(Enclosure(1.0) / Enclosure(1000.0)), 5.0016670834166805575e-7));
  EXPECT_TRUE(pinned(phi2(Enclosure(-0.5)), 0.10653065971263342360));
  EXPECT_EQ(separation(phi2(Enclosure(0.001)), phi2(Ball(0.001))), 0);
}

}  // namespace
}  // namespace sumzero
