// GoogleTest assertions for people's own tests.
//
//   sumzero::Subject subject("softmax", sumzero::Format::f32, rows, classes);
//   subject.input("x", x).output("p", my_softmax(x));
//   EXPECT_WITHIN_BOUND(subject);
#pragma once

#include <gtest/gtest.h>

#include "oracle/subject.hpp"

namespace sumzero {

inline ::testing::AssertionResult within_bound(const Subject& subject) {
  const std::vector<Violation> violations = subject.violations();
  if (violations.empty()) return ::testing::AssertionSuccess();
  ::testing::AssertionResult failure = ::testing::AssertionFailure();
  std::size_t shown = 0;
  for (const Violation& violation : violations) {
    if (++shown > 5) break;
    failure << violation.property << ": " << violation.message << '\n';
  }
  if (violations.size() > 5) failure << "and " << violations.size() - 5 << " more\n";
  return failure;
}

}  // namespace sumzero

/// Every output within the bound that follows from the contract, and every exact property kept.
#define EXPECT_WITHIN_BOUND(subject) EXPECT_TRUE(::sumzero::within_bound(subject))
#define ASSERT_WITHIN_BOUND(subject) ASSERT_TRUE(::sumzero::within_bound(subject))
