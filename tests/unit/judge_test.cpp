// The judge on outputs that are right, and on outputs that are wrong in one planted way.
#include "oracle/judge.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "fuzz/recipe.hpp"
#include "fuzz/recipe_generator.hpp"
#include "reference/register.hpp"
#include "reference/softmax/logsumexp.hpp"
#include "tests/case_builder.hpp"

namespace sumzero {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// A kernel that is never called: the tests write its outputs. Correctly rounded exponential, pairwise sums.
class Untouched final : public Kernel {
 public:
  explicit Untouched(std::string operator_name) { op = std::move(operator_name), name = "untouched"; }
  bool supports(Format) const override { return true; }
  Contract contract(Format storage) const override {
    Contract contract;
    contract.accumulator = accumulator_of(storage);
    contract.summation = {SummationTree::Kind::pairwise, 1, 0};
    return contract;
  }
  void run(const Call&) const override {}
};

struct Judged {
  const OperatorReference& reference;
  Untouched kernel;
  Case input;
  Judge judge;
  std::vector<Tensor> outputs;

  explicit Judged(const Case& given) : Judged(reference_of(given.op), given) {}
  Judged(const OperatorReference& operator_reference, const Case& given)
      : reference(operator_reference), kernel(given.op), input(given), judge(reference, kernel, input.storage) {
    fill();
  }
  Tensor& output(const std::string& name) { return outputs[static_cast<std::size_t>(reference.signature().output(name))]; }
  CaseJudgement operator()() const { return judge.judge(input, outputs); }

