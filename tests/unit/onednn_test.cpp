// oneDNN's kernels, where they are built: plausible values, and refusal instead of a guess.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "reference/evaluate.hpp"
#include "reference/operator.hpp"

namespace sumzero {
namespace {

const Kernel* onednn(const std::string& op) {
  for (const Kernel* kernel : Registry::global().kernels(op))
    if (kernel->name == "onednn") return kernel;
  return nullptr;
}

/// Rows with logits between -4 and 4, upstream between -1 and 1.
Case example(const std::string& op, Format storage, std::int64_t rows, std::int64_t classes) {
  Case input;
  input.op = op;
  input.storage = storage;
  input.extents = {rows, classes};
  Tensor x = Tensor::contiguous(storage, {rows, classes}), g = x;
  for (std::int64_t i = 0; i < x.elements(); ++i) {
    x.set(i, 4 * std::sin(1.7 * static_cast<double>(i)));
    g.set(i, std::cos(0.9 * static_cast<double>(i)));
  }
  input.inputs = {{"x", x}, {"g", g}};
  return input;
}

std::vector<Tensor> run(const Kernel& kernel, const Case& input) {
  const Signature& signature = Registry::global().operator_named(input.op).signature();
  std::vector<Tensor> outputs(signature.outputs.size(), Tensor::contiguous(input.storage, input.extents));
  kernel.run(Call{signature, input, outputs});
  return outputs;
}

class OneDnn : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    kernel_ = onednn(GetParam());
    if (!kernel_) GTEST_SKIP() << "built without oneDNN";
  }
  const Kernel* kernel_ = nullptr;
};

// |x| <= 4 in f32, 33 classes: s = sum exp(x-m) is about 33 I0(4) e^-4 = 7. softmax: p <= 1/7 with two
// exponentials of 17 u, |d| <= 8, 33 additions and 3 roundings stays below 12 u = 7e-7. log_softmax: 68 u log
// s = 8e-6, and the subtraction |logp| u <= 10 u = 6e-7. 1e-5 covers both.
TEST_P(OneDnn, MatchesTheExponentialOfTheLibrary) {
  const std::int64_t rows = 3, classes = 33;
  const Case input = example(GetParam(), Format::f32, rows, classes);
  const std::vector<Tensor> outputs = run(*kernel_, input);
  const Tensor &x = input.inputs.at("x"), &g = input.inputs.at("g");
  const bool logarithmic = GetParam() == "log_softmax";
  for (std::int64_t row = 0; row < rows; ++row) {
    double sum = 0, g_sum = 0, pg_sum = 0;
    for (std::int64_t j = 0; j < classes; ++j) sum += std::exp(x.get(row * classes + j));
    for (std::int64_t j = 0; j < classes; ++j) {
      const std::int64_t i = row * classes + j;
      g_sum += g.get(i);
      pg_sum += std::exp(x.get(i)) / sum * g.get(i);
    }
    for (std::int64_t j = 0; j < classes; ++j) {
      const std::int64_t i = row * classes + j;
      const double p = std::exp(x.get(i)) / sum;
      EXPECT_NEAR(outputs[0].get(i), logarithmic ? std::log(p) : p, 1e-5);
      // The relative error of p, at most 1e-5, times p |sum g| <= 33/7.
      EXPECT_NEAR(outputs[1].get(i), logarithmic ? g.get(i) - p * g_sum : p * (g.get(i) - pg_sum), 5e-5);
    }
  }
}

// A 16-bit format either is implemented on this processor, and then right to the format's precision, or
// refused.
TEST_P(OneDnn, NarrowFormatsAreRightOrRefused) {
  for (const Format storage : {Format::bf16, Format::f16}) {
    const Case input = example(GetParam(), storage, 2, 16);
    std::vector<Tensor> outputs;
    try {
      outputs = run(*kernel_, input);
    } catch (const Refused& refusal) {
      EXPECT_NE(std::string(refusal.what()).find("oneDNN"), std::string::npos) << refusal.what();
      continue;
    }
    double sum = 0;
    for (std::int64_t j = 0; j < 16; ++j) {
      const double value = outputs[0].get(j);
      sum += GetParam() == "softmax" ? value : std::exp(value);
    }
    // Each of 16 probabilities carries one rounding (softmax), or |logp| <= 12 one of the log (log_softmax).
    EXPECT_NEAR(sum, 1, 16 * unit_roundoff(storage)) << name(storage);
  }
}

TEST_P(OneDnn, RefusesDoublePrecisionAndPolicies) {
  EXPECT_THROW(run(*kernel_, example(GetParam(), Format::f64, 2, 4)), Refused);
  Case limit = example(GetParam(), Format::f32, 2, 4);
  limit.attributes["inf_policy"] = 1;
  EXPECT_THROW(run(*kernel_, limit), Refused);
}

// Strided inputs are packed and the thread count does not change bits.
TEST_P(OneDnn, ThreadsAndStridesDoNotChangeBits) {
  const Case input = example(GetParam(), Format::f32, 4, 7);
  const std::vector<Tensor> expected = run(*kernel_, input);
  Case strided = input;
  for (auto& [name, tensor] : strided.inputs) {
    Tensor wide = Tensor::contiguous(Format::f32, {7, 4});
    wide.shape = {4, 7};
    wide.strides = {1, 4};
    for (std::int64_t i = 0; i < tensor.elements(); ++i) wide.set(i, tensor.get(i));
    tensor = wide;
  }
  const Signature& signature = Registry::global().operator_named(GetParam()).signature();
  std::vector<Tensor> outputs(signature.outputs.size(), Tensor::contiguous(Format::f32, {4, 7}));
  kernel_->run(Call{signature, strided, outputs, 2});
  EXPECT_EQ(outputs[0], expected[0]);
  EXPECT_EQ(outputs[1], expected[1]);
}

INSTANTIATE_TEST_SUITE_P(Operators, OneDnn, testing::Values("softmax", "log_softmax"));

}  // namespace
}  // namespace sumzero
