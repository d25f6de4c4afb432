// Mutation testing of the tool: kernels that are right are broken in known ways, and campaigns must notice.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "oracle/verdict.hpp"
#include "reference/format.hpp"

namespace sumzero {

struct SelftestOptions {
  std::string op, kernel = "fast";  ///< no operator: all that have this kernel
  std::vector<Format> formats = {Format::f32, Format::bf16, Format::e4m3};
  std::uint64_t seed = 1, cases = 384;  ///< cases until a mutant counts as survivor
  std::uint64_t twin_cases = 96;        ///< of the twin without the defect
  int threads = 1;
  const std::atomic<bool>* stop = nullptr;
  std::function<void(std::size_t done, std::size_t all)> progress;  ///< from one of the threads at a time
};

struct MutantOutcome {
  std::string op, mutation, defect;
  Format format = Format::f32;
  std::string property;      ///< first confirmed violation; empty: survived
  std::uint64_t calls = 0;   ///< cases until then
  std::string false_alarm;   ///< what the twin without the defect is accused of; empty: nothing
  std::string skipped;       ///< why it was not run
};

struct SelftestResult {
  static constexpr double required_rate = 0.95;
  std::vector<MutantOutcome> mutants;
  bool complete = true;  ///< false when stopped early
  std::size_t run() const;
  std::size_t killed() const;
  std::size_t false_alarms() const;
  double kill_rate() const;
  /// pass needs the required kill rate and no false alarm; inconclusive when stopped early or nothing was run.
  Exit exit_code() const;
};

/// The same outcome on any number of threads. Throws InvalidInput for unknown names.
SelftestResult selftest(const SelftestOptions& options);

std::string selftest_text(const SelftestResult& result);
nlohmann::json to_json(const SelftestResult& result);

}  // namespace sumzero
