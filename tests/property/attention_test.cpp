// Facts and limits of attention: the identities U2 to U5 of row-stochastic attention, W1 to W8, merges and policies.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "fuzz/recipe.hpp"
#include "fuzz/recipe_generator.hpp"
#include "reference/attention/sdpa.hpp"
#include "reference/register.hpp"
#include "tests/case_builder.hpp"

namespace sumzero {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

const Signature& sdpa() { return reference_of("sdpa").signature(); }

Case small_case(std::uint64_t index, Format storage = Format::f32) {
  Recipe recipe = generate_recipe(sdpa(), 3, index);
  recipe.rows = 1 + recipe.rows % 5;
  recipe.classes = 1 + recipe.classes % 12;
  recipe.closeness %= 5;
  recipe.attributes %= 55;
  return expand(recipe, sdpa(), storage);
}

/// Everything the reference says about one problem, by output name.
struct Exact {
  const Case& input;
  std::int64_t problem;
  RowValues<Enclosure> values;
  explicit Exact(const Case& input, std::int64_t problem = 0, const OperatorReference& reference = reference_of("sdpa"))
      : input(input), problem(problem) {
    CaseEvaluator(reference, input).row(problem, values);
  }
  const Enclosure& at(const std::string& output, std::size_t entry) const {
    return values.out[static_cast<std::size_t>(sdpa().output(output))][entry];
  }
  std::size_t count(const std::string& output) const { return values.out[static_cast<std::size_t>(sdpa().output(output))].size(); }
  /// Input entry of this problem.
  std::vector<double> in(const std::string& name) const {
    const Shape shape = sdpa().inputs[static_cast<std::size_t>(sdpa().input(name))].shape;
    std::vector<double> part(static_cast<std::size_t>(part_elements(shape, input)));
    if (const auto found = input.inputs.find(name); found != input.inputs.end()) load_part(part_of(found->second, shape, input, problem), found->second.format, part.data());
    return part;
  }
  /// sum of output * input over all entries.
  Enclosure inner(const std::string& output, const std::string& name) const {
    Enclosure sum;
    const std::vector<double> factor = in(name);
    for (std::size_t i = 0; i < factor.size(); ++i) sum = sum + at(output, i) * Enclosure(factor[i]);
    return sum;
  }
};

bool attribute_is(const Case& input, const char* name, double value) { return input.attributes.contains(name) ? input.attributes.at(name) == value : value == 0; }


/// Breaches of the identities of one problem; `holds(name, difference)` sees differences that are exactly zero.
template <class Visit>
void identities(const Exact& exact, Visit holds) {
  const Case& input = exact.input;
  if (!attribute_is(input, "empty_row_policy", 0)) return;
  const auto extent = [&](std::size_t axis) { return static_cast<std::size_t>(input.extents[axis]); };
  const std::size_t rows = extent(axis::heads) / extent(axis::kv_heads) * extent(axis::queries), keys = extent(axis::keys);
  const std::size_t head = extent(axis::head_size), width = extent(axis::value_size);
  const bool sink = !attribute_is(input, "sink", 0), capped = !attribute_is(input, "softcap", 0);
  const std::vector<double> go = exact.in("go"), q = exact.in("q");
  // W5: degree 1 in V.
  holds("W5", exact.inner("gv", "v") - exact.inner("o", "go"));
  // U2, W4: mass, over the queries that see something.
  if (!sink)
    for (std::size_t c = 0; c < width; ++c) {
      Enclosure difference;
      for (std::size_t j = 0; j < keys; ++j) difference = difference + exact.at("gv", j * width + c);
      for (std::size_t t = 0; t < rows; ++t)
        if (!is_special(exact.at("lse", t))) difference = difference - Enclosure(go[t * width + c]);
      holds("U2", difference);
    }
  // U4: homogeneity in q and k, both against tau dtau. A bias changes none of it, because da is taken before the cap.
  const double tau = input.attributes.contains("tau") ? input.attributes.at("tau") : 1;
  Enclosure scale;
  for (std::size_t t = 0; t < rows; ++t) {
    Enclosure of_query;
    for (std::size_t c = 0; c < head; ++c) of_query = of_query + exact.at("gq", t * head + c) * Enclosure(q[t * head + c]);
    holds("U4 query", of_query - Enclosure(tau) * exact.at("gtau", t));
    scale = scale + Enclosure(tau) * exact.at("gtau", t);
  }
  holds("U4 keys", exact.inner("gk", "k") - scale);
  // U1: the adjoint of the logits sums to the cotangent of LSE.
  if (!sink && !capped) {
    const std::vector<double> glse = exact.in("glse");
    const bool base_2 = !attribute_is(input, "lse_base", 0);
    for (std::size_t t = 0; t < rows; ++t) {
      if (is_special(exact.at("lse", t))) continue;
      Enclosure sum = -Enclosure(glse[t]) * (base_2 ? Enclosure(1.0) / log(Enclosure(2.0)) : Enclosure(1.0));
      for (std::size_t j = 0; j < keys; ++j) sum = sum + exact.at("gbias", t * keys + j);
      holds("U1", sum);
    }
  }
}

int broken_identities(const OperatorReference& reference, std::map<std::string, int>& seen) {
  const WorkingPrecision precision(256);
  int broken = 0;
  for (std::uint64_t index = 0; index < 105; ++index) {
    const Case input = small_case(index);
    for (std::int64_t problem = 0; problem < problem_count(sdpa(), input); ++problem)
      identities(Exact(input, problem, reference), [&](const std::string& name, const Enclosure& difference) {
        ++seen[name];
        broken += !contains(difference, 0.0);
      });
  }
  return broken;
}

TEST(Attention, IdentitiesHoldExactly) {
  std::map<std::string, int> seen;
  EXPECT_EQ(broken_identities(reference_of("sdpa"), seen), 0);
  for (const char* name : {"W5", "U2", "U4 query", "U4 keys", "U1"}) EXPECT_GT(seen[name], 50) << name;
}

/// Planted: the cotangent of LSE dropped from da, and tau missing in dk.
struct DroppedLse : Sdpa {
  template <class N>
  static void row(RowProblem<N>& problem) {
    const double* upstream = problem.in[Sdpa::glse];
    problem.in[Sdpa::glse] = nullptr;
    Sdpa::row(problem);
    problem.in[Sdpa::glse] = upstream;
  }
};
struct MissingScale : Sdpa {
  template <class N>
  static void row(RowProblem<N>& problem) {
    Sdpa::row(problem);
    if (problem.attribute[Sdpa::tau] == 0) return;
    for (std::size_t i = 0; i < problem.out(Sdpa::gk).size(); ++i) problem.out(Sdpa::gk)[i] = N(problem.out(Sdpa::gk)[i]) / N(problem.attribute[Sdpa::tau]);
  }
};
TEST(Attention, BrokenIdentitiesAreCaught) {
  std::map<std::string, int> seen;
  EXPECT_GT(broken_identities(ReferenceOf<DroppedLse>(), seen), 10);
  EXPECT_GT(broken_identities(ReferenceOf<MissingScale>(), seen), 10);
}

// ---------------------------------------------------------------------------------------------------------
// Limits

Tensor tensor(std::vector<std::int64_t> shape, const std::vector<double>& values, Format format = Format::f32) {
  Tensor result = Tensor::contiguous(format, std::move(shape));
  for (std::int64_t i = 0; i < result.elements(); ++i) result.set(i, values[static_cast<std::size_t>(i) % values.size()]);
  return result;
}

/// One head; operands repeat the given numbers.
Case one_head(std::int64_t queries, std::int64_t keys, std::int64_t head, std::int64_t width, const std::vector<double>& q, const std::vector<double>& k,
              const std::vector<double>& v) {
  Case input;
  input.op = "sdpa";
  input.extents = {1, 1, 1, queries, keys, head, width};
  input.inputs["q"] = tensor({1, 1, queries, head}, q);
  input.inputs["k"] = tensor({1, 1, keys, head}, k);
  input.inputs["v"] = tensor({1, 1, keys, width}, v);
  input.inputs["go"] = tensor({1, 1, queries, width}, {1, -2, 0.5});
  return input;
}

TEST(Attention, OneVisibleKeyGivesItsValue) {
  const WorkingPrecision precision(128);
  Case input = one_head(1, 3, 2, 2, {5, -3}, {1, 2, 3, 4, -1, 7}, {1, 2, 3, 4, 5, 6});
  input.inputs["mask"] = tensor({1, 1, 1, 3}, {0, 1, 0}, Format::boolean);
  const Exact exact(input);
  EXPECT_TRUE(is_exact_zero(exact.at("o", 0) - Enclosure(3.0)));
  EXPECT_TRUE(is_exact_zero(exact.at("o", 1) - Enclosure(4.0)));
  for (std::size_t c = 0; c < 2; ++c) EXPECT_TRUE(is_exact_zero(exact.at("gq", c)));
  for (std::size_t j = 0; j < 6; ++j) EXPECT_TRUE(is_exact_zero(exact.at("gk", j)));
}

TEST(Attention, EqualValuesComeBackExactlyAndGiveNoGradient) {
  const WorkingPrecision precision(128);
  const Case input = one_head(2, 5, 3, 1, {0.3, -2, 7, 1}, {1.5, -2, 0.25, 3, 4}, {0.1f});
  const Exact exact(input);
  for (std::size_t t = 0; t < 2; ++t) EXPECT_TRUE(is_exact_zero(exact.at("o", t) - Enclosure(double(0.1f))));
  for (std::size_t j = 0; j < 15; ++j) EXPECT_TRUE(is_exact_zero(exact.at("gk", j)));
}

TEST(Attention, ZeroScaleGivesTheMean) {
  const WorkingPrecision precision(128);
  Case input = one_head(1, 4, 2, 1, {3, 4}, {1, 2, 3, 5}, {1, 2, 4, 9});
  input.attributes["tau"] = 0;
  EXPECT_TRUE(contains(Exact(input).at("o", 0), 4.0));
}

TEST(Attention, EmptyQueriesFollowTheirPolicy) {
  const WorkingPrecision precision(128);
  Case input = one_head(2, 2, 1, 1, {1, 2}, {1, 3}, {5, 7});
  input.inputs["mask"] = tensor({1, 1, 2, 2}, {0, 0, 1, 1}, Format::boolean);
  const Exact zero(input);
  EXPECT_TRUE(is_exact_zero(zero.at("o", 0)));
  EXPECT_EQ(midpoint_hint(zero.at("lse", 0)), -infinity);
  EXPECT_TRUE(is_exact_zero(zero.at("gq", 0)));
  input.attributes["empty_row_policy"] = 1;
  const Exact nan(input);
  EXPECT_TRUE(std::isnan(midpoint_hint(nan.at("o", 0))));
  EXPECT_FALSE(is_special(nan.at("o", 1)));
  EXPECT_TRUE(meet(nan.at("gk", 0), zero.at("gk", 0)));
  // A sink is something to see: o = 0, LSE = log 1.
  input.attributes = {{"sink", 1}};
  const Exact sink(input);
  EXPECT_TRUE(is_exact_zero(sink.at("o", 0)));
  EXPECT_TRUE(is_exact_zero(sink.at("lse", 0)));
}

TEST(Attention, CausalOrderAlignsAtTheChosenCorner) {
  const WorkingPrecision precision(128);
  // Values 1, 2, 4 with zero queries: the output names the visible set by its mean.
  Case input = one_head(2, 3, 1, 1, {0}, {1, 2, 3}, {1, 2, 4});
  input.attributes["causal"] = 1;
  EXPECT_TRUE(contains(Exact(input).at("o", 0), 1.0));
  EXPECT_TRUE(contains(Exact(input).at("o", 1), 1.5));
  input.attributes["causal"] = 2;
  EXPECT_TRUE(contains(Exact(input).at("o", 0), 1.5));
  input.attributes["window"] = 1;
  EXPECT_TRUE(contains(Exact(input).at("o", 0), 2.0));
  EXPECT_TRUE(contains(Exact(input).at("o", 1), 4.0));
}

/// W7, W3, W4: permuted keys, a common shift of the keys, a common shift of the values.
TEST(Attention, SymmetriesLeaveTheOutput) {
  const WorkingPrecision precision(256);
  const std::vector<double> q{1.5, -0.25, 2, 1}, k{1, 2, -1, 0.5, 3, -2}, v{4, -1, 0.5, 8, 2, 1};
  const Case input = one_head(2, 3, 2, 2, q, k, v);
  const Case permuted = one_head(2, 3, 2, 2, q, {3, -2, 1, 2, -1, 0.5}, {2, 1, 4, -1, 0.5, 8});
  std::vector<double> moved_keys = k, moved_values = v;
  for (std::size_t i = 0; i < k.size(); ++i) moved_keys[i] += i % 2 ? 7 : -3;
  for (double& x : moved_values) x += 16;
  const Exact base(input), other(permuted), shifted(one_head(2, 3, 2, 2, q, moved_keys, v)), lifted(one_head(2, 3, 2, 2, q, k, moved_values));
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(meet(base.at("o", i), other.at("o", i)));
    EXPECT_TRUE(meet(base.at("o", i), shifted.at("o", i)));
    EXPECT_TRUE(meet(base.at("o", i) + Enclosure(16.0), lifted.at("o", i)));
  }
}