 private:
  /// Nearest number of the format, overflow included; f64 keeps what midpoint_hint gives, the nearest double.
  static double nearest(Format format, const Enclosure& exact) {
    const double value = midpoint_hint(exact);
    return is_floating(format) ? round_to(format, value) : value;
  }
  /// The Enclosure of every output, rounded once.
  void fill() {
    const Signature& signature = reference.signature();
    const WorkingPrecision precision(2048);
    CaseEvaluator evaluator(reference, input);
    for (const OutputSpec& spec : signature.outputs)
      outputs.push_back(Tensor::contiguous(element_format(spec.element, input.storage), tensor_shape(spec.shape, input, evaluator.reduction())));
    std::vector<Enclosure> totals(signature.outputs.size());
    std::vector<double> special(signature.outputs.size(), 0.0);
    for (std::int64_t row = 0; row < evaluator.rows(); ++row) {
      RowValues<Enclosure> values;
      evaluator.row(row, values);
      for (std::size_t i = 0; i < signature.outputs.size(); ++i) {
        if (outputs[i].shape.empty()) {
          if (is_special(values.out[i][0])) special[i] += midpoint_hint(values.out[i][0]);
          else totals[i] = totals[i] + values.out[i][0];
          continue;
        }
        const auto count = static_cast<std::int64_t>(values.out[i].size());
        for (std::int64_t j = 0; j < count; ++j)
          outputs[i].set(row * count + j, nearest(outputs[i].format, values.out[i][static_cast<std::size_t>(j)]));
      }
    }
    for (std::size_t i = 0; i < signature.outputs.size(); ++i) {
      if (!outputs[i].shape.empty()) continue;
      if (evaluator.reduction() == Reduction::mean && evaluator.mean_over_nothing()) outputs[i].set(0, evaluator.loss_over_nothing());
      else if (special[i] != 0) outputs[i].set(0, special[i]);
      else outputs[i].set(0, nearest(outputs[i].format, totals[i] / evaluator.denominator<Enclosure>()));
    }
  }
};

std::string list_of(const CaseJudgement& judgement, const Signature& signature) {
  std::string text;
  for (const Suspicion& f : judgement.findings)
    text += f.property + " " + f.kind + " of " + signature.outputs[static_cast<std::size_t>(f.output)].name + "[" + std::to_string(f.row) + ", " +
            std::to_string(f.index) + "]; ";
  return text;
}

const Suspicion* finding(const CaseJudgement& judgement, const std::string& property) {
  for (const Suspicion& f : judgement.findings)
    if (f.property == property) return &f;
  return nullptr;
}

// e4m3 has no infinity: above 448 the saturated number is right, its neighbour and NaN are not, and the row has no sum.
TEST(Judge, ASaturatedResultIsTheCorrectOneOfAFormatWithoutInfinity) {
  // p_j = 1/3, so gx = 64/3 (800/3, 800/3, -1600/3).
  const Case input = CaseBuilder("softmax.scaled_masked", Format::e4m3, 1, 3).rows("x", {0, 0, 0}).rows("g", {400, 400, -400}).attribute("scale", 64);
  Judged large(input), lower(input), nan(input);
  EXPECT_EQ(list_of(large(), large.reference.signature()), "");
  EXPECT_EQ(large.output("gx").get(0), 448);
  lower.output("gx").set(0, 416);
  EXPECT_NE(finding(lower(), "bound"), nullptr);
  nan.output("gx").set(0, std::nan(""));
  EXPECT_NE(finding(nan(), "special values"), nullptr);
}

// Correct rounding errs by half a gap at most; the filter may overstate by its own 2^-10 ulp. Each entry then leaves at most
// u |g| + eta/2 in a row sum, so V <= 1. Around a power of two the judge takes the smaller gap of what the enclosure
// straddles, which only the rounding of a number near it can meet, with an error near 0.
TEST(Judge, CorrectlyRoundedResultsPass) {
  for (const OperatorReference* reference : Registry::global().operators())
    for (const Format storage : floating_formats) {
      SCOPED_TRACE(reference->signature().name + " " + std::string(name(storage)));
      double ulp = 0, v = 0;
      for (std::uint64_t index = 0; index < (storage == Format::f32 ? 54 : 18); ++index) {
        Recipe recipe = generate_recipe(reference->signature(), 9, index);
        recipe.rows = std::min(recipe.rows, 3);
        recipe.classes = std::min(recipe.classes, 24);
        const Judged judged(expand(recipe, reference->signature(), storage));
        const CaseJudgement judgement = judged();
        EXPECT_TRUE(judgement.findings.empty()) << recipe.stratum << ", case " << index << ": " << list_of(judgement, reference->signature());
        EXPECT_EQ(judgement.undecided_rows, 0);
        for (const OutputRecord& record : judgement.outputs) ulp = std::max(ulp, record.ulp);
        v = std::max(v, judgement.gradient_sum_index.value);
      }
      EXPECT_LE(ulp, 0.5 + 0x1p-9);
      EXPECT_LE(v, 1 + 0x1p-9);
      if (storage == Format::f32) { EXPECT_GT(ulp, 0.3) << "an error that is never seen"; }
    }
}

TEST(Judge, AnEntryBeyondItsBoundIsFound) {
  const Numbers x = {0.5, -1, 2, 0.25, -3, 1, 0, 4};
  for (const std::string op : {"softmax", "log_softmax"}) {
    Judged judged(CaseBuilder(op, Format::f32, 2, 4).rows("x", x));
    Tensor& out = judged.outputs[0];
    const std::int64_t at = 6;  // row 1, class 2
    const Measurement before = judged.judge.measure(judged.input, judged.outputs, 0, 1, 2);
    ASSERT_TRUE(before.decided);
    EXPECT_LE(before.ulp, 0.5);
    // Inside the bound nothing is said about the entry; twice the bound is one violation, there.
    out.set(at, before.exact_value + 0.5 * before.bound);
    EXPECT_EQ(finding(judged(), "bound"), nullptr) << op;
    out.set(at, before.exact_value + 2 * before.bound);
    const CaseJudgement judgement = judged();
    const Suspicion* found = finding(judgement, "bound");
    ASSERT_NE(found, nullptr) << op;
    EXPECT_EQ(found->output, 0);
    EXPECT_EQ(found->row, 1);
    EXPECT_EQ(found->index, 2);
    EXPECT_EQ(found->verdict, Verdict::bound_exceeded);
    // The store rounds 2 x bound to the format: a half ulp of the entry, below a fifth of the bound.
    EXPECT_NEAR(found->excess, 2, 0.4);
    const auto violation = judged.judge.confirm(judged.input, judged.outputs, *found);
    ASSERT_TRUE(violation);
    EXPECT_NEAR(violation->bound_ratio, 2, 0.4);
    EXPECT_EQ(violation->computed, out.get(at));
  }
}

TEST(Judge, UlpsAreCounted) {
  Judged judged(CaseBuilder("softmax", Format::f32, 1, 2).rows("x", {1, 1}));  // p = 1/2 exactly: the gap below is 2^-25
  judged.outputs[0].set(1, 0.5 + 3 * 0x1p-24);                                 // three steps above, six gaps
  const Measurement entry = judged.judge.measure(judged.input, judged.outputs, 0, 0, 1);
  EXPECT_EQ(entry.ulp, 6);
  EXPECT_EQ(entry.grid, 3);
  EXPECT_EQ(judged().outputs[0].ulp_index, 1);
}

TEST(Judge, SpecialValues) {
  Judged judged(CaseBuilder("softmax", Format::f32, 1, 3).rows("x", {1, 2, 3}).rows("g", {1, 2, 4}));
  judged.output("gx").set(2, std::nan(""));
  CaseJudgement judgement = judged();
  ASSERT_NE(finding(judgement, "special values"), nullptr);
  EXPECT_EQ(finding(judgement, "special values")->index, 2);
  EXPECT_TRUE(judged.judge.confirm(judged.input, judged.outputs, *finding(judgement, "special values")));
  judged.output("gx").set(2, infinity);
  judgement = judged();
  ASSERT_NE(finding(judgement, "finite"), nullptr);
  EXPECT_EQ(finding(judgement, "finite")->kind, "overflow");
  // A finite number where NaN is due.
  Judged nan_row(CaseBuilder("softmax", Format::f32, 1, 3).rows("x", {1, std::nan(""), 3}));
  EXPECT_TRUE(nan_row().findings.empty());
  nan_row.output("p").set(0, 0.25);
  ASSERT_NE(finding(nan_row(), "special values"), nullptr);
  // The wrong infinity.
  Judged dead(CaseBuilder("log_softmax", Format::f32, 1, 2).rows("x", {-infinity, 3}));
  EXPECT_TRUE(dead().findings.empty());
  dead.output("logp").set(0, infinity);
  ASSERT_NE(finding(dead(), "special values"), nullptr);
}

TEST(Judge, AWrongFlag) {
  Judged judged(CaseBuilder("softmax.state", Format::f32, 1, 2).rows("x", {1, 2}));
  EXPECT_TRUE(judged().findings.empty());
  judged.output("empty").set(0, 1);
  ASSERT_NE(finding(judged(), "flag"), nullptr);
}

TEST(Judge, ExactZeros) {
  Judged judged(CaseBuilder("kl_forward", Format::f32, 1, 3).rows("s", {1, 2, 3}).rows("t", {1, 2, 3}));
  EXPECT_TRUE(judged().findings.empty());
  EXPECT_TRUE(judged().vacuous);
  judged.output("ds").set(1, -0x1p-26);  // the noise of the textbook form
  const CaseJudgement judgement = judged();
  const Suspicion* found = finding(judgement, "exact zero");
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->kind, "cancellation");
  EXPECT_EQ(found->index, 1);
  const auto violation = judged.judge.confirm(judged.input, judged.outputs, *found);
  ASSERT_TRUE(violation);
  EXPECT_EQ(violation->exact_value, 0);
  // Its index has no meaning, because the reference's gradient is zero.
  EXPECT_LT(judgement.gradient_sum_index.value, 0);
}

