// Storage formats and their exact conversions.
//
// Every conversion to a narrower format in the project goes through this file: round to nearest, ties to even,
// overflow to infinity, gradual underflow. NaN payloads are not kept (the result is the format's quiet NaN).
//
// The 8-bit formats are those of OCP (Open Compute Project, OFP8 specification 1.0): e5m2 has infinities and NaNs like
// IEEE formats; e4m3 has no infinity and one NaN per sign (0x7f, 0xff), and overflow, infinities included, saturates at 448.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

namespace sumzero {

/// Element formats of tensors. `boolean` is one byte (0 or 1), `index` a signed 64-bit integer.
enum class Format : std::uint8_t { f64, f32, bf16, f16, e4m3, e5m2, boolean, index };

/// The formats of numbers; every row operator takes them as storage.
inline constexpr std::array floating_formats = {Format::f64, Format::f32, Format::bf16, Format::f16, Format::e4m3, Format::e5m2};
inline constexpr std::string_view floating_format_names = "f64, f32, bf16, f16, e4m3, e5m2";

/// What the numerics of a binary floating-point format depend on.
struct FormatTraits {
  int precision;         ///< significand bits, the hidden one included
  int min_exponent;      ///< exponent of the smallest normal number: 2^min_exponent
  int max_exponent;      ///< largest exponent: the largest finite number is (2 - 2^(1-precision)) 2^max_exponent (e4m3: 448)
  std::size_t bytes;     ///< storage size of one element
};

constexpr FormatTraits traits(Format format) {
  switch (format) {
    case Format::f64: return {53, -1022, 1023, 8};
    case Format::f32: return {24, -126, 127, 4};
    case Format::bf16: return {8, -126, 127, 2};
    case Format::f16: return {11, -14, 15, 2};
    case Format::e4m3: return {4, -6, 8, 1};
    case Format::e5m2: return {3, -14, 15, 1};
    case Format::boolean: return {1, 0, 0, 1};
    case Format::index: return {63, 0, 62, 8};
  }
  return {53, -1022, 1023, 8};
}

constexpr bool is_floating(Format format) { return format != Format::boolean && format != Format::index; }
/// A format without infinity: what lies beyond its largest finite number becomes that number.
constexpr bool saturates(Format format) { return format == Format::e4m3; }

constexpr std::string_view name(Format format) {
  constexpr std::string_view names[] = {"f64", "f32", "bf16", "f16", "e4m3", "e5m2", "bool", "index"};
  return names[static_cast<int>(format)];
}

constexpr std::optional<Format> format_named(std::string_view text) {
  for (int i = 0; i <= static_cast<int>(Format::index); ++i)
    if (name(static_cast<Format>(i)) == text) return static_cast<Format>(i);
  return std::nullopt;
}

/// The same for formats of numbers only.
constexpr std::optional<Format> floating_format_named(std::string_view text) {
  const std::optional<Format> format = format_named(text);
  return format && is_floating(*format) ? format : std::nullopt;
}

/// The format in which a kernel of this storage format accumulates: f32 for 8- and 16-bit storage, else the storage.
constexpr Format accumulator_of(Format storage) {
  return is_floating(storage) && storage != Format::f64 ? Format::f32 : storage;
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
  if (format == Format::e4m3) return 448;  // the code of 480 is NaN
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

/// Round an f32 to an 8-bit format, with the steps of encode_f16.
template <Format format>
std::uint8_t encode_f8(float value) {
  constexpr FormatTraits t = traits(format);
  constexpr int dropped = 24 - t.precision;
  constexpr std::uint32_t infinity = 0x7f800000u, bias = static_cast<std::uint32_t>(126 + t.min_exponent) << 23;
  constexpr std::uint32_t largest = saturates(format) ? 0x7e : 0x7c;  // 448, or infinity
  constexpr std::uint32_t nan = saturates(format) ? 0x7f : 0x7e;
  constexpr float magic = static_cast<float>(power_of_two(dropped + t.min_exponent));  // its ulp is the smallest subnormal
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  const std::uint32_t half = (1u << (dropped - 1)) - 1 + ((magnitude >> dropped) & 1u);
  const std::uint32_t normal = std::min((magnitude - bias + half) >> dropped, largest);
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + magic) - std::bit_cast<std::uint32_t>(magic);
  const std::uint32_t number = magnitude < bias + (1u << 23) ? subnormal : normal;
  return static_cast<std::uint8_t>(sign | (magnitude > infinity ? nan : number));
}

template <Format format>
float decode_f8(std::uint8_t bits) {
  constexpr FormatTraits t = traits(format);
  constexpr int dropped = 24 - t.precision;
  constexpr float scale = static_cast<float>(power_of_two(126 + t.min_exponent));
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80u) << 24;
  const std::uint32_t magnitude = bits & 0x7fu;
  const std::uint32_t finite = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude << dropped) * scale);
  const std::uint32_t special = 0x7f800000u | (magnitude << dropped);
  return std::bit_cast<float>(sign | (magnitude >= (saturates(format) ? 0x7fu : 0x7cu) ? special : finite));
}

inline std::uint8_t encode_e4m3(float value) { return encode_f8<Format::e4m3>(value); }
inline std::uint8_t encode_e5m2(float value) { return encode_f8<Format::e5m2>(value); }
std::uint8_t encode_e4m3(double value);
std::uint8_t encode_e5m2(double value);
inline float decode_e4m3(std::uint8_t bits) { return decode_f8<Format::e4m3>(bits); }
inline float decode_e5m2(std::uint8_t bits) { return decode_f8<Format::e5m2>(bits); }

/// Nearest number of `format`, returned as a double. `format` must be floating.
double round_to(Format format, double value);

/// One element at `address`, as a double (exact for every format; index values up to 2^53).
double load_element(const std::byte* address, Format format);
/// `count` elements `stride` elements apart, widened to double (exact), or to float (exact up to f32, and for boolean).
void load_elements(const std::byte* first, Format format, std::int64_t stride, std::int64_t count, double* to);
void load_elements(const std::byte* first, Format format, std::int64_t stride, std::int64_t count, float* to);
/// Rounds `count` numbers into elements `stride` elements apart.
void store_elements(std::byte* first, Format format, std::int64_t stride, std::int64_t count, const double* from);
void store_elements(std::byte* first, Format format, std::int64_t stride, std::int64_t count, const float* from);
/// Stores the nearest element of `format`; index and boolean are truncated from an exact integer.
void store_element(std::byte* address, Format format, double value);

}  // namespace sumzero