/// W8: dp/da = diag(p) - p p^T. With V and go the identity, row i of it is the gradient of a bias at query i.
TEST(Attention, JacobianOfARowIsSymmetricAndPositiveSemidefinite) {
  const WorkingPrecision precision(256);
  constexpr std::int64_t keys = 5;
  std::vector<double> identity(keys * keys);
  for (std::size_t i = 0; i < keys; ++i) identity[i * keys + i] = 1;
  Case input = one_head(keys, keys, 2, keys, {1.5, -2}, {1, 2, -1, 0.5, 3, -2, 40, 1, 0, 0}, identity);
  input.inputs["go"] = tensor({1, 1, keys, keys}, identity);
  const Exact exact(input);
  const auto jacobian = [&](std::size_t i, std::size_t j) -> const Enclosure& { return exact.at("gbias", i * keys + j); };
  for (std::size_t i = 0; i < keys; ++i) {
    Enclosure sum;
    for (std::size_t j = 0; j < keys; ++j) {
      EXPECT_TRUE(meet(jacobian(i, j), jacobian(j, i)));
      // Negative off the diagonal with zero row sums: diagonally dominant, so positive semidefinite.
      if (i != j) { EXPECT_LT(midpoint_hint(jacobian(i, j)), 0); }
      sum = sum + jacobian(i, j);
    }
    EXPECT_TRUE(contains(sum, 0.0));
  }
}

