// One planted kernel for each property, and a correct twin that every property lets pass.
#include "oracle/properties.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>

#include "tests/case_builder.hpp"

namespace sumzero {
namespace {

/// Tail-first rows in double, rounded once: monotone, tied, shift-invariant. `spoil` changes an output afterwards.
using Spoil = std::function<void(const Call&)>;

class Twin final : public Kernel {
 public:
  Twin(const std::string& operator_name, Spoil spoil) : spoil_(std::move(spoil)) { op = operator_name, name = "twin"; }
  bool supports(Format) const override { return true; }
  Contract contract(Format) const override { return {}; }
  void run(const Call& call) const override {
    if (op == "sdpa") {
      Registry::global().kernel_named("sdpa", "fast", Format::f32).run(call);
      return spoil_(call);
    }
    const Tensor& x = call.input.inputs.at("x");
    const std::int64_t rows = x.shape[0], n = x.shape[1];
    for (std::int64_t row = 0; row < rows; ++row) {
      double m = x.get(row * n), s = 0;
      for (std::int64_t j = 1; j < n; ++j) m = std::max(m, x.get(row * n + j));
      for (std::int64_t j = 0; j < n; ++j) s += std::exp(x.get(row * n + j) - m);
      const auto found = call.input.inputs.find("g");
      for (std::int64_t j = 0; j < n; ++j) {
        const double e = std::exp(x.get(row * n + j) - m);
        if (op == "cross_entropy") {
          const bool target = label_of(call.signature, call.input, row) == j;
          const double upstream = found == call.input.inputs.end() ? 1 : found->second.get(row);
          call.outputs[1].set(row * n + j, upstream * (target ? (e - s) / s : e / s));
          if (target) call.outputs[0].set(row, std::log(s) - (x.get(row * n + j) - m));
          continue;
        }
        call.outputs[0].set(row * n + j, op == "softmax" ? e / s : x.get(row * n + j) - m - std::log(s));
        const double g = found == call.input.inputs.end() ? 0 : found->second.get(row * n + j);
        call.outputs[1].set(row * n + j, g * e);  // no VJP, but linear, tied and shift-invariant like one
      }
    }
    spoil_(call);
  }