// [17, 0]: the target's entry lost, V = |sum|/(u sum|g|) = 1/(2u) = 2^23 where sum |g| is twice the entry.
TEST(Judge, CollapseOfTheGradientSum) {
  Judged judged(CaseBuilder("cross_entropy", Format::f32, 1, 2).rows("x", {17, 0}).labels({0}).attribute("reduction", 0));
  EXPECT_TRUE(judged().findings.empty());
  judged.output("gx").set(0, 0);
  const CaseJudgement judgement = judged();
  const Suspicion* found = finding(judgement, "gradient sum");
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->kind, "collapse");
  EXPECT_EQ(found->index, -1);
  EXPECT_NEAR(judgement.gradient_sum_index.value / 0x1p23, 1, 1e-6);
  const auto violation = judged.judge.confirm(judged.input, judged.outputs, *found);
  ASSERT_TRUE(violation && violation->gradient_sum_index);
  EXPECT_NEAR(*violation->gradient_sum_index / 0x1p23, 1, 1e-6);
  // One entry a thousandth off: the sum is wrong, yet nothing was lost. V = 0.0005/u = 8389 < 1/(4u).
  judged.output("gx").set(0, -4.1399375e-8 * 1.001);
  const CaseJudgement mild = judged();
  ASSERT_NE(finding(mild, "gradient sum"), nullptr);
  EXPECT_EQ(finding(mild, "gradient sum")->kind, "");
}

