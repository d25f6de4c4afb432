// The mechanism between tensors and row kernels: every layout gives the bits of the contiguous one; reductions, ignored
// rows, weights and policies are those of the definition.
#include <gtest/gtest.h>

#include <cmath>

#include "oracle/kernel/guarded_run.hpp"
#include "tests/case_builder.hpp"

namespace sumzero {
namespace {

/// A row function whose results are exact: p_j = x_j + 10 j, and gx_j = g_j - x_j.
template <class T>
void exact_softmax_row(const Row<T>& row) {
  for (std::size_t j = 0; j < row.n; ++j) {
    row.out[0][j] = row.in[0][j] + static_cast<T>(10 * j);
    if (row.out[1]) row.out[1][j] = (row.in[1] ? row.in[1][j] : T(0)) - row.in[0][j];
  }
}
/// loss = x_label + w_label, gx_j = factor for every class.
template <class T>
void exact_loss_row(const Row<T>& row) {
  const auto t = static_cast<std::size_t>(row.label);
  row.out[0][0] = row.in[0][t] + (row.in[2] ? row.in[2][t] : T(0));
  for (std::size_t j = 0; j < row.n; ++j) row.out[1][j] = static_cast<T>(row.factor);
}
/// Planted: takes rows for contiguous whatever the strides say.
class IgnoresStrides final : public Kernel {
 public:
  IgnoresStrides() { op = "softmax", name = "planted", outputs = {"p"}; }
  bool supports(Format) const override { return true; }
  Contract contract(Format) const override { return {}; }
  void run(const Call& call) const override {
    const Tensor& x = call.input.inputs.at("x");
    for (std::int64_t i = 0; i < x.elements(); ++i)
      call.outputs[0].set(i, load_element(x.bytes.data() + (x.offset + i) % 6 * x.width(), x.format) + 10 * static_cast<double>(i % 3));
  }
};

std::unique_ptr<Kernel> softmax_kernel() { return make_kernel({"softmax", "exact", "", exact_softmax_row<float>, exact_softmax_row<double>, {}, {}}); }
std::unique_ptr<Kernel> loss_kernel() { return make_kernel({"cross_entropy", "exact", "", exact_loss_row<float>, exact_loss_row<double>, {}, {}}); }

/// The same contents with other strides.
Tensor laid_out(const Tensor& tensor, std::vector<std::int64_t> strides, std::int64_t offset, std::int64_t storage) {
  Tensor result = tensor;
  result.strides = std::move(strides);
  result.offset = offset;
  result.bytes.assign(static_cast<std::size_t>(storage * tensor.width()), std::byte{0x7b});
  for (std::int64_t i = 0; i < tensor.elements(); ++i) result.set(i, tensor.get(i));
  return result;
}

/// Layouts of a 2 x 3 tensor: padded, transposed, offset, reversed classes, reversed rows, every second element.
std::vector<Tensor> layouts(const Tensor& t) {
  return {laid_out(t, {7, 1}, 0, 14), laid_out(t, {1, 2}, 0, 6),   laid_out(t, {3, 1}, 5, 11),
          laid_out(t, {3, -1}, 2, 6), laid_out(t, {-3, 1}, 3, 6), laid_out(t, {6, 2}, 1, 13)};
}

class Layouts : public testing::TestWithParam<Format> {};

TEST_P(Layouts, GiveTheContiguousBits) {
  const Case plain = CaseBuilder("softmax", GetParam(), 2, 3).rows("x", {1, 2, 3, 4, 5, 6}).rows("g", {0.5, 1, 2, 4, 8, 16});
  const Signature& signature = reference_of("softmax").signature();
  const auto kernel = softmax_kernel();
  const GuardedRun expected = run_guarded(signature, *kernel, plain);
  // p_j = x_j + 10 j, gx = g - x.
  const double p[] = {1, 12, 23, 4, 15, 26}, gx[] = {-0.5, -1, -1, 0, 3, 10};
  for (std::int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(expected.outputs[0].get(i), round_to(GetParam(), p[i]));
    EXPECT_EQ(expected.outputs[1].get(i), round_to(GetParam(), gx[i]));
  }
  int planted_caught = 0;
  for (const Tensor& x : layouts(plain.inputs.at("x")))
    for (const Tensor& g : layouts(plain.inputs.at("g"))) {
      Case other = plain;
      other.inputs["x"] = x;
      other.inputs["g"] = g;
      validate(signature, other);
      for (const int threads : {1, 2})
        for (const std::int64_t padding : {0, 3}) {
          const GuardedRun result = run_guarded(signature, *kernel, other, {threads, padding});
          ASSERT_EQ(result.verdict, Verdict::pass) << result.detail;
          for (std::int64_t i = 0; i < 6; ++i) {
            ASSERT_EQ(result.outputs[0].get(i), round_to(GetParam(), p[i]));
            ASSERT_EQ(result.outputs[1].get(i), round_to(GetParam(), gx[i]));
          }
        }
      const GuardedRun planted = run_guarded(signature, IgnoresStrides(), other);
      for (std::int64_t i = 0; i < 6; ++i) planted_caught += planted.outputs[0].get(i) != round_to(GetParam(), p[i]);
    }
  EXPECT_GT(planted_caught, 0);
}

TEST_P(Layouts, BroadcastRows) {
  Case input = CaseBuilder("softmax", GetParam(), 2, 3).rows("x", {1, 2, 3, 1, 2, 3});
  input.inputs["x"] = laid_out(input.inputs["x"], {0, 1}, 0, 3);
  const GuardedRun result = run_guarded(reference_of("softmax").signature(), *softmax_kernel(), input);
  for (std::int64_t i = 0; i < 6; ++i) EXPECT_EQ(result.outputs[0].get(i), round_to(GetParam(), static_cast<double>(1 + i % 3 + 10 * (i % 3))));
}

/// Outputs with strides of their own, transposed and reversed.
TEST_P(Layouts, OfOutputs) {
  const Case input = CaseBuilder("softmax", GetParam(), 2, 3).rows("x", {1, 2, 3, 4, 5, 6});
  const Signature& signature = reference_of("softmax").signature();
  const double p[] = {1, 12, 23, 4, 15, 26};
  for (const Tensor& layout : layouts(Tensor::contiguous(GetParam(), {2, 3}))) {
    std::vector<Tensor> outputs = {layout, layout};
    softmax_kernel()->run(Call{signature, input, outputs});
    for (std::int64_t i = 0; i < 6; ++i) EXPECT_EQ(outputs[0].get(i), round_to(GetParam(), p[i]));
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Layouts, testing::ValuesIn(floating_formats),
                         [](const auto& info) { return std::string(name(info.param)); });

GuardedRun losses(CaseBuilder build) { return run_guarded(reference_of("cross_entropy").signature(), *loss_kernel(), build); }

// Rows' losses x_label + w_label: 2 + 2, ignored, 7 + 1. Weights of the kept rows: 2 + 1 = 3.
TEST(Reductions, FollowTheirDefinition) {
  const auto build = [](double reduction) {
    CaseBuilder builder("cross_entropy", Format::f32, 3, 2);
    builder.rows("x", {1, 2, 9, 9, 7, 5}).labels({1, -100, 0}).tensor("weight", Format::f32, {2}, {1, 2}).attribute("reduction", reduction);
    if (reduction == 0) builder.tensor("g", Format::f32, {3}, {0.5, 4, 2});
    else builder.tensor("g", Format::f32, {}, {6});
    return builder;
  };
  const GuardedRun none = losses(build(0)), sum = losses(build(1)), mean = losses(build(2));
  EXPECT_EQ(none.outputs[0].get(0), 4);
  EXPECT_EQ(none.outputs[0].get(1), 0);
  EXPECT_EQ(none.outputs[0].get(2), 8);
  EXPECT_EQ(sum.outputs[0].get(0), 12);
  EXPECT_EQ(mean.outputs[0].get(0), 4);  // 12/3
  // The upstream, over 3 for the mean; nothing in the ignored row.
  const double factors[3][3] = {{0.5, 0, 2}, {6, 0, 6}, {2, 0, 2}};
  const GuardedRun* runs[] = {&none, &sum, &mean};
  for (int r = 0; r < 3; ++r)
    for (std::int64_t i = 0; i < 6; ++i) EXPECT_EQ(runs[r]->outputs[1].get(i), factors[r][i / 2]) << r << " " << i;
}

TEST(Reductions, MeanOverNothing) {
  CaseBuilder builder("cross_entropy", Format::f32, 1, 2);
  builder.rows("x", {std::nan(""), 2}).labels({-100});
  EXPECT_TRUE(std::isnan(losses(builder).outputs[0].get(0)));
  EXPECT_EQ(losses(builder).outputs[1].get(0), 0);  // the ignored row, whatever it holds
  builder.attribute("all_ignored_policy", 1);
  EXPECT_EQ(losses(builder).outputs[0].get(0), 0);
  builder.attribute("reduction", 1);
  EXPECT_EQ(losses(builder).outputs[0].get(0), 0);
}

TEST(Reductions, IgnoreIndexMayBeAClass) {
  CaseBuilder builder("cross_entropy", Format::f64, 2, 2);
  builder.rows("x", {1, 2, 3, 4}).labels({0, 1}).attribute("ignore_index", 0).attribute("reduction", 2);
  EXPECT_EQ(losses(builder).outputs[0].get(0), 4);  // only row 1 is kept
}

// 2^24 + 1 + ... in double does not lose the ones that f32 would.
TEST(Reductions, AreSummedInDouble) {
  const std::int64_t rows = 9;
  Numbers x(static_cast<std::size_t>(rows), 1.0);
  x[0] = 0x1p24;
  CaseBuilder builder("cross_entropy", Format::f32, rows, 1);
  builder.rows("x", x).labels(Numbers(static_cast<std::size_t>(rows), 0.0)).attribute("reduction", 1);
  EXPECT_EQ(losses(builder).outputs[0].get(0), 0x1p24 + 8);
}

TEST(RowKernels, SupportAndRefuse) {
  RowKernel only = {"softmax", "narrow", "", exact_softmax_row<float>, nullptr, {}, {}};
  only.only = Format::bf16;
  only.outputs = {"p"};
  only.contract_f32.policies = false;
  const auto kernel = make_kernel(only);
  EXPECT_TRUE(kernel->supports(Format::bf16));
  for (const Format format : {Format::f64, Format::f32, Format::f16}) EXPECT_FALSE(kernel->supports(format));
  EXPECT_TRUE(kernel->offers("p"));
  EXPECT_FALSE(kernel->offers("gx"));
  const Signature& signature = reference_of("softmax").signature();
  CaseBuilder builder("softmax", Format::bf16, 1, 2);
  builder.rows("x", {1, 2});
  EXPECT_EQ(run_guarded(signature, *kernel, builder).verdict, Verdict::pass);
  builder.attribute("inf_policy", 1);
  EXPECT_EQ(run_guarded(signature, *kernel, builder).verdict, Verdict::refused);
}

}  // namespace
}  // namespace sumzero
