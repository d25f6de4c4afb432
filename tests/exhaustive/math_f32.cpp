// Judges one float function of fast/math on all 2^32 inputs.
//
//   math_f32 FUNCTION        exp, expm1, log1p, log, exp_non_positive, exp_with_planted_bug
//
// Exit 0: no input exceeds the limit that the function's JSON states; 1: some do (the worst is printed in
// hexadecimal); 2: usage. exp_non_positive is compared bit for bit with exp wherever it is defined.
// exp_with_planted_bug must exit 1.
//
// The reference is the C library's double function, whose documented error is below 2 ulp of double: at most
// 2^-28 ulp of float (math_error.h), and it is exact where the test needs it to be, at zeros, infinities and
// NaN.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/exhaustive/math_f32.cpp"
#include "fast/math/simd.h"
// simd.h first: it chooses the targets.
#include "hwy/foreach_target.h"
#include "tests/exhaustive/math_subjects-inl.h"

#if HWY_ONCE

#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/exhaustive/math_error.h"

namespace {

using sumzero::fast::test::FindSubject;
using sumzero::fast::test::Subject;

constexpr uint64_t kInputs = uint64_t{1} << 32;
constexpr uint64_t kBlock = uint64_t{1} << 16;
constexpr unsigned kThreads = 2;

struct Findings {
  double worst = 0;
  uint32_t worst_input = 0;
  uint64_t judged = 0;
  uint64_t violations = 0;
  uint64_t descents = 0;  // neighbouring inputs whose results are in the wrong order

  void Judge(double error, double limit, uint32_t input) {
    ++judged;
    if (error > worst) {
      worst = error;
      worst_input = input;
    }
    if (!(error <= limit)) ++violations;
  }

  void Merge(const Findings& other) {
    if (other.worst > worst) {
      worst = other.worst;
      worst_input = other.worst_input;
    }
    judged += other.judged;
    violations += other.violations;
    descents += other.descents;
  }
};

void JudgeAccuracy(const Subject& subject, const std::vector<float>& in, const std::vector<float>& out,
                   Findings& findings) {
  for (size_t i = 0; i < in.size(); ++i) {
    const double exact = subject.reference(static_cast<double>(in[i]));
    const double error = sumzero::fast::test::UlpError(out[i], exact);
    findings.Judge(error, subject.max_ulp_f32, std::bit_cast<uint32_t>(in[i]));
    // Every function here increases; a block holds one sign only, and negative inputs descend.
    if (i > 0 && (in[i] > in[i - 1] ? out[i] < out[i - 1] : out[i] > out[i - 1])) ++findings.descents;
  }
}

void JudgeBits(const std::vector<float>& in, const std::vector<float>& out,
               const std::vector<float>& expected, Findings& findings) {
  for (size_t i = 0; i < in.size(); ++i) {
    if (in[i] > 0) continue;
    const bool same = std::bit_cast<uint32_t>(out[i]) == std::bit_cast<uint32_t>(expected[i]);
    findings.Judge(same ? 0 : sumzero::fast::test::kWrong, 0, std::bit_cast<uint32_t>(in[i]));
  }
}

Findings JudgeAll(const Subject& subject) {
  const bool compare_bits = &subject == FindSubject("exp_non_positive");
  const Subject& sound = *FindSubject("exp");
  std::atomic<uint64_t> next = 0;
  std::mutex mutex;
  Findings total;
  auto work = [&] {
    std::vector<float> in(kBlock), out(kBlock), expected(kBlock);
    Findings mine;
    for (uint64_t first; (first = next.fetch_add(kBlock)) < kInputs;) {
      for (uint64_t i = 0; i < kBlock; ++i) in[i] = std::bit_cast<float>(static_cast<uint32_t>(first + i));
      subject.Run(in.data(), out.data(), kBlock);
      if (compare_bits) {
        sound.Run(in.data(), expected.data(), kBlock);
        JudgeBits(in, out, expected, mine);
      } else {
        JudgeAccuracy(subject, in, out, mine);
      }
      if (first % (kInputs / 16) == 0) {
        std::fprintf(stderr, "%3d %%\n", static_cast<int>(100 * first / kInputs));
      }
    }
    const std::lock_guard lock(mutex);
    total.Merge(mine);
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  return total;
}

}  // namespace

int main(int argc, char** argv) {
  const Subject* subject = argc == 2 ? FindSubject(argv[1]) : nullptr;
  if (subject == nullptr) {
    std::fprintf(stderr, "usage: math_f32 exp|expm1|log1p|log|exp_non_positive|exp_with_planted_bug\n");
    return 2;
  }
  const Findings findings = JudgeAll(*subject);
  const auto input = std::bit_cast<float>(findings.worst_input);
  std::printf("%s: %llu inputs, largest error %.6f ulp at 0x%08x (%a), limit %g; %llu descents\n", argv[1],
              static_cast<unsigned long long>(findings.judged), findings.worst, findings.worst_input,
              static_cast<double>(input), subject->max_ulp_f32,
              static_cast<unsigned long long>(findings.descents));
  if (findings.violations == 0) return 0;
  std::printf("%s: %llu inputs exceed the limit\n", argv[1],
              static_cast<unsigned long long>(findings.violations));
  return 1;
}

#endif  // HWY_ONCE
