// Kernels `fast` and `fast.plain` of the softmax family: special values, bounds by the judge, exact properties, equal
// bits on every SIMD target and at every address.
#include "fast/math/simd.h"
// simd.h first: it chooses the targets.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "hwy/highway.h"
#include "hwy/targets.h"
#include "oracle/judge.hpp"
#include "reference/evaluate.hpp"
#include "reference/operator.hpp"

namespace sumzero {
namespace {

using Values = std::vector<double>;
constexpr double inf = std::numeric_limits<double>::infinity();
const double nan = std::nan("");
const char* const kernel_names[] = {"fast", "fast.plain"};
constexpr auto storages = floating_formats;

Tensor tensor_of(Format format, std::vector<std::int64_t> shape, const Values& values) {
  Tensor tensor = Tensor::contiguous(format, std::move(shape));
  for (std::size_t i = 0; i < values.size(); ++i) tensor.set(static_cast<std::int64_t>(i), values[i]);
  return tensor;
}

/// `rows` rows of `values` under operator `op`.
Case case_of(const std::string& op, Format storage, std::int64_t rows, const Values& x) {
  Case c;
  c.op = op;
  c.storage = storage;
  c.extents = {rows, static_cast<std::int64_t>(x.size()) / rows};
  c.inputs["x"] = tensor_of(storage, c.extents, x);
  return c;
}

/// Adds an upstream or another input of the operator, shaped as its signature says.
void add_input(Case& c, const std::string& name, const Values& values) {
  const Signature& s = Registry::global().operator_named(c.op).signature();
  const InputSpec& spec = s.inputs[static_cast<std::size_t>(s.input(name))];
  c.inputs[name] = tensor_of(element_format(spec.element, c.storage), tensor_shape(spec.shape, c, Reduction::none), values);
}

std::vector<Tensor> run(const Case& c, const std::string& kernel_name, int threads = 1) {
  const Signature& s = Registry::global().operator_named(c.op).signature();
  validate(s, c);
  std::vector<Tensor> outputs;
  for (const OutputSpec& spec : s.outputs)
    outputs.push_back(Tensor::contiguous(element_format(spec.element, c.storage), tensor_shape(spec.shape, c, Reduction::none)));
  Registry::global().kernel_named(c.op, kernel_name, c.storage).run(Call{s, c, outputs, threads});
  return outputs;
}

Values row_of(const Tensor& tensor) {
  Values values;
  for (std::int64_t i = 0; i < tensor.elements(); ++i) values.push_back(tensor.get(i));
  return values;
}

/// Bits, except that all NaN are one.
std::vector<std::uint64_t> bits(const Tensor& tensor) {
  std::vector<std::uint64_t> result;
  for (const double v : row_of(tensor)) result.push_back(std::bit_cast<std::uint64_t>(std::isnan(v) ? nan : v));
  return result;
}

/// Largest ratio error/bound seen, by operator, kernel and format; printed once at the end.
struct LargestRatios {
  std::map<std::string, std::pair<double, double>> seen;
  ~LargestRatios() {
    for (const auto& [name, value] : seen)
      std::printf("%-44s error/bound %.3f, %.3f ulp\n", name.c_str(), value.first, value.second);
  }
  static LargestRatios& global() {
    static LargestRatios largest;
    return largest;
  }
};

void expect_judged(const Case& c, const std::string& kernel_name, const std::string& what) {
  const OperatorReference& reference = Registry::global().operator_named(c.op);
  const Judge judge(reference, Registry::global().kernel_named(c.op, kernel_name, c.storage), c.storage);
  const CaseJudgement result = judge.judge(c, run(c, kernel_name));
  const auto& specs = reference.signature().outputs;
  for (const Suspicion& f : result.findings)
    ADD_FAILURE() << c.op << " " << kernel_name << " " << name(c.storage) << " n = " << c.extents[1] << " " << what << ": "
                  << f.property << " " << f.kind << " of " << specs[static_cast<std::size_t>(f.output)].name << " row "
                  << f.row << " index " << f.index << " excess " << f.excess;
  EXPECT_EQ(result.undecided_rows, 0);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    auto& [ratio, ulp] = LargestRatios::global().seen[c.op + "." + specs[i].name + " " + kernel_name + " " + std::string(name(c.storage))];
    ratio = std::max(ratio, result.outputs[i].ratio);
    if (specs[i].gradient_of < 0) ulp = std::max(ulp, result.outputs[i].ulp);
  }
}

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  double normal(double sigma) { return sigma * std::normal_distribution<double>()(engine_); }
  double uniform(double a, double b) { return std::uniform_real_distribution<double>(a, b)(engine_); }
  std::size_t below(std::size_t n) { return engine_() % n; }
  Values normals(std::size_t n, double sigma) {
    Values v(n);
    for (double& x : v) x = normal(sigma);
    return v;
  }

