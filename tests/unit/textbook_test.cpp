// The textbook kernels must show their defects: the minimal examples of Softmax Collapse and Softmax
// Cancellation, bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "reference/evaluate.hpp"
#include "reference/operator.hpp"

namespace sumzero {
namespace {

using Rows = std::vector<double>;

Tensor tensor_of(Format format, std::vector<std::int64_t> shape, const Rows& values) {
  Tensor tensor = Tensor::contiguous(format, std::move(shape));
  for (std::size_t i = 0; i < values.size(); ++i) tensor.set(static_cast<std::int64_t>(i), values[i]);
  return tensor;
}

/// A case of one row, and the output `output` that the kernel gives for it.
struct OneRow {
  Case input;

  OneRow(const std::string& op, Format storage, std::size_t n) {
    input.op = op;
    input.storage = storage;
    input.extents = {1, static_cast<std::int64_t>(n)};
  }
  OneRow& row(const std::string& name, const Rows& values) {
    input.inputs[name] = tensor_of(input.storage, input.extents, values);
    return *this;
  }
  OneRow& scalar(const std::string& name, Format format, double value) {
    input.inputs[name] = tensor_of(format, {1}, {value});
    return *this;
  }
  /// The upstream of a mean over this one row is a scalar of 1: gradients are the row's own.
  OneRow& upstream_of_mean() {
    input.inputs["g"] = tensor_of(input.storage, {}, {1});
    return *this;
  }
  OneRow& attribute(const std::string& name, double value) {
    input.attributes[name] = value;
    return *this;
  }

