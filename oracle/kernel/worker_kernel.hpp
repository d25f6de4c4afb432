// Foreign kernels: a command or a file named by --kernel becomes a registered Kernel that talks to a worker process.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "oracle/kernel/worker_process.hpp"
#include "reference/operator.hpp"

namespace sumzero {

struct WorkerOptions {
  WorkerLimits limits;
  /// Where not empty: every case is a file of this folder while a worker runs it, so that it survives the tool and the machine.
  std::filesystem::path running;
};

/// Whether `--kernel` names a foreign kernel: `process:COMMAND`, a path with a slash, or a file ending in .py or .so.
bool is_foreign_kernel(std::string_view text);

/// Starts a worker, asks what it offers, and registers one kernel per operator under the worker's name, with `text` as alias.
/// Each thread that runs the kernel gets a worker of its own. A text that was opened before only changes its options.
/// Throws InvalidInput when the file is missing or the worker does not start or describe itself.
void open_foreign_kernel(const std::string& text, const WorkerOptions& options);

}  // namespace sumzero