 private:
  std::mt19937_64 engine_;
};

/// Every operator of one row of logits, with all inputs, from the same logits (rows * n values).
std::vector<Case> cases_of(Format storage, std::int64_t rows, const Values& x, Random& random) {
  std::vector<Case> cases;
  const std::size_t total = x.size(), per_row = static_cast<std::size_t>(rows);
  for (const char* op : {"softmax", "log_softmax", "logsumexp", "softmax.state", "softmax.online", "softmax.scaled_masked"}) {
    Case c = case_of(op, storage, rows, x);
    const Signature& s = Registry::global().operator_named(op).signature();
    for (const InputSpec& spec : s.inputs)
      if (spec.role == Role::upstream) add_input(c, spec.name, random.normals(spec.shape == Shape::row ? total : per_row, 1));
    if (c.op == "softmax.scaled_masked") {
      c.attributes["scale"] = 0.7;
      add_input(c, "bias", random.normals(total, 1));
      Values mask(total);
      for (double& keep : mask) keep = random.below(5) != 0;
      add_input(c, "mask", mask);
    }
    cases.push_back(std::move(c));
  }
  return cases;
}

class EveryKernel : public testing::TestWithParam<std::tuple<const char*, Format>> {
 protected:
  std::string kernel() const { return std::get<0>(GetParam()); }
  Format storage() const { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(All, EveryKernel, testing::Combine(testing::ValuesIn(kernel_names), testing::ValuesIn(storages)),
                         [](const auto& info) {
                           const std::string kernel = std::get<0>(info.param);
                           return (kernel == "fast" ? "Fast" : "Plain") + std::string(name(std::get<1>(info.param)));
                         });

// Sizes around every vector length, accumulator set and block (float 512, double 256, maximum 1024).
std::vector<std::size_t> sizes() {
  std::vector<std::size_t> all;
  for (std::size_t n = 1; n <= 67; ++n) all.push_back(n);
  for (std::size_t power = 128; power <= 4096; power *= 2)
    for (const std::size_t n : {power - 1, power, power + 1}) all.push_back(n);
  all.push_back(30000);
  return all;
}

TEST_P(EveryKernel, StaysWithinItsBound) {
  Random random(1);
  for (const std::size_t n : sizes())
    for (const double sigma : {0.01, 3.0, 30.0})
      for (const Case& c : cases_of(storage(), 2, random.normals(2 * n, sigma), random))
        expect_judged(c, kernel(), "sigma " + std::to_string(sigma));
}

// The maximum first, last and in a middle lane, the rest below it by a gap up to the subnormal range of p.
TEST_P(EveryKernel, StaysWithinItsBoundForEveryGap) {
  Random random(2);
  for (const std::size_t n : {2u, 3u, 10u, 113u, 1000u})
    for (double gap = 0; gap <= 112; gap += 3.7)
      for (const std::size_t k : {std::size_t{0}, n / 2, n - 1}) {
        Values x(n);
        for (double& value : x) value = random.uniform(-0.5, 0) * (gap > 1);
        x[k] = gap;
        for (const Case& c : cases_of(storage(), 1, x, random)) expect_judged(c, kernel(), "gap " + std::to_string(gap));
      }
}

TEST_P(EveryKernel, StaysWithinItsBoundFarFromZeroAndWithTies) {
  Random random(3);
  for (const std::size_t n : {5u, 40u, 600u}) {
    Values shifted(n), tied(n), wide(n);
    for (std::size_t i = 0; i < n; ++i) {
      shifted[i] = 1000 + random.normal(5);
      tied[i] = static_cast<double>(random.below(3)) * 20;
      wide[i] = random.normal(60);
    }
    for (const Values& x : {shifted, tied, wide})
      for (const Case& c : cases_of(storage(), 1, x, random)) expect_judged(c, kernel(), "shifted, tied or wide");
  }
}

TEST_P(EveryKernel, FollowsTheReferenceAtSpecialValues) {
  Random random(4);
  for (const std::size_t n : {1u, 2u, 7u, 33u, 300u, 1100u})
    for (const double special : {nan, inf, -inf})
      for (const std::size_t at : {std::size_t{0}, n / 2, n - 1})
        for (int how = 0; how < 4; ++how)  // one, two, all but one, all
          for (const double policy : {0.0, 1.0}) {
            Values x = random.normals(n, 2);
            if (how >= 2)
              for (std::size_t i = 0; i < n; ++i)
                if (how == 3 || i != (at + 1) % n) x[i] = special;
            x[at] = special;
            if (how == 1) x[(at + n / 3) % n] = special;
            for (Case c : cases_of(storage(), 1, x, random)) {
              if (c.op != "softmax.state" && c.op != "softmax.online") c.attributes["inf_policy"] = c.attributes["masked_policy"] = policy;
              expect_judged(c, kernel(), "special " + std::to_string(special) + " at " + std::to_string(at) + " how " + std::to_string(how));
            }
          }
}

TEST_P(EveryKernel, MergesWithinItsBound) {
  Random random(5);
  const Format type = accumulator_of(storage());
  const Values special = {0, 1, -1, inf, -inf, nan};
  for (int i = 0; i < 400; ++i) {
    Case c;
    c.op = "softmax.merge";
    c.storage = storage();
    c.extents = {1, 1};
    const auto pick = [&](double regular) { return i >= 200 && random.below(3) == 0 ? special[random.below(6)] : regular; };
    const double m1 = round_to(type, random.normal(20));
    add_input(c, "m1", {pick(m1)});
    add_input(c, "m2", {pick(i % 7 == 0 ? m1 : m1 + random.normal(i % 2 ? 1 : i % 4 ? 60 : 200))});
    add_input(c, "r1", {std::fabs(pick(std::exp(random.normal(10))))});
    add_input(c, "r2", {std::fabs(pick(std::exp(random.normal(10))))});
    add_input(c, "e1", {double(i >= 200 && random.below(4) == 0)});
    add_input(c, "e2", {double(i >= 200 && random.below(4) == 0)});
    add_input(c, "gm", {random.normal(1)});
    add_input(c, "gr", {random.normal(1)});
    expect_judged(c, kernel(), "merge " + std::to_string(i));
  }
}

TEST_P(EveryKernel, GivesPositiveZerosForOneClassAndDeadEntries) {
  for (const double upstream : {1.0, -1.0})
    for (const char* op : {"softmax", "log_softmax"}) {
      Case c = case_of(op, storage(), 1, {3});
      add_input(c, "g", {upstream});
      const std::vector<Tensor> out = run(c, kernel());
      EXPECT_EQ(bits(out[0])[0], std::bit_cast<std::uint64_t>(std::string(op) == "softmax" ? 1.0 : 0.0)) << op;
      EXPECT_EQ(bits(out[1])[0], 0u) << op;
    }
  if (saturates(storage())) return;  // without infinity only a mask makes an entry dead
  for (const char* op : {"softmax", "log_softmax", "softmax.scaled_masked", "logsumexp", "softmax.state", "softmax.online"}) {
    Case c = case_of(op, storage(), 1, {3, -inf, 2, -inf, 1});
    const std::string name = op;
    const bool state = name == "softmax.state" || name == "softmax.online";
    if (state) add_input(c, "gr", {-1});
    else if (name == "logsumexp") add_input(c, "g", {-1});
    else add_input(c, "g", {1, 5, -2, -5, 3});
    const std::vector<Tensor> out = run(c, kernel());
    const std::vector<std::uint64_t> gx = bits(out[state ? 3 : 1]);
    EXPECT_EQ(gx[1], 0u) << op;
    EXPECT_EQ(gx[3], 0u) << op;
  }
}

// A dead upstream is ignored by log_softmax even if it is no number.
TEST_P(EveryKernel, IgnoresTheUpstreamOfDeadEntries) {
  if (saturates(storage())) GTEST_SKIP() << "the format has no -inf";
  Case c = case_of("log_softmax", storage(), 1, {3, -inf, 2, 1});
  add_input(c, "g", {1, nan, -2, 0.5});
  Case finite = c;
  add_input(finite, "g", {1, 7, -2, 0.5});
  EXPECT_EQ(bits(run(c, kernel())[1]), bits(run(finite, kernel())[1]));
}

TEST_P(EveryKernel, KeepsOrderTiesShiftsAndScaling) {
  Random random(6);
  const std::size_t n = 700;
  for (int repeat = 0; repeat < 20; ++repeat) {
    Values x(n), shifted(n), g(n), scaled(n);
    for (std::size_t i = 0; i < n; ++i) {
      // Few values, exact when shifted by 4.
      x[i] = traits(storage()).bytes > 1 ? static_cast<double>(random.below(64)) / 16 : static_cast<double>(random.below(3));
      shifted[i] = x[i] + 4;
      g[i] = x[i] * 0.5 - 1;  // equal logits have equal upstreams
      scaled[i] = g[i] * 4;
    }
    for (const char* op : {"softmax", "log_softmax"}) {
      const bool monotone = Registry::global().kernel_named(op, kernel(), storage()).contract(storage()).monotone;
      Case c = case_of(op, storage(), 1, x), moved = case_of(op, storage(), 1, shifted), larger = c;
      add_input(c, "g", g);
      add_input(moved, "g", g);
      add_input(larger, "g", scaled);
      const std::vector<Tensor> out = run(c, kernel()), out_moved = run(moved, kernel()), out_larger = run(larger, kernel());
      EXPECT_EQ(bits(out[0]), bits(out_moved[0]));
      EXPECT_EQ(bits(out[1]), bits(out_moved[1]));
      const Values value = row_of(out[0]), gx = row_of(out[1]), gx_larger = row_of(out_larger[1]);
      for (std::size_t i = 0; i < n; ++i) {
        if (std::fabs(gx[i]) > std::max(0x1p-10, 2 * smallest_normal(storage()))) {
          EXPECT_EQ(4 * gx[i], gx_larger[i]);
        }
        const std::size_t j = random.below(n);
        if (x[i] == x[j]) {
          EXPECT_EQ(value[i], value[j]);
          EXPECT_EQ(gx[i], gx[j]);
        } else if (monotone && x[i] > x[j]) {
          EXPECT_GE(value[i], value[j]);
        }
      }
    }
  }
}

// Neighbouring numbers around points where the reduction of the exponential changes its exponent.
TEST_P(EveryKernel, IsMonotoneBetweenNeighbours) {
  if (traits(storage()).bytes < 4) GTEST_SKIP() << "covered by f32";
  const Kernel& k = Registry::global().kernel_named("softmax", kernel(), storage());
  if (!k.contract(storage()).monotone) GTEST_SKIP() << "not promised";
  Random random(7);
  for (int repeat = 0; repeat < 300; ++repeat) {
    const double center = repeat % 2 ? -(static_cast<double>(random.below(140)) + 0.5) * std::log(2.0) : random.uniform(-20, 0);
    Values x = {0};
    float value = static_cast<float>(center);
    for (int i = 0; i < 40; ++i) value = std::nextafterf(value, -200.0f);
    for (int i = 0; i < 80; ++i, value = std::nextafterf(value, 1.0f)) x.push_back(value);
    const Values p = row_of(run(case_of("softmax", storage(), 1, x), kernel())[0]);
    for (std::size_t i = 2; i < x.size(); ++i) EXPECT_LE(p[i - 1], p[i]) << x[i];
    for (const double entry : p) EXPECT_LE(entry, 1.0);
  }
}

TEST_P(EveryKernel, HasTheSameBitsOnEveryTargetThreadAndAddress) {
  Random random(8);
  for (const std::size_t n : {1u, 5u, 16u, 31u, 67u, 512u, 513u, 2500u}) {
    const std::int64_t rows = 3;
    for (const Case& c : cases_of(storage(), rows, random.normals(n * rows, 4), random)) {
      const std::vector<Tensor> expected = run(c, kernel());
      const auto expect_same = [&](const std::vector<Tensor>& other, const char* what) {
        for (std::size_t i = 0; i < other.size(); ++i)
          EXPECT_EQ(bits(expected[i]), bits(other[i])) << c.op << " output " << i << " n = " << n << ": " << what;
      };
      expect_same(run(c, kernel(), 2), "two threads");
      hwy::SetSupportedTargetsForTest(HWY_SCALAR);
      hwy::GetChosenTarget().Update(hwy::SupportedTargets());
      expect_same(run(c, kernel()), "scalar target");
      hwy::SetSupportedTargetsForTest(0);
      hwy::GetChosenTarget().Update(hwy::SupportedTargets());
      Case moved = c;  // every row of x one element further, in rows that are three elements longer
      Tensor& x = moved.inputs["x"];
      x.offset = 1;
      x.strides = {static_cast<std::int64_t>(n) + 3, 1};
      x.bytes.assign(static_cast<std::size_t>(rows * (static_cast<std::int64_t>(n) + 3) + 1) * traits(x.format).bytes, std::byte{});
      for (std::int64_t i = 0; i < x.elements(); ++i) x.set(i, c.inputs.at("x").get(i));
      expect_same(run(moved, kernel()), "another address");
    }
  }
}

// Short rows take a path of their own. Dead entries behave as if deleted and add zeros to the same lanes, so a row that
// they make long gives the same bits; ties and lone maxima, wherever they lie.
TEST_P(EveryKernel, GivesShortRowsTheBitsOfLongOnes) {
  const auto [kernel_name, storage] = GetParam();
  if (storage == Format::e4m3) GTEST_SKIP() << "no -inf";
  std::mt19937 engine(3);
  for (const char* op : {"softmax", "log_softmax"})
    for (const std::size_t n : {1, 2, 7, 8, 31, 32, 33, 100, 128, 255, 256, 257, 500, 511, 512})
      for (const int maxima : {1, 2, 3}) {
        Values x(n);
        for (double& v : x) v = round_to(storage, static_cast<double>(engine() % 4096) / 512 - 8);
        for (int i = 0; i < maxima; ++i) x[engine() % n] = 1;
        Values padded = x;
        padded.resize(1100, -inf);
        const std::vector<std::uint64_t> brief = bits(run(case_of(op, storage, 1, x), kernel_name)[0]);
        std::vector<std::uint64_t> full = bits(run(case_of(op, storage, 1, padded), kernel_name)[0]);
        full.resize(n);
        EXPECT_EQ(brief, full) << op << " n = " << n << ", " << maxima << " maxima";
      }
}

// Outputs nobody asked for are left alone, and an absent upstream gives zero gradients.
TEST_P(EveryKernel, WritesOnlyWhatIsWanted) {
  Random random(9);
  for (const Case& c : cases_of(storage(), 1, random.normals(77, 3), random)) {
    const Signature& s = Registry::global().operator_named(c.op).signature();
    const std::vector<Tensor> expected = run(c, kernel());
    for (std::size_t wanted = 0; wanted < s.outputs.size(); ++wanted) {
      std::vector<Tensor> outputs(s.outputs.size());
      outputs[wanted] = Tensor::contiguous(expected[wanted].format, expected[wanted].shape);
      Registry::global().kernel_named(c.op, kernel(), storage()).run(Call{s, c, outputs});
      EXPECT_EQ(bits(expected[wanted]), bits(outputs[wanted])) << c.op << " " << s.outputs[wanted].name;
    }
    Case forward = c;
    for (const InputSpec& spec : s.inputs)
      if (spec.role == Role::upstream) forward.inputs.erase(spec.name);
    const std::vector<Tensor> out = run(forward, kernel());
    for (std::size_t i = 0; i < out.size(); ++i) {
      const bool gradient = s.outputs[i].gradient_of >= 0 || s.outputs[i].name == "gscale";
      if (!gradient) EXPECT_EQ(bits(expected[i]), bits(out[i])) << c.op << " " << s.outputs[i].name;
      else EXPECT_EQ(row_of(out[i]), Values(static_cast<std::size_t>(out[i].elements()), 0.0)) << c.op;
    }
  }
}

// The compensated float forms stay within 3 ulp of f32, so that a 16-bit result is half an ulp and 3/8192 away.
TEST(Fast, StaysNearTheRoundedResult) {
  Random random(10);
  for (const Format storage : {Format::f32, Format::bf16, Format::f16})
    for (const std::size_t n : {2u, 100u, 1024u}) {
      for (double gap = 0; gap < 104; gap += 6.5) {
        Values x = random.normals(n, 1);
        x[n / 3] = gap;
        for (const char* op : {"softmax", "log_softmax", "logsumexp"}) {
          const Case c = case_of(op, storage, 1, x);
          const Judge judge(Registry::global().operator_named(op), Registry::global().kernel_named(op, "fast", storage), storage);
          EXPECT_LE(judge.judge(c, run(c, "fast")).outputs[0].ulp, storage == Format::f32 ? 3 : 0.51) << op << " gap " << gap;
        }
      }
    }
}

}  // namespace
}  // namespace sumzero
