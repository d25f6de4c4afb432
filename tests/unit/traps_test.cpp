// Reports of the field that turned out to be no defects: none of them may be raised, and a true defect beside each is.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "fuzz/campaign.hpp"
#include "oracle/gtest.hpp"
#include "oracle/judge.hpp"
#include "oracle/kernel/guarded_run.hpp"
#include "tests/case_builder.hpp"

namespace sumzero {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

std::vector<Violation> violations(const Case& input, const std::string& output, const Numbers& values, Contract contract = {}) {
  Subject subject(input.op, input.storage, input.extents);
  for (const auto& [name, value] : input.attributes) subject.attribute(name, value);
  const auto bytes = [](const Tensor& tensor) { return std::span(tensor.bytes); };
  for (const auto& [name, tensor] : input.inputs) {
    const auto raw = bytes(tensor);
    if (tensor.format == Format::f32) subject.input(name, std::span(reinterpret_cast<const float*>(raw.data()), raw.size() / 4));
    else if (tensor.format == Format::bf16) subject.input(name, std::span(reinterpret_cast<const std::uint16_t*>(raw.data()), raw.size() / 2));
    else subject.input(name, std::span(reinterpret_cast<const std::int64_t*>(raw.data()), raw.size() / 8));
  }
  const Tensor result = tensor_of(input.storage, {static_cast<std::int64_t>(values.size())}, values);
  const auto raw = bytes(result);
  if (input.storage == Format::f32) subject.output(output, std::span(reinterpret_cast<const float*>(raw.data()), raw.size() / 4));
  else subject.output(output, std::span(reinterpret_cast<const std::uint16_t*>(raw.data()), raw.size() / 2));
  contract.accumulator = accumulator_of(input.storage);
  contract.exp_error = contract.log_error = 2;
  contract.kind = "declared";
  subject.contract(contract);
  return subject.violations();
}

// pytorch 112714, 140222: at magnitude 8 to 16 neighbours in bf16 are 0.0625 apart, and float arithmetic decides a near tie
// either way. A further step is an error.
TEST(Traps, HalfLogProbabilitiesOneUlpApart) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> uniform(-14, 0);
  int found = 0;
  for (int i = 0; i < 8000000 && found < 3; ++i) {
    const double x = round_to(Format::bf16, uniform(random)), y = round_to(Format::bf16, uniform(random)), z = round_to(Format::bf16, uniform(random));
    const double exact = -(std::log(std::exp(x) + std::exp(y) + std::exp(z)) - x);
    if (!(exact < -8 && exact > -16)) continue;
    const double middle = (std::floor(exact / 0.0625) + 0.5) * 0.0625;
    if (std::fabs(exact - middle) > 4e-7) continue;  // half an ulp of a float there
    ++found;
    const Case input = CaseBuilder("log_softmax", Format::bf16, 1, 3).rows("x", {x, y, z});
    Numbers logp = {0, 0, 0};
    for (std::size_t j = 0; j < 3; ++j) logp[j] = round_to(Format::bf16, input.inputs.at("x").get(static_cast<std::int64_t>(j)) - (x - exact));
    for (const double side : {-0.03125, 0.03125}) {
      logp[0] = middle + side;
      EXPECT_TRUE(violations(input, "logp", logp).empty()) << x << ' ' << y << ' ' << z;
    }
    logp[0] = middle + 3 * 0.03125;
    EXPECT_FALSE(violations(input, "logp", logp).empty());
  }
  EXPECT_EQ(found, 3);
}

// tensorflow 21271: a target of 0.2 on a class 9763.4884 below costs 1952.698, however odd that looks.
TEST(Traps, AnExpensiveSoftTarget) {
  const Case input = CaseBuilder("cross_entropy.soft", Format::f32, 1, 2).rows("x", {9763.4884, 0}).rows("q", {0.8f, 0.2f}).attribute("reduction", 0);
  const double exact = double(0.2f) * double(9763.4884f);
  EXPECT_NEAR(exact, 1952.698, 1e-3);
  EXPECT_TRUE(violations(input, "loss", {exact}).empty());
  EXPECT_FALSE(violations(input, "loss", {0}).empty());
}

