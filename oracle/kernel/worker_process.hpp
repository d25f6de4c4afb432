// A process that runs kernels: started with limits, asked and answered with a time limit, killed with all it started.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "oracle/kernel/guarded_run.hpp"
#include "oracle/kernel/message.hpp"

namespace sumzero {

struct WorkerLimits {
  double seconds = 10;       ///< for one call; starting may take six times as long
  std::uint64_t memory = 0;  ///< private memory of the worker that it can write, in bytes; 0: no limit
};

class WorkerProcess {
 public:
  /// `arguments[0]` is looked up in PATH. Throws Crashed when it cannot be executed.
  WorkerProcess(const std::vector<std::string>& arguments, const std::vector<std::string>& environment, const WorkerLimits& limits);
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  bool alive() const { return process_ > 0; }

  /// The answer to one message. Throws Crashed or TimedOut with one sentence; the process is gone then.
  Message ask(std::string_view head, std::span<const std::byte> bytes, std::size_t most_bytes, double seconds);

  /// At least `bytes` bytes that the worker can map; valid until the next call.
  std::byte* memory(std::size_t bytes);

 private:
  std::string last_words();
  std::string end();
  void kill();
  void dismiss_guardian();

  pid_t process_ = -1, guardian_ = -1;
  int socket_ = -1, errors_ = -1, memory_ = -1, line_ = -1;
  std::byte* mapped_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  Channel channel_{-1, -1};
};

}  // namespace sumzero