TEST(Judge, ProbabilitySums) {
  Judged judged(CaseBuilder("softmax", Format::f32, 1, 4).rows("x", {0, 0, 0, 0}));
  EXPECT_EQ(judged().sum_index.value, 0);
  for (int j = 0; j < 4; ++j) judged.outputs[0].set(j, 0.25 + 0x1p-20);
  const CaseJudgement judgement = judged();
  ASSERT_NE(finding(judgement, "probability sum"), nullptr);
  EXPECT_TRUE(judged.judge.confirm(judged.input, judged.outputs, *finding(judgement, "probability sum")));
}

TEST(Judge, ReducedLosses) {
  const Numbers x = {0.5, -1, 2, 0.25, -3, 1, 0, 4, 2, 2, 2, 2};
  for (const double reduction : {1.0, 2.0}) {
    for (const bool weights : {false, true}) {
      CaseBuilder build = CaseBuilder("cross_entropy", Format::f32, 3, 4).rows("x", x).labels({2, -100, 0}).attribute("reduction", reduction);
      if (weights) build.tensor("weight", Format::f32, {4}, {1, 2, 0.5, 3});
      build.tensor("g", Format::f32, {}, {0.75});
      Judged judged(build);
      EXPECT_TRUE(judged().findings.empty());
      Tensor& loss = judged.output("loss");
      ASSERT_TRUE(loss.shape.empty());
      const double right = loss.get(0);
      // By hand, in double: the rows' losses are lse - x_t, the ignored row counts nowhere.
      const auto row_loss = [&](std::size_t row, std::size_t t) {
        double s = 0;
        for (std::size_t j = 0; j < 4; ++j) s += std::exp(x[4 * row + j]);
        return std::log(s) - x[4 * row + t];
      };
      const double w2 = weights ? 0.5 : 1, w0 = 1;
      double wanted = w2 * row_loss(0, 2) + w0 * row_loss(2, 0);
      if (reduction == 2) wanted /= w2 + w0;
      EXPECT_NEAR(right, wanted, 1e-6);
      loss.set(0, right * (1 + 1e-4));
      const CaseJudgement judgement = judged();
      const Suspicion* found = finding(judgement, "bound");
      ASSERT_NE(found, nullptr);
      EXPECT_EQ(judged.reference.signature().outputs[static_cast<std::size_t>(found->output)].name, "loss");
      EXPECT_TRUE(judged.judge.confirm(judged.input, judged.outputs, *found));
    }
  }
  // The mean over nothing is NaN, or zero by policy.
  Judged nothing(CaseBuilder("cross_entropy", Format::f32, 1, 2).rows("x", {1, 2}).labels({-100}));
  EXPECT_TRUE(nothing().findings.empty());
  EXPECT_TRUE(std::isnan(nothing.output("loss").get(0)));
  nothing.output("loss").set(0, 0);
  EXPECT_FALSE(nothing().findings.empty());
  Judged zero(CaseBuilder("cross_entropy", Format::f32, 1, 2).rows("x", {1, 2}).labels({-100}).attribute("all_ignored_policy", 1));
  EXPECT_TRUE(zero().findings.empty());
  EXPECT_EQ(zero.output("loss").get(0), 0);
}

