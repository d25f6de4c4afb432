// Ball<double>: midpoint and radius in double precision, radius rounded outward. The fast, rigorous filter.
//
// Number concept of the reference (every type in this folder has it): construction from an exact double,
// + - * /, exp, expm1, log, log1p, abs, phi2, midpoint_hint, special constants, magnitude bounds. No comparison
// operators: a branch on a computed value would be wrong whenever two enclosures overlap.
//
// Assumption, tested against MPFR in tests/unit/number_test.cpp: double exp, expm1, log and log1p of the C library
// err by at most 1 ulp, that is by at most 2u relative to the result (u = 2^-53). The radii below charge 4u.
#pragma once

#include <cmath>
#include <limits>

namespace sumzero {

struct Ball {
  double mid = 0;
  double rad = 0;

  constexpr Ball() = default;
  /// The exact number; NaN and infinities are special constants (radius 0).
  constexpr explicit Ball(double exact) : mid(exact) {}
  constexpr Ball(double middle, double radius) : mid(middle), rad(radius) {}

  static constexpr double u = 0x1p-53;
  // Radii are sums of at most eight non-negative terms, evaluated with rounding to nearest: each rounding loses at
  // most u relatively, products at most an absolute 2^-1075 more. The factor and the floor cover both.
  static constexpr double outward = 1 + 0x1p-49;
  static constexpr double floor = 0x1p-1070;
  static constexpr double unknown = std::numeric_limits<double>::infinity();
};

inline double midpoint_hint(const Ball& a) { return a.mid; }
inline bool is_special(const Ball& a) { return a.rad == 0 && !std::isfinite(a.mid); }
/// Upper and lower bounds of |a|.
inline double magnitude_upper(const Ball& a) { return (std::fabs(a.mid) + a.rad) * Ball::outward; }
inline double magnitude_lower(const Ball& a) {
  const double low = (std::fabs(a.mid) - a.rad) * (1 - 0x1p-49);
  return low > 0 ? low : 0;
}
inline bool is_exact_zero(const Ball& a) { return a.mid == 0 && a.rad == 0; }

inline Ball operator-(const Ball& a) { return {-a.mid, a.rad}; }

/// The rounding error of the midpoint is known exactly (two-sum), so exact sums keep their radius: x - x = {0, 0}.
inline Ball operator+(const Ball& a, const Ball& b) {
  const double sum = a.mid + b.mid;
  const double part = sum - a.mid;
  const double error = (a.mid - (sum - part)) + (b.mid - part);
  return {sum, (a.rad + b.rad + std::fabs(error)) * Ball::outward};
}
inline Ball operator-(const Ball& a, const Ball& b) { return a + (-b); }

inline Ball operator*(const Ball& a, const Ball& b) {
  const double product = a.mid * b.mid;
  const double radius = std::fabs(a.mid) * b.rad + a.rad * (std::fabs(b.mid) + b.rad) + std::fabs(product) * Ball::u;
  return {product, radius * Ball::outward + Ball::floor};
}

/// |a/b - qm| <= (ra + |qm| rb) / (|mb| - rb) for the exact quotient qm of the midpoints. A small divisor magnifies what
/// underflows in |qm| and in |qm| rb: the floor enters the numerator too.
inline Ball operator/(const Ball& a, const Ball& b) {
  const double quotient = a.mid / b.mid;
  const double low = std::fabs(b.mid) - b.rad * Ball::outward;
  if (!(low > 0)) return {quotient, Ball::unknown};
  const double scaled = std::fabs(quotient);
  const double shaken = b.rad > 0 ? (scaled + Ball::floor) * b.rad * (1 + 4 * Ball::u) + Ball::floor : 0;
  const double radius = (a.rad + shaken) / (low * (1 - 4 * Ball::u)) + scaled * Ball::u;
  return {quotient, radius * Ball::outward + Ball::floor};
}

inline Ball abs(const Ball& a) { return {std::fabs(a.mid), a.rad}; }

/// e^(m+t) - e^m <= e^m (e^|t| - 1) and e^|t| - 1 <= |t| + t^2 for |t| <= 1.
inline Ball exp(const Ball& a) {
  const double value = std::exp(a.mid);
  const double growth = a.rad <= 1 ? a.rad + a.rad * a.rad : std::expm1(a.rad);
  return {value, value * (growth + 4 * Ball::u * (1 + growth)) * Ball::outward + Ball::floor};
}

/// Derivative e^m, as for exp.
inline Ball expm1(const Ball& a) {
  const double value = std::expm1(a.mid);
  const double growth = a.rad <= 1 ? a.rad + a.rad * a.rad : std::expm1(a.rad);
  return {value, ((value + 1 + 4 * Ball::u) * growth + std::fabs(value) * 4 * Ball::u) * Ball::outward + Ball::floor};
}

/// Derivative at most 1/(m - r).
inline Ball log(const Ball& a) {
  const double low = (a.mid - a.rad) * (1 - 2 * Ball::u);
  if (!(low > 0)) return {0, Ball::unknown};
  const double value = std::log(a.mid);
  return {value, (a.rad / low + std::fabs(value) * 4 * Ball::u) * Ball::outward + Ball::floor};
}
/// Near -1 the rounding of m - r is not small against 1 + (m - r).
inline Ball log1p(const Ball& a) {
  const double end = a.mid - a.rad, lost = a.rad > 0 ? 2 * Ball::u * std::fabs(end) : 0;
  const double low = ((1 + end) - lost) * (1 - 4 * Ball::u);
  if (!(low > 0)) return {0, Ball::unknown};
  const double value = std::log1p(a.mid);
  return {value, (a.rad / low + std::fabs(value) * 4 * Ball::u) * Ball::outward + Ball::floor};
}

/// phi2(x) = e^x - 1 - x without cancellation. For |x| <= 1/2 the Taylor sum x^2/2 (1 + x/3 (1 + ...)) to order 18
/// has truncation error at most 2 |x|^19/19! <= 4e-23 x^2; its nested factors lie in [1/2, 3/2], so evaluation in
/// double errs by at most 60 u relative. The derivative e^x - 1 is at most 2 (|x| + r) on the ball.
inline Ball phi2(const Ball& a) {
  const double reach = std::fabs(a.mid) + a.rad;
  if (!(reach <= 0.5)) return expm1(a) - a;
  double factor = 1;
  for (int k = 18; k >= 3; --k) factor = 1 + a.mid / k * factor;
  const double value = a.mid * a.mid * 0.5 * factor;
  return {value, (value * 64 * Ball::u + 2 * reach * a.rad) * Ball::outward + (a.mid == 0 && a.rad == 0 ? 0 : Ball::floor)};
}

}  // namespace sumzero