TEST(Attention, SoftcapStaysFiniteFarBeyondItsCap) {
  const WorkingPrecision precision(192);
  Case input = one_head(1, 2, 1, 1, {5000}, {1, 0}, {1, 2});
  input.attributes["softcap"] = 50;
  const Exact exact(input);
  // 50 tanh(100) = 50 up to 4e-86: the weights are those of logits 50 and 0.
  EXPECT_NEAR(midpoint_hint(exact.at("o", 0)), 1 + 1 / (1 + std::exp(50.0)), 1e-15);
  EXPECT_TRUE(magnitude_upper(exact.at("gk", 0)) < 1e-80);
}

/// The case with all other keys hidden.
Case with_keys(Case input, std::int64_t first, std::int64_t end) {
  const auto shape = tensor_shape(Shape::scores, input, Reduction::none);
  const Tensor before = input.inputs.contains("mask") ? input.inputs.at("mask") : tensor(shape, {1}, Format::boolean);
  Tensor mask = Tensor::contiguous(Format::boolean, shape);
  for (std::int64_t i = 0; i < mask.elements(); ++i) mask.set(i, before.get(i) != 0 && i % shape[3] >= first && i % shape[3] < end);
  input.inputs["mask"] = mask;
  return input;
}

/// F6: partial results over any split of the keys merge to the whole.
TEST(Attention, MergedPartsAreTheWhole) {
  const WorkingPrecision precision(256);
  for (std::uint64_t index = 0; index < 63; ++index) {
    Case input = small_case(index);
    if (!attribute_is(input, "sink", 0) || !attribute_is(input, "empty_row_policy", 0) || !attribute_is(input, "lse_base", 0)) continue;
    const std::int64_t keys = input.extents[axis::keys], split = keys / 2;
    const Case left_case = with_keys(input, 0, split), right_case = with_keys(input, split, keys);
    const Exact whole(input), left(left_case), right(right_case);
    for (std::size_t t = 0; t < whole.count("lse"); ++t) {
      const Enclosure &l = left.at("lse", t), &r = right.at("lse", t), &all = whole.at("lse", t);
      if (is_special(all)) {
        EXPECT_TRUE(is_special(l) && is_special(r));
        continue;
      }
      const Enclosure w1 = is_special(l) ? Enclosure(0.0) : exp(l - all), w2 = is_special(r) ? Enclosure(0.0) : exp(r - all);
      EXPECT_TRUE(contains(w1 + w2, 1.0));
      const std::size_t width = whole.count("o") / whole.count("lse");
      for (std::size_t c = 0; c < width; ++c)
        EXPECT_TRUE(meet(whole.at("o", t * width + c), w1 * left.at("o", t * width + c) + w2 * right.at("o", t * width + c)));
    }
  }
}