/// An operator whose enclosure never narrows: a quotient by an interval around zero.
struct Undecidable : LogSumExp {
  template <class N>
  static void row(RowProblem<N>& problem) {
    LogSumExp::row(problem);
    const N zero = exp(N(problem.in[0][0])) - exp(N(problem.in[0][0]));
    problem.out(0)[0] = N(1.0) / zero;
  }
};

TEST(Judge, UndecidedRowsAreCounted) {
  const ReferenceOf<Undecidable> reference;
  Case input = CaseBuilder("logsumexp", Format::f32, 1, 1).rows("x", {1.5});
  const Untouched kernel("logsumexp");
  const Judge judge(reference, kernel, Format::f32);
  std::vector<Tensor> outputs = {tensor_of(Format::f32, {1}, {1}), tensor_of(Format::f32, {1, 1}, {0})};
  const CaseJudgement judgement = judge.judge(input, outputs);
  EXPECT_EQ(judgement.undecided_rows, 1);
  EXPECT_EQ(judgement.escalated_rows, 1);
  EXPECT_FALSE(judge.measure(input, outputs, 0, 0, 0).decided);
}

// f64 results around 2^-1074: no double lies below their errors.
TEST(Judge, SubnormalDoublesAreDecided) {
  Judged judged(CaseBuilder("softmax", Format::f64, 1, 3).rows("x", {744.7, 0, 0.5}));
  CaseJudgement judgement = judged();
  EXPECT_TRUE(judgement.findings.empty());
  EXPECT_EQ(judgement.undecided_rows, 0);
  EXPECT_LE(judgement.outputs[0].ulp, 0.5);
  judged.outputs[0].set(1, 0x1p-1060);
  judgement = judged();
  ASSERT_NE(finding(judgement, "bound"), nullptr);
  EXPECT_EQ(finding(judgement, "bound")->index, 1);
  const Measurement entry = judged.judge.measure(judged.input, judged.outputs, 0, 0, 1);
  EXPECT_TRUE(entry.decided);
  // 2^-1060 is 2^14 gaps from zero, e^-744.7 is 2^(-744.7/ln 2 + 1074) = 0.7457 of one.
  EXPECT_NEAR(entry.ulp, 0x1p14 - std::exp2(1074 - 744.7 / std::log(2.0)), 1e-6);
}

// A bound of zero (the gradient of a single live entry) is exceeded by anything, after any number of zeros.
TEST(Judge, ABoundOfZero) {
  Judged judged(CaseBuilder("softmax.scaled_masked", Format::f32, 1, 5)
                    .rows("x", {1, 2, 3, 4, 5})
                    .rows("g", {1, 2, 3, 4, 5})
                    .tensor("mask", Format::boolean, {1, 5}, {0, 0, 1, 0, 0})
                    .attribute("scale", 0.125));
  EXPECT_TRUE(judged().findings.empty());
  judged.output("gbias").set(4, 1);
  const CaseJudgement judgement = judged();
  ASSERT_NE(finding(judgement, "bound"), nullptr);
  EXPECT_EQ(finding(judgement, "bound")->index, 4);
}

