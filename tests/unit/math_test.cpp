// fast/math: special values, accuracy against MPFR, equal bits on every target, no influence of neighbour
// lanes, and the proof that these checks notice a planted bug.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/unit/math_test.cpp"
#include "fast/math/simd.h"
// simd.h first: it chooses the targets.
#include "hwy/foreach_target.h"
#include "tests/exhaustive/math_subjects-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sumzero::fast::test::HWY_NAMESPACE {

// (a b + c, c - a b, a b rounded and then + c) in that order.
template <typename T>
void MultiplyAdd(const T* abc, T* out) {
  const hn::ScalableTag<T> d;
  const auto a = hn::Set(d, abc[0]), b = hn::Set(d, abc[1]), c = hn::Set(d, abc[2]);
  out[0] = hn::GetLane(math::FusedMulAdd(a, b, c));
  out[1] = hn::GetLane(math::NegFusedMulAdd(a, b, c));
  out[2] = hn::GetLane(hn::Add(hn::Mul(a, b), c));
}
void MultiplyAddF32(const float* abc, float* out) {
  MultiplyAdd(abc, out);
}
void MultiplyAddF64(const double* abc, double* out) {
  MultiplyAdd(abc, out);
}

}  // namespace sumzero::fast::test::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/exhaustive/math_error.h"
#include "tests/exhaustive/math_samples.h"

namespace sumzero::fast::test {
namespace {

HWY_EXPORT(MultiplyAddF32);
HWY_EXPORT(MultiplyAddF64);

template <typename T>
using BitsOf = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

template <typename T>
BitsOf<T> Bits(T value) {
  return std::bit_cast<BitsOf<T>>(value);
}

// Runs on one target until the end of the scope.
class OnTarget {
 public:
  explicit OnTarget(int64_t target) { Choose(target); }
  OnTarget(const OnTarget&) = delete;
  OnTarget& operator=(const OnTarget&) = delete;
  ~OnTarget() { Choose(0); }

