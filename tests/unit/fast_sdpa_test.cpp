// The fast kernels of attention against loops in long double that share nothing with the registered reference, and the exact
// properties that their contracts state.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "fast/math/simd.h"
// simd.h first: it chooses the targets.
#include "hwy/targets.h"
#include "reference/evaluate.hpp"

namespace sumzero {
namespace {

using Wide = long double;
constexpr double infinity = std::numeric_limits<double>::infinity();
const char* const kernels[] = {"fast", "fast.plain"};

const Signature& signature() { return Registry::global().operator_named("sdpa").signature(); }
std::size_t output(const char* name) { return static_cast<std::size_t>(signature().output(name)); }

std::vector<Tensor> run(const Kernel& kernel, const Case& input, int threads = 1) {
  const Signature& of = Registry::global().operator_named(input.op).signature();
  validate(of, input);
  std::vector<Tensor> outputs;
  for (const OutputSpec& spec : of.outputs)
    outputs.push_back(Tensor::contiguous(element_format(spec.element, input.storage), tensor_shape(spec.shape, input, Reduction::none)));
  kernel.run(Call{of, input, outputs, threads});
  return outputs;
}
std::vector<Tensor> run(const char* kernel, const Case& input, int threads = 1) {
  return run(Registry::global().kernel_named(input.op, kernel, input.storage), input, threads);
}

class Random {
 public:
  explicit Random(std::uint32_t seed) : engine_(seed) {}
  double normal() { return std::normal_distribution<double>()(engine_); }
  std::int64_t between(std::int64_t low, std::int64_t high) { return std::uniform_int_distribution<std::int64_t>(low, high)(engine_); }
  bool chance(double p) { return std::bernoulli_distribution(p)(engine_); }

