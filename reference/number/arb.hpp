// Arb: midpoint-radius arithmetic on arbitrary precision numbers (library Arb). Second, independent, rigorous
// number type on the same source; several times faster than Enclosure at equal precision. A disagreement between
// the two is a bug in one of them. Precision: working_precision.hpp.
#pragma once

#include <arb.h>

#include <cmath>
#include <limits>
#include <utility>

#include "reference/number/working_precision.hpp"

namespace sumzero {

class Arb {
 public:
  Arb() { arb_init(value_); }
  explicit Arb(double exact) : special_(!std::isfinite(exact)) {
    arb_init(value_);
    if (special_) hint_ = exact;
    else arb_set_d(value_, exact);
  }
  Arb(const Arb& other) : special_(other.special_), hint_(other.hint_) {
    arb_init(value_);
    arb_set(value_, other.value_);
  }
  Arb(Arb&& other) noexcept : special_(other.special_), hint_(other.hint_) {
    arb_init(value_);
    arb_swap(value_, other.value_);
  }
  Arb& operator=(Arb other) noexcept {
    arb_swap(value_, other.value_);
    special_ = other.special_;
    hint_ = other.hint_;
    return *this;
  }
  ~Arb() { arb_clear(value_); }

  arb_srcptr raw() const { return value_; }
  bool special() const { return special_; }
  double special_value() const { return hint_; }

  template <class Function, class... Args>
  static Arb apply(Function function, const Args&... args) {
    Arb result;
    function(result.value_, args.value_..., WorkingPrecision::bits());
    return result;
  }
  friend Arb operator-(const Arb& a) {
    Arb result;
    arb_neg(result.value_, a.value_);
    return result;
  }
  friend Arb abs(const Arb& a) {
    Arb result;
    arb_abs(result.value_, a.value_);
    return result;
  }

 private:
  arb_t value_;
  bool special_ = false;
  double hint_ = 0;
};

inline Arb operator+(const Arb& a, const Arb& b) { return Arb::apply(arb_add, a, b); }
inline Arb operator-(const Arb& a, const Arb& b) { return Arb::apply(arb_sub, a, b); }
inline Arb operator*(const Arb& a, const Arb& b) { return Arb::apply(arb_mul, a, b); }
inline Arb operator/(const Arb& a, const Arb& b) { return Arb::apply(arb_div, a, b); }
inline Arb exp(const Arb& a) { return Arb::apply(arb_exp, a); }
inline Arb expm1(const Arb& a) { return Arb::apply(arb_expm1, a); }
inline Arb log(const Arb& a) { return Arb::apply(arb_log, a); }
inline Arb log1p(const Arb& a) { return Arb::apply(arb_log1p, a); }
inline Arb phi2(const Arb& a) { return expm1(a) - a; }

inline double midpoint_hint(const Arb& a) {
  return a.special() ? a.special_value() : arf_get_d(arb_midref(a.raw()), ARF_RND_NEAR);
}
inline bool is_special(const Arb& a) { return a.special(); }
inline bool is_exact_zero(const Arb& a) { return !a.special() && arb_is_zero(a.raw()); }
inline double magnitude_upper(const Arb& a) {
  if (a.special() || !arb_is_finite(a.raw())) return std::numeric_limits<double>::infinity();
  arf_t bound;
  arf_init(bound);
  arb_get_abs_ubound_arf(bound, a.raw(), 64);
  const double result = arf_get_d(bound, ARF_RND_CEIL);
  arf_clear(bound);
  return result;
}
inline double magnitude_lower(const Arb& a) {
  if (a.special() || !arb_is_finite(a.raw())) return 0;
  arf_t bound;
  arf_init(bound);
  arb_get_abs_lbound_arf(bound, a.raw(), 64);
  const double result = arf_get_d(bound, ARF_RND_FLOOR);
  arf_clear(bound);
  return result > 0 ? result : 0;
}
inline double radius_upper(const Arb& a) {
  if (a.special()) return 0;
  if (!arb_is_finite(a.raw())) return std::numeric_limits<double>::infinity();
  arf_t bound;
  arf_init(bound);
  arf_set_mag(bound, arb_radref(a.raw()));
  const double result = arf_get_d(bound, ARF_RND_CEIL);
  arf_clear(bound);
  return result;
}

}  // namespace sumzero