 private:
  Spoil spoil_;
};

/// Rows with a tie, an order and room for an exact shift.
CaseBuilder softmax_case(const std::string& op = "softmax") {
  return CaseBuilder(op, Format::f32, 2, 4).rows("x", {1, 2, 2, 0.5, -1, 3, 0, 3}).rows("g", {1, 0.5, 0.5, 2, -1, 4, 0.25, 4});
}
CaseBuilder loss_case() {
  return CaseBuilder("cross_entropy", Format::f32, 2, 3).rows("x", {1, 2, 3, 0, 0.5, -2}).labels({2, 0}).tensor("g", Format::f32, {2}, {1, -2}).attribute("reduction", 0);
}

/// One head, two queries, three keys; query 0 does not see key 2, query 1 not key 1.
Case attention_case() {
  Case input;
  input.op = "sdpa";
  input.extents = {1, 1, 1, 2, 3, 1, 1};
  const auto add = [&](const char* name, Format format, std::vector<std::int64_t> shape, std::vector<double> values) {
    Tensor& tensor = input.inputs[name] = Tensor::contiguous(format, std::move(shape));
    for (std::size_t i = 0; i < values.size(); ++i) tensor.set(static_cast<std::int64_t>(i), values[i]);
  };
  add("q", Format::f32, {1, 1, 2, 1}, {1, -2});
  add("k", Format::f32, {1, 1, 3, 1}, {0.5, 2, 1});
  add("v", Format::f32, {1, 1, 3, 1}, {4, -1, 8});
  add("mask", Format::boolean, {1, 1, 2, 3}, {1, 1, 0, 1, 0, 1});
  add("go", Format::f32, {1, 1, 2, 1}, {1, 2});
  return input;
}

std::optional<Breach> breach(const std::string& property_name, const Case& input, const Spoil& spoil) {
  const Property* property = property_named(property_name);
  EXPECT_NE(property, nullptr) << property_name;
  if (!property) return std::nullopt;
  const Signature& signature = reference_of(input.op).signature();
  validate(signature, input);
  const Twin kernel(input.op, spoil);
  const Contract contract = kernel.contract(input.storage);
  EXPECT_TRUE(property->applies(signature, contract));
  const GuardedRun run = run_guarded(signature, kernel, input);
  EXPECT_EQ(run.verdict, Verdict::pass) << run.detail;
  const PropertyContext context{signature, kernel, contract, input, run.outputs,
                                [&](const Case& other, const GuardedOptions& options) { return run_guarded(signature, kernel, other, options); }};
  return property->check(context);
}
const Spoil honest = [](const Call&) {};

Tensor padded(const Tensor& tensor) {
  Tensor result = tensor;
  result.strides = {tensor.shape[1] + 2, 1};
  result.bytes.assign(static_cast<std::size_t>(tensor.shape[0] * (tensor.shape[1] + 2) * tensor.width()), std::byte{0});
  for (std::int64_t i = 0; i < tensor.elements(); ++i) result.set(i, tensor.get(i));
  return result;
}

TEST(Properties, TheTwinPassesAll) {
  Case strided = softmax_case();
  strided.inputs["x"] = padded(strided.inputs["x"]);
  for (const Case& input : {Case(softmax_case()), Case(softmax_case("log_softmax")), Case(loss_case()), strided, attention_case()})
    for (const auto& property : properties()) {
      if (!property->applies(reference_of(input.op).signature(), Contract{})) continue;
      const auto found = breach(property->name, input, honest);
      EXPECT_FALSE(found) << property->name << ": " << (found ? found->message : "");
    }
}

struct Plant {
  std::string property;
  Case input;
  Spoil spoil;
  std::int64_t row, index;  ///< where the breach must be seen; -2: anywhere
};

std::vector<Plant> plants() {
  const auto set = [](std::size_t output, std::int64_t at, double value) {
    return [=](const Call& call) { call.outputs[output].set(at, value); };
  };
  Case strided = softmax_case();
  strided.inputs["x"] = padded(strided.inputs["x"]);
  const auto output = [](const char* name) { return static_cast<std::size_t>(reference_of("sdpa").signature().output(name)); };
  const auto counter = std::make_shared<std::atomic<int>>(0);
  return {
      {"range", softmax_case(), set(0, 5, -0x1p-30), 1, 1},
      {"range", softmax_case(), set(0, 5, 1 + 0x1p-23), 1, 1},
      {"range", softmax_case("log_softmax"), set(0, 2, 0x1p-60), 0, 2},
      {"range", loss_case(), set(0, 1, -1e-9), 1, 0},
      // Row 1 has a negative upstream and target 0: its gradient there is positive.
      {"target sign", loss_case(), set(1, 3, -0.5), 1, 0},
      {"target sign", loss_case(), set(1, 0, -0x1p-100), 0, 0},
      {"ties", softmax_case(), set(0, 2, 0.3), 0, 2},
      {"ties", softmax_case(), set(1, 7, 0.3), 1, 3},
      // Class 3 of row 0 has the smallest logit.
      {"monotone", softmax_case(), set(0, 3, 0.9), -2, -2},
      {"deterministic", softmax_case(), [counter](const Call& call) { call.outputs[0].set(4, 1e-3 + 1e-4 * static_cast<double>((*counter)++)); }, 1, 0},
      {"deterministic", softmax_case(), [](const Call& call) { if (call.threads > 1) call.outputs[0].set(6, 0.125); }, 1, 2},
      {"layout", strided, [](const Call& call) { if (!call.input.inputs.at("x").is_contiguous()) call.outputs[0].set(0, 0.125); }, 0, 0},
      // m + log s rounded in f32 at the size of the logits.
      {"shift", softmax_case("log_softmax"), [](const Call& call) {
         const Tensor& x = call.input.inputs.at("x");
         for (std::int64_t i = 0; i < x.elements(); ++i)
           call.outputs[0].set(i, x.get(i) - static_cast<float>(x.get(i) - call.outputs[0].get(i)));
       }, -2, -2},
      {"linear upstream", softmax_case(), [](const Call& call) { call.outputs[1].set(1, call.outputs[1].get(1) + 0.25); }, 0, 1},
      // The last row takes something from the batch it is in.
      {"row independence", softmax_case(), [](const Call& call) {
         const std::int64_t rows = call.input.extents[0];
         call.outputs[0].set((rows - 1) * 4 + 2, rows > 1 ? 0.5 : 0.25);
       }, 1, 2},
      // Query 0 takes something from key 2, which it does not see, and gives something to it.
      {"hidden keys", attention_case(), [=](const Call& call) { call.outputs[output("o")].set(0, call.input.inputs.at("v").get(2)); }, 0, 0},
      {"hidden keys", attention_case(), [=](const Call& call) {
         Tensor& gk = call.outputs[output("gk")];
         gk.set(2, gk.get(2) + 0x1p-20 * call.input.inputs.at("go").get(0));
       }, 0, 2},
  };
}

TEST(Properties, EachPlantedKernelIsCaught) {
  for (const Plant& plant : plants()) {
    SCOPED_TRACE(plant.property + " of " + plant.input.op);
    const auto found = breach(plant.property, plant.input, plant.spoil);
    ASSERT_TRUE(found);
    if (plant.row != -2) {
      EXPECT_EQ(found->row, plant.row);
      EXPECT_EQ(found->index, plant.index);
    }
    EXPECT_FALSE(found->message.empty());
  }
}

TEST(Properties, EveryPropertyHasAPlantedKernel) {
  for (const auto& property : properties()) {
    const auto all = plants();
    EXPECT_TRUE(std::any_of(all.begin(), all.end(), [&](const Plant& plant) { return plant.property == property->name; })) << property->name;
  }
  EXPECT_EQ(property_named("no such property"), nullptr);
}

// What a kernel does not promise is not asked of it.
TEST(Properties, BindToTheContract) {
  Contract loose;
  loose.deterministic = loose.monotone = false;
  const Signature& softmax = reference_of("softmax").signature();
  for (const std::string name : {"monotone", "deterministic", "layout", "shift", "linear upstream", "row independence"}) {
    EXPECT_TRUE(property_named(name)->applies(softmax, Contract{})) << name;
    EXPECT_FALSE(property_named(name)->applies(softmax, loose)) << name;
  }
  EXPECT_FALSE(property_named("target sign")->applies(softmax, Contract{}));
}

}  // namespace
}  // namespace sumzero
