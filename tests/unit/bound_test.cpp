// The interpreter of bounds against a second evaluation of the same trees in intervals, and the completeness of the files.
#include "oracle/bound.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/case_builder.hpp"

namespace sumzero {
namespace {

using nlohmann::json;

struct Quantities {
  std::size_t n = 1;
  std::vector<double> scalars;
  std::vector<std::vector<double>> arrays;
  std::vector<double> exact;
};

Quantities random_quantities(const Signature& signature, const OutputSpec& output, std::size_t n, unsigned seed) {
  std::mt19937 engine(seed);
  const auto next = [&engine] { return std::ldexp(1 + static_cast<double>(engine()) * 0x1p-32, static_cast<int>(engine() % 8) - 5); };
  Quantities q;
  q.n = n;
  for (std::size_t i = 0; i < signature.quantities.size(); ++i) q.scalars.push_back(engine() % 6 == 0 ? 0 : next());
  for (std::size_t i = 0; i < signature.arrays.size(); ++i) {
    q.arrays.emplace_back(n);
    for (double& v : q.arrays.back()) v = engine() % 6 == 0 ? 0 : next();
  }
  q.exact.resize(output.shape == Shape::row || signature.axes == Axes::attention ? n : 1);
  for (double& v : q.exact) v = next();
  return q;
}

/// The value of a tree at one entry by its definition, read from the file's text.
class Definition {
 public:
  Definition(const json& file, const json& output, const Signature& signature, const Contract& contract, Format storage, int index,
             const Quantities& q)
      : signature_(signature), contract_(contract), q_(q) {
    const Format out = element_format(signature.outputs[static_cast<std::size_t>(index)].element, storage);
    constants_ = {{"u", unit_roundoff(contract.accumulator)},
                  {"eta", contract.flush_to_zero ? smallest_normal(contract.accumulator) : smallest_subnormal(contract.accumulator)},
                  {"u_out", is_floating(out) ? unit_roundoff(out) : 0.0},
                  {"eta_out", is_floating(out) ? smallest_subnormal(out) : 0.0},
                  {"c_e", contract.exp_error},
                  {"c_l", contract.log_error},
                  {"c_x", contract.expm1_error},
                  {"shift", contract.compensated_shift ? 0.0 : 1.0},
                  {"reciprocal", contract.reciprocal ? 1.0 : 0.0},
                  {"tile", contract.key_tile > 0 ? contract.key_tile : 0x1p62},
                  {"pivoted", contract.pivoted ? 1.0 : 0.0},
                  {"unpivoted", contract.pivoted ? 0.0 : 1.0},
                  {"n", static_cast<double>(q.n)},
                  {"h", contract.summation.height(static_cast<double>(q.n - 1))},
                  {"h_n", contract.summation.height(static_cast<double>(q.n))}};
    for (const json* lets : {&file, &output})
      if (lets->contains("let"))
        for (const auto& definition : (*lets)["let"]) named_[definition[0].get<std::string>()] = definition[1];
  }
  Enclosure at(const json& tree, std::size_t j) const {
    if (tree.is_number()) return Enclosure(tree.get<double>());
    if (tree.is_string()) return leaf(tree.get<std::string>(), j);
    const std::string op = tree[0].get<std::string>();
    if (op == "sum") {
      Enclosure total;
      for (std::size_t i = 0; i < q_.n; ++i) total = total + at(tree[1], i);
      return total;
    }
    Enclosure value = at(tree[1], j);
    if (op == "log") return midpoint_hint(value) > 1 ? log(value) : Enclosure(0.0);
    if (op == "height") return Enclosure(contract_.summation.height(midpoint_hint(value)));
    if (op == "rel") return expm1(value * Enclosure(constants_.at(tree.size() == 3 ? tree[2].get<std::string>() : "u")));
    for (std::size_t i = 2; i < tree.size(); ++i) {
      const Enclosure right = at(tree[i], j);
      if (op == "+") value = value + right;
      else if (op == "*") value = value * right;
      else if (op == "/") value = value / right;
      else if (op == "max") value = midpoint_hint(value) > midpoint_hint(right) ? value : right;
      else if (op == "min") value = midpoint_hint(value) < midpoint_hint(right) ? value : right;
      else ADD_FAILURE() << op;
    }
    return value;
  }

