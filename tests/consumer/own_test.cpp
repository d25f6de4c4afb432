// The assertion inside somebody's own GoogleTest suite.
#include <cmath>
#include <vector>

#include <oracle/gtest.hpp>

namespace {

constexpr std::size_t rows = 3, classes = 40;

std::vector<float> logits() {
  std::vector<float> x(rows * classes);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 20.0f * std::sin(static_cast<float>(i * i));
  return x;
}

std::vector<float> softmax(const std::vector<float>& x) {
  std::vector<float> p(x.size());
  for (std::size_t row = 0; row < rows; ++row) {
    float m = x[row * classes], s = 0;
    for (std::size_t j = 0; j < classes; ++j) m = std::max(m, x[row * classes + j]);
    for (std::size_t j = 0; j < classes; ++j) s += p[row * classes + j] = std::exp(x[row * classes + j] - m);
    for (std::size_t j = 0; j < classes; ++j) p[row * classes + j] /= s;
  }
  return p;
}

TEST(OwnSoftmax, StaysWithinTheBound) {
  const std::vector<float> x = logits(), p = softmax(x);
  sumzero::Subject subject("softmax", sumzero::Format::f32, rows, classes);
  subject.input("x", std::span<const float>(x)).output("p", std::span<const float>(p));
  EXPECT_WITHIN_BOUND(subject);
}

TEST(OwnSoftmax, AWrongEntryIsNoticed) {
  const std::vector<float> x = logits();
  std::vector<float> p = softmax(x);
  p[classes + 7] *= 1.0001f;
  sumzero::Subject subject("softmax", sumzero::Format::f32, rows, classes);
  subject.input("x", std::span<const float>(x)).output("p", std::span<const float>(p));
  const auto violations = subject.violations();
  ASSERT_FALSE(violations.empty());
  EXPECT_EQ(violations[0].row, 1);
}

}  // namespace