 private:
  std::mt19937 engine_;
};

/// A tensor of normal numbers for input `name`.
void put(Case& input, const char* name, Random& random, double scale = 1) {
  const InputSpec& spec = signature().inputs[static_cast<std::size_t>(signature().input(name))];
  Tensor tensor = Tensor::contiguous(element_format(spec.element, input.storage), tensor_shape(spec.shape, input, Reduction::none));
  for (std::int64_t i = 0; i < tensor.elements(); ++i) tensor.set(i, scale * random.normal());
  input.inputs[name] = std::move(tensor);
}

Case plain_case(Random& random, Format storage, std::vector<std::int64_t> extents) {
  Case input;
  input.op = "sdpa";
  input.storage = storage;
  input.extents = std::move(extents);
  input.attributes["tau"] = 1 / std::sqrt(static_cast<double>(input.extents[axis::head_size]));
  for (const char* name : {"q", "k", "v", "go"}) put(input, name, random);
  return input;
}

/// Sizes around the tiles of the kernels, and every attribute.
Case random_case(Random& random, Format storage) {
  const std::int64_t kv_heads = random.between(1, 2);
  Case input = plain_case(random, storage, {random.between(1, 2), kv_heads * random.between(1, 2), kv_heads, random.between(1, 110), random.between(1, 200), random.between(1, 20), random.between(1, 40)});
  if (random.chance(0.3)) put(input, "bias", random, 2);
  if (random.chance(0.3)) {
    put(input, "mask", random);
    Tensor& mask = input.inputs["mask"];
    for (std::int64_t i = 0; i < mask.elements(); ++i) mask.set(i, random.chance(0.7));
  }
  if (input.inputs.contains("bias"))
    for (std::int64_t i = 0; i < input.inputs["bias"].elements(); ++i)
      if (random.chance(0.2)) input.inputs["bias"].set(i, -infinity);
  if (random.chance(0.5)) put(input, "glse", random);
  if (random.chance(0.2)) input.inputs.erase("go");
  if (random.chance(0.1)) input.attributes["tau"] = 0;
  if (random.chance(0.3)) input.attributes["softcap"] = 1.5;
  input.attributes["causal"] = static_cast<double>(random.between(0, 2));
  if (random.chance(0.3)) input.attributes["window"] = static_cast<double>(random.between(1, 90));
  if (random.chance(0.3)) input.attributes["sink"] = 1;
  if (random.chance(0.3)) input.attributes["lse_base"] = 1;
  if (random.chance(0.3)) input.attributes["empty_row_policy"] = 1;
  return input;
}

/// An output by plain loops: values and what their rounding errors are proportional to.
struct Expected {
  std::vector<Wide> value, size;
  explicit Expected(const Tensor& like) : value(static_cast<std::size_t>(like.elements()), 0), size(value.size(), 0) {}
  void add(std::size_t at, Wide term, Wide magnitude) { value[at] += term, size[at] += magnitude; }
};

std::vector<Expected> naive(const Case& input, const std::vector<Tensor>& like) {
  const std::vector<double> attribute = attribute_values(signature(), input);
  const double tau = attribute[0], cap = attribute[1], causal = attribute[2], window = attribute[3];
  const bool sink = attribute[4] != 0;
  const Wide base = attribute[5] != 0 ? 1 / std::log(Wide(2)) : Wide(1), empty = attribute[6] != 0 ? std::nan("") : 0;
  const auto extent = [&](std::size_t i) { return static_cast<std::size_t>(input.extents[i]); };
  const std::size_t heads = extent(1), kv_heads = extent(2), queries = extent(3), keys = extent(4), d = extent(5), e = extent(6);
  enum Name : std::size_t { q_, k_, v_, bias_, mask_, go_, glse_, names };
  std::vector<Wide> values[names];
  for (std::size_t i = 0; i < names; ++i)
    if (const auto found = input.inputs.find(signature().inputs[i].name); found != input.inputs.end())
      for (std::int64_t at = 0; at < found->second.elements(); ++at) values[i].push_back(found->second.get(at));
  const auto get = [&](Name name, std::size_t i) { return values[name].empty() ? Wide(0) : values[name][i]; };
  std::vector<Expected> out;
  for (const Tensor& tensor : like) out.emplace_back(tensor);
  for (std::size_t head = 0; head < extent(0) * heads; ++head)
    for (std::size_t t = 0; t < queries; ++t) {
      const std::size_t query = head * queries + t, kv = head / heads * kv_heads + head % heads / (heads / kv_heads);
      std::vector<std::size_t> seen;
      std::vector<Wide> product, a, slope, size;
      Wide total = 0, top = sink ? 0 : -infinity;
      for (std::size_t j = 0; j < keys; ++j) {
        const double behind = static_cast<double>(t) + (causal == 2 ? static_cast<double>(keys) - static_cast<double>(queries) : 0) - static_cast<double>(j);
        if ((causal != 0 || window > 0) && behind < 0) continue;
        if (window > 0 && behind >= window) continue;
        if (!values[mask_].empty() && get(mask_, query * keys + j) == 0) continue;
        const Wide bias = get(bias_, query * keys + j);
        if (std::isinf(bias)) continue;
        Wide s = 0, magnitude = std::fabs(bias);
        for (std::size_t c = 0; c < d; ++c) {
          const Wide term = get(q_, query * d + c) * get(k_, (kv * keys + j) * d + c);
          s += term, magnitude += std::fabs(Wide(tau) * term);
        }
        const Wide logit = tau * s + bias, t_capped = cap > 0 ? std::tanh(logit / cap) : 0;
        seen.push_back(j), product.push_back(s), size.push_back(magnitude);
        a.push_back(cap > 0 ? cap * t_capped : logit);
        slope.push_back(1 - t_capped * t_capped);
        top = std::max(top, a.back());
      }
      if (seen.empty() && !sink) {
        for (std::size_t c = 0; c < e; ++c) out[0].value[query * e + c] = empty;
        out[1].value[query] = -infinity;
        for (std::size_t c = 0; c < d; ++c) out[2].value[query * d + c] = empty;
        for (std::size_t j = 0; j < keys; ++j) out[5].value[query * keys + j] = empty;
        out[6].value[query] = empty;
        continue;
      }
      if (sink) total = std::exp(-top);
      for (const Wide logit : a) total += std::exp(logit - top);
      out[1].value[query] = (top + std::log(total)) * base;
      out[1].size[query] = 1 + std::fabs(top) + std::log(total);
      Wide mean = 0, upstream = get(glse_, query) * base, largest_pull = 0;
      std::vector<Wide> p, pull;
      for (std::size_t i = 0; i < seen.size(); ++i) {
        p.push_back(std::exp(a[i] - top) / total), pull.push_back(0);
        Wide magnitude = 0;
        for (std::size_t c = 0; c < e; ++c) {
          const Wide v = get(v_, (kv * keys + seen[i]) * e + c), go = get(go_, query * e + c);
          out[0].add(query * e + c, p[i] * v, p[i] * std::fabs(v));
          out[4].add((kv * keys + seen[i]) * e + c, p[i] * go, p[i] * std::fabs(go));
          pull[i] += v * go, magnitude += std::fabs(v * go);
        }
        mean += p[i] * pull[i], largest_pull = std::max(largest_pull, magnitude);
      }
      for (std::size_t i = 0; i < seen.size(); ++i) {
        const Wide da = p[i] * (pull[i] - mean + upstream) * slope[i], magnitude = p[i] * (2 * largest_pull + std::fabs(upstream));
        out[5].add(query * keys + seen[i], da, magnitude);
        out[6].add(query, da * product[i], magnitude * std::fabs(product[i]));
        for (std::size_t c = 0; c < d; ++c) {
          const Wide q = get(q_, query * d + c), k = get(k_, (kv * keys + seen[i]) * d + c);
          out[2].add(query * d + c, tau * da * k, magnitude * std::fabs(tau * k));
          out[3].add((kv * keys + seen[i]) * d + c, tau * da * q, magnitude * std::fabs(tau * q));
        }
      }
    }
  if (!input.inputs.contains("go") && !input.inputs.contains("glse"))
    for (std::size_t i = 2; i < out.size(); ++i) std::fill(out[i].value.begin(), out[i].value.end(), Wide(0));
  return out;
}

/// Where the outputs differ from plain loops by more than their rounding errors; empty if nowhere.
std::string difference(const Case& input, const std::vector<Tensor>& outputs, Format accumulator) {
  const std::vector<Expected> expected = naive(input, outputs);
  // With unit normal data |tau| sum |q k| stays below 32 (20 products), so that logits err by at most 25 * 32 u and weights by
  // twice that; sums over up to 440 terms, the tiles' exponentials and second orders stay below as much again.
  const double relative = 4096 * unit_roundoff(accumulator), stored = 2 * unit_roundoff(input.storage);
  for (std::size_t i = 0; i < outputs.size(); ++i)
    for (std::size_t at = 0; at < expected[i].value.size(); ++at) {
      const Wide value = expected[i].value[at];
      const double got = outputs[i].get(static_cast<std::int64_t>(at));
      if (std::isnan(value) ? std::isnan(got) : std::isinf(value) ? got == static_cast<double>(value) : std::fabs(got - value) <= relative * expected[i].size[at] + stored * std::fabs(value) + 1e-38L) continue;
      return signature().outputs[i].name + "[" + std::to_string(at) + "]: " + std::to_string(got) + " for " + std::to_string(value);
    }
  return {};
}

TEST(FastSdpa, AgreesWithPlainLoops) {
  Random random(1);
  for (int round = 0; round < 120; ++round) {
    const Format storage = round % 2 == 0 ? Format::f32 : Format::f64;
    const Case input = random_case(random, storage);
    for (const char* name : kernels) {
      const Kernel& kernel = Registry::global().kernel_named("sdpa", name, storage);
      ASSERT_EQ(difference(input, run(kernel, input), kernel.contract(storage).accumulator), "") << name << ", round " << round;
    }
  }
}

// The comparison itself: a value one hundredth off, a missing NaN and a finite value for -inf are noticed.
TEST(FastSdpa, ComparisonNoticesPlantedErrors) {
  Random random(2);
  Case input = plain_case(random, Format::f32, {1, 1, 1, 3, 70, 4, 5});
  input.attributes["causal"] = 2;
  put(input, "glse", random);
  const std::vector<Tensor> right = run("fast.plain", input);
  ASSERT_EQ(difference(input, right, Format::f32), "");
  for (std::size_t i = 0; i < right.size(); ++i) {
    std::vector<Tensor> wrong = right;
    std::int64_t largest = 0;
    for (std::int64_t at = 0; at < wrong[i].elements(); ++at)
      if (std::fabs(wrong[i].get(at)) > std::fabs(wrong[i].get(largest))) largest = at;
    wrong[i].set(largest, wrong[i].get(largest) * 1.01);
    EXPECT_NE(difference(input, wrong, Format::f32), "") << signature().outputs[i].name;
  }
  input.extents[axis::queries] = 80;  // more queries than keys: the first ones see nothing
  for (const char* name : {"q", "go", "glse"}) put(input, name, random);
  input.attributes["empty_row_policy"] = 1;
  std::vector<Tensor> wrong = run("fast.plain", input);
  ASSERT_EQ(difference(input, wrong, Format::f32), "");
  wrong[output("o")].set(0, 0);
  EXPECT_NE(difference(input, wrong, Format::f32), "");
  wrong = run("fast.plain", input);
  wrong[output("lse")].set(0, -1e30);
  EXPECT_NE(difference(input, wrong, Format::f32), "");
}

// The maximum arrives late and far above everything before: what was summed is rescaled in every tile.
TEST(FastSdpa, FollowsAGrowingMaximum) {
  Random random(3);
  Case input = plain_case(random, Format::f64, {1, 1, 1, 50, 260, 1, 3});
  for (std::int64_t t = 0; t < 50; ++t) input.inputs["q"].set(t, 1);
  for (std::int64_t j = 0; j < 260; ++j) input.inputs["k"].set(j, 0.1 * static_cast<double>(j));
  for (const char* name : kernels) EXPECT_EQ(difference(input, run(name, input), Format::f64), "") << name;
}

TEST(FastSdpa, OneVisibleKeyIsPassedOnExactly) {
  Random random(4);
  for (const Format storage : {Format::f32, Format::f64}) {
    Case input = plain_case(random, storage, {1, 1, 1, 130, 130, 5, 7});
    input.attributes["causal"] = 1;
    input.attributes["window"] = 1;
    for (const char* name : kernels) {
      const std::vector<Tensor> outputs = run(name, input);
      const Tensor &v = input.inputs["v"], &go = input.inputs["go"];
      for (std::int64_t i = 0; i < v.elements(); ++i) {
        ASSERT_EQ(outputs[output("o")].get(i), v.get(i)) << name;
        ASSERT_EQ(outputs[output("gv")].get(i), go.get(i)) << name;
      }
      for (const char* zero : {"gq", "gk", "gbias", "gtau"})
        for (std::int64_t i = 0; i < outputs[output(zero)].elements(); ++i) ASSERT_EQ(outputs[output(zero)].get(i), 0) << name << ' ' << zero;
    }
  }
}

// A query that sees nothing gives zeros, or NaN for what belongs to it alone; a sink is seen by everyone.
TEST(FastSdpa, EmptyRows) {
  Random random(5);
  for (const char* name : kernels) {
    Case input = plain_case(random, Format::f32, {1, 1, 1, 4, 3, 2, 2});
    put(input, "bias", random);
    put(input, "glse", random);
    for (std::int64_t j = 0; j < 3; ++j) input.inputs["bias"].set(3 + j, -infinity);  // query 1
    std::vector<Tensor> outputs = run(name, input);
    EXPECT_EQ(outputs[output("o")].get(2), 0);
    EXPECT_EQ(outputs[output("lse")].get(1), -infinity);
    EXPECT_EQ(outputs[output("gtau")].get(1), 0);
    input.attributes["empty_row_policy"] = 1;
    const std::vector<Tensor> nan = run(name, input);
    EXPECT_TRUE(std::isnan(nan[output("o")].get(2)) && std::isnan(nan[output("gq")].get(2)) && std::isnan(nan[output("gbias")].get(3)) && std::isnan(nan[output("gtau")].get(1)));
    EXPECT_EQ(nan[output("gk")].bytes, outputs[output("gk")].bytes);
    EXPECT_EQ(nan[output("gv")].bytes, outputs[output("gv")].bytes);
    input.attributes["sink"] = 1;
    outputs = run(name, input);
    EXPECT_EQ(outputs[output("o")].get(2), 0);
    EXPECT_EQ(outputs[output("lse")].get(1), 0);
    EXPECT_EQ(outputs[output("gq")].get(2), 0);
  }
}

// What a query does not see has no influence, not even on rounding.
TEST(FastSdpa, BitsDependOnNothingHidden) {
  Random random(6);
  Case input = plain_case(random, Format::f32, {1, 1, 1, 150, 150, 8, 8});
  input.attributes["causal"] = 1;
  const std::int64_t later = 70;
  for (const char* name : kernels) {
    const std::vector<Tensor> before = run(name, input);
    Case changed = input;
    for (std::int64_t i = later * 8; i < 150 * 8; ++i) changed.inputs["k"].set(i, 30), changed.inputs["v"].set(i, 1000);
    const std::vector<Tensor> after = run(name, changed);
    const auto same = [&](const char* tensor, std::int64_t count) {
      return std::memcmp(before[output(tensor)].bytes.data(), after[output(tensor)].bytes.data(), static_cast<std::size_t>(count) * 4) == 0;
    };
    EXPECT_TRUE(same("o", later * 8) && same("lse", later) && same("gq", later * 8)) << name;
    EXPECT_FALSE(same("o", (later + 1) * 8)) << name;
  }
}

std::vector<std::vector<std::byte>> bits(const std::vector<Tensor>& outputs) {
  std::vector<std::vector<std::byte>> all;
  for (const Tensor& tensor : outputs) all.emplace_back(tensor.bytes.begin(), tensor.bytes.end());
  return all;
}

TEST(FastSdpa, HasTheSameBitsOnEveryTargetThreadAndInEveryBatch) {
  Random random(7);
  for (int round = 0; round < 12; ++round) {
    const Format storage = round % 2 == 0 ? Format::f32 : Format::f64;
    Case input = random_case(random, storage);
    for (const char* name : kernels) {
      const auto expected = bits(run(name, input));
      EXPECT_EQ(bits(run(name, input, 3)), expected) << name;
      for (const auto targets : {HWY_SCALAR, HWY_AVX2}) {
        if ((hwy::SupportedTargets() & targets) == 0) continue;
        hwy::SetSupportedTargetsForTest(targets);
        hwy::GetChosenTarget().Update(hwy::SupportedTargets());
        EXPECT_EQ(bits(run(name, input)), expected) << name << ", target " << targets << ", round " << round;
        hwy::SetSupportedTargetsForTest(0);
        hwy::GetChosenTarget().Update(hwy::SupportedTargets());
      }
      // The last batch entry alone.
      Case last = input;
      last.extents[axis::batch] = 1;
      for (auto& [key, tensor] : last.inputs) {
        const std::size_t each = tensor.bytes.size() / static_cast<std::size_t>(input.extents[axis::batch]);
        Tensor part = tensor;
        part.bytes.erase(part.bytes.begin(), part.bytes.end() - static_cast<std::ptrdiff_t>(each));
        part.shape[0] = 1;
        tensor = part;
      }
      const auto alone = bits(run(name, last));
      for (std::size_t i = 0; i < alone.size(); ++i)
        EXPECT_TRUE(std::equal(alone[i].rbegin(), alone[i].rend(), expected[i].rbegin())) << name << ", output " << i;
    }
  }
}

// In f64, where storage rounds nothing more, the textbook forms are right up to rounding; their defects are the mutants' matter.
TEST(TextbookSdpa, AgreesWithPlainLoops) {
  Random random(9);
  for (int round = 0; round < 30; ++round) {
    Case input = random_case(random, Format::f64);
    input.attributes.erase("empty_row_policy");
    for (const char* name : {"textbook.two_pass", "textbook.flash", "textbook.p_rounded", "textbook.base2"}) {
      // two_pass has NaN where a query sees nothing; with a sink none does.
      if (std::string_view(name) == "textbook.two_pass") input.attributes["sink"] = 1;
      ASSERT_EQ(difference(input, run(name, input), Format::f64), "") << name << ", round " << round;
    }
  }
}

// Attention by OpenBLAS, where it is built: right, and refusing what it does not have.
TEST(OpenBlasSdpa, AgreesWithPlainLoops) {
  const std::vector<const Kernel*> all = Registry::global().kernels("sdpa");
  const auto found = std::find_if(all.begin(), all.end(), [](const Kernel* kernel) { return kernel->name == "openblas"; });
  if (found == all.end()) GTEST_SKIP() << "built without OpenBLAS";
  Random random(10);
  int refused = 0;
  for (int round = 0; round < 40; ++round) {
    Case input = random_case(random, Format::f64);
    try {
      std::vector<Tensor> outputs = run(**found, input), complete = run("fast", input);
      for (const char* name : {"o", "gq", "gk", "gv"}) complete[output(name)] = outputs[output(name)];
      ASSERT_EQ(difference(input, complete, Format::f64), "") << "round " << round;
    } catch (const Refused&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, 40);
}

// Attention over all keys is the merge of attention over two parts of them.
TEST(FastSdpaMerge, JoinsPartsOfTheKeys) {
  Random random(8);
  const std::int64_t queries = 9, keys = 100, cut = 37, e = 6;
  const Case whole = plain_case(random, Format::f64, {1, 1, 1, queries, keys, 4, e});
  const auto part = [&](std::int64_t first, std::int64_t count) {
    Case input = whole;
    input.extents[axis::keys] = count;
    for (const char* name : {"k", "v"}) {
      Tensor tensor = Tensor::contiguous(Format::f64, {1, 1, count, name[0] == 'k' ? 4 : e});
      const std::int64_t width = tensor.elements() / count;
      for (std::int64_t i = 0; i < tensor.elements(); ++i) tensor.set(i, whole.inputs.at(name).get(first * width + i));
      input.inputs[name] = tensor;
    }
    return input;
  };
  for (const char* name : kernels) {
    Case merge;
    merge.op = "sdpa.merge";
    merge.storage = Format::f64;
    merge.extents = {queries, e};
    const std::vector<Tensor> expected = run(name, whole), first = run(name, part(0, cut)), second = run(name, part(cut, keys - cut));
    const auto as = [](Tensor tensor, std::vector<std::int64_t> shape) {
      Tensor result = Tensor::contiguous(Format::f64, std::move(shape));
      result.bytes = tensor.bytes;
      return result;
    };
    merge.inputs = {{"o1", as(first[0], {queries, e})}, {"l1", as(first[1], {queries})}, {"o2", as(second[0], {queries, e})}, {"l2", as(second[1], {queries})}};
    const std::vector<Tensor> merged = run(name, merge);
    // Unit normal data: o and LSE below 8, a few dozen roundings each.
    for (std::int64_t i = 0; i < queries * e; ++i) EXPECT_NEAR(merged[0].get(i), expected[0].get(i), 0x1p-44) << name;
    for (std::int64_t i = 0; i < queries; ++i) EXPECT_NEAR(merged[1].get(i), expected[1].get(i), 0x1p-44) << name;
  }
}

}  // namespace
}  // namespace sumzero