/// Rows [first, first + count) of a tensor whose first axis is the case's rows; others as they are.
Tensor rows_of(const Tensor& tensor, std::int64_t rows, std::int64_t first, std::int64_t count) {
  if (tensor.shape.empty() || tensor.shape[0] != rows) return tensor;
  std::vector<std::int64_t> shape = tensor.shape;
  shape[0] = count;
  Tensor part = Tensor::contiguous(tensor.format, shape);
  const std::int64_t per_row = tensor.elements() / rows;
  for (std::int64_t i = 0; i < part.elements(); ++i) part.set(i, tensor.get(first * per_row + i));
  return part;
}

using Found = std::tuple<std::string, std::string, int, std::int64_t, std::int64_t, double>;
void add_findings(const CaseJudgement& judgement, std::int64_t first, std::vector<Found>& list) {
  for (const Suspicion& f : judgement.findings) list.emplace_back(f.property, f.kind, f.output, f.row + first, f.index, f.excess);
}

// Many short rows are judged together, a row alone goes another way: both say the same, about right and about wrong outputs.
TEST(Judge, RowsTogetherAndAloneAgree) {
  std::size_t found = 0, compared = 0;
  for (const OperatorReference* reference : Registry::global().operators()) {
    const Signature& signature = reference->signature();
    if (signature.axes != Axes::rows) continue;
    for (const Format storage : {Format::f32, Format::bf16, Format::f16, Format::e4m3, Format::e5m2})
      for (std::uint64_t index = 0; index < 24; ++index) {
        Recipe recipe = generate_recipe(signature, 21, index);
        recipe.rows = 13, recipe.classes = 1 + static_cast<int>(index % 5);
        Case input = expand(recipe, signature, storage);
        if (signature.attribute("reduction") >= 0) input.attributes["reduction"] = 0;
        SCOPED_TRACE(signature.name + " " + std::string(name(storage)) + " " + recipe.stratum + ", case " + std::to_string(index));
        for (auto& [key, tensor] : input.inputs) tensor = tensor.packed();
        // The upstream of a reduced loss is one number; without the reduction it has one per row.
        for (const InputSpec& spec : signature.inputs)
          if (spec.shape == Shape::reduced && input.inputs.contains(spec.name))
            input.inputs[spec.name] = tensor_of(input.inputs[spec.name].format, {recipe.rows}, Numbers(static_cast<std::size_t>(recipe.rows), 0.75));
        Judged judged(input);
        // One entry in nine is wrong: a little, by much, zero, or special.
        std::uint64_t state = index * 977 + 5;
        for (Tensor& tensor : judged.outputs)
          for (std::int64_t i = 0; is_floating(tensor.format) && i < tensor.elements(); ++i) {
            state = state * 6364136223846793005 + 1442695040888963407;
            const double wrong[] = {tensor.get(i) * 1.001, tensor.get(i) * 2 + 1, 0, infinity, std::nan("")};
            if (index % 2 && (state >> 33) % 9 == 0) tensor.set(i, wrong[(state >> 50) % 5]);
          }
        const CaseJudgement together = judged();
        CaseJudgement alone;
        std::vector<Found> expected, got;
        for (std::int64_t row = 0; row < recipe.rows; ++row) {
          Case one = input;
          one.extents[0] = 1;
          for (auto& [key, tensor] : one.inputs)
            if (const auto axes = axes_of(signature.inputs[static_cast<std::size_t>(signature.input(key))].shape); !axes.empty() && axes[0] == axis::rows)
              tensor = rows_of(tensor, recipe.rows, row, 1);
          std::vector<Tensor> outputs;
          for (std::size_t i = 0; i < signature.outputs.size(); ++i)
            outputs.push_back(tensor_shape(signature.outputs[i].shape, input, Reduction::none) == tensor_shape(signature.outputs[i].shape, one, Reduction::none)
                                  ? judged.outputs[i] : rows_of(judged.outputs[i], recipe.rows, row, 1));
          const CaseJudgement judgement = judged.judge.judge(one, outputs);
          add_findings(judgement, row, expected);
          for (std::size_t i = 0; i < signature.outputs.size(); ++i) {
            alone.outputs[i].ulp = std::max(alone.outputs[i].ulp, judgement.outputs[i].ulp);
            alone.outputs[i].ratio = std::max(alone.outputs[i].ratio, judgement.outputs[i].ratio);
            alone.outputs[i].signed_ulp_sum += judgement.outputs[i].signed_ulp_sum;
            alone.outputs[i].elements += judgement.outputs[i].elements;
          }
          alone.gradient_sum_index.value = std::max(alone.gradient_sum_index.value, judgement.gradient_sum_index.value);
          alone.sum_index.value = std::max(alone.sum_index.value, judgement.sum_index.value);
          alone.elements += judgement.elements;
          alone.undecided_rows += judgement.undecided_rows, alone.escalated_rows += judgement.escalated_rows;
          alone.vacuous = alone.vacuous && judgement.vacuous;
        }
        add_findings(together, 0, got);
        std::sort(expected.begin(), expected.end()), std::sort(got.begin(), got.end());
        EXPECT_EQ(got.size(), expected.size());
        EXPECT_TRUE(got == expected) << list_of(together, signature);
        for (std::size_t i = 0; i < signature.outputs.size(); ++i) {
          EXPECT_EQ(together.outputs[i].ulp, alone.outputs[i].ulp);
          EXPECT_EQ(together.outputs[i].ratio, alone.outputs[i].ratio);
          EXPECT_EQ(together.outputs[i].elements, alone.outputs[i].elements);
          // Two orders of at most 65 additions in double.
          EXPECT_NEAR(together.outputs[i].signed_ulp_sum, alone.outputs[i].signed_ulp_sum,
                      0x1p-40 * std::max(1.0, std::fabs(alone.outputs[i].ulp)) * static_cast<double>(alone.outputs[i].elements));
        }
        // Sums of 5 entries in two orders.
        EXPECT_NEAR(together.gradient_sum_index.value, alone.gradient_sum_index.value, 0x1p-49 * std::max(1.0, alone.gradient_sum_index.value));
        EXPECT_NEAR(together.sum_index.value, alone.sum_index.value, 0x1p-49 * std::max(1.0, alone.sum_index.value));
        EXPECT_EQ(together.elements, alone.elements);
        EXPECT_EQ(together.undecided_rows, alone.undecided_rows);
        EXPECT_EQ(together.escalated_rows, alone.escalated_rows);
        EXPECT_EQ(together.vacuous, alone.vacuous);
        found += got.size(), ++compared;
      }
  }
  EXPECT_GT(compared, 1000u);
  EXPECT_GT(found, 1000u);
}

