#include "reference/format.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace sumzero {
namespace {

// Rounds to nearest, ties to even, by the addition of a number whose own quantum is that of the result.
double round_to_small(Format format, double value) {
  if (std::isinf(value) && saturates(format)) return std::copysign(largest_finite(format), value);
  if (!std::isfinite(value) || value == 0) return value;
  const FormatTraits t = traits(format);
  const auto overflow = [&] { return std::copysign(saturates(format) ? largest_finite(format) : HUGE_VAL, value); };
  if (std::fabs(value) > 2 * largest_finite(format)) return overflow();
  const int exponent = static_cast<int>(std::bit_cast<std::uint64_t>(value) >> 52 & 0x7ff) - 1022;  // |value| in [2^(exponent-1), 2^exponent)
  // Exponent of one unit in the last place; the sum with 3/2 2^52 units is rounded to whole units, ties to even.
  const int quantum = std::max(exponent - t.precision, t.min_exponent - t.precision + 1);
  const double shifter = std::bit_cast<double>((static_cast<std::uint64_t>(quantum + 52 + 1023) << 52) | (std::uint64_t{1} << 51));
  const double rounded = (value + shifter) - shifter;
  if (std::fabs(rounded) > largest_finite(format)) return overflow();
  return std::copysign(rounded, value);
}

template <class T>
T read(const std::byte* address) {
  T value;
  std::memcpy(&value, address, sizeof value);
  return value;
}
template <class T>
void write(std::byte* address, T value) {
  std::memcpy(address, &value, sizeof value);
}

template <class Stored, class T, class Decode>
void load_as(const std::byte* first, std::int64_t stride, std::int64_t count, T* to, Decode decode) {
  const std::int64_t step = stride * static_cast<std::int64_t>(sizeof(Stored));
  if (stride == 1)
    for (std::int64_t j = 0; j < count; ++j)
      to[j] = static_cast<T>(decode(read<Stored>(first + j * static_cast<std::int64_t>(sizeof(Stored)))));
  else
    for (std::int64_t j = 0; j < count; ++j) to[j] = static_cast<T>(decode(read<Stored>(first + j * step)));
}

template <class T>
void load(const std::byte* first, Format format, std::int64_t stride, std::int64_t count, T* to) {
  const auto same = [](auto value) { return value; };
  switch (format) {
    case Format::f64: return load_as<double>(first, stride, count, to, same);
    case Format::f32: return load_as<float>(first, stride, count, to, same);
    case Format::bf16: return load_as<std::uint16_t>(first, stride, count, to, decode_bf16);
    case Format::f16: return load_as<std::uint16_t>(first, stride, count, to, decode_f16);
    case Format::e4m3: return load_as<std::uint8_t>(first, stride, count, to, decode_e4m3);
    case Format::e5m2: return load_as<std::uint8_t>(first, stride, count, to, decode_e5m2);
    case Format::boolean: return load_as<std::uint8_t>(first, stride, count, to, same);
    case Format::index: return load_as<std::int64_t>(first, stride, count, to, same);
  }
}

template <class Stored, class T, class Encode>
void store_as(std::byte* first, std::int64_t stride, std::int64_t count, const T* from, Encode encode) {
  const std::int64_t step = stride * static_cast<std::int64_t>(sizeof(Stored));
  if (stride == 1)
    for (std::int64_t j = 0; j < count; ++j)
      write(first + j * static_cast<std::int64_t>(sizeof(Stored)), static_cast<Stored>(encode(from[j])));
  else
    for (std::int64_t j = 0; j < count; ++j) write(first + j * step, static_cast<Stored>(encode(from[j])));
}

template <class T>
void store(std::byte* first, Format format, std::int64_t stride, std::int64_t count, const T* from) {
  const auto same = [](T value) { return value; };
  switch (format) {
    case Format::f64: return store_as<double>(first, stride, count, from, same);
    case Format::f32: return store_as<float>(first, stride, count, from, same);
    case Format::bf16: return store_as<std::uint16_t>(first, stride, count, from, [](T v) { return encode_bf16(v); });
    case Format::f16: return store_as<std::uint16_t>(first, stride, count, from, [](T v) { return encode_f16(v); });
    case Format::e4m3: return store_as<std::uint8_t>(first, stride, count, from, [](T v) { return encode_e4m3(v); });
    case Format::e5m2: return store_as<std::uint8_t>(first, stride, count, from, [](T v) { return encode_e5m2(v); });
    case Format::boolean: return store_as<std::uint8_t>(first, stride, count, from, [](T v) { return v != 0; });
    case Format::index: return store_as<std::int64_t>(first, stride, count, from, same);
  }
}

}  // namespace

void load_elements(const std::byte* first, Format format, std::int64_t stride, std::int64_t count, double* to) {
  load(first, format, stride, count, to);
}
void load_elements(const std::byte* first, Format format, std::int64_t stride, std::int64_t count, float* to) {
  load(first, format, stride, count, to);
}
void store_elements(std::byte* first, Format format, std::int64_t stride, std::int64_t count, const double* from) {
  store(first, format, stride, count, from);
}
void store_elements(std::byte* first, Format format, std::int64_t stride, std::int64_t count, const float* from) {
  store(first, format, stride, count, from);
}

std::uint16_t encode_bf16(double value) { return encode_bf16(static_cast<float>(round_to_small(Format::bf16, value))); }
std::uint16_t encode_f16(double value) { return encode_f16(static_cast<float>(round_to_small(Format::f16, value))); }
std::uint8_t encode_e4m3(double value) { return encode_e4m3(static_cast<float>(round_to_small(Format::e4m3, value))); }
std::uint8_t encode_e5m2(double value) { return encode_e5m2(static_cast<float>(round_to_small(Format::e5m2, value))); }

double round_to(Format format, double value) {
  switch (format) {
    case Format::f64: return value;
    case Format::f32: return static_cast<float>(value);
    default: return round_to_small(format, value);
  }
}

double load_element(const std::byte* address, Format format) {
  switch (format) {
    case Format::f64: return read<double>(address);
    case Format::f32: return read<float>(address);
    case Format::bf16: return decode_bf16(read<std::uint16_t>(address));
    case Format::f16: return decode_f16(read<std::uint16_t>(address));
    case Format::e4m3: return decode_e4m3(read<std::uint8_t>(address));
    case Format::e5m2: return decode_e5m2(read<std::uint8_t>(address));
    case Format::boolean: return read<std::uint8_t>(address);
    case Format::index: return static_cast<double>(read<std::int64_t>(address));
  }
  return 0;
}

void store_element(std::byte* address, Format format, double value) {
  switch (format) {
    case Format::f64: write(address, value); break;
    case Format::f32: write(address, static_cast<float>(value)); break;
    case Format::bf16: write(address, encode_bf16(value)); break;
    case Format::f16: write(address, encode_f16(value)); break;
    case Format::e4m3: write(address, encode_e4m3(value)); break;
    case Format::e5m2: write(address, encode_e5m2(value)); break;
    case Format::boolean: write(address, static_cast<std::uint8_t>(value != 0)); break;
    case Format::index: write(address, static_cast<std::int64_t>(value)); break;
  }
}

}  // namespace sumzero
