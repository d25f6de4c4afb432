// Speed, always as a ratio to something measured in the same run.
#pragma once

#include <string>

#include "oracle/verdict.hpp"

namespace sumzero {

struct BenchOptions {
  bool quick = false;
  std::string json;  ///< file for the figures; empty: none
};

/// Prints the table to standard output. Never fails on slowness.
Exit run_bench(const BenchOptions& options);

}  // namespace sumzero
