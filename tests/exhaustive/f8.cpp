// Converts all 2^32 f32 bit patterns to an 8-bit format and compares with the definition.
//
//   f8 e4m3 | e5m2 | planted      Exit 0: all agree; 1: some differ (the first is printed); 2: usage
// planted truncates and must exit 1.
#include <bit>
#include <cstdint>
#include <cstdio>
#include <string>

#include "tests/f8_reference.hpp"

int main(int argc, char** argv) {
  using namespace sumzero;
  const std::string subject = argc == 2 ? argv[1] : "";
  if (subject != "e4m3" && subject != "e5m2" && subject != "planted") return 2;
  const Format format = subject == "e5m2" ? Format::e5m2 : Format::e4m3;
  const F8Reference reference(format);
  const int last = format == Format::e4m3 ? 0x7e : 0x7c;
  std::uint64_t wrong = 0;
  int expected = 0;  // magnitudes rise, and so does the code
  for (std::uint32_t bits = 0; bits < 0x80000000u; ++bits) {
    const float value = std::bit_cast<float>(bits);
    if (bits <= 0x7f800000u)
      while (expected < last && reference.beyond(value, expected)) ++expected;
    else
      expected = format == Format::e4m3 ? 0x7f : 0x7e;
    for (const std::uint32_t sign : {0u, 0x80u}) {
      const float argument = std::bit_cast<float>(bits | sign << 24);
      std::uint8_t code = format == Format::e4m3 ? encode_e4m3(argument) : encode_e5m2(argument);
      if (subject == "planted" && (code & 0x7f) != 0x7f && std::fabs(decode_e4m3(code)) > value) --code;
      if (code == (static_cast<std::uint32_t>(expected) | sign)) continue;
      if (wrong++ == 0) std::printf("%a (0x%08x): code 0x%02x, expected 0x%02x\n", static_cast<double>(argument), bits | sign << 24, code, expected | sign);
    }
  }
  std::printf("%s: %llu of 2^32 wrong\n", subject.c_str(), static_cast<unsigned long long>(wrong));
  return wrong > 0;
}
