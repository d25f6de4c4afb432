// Messages of the worker protocol (README.md beside this file), as both sides send and receive them.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace sumzero {

constexpr int worker_protocol = 1;
/// File descriptor of the shared memory in a worker.
constexpr int worker_memory = 3;

struct Message {
  nlohmann::json head;
  std::vector<std::byte> bytes;
};

/// What came is no message; `what` says what it was.
struct BrokenMessage : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// The other side did not read or write in time.
struct MessageTimeout : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Both directions of a conversation. Does not own its descriptors.
class Channel {
 public:
  using Deadline = std::optional<std::chrono::steady_clock::time_point>;

  Channel(int in, int out) : in_(in), out_(out) {}
  /// Keeps the end of what can be read from `descriptor` while this side waits.
  void overhear(int descriptor) { overheard_ = descriptor; }
  const std::string& overheard();

  /// `head` is JSON text; it announces `bytes` itself. False when the other side is gone.
  bool send(std::string_view head, std::span<const std::byte> bytes, const Deadline& deadline = {});
  /// Empty when the other side ended the conversation. Raw bytes beyond `most_bytes` are a BrokenMessage.
  std::optional<Message> receive(std::size_t most_bytes, const Deadline& deadline = {});
  /// What came before it was asked for; empty in a conversation that keeps turns.
  std::string unasked();

 private:
  void wait(int descriptor, short events, const Deadline& deadline);
  void listen();
  bool fill(std::size_t needed, const Deadline& deadline);

  int in_, out_, overheard_ = -1;
  std::string buffer_, tail_;
};

}  // namespace sumzero