  Rows run(const std::string& kernel_name, const std::string& output) const {
    const Signature& signature = Registry::global().operator_named(input.op).signature();
    const Kernel& kernel = Registry::global().kernel_named(input.op, kernel_name, input.storage);
    validate(signature, input);
    const Reduction reduction = reduction_of(signature, attribute_values(signature, input));
    std::vector<Tensor> outputs(signature.outputs.size());
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const OutputSpec& spec = signature.outputs[i];
      if (kernel.offers(spec.name))
        outputs[i] = Tensor::contiguous(element_format(spec.element, input.storage),
                                        tensor_shape(spec.shape, input, reduction));
    }
    kernel.run(Call{signature, input, outputs});
    const Tensor& result = outputs[static_cast<std::size_t>(signature.output(output))];
    Rows values;
    for (std::int64_t i = 0; i < result.elements(); ++i) values.push_back(result.get(i));
    return values;
  }
};

Rows gap_row(double gap, std::size_t n) {
  Rows x(n, 0.0);
  x[0] = gap;
  return x;
}

OneRow hard_label(Format storage, const Rows& x) {
  return OneRow("cross_entropy", storage, x.size())
      .row("x", x)
      .scalar("label", Format::index, 0)
      .upstream_of_mean();
}

struct CollapseExample {
  Format storage;
  double gap;
  std::size_t n;
  double at_target, elsewhere;
};

void PrintTo(const CollapseExample& example, std::ostream* out) {
  *out << name(example.storage) << " [" << example.gap << ", 0 x " << example.n - 1 << "]";
}

// Label 0. elsewhere = fl(exp(fl(-gap - fl(log s)))) and at_target = fl(fl(exp(-fl(log s))) - 1), where s is
// 1 plus the tail from left to right: every case but the three with at_target != 0 has s = 1, because r <= u.
class SequentialCollapse : public testing::TestWithParam<CollapseExample> {};
TEST_P(SequentialCollapse, HasTheBitsOfTheTextbookOrder) {
  const CollapseExample& example = GetParam();
  const Rows g =
      hard_label(example.storage, gap_row(example.gap, example.n)).run("textbook.sequential", "gx");
  EXPECT_EQ(g[0], example.at_target);
  for (std::size_t j = 1; j < g.size(); ++j) EXPECT_EQ(g[j], example.elsewhere) << "class " << j;
}
INSTANTIATE_TEST_SUITE_P(MinimalExamples, SequentialCollapse,
                         testing::Values(CollapseExample{Format::f32, 17, 2, 0, 0x1.639e32p-25},
                                         CollapseExample{Format::f32, 16.6, 2, -0x1p-23, 0x1.09427cp-24},
                                         CollapseExample{Format::f32, 14, 2, -0x1.cp-21, 0x1.be6c54p-21},
                                         CollapseExample{Format::f32, 22, 113, 0, 0x1.32b48cp-32},
                                         CollapseExample{Format::bf16, 6, 2, 0, 0x1.44p-9},
                                         CollapseExample{Format::bf16, 5.5, 2, -0x1p-7, 0x1.0cp-8},
                                         CollapseExample{Format::f16, 8, 2, 0, 0x1.5fcp-12},
                                         CollapseExample{Format::f64, 40, 2, 0, 0x1.39792499b1a24p-58}));

// PyTorch's composition has the same bits where its arithmetic is that of the storage: n < 8 is summed from
// left to right, and exp(logp) sum t - t with sum t = -1 is exp(logp) - 1 up to signs.
class PytorchCollapse : public testing::TestWithParam<CollapseExample> {};
TEST_P(PytorchCollapse, HasTheBitsOfTheTextbookOrder) {
  const CollapseExample& example = GetParam();
  const Rows g = hard_label(example.storage, gap_row(example.gap, example.n)).run("textbook.pytorch", "gx");
  EXPECT_EQ(g[0], example.at_target);
  EXPECT_EQ(g[1], example.elsewhere);
}
INSTANTIATE_TEST_SUITE_P(MinimalExamples, PytorchCollapse,
                         testing::Values(CollapseExample{Format::f32, 17, 2, 0, 0x1.639e32p-25},
                                         CollapseExample{Format::f32, 16.6, 2, -0x1p-23, 0x1.09427cp-24},
                                         CollapseExample{Format::f32, 14, 2, -0x1.cp-21, 0x1.be6c54p-21},
                                         CollapseExample{Format::f64, 40, 2, 0, 0x1.39792499b1a24p-58}));

// n = 113, gap 22: only the lane that holds the maximum loses its terms. Lane 0 adds its 14 further terms of
// 2^-31.7 to 1 in vain; the other seven hold 98 e^-22 = 2.7e-8 < u, and lose themselves when they are folded
// into lane 0.
TEST(TextbookCrossEntropy, LanesCollapseWhenTheyAreFolded) {
  EXPECT_EQ(hard_label(Format::f32, gap_row(22, 113)).run("textbook.pytorch", "gx")[0], 0.0);
}

// log1p in the loss alone: the loss of [17, 0] is log1p(e^-17) = 4.1399376330897474e-8 to an ulp (3.6e-15),
// but the gradient exp(logp) - 1 is quantised by the spacing 2^-24 below 1: at gap 17.3 the tail 3.07e-8 is
// above half of it, 2^-25 = 2.98e-8, and gives -2^-24; at gap 17.4 the tail 2.78e-8 is below and gives 0.
TEST(TextbookCrossEntropy, Log1pInTheForwardAloneLeavesTheGradientQuantised) {
  const OneRow seventeen = hard_label(Format::f32, {17, 0});
  EXPECT_NEAR(seventeen.run("textbook.log1p_forward_only", "loss")[0], 4.1399376330897474e-8, 4e-15);
  EXPECT_EQ(seventeen.run("textbook.pytorch", "loss")[0], 0.0);
  EXPECT_EQ(hard_label(Format::f32, {17.3, 0}).run("textbook.log1p_forward_only", "gx")[0], -0x1p-24);
  EXPECT_EQ(hard_label(Format::f32, {17.4, 0}).run("textbook.log1p_forward_only", "gx")[0], 0.0);
}

// The double-only patch repairs f64 with a unique maximum, and nothing else.
TEST(TextbookCrossEntropy, TensorflowPatchIsForDoubleOnly) {
  EXPECT_EQ(hard_label(Format::f64, {40, 0}).run("textbook.tensorflow_xent", "gx")[0],
            -0x1.39792499b1a24p-58);
  EXPECT_EQ(hard_label(Format::f32, {17, 0}).run("textbook.tensorflow_xent", "gx")[0], 0.0);
}

// A log-probability near -20 is stored in bf16 with spacing 2^-3: logp_1 = 0.359375 - 20.25 = -19.890625
// becomes -19.875, and with upstream 1 at class 0 the gradient is -exp(-19.875) = -2.336e-9, in bf16
// -2.343e-9 instead of -2.299e-9; logp_2 = -20.55 becomes -20.5, and -1.251e-9 stands for -1.188e-9.
TEST(TextbookLogSoftmax, BackwardReadsTheStoredLogProbability) {
  const Rows gx = OneRow("log_softmax", Format::bf16, 3)
                      .row("x", {20.25, 0.359375, -0.30078125})
                      .row("g", {1, 0, 0})
                      .run("textbook.pytorch", "gx");
  EXPECT_NEAR(gx[1], -2.343e-9, 5e-13);
  EXPECT_NEAR(gx[2], -1.251e-9, 5e-13);
}

struct CancellationExample {
  Format storage;
  Rows logits;
  Rows divergence, log_target;  ///< one value stands for every class
};

void PrintTo(const CancellationExample& example, std::ostream* out) {
  *out << name(example.storage) << " [";
  for (const double logit : example.logits) *out << " " << logit;
  *out << " ]";
}

OneRow distillation(Format storage, const Rows& student, const Rows& teacher) {
  return OneRow("kl_forward", storage, student.size()).row("s", student).row("t", teacher).upstream_of_mean();
}
void expect_row(const Rows& actual, const Rows& expected) {
  for (std::size_t j = 0; j < actual.size(); ++j)
    EXPECT_EQ(actual[j], expected[expected.size() == 1 ? 0 : j]) << "class " << j;
}

// Student equal to teacher: the true gradient is 0 in every class. What is left is fl(exp(logp_j) sum q) -
// q_j.
class Cancellation : public testing::TestWithParam<CancellationExample> {};
TEST_P(Cancellation, LeavesTheNoiseOfTwoRoundingPaths) {
  const CancellationExample& example = GetParam();
  const OneRow equal = distillation(example.storage, example.logits, example.logits);
  expect_row(equal.run("textbook.sequential", "ds"), example.divergence);
  expect_row(equal.run("textbook.sequential_log_target", "ds"), example.log_target);
  expect_row(equal.run("textbook.same_path", "ds"), {0.0});
  // PyTorch's CPU has the same bits where its arithmetic and its order are the same.
  if (example.storage == Format::f32 && example.logits.size() < 8) {
    expect_row(equal.run("textbook.pytorch", "ds"), example.divergence);
    expect_row(equal.run("textbook.torch_kl_div_log_target", "ds"), example.log_target);
  }
}
INSTANTIATE_TEST_SUITE_P(
    MinimalExamples, Cancellation,
    testing::Values(CancellationExample{Format::f32, {1, 2, 3}, {0x1p-27, 0x1p-26, 0}, {0}},
                    CancellationExample{
                        Format::f32, {0.5, 0.25, -1, 2}, {-0x1p-26, 0x1p-27, 0x1p-28, -0x1p-24}, {0}},
                    CancellationExample{Format::f32, {0, 0, 0}, {-0x1p-25}, {-0x1p-25}},
                    CancellationExample{Format::bf16, {1, 2, 3}, {-0x1p-11, 0, 0}, {0}},
                    CancellationExample{Format::bf16, {0, 0, 0}, {-0x1p-9}, {-0x1p-9}}));

// 300 equal logits, sums from left to right. f32: sum q = 0.99999917 and the gradient is -3.26e-9 per class.
// bf16: s saturates at 256, q = 2^-8 and sum q = 1, exp(logp) = 0x1.04p-8, so 2^-14; with log_target the sum
// is 1.3515625.
TEST(TextbookDistillation, ManyEqualLogitsLeaveABias) {
  const Rows zeros(300, 0.0);
  const OneRow single = distillation(Format::f32, zeros, zeros),
               half = distillation(Format::bf16, zeros, zeros);
  const Rows f32 = single.run("textbook.sequential", "ds"),
             log_f32 = single.run("textbook.sequential_log_target", "ds");
  const Rows bf16 = half.run("textbook.sequential", "ds"),
             log_bf16 = half.run("textbook.sequential_log_target", "ds");
  for (std::size_t j = 0; j < zeros.size(); ++j) {
    EXPECT_NEAR(f32[j], -3.26e-9, 5e-12);
    EXPECT_NEAR(log_f32[j], -2.79e-9, 5e-12);
    EXPECT_EQ(bf16[j], 0x1p-14);
    EXPECT_NEAR(log_bf16[j], 1.4e-3, 5e-5);
  }
}

// One path for both rows is exact at equality and noise near it: with t = (0, 1, 2) and s_2 moved by 1e-6,
// the true ds_2 is q_2 (1 - q_2) 1e-6 = 2.2e-7 while p_2 and q_2 = 0.665 are multiples of 2^-24.
TEST(TextbookDistillation, SamePathIsExactOnlyAtEquality) {
  const double moved = 2 + 0x1p-20;
  const Rows ds = distillation(Format::f32, {0, 1, moved}, {0, 1, 2}).run("textbook.same_path", "ds");
  const double q = std::exp(2.0) / (1 + std::exp(1.0) + std::exp(2.0)), truth = q * (1 - q) * 0x1p-20;
  EXPECT_EQ(ds[2], std::ldexp(std::nearbyint(std::ldexp(ds[2], 24)), -24));
  EXPECT_GT(std::fabs(ds[2] - truth), 1e-2 * truth);
}

// Every operator and storage format has exactly one form that PyTorch's CPU runs.
TEST(TextbookRegistry, HasOnePytorchFormPerOperatorAndFormat) {
  for (const char* op :
       {"softmax", "log_softmax", "logsumexp", "softmax.scaled_masked", "softmax.state", "softmax.merge",
        "softmax.online", "cross_entropy", "cross_entropy.soft", "kl_forward", "kl_reverse", "jsd"})
    for (const Format storage : floating_formats) {
      int found = 0;
      for (const Kernel* kernel : Registry::global().kernels(op))
        for (const std::string& alias : kernel->aliases)
          found += alias == "textbook.pytorch" && kernel->supports(storage);
      EXPECT_EQ(found, 1) << op << " " << name(storage);
    }
}

// A tail below u is lost when the maximum's 1 is in the pair: x = [17, 0] has r = e^-17 = 4.1e-8, and 0 is
// read out.
TEST(TextbookState, PairWithTheMaximumLosesTheTail) {
  for (const auto& [op, kernel] :
       {std::pair{"softmax.state", "textbook.pytorch"}, std::pair{"softmax.online", "textbook.online_ml"}}) {
    const OneRow row = OneRow(op, Format::f32, 2).row("x", {17, 0});
    EXPECT_EQ(row.run(kernel, "m")[0], 17.0);
    EXPECT_EQ(row.run(kernel, "r")[0], 0.0);
    EXPECT_EQ(row.run(kernel, "empty")[0], 0.0);
  }
}

// Two equal states of r = 2^-30 merge to r = 1 + 2^-29; each l = fl(1 + 2^-30) = 1, so the naive pair
// gives 1. Merging a state with the empty one does not return r = 2^-30.
TEST(TextbookMerge, PairWithTheMaximumLosesTails) {
  const auto merged = [](double r1, double empty2) {
    OneRow row("softmax.merge", Format::f32, 1);
    row.scalar("m1", Format::f32, 3).scalar("r1", Format::f32, r1).scalar("e1", Format::boolean, 0);
    row.scalar("m2", Format::f32, 3).scalar("r2", Format::f32, 0x1p-30).scalar("e2", Format::boolean, empty2);
    return row.run("textbook.online_ml", "r")[0];
  };
  EXPECT_EQ(merged(0x1p-30, 0), 1.0);
  EXPECT_EQ(merged(0x1p-30, 1), 0.0);
}

}  // namespace
}  // namespace sumzero
