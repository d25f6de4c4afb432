// Conversions to storage formats: every code, every midpoint between neighbouring codes, and the neighbours of those.
#include "reference/format.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

namespace sumzero {
namespace {

/// Value of a 16-bit code by the definition of binary floating point.
double value_of(Format format, std::uint16_t code) {
  const FormatTraits t = traits(format);
  const int fraction_bits = t.precision - 1;
  const int fraction = code & ((1 << fraction_bits) - 1);
  const int biased = (code & 0x7fff) >> fraction_bits;
  const double sign = code & 0x8000 ? -1 : 1;
  if (biased == t.max_exponent - t.min_exponent + 2) return fraction ? std::nan("") : sign * HUGE_VAL;
  if (biased == 0) return sign * std::ldexp(fraction, t.min_exponent - fraction_bits);
  return sign * std::ldexp((1 << fraction_bits) + fraction, biased - 1 + t.min_exponent - fraction_bits);
}

std::uint16_t infinity_code(Format format) { return format == Format::bf16 ? 0x7f80 : 0x7c00; }

class SixteenBits : public testing::TestWithParam<Format> {
 protected:
  static double decode(std::uint16_t code) { return GetParam() == Format::bf16 ? decode_bf16(code) : decode_f16(code); }
  static std::uint16_t encode(double value) { return GetParam() == Format::bf16 ? encode_bf16(value) : encode_f16(value); }
  static std::uint16_t encode(float value) { return GetParam() == Format::bf16 ? encode_bf16(value) : encode_f16(value); }
};

TEST_P(SixteenBits, EveryCodeDecodesByDefinitionAndRoundTrips) {
  for (unsigned c = 0; c <= 0xffff; ++c) {
    const auto code = static_cast<std::uint16_t>(c);
    const double value = value_of(GetParam(), code);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(decode(code))) << code;
      ASSERT_TRUE(std::isnan(decode(encode(value)))) << code;
      ASSERT_TRUE(std::isnan(decode(encode(static_cast<float>(value))))) << code;
      continue;
    }
    ASSERT_EQ(std::bit_cast<std::uint64_t>(decode(code)), std::bit_cast<std::uint64_t>(value)) << code;
    ASSERT_EQ(encode(value), code);
    ASSERT_EQ(encode(static_cast<float>(value)), code);
    ASSERT_EQ(std::bit_cast<std::uint64_t>(round_to(GetParam(), value)), std::bit_cast<std::uint64_t>(value)) << code;
  }
}

using Encoder = std::function<std::uint16_t(double)>;

/// Codes that an encoder gets wrong at midpoints of neighbouring codes and at their neighbours in the source type.
/// Nearest, ties to even: the midpoint goes to the even code, its lower neighbour down, its upper neighbour up. The
/// largest finite number has 2^(max_exponent+1) as its upper neighbour, and that is infinity's code.
template <class Source>
int mistakes(Format format, const Encoder& encoder) {
  int wrong = 0;
  for (std::uint16_t low = 0; low < infinity_code(format); ++low) {
    const auto high = static_cast<std::uint16_t>(low + 1);
    const double below = value_of(format, low);
    const double above = high == infinity_code(format) ? power_of_two(traits(format).max_exponent + 1)
                                                       : value_of(format, high);
    const double exact_middle = 0.5 * (below + above);
    const Source middle = static_cast<Source>(exact_middle);
    EXPECT_EQ(static_cast<double>(middle), exact_middle);
    const Source top = std::numeric_limits<Source>::infinity();
    const std::uint16_t even = low % 2 == 0 ? low : high;
    const std::uint16_t sign = 0x8000;
    wrong += encoder(middle) != even;
    wrong += encoder(-middle) != (even | sign);
    wrong += encoder(std::nextafter(middle, Source(0))) != low;
    wrong += encoder(std::nextafter(middle, top)) != high;
    wrong += encoder(-std::nextafter(middle, Source(0))) != (low | sign);
    wrong += encoder(-std::nextafter(middle, top)) != (high | sign);
  }
  return wrong;
}