 private:
  Enclosure leaf(const std::string& name, std::size_t j) const {
    if (const auto found = named_.find(name); found != named_.end()) return at(found->second, j);
    if (const auto found = constants_.find(name); found != constants_.end()) return Enclosure(found->second);
    if (name == "exact") return Enclosure(q_.exact[q_.exact.size() == 1 ? 0 : j]);
    for (std::size_t i = 0; i < signature_.quantities.size(); ++i)
      if (signature_.quantities[i] == name) return Enclosure(q_.scalars[i]);
    for (std::size_t i = 0; i < signature_.arrays.size(); ++i)
      if (signature_.arrays[i] == name) return Enclosure(q_.arrays[i][j]);
    ADD_FAILURE() << "unknown name " << name;
    return Enclosure(0.0);
  }

  const Signature& signature_;
  const Contract& contract_;
  const Quantities& q_;
  std::map<std::string, double> constants_;
  std::map<std::string, json> named_;
};

struct Comparison {
  int entries = 0, below = 0, far_above = 0;
};

/// `computed` must not be below the definition, nor above it by more than its documented slack: 2^-20 a sum, nested at most
/// twice, and t (1 + t) for expm1(t), at most t/2 <= 2^-5 relative for K u below 2^-4 (bf16-wide K u = 8 n u stay below).
void compare(double computed, const Enclosure& wanted, Comparison& comparison) {
  ++comparison.entries;
  comparison.below += magnitude_upper(Enclosure(computed)) < magnitude_lower(wanted);
  comparison.far_above += computed > magnitude_upper(wanted) * (1 + 0x1p-5) + 0x1p-1000;
}

std::vector<Contract> contracts() {
  Contract plain, fancy;
  fancy.accumulator = Format::f64;
  fancy.exp_error = 2, fancy.log_error = 1.5, fancy.expm1_error = 3;
  fancy.summation = {SummationTree::Kind::lanes, 16, 16};
  fancy.flush_to_zero = fancy.compensated_shift = fancy.reciprocal = fancy.pivoted = true;
  fancy.key_tile = 64;
  return {plain, fancy};
}

/// Runs every tree of the files; `scale` multiplies what the interpreter gave.
Comparison compare_all(double scale) {
  const WorkingPrecision precision(256);
  Comparison comparison;
  unsigned seed = 1;
  for (const OperatorReference* reference : Registry::global().operators()) {
    const Signature& signature = reference->signature();
    for (const EmbeddedBound& file : embedded_bounds()) {
      const json document = json::parse(file.text);
      if (std::find(document["operators"].begin(), document["operators"].end(), signature.name) == document["operators"].end()) continue;
      for (std::size_t i = 0; i < signature.outputs.size(); ++i) {
        if (!document["outputs"].contains(signature.outputs[i].name)) continue;
        const json& entry = document["outputs"][signature.outputs[i].name];
        for (const Contract& contract : contracts())
          for (const std::size_t n : {std::size_t{1}, std::size_t{2}, std::size_t{9}}) {
            const Quantities q = random_quantities(signature, signature.outputs[i], n, seed++);
            const Format storage = contract.accumulator == Format::f64 ? Format::f64 : Format::bf16;
            const Bound bound = find_bound(signature, static_cast<int>(i), contract, storage);
            const Definition definition(document, entry, signature, contract, storage, static_cast<int>(i), q);
            std::vector<double> result;
            bound.evaluate({n, q.scalars, q.arrays, q.exact}, {}, result);
            EXPECT_EQ(result.size(), q.exact.size());
            for (std::size_t j = 0; j < result.size(); ++j) compare(result[j] * scale, definition.at(entry["bound"], j), comparison);
            EXPECT_EQ(bound.has_sum_entries(), entry.contains("sum_entries"));
            if (entry.contains("sum_entries")) {
              bound.evaluate_sum_entries({n, q.scalars, q.arrays, q.exact}, {}, result);
              for (std::size_t j = 0; j < result.size(); ++j) compare(result[j] * scale, definition.at(entry["sum_entries"], j), comparison);
            }
            EXPECT_EQ(bound.has_sum_bound(), entry.contains("sum_bound"));
            if (entry.contains("sum_bound")) {
              // There `exact` is the total.
              Quantities total = q;
              total.exact = {3.25};
              const Definition of_sum(document, entry, signature, contract, storage, static_cast<int>(i), total);
              compare(bound.sum_bound(n, q.scalars, 3.25) * scale, of_sum.at(entry["sum_bound"], 0), comparison);
            }
          }
      }
    }
  }
  return comparison;
}

TEST(Bounds, AreTheirTreesRoundedUp) {
  const Comparison comparison = compare_all(1);
  EXPECT_GT(comparison.entries, 500);
  EXPECT_EQ(comparison.below, 0);
  EXPECT_EQ(comparison.far_above, 0);
}

// Planted: an interpreter that loses one part in 2^20, or forgets half of its terms, is caught in both directions.
TEST(Bounds, AWrongInterpreterIsCaught) {
  EXPECT_GT(compare_all(1 - 0x1p-4).below, 100);
  EXPECT_GT(compare_all(2).far_above, 100);
}

// Rows given together have the bounds that each has alone, to the bit.
TEST(Bounds, RowsTogetherAndAloneAgree) {
  std::size_t compared = 0;
  for (const OperatorReference* reference : Registry::global().operators()) {
    const Signature& signature = reference->signature();
    if (signature.axes != Axes::rows) continue;
    for (std::size_t i = 0; i < signature.outputs.size(); ++i)
      for (const Contract& contract : contracts())
        for (const std::size_t n : {std::size_t{1}, std::size_t{2}, std::size_t{9}, std::size_t{60}}) {
          constexpr std::size_t rows = 333;
          const Bound bound = find_bound(signature, static_cast<int>(i), contract, contract.accumulator == Format::f64 ? Format::f64 : Format::bf16);
          const Bound::Store store{1.5, 0x1p-9, 0x1p-140, 3.0};
          std::vector<Quantities> alone;
          Quantities all = random_quantities(signature, signature.outputs[i], n, 1);
          all.scalars.assign(signature.quantities.size() * rows, 0), all.exact.clear();
          for (auto& array : all.arrays) array.clear();
          for (std::size_t r = 0; r < rows; ++r) {
            const Quantities& q = alone.emplace_back(random_quantities(signature, signature.outputs[i], n, static_cast<unsigned>(7 * n + r)));
            for (std::size_t s = 0; s < q.scalars.size(); ++s) all.scalars[s * rows + r] = q.scalars[s];
            for (std::size_t a = 0; a < q.arrays.size(); ++a) all.arrays[a].insert(all.arrays[a].end(), q.arrays[a].begin(), q.arrays[a].end());
            all.exact.insert(all.exact.end(), q.exact.begin(), q.exact.end());
          }
          const Bound::Rows together{n, all.scalars, all.arrays, all.exact, rows};
          const auto check = [&](const auto& evaluate) {
            std::vector<double> expected, one, got;
            for (const Quantities& q : alone) evaluate(Bound::Rows{n, q.scalars, q.arrays, q.exact}, one), expected.insert(expected.end(), one.begin(), one.end());
            evaluate(together, got);
            EXPECT_EQ(got, expected) << signature.name << " " << signature.outputs[i].name << ", n = " << n;
            compared += got.size();
          };
          check([&](const Bound::Rows& given, std::vector<double>& result) { bound.evaluate(given, store, result); });
          if (bound.has_sum_entries()) check([&](const Bound::Rows& given, std::vector<double>& result) { bound.evaluate_sum_entries(given, store, result); });
          if (!bound.has_sum_bound()) continue;
          std::vector<double> totals, got, expected;
          for (std::size_t r = 0; r < rows; ++r) totals.push_back(0.5 + static_cast<double>(r));
          bound.evaluate_sums({n, all.scalars, all.arrays, totals, rows}, got);
          for (std::size_t r = 0; r < rows; ++r) expected.push_back(bound.sum_bound(n, alone[r].scalars, totals[r]));
          EXPECT_EQ(got, expected);
        }
  }
  EXPECT_GT(compared, 100'000u);
}

TEST(Bounds, EveryOutputHasOne) {
  for (const OperatorReference* reference : Registry::global().operators())
    for (std::size_t i = 0; i < reference->signature().outputs.size(); ++i)
      for (const Format storage : floating_formats) {
        Contract contract;
        contract.accumulator = accumulator_of(storage);
        const Bound bound = find_bound(reference->signature(), static_cast<int>(i), contract, storage);
        EXPECT_FALSE(bound.theorem.empty() || bound.file.empty()) << reference->signature().name;
        EXPECT_TRUE(bound.kind == "proved" || bound.kind == "derived") << bound.kind;
        contract.kind = "declared";
        EXPECT_EQ(find_bound(reference->signature(), static_cast<int>(i), contract, storage).kind, "declared");
      }
  Signature nobody;
  nobody.name = "nobody";
  nobody.outputs = {{"p", Shape::row}};
  EXPECT_THROW(find_bound(nobody, 0, Contract{}, Format::f32), std::logic_error);
}

// A bound grows with the tree's height, the errors of the functions and the flush of subnormals.
TEST(Bounds, FollowTheContract) {
  const Signature& signature = reference_of("softmax").signature();
  const Quantities q = random_quantities(signature, signature.outputs[0], 1000, 4);
  const auto value = [&](const Contract& contract) {
    std::vector<double> result;
    find_bound(signature, 0, contract, Format::f32).evaluate({q.n, q.scalars, q.arrays, q.exact}, {}, result);
    double total = 0;
    for (const double entry : result) total += entry;
    return total;
  };
  Contract sequential, pairwise, crude;
  sequential.summation = {SummationTree::Kind::sequential, 1, 0};
  pairwise.summation = {SummationTree::Kind::pairwise, 1, 0};
  crude = pairwise;
  crude.exp_error = 50;
  EXPECT_GT(value(sequential), 10 * value(pairwise));  // height 998 against 10
  EXPECT_GT(value(crude), value(pairwise));
}

// Heights of the trees: sequential terms - 1; pairwise ceil(log2); lanes ceil(terms/W) + log2 W, with a flush every F steps
// F + ceil(log2(steps/F)) + log2 W.
TEST(Bounds, SummationHeights) {
  const auto height = [](SummationTree::Kind kind, int width, int flush, double terms) { return SummationTree{kind, width, flush}.height(terms); };
  using Kind = SummationTree::Kind;
  EXPECT_EQ(height(Kind::unknown, 1, 0, 1), 0);
  EXPECT_EQ(height(Kind::unknown, 1, 0, 113), 112);
  EXPECT_EQ(height(Kind::sequential, 1, 0, 2), 1);
  EXPECT_EQ(height(Kind::pairwise, 1, 0, 1024), 10);
  EXPECT_EQ(height(Kind::pairwise, 1, 0, 1025), 11);
  EXPECT_EQ(height(Kind::lanes, 16, 0, 1048576), 65540);
  EXPECT_EQ(height(Kind::lanes, 16, 16, 1048576), 16 + 12 + 4);  // 65536 steps, 4096 flushes
  EXPECT_EQ(height(Kind::lanes, 16, 16, 100), 7 + 4);
}

}  // namespace
}  // namespace sumzero
