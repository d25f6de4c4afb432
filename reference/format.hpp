// Storage formats and their exact conversions.
//
// Every conversion to a narrower format in the project goes through this file: round to nearest, ties to even,
// overflow to infinity, gradual underflow. NaN payloads are not kept (the result is the format's quiet NaN).
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

namespace sumzero {

/// Element formats of tensors. `boolean` is one byte (0 or 1), `index` a signed 64-bit integer.
enum class Format : std::uint8_t { f64, f32, bf16, f16, boolean, index };

/// What the numerics of a binary floating-point format depend on.
struct FormatTraits {
  int precision;         ///< significand bits, the hidden one included
  int min_exponent;      ///< exponent of the smallest normal number: 2^min_exponent
  int max_exponent;      ///< largest exponent: the largest finite number is (2 - 2^(1-precision)) 2^max_exponent
  std::size_t bytes;     ///< storage size of one element
};

constexpr FormatTraits traits(Format format) {
  switch (format) {
    case Format::f64: return {53, -1022, 1023, 8};
    case Format::f32: return {24, -126, 127, 4};
    case Format::bf16: return {8, -126, 127, 2};
    case Format::f16: return {11, -14, 15, 2};
    case Format::boolean: return {1, 0, 0, 1};
    case Format::index: return {63, 0, 62, 8};
  }
  return {53, -1022, 1023, 8};
}

constexpr bool is_floating(Format format) { return format != Format::boolean && format != Format::index; }

constexpr std::string_view name(Format format) {
  constexpr std::string_view names[] = {"f64", "f32", "bf16", "f16", "bool", "index"};
  return names[static_cast<int>(format)];
}

constexpr std::optional<Format> format_named(std::string_view text) {
  for (int i = 0; i < 6; ++i)
    if (name(static_cast<Format>(i)) == text) return static_cast<Format>(i);
  return std::nullopt;
}

/// The format in which a kernel of this storage format accumulates: f32 for 16-bit storage, else the storage.
constexpr Format accumulator_of(Format storage) {
  return storage == Format::bf16 || storage == Format::f16 ? Format::f32 : storage;
}

/// 2^exponent, exact for -1074 <= exponent <= 1023.
constexpr double power_of_two(int exponent) {
  if (exponent >= -1022) return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
  return std::bit_cast<double>(std::uint64_t{1} << (exponent + 1074));
}

/// u = 2^-precision: largest relative error of rounding to nearest in the normal range.
constexpr double unit_roundoff(Format format) { return power_of_two(-traits(format).precision); }
/// Smallest positive subnormal number.
constexpr double smallest_subnormal(Format format) {
  return power_of_two(traits(format).min_exponent - traits(format).precision + 1);
}
constexpr double smallest_normal(Format format) { return power_of_two(traits(format).min_exponent); }
constexpr double largest_finite(Format format) {
  return (2.0 - power_of_two(1 - traits(format).precision)) * power_of_two(traits(format).max_exponent);
}

/// Bits of a bf16 or f16 number nearest to `value` (ties to even); a double is rounded once, not through f32.
std::uint16_t encode_bf16(double value);
std::uint16_t encode_f16(double value);

/// Hot-loop form for values that already are f32.
inline std::uint16_t encode_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<std::uint16_t>(is_nan ? 0x7fc0u : rounded);
}
inline float decode_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// Round an f32 to f16. Adding the magic constant 2^(e+13) lets the f32 adder round a subnormal result.
inline std::uint16_t encode_f16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  // 65520 = 0x477ff000 is the midpoint between the largest finite f16 and 2^16; the tie goes to infinity.
  const std::uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  // Normal result: subtract the bias difference 112 and round away 13 bits.
  const std::uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Subnormal result (|value| < 2^-14): 0.5 has ulp 2^-24, so the sum's low bits are the f16 significand.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u;
  const std::uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
  return static_cast<std::uint16_t>(sign | (magnitude >= 0x477ff000u ? special : finite));
}

inline float decode_f16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  // (m << 13) read as f32 is the value times 2^-112; the product is exact, subnormals included.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const std::uint32_t finite = std::bit_cast<std::uint32_t>(scaled);
  const std::uint32_t special = 0x7f800000u | (magnitude << 13);
  return std::bit_cast<float>(sign | (magnitude >= 0x7c00u ? special : finite));
}

/// Nearest number of `format`, returned as a double. `format` must be floating.
double round_to(Format format, double value);

/// One element at `address`, as a double (exact for every format; index values up to 2^53).
double load_element(const std::byte* address, Format format);
/// `count` elements `stride` elements apart, widened to double (exact), or to float (exact for f32, bf16, f16, boolean).
void load_elements(const std::byte* first, Format format, std::int64_t stride, std::int64_t count, double* to);
void load_elements(const std::byte* first, Format format, std::int64_t stride, std::int64_t count, float* to);
/// Rounds `count` numbers into elements `stride` elements apart.
void store_elements(std::byte* first, Format format, std::int64_t stride, std::int64_t count, const double* from);
void store_elements(std::byte* first, Format format, std::int64_t stride, std::int64_t count, const float* from);
/// Stores the nearest element of `format`; index and boolean are truncated from an exact integer.
void store_element(std::byte* address, Format format, double value);

}  // namespace sumzero
