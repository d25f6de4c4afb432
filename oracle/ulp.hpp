// The error of a computed number, defined once.
//
// ULP error = |computed - exact| / gap(exact), exact unrounded. gap is Harrison's: the distance of the two adjacent
// numbers of the format that straddle the exact value (at a power of two the smaller one), never below the smallest
// subnormal; above the largest finite number gaps go on as if the exponent were unbounded. 2^(max_exponent+1) stands for
// infinity where exactly one side is infinite (J. Harrison, A machine-checked theory of floating point arithmetic,
// TPHOLs 1999; definitions compared in J.-M. Muller, On the definition of ulp(x), INRIA RR-5504).
//
// A format without infinity (e4m3) saturates: every finite exact value beyond its largest number means
// that number (`attainable`), which is what a correct conversion stores. Saturation is a contraction, so bounds of the
// unsaturated value hold.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "reference/format.hpp"

namespace sumzero {

/// Gap of the format at a positive magnitude. Strictly between powers of two it is the spacing of the binade; at a power
/// of two the spacing below it.
inline double gap(Format format, double magnitude) {
  const FormatTraits t = traits(format);
  const int lowest = t.min_exponent - t.precision + 1;
  if (!(magnitude > 0)) return power_of_two(lowest);
  int exponent;
  const double fraction = std::frexp(magnitude, &exponent);  // magnitude = fraction 2^exponent, fraction in [1/2, 1)
  int spacing = exponent - t.precision;                      // numbers in [2^(exponent-1), 2^exponent)
  if (fraction == 0.5) --spacing;
  if (!std::isfinite(magnitude)) spacing = t.max_exponent + 1 - t.precision;
  return power_of_two(spacing < lowest ? lowest : spacing);
}

/// The value that stands for `computed` in a difference: infinities become +-2^(max_exponent+1). For f64 that number
/// is not a double; callers in f64 treat an infinity before they subtract.
inline double stand_in(Format format, double computed) {
  if (!std::isinf(computed) || format == Format::f64) return computed;
  return std::copysign(power_of_two(traits(format).max_exponent + 1), computed);
}

/// Does the exact magnitude round to infinity (half a gap above the largest finite number, ties included)? Never where the
/// format saturates.
inline bool rounds_to_infinity(Format format, double magnitude) {
  if (saturates(format)) return false;
  const double largest = largest_finite(format);
  if (format == Format::f64) return std::isinf(magnitude);
  return magnitude >= largest + 0.5 * power_of_two(traits(format).max_exponent + 1 - traits(format).precision);
}

/// Position of a number of the format on the integer line: neighbours differ by 1, both zeros are 0.
inline std::int64_t ordinal(Format format, double value) {
  const FormatTraits t = traits(format);
  if (value == 0) return 0;
  const double magnitude = std::fabs(value);
  std::int64_t position;
  if (std::isinf(value)) {
    position = (static_cast<std::int64_t>(t.max_exponent - t.min_exponent) + 2) << (t.precision - 1);
  } else {
    int exponent;
    std::frexp(magnitude, &exponent);
    int binade = exponent - 1;
    if (binade < t.min_exponent) binade = t.min_exponent;
    // In units of the binade's spacing, plus the 2^(precision-1) codes of each lower binade.
    const auto units = static_cast<std::int64_t>(std::ldexp(magnitude, t.precision - 1 - binade));
    position = units + (static_cast<std::int64_t>(binade - t.min_exponent) << (t.precision - 1));
  }
  return value < 0 ? -position : position;
}

/// Number of representable steps between the computed number and the exact one rounded to nearest.
inline double grid_distance(Format format, double computed, double exact) {
  if (std::isnan(computed) || std::isnan(exact)) return std::numeric_limits<double>::infinity();
  const double a = static_cast<double>(ordinal(format, computed));
  const double b = static_cast<double>(ordinal(format, round_to(format, exact)));
  return std::fabs(a - b);
}

/// The exact value that a result of this format is compared with; N is any number type of the reference.
template <class N>
N attainable(Format format, const N& exact) {
  if (!saturates(format) || is_special(exact) || !(magnitude_lower(exact) >= largest_finite(format))) return exact;
  return N(std::copysign(largest_finite(format), midpoint_hint(exact)));
}

/// What the error of the last store is relative to: a saturated result loses no more than its own rounding. The factor
/// covers the product of that rounding and an earlier one to f32.
inline double stored_magnitude(Format format, double magnitude) {
  return saturates(format) ? std::fmin(magnitude, largest_finite(format) * (1 + 0x1p-40)) : magnitude;
}

/// Magnitudes and radii are reported as doubles, and no double lies below the smallest subnormal of f64: near it,
/// differences are measured this many times larger.
inline double magnification(Format format, double magnitude) {
  return format == Format::f64 && magnitude < 0x1p-900 ? 0x1p100 : 1.0;
}

/// Bounds of the ULP error against an enclosed exact value.
struct UlpError {
  double lower = 0, upper = 0;
};

/// N is any number type of the reference. Not defined for NaN.
template <class N>
UlpError ulp_error(Format format, double computed, const N& exact) {
  if (std::isinf(computed) && format == Format::f64) {
    const double infinity = std::numeric_limits<double>::infinity();
    return {infinity, infinity};
  }
  const N target = attainable(format, exact);
  const double low = magnitude_lower(target), high = magnitude_upper(target), factor = magnification(format, high);
  const N plain = N(stand_in(format, computed)) - target;
  const N difference = factor == 1 ? plain : plain * N(factor);
  UlpError error;
  error.lower = magnitude_lower(difference) / (gap(format, high) * factor);
  error.upper = magnitude_upper(difference) / (gap(format, low) * factor);
  // The lower magnitude of an exact power of two may fall into the binade below and only widens the answer.
  return error;
}

}  // namespace sumzero
