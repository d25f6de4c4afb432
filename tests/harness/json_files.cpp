// libFuzzer entry of everything that is read as JSON: witnesses, contracts, reports with their tallies. Any bytes give a value
// or InvalidInput, and what was read survives a round trip.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "oracle/contract.hpp"
#include "oracle/report.hpp"
#include "oracle/witness.hpp"
#include "reference/case.hpp"

using namespace sumzero;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    const nlohmann::json parsed = parse_json(bytes, "input");
    const JsonValue value(parsed, "input");
    switch (data[0] % 3) {
      case 0: {
        const Case input = case_from_json(value);
        const nlohmann::json again = nlohmann::json::parse(to_json(input).dump());
        if (content_address(case_from_json(JsonValue(again, "again"))) != content_address(input)) std::abort();
        break;
      }
      case 1: contract_from(value, default_contract(Format::f32)); break;
      default: {
        const nlohmann::json once = to_json(report_from_json(parsed, "input"));
        if (to_json(report_from_json(once, "again")) != once) std::abort();
      }
    }
  } catch (const InvalidInput&) {
  }
  return 0;
}
