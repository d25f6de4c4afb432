#include "reference/number/enclosure.hpp"

#include <boost/multiprecision/mpfi.hpp>
#include <limits>

#include "reference/number/working_precision.hpp"

namespace sumzero {

using Interval = boost::multiprecision::number<boost::multiprecision::mpfi_float_backend<0>,
                                               boost::multiprecision::et_off>;

struct Enclosure::Value {
  Interval interval;
  bool special = false;
};

struct EnclosureAccess {
  static Enclosure make(Interval interval) {
    Enclosure result;
    result.value_ = std::make_unique<Enclosure::Value>(Enclosure::Value{std::move(interval), false});
    return result;
  }
  static Interval get(const Enclosure& a) { return a.value_ ? a.value_->interval : Interval(0); }
  static const Enclosure::Value* value(const Enclosure& a) { return a.value_.get(); }
};

namespace {

Interval get(const Enclosure& a) { return EnclosureAccess::get(a); }
Enclosure make(Interval interval) { return EnclosureAccess::make(std::move(interval)); }
mpfi_srcptr raw(const Interval& a) { return a.backend().data(); }

thread_local int current_bits = 128;

void apply(int bits) {
  Interval::thread_default_precision(static_cast<unsigned>(decimal_digits_for(bits)));
  current_bits = bits;
}

}  // namespace

int decimal_digits_for(int bits) {
  // Inverse of the map in the header, rounded up: d digits hold d * 1000/301 bits.
  return (bits * 301 + 999) / 1000 + 1;
}

WorkingPrecision::WorkingPrecision(int bits) : previous_(current_bits) { apply(bits); }
WorkingPrecision::~WorkingPrecision() { apply(previous_); }
int WorkingPrecision::bits() { return current_bits; }

Enclosure::Enclosure() = default;
Enclosure::Enclosure(double exact) {
  if (exact != 0) value_ = std::make_unique<Value>(Value{Interval(exact), !std::isfinite(exact)});
}
Enclosure::Enclosure(const Enclosure& other)
    : value_(other.value_ ? std::make_unique<Value>(*other.value_) : nullptr) {}
Enclosure::Enclosure(Enclosure&& other) noexcept = default;
Enclosure& Enclosure::operator=(const Enclosure& other) {
  if (this != &other) value_ = other.value_ ? std::make_unique<Value>(*other.value_) : nullptr;
  return *this;
}
Enclosure& Enclosure::operator=(Enclosure&& other) noexcept = default;
Enclosure::~Enclosure() = default;

Enclosure operator-(const Enclosure& a) { return make(-get(a)); }
Enclosure operator+(const Enclosure& a, const Enclosure& b) { return make(get(a) + get(b)); }
Enclosure operator-(const Enclosure& a, const Enclosure& b) { return make(get(a) - get(b)); }
Enclosure operator*(const Enclosure& a, const Enclosure& b) { return make(get(a) * get(b)); }
Enclosure operator/(const Enclosure& a, const Enclosure& b) { return make(get(a) / get(b)); }

#define SUMZERO_UNARY(function)                          \
  Enclosure function(const Enclosure& a) {               \
    Interval result;                                     \
    const Interval argument = get(a);                    \
    mpfi_##function(result.backend().data(), raw(argument)); \
    return make(std::move(result));                      \
  }
SUMZERO_UNARY(abs)
SUMZERO_UNARY(exp)
SUMZERO_UNARY(expm1)
SUMZERO_UNARY(log)
SUMZERO_UNARY(log1p)
#undef SUMZERO_UNARY

double midpoint_hint(const Enclosure& a) {
  const auto* value = EnclosureAccess::value(a);
  if (!value) return 0;
  // Rounded once: mpfi_get_d goes through 53 bits, which a subnormal rounds again.
  mpfr_t middle;
  mpfr_init2(middle, mpfr_get_prec(&raw(value->interval)->left));
  mpfi_mid(middle, raw(value->interval));
  const double result = mpfr_get_d(middle, MPFR_RNDN);
  mpfr_clear(middle);
  return result;
}
bool is_special(const Enclosure& a) {
  const auto* value = EnclosureAccess::value(a);
  return value && value->special;
}
double magnitude_upper(const Enclosure& a) {
  const auto* value = EnclosureAccess::value(a);
  if (!value) return 0;
  if (mpfi_nan_p(raw(value->interval))) return std::numeric_limits<double>::infinity();
  mpfr_t m;
  mpfr_init2(m, mpfr_get_prec(&raw(value->interval)->left));
  mpfi_mag(m, raw(value->interval));
  const double result = mpfr_get_d(m, MPFR_RNDU);
  mpfr_clear(m);
  return result;
}
double magnitude_lower(const Enclosure& a) {
  const auto* value = EnclosureAccess::value(a);
  if (!value || mpfi_nan_p(raw(value->interval))) return 0;
  mpfr_t m;
  mpfr_init2(m, mpfr_get_prec(&raw(value->interval)->left));
  mpfi_mig(m, raw(value->interval));
  const double result = mpfr_get_d(m, MPFR_RNDD);
  mpfr_clear(m);
  return result;
}
bool is_exact_zero(const Enclosure& a) {
  const auto* value = EnclosureAccess::value(a);
  return !value || (mpfr_zero_p(&raw(value->interval)->left) && mpfr_zero_p(&raw(value->interval)->right));
}
double radius_upper(const Enclosure& a) {
  const auto* value = EnclosureAccess::value(a);
  if (!value || value->special) return 0;
  if (mpfi_nan_p(raw(value->interval))) return std::numeric_limits<double>::infinity();
  mpfr_t m;
  mpfr_init2(m, 64);
  mpfi_diam_abs(m, raw(value->interval));
  mpfr_div_2ui(m, m, 1, MPFR_RNDU);
  const double result = mpfr_get_d(m, MPFR_RNDU);
  mpfr_clear(m);
  return result;
}
bool contains(const Enclosure& outer, const Enclosure& inner) {
  const Interval a = get(outer), b = get(inner);
  return mpfi_is_inside(raw(b), raw(a)) > 0;
}
bool contains(const Enclosure& outer, double point) {
  const Interval a = get(outer);
  return mpfi_is_inside_d(point, raw(a)) > 0;
}
std::string decimal(const Enclosure& a, int digits) {
  if (is_exact_zero(a)) return "0";
  const Interval interval = get(a);
  if (is_special(a)) return std::isnan(midpoint_hint(a)) ? "nan" : midpoint_hint(a) > 0 ? "inf" : "-inf";
  mpfr_t m;
  mpfr_init2(m, mpfr_get_prec(&raw(interval)->left));
  mpfi_mid(m, raw(interval));
  char* text = nullptr;
  mpfr_asprintf(&text, "%.*Re", digits - 1, m);
  std::string result(text);
  mpfr_free_str(text);
  mpfr_clear(m);
  return result;
}

}  // namespace sumzero
