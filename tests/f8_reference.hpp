// 8-bit formats by definition: the value of every code, and the nearest code found by comparison. Slow and independent of
// reference/format: the OFP8 tables, no bit tricks.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "reference/format.hpp"

namespace sumzero {

class F8Reference {
 public:
  explicit F8Reference(Format format) : e4m3_(format == Format::e4m3) {
    for (int code = 0; code < 128; ++code) values_[static_cast<std::size_t>(code)] = magnitude(code);
    last_ = e4m3_ ? 0x7e : 0x7b;
  }

  double value(std::uint8_t code) const { return (code & 0x80 ? -1 : 1) * values_[code & 0x7f]; }

  /// The code nearest to a non-negative number, ties to even; beyond the range 448 or infinity.
  std::uint8_t nearest(double magnitude) const {
    int code = 0;
    while (code < last_ + (e4m3_ ? 0 : 1) && beyond(magnitude, code)) ++code;
    return static_cast<std::uint8_t>(code);
  }
  /// Does the magnitude round to a code above this one?
  bool beyond(double magnitude, int code) const {
    const double middle = 0.5 * (values_[static_cast<std::size_t>(code)] + upper(code));
    return magnitude > middle || (magnitude == middle && code % 2 == 1);
  }

  /// Every finite magnitude and every midpoint, the one above the largest number included.
  std::vector<double> boundaries() const {
    std::vector<double> result;
    for (int code = 0; code <= last_; ++code) {
      result.push_back(values_[static_cast<std::size_t>(code)]);
      result.push_back(0.5 * (values_[static_cast<std::size_t>(code)] + upper(code)));
    }
    return result;
  }

 private:
  double upper(int code) const { return code < last_ ? values_[static_cast<std::size_t>(code) + 1] : e4m3_ ? 480 : 65536; }
  double magnitude(int code) const {
    const int bits = e4m3_ ? 3 : 2, bias = e4m3_ ? 7 : 15;
    const int exponent = code >> bits, fraction = code & ((1 << bits) - 1);
    if (e4m3_ ? code == 0x7f : code > 0x7c) return std::nan("");
    if (!e4m3_ && code == 0x7c) return HUGE_VAL;
    if (exponent == 0) return std::ldexp(fraction, 1 - bias - bits);
    return std::ldexp((1 << bits) + fraction, exponent - bias - bits);
  }

  bool e4m3_;
  int last_ = 0;
  std::array<double, 128> values_{};
};

}  // namespace sumzero
