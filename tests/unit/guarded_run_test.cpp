// What the guard sees: kernels planted to break each memory rule, and a twin that breaks none.
#include "oracle/kernel/guarded_run.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "tests/case_builder.hpp"

namespace sumzero {
namespace {

using Misdeed = std::function<void(const Call&)>;

/// Right in every entry (all logits are equal: p = 1/n), then one misdeed.
class Planted final : public Kernel {
 public:
  explicit Planted(Misdeed misdeed) : misdeed_(std::move(misdeed)) { op = "softmax", name = "planted", outputs = {"p"}; }
  bool supports(Format) const override { return true; }
  Contract contract(Format) const override { return {}; }
  void run(const Call& call) const override {
    Tensor& p = call.outputs[0];
    for (std::int64_t i = 0; i < p.elements(); ++i) p.set(i, 1.0 / static_cast<double>(p.shape[1]));
    misdeed_(call);
  }

 private:
  Misdeed misdeed_;
};

GuardedRun run(const Misdeed& misdeed, Format format = Format::f32, std::int64_t padding = 0) {
  const Case input = CaseBuilder("softmax", format, 2, 4).rows("x", Numbers(8, 1.0));
  return run_guarded(reference_of("softmax").signature(), Planted(misdeed), input, {1, padding});
}

class Guard : public testing::TestWithParam<Format> {};

TEST_P(Guard, AHonestKernelPasses) {
  for (const std::int64_t padding : {0, 5}) {
    const GuardedRun result = run([](const Call&) {}, GetParam(), padding);
    EXPECT_EQ(result.verdict, Verdict::pass) << result.detail;
    EXPECT_EQ(result.outputs[0].get(7), 0.25);
    EXPECT_TRUE(result.outputs[1].bytes.empty());  // gx is not offered
  }
}

TEST_P(Guard, WritesOutsideAreSeen) {
  // One element before the first row, one after the last, and in the padding between rows.
  const auto write_at = [](std::int64_t element) {
    return [element](const Call& call) {
      Tensor& p = call.outputs[0];
      store_element(p.bytes.data() + (p.offset + element) * p.width(), p.format, 0.0);
    };
  };
  for (const std::int64_t element : {-1, 8, -20, 30}) {
    const GuardedRun result = run(write_at(element), GetParam());
    EXPECT_EQ(result.verdict, Verdict::out_of_bounds) << element;
    EXPECT_NE(result.detail.find(std::to_string(element) + " elements from the start"), std::string::npos) << result.detail;
  }
  // Rows of 4 with 5 between them: element 6 belongs to nobody.
  EXPECT_EQ(run(write_at(6), GetParam(), 5).verdict, Verdict::out_of_bounds);
  EXPECT_EQ(run(write_at(9), GetParam(), 5).verdict, Verdict::pass);  // the second row starts there
}

TEST_P(Guard, AMutatedInputIsSeen) {
  const GuardedRun result = run([](const Call& call) { const_cast<Case&>(call.input).inputs.at("x").bytes[3] ^= std::byte{1}; }, GetParam());
  EXPECT_EQ(result.verdict, Verdict::input_mutated);
  EXPECT_NE(result.detail.find("'x'"), std::string::npos);
}

TEST_P(Guard, AnUnwrittenElementIsSeen) {
  // Put back the byte pattern: the guard zone still shows it, but for the first run on one-byte numbers, where it is NaN.
  const GuardedRun result = run(
      [](const Call& call) {
        Tensor& p = call.outputs[0];
        std::memcpy(p.bytes.data() + p.position(6) * p.width(), p.bytes.data(), static_cast<std::size_t>(p.width()));
        if (p.width() == 1 && p.bytes[0] != p.bytes[1]) p.bytes[static_cast<std::size_t>(p.position(6))] = std::byte{0x7f};
      },
      GetParam());
  EXPECT_EQ(result.verdict, Verdict::not_fully_written);
  EXPECT_EQ(result.output, 0);
  EXPECT_EQ(result.row, 1);
  EXPECT_EQ(result.index, 2);
}

// A kernel may return NaN: the pattern is no NaN that arithmetic makes.
TEST_P(Guard, AWrittenNaNIsNoPattern) {
  EXPECT_EQ(run([](const Call& call) { call.outputs[0].set(6, std::nan("")); }, GetParam()).verdict, Verdict::pass);
}

INSTANTIATE_TEST_SUITE_P(Formats, Guard, testing::ValuesIn(floating_formats),
                         [](const auto& info) { return std::string(name(info.param)); });

// One-byte numbers: a returned number equal to one of the two patterns is no unwritten element, whichever it is.
TEST(GuardedRun, EveryCodeOfAnEightBitFormatMayBeReturned) {
  for (const Format format : {Format::e4m3, Format::e5m2})
    for (unsigned code = 0; code <= 0xff; ++code) {
      const GuardedRun result = run([code](const Call& call) {
        Tensor& p = call.outputs[0];
        p.bytes[static_cast<std::size_t>(p.position(6))] = static_cast<std::byte>(code);
      }, format);
      EXPECT_EQ(result.verdict, Verdict::pass) << code << ' ' << result.detail;
    }
}

// Two NaNs behind the last element, the commonest way to write too much: a row of special values that is one too long.
TEST(GuardedRun, NaNsBesideTheElementsAreSeen) {
  for (const Format format : floating_formats) {
    const GuardedRun result = run([](const Call& call) {
      Tensor& p = call.outputs[0];
      for (std::int64_t beyond = 1; beyond <= 2; ++beyond)
        store_element(p.bytes.data() + (p.position(p.elements() - 1) + beyond) * p.width(), p.format, std::nan(""));
    }, format);
    EXPECT_EQ(result.verdict, Verdict::out_of_bounds) << name(format);
  }
}

TEST(GuardedRun, RefusalsAndErrors) {
  const GuardedRun refused = run([](const Call&) { throw Refused("rows of 4 are beneath me"); });
  EXPECT_EQ(refused.verdict, Verdict::refused);
  EXPECT_EQ(refused.detail, "rows of 4 are beneath me");
  EXPECT_THROW(run([](const Call&) { throw std::runtime_error("broken"); }), std::runtime_error);
  EXPECT_EQ(run([](const Call&) { throw Crashed("gone"); }).verdict, Verdict::crashed);
  EXPECT_EQ(run([](const Call&) { throw TimedOut("asleep"); }).verdict, Verdict::timed_out);
  EXPECT_EQ(run([](const Call&) { throw InputMutated("changed"); }).verdict, Verdict::input_mutated);
}

}  // namespace
}  // namespace sumzero
