// The one place that maps a precision in bits to the multiprecision libraries of the current thread.
#pragma once

namespace sumzero {

/// Sets the working precision of Enclosure and Arb on this thread; restores the previous one at the end of scope.
class WorkingPrecision {
 public:
  explicit WorkingPrecision(int bits);
  ~WorkingPrecision();
  WorkingPrecision(const WorkingPrecision&) = delete;
  WorkingPrecision& operator=(const WorkingPrecision&) = delete;
  static int bits();  ///< current working precision of this thread; 128 at start

 private:
  int previous_;
};

/// Decimal digits for which Boost allots at least `bits` binary digits: Boost maps d digits to
/// floor(d * 1000/301) + (d * 1000 % 301 != 0 ? 2 : 1) bits.
int decimal_digits_for(int bits);

}  // namespace sumzero