TEST(Attention, BadCasesAreRefusedWithOneSentence) {
  const auto message = [](Case input) {
    try {
      validate(sdpa(), input);
    } catch (const InvalidInput& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const Case good = one_head(2, 3, 2, 2, {1}, {1}, {1});
  EXPECT_EQ(message(good), "accepted");
  Case bad = good;
  bad.extents[axis::keys] = 0;
  EXPECT_NE(message(bad).find("extent 0 of keys is not positive"), std::string::npos) << message(bad);
  bad = good, bad.extents.pop_back();
  EXPECT_NE(message(bad).find("needs the 7 extents batch, heads"), std::string::npos) << message(bad);
  bad = good, bad.extents[axis::kv_heads] = 2;
  EXPECT_NE(message(bad).find("2 kv_heads do not divide 1 heads"), std::string::npos) << message(bad);
  bad = good, bad.extents[axis::queries] = std::int64_t{1} << 62;
  EXPECT_NE(message(bad).find("overflow"), std::string::npos) << message(bad);
  bad = good, bad.inputs["q"].set(1, infinity);
  EXPECT_NE(message(bad).find("input 'q': element 1 is inf; it must be finite"), std::string::npos) << message(bad);
  bad = good, bad.inputs["bias"] = tensor({1, 1, 2, 3}, {0, infinity});
  EXPECT_NE(message(bad).find("must be finite or -inf"), std::string::npos) << message(bad);
}

}  // namespace
}  // namespace sumzero
