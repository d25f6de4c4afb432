// Judges one double function of fast/math on a dense sample of its inputs against MPFR with 200 bits.
//
//   math_f64 FUNCTION [COUNT]     exp, expm1, log1p, log, exp_with_planted_bug; COUNT is 2^21 by default
//
// The sample holds the hard places (math_samples.h), then random inputs over every binade. Exit 0: no input
// exceeds the limit that the function's JSON states; 1: some do (the worst is printed in hexadecimal); 2:
// usage. exp_with_planted_bug must exit 1.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/exhaustive/math_f64.cpp"
#include "fast/math/simd.h"
// simd.h first: it chooses the targets.
#include "hwy/foreach_target.h"
#include "tests/exhaustive/math_subjects-inl.h"

#if HWY_ONCE

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "tests/exhaustive/math_error.h"
#include "tests/exhaustive/math_samples.h"

namespace {

using sumzero::fast::test::ExactValue;
using sumzero::fast::test::FindSubject;
using sumzero::fast::test::kPlantedExp;
using sumzero::fast::test::Subject;

constexpr size_t kThreads = 2;

struct Findings {
  double worst = 0;
  double worst_input = 0;
  size_t judged = 0;
  size_t violations = 0;
};

// Judges every kThreads-th input from `first` on; the first thread reports progress.
Findings JudgeShare(const Subject& subject, const std::vector<double>& x, const std::vector<double>& y,
                    size_t first) {
  Findings findings;
  ExactValue exact;
  const size_t step = x.size() / 10 / kThreads * kThreads + kThreads;
  for (size_t i = first; i < x.size(); i += kThreads) {
    const double error = exact.UlpError(subject.exact, x[i], y[i]);
    if (error > findings.worst) {
      findings.worst = error;
      findings.worst_input = x[i];
    }
    ++findings.judged;
    if (!(error <= subject.max_ulp_f64)) ++findings.violations;
    if (i % step == 0) std::fprintf(stderr, "%3d %%\n", static_cast<int>(100 * i / x.size()));
  }
  mpfr_free_cache();
  return findings;
}

}  // namespace

int main(int argc, char** argv) {
  const Subject* subject = argc == 2 || argc == 3 ? FindSubject(argv[1]) : nullptr;
  const size_t count = argc == 3 ? std::strtoull(argv[2], nullptr, 10) : size_t{1} << 21;
  if (subject == nullptr || count == 0) {
    std::fprintf(stderr, "usage: math_f64 exp|expm1|log1p|log|exp_with_planted_bug [COUNT]\n");
    return 2;
  }
  const bool planted = subject->name == kPlantedExp.name;
  const std::vector<double> x =
      sumzero::fast::test::Samples<double>(planted ? "exp" : subject->name, count, 1);
  std::vector<double> y(x.size());
  subject->Run(x.data(), y.data(), x.size());

  std::vector<Findings> shares(kThreads);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] { shares[i] = JudgeShare(*subject, x, y, i); });
  }
  for (std::thread& thread : threads) thread.join();
  Findings total = shares[0];
  for (size_t i = 1; i < kThreads; ++i) {
    if (shares[i].worst > total.worst) {
      total.worst = shares[i].worst;
      total.worst_input = shares[i].worst_input;
    }
    total.judged += shares[i].judged;
    total.violations += shares[i].violations;
  }
  std::printf("%s: largest error found in %zu inputs %.6f ulp at %a, limit %g\n", argv[1], total.judged,
              total.worst, total.worst_input, subject->max_ulp_f64);
  if (total.violations == 0) return 0;
  std::printf("%s: %zu inputs exceed the limit\n", argv[1], total.violations);
  return 1;
}

#endif  // HWY_ONCE
