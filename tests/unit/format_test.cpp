// Conversions to storage formats: every code, every midpoint between neighbouring codes, and the neighbours of those.
#include "reference/format.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "tests/f8_reference.hpp"

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

class EightBits : public testing::TestWithParam<Format> {
 protected:
  static double decode(std::uint8_t code) { return GetParam() == Format::e4m3 ? decode_e4m3(code) : decode_e5m2(code); }
  static std::uint8_t encode(double value) { return GetParam() == Format::e4m3 ? encode_e4m3(value) : encode_e5m2(value); }
  static std::uint8_t encode(float value) { return GetParam() == Format::e4m3 ? encode_e4m3(value) : encode_e5m2(value); }
};

TEST_P(EightBits, EveryCodeDecodesByDefinitionAndRoundTrips) {
  const F8Reference reference(GetParam());
  for (unsigned c = 0; c <= 0xff; ++c) {
    const auto code = static_cast<std::uint8_t>(c);
    const double value = reference.value(code);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(decode(code))) << c;
      // One NaN a sign; the sign stays.
      const auto quiet = static_cast<std::uint8_t>((code & 0x80) | (GetParam() == Format::e4m3 ? 0x7f : 0x7e));
      ASSERT_EQ(encode(decode(code)), quiet) << c;
      ASSERT_EQ(encode(static_cast<float>(decode(code))), quiet) << c;
      continue;
    }
    ASSERT_EQ(std::bit_cast<std::uint64_t>(decode(code)), std::bit_cast<std::uint64_t>(value)) << c;
    ASSERT_EQ(encode(value), code);
    ASSERT_EQ(encode(static_cast<float>(value)), code);
    ASSERT_EQ(std::bit_cast<std::uint64_t>(round_to(GetParam(), value)), std::bit_cast<std::uint64_t>(value)) << c;
  }
}

/// Codes that an encoder gets wrong on numbers of Source around every code, every midpoint of neighbours, and beyond the range.
template <class Source>
int f8_mistakes(Format format, const std::function<std::uint8_t(Source)>& encoder) {
  const F8Reference reference(format);
  const Source top = std::numeric_limits<Source>::infinity();
  std::vector<Source> centres = {top, std::numeric_limits<Source>::max(), std::numeric_limits<Source>::denorm_min()};
  for (const double value : reference.boundaries()) centres.push_back(static_cast<Source>(value));
  int wrong = 0;
  for (const Source centre : centres)
    for (const Source direction : {Source(0), top}) {
      Source value = centre;
      for (int step = 0; step < 300; ++step, value = std::nextafter(value, direction)) {
        wrong += encoder(value) != reference.nearest(value);
        wrong += encoder(-value) != (reference.nearest(value) | 0x80);
      }
    }
  return wrong;
}

TEST_P(EightBits, BoundariesAndMidpointsRoundToEven) {
  EXPECT_EQ(f8_mistakes<double>(GetParam(), [](double v) { return encode(v); }), 0);
  EXPECT_EQ(f8_mistakes<float>(GetParam(), [](float v) { return encode(v); }), 0);
}

// Planted: truncation, and rounding twice (double to float first moves the neighbours of a midpoint onto it).
TEST_P(EightBits, WrongEncodersAreCaught) {
  const auto truncating = [](float v) {
    const std::uint8_t code = encode(v);
    return std::fabs(decode(code)) > std::fabs(v) ? static_cast<std::uint8_t>(code - 1) : code;
  };
  EXPECT_GE(f8_mistakes<float>(GetParam(), truncating), 100);
  EXPECT_GE(f8_mistakes<double>(GetParam(), [](double v) { return encode(static_cast<float>(v)); }), 100);
}

TEST_P(EightBits, OverflowAndElements) {
  const bool e4m3 = GetParam() == Format::e4m3;
  EXPECT_EQ(decode(encode(1e30)), e4m3 ? 448 : HUGE_VAL);
  EXPECT_EQ(decode(encode(-HUGE_VALF)), e4m3 ? -448 : -HUGE_VAL);
  EXPECT_EQ(decode(encode(e4m3 ? 480.0 : 61439.0)), largest_finite(GetParam()));
  EXPECT_EQ(round_to(GetParam(), HUGE_VAL), e4m3 ? 448 : HUGE_VAL);
  std::vector<std::byte> bytes(9);
  const double values[] = {1.5, -0.25, 3};
  store_elements(bytes.data() + 8, GetParam(), -3, 3, values);
  const float singles[] = {2.5f};
  store_elements(bytes.data(), GetParam(), 1, 1, singles);
  store_element(bytes.data() + 1, GetParam(), -1.25);
  double back[3];
  float narrow[3];
  load_elements(bytes.data() + 8, GetParam(), -3, 3, back);
  load_elements(bytes.data() + 8, GetParam(), -3, 3, narrow);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(back[i], values[i]);
    EXPECT_EQ(static_cast<double>(narrow[i]), values[i]);
    EXPECT_EQ(load_element(bytes.data() + 8 - 3 * i, GetParam()), values[i]);
  }
  EXPECT_EQ(load_element(bytes.data(), GetParam()), 2.5);
  EXPECT_EQ(load_element(bytes.data() + 1, GetParam()), -1.25);
}

INSTANTIATE_TEST_SUITE_P(Formats, EightBits, testing::Values(Format::e4m3, Format::e5m2),
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
  // OFP8: S.1111.110 = 448 and S.11110.11 = 57344; smallest subnormals 2^-9 and 2^-16.
  EXPECT_EQ(largest_finite(Format::e4m3), 448);
  EXPECT_EQ(largest_finite(Format::e5m2), 57344);
  EXPECT_EQ(smallest_subnormal(Format::e4m3), 0x1p-9);
  EXPECT_EQ(smallest_subnormal(Format::e5m2), 0x1p-16);
  EXPECT_EQ(unit_roundoff(Format::e4m3), 0x1p-4);
  std::string names;
  for (const Format format : floating_formats) {
    EXPECT_EQ(format_named(name(format)), format);
    EXPECT_EQ(accumulator_of(format), format == Format::f64 ? Format::f64 : Format::f32);
    names += (names.empty() ? "" : ", ") + std::string(name(format));
  }
  EXPECT_EQ(names, floating_format_names);
  for (const Format format : {Format::boolean, Format::index}) EXPECT_EQ(format_named(name(format)), format);
  EXPECT_FALSE(format_named("f8"));
}

}  // namespace
}  // namespace sumzero