// pytorch 189787, triton 11165: correctly rounded probabilities need not sum to 1.
TEST(Traps, RoundedProbabilitiesThatMissOne) {
  std::mt19937_64 random(6);
  std::normal_distribution<double> normal;
  int missed = 0;
  for (int i = 0; i < 50; ++i) {
    Numbers x(7), p(7);
    double total = 0, sum = 0;
    for (double& v : x) v = static_cast<float>(normal(random)), total += std::exp(v);
    for (std::size_t j = 0; j < 7; ++j) p[j] = static_cast<float>(std::exp(x[j]) / total), sum += p[j];
    missed += sum != 1;
    EXPECT_TRUE(violations(CaseBuilder("softmax", Format::f32, 1, 7).rows("x", x), "p", p).empty());
    p[3] += 1e-5;
    EXPECT_FALSE(violations(CaseBuilder("softmax", Format::f32, 1, 7).rows("x", x), "p", p).empty());
  }
  EXPECT_GT(missed, 10);
}

/// Softmax whose sum runs from the last class to the first.
class Backwards final : public Kernel {
 public:
  explicit Backwards(bool drops_first) : drops_first_(drops_first) { op = "softmax", name = "backwards", outputs = {"p"}; }
  bool supports(Format format) const override { return format == Format::f32; }
  Contract contract(Format) const override {
    Contract claim;
    claim.policies = false;
    claim.monotone = false;
    return claim;
  }
  void run(const Call& call) const override {
    const Tensor& x = call.input.inputs.at("x");
    const std::int64_t n = x.shape[1];
    for (std::int64_t row = 0; row < x.shape[0]; ++row) {
      double m = -infinity;
      for (std::int64_t j = 0; j < n; ++j) m = std::isnan(x.get(row * n + j)) || x.get(row * n + j) > m ? x.get(row * n + j) : m;
      const auto e = [&](std::int64_t j) { return static_cast<float>(std::exp(double(static_cast<float>(x.get(row * n + j)) - static_cast<float>(m)))); };
      float s = 0;
      for (std::int64_t j = n - 1; j >= (drops_first_ && n > 2 ? 1 : 0); --j) s += e(j);
      for (std::int64_t j = 0; j < n; ++j) call.outputs[0].set(row * n + j, e(j) / s);
    }
  }

 private:
  bool drops_first_;
};

// xformers 677, 798: another order of the same sum is within the bound at any length.
TEST(Traps, AnotherOrderOfTheSum) {
  CampaignOptions options;
  options.op = "softmax", options.kernel = "backwards", options.cases = 240;
  const Backwards right(false), wrong(true);
  options.subject = &right;
  const Report report = run_campaign(options);
  EXPECT_TRUE(report.violations.empty()) << (report.violations.empty() ? "" : report.violations[0].message);
  EXPECT_GT(report.worst.at("p").bound_ratio, 0);
  options.subject = &wrong;
  EXPECT_FALSE(run_campaign(options).violations.empty());
}

// pytorch 179575: two kernels need not agree bit for bit; each is judged against the exact value.
TEST(Traps, KernelsWithDifferentBits) {
  const OperatorReference& reference = reference_of("softmax");
  int differ = 0;
  for (std::uint64_t index = 0; index < 40; ++index) {
    const Case input = campaign_case(reference.signature(), Format::f32, 9, index);
    std::vector<std::vector<Tensor>> outputs;
    for (const char* name : {"fast", "fast.plain"}) {
      const Kernel& kernel = Registry::global().kernel_named("softmax", name, Format::f32);
      GuardedRun run = run_guarded(reference.signature(), kernel, input);
      ASSERT_EQ(run.verdict, Verdict::pass);
      EXPECT_TRUE(Judge(reference, kernel, Format::f32).judge(input, run.outputs).findings.empty());
      outputs.push_back(std::move(run.outputs));
    }
    for (std::int64_t e = 0; e < outputs[0][0].elements(); ++e) differ += outputs[0][0].get(e) != outputs[1][0].get(e);
  }
  EXPECT_GT(differ, 100);
}

