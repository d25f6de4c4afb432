// The definition of the error: the table of cases on which definitions of an ulp disagree, gaps and ordinals.
#include "oracle/ulp.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "reference/number/enclosure.hpp"
#include "reference/number/working_precision.hpp"

namespace sumzero {
namespace {

struct Disagreement {
  const char* title;
  double exact, computed, ulp, grid;
};

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double largest = 0x1.fffffep127;  // 2^128 - 2^104

// f32; exact values are doubles. Derivations: difference over gap.
//   (2^-23 + 2^-26) / 2^-24 = 2.25;  (2^-24 + 2^-25) / 2^-23 = 0.75;  2^-23 / 2^-24 = 2 (gap below a power of two)
//   0.6 2^-149 / 2^-149;  1.3 2^-130 / 2^-149 = 1.3 2^19 = 681574.4
//   2^128 - (2^128 - 2^104 + 2^102 - 2^78) over 2^104 = 0.75 + 2^-26
//   (2^104 + 2^98) / 2^105 = 0.5 + 2^-7: above the largest number gaps go on
const Disagreement table[] = {
    {"from below to above a power of two", 1 - 0x1p-26, 1 + 0x1p-23, 2.25, 1},
    {"from above to below a power of two", 1 + 0x1p-25, 1 - 0x1p-24, 0.75, 1},
    {"at a power of two", 1, 1 + 0x1p-23, 2, 1},
    {"below the smallest subnormal", 0.4 * 0x1p-149, 0x1p-149, 0.6, 1},
    {"flushed subnormal", 1.3 * 0x1p-130, 0, 681574.4, 681574},
    {"overflow just above the largest", largest * (1 + 0x1p-26), infinity, 0.75 + 0x1p-26, 1},
    {"largest where infinity is nearest", 0x1p128 * (1 + 0x1p-30), largest, 0.5 + 0x1p-7, 1},
};

using Gap = double (*)(Format, double);

/// Largest deviation from the table for a definition of the gap.
double deviation(Gap definition) {
  double worst = 0;
  for (const Disagreement& row : table) {
    const double difference = std::fabs(stand_in(Format::f32, row.computed) - row.exact);
    worst = std::max(worst, std::fabs(difference / definition(Format::f32, row.exact) / row.ulp - 1));
  }
  return worst;
}

TEST(Ulp, TableOfDisagreements) {
  const WorkingPrecision precision(256);
  for (const Disagreement& row : table) {
    SCOPED_TRACE(row.title);
    const UlpError error = ulp_error(Format::f32, row.computed, Enclosure(row.exact));
    // The quotient is exact up to the rounding of 0.4 and 1.3 to double.
    EXPECT_NEAR(error.lower, row.ulp, row.ulp * 0x1p-50);
    EXPECT_NEAR(error.upper, row.ulp, row.ulp * 0x1p-50);
    EXPECT_EQ(grid_distance(Format::f32, row.computed, row.exact), row.grid);
  }
}

// Planted: the spacing above a power of two (Goldberg) halves row three; a floor at the smallest normal number's spacing
// that forgets subnormals explodes row four.
TEST(Ulp, OtherDefinitionsFailTheTable) {
  EXPECT_LE(deviation([](Format f, double x) { return gap(f, x); }), 0x1p-50);
  EXPECT_GE(deviation([](Format f, double x) { return gap(f, std::nextafter(x, infinity)); }), 0.5);
  EXPECT_GE(deviation([](Format, double x) { return std::ldexp(1.0, std::ilogb(x) - 23); }), 1.0);
}

TEST(Ulp, GapsOfSmallFormatsAreDistancesOfNeighbours) {
  for (const Format format : {Format::bf16, Format::f16}) {
    const auto decode = [format](std::uint16_t c) -> double { return format == Format::bf16 ? decode_bf16(c) : decode_f16(c); };
    const std::uint16_t end = format == Format::bf16 ? 0x7f80 : 0x7c00;
    for (std::uint16_t code = 1; code < end; ++code) {
      const double value = decode(code), below = decode(static_cast<std::uint16_t>(code - 1));
      // At a number: the spacing below it where it is a power of two; inside a binade both spacings agree.
      ASSERT_EQ(gap(format, value), value - below) << code;
      // Between two numbers, their distance.
      ASSERT_EQ(gap(format, 0.5 * (value + below)), value - below) << code;
    }
    EXPECT_EQ(gap(format, 0), smallest_subnormal(format));
    EXPECT_EQ(gap(format, 0x1p-1000), smallest_subnormal(format));
  }
}

TEST(Ulp, GapsContinueAboveTheLargestNumber) {
  EXPECT_EQ(gap(Format::f32, 0x1.8p128), 0x1p105);
  EXPECT_EQ(gap(Format::f32, 0x1p128), 0x1p104);
  EXPECT_EQ(gap(Format::f32, infinity), 0x1p104);
  EXPECT_EQ(gap(Format::f64, infinity), 0x1p971);
  EXPECT_EQ(gap(Format::f64, 0x1p-1074), 0x1p-1074);
  EXPECT_EQ(gap(Format::f64, 1), 0x1p-53);
  EXPECT_EQ(gap(Format::f64, 1.5), 0x1p-52);
}

TEST(Ulp, OrdinalsAreCodes) {
  for (unsigned code = 0; code <= 0x7c00; ++code) {
    const double value = decode_f16(static_cast<std::uint16_t>(code));
    ASSERT_EQ(ordinal(Format::f16, value), code);
    ASSERT_EQ(ordinal(Format::f16, -value), -static_cast<std::int64_t>(code));
  }
  for (unsigned code = 0; code <= 0x7f80; ++code)
    ASSERT_EQ(ordinal(Format::bf16, decode_bf16(static_cast<std::uint16_t>(code))), code);
  for (std::uint64_t bits = 0; bits <= 0x7f800000u; bits += 997)  // a prime step visits every residue of the low bits
    ASSERT_EQ(ordinal(Format::f32, std::bit_cast<float>(static_cast<std::uint32_t>(bits))), static_cast<std::int64_t>(bits));
  for (std::uint64_t bits = 0; bits <= 0x7ff0000000000000u; bits += 0x7ff0000000000000u / 65521)
    ASSERT_EQ(ordinal(Format::f64, std::bit_cast<double>(bits)), static_cast<std::int64_t>(bits));
  EXPECT_EQ(ordinal(Format::f32, -0.0), 0);
  EXPECT_EQ(ordinal(Format::f32, infinity), 0x7f800000);
}

TEST(Ulp, GridDistance) {
  EXPECT_EQ(grid_distance(Format::f32, 1, 1), 0);
  EXPECT_EQ(grid_distance(Format::f32, -0x1p-149, 0x1p-149), 2);
  EXPECT_EQ(grid_distance(Format::f32, std::nan(""), 1), infinity);
  EXPECT_EQ(grid_distance(Format::f32, 1, 1 + 0x1p-24 + 0x1p-40), 1);  // the exact value rounds up
}

// e4m3, u = 2^-4: spacing 2^-3 above 1, 2^-4 below; 32 in the last binade, subnormals 2^-9 apart. Beyond 448 nothing is
// lost by returning 448. e5m2: spacing 2^-2 above 1; 2^16 stands for infinity, and gaps go on: 2^13 below it, 2^14 above.
TEST(Ulp, TableOfEightBitFormats) {
  struct Row {
    Format format;
    double exact, computed, ulp, grid;
  };
  for (const Row& row : {Row{Format::e4m3, 1, 1.125, 2, 1}, Row{Format::e4m3, 1.0625, 1.125, 0.5, 1}, Row{Format::e4m3, 0x1p-11, 0x1p-9, 0.75, 1},
                         Row{Format::e4m3, 440, 448, 0.25, 0}, Row{Format::e4m3, 460, 448, 0, 0}, Row{Format::e4m3, -1e6, -448, 0, 0},
                         Row{Format::e4m3, 1e6, 416, 1, 1}, Row{Format::e4m3, 1e6, -448, 28, 252}, Row{Format::e5m2, 1, 1.25, 2, 1},
                         Row{Format::e5m2, 1.75, 2, 1, 1}, Row{Format::e5m2, 57344, infinity, 1, 1}, Row{Format::e5m2, 0x1.8p16, infinity, 2, 0},
                         Row{Format::e5m2, 60000, 57344, 2656.0 / 8192, 0}}) {
    const WorkingPrecision precision(128);
    const UlpError error = ulp_error(row.format, row.computed, Enclosure(row.exact));
    EXPECT_NEAR(error.upper, row.ulp, row.ulp * 0x1p-50) << name(row.format) << ' ' << row.exact << ' ' << row.computed;
    EXPECT_NEAR(error.lower, row.ulp, row.ulp * 0x1p-50) << name(row.format) << ' ' << row.exact << ' ' << row.computed;
    EXPECT_EQ(grid_distance(row.format, row.computed, row.exact), row.grid) << name(row.format) << ' ' << row.exact << ' ' << row.computed;
  }
  EXPECT_EQ(grid_distance(Format::e4m3, std::nan(""), 1e6), infinity);
  EXPECT_FALSE(rounds_to_infinity(Format::e4m3, 1e6));
  EXPECT_TRUE(rounds_to_infinity(Format::e5m2, 61440));
  for (unsigned code = 0; code <= 0x7e; ++code) {
    ASSERT_EQ(ordinal(Format::e4m3, decode_e4m3(static_cast<std::uint8_t>(code))), code);
    if (code <= 0x7c) {
      ASSERT_EQ(ordinal(Format::e5m2, -decode_e5m2(static_cast<std::uint8_t>(code))), -static_cast<std::int64_t>(code));
    }
  }
}

TEST(Ulp, OverflowThreshold) {
  for (const Format format : {Format::f32, Format::bf16, Format::f16, Format::e5m2}) {
    // Half a spacing above the largest number; the tie goes to infinity, because the largest significand is odd.
    const double largest_number = largest_finite(format);
    const double half = 0.5 * (power_of_two(traits(format).max_exponent + 1) - largest_number);
    EXPECT_TRUE(rounds_to_infinity(format, largest_number + half));
    EXPECT_FALSE(rounds_to_infinity(format, std::nextafter(largest_number + half, 0.0)));
    EXPECT_TRUE(std::isinf(round_to(format, largest_number + half)));
    EXPECT_EQ(round_to(format, std::nextafter(largest_number + half, 0.0)), largest_number);
  }
}

}  // namespace
}  // namespace sumzero
