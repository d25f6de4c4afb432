// What probe says of kernels whose construction is known: every kernel of this repository by its contract, and planted ones.
#include "oracle/probe.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <limits>

#include "oracle/contract.hpp"
#include "reference/register.hpp"
#include "tests/case_builder.hpp"

namespace sumzero {
namespace {

constexpr std::size_t quick = 1 << 13;  // longest row of tests that are not about 2^24 terms

ProbeResult probed(const Kernel& kernel, Format format = Format::f32, std::size_t longest = quick) {
  return probe(reference_of(kernel.op), kernel, {.format = format, .seconds = 1000, .longest = longest});
}

/// How a finding names the order that a contract states.
std::string order_text(const Contract& claim) {
  const SummationTree& tree = claim.summation;
  switch (tree.kind) {
    case SummationTree::Kind::sequential: return "sequential";
    case SummationTree::Kind::lanes:
      return "lanes " + std::to_string(tree.width) + (tree.flush_every > 0 ? ", flushed every " + std::to_string(tree.flush_every) + " into a cascade" : "");
    default: return "";
  }
}

using Named = std::pair<std::string, std::string>;  // operator, kernel
class KnownKernels : public testing::TestWithParam<Named> {};

// A finding is the truth, or says that it is none.
TEST_P(KnownKernels, AreFoundOut) {
  const auto& [op, name] = GetParam();
  const Kernel& kernel = Registry::global().kernel_named(op, name, Format::f32);
  const Contract claim = kernel.contract(Format::f32);
  const ProbeResult result = probed(kernel);
  SCOPED_TRACE(probe_text(result));
  ASSERT_FALSE(result.refused);
  const bool foreign = name == "onednn";  // its source is not ours to know
  const std::string_view order = result.value("reduction order"), accumulator = result.value("accumulator");
  // Sums in double, which the contract of the f32 row does not say.
  const bool wide = claim.accumulator == Format::f64 || name == "textbook.ggml" || claim.summation.kind == SummationTree::Kind::compensated;
  if (wide) {
    EXPECT_TRUE(order == "exact: wider or compensated" || order == "unknown") << order;
    EXPECT_TRUE(accumulator == "wider than f32 or compensated" || accumulator.empty()) << accumulator;
  } else if (op == "softmax.online") {
    EXPECT_EQ(order, "unknown");  // r is the sum less the maximum's 1, and a moving maximum rescales it
  } else if (!foreign) {
    EXPECT_EQ(order, order_text(claim));
    EXPECT_EQ(accumulator, "f32");
    EXPECT_EQ(result.contract.summation.kind, claim.summation.kind);
    EXPECT_EQ(result.contract.summation.width, claim.summation.width);
    EXPECT_EQ(result.contract.summation.flush_every, claim.summation.flush_every);
  }
  if (const auto shift = result.value("x - max"); !shift.empty() && shift != "unknown" && claim.accumulator == Format::f32) {
    EXPECT_EQ(shift, claim.compensated_shift ? "compensated" : "rounded");
  }
  if (const auto division = result.value("division"); !division.empty() && division != "unknown") {
    EXPECT_EQ(division == "multiplies by a rounded reciprocal", claim.reciprocal) << division;
  }
  // The claim is in u of its accumulator; what is seen went through one store to f32.
  if (!foreign && !result.value("exp error").empty()) { EXPECT_LE(result.contract.exp_error, claim.accumulator == Format::f64 ? 1.01 : std::max(claim.exp_error, 1.0)); }
  EXPECT_EQ(result.contract.deterministic, claim.deterministic);
  if (const auto policies = result.value("other policies"); !foreign && !policies.empty()) { EXPECT_EQ(policies == "honoured", claim.policies); }
  // The draft is a contract that reads back.
  const nlohmann::json draft = nlohmann::json::parse(draft_contract(result).dump());
  const Contract back = contract_from(JsonValue(draft, "draft"), default_contract(Format::f32));
  EXPECT_EQ(back.kind, "declared");
  EXPECT_EQ(back.exp_error, result.contract.exp_error);
  EXPECT_EQ(back.summation.width, result.contract.summation.width);
}

std::vector<Named> known_kernels() {
  std::vector<Named> names;
  for (const char* op : {"softmax", "log_softmax", "logsumexp", "cross_entropy", "softmax.scaled_masked", "softmax.online", "cross_entropy.soft"})
    for (const Kernel* kernel : Registry::global().kernels(op))
      if (kernel->supports(Format::f32) && !kernel->name.starts_with("planted")) names.emplace_back(op, kernel->name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Probe, KnownKernels, testing::ValuesIn(known_kernels()), [](const testing::TestParamInfo<Named>& info) {
  std::string text = info.param.first + "_" + info.param.second;
  for (char& c : text)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return text;
});

// ---------------------------------------------------------------------------------------------------------
// Planted kernels

/// Softmax with a sum, an exponential and a policy of the test's choice.
struct Construction {
  std::function<float(const std::vector<float>&)> sum = [](const std::vector<float>& e) {
    float total = 0;
    for (const float v : e) total += v;
    return total;
  };
  std::function<float(float)> exp = [](float x) { return static_cast<float>(std::exp(static_cast<double>(x))); };
  std::function<float(float)> store = [](float p) { return p; };
  float masked = std::nanf("");
};

class Planted final : public Kernel {
 public:
  explicit Planted(Construction made) : made_(std::move(made)) { op = "softmax", name = "planted", outputs = {"p"}; }
  bool supports(Format format) const override { return format == Format::f32; }
  Contract contract(Format) const override { return {}; }
  void run(const Call& call) const override {
    const Tensor& x = call.input.inputs.at("x");
    const std::int64_t n = x.shape[1];
    for (std::int64_t row = 0; row < x.shape[0]; ++row) {
      float m = -std::numeric_limits<float>::infinity();
      for (std::int64_t j = 0; j < n; ++j) m = std::max(m, static_cast<float>(x.get(row * n + j)));
      std::vector<float> e(static_cast<std::size_t>(n));
      for (std::int64_t j = 0; j < n; ++j) e[static_cast<std::size_t>(j)] = made_.exp(static_cast<float>(x.get(row * n + j)) - m);
      const float s = made_.sum(e);
      for (std::int64_t j = 0; j < n; ++j)
        call.outputs[0].set(row * n + j, std::isinf(m) && m < 0 ? made_.masked : made_.store(e[static_cast<std::size_t>(j)] / s));
    }
  }

 private:
  Construction made_;
};

ProbeResult probed(Construction made, std::size_t longest = quick) { return probed(Planted(std::move(made)), Format::f32, longest); }

float rounded(Format format, float x) { return static_cast<float>(round_to(format, x)); }

TEST(ProbePlanted, SixteenLanes) {
  Construction made;
  made.sum = [](const std::vector<float>& e) {
    float lane[16] = {};
    for (std::size_t i = 0; i < e.size(); ++i) lane[i % 16] += e[i];
    for (int half = 8; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
    return lane[0];
  };
  const ProbeResult result = probed(made);
  EXPECT_EQ(result.value("reduction order"), "lanes 16") << probe_text(result);
  EXPECT_EQ(result.value("division"), "divides");
}

TEST(ProbePlanted, NarrowAccumulators) {
  for (const auto& [format, length] : {std::pair(Format::bf16, "256"), std::pair(Format::f16, "2048")}) {
    Construction made;
    made.sum = [format = format](const std::vector<float>& e) {
      float total = 0;
      for (const float v : e) total = rounded(format, total + rounded(format, v));
      return total;
    };
    const ProbeResult result = probed(made);
    EXPECT_EQ(result.value("accumulator"), name(format)) << probe_text(result);
    EXPECT_EQ(result.value("saturation length"), length) << probe_text(result);
    EXPECT_EQ(result.contract.accumulator, format);
  }
}

TEST(ProbePlanted, PairwiseInBlocks) {
  Construction made;
  made.sum = [](const std::vector<float>& e) {
    const std::function<float(std::size_t, std::size_t)> sum = [&](std::size_t begin, std::size_t end) {
      if (end - begin <= 128) {
        float total = 0;
        for (std::size_t i = begin; i < end; ++i) total += e[i];
        return total;
      }
      const std::size_t middle = begin + (end - begin) / 2;
      return sum(begin, middle) + sum(middle, end);
    };
    return sum(0, e.size());
  };
  EXPECT_EQ(probed(made).value("reduction order"), "pairwise, blocks of 128");
}

// An order that nobody would guess is unknown, not the nearest guess.
TEST(ProbePlanted, StrangeOrdersStayUnknown) {
  Construction made;
  made.sum = [](const std::vector<float>& e) {
    float odd = 0, even = 0;  // 7 of 10 terms here, 3 there
    for (std::size_t i = 0; i < e.size(); ++i) (i % 10 < 7 ? odd : even) += e[i];
    return odd + even;
  };
  const ProbeResult result = probed(made);
  EXPECT_EQ(result.value("reduction order"), "unknown") << probe_text(result);
  EXPECT_EQ(result.contract.summation.kind, SummationTree::Kind::unknown);
}

TEST(ProbePlanted, FlushToZero) {
  Construction made;
  made.store = [](float p) { return std::fabs(p) < std::numeric_limits<float>::min() ? 0 : p; };
  const ProbeResult result = probed(made);
  EXPECT_EQ(result.value("subnormal results"), "flushed to zero") << probe_text(result);
  EXPECT_TRUE(result.contract.flush_to_zero);
  EXPECT_FALSE(probed(Construction()).contract.flush_to_zero);
}

TEST(ProbePlanted, AnInaccurateExponential) {
  Construction made;
  made.exp = [](float x) { return static_cast<float>(std::exp(static_cast<double>(x)) * (1 + (std::fabs(std::sin(x)) > 0.9 ? 3.0 : 0.0) * 0x1p-23)); };
  const ProbeResult result = probed(made);
  EXPECT_GE(result.contract.exp_error, 6) << probe_text(result);  // 3 * 2^-23 = 6 u, and the rounding
  EXPECT_LE(result.contract.exp_error, 7.1);
  EXPECT_LE(probed(Construction()).contract.exp_error, 1.01);
}

TEST(ProbePlanted, PolicyOfMaskedRows) {
  Construction made;
  made.masked = 0;
  EXPECT_EQ(probed(made).value("row of -inf"), "masked_policy zeros");
  made.masked = 0.5;
  EXPECT_EQ(probed(made).value("row of -inf"), "no documented policy");
}

TEST(ProbePlanted, RunsThatDiffer) {
  Construction made;
  made.store = [counter = std::make_shared<std::atomic<int>>(0)](float p) { return p * (1 + static_cast<float>((*counter)++ % 7) * 0x1p-23f); };
  const ProbeResult result = probed(made);
  EXPECT_EQ(result.value("repeated runs"), "bits differ") << probe_text(result);
  EXPECT_FALSE(result.contract.deterministic);
}

// ---------------------------------------------------------------------------------------------------------

// 1 + 1 + ... stops at 2^24 in f32.
TEST(Probe, FindsTheSaturationOfASequentialSum) {
  const ProbeResult result = probed(Registry::global().kernel_named("softmax", "textbook.jax", Format::f32), Format::f32, std::size_t{1} << 25);
  EXPECT_EQ(result.value("saturation length"), "16777216") << probe_text(result);
}

TEST(Probe, SeesWhatTheBackwardReads) {
  for (const char* kernel_name : {"textbook.torch_cpu", "textbook.jax"}) {
    const Kernel& kernel = Registry::global().kernel_named("log_softmax", kernel_name, Format::bf16);
    const ProbeResult result = probed(kernel, Format::bf16);
    EXPECT_EQ(result.value("backward reads"), kernel.contract(Format::bf16).stores_intermediates ? "the stored forward" : "the unrounded forward") << probe_text(result);
    EXPECT_EQ(result.value("exp error"), "");
  }
}

TEST(Probe, MeasuresWhatItCanOfEveryOperator) {
  for (const OperatorReference* reference : Registry::global().operators()) {
    const std::string& op = reference->signature().name;
    const Kernel& kernel = Registry::global().kernel_named(op, "fast", Format::f32);
    if (reference->signature().axes != Axes::rows) {
      EXPECT_THROW(probe(*reference, kernel, {}), InvalidInput) << op;
      continue;
    }
    const ProbeResult result = probed(kernel);
    EXPECT_EQ(result.value("repeated runs"), "equal bits") << probe_text(result);
    EXPECT_EQ(result.value("layout"), "equal bits") << probe_text(result);
    for (const ProbeFinding& finding : result.findings) EXPECT_FALSE(finding.evidence.empty()) << finding.property;
  }
}

}  // namespace
}  // namespace sumzero