 private:
  static void Choose(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

// The compiled targets that this machine can run; SCALAR is always one of them.
std::vector<int64_t> Targets() {
  std::vector<int64_t> targets = {HWY_SCALAR};
  for (const int64_t target : {HWY_AVX2, HWY_AVX3}) {
    if ((hwy::SupportedTargets() & HWY_TARGETS & target) != 0) targets.push_back(target);
  }
  return targets;
}

// The function on a vector full of the same value.
template <typename T>
T Call(const Subject& subject, T x) {
  T in[16], out[16];
  std::fill(in, in + 16, x);
  subject.Run(in, out, 16);
  return out[0];
}

template <typename T>
std::vector<T> CallAll(const Subject& subject, const std::vector<T>& x) {
  std::vector<T> out(x.size());
  subject.Run(x.data(), out.data(), x.size());
  return out;
}

template <typename T>
struct Worst {
  double error = 0;
  T input = 0;
};

template <typename T>
Worst<T> LargestError(const Subject& subject, const std::vector<T>& x) {
  const std::vector<T> y = CallAll(subject, x);
  ExactValue exact;
  Worst<T> worst;
  for (size_t i = 0; i < x.size(); ++i) {
    const double error = exact.UlpError(subject.exact, x[i], y[i]);
    if (error > worst.error) worst = {error, x[i]};
  }
  return worst;
}

template <typename T>
size_t DifferentBits(const std::vector<T>& a, const std::vector<T>& b) {
  size_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += Bits(a[i]) != Bits(b[i]);
  return count;
}

template <typename T>
class MathTest : public testing::Test {};
using Formats = testing::Types<float, double>;
TYPED_TEST_SUITE(MathTest, Formats);

TEST(MathTargets, AreTheThreeThatFuseMultiplyAdd) {
  EXPECT_EQ(HWY_TARGETS & ~(HWY_AVX3 | HWY_AVX2 | HWY_SCALAR), 0);
  EXPECT_NE(HWY_TARGETS & HWY_SCALAR, 0);
#if HWY_ARCH_X86_64
  EXPECT_EQ(HWY_TARGETS, HWY_AVX3 | HWY_AVX2 | HWY_SCALAR);
#endif
}

TYPED_TEST(MathTest, MultiplyAddRoundsOnceOnlyWhereWritten) {
  using T = TypeParam;
  // (1 + e)(1 - e) - 1 = -e^2 with one rounding. The product alone rounds to 1, so two roundings give 0. In
  // the same way 1 - (1 + e)(1 - e) = e^2.
  const T e = std::numeric_limits<T>::epsilon();
  const T abc[3] = {1 + e, 1 - e, -1}, negated[3] = {1 + e, 1 - e, 1};
  for (const int64_t target : Targets()) {
    const OnTarget on(target);
    T out[3], negated_out[3];
    if constexpr (sizeof(T) == 4) {
      HWY_DYNAMIC_DISPATCH(MultiplyAddF32)(abc, out);
      HWY_DYNAMIC_DISPATCH(MultiplyAddF32)(negated, negated_out);
    } else {
      HWY_DYNAMIC_DISPATCH(MultiplyAddF64)(abc, out);
      HWY_DYNAMIC_DISPATCH(MultiplyAddF64)(negated, negated_out);
    }
    EXPECT_EQ(out[0], -e * e) << hwy::TargetName(target);
    EXPECT_EQ(negated_out[1], e * e) << hwy::TargetName(target);
    EXPECT_EQ(out[2], 0) << hwy::TargetName(target) << ": compile with -ffp-contract=off";
  }
}

TYPED_TEST(MathTest, SpecialValues) {
  using T = TypeParam;
  using Limits = std::numeric_limits<T>;
  const T infinity = Limits::infinity(), tiny = Limits::denorm_min(), huge = Limits::max();
  struct Row {
    const char* function;
    T x, y;
  };
  const Row rows[] = {
      {"exp", 0, 1},
      {"exp", T{-0.0}, 1},
      {"exp", tiny, 1},
      {"exp", -tiny, 1},
      {"exp", infinity, infinity},
      {"exp", huge, infinity},
      {"exp", -infinity, 0},
      {"exp", -huge, 0},
      {"exp_non_positive", 0, 1},
      {"exp_non_positive", T{-0.0}, 1},
      {"exp_non_positive", -tiny, 1},
      {"exp_non_positive", -infinity, 0},
      {"exp_non_positive", -huge, 0},
      {"expm1", 0, 0},
      {"expm1", T{-0.0}, T{-0.0}},
      {"expm1", tiny, tiny},
      {"expm1", -tiny, -tiny},
      {"expm1", infinity, infinity},
      {"expm1", huge, infinity},
      {"expm1", -infinity, -1},
      {"expm1", -huge, -1},
      {"log1p", 0, 0},
      {"log1p", T{-0.0}, T{-0.0}},
      {"log1p", tiny, tiny},
      {"log1p", -tiny, -tiny},
      {"log1p", -1, -infinity},
      {"log1p", infinity, infinity},
      {"log", 1, 0},
      {"log", 0, -infinity},
      {"log", T{-0.0}, -infinity},
      {"log", infinity, infinity},
  };
  for (const int64_t target : Targets()) {
    const OnTarget on(target);
    for (const Row& row : rows) {
      const T y = Call(*FindSubject(row.function), row.x);
      EXPECT_EQ(Bits(y), Bits(row.y))
          << hwy::TargetName(target) << " " << row.function << "(" << row.x << ") = " << y;
    }
    const T below_minus_one = std::nextafter(T{-1}, T{-2});
    for (const T x : {below_minus_one, T{-2}, -huge, -infinity}) {
      EXPECT_TRUE(std::isnan(Call(*FindSubject("log1p"), x))) << x;
    }
    for (const T x : {-tiny, -Limits::min(), T{-1}, -huge, -infinity}) {
      EXPECT_TRUE(std::isnan(Call(*FindSubject("log"), x))) << x;
    }
  }
}

TYPED_TEST(MathTest, NanKeepsSignAndPayload) {
  using T = TypeParam;
  const BitsOf<T> quiet = Bits(std::numeric_limits<T>::quiet_NaN());
  const BitsOf<T> signalling = Bits(std::numeric_limits<T>::signaling_NaN());
  const BitsOf<T> quiet_bit = BitsOf<T>{1} << (std::numeric_limits<T>::digits - 2);
  const BitsOf<T> sign = BitsOf<T>{1} << (8 * sizeof(T) - 1);
  // Payloads whose low bits would overflow into or out of the exponent field if they reached the scaling.
  for (const BitsOf<T> payload : {0, 1, 0x55, 0xff, 0x1ff, 0x7ff, 0xfff}) {
    for (const BitsOf<T> bits : {quiet | payload, quiet | payload | sign, signalling | payload | 1}) {
      for (const int64_t target : Targets()) {
        const OnTarget on(target);
        for (const char* name : {"exp", "exp_non_positive", "expm1", "log1p", "log"}) {
          T in[16], out[16];
          std::fill(in, in + 16, std::bit_cast<T>(bits));
          FindSubject(name)->Run(in, out, 16);
          EXPECT_EQ(Bits(out[0]), bits | quiet_bit)
              << hwy::TargetName(target) << " " << name << std::hex << " " << bits;
        }
      }
    }
  }
}

TYPED_TEST(MathTest, LargestErrorIsWithinTheLimit) {
  using T = TypeParam;
  for (const Subject& subject : kSubjects) {
    for (const int64_t target : Targets()) {
      const OnTarget on(target);
      // SCALAR is slow, and its bits are compared on more inputs below.
      const size_t count = target == HWY_SCALAR ? 1 << 12 : 1 << 16;
      const Worst<T> worst = LargestError(subject, Samples<T>(subject.name, count, 1));
      std::printf("%-6s %s %-6s largest error %.4f ulp at %a, limit %g\n", hwy::TargetName(target),
                  sizeof(T) == 4 ? "f32" : "f64", std::string(subject.name).c_str(), worst.error,
                  static_cast<double>(worst.input), subject.MaxUlp(T{}));
      EXPECT_LE(worst.error, subject.MaxUlp(T{})) << subject.name;
      // Nobody computes these functions without rounding: an error below half an ulp means that nothing was
      // measured.
      EXPECT_GE(worst.error, 0.5) << subject.name;
    }
  }
}

TYPED_TEST(MathTest, PlantedBugExceedsTheLimit) {
  using T = TypeParam;
  const Worst<T> worst = LargestError(kPlantedExp, Samples<T>("exp", 1 << 14, 1));
  EXPECT_GT(worst.error, kPlantedExp.MaxUlp(T{}));
}

TYPED_TEST(MathTest, ExpNonPositiveHasTheBitsOfExp) {
  using T = TypeParam;
  std::vector<T> x = Samples<T>("exp", 1 << 20, 2);
  for (T& value : x) value = -std::fabs(value);
  const Subject& exp = *FindSubject("exp");
  EXPECT_EQ(DifferentBits(CallAll(exp, x), CallAll(kExpNonPositive, x)), 0u);
  EXPECT_GT(DifferentBits(CallAll(kPlantedExp, x), CallAll(kExpNonPositive, x)), 0u)
      << "the comparison sees nothing";
}

TYPED_TEST(MathTest, BitsAreEqualOnEveryTarget) {
  using T = TypeParam;
  for (const char* name : {"exp", "expm1", "log1p", "log"}) {
    const Subject& subject = *FindSubject(name);
    // Every kind of bit pattern, NaN included, and the inputs where the function varies.
    std::vector<T> x = Samples<T>(name, 1 << 19, 3);
    std::mt19937_64 random(4);
    for (size_t i = 0; i < x.size(); i += 4) x[i] = std::bit_cast<T>(static_cast<BitsOf<T>>(random()));
    std::vector<T> scalar;
    {
      const OnTarget on(HWY_SCALAR);
      scalar = CallAll(subject, x);
    }
    for (const int64_t target : Targets()) {
      if (target == HWY_SCALAR) continue;
      const OnTarget on(target);
      EXPECT_EQ(DifferentBits(scalar, CallAll(subject, x)), 0u) << name << " on " << hwy::TargetName(target);
    }
  }
}

TYPED_TEST(MathTest, NeighbourLanesHaveNoInfluence) {
  using T = TypeParam;
  using Limits = std::numeric_limits<T>;
  const T hostile[] = {Limits::quiet_NaN(),
                       Limits::infinity(),
                       -Limits::infinity(),
                       Limits::denorm_min(),
                       -Limits::denorm_min(),
                       Limits::max(),
                       Limits::lowest(),
                       Limits::min() / 2,
                       T{-0.0},
                       T{-1},
                       Limits::signaling_NaN()};
  for (const char* name : {"exp", "exp_non_positive", "expm1", "log1p", "log"}) {
    const Subject& subject = *FindSubject(name);
    // Every 64th sample, hard and random ones.
    std::vector<T> x;
    const std::vector<T> all = Samples<T>(name == std::string("exp_non_positive") ? "exp" : name, 1 << 14, 5);
    for (size_t i = 0; i < all.size(); i += 64) x.push_back(all[i]);
    for (const int64_t target : Targets()) {
      const OnTarget on(target);
      for (size_t i = 0; i < x.size(); ++i) {
        const T alone = Call(subject, x[i]);
        for (const T neighbour : hostile) {
          T in[16], out[16];
          std::fill(in, in + 16, neighbour);
          const size_t lane = i % 16;
          in[lane] = x[i];
          subject.Run(in, out, 16);
          ASSERT_EQ(Bits(out[lane]), Bits(alone)) << name << "(" << x[i] << ") beside " << neighbour;
        }
      }
    }
  }
}

}  // namespace
}  // namespace sumzero::fast::test

#endif  // HWY_ONCE
