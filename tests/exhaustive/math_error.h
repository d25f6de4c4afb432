// Error of one computed value in units in the last place (Harrison): |computed - exact| / gap, where gap is
// the distance of the two adjacent numbers of the format that straddle the exact value; at a power of two the
// smaller one, and never below the smallest subnormal.
#pragma once

#include <mpfr.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace sumzero::fast::test {

inline constexpr double kWrong = std::numeric_limits<double>::infinity();

// The exact value is given as a double. Its own error of at most one ulp of double is at most 2^-29 ulp of
// float, because the gap of float is at least 2^29 times the gap of double at the same value: negligible
// beside limits given with two digits.
inline double UlpError(float computed, double exact) {
  if (std::isnan(exact) || std::isnan(computed))
    return std::isnan(exact) && std::isnan(computed) ? 0 : kWrong;
  if (computed == 0 && std::signbit(computed) != std::signbit(exact)) return kWrong;
  // From here up the correctly rounded float is infinite: FLT_MAX plus half its gap, the tie going to
  // infinity.
  constexpr double kOverflow = 0x1.ffffffp+127;
  if (std::isinf(computed) && std::fabs(exact) >= kOverflow)
    return (computed > 0) == (exact > 0) ? 0 : kWrong;
  if (std::isinf(exact)) return kWrong;
  const double value = std::isinf(computed) ? std::copysign(0x1p128, computed) : computed;
  const auto bits = std::bit_cast<uint64_t>(exact) & ~(uint64_t{1} << 63);
  int exponent = static_cast<int>(bits >> 52) - 1023 - 23;
  if ((bits & ((uint64_t{1} << 52) - 1)) == 0) --exponent;
  if (exponent < -149) exponent = -149;
  // Times the reciprocal of the gap, which is an exact power of two.
  return std::fabs(value - exact) * std::bit_cast<double>(static_cast<uint64_t>(1023 - exponent) << 52);
}

// Judges against a value of 200 bits, whose error is at most 2^-147 ulp of double.
class ExactValue {
 public:
  ExactValue() { mpfr_inits2(200, x_, exact_, difference_, nullptr); }
  ExactValue(const ExactValue&) = delete;
  ExactValue& operator=(const ExactValue&) = delete;
  ~ExactValue() { mpfr_clears(x_, exact_, difference_, nullptr); }

  template <class Function, typename T>
  double UlpError(Function function, T x, T computed) {
    using Limits = std::numeric_limits<T>;
    mpfr_set_d(x_, x, MPFR_RNDN);
    function(exact_, x_, MPFR_RNDN);
    if (mpfr_nan_p(exact_) || std::isnan(computed))
      return mpfr_nan_p(exact_) && std::isnan(computed) ? 0 : kWrong;
    const bool negative = mpfr_signbit(exact_) != 0;
    if (computed == 0 && std::signbit(computed) != negative) return kWrong;
    if (mpfr_zero_p(exact_)) return computed == 0 ? 0 : kWrong;
    if (std::isinf(computed)) {
      // Infinity is right from the largest finite value plus half its gap.
      mpfr_set_ui_2exp(difference_, 1, Limits::max_exponent - Limits::digits - 1, MPFR_RNDN);
      mpfr_add_d(difference_, difference_, Limits::max(), MPFR_RNDN);
      if (mpfr_cmpabs(exact_, difference_) >= 0) return (computed < 0) == negative ? 0 : kWrong;
      mpfr_set_si_2exp(difference_, computed < 0 ? -1 : 1, Limits::max_exponent, MPFR_RNDN);
    } else {
      if (mpfr_inf_p(exact_)) return kWrong;
      mpfr_set_d(difference_, computed, MPFR_RNDN);
    }
    mpfr_sub(difference_, difference_, exact_, MPFR_RNDN);
    // |exact| is in [2^(exponent - 1), 2^exponent).
    long exponent = mpfr_get_exp(exact_);
    const bool power_of_two = mpfr_cmp_si_2exp(exact_, negative ? -1 : 1, exponent - 1) == 0;
    exponent -= Limits::digits + (power_of_two ? 1 : 0);
    const long smallest = Limits::min_exponent - Limits::digits;
    if (exponent < smallest) exponent = smallest;
    mpfr_mul_2si(difference_, difference_, -exponent, MPFR_RNDN);
    return std::fabs(mpfr_get_d(difference_, MPFR_RNDU));
  }

 private:
  mpfr_t x_, exact_, difference_;
};

}  // namespace sumzero::fast::test
