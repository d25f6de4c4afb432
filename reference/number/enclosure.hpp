// Enclosure: interval arithmetic on MPFR numbers (MPFI through Boost.Multiprecision), the documented reference.
//
// The working precision is a property of the thread: WorkingPrecision sets it for a scope, in bits. Values must not
// outlive the scope they were made in. The Boost types are kept out of this header so that operators compile quickly.
#pragma once

#include <memory>
#include <string>

namespace sumzero {

class Enclosure {
 public:
  Enclosure();
  explicit Enclosure(double exact);  ///< the exact number, or the special constant NaN or an infinity
  Enclosure(const Enclosure& other);
  Enclosure(Enclosure&& other) noexcept;
  Enclosure& operator=(const Enclosure& other);
  Enclosure& operator=(Enclosure&& other) noexcept;
  ~Enclosure();

  friend Enclosure operator-(const Enclosure& a);
  friend Enclosure operator+(const Enclosure& a, const Enclosure& b);
  friend Enclosure operator-(const Enclosure& a, const Enclosure& b);
  friend Enclosure operator*(const Enclosure& a, const Enclosure& b);
  friend Enclosure operator/(const Enclosure& a, const Enclosure& b);
  friend Enclosure abs(const Enclosure& a);
  friend Enclosure exp(const Enclosure& a);
  friend Enclosure expm1(const Enclosure& a);
  friend Enclosure log(const Enclosure& a);
  friend Enclosure log1p(const Enclosure& a);

  friend double midpoint_hint(const Enclosure& a);
  friend bool is_special(const Enclosure& a);
  friend double magnitude_upper(const Enclosure& a);
  friend double magnitude_lower(const Enclosure& a);
  friend bool is_exact_zero(const Enclosure& a);
  /// Upper bound of half the width, rounded up to a double.
  friend double radius_upper(const Enclosure& a);
  /// Does `outer` contain `inner`?
  friend bool contains(const Enclosure& outer, const Enclosure& inner);
  /// Does the interval contain this number?
  friend bool contains(const Enclosure& outer, double point);
  /// `digits` significant decimal digits of the midpoint.
  friend std::string decimal(const Enclosure& a, int digits);

 private:
  struct Value;
  std::unique_ptr<Value> value_;  // null: exactly zero
  friend struct EnclosureAccess;
};

/// phi2(x) = e^x - 1 - x; the cancellation costs 2 log2(1/|x|) bits, which the Ziv loop supplies.
inline Enclosure phi2(const Enclosure& a) { return expm1(a) - a; }

}  // namespace sumzero
