// The minimiser: what stays is what the failure needs.
#include "fuzz/minimise.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/case_builder.hpp"

namespace sumzero {
namespace {

const Signature& signature_of(const std::string& op) { return reference_of(op).signature(); }

Case big_cross_entropy() {
  CaseBuilder builder("cross_entropy", Format::f32, 4, 9);
  Numbers x;
  for (int i = 0; i < 36; ++i) x.push_back(0.37 * i - 5);
  x[20] = 17.3125;
  builder.rows("x", x).labels({1, 2, 7, 8}).tensor("weight", Format::f32, {9}, Numbers(9, 1.5)).tensor("g", Format::f32, {}, {0.3});
  builder.attribute("label_smoothing", 0.25);
  Case input = builder;
  Tensor& tensor = input.inputs["x"];
  Tensor transposed = tensor;
  transposed.strides = {1, 4};
  for (std::int64_t i = 0; i < 36; ++i) transposed.set(i, tensor.get(i));
  tensor = transposed;
  return input;
}

bool any_above(const Case& input, double limit) {
  const Tensor& x = input.inputs.at("x");
  for (std::int64_t i = 0; i < x.elements(); ++i)
    if (x.get(i) > limit) return true;
  return false;
}

// The label's class stays beside the large logit: removing it would leave the label without meaning.
TEST(Minimise, OneLargeLogitIsAllThatIsNeeded) {
  const Case input = big_cross_entropy();
  validate(signature_of("cross_entropy"), input);
  int tested = 0;
  const Case small = minimise(signature_of("cross_entropy"), input, [&](const Case& candidate) {
    ++tested;
    EXPECT_NO_THROW(validate(signature_of("cross_entropy"), candidate));
    return any_above(candidate, 16);
  }, 1000);
  EXPECT_LE(tested, 1000);
  EXPECT_EQ(small.extents, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(small.inputs.at("x").get(0), 17);  // the nearest integer still fails
  EXPECT_EQ(small.inputs.at("x").get(1), 0);
  EXPECT_TRUE(small.inputs.at("x").is_contiguous());
  EXPECT_FALSE(small.inputs.contains("weight"));
  EXPECT_TRUE(small.attributes.empty());
  EXPECT_EQ(small.inputs.at("label").get(0), 1);  // moved along with its class
}

TEST(Minimise, KeepsWhatTheFailureNeeds) {
  // Two classes, the label on the smaller one, and the weights.
  const Case small = minimise(signature_of("cross_entropy"), big_cross_entropy(), [](const Case& c) {
    const Tensor& x = c.inputs.at("x");
    const std::int64_t n = c.extents[1];
    for (std::int64_t row = 0; row < c.extents[0]; ++row) {
      const auto label = static_cast<std::int64_t>(c.inputs.at("label").get(row));
      for (std::int64_t j = 0; j < n; ++j)
        if (c.inputs.contains("weight") && x.get(row * n + j) > x.get(row * n + label) + 10) return true;
    }
    return false;
  }, 2000);
  EXPECT_EQ(small.extents, (std::vector<std::int64_t>{1, 2}));
  EXPECT_TRUE(small.inputs.contains("weight"));
}

TEST(Minimise, ChangesTheUpstreamWithTheReduction) {
  CaseBuilder builder("cross_entropy", Format::f32, 2, 2);
  builder.rows("x", {1, 2, 3, 4}).labels({0, 1}).tensor("g", Format::f32, {2}, {2, 2}).attribute("reduction", 0);
  const Case small = minimise(signature_of("cross_entropy"), builder, [](const Case&) { return true; }, 500);
  EXPECT_TRUE(small.attributes.empty());
  EXPECT_TRUE(small.inputs.at("g").shape.empty());
  EXPECT_EQ(small.extents, (std::vector<std::int64_t>{1, 1}));
}

TEST(Minimise, NeverReturnsAPassingCase) {
  const Case input = big_cross_entropy();
  const auto fails = [](const Case& c) { return c.extents[0] >= 3 && any_above(c, 17.25); };
  for (const int budget : {0, 1, 7, 50, 400}) {
    const Case small = minimise(signature_of("cross_entropy"), input, fails, budget);
    EXPECT_TRUE(fails(small)) << budget;
  }
  // A NaN or an infinity that matters stays.
  const Case nan = minimise(signature_of("softmax"), CaseBuilder("softmax", Format::f32, 1, 3).rows("x", {1, std::nan(""), 2}),
                            [](const Case& c) {
                              for (std::int64_t i = 0; i < c.inputs.at("x").elements(); ++i)
                                if (std::isnan(c.inputs.at("x").get(i))) return true;
                              return false;
                            }, 100);
  EXPECT_EQ(nan.extents[1], 1);
  EXPECT_TRUE(std::isnan(nan.inputs.at("x").get(0)));
}

}  // namespace
}  // namespace sumzero
