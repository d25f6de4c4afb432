#include "reference/format.hpp"

#include <cstring>

namespace sumzero {
namespace {

// Rounds to `format` by scaling so that the quantum is 1 and letting nearbyint (ties to even) do the rest.
double round_to_small(Format format, double value) {
  if (!std::isfinite(value) || value == 0) return value;
  const FormatTraits t = traits(format);
  int exponent;
  std::frexp(value, &exponent);                            // |value| in [2^(exponent-1), 2^exponent)
  int quantum = exponent - t.precision;                    // exponent of one unit in the last place
  const int lowest = t.min_exponent - t.precision + 1;
  if (quantum < lowest) quantum = lowest;
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -quantum)), quantum);
  if (std::fabs(rounded) > largest_finite(format)) return std::copysign(HUGE_VAL, value);
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

}  // namespace

std::uint16_t encode_bf16(double value) { return encode_bf16(static_cast<float>(round_to_small(Format::bf16, value))); }
std::uint16_t encode_f16(double value) { return encode_f16(static_cast<float>(round_to_small(Format::f16, value))); }

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
    case Format::boolean: write(address, static_cast<std::uint8_t>(value != 0)); break;
    case Format::index: write(address, static_cast<std::int64_t>(value)); break;
  }
}

}  // namespace sumzero