// openvino 33478: with tied maxima either may serve as the pivot, the results are those of the exact value.
TEST(Traps, TiedMaxima) {
  const Case input = CaseBuilder("cross_entropy", Format::f32, 2, 3).rows("x", {20, 20, 0, 20, 20, 0}).labels({0, 1}).attribute("reduction", 0);
  const double r = 1 + std::exp(-20.0), p = 1 / (1 + r), tail = std::exp(-20.0) / (1 + r);
  EXPECT_TRUE(violations(input, "gx", {p - 1, p, tail, p, p - 1, tail}).empty());
  EXPECT_FALSE(violations(input, "gx", {p, p - 1, tail, p, p - 1, tail}).empty());
}

// oneDNN 1862: no tolerance is 0 where the exact value is not, in any format.
TEST(Traps, ABoundIsNeverZero) {
  for (const OperatorReference* reference : Registry::global().operators())
    for (const Format format : floating_formats) {
      const Kernel& kernel = Registry::global().kernel_named(reference->signature().name, "fast", format);
      const Judge judge(*reference, kernel, format);
      const Case input = campaign_case(reference->signature(), format, 1, 0);
      const GuardedRun run = run_guarded(reference->signature(), kernel, input);
      ASSERT_EQ(run.verdict, Verdict::pass);
      for (std::size_t i = 0; i < run.outputs.size(); ++i) {
        if (!is_floating(run.outputs[i].format) || reference->signature().outputs[i].name == "m") continue;  // m is a copy: exact
        for (const Measurement& entry : judge.measure_all(input, run.outputs, static_cast<int>(i), 0))
          if (entry.exact_value != 0 && std::isfinite(entry.exact_value)) {
            EXPECT_GT(entry.bound, 0) << reference->signature().name << ' ' << name(format) << ' ' << reference->signature().outputs[i].name;
          }
      }
    }
}

// oneDNN 1545, 1663: equal infinities match; what a kernel does not support is no failure.
TEST(Traps, EqualInfinitiesAndRefusals) {
  const Case input = CaseBuilder("log_softmax", Format::f32, 1, 3).rows("x", {0, -infinity, 0});
  const double half = -std::log(2.0);
  EXPECT_TRUE(violations(input, "logp", {half, -infinity, half}).empty());
  EXPECT_FALSE(violations(input, "logp", {half, -1e30, half}).empty());
  class Refusing final : public Kernel {
   public:
    Refusing() { op = "softmax", name = "refusing"; }
    bool supports(Format) const override { return true; }
    Contract contract(Format) const override { return {}; }
    void run(const Call&) const override { throw Refused("not in this format"); }
  } refusing;
  CampaignOptions options;
  options.op = "softmax", options.kernel = "refusing", options.subject = &refusing, options.cases = 20;
  EXPECT_EQ(run_campaign(options).exit_code(), Exit::skipped);
}

// pytorch 155043, onnxruntime 25402: results of another case, shape or axis are not compared.
TEST(Traps, UnequalCasesAreNotCompared) {
  const std::vector<float> four(4, 0.5f);
  Subject subject("softmax", Format::f32, 2, 2);
  EXPECT_THROW(Subject("softmax", Format::f32, 3, 2).input("x", four), InvalidInput);
  subject.input("x", four);
  EXPECT_THROW(subject.output("p", std::vector<float>(6, 0.5f)), InvalidInput);
  EXPECT_THROW(Subject("softmax", Format::f32, {2, 2, 2}), InvalidInput);
}

}  // namespace
}  // namespace sumzero
