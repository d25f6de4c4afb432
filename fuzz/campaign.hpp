// A campaign: many cases of one operator through one kernel, judged, reduced to a report.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <optional>

#include "oracle/verdict.hpp"
#include "reference/operator.hpp"

namespace sumzero {

struct CampaignOptions {
  std::string op, kernel;
  const Kernel* subject = nullptr;      ///< judged instead of the registered kernel of that name
  Format format = Format::f32;
  std::optional<double> seconds;        ///< time limit
  std::optional<std::uint64_t> cases;   ///< case limit; without either: 10 seconds
  std::uint64_t seed = 1;
  std::int64_t exhaust = 0;             ///< not 0: instead of drawing cases, all rows of so many logits (fuzz/exhaustive.hpp)
  int threads = 1;
  std::uint64_t shard = 0, shards = 1;  ///< this run takes the cases with index = shard modulo shards
  std::optional<std::filesystem::path> out;  ///< folder of report, witnesses and state
  bool resume = false;                  ///< go on where the folder's state ends
  const std::atomic<bool>* stop = nullptr;  ///< set from outside to end early, results kept
  /// Called about ten times a second from the calling thread.
  std::function<void(const Report& so_far, double seconds, std::optional<double> seconds_left)> progress;
};

/// Runs the campaign, or counts through all rows in chunks that are one case each, without time or case limit unless one is
/// given, and without the properties that call the kernel again. The cases depend on operator, format and seed alone, so one or many threads judge the same cases.
/// Throws InvalidInput for unknown names or an unusable folder.
Report run_campaign(const CampaignOptions& options);

/// Case number `index` that a campaign draws.
Case campaign_case(const Signature& signature, Format format, std::uint64_t seed, std::uint64_t index);

/// Whether a campaign runs the properties that call the kernel again on case number `index`.
bool campaign_reruns(std::uint64_t index);

}  // namespace sumzero
