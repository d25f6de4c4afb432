#include "oracle/environment.hpp"

#include <arb.h>
#include <hwy/highway.h>
#include <mpfi.h>
#include <mpfr.h>

#include <fstream>
#include <string_view>

namespace sumzero {
namespace {

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const std::size_t colon = line.find(':');
    const std::size_t start = colon == std::string::npos ? colon : line.find_first_not_of(" \t", colon + 1);
    if (start != std::string::npos) return line.substr(start);
  }
  return "unknown";
}

constexpr std::string_view compiler_name =
#if defined(__clang__)
    "clang ";
#elif defined(__GNUC__)
    "gcc ";
#else
    "";
#endif

}  // namespace

std::map<std::string, std::string> environment() {
  std::map<std::string, std::string> result;
#ifdef SUMZERO_VERSION
  result["sumzero"] = SUMZERO_VERSION;
#endif
#ifdef SUMZERO_FLAGS
  result["flags"] = SUMZERO_FLAGS;
#endif
  result["cpu"] = processor();
  result["compiler"] = std::string(compiler_name) + __VERSION__;
  result["mpfr"] = mpfr_get_version();
  result["mpfi"] = mpfi_get_version();
  result["arb"] = arb_version;
  result["highway"] = std::to_string(HWY_MAJOR) + "." + std::to_string(HWY_MINOR) + "." + std::to_string(HWY_PATCH);
  return result;
}

}  // namespace sumzero
