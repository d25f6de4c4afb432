#include "oracle/kernel/message.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

namespace sumzero {
namespace {

static_assert(std::endian::native == std::endian::little, "lengths are written in little-endian order");

constexpr std::uint64_t longest_head = 1 << 20;
constexpr std::size_t longest_tail = 4096;

bool again() { return errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK; }

/// Without SIGPIPE where the descriptor is a socket.
ssize_t put(int descriptor, const char* from, std::size_t count) {
  const ssize_t sent = ::send(descriptor, from, count, MSG_NOSIGNAL);
  return sent < 0 && errno == ENOTSOCK ? ::write(descriptor, from, count) : sent;
}

std::string printable(std::string_view bytes) {
  std::string text;
  for (const char character : bytes.substr(0, 40)) text += character >= ' ' && character <= '~' ? character : ' ';
  return text;
}

bool is_text(std::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char c) { return (c >= ' ' && c <= '~') || c == '\n' || c == '\t' || c == '\r'; });
}

}  // namespace

void Channel::listen() {
  if (overheard_ < 0) return;
  char piece[4096];
  ssize_t got;
  while ((got = ::read(overheard_, piece, sizeof piece)) > 0) {
    tail_.append(piece, static_cast<std::size_t>(got));
    if (tail_.size() > longest_tail) tail_.erase(0, tail_.size() - longest_tail);
  }
  if (got == 0) overheard_ = -1;
}

const std::string& Channel::overheard() {
  listen();
  return tail_;
}

void Channel::wait(int descriptor, short events, const Deadline& deadline) {
  for (;;) {
    int limit = -1;
    if (deadline) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - std::chrono::steady_clock::now()).count();
      if (left <= 0) throw MessageTimeout("no answer in time");
      limit = static_cast<int>(std::min<std::int64_t>(left, 1 << 30));
    }
    pollfd places[2] = {{descriptor, events, 0}, {overheard_, POLLIN, 0}};
    if (::poll(places, overheard_ < 0 ? 1 : 2, limit) < 0 && errno != EINTR) throw std::runtime_error(std::string("poll: ") + std::strerror(errno));
    if (overheard_ >= 0 && places[1].revents) listen();
    if (places[0].revents) return;
  }
}

bool Channel::send(std::string_view head, std::span<const std::byte> bytes, const Deadline& deadline) {
  const std::uint64_t length = head.size();
  std::string front(sizeof length, '\0');
  std::memcpy(front.data(), &length, sizeof length);
  front += head;
  const std::string_view parts[] = {front, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}};
  for (std::string_view part : parts)
    while (!part.empty()) {
      const ssize_t sent = put(out_, part.data(), part.size());
      if (sent > 0) part.remove_prefix(static_cast<std::size_t>(sent));
      else if (sent < 0 && again()) wait(out_, POLLOUT, deadline);
      else return false;
    }
  return true;
}

bool Channel::fill(std::size_t needed, const Deadline& deadline) {
  char piece[1 << 16];
  while (buffer_.size() < needed) {
    wait(in_, POLLIN, deadline);
    const ssize_t got = ::read(in_, piece, sizeof piece);
    if (got > 0) buffer_.append(piece, static_cast<std::size_t>(got));
    else if (got == 0 || !again()) return false;
  }
  return true;
}

std::optional<Message> Channel::receive(std::size_t most_bytes, const Deadline& deadline) {
  std::uint64_t length = 0;
  const bool whole = fill(sizeof length, deadline);
  const std::string start = buffer_.substr(0, sizeof length);
  // Eight printable characters are never the length of a head: it would exceed 2^56.
  if (!start.empty() && is_text(start) && start.find('\0') == std::string::npos)
    throw BrokenMessage("it wrote '" + printable(buffer_) + "' to standard output, which belongs to the protocol; print to standard error");
  if (!whole) return std::nullopt;
  std::memcpy(&length, start.data(), sizeof length);
  if (length > longest_head)
    throw BrokenMessage(fmt::format("it announced a head of {} bytes; at most {} are allowed", length, longest_head));
  if (!fill(sizeof length + length, deadline)) return std::nullopt;
  Message message;
  const std::string_view head(buffer_.data() + sizeof length, length);
  message.head = nlohmann::json::parse(head, nullptr, false);
  if (!message.head.is_object()) throw BrokenMessage("its head '" + printable(head) + "' is not a JSON object");
  std::uint64_t count = 0;
  if (const auto bytes = message.head.find("bytes"); bytes != message.head.end()) {
    if (!bytes->is_number_unsigned()) throw BrokenMessage("its field 'bytes' is not a count");
    count = bytes->get<std::uint64_t>();
    if (count > most_bytes) throw BrokenMessage(fmt::format("it announced {} raw bytes where at most {} are due", count, most_bytes));
  }
  if (!fill(sizeof length + length + count, deadline)) return std::nullopt;
  const auto* raw = reinterpret_cast<const std::byte*>(buffer_.data() + sizeof length + length);
  message.bytes.assign(raw, raw + count);
  buffer_.erase(0, sizeof length + length + count);
  return message;
}

std::string Channel::unasked() {
  pollfd place{in_, POLLIN, 0};
  char piece[64];
  while (buffer_.size() < 64 && ::poll(&place, 1, 0) > 0) {
    const ssize_t got = ::read(in_, piece, sizeof piece);
    if (got <= 0) break;
    buffer_.append(piece, static_cast<std::size_t>(got));
  }
  return printable(buffer_);
}

}  // namespace sumzero