// The filter and the yardstick agree on what is wrong.
TEST(Judge, FilterAndEnclosureAgree) {
  for (const OperatorReference* reference : Registry::global().operators())
    for (std::uint64_t index = 0; index < 16; ++index) {
      Recipe recipe = generate_recipe(reference->signature(), 12, index);
      recipe.rows = 1;
      recipe.classes = std::min(recipe.classes, 12);
      Judged judged(expand(recipe, reference->signature(), Format::f32));
      // Damage the last entry of every output.
      for (Tensor& tensor : judged.outputs)
        if (is_floating(tensor.format)) tensor.set(tensor.elements() - 1, tensor.get(tensor.elements() - 1) * 1.5 + 1);
      const CaseJudgement filtered = judged(), exact = judged.judge.judge_with_enclosure(judged.input, judged.outputs, 2048);
      ASSERT_EQ(filtered.findings.size(), exact.findings.size())
          << reference->signature().name << " " << recipe.stratum << "\nfilter: " << list_of(filtered, reference->signature())
          << "\nexact: " << list_of(exact, reference->signature());
      for (std::size_t i = 0; i < exact.findings.size(); ++i) {
        EXPECT_EQ(filtered.findings[i].property, exact.findings[i].property);
        EXPECT_EQ(filtered.findings[i].index, exact.findings[i].index);
      }
    }
}

}  // namespace
}  // namespace sumzero