TEST_P(SixteenBits, MidpointsRoundToEvenFromDouble) {
  EXPECT_EQ(mistakes<double>(GetParam(), [](double v) { return encode(v); }), 0);
}
TEST_P(SixteenBits, MidpointsRoundToEvenFromFloat) {
  EXPECT_EQ(mistakes<float>(GetParam(), [](double v) { return encode(static_cast<float>(v)); }), 0);
}

// Planted: truncation gets every upper neighbour wrong, on both signs; rounding twice (double to float to 16 bits) gets
// the neighbours of odd midpoints wrong, because float rounds them onto the midpoint.
TEST_P(SixteenBits, WrongEncodersAreCaught) {
  const auto truncating = [](double v) {
    const std::uint16_t code = encode(v);
    return std::fabs(value_of(GetParam(), code)) > std::fabs(v) ? static_cast<std::uint16_t>(code - 1) : code;
  };
  EXPECT_GE(mistakes<double>(GetParam(), truncating), 2 * infinity_code(GetParam()));
  EXPECT_GE(mistakes<double>(GetParam(), [](double v) { return encode(static_cast<float>(v)); }), infinity_code(GetParam()));
}

TEST_P(SixteenBits, FloatPathEqualsDoublePath) {
  // 65521 is prime: the multiples walk through all exponents and leave no low bit pattern out.
  std::uint32_t bits = 0;
  for (int i = 0; i < 2'000'000; ++i, bits += 65521u * 33u) {
    const float value = std::bit_cast<float>(bits);
    const std::uint16_t a = encode(value), b = encode(static_cast<double>(value));
    const bool equal = std::isnan(value) ? std::isnan(decode(a)) && std::isnan(decode(b)) : a == b;
    ASSERT_TRUE(equal) << value;
  }
}

TEST_P(SixteenBits, StridedElements) {
  const Format format = GetParam();
  std::vector<std::byte> bytes(32);
  const double values[] = {1.5, -0.25, 3};
  store_elements(bytes.data() + 28, format, -3, 3, values);  // elements 14, 11 and 8
  const float singles[] = {2.5f};
  store_elements(bytes.data(), format, 1, 1, singles);
  EXPECT_EQ(load_element(bytes.data() + 28, format), 1.5);
  EXPECT_EQ(load_element(bytes.data() + 22, format), -0.25);
  EXPECT_EQ(load_element(bytes.data() + 16, format), 3);
  EXPECT_EQ(load_element(bytes.data(), format), 2.5);
  EXPECT_EQ(load_element(bytes.data() + 24, format), 0);
  double back[3];
  float narrow[3];
  load_elements(bytes.data() + 28, format, -3, 3, back);
  load_elements(bytes.data() + 28, format, -3, 3, narrow);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(back[i], values[i]);
    EXPECT_EQ(static_cast<double>(narrow[i]), values[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, SixteenBits, testing::Values(Format::bf16, Format::f16),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST(Format, PowersOfTwo) {
  for (int e = -1074; e <= 1023; ++e) ASSERT_EQ(power_of_two(e), std::ldexp(1.0, e));
}

// IEEE 754 binary32 and binary16, and bfloat16 with the exponent range of binary32.
TEST(Format, Constants) {
  EXPECT_EQ(largest_finite(Format::f32), 0x1.fffffep127);
  EXPECT_EQ(largest_finite(Format::f64), 0x1.fffffffffffffp1023);
  EXPECT_EQ(largest_finite(Format::bf16), 0x1.fep127);
  EXPECT_EQ(largest_finite(Format::f16), 65504);
  EXPECT_EQ(smallest_subnormal(Format::f32), 0x1p-149);
  EXPECT_EQ(smallest_subnormal(Format::f64), 0x1p-1074);
  EXPECT_EQ(smallest_subnormal(Format::bf16), 0x1p-133);
  EXPECT_EQ(smallest_subnormal(Format::f16), 0x1p-24);
  EXPECT_EQ(unit_roundoff(Format::f32), 0x1p-24);
  EXPECT_EQ(unit_roundoff(Format::bf16), 0x1p-8);
  for (const Format format : {Format::f64, Format::f32, Format::bf16, Format::f16, Format::boolean, Format::index})
    EXPECT_EQ(format_named(name(format)), format);
  EXPECT_FALSE(format_named("f8"));
}

}  // namespace
}  // namespace sumzero
