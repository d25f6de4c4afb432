// The mechanism on problems of four dimensions: parts, places, sums, the judge, the minimiser, and properties of attention.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "fuzz/campaign.hpp"
#include "fuzz/minimise.hpp"
#include "fuzz/recipe.hpp"
#include "oracle/contract.hpp"
#include "oracle/judge.hpp"
#include "oracle/properties.hpp"
#include "oracle/subject.hpp"
#include "oracle/witness.hpp"
#include "reference/evaluate.hpp"

namespace sumzero {
namespace {

const Signature& sdpa() { return Registry::global().operator_named("sdpa").signature(); }

/// Batch 2, 4 heads in 2 groups, 3 queries, 5 keys, head size 2, value size 1; every element is its own number.
Case numbered() {
  Case input;
  input.op = "sdpa";
  input.extents = {2, 4, 2, 3, 5, 2, 1};
  for (const char* name : {"q", "k", "v", "go"}) {
    const Shape shape = sdpa().inputs[static_cast<std::size_t>(sdpa().input(name))].shape;
    Tensor tensor = Tensor::contiguous(Format::f32, tensor_shape(shape, input, Reduction::none));
    for (std::int64_t i = 0; i < tensor.elements(); ++i) tensor.set(i, static_cast<double>(i % 13) / 4);
    input.inputs[name] = tensor;
  }
  return input;
}

TEST(FourDimensions, PartsHoldWhatSharesAKeyHead) {
  const Case input = numbered();
  EXPECT_EQ(problem_count(sdpa(), input), 4);
  EXPECT_EQ(part_elements(Shape::query, input), 2 * 3 * 2);
  EXPECT_EQ(part_elements(Shape::key, input), 5 * 2);
  EXPECT_EQ(part_elements(Shape::scores, input), 2 * 3 * 5);
  EXPECT_EQ(part_elements(Shape::per_query, input), 2 * 3);
  // Problem 3 is batch 1, key head 1, query heads 2 and 3.
  Tensor q = Tensor::contiguous(Format::f32, {2, 4, 3, 2});
  for (std::int64_t i = 0; i < q.elements(); ++i) q.set(i, static_cast<double>(i));
  std::vector<float> part(12);
  load_part(part_of(q, Shape::query, input, 3), q.format, part.data());
  for (int i = 0; i < 12; ++i) EXPECT_EQ(part[static_cast<std::size_t>(i)], static_cast<float>(1 * 24 + 2 * 6 + i));
  EXPECT_EQ(place_text("gq", Shape::query, input, 3, 11), "gq[1, 3, 2, 1]");
  EXPECT_EQ(place_text("gk", Shape::key, input, 2, 9), "gk[1, 0, 4, 1]");
  EXPECT_EQ(place_text("lse", Shape::per_query, input, 1, 4), "lse[0, 3, 1]");
  EXPECT_EQ(problem_entry(Shape::query, input, 47).problem, 3);
  EXPECT_EQ(problem_entry(Shape::query, input, 47).entry, 11);
}

TEST(FourDimensions, PartsFollowStrides) {
  const Case input = numbered();
  // [batch, tokens, heads, channels] in memory, with gaps behind every token.
  Tensor q = Tensor::contiguous(Format::bf16, {2, 4, 3, 2});
  q.strides = {3 * 11, 2, 11, 1};
  q.offset = 3;
  q.bytes.resize(2 * (3 + 2 * 33));
  for (std::int64_t i = 0; i < 48; ++i) q.set(i, static_cast<double>(i));
  std::vector<double> part(12);
  load_part(part_of(q, Shape::query, input, 3), q.format, part.data());
  for (int i = 0; i < 12; ++i) EXPECT_EQ(part[static_cast<std::size_t>(i)], 36 + i);
  for (double& x : part) x += 100;
  store_part(part_of(q, Shape::query, input, 3), q.format, part.data());
  EXPECT_EQ(q.get(35), 35);
  EXPECT_EQ(q.get(36), 136);
  EXPECT_EQ(q.get(47), 147);
}

TEST(FourDimensions, SumsRunOverTheKeys) {
  const Case input = numbered();
  const Sums scores = sums_of(Shape::scores, input), keys = sums_of(Shape::key, input);
  EXPECT_EQ(scores.count, 6);
  EXPECT_EQ(scores.length, 5);
  EXPECT_EQ(scores.step_sum, 5);
  EXPECT_EQ(keys.count, 2);
  EXPECT_EQ(keys.length, 5);
  EXPECT_EQ(keys.step, 2);
  EXPECT_EQ(sum_text("gk", Shape::key, input, 3, 1), "gk[1, 1, :, 1]");
  EXPECT_EQ(sum_text("gbias", Shape::scores, input, 3, 4), "gbias[1, 3, 1, :]");
}

TEST(FourDimensions, WitnessesComeBack) {
  const Case input = campaign_case(sdpa(), Format::bf16, 5, 19);
  EXPECT_EQ(parse_witness(witness_text(input), "test"), input);
}

/// A key-value head goes with the heads that read it; the axes go one by one.
TEST(FourDimensions, MinimisesEveryAxis) {
  const Case small = minimise(sdpa(), numbered(), [](const Case& candidate) {
    // Somewhere a key holds the number 3.
    const Tensor& k = candidate.inputs.at("k");
    for (std::int64_t i = 0; i < k.elements(); ++i)
      if (k.get(i) == 3) return true;
    return false;
  }, 4000);
  EXPECT_EQ(small.extents, (std::vector<std::int64_t>{1, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(small.inputs.at("k").get(0), 3);
}

// ---------------------------------------------------------------------------------------------------------
// Kernels of one line each, with planted defects

enum class Defect { none, maximum_of_hidden_keys, gradient_of_hidden_keys };

/// Forward and the gradient of v, no bias, no attributes but the causal order.
template <Defect defect>
void forward(const Row<float>& row) {
  const auto extent = [&](std::size_t axis) { return static_cast<std::size_t>(row.extents[axis]); };
  const std::size_t rows = extent(axis::heads) / extent(axis::kv_heads) * extent(axis::queries), keys = extent(axis::keys);
  const std::size_t head = extent(axis::head_size), width = extent(axis::value_size);
  if (row.out[4]) std::fill_n(row.out[4], keys * width, 0.0f);
  for (std::size_t t = 0; t < rows; ++t) {
    std::vector<float> a(keys), p(keys);
    const float dead = -std::numeric_limits<float>::infinity();
    float most = dead;
    for (std::size_t j = 0; j < keys; ++j) {
      for (std::size_t c = 0; c < head; ++c) a[j] += row.in[0][t * head + c] * row.in[1][j * head + c];
      a[j] *= static_cast<float>(row.attribute[0]);
      const bool hidden = (row.attribute[2] == 1 && j > t % extent(axis::queries)) || (row.in[4] && row.in[4][t * keys + j] == 0);
      if (!hidden || defect == Defect::maximum_of_hidden_keys) most = std::max(most, a[j]);
      if (hidden) a[j] = dead;
    }
    float total = 0;
    for (std::size_t j = 0; j < keys; ++j) total += p[j] = most == dead ? 0 : std::exp(a[j] - most);
    for (std::size_t c = 0; c < width; ++c) {
      float sum = 0;
      for (std::size_t j = 0; j < keys; ++j) sum += p[j] * row.in[2][j * width + c];
      row.out[0][t * width + c] = total > 0 ? sum / total : 0;
      for (std::size_t j = 0; j < keys; ++j)
        if (row.out[4] && row.in[5] && total > 0)
          row.out[4][j * width + c] += (p[j] / total + (defect == Defect::gradient_of_hidden_keys ? 1e-30f : 0)) * row.in[5][t * width + c];
    }
  }
}

template <Defect defect>
std::optional<Breach> hidden_keys(const Case& input) {
  Contract contract = default_contract(Format::f32);
  const auto kernel = make_kernel(RowKernel{.op = "sdpa", .name = "planted", .summary = "planted", .f32 = forward<defect>, .contract_f32 = contract, .contract_f64 = contract, .outputs = {"o", "gv"}});
  const auto run = [&](const Case& other, const GuardedOptions& options) { return run_guarded(sdpa(), *kernel, other, options); };
  const std::vector<Tensor> outputs = run(input, {}).outputs;
  const Property* property = property_named("hidden keys");
  EXPECT_TRUE(property && property->applies(sdpa(), contract));
  return property->check({sdpa(), *kernel, contract, input, outputs, run});
}

TEST(HiddenKeys, ChangeNothingAndReceiveNothing) {
  Case input = numbered();
  input.attributes["causal"] = 1;
  EXPECT_FALSE(hidden_keys<Defect::none>(input).has_value());
  EXPECT_TRUE(hidden_keys<Defect::maximum_of_hidden_keys>(input).has_value());
  const auto weighed = hidden_keys<Defect::gradient_of_hidden_keys>(input);
  ASSERT_TRUE(weighed.has_value());
  EXPECT_NE(weighed->message.find("although no query with an upstream sees key 4"), std::string::npos) << weighed->message;
}

/// Where nothing is hidden there is nothing to check.
TEST(HiddenKeys, SeesNothingWithoutAMask) { EXPECT_FALSE(hidden_keys<Defect::maximum_of_hidden_keys>(numbered()).has_value()); }

TEST(AttentionJudge, CallsPlacesByAllTheirIndices) {
  const Case input = numbered();
  const auto kernel = make_kernel(RowKernel{.op = "sdpa", .name = "exact", .summary = "exact", .f32 = forward<Defect::none>, .contract_f32 = default_contract(Format::f32), .contract_f64 = default_contract(Format::f64), .outputs = {"o"}});
  GuardedRun run = run_guarded(sdpa(), *kernel, input);
  const Judge judge(Registry::global().operator_named("sdpa"), *kernel, Format::f32);
  EXPECT_TRUE(judge.judge(input, run.outputs).findings.empty());
  run.outputs[0].set(1 * 12 + 3 * 3 + 2, 17);
  const CaseJudgement judgement = judge.judge(input, run.outputs);
  ASSERT_EQ(judgement.findings.size(), 1u);
  const auto violation = judge.confirm(input, run.outputs, judgement.findings[0]);
  ASSERT_TRUE(violation.has_value());
  EXPECT_NE(violation->message.find("o[1, 3, 2, 0] is 17"), std::string::npos) << violation->message;
}

/// A gradient of k whose first channel sums to something: named as that sum.
TEST(AttentionJudge, NamesTheSumThatIsNotZero) {
  Case input = numbered();
  Subject subject("sdpa", Format::f32, input.extents);
  for (const char* name : {"q", "k", "v", "go"}) {
    const Tensor& tensor = input.inputs.at(name);
    std::vector<float> values;
    for (std::int64_t i = 0; i < tensor.elements(); ++i) values.push_back(static_cast<float>(tensor.get(i)));
    subject.input(name, std::span<const float>(values));
  }
  subject.output("gk", std::span<const float>(std::vector<float>(40, 1.0f)));
  bool named = false;
  for (const Violation& violation : subject.violations())
    named |= violation.property == "gradient sum" && violation.message.find("gk[0, 0, :, 0] sums to 5 instead of 0") != std::string::npos;
  EXPECT_TRUE(named);
}

}  // namespace
}  // namespace sumzero
