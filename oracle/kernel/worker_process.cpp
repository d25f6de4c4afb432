#include "oracle/kernel/worker_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>  // close_range

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

namespace sumzero {
namespace {

using namespace std::chrono_literals;

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(fmt::format("cannot start a worker: {}: {}", what, std::strerror(errno)));
}

void close_all(std::initializer_list<int> descriptors) {
  for (const int descriptor : descriptors)
    if (descriptor >= 0) ::close(descriptor);
}

/// Between fork and exec of a process with threads: only calls that are safe in a signal handler.
[[noreturn]] void become(char* const* arguments, char* const* environment, int conversation, int errors, int memory, int report,
                         std::uint64_t limit) {
  // Clear of the places 0 to 3 that they go to.
  conversation = ::fcntl(conversation, F_DUPFD_CLOEXEC, 10);
  errors = ::fcntl(errors, F_DUPFD_CLOEXEC, 10);
  memory = ::fcntl(memory, F_DUPFD_CLOEXEC, 10);
  report = ::fcntl(report, F_DUPFD_CLOEXEC, 10);
  bool fine = ::dup2(conversation, 0) == 0 && ::dup2(conversation, 1) == 1 && ::dup2(errors, 2) == 2 &&
              ::dup2(memory, worker_memory) == worker_memory;
  // Its own group: an interrupt from the terminal is the tool's to handle, and a kill reaches what the worker started.
  fine = ::setpgid(0, 0) == 0 && fine;
  const rlimit none{0, 0}, most{limit, limit};
  ::setrlimit(RLIMIT_CORE, &none);
  // Memory that can be written and is not shared; drivers of GPUs reserve more addresses than a machine has.
  if (limit > 0) fine = ::setrlimit(RLIMIT_DATA, &most) == 0 && fine;
  for (const int signal : {SIGINT, SIGTERM, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGPIPE}) ::signal(signal, SIG_DFL);
  if (fine) ::execvpe(arguments[0], arguments, environment);
  const int reason = errno;
  if (::write(report, &reason, sizeof reason) < 0) ::_exit(127);
  ::_exit(127);
}

/// A child that waits until the tool's end of `line` closes, by the tool's death also, and then kills the worker's group: a
/// kernel that hangs must not outlive the tool. (The kernel's parent-death signal is sent when the starting thread ends.)
pid_t start_guardian(pid_t group, int line) {
  const pid_t guardian = ::fork();
  if (guardian != 0) return guardian;
  // No other descriptor: copies of the tool's ends would keep lines and pipes open.
  if (::dup2(line, 0) != 0) ::_exit(1);
  ::close_range(1, ~0u, 0);
  ::setpgid(0, 0);
  char nothing;
  while (::read(0, &nothing, 1) < 0 && errno == EINTR) {}
  ::kill(-group, SIGKILL);
  ::_exit(0);
}

}  // namespace

WorkerProcess::WorkerProcess(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
                             const WorkerLimits& limits) {
  int conversation[2] = {-1, -1}, errors[2] = {-1, -1}, report[2] = {-1, -1}, line[2] = {-1, -1};
  memory_ = ::memfd_create("sumzero", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  require(memory_ >= 0, "memfd_create");
  // A worker that shrank it would take the tool down with a bus error.
  require(::fcntl(memory_, F_ADD_SEALS, F_SEAL_SHRINK) == 0, "sealing");
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, conversation) == 0, "socketpair");
  require(::pipe2(errors, O_CLOEXEC) == 0 && ::pipe2(report, O_CLOEXEC) == 0 && ::pipe2(line, O_CLOEXEC) == 0, "pipe");
  socket_ = conversation[0];
  errors_ = errors[0];
  require(::fcntl(socket_, F_SETFL, O_NONBLOCK) == 0 && ::fcntl(errors_, F_SETFL, O_NONBLOCK) == 0, "fcntl");
  const std::vector<char*> words = pointers(arguments), variables = pointers(environment);
  process_ = ::fork();
  if (process_ == 0) become(words.data(), variables.data(), conversation[1], errors[1], memory_, report[1], limits.memory);
  const bool started = process_ > 0;
  if (started) guardian_ = start_guardian(process_, line[0]);
  line_ = line[1];
  close_all({conversation[1], errors[1], report[1], line[0]});
  int reason = 0;
  const bool failed = started && ::read(report[0], &reason, sizeof reason) == sizeof reason;
  close_all({report[0]});
  require(started, "fork");
  channel_ = Channel(socket_, socket_);
  channel_.overhear(errors_);
  if (!failed) return;
  kill();
  close_all({socket_, errors_, memory_});
  throw Crashed(fmt::format("'{}' cannot be executed: {}", arguments[0], std::strerror(reason)));
}

WorkerProcess::~WorkerProcess() {
  kill();
  if (mapped_) ::munmap(mapped_, mapped_bytes_);
  close_all({socket_, errors_, memory_});
}

void WorkerProcess::kill() {
  dismiss_guardian();
  if (process_ <= 0) return;
  ::kill(-process_, SIGKILL);
  ::kill(process_, SIGKILL);
  while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {}
  process_ = -1;
}

/// Before the worker's number can belong to another process.
void WorkerProcess::dismiss_guardian() {
  if (guardian_ > 0) {
    ::kill(guardian_, SIGKILL);
    while (::waitpid(guardian_, nullptr, 0) < 0 && errno == EINTR) {}
  }
  guardian_ = -1;
  close_all({line_});
  line_ = -1;
}

std::byte* WorkerProcess::memory(std::size_t bytes) {
  if (bytes <= mapped_bytes_) return mapped_;
  const std::size_t size = std::max<std::size_t>((bytes + 65535) / 65536 * 65536, 2 * mapped_bytes_);
  require(::ftruncate(memory_, static_cast<off_t>(size)) == 0, "shared memory");
  if (mapped_) ::munmap(mapped_, mapped_bytes_);
  mapped_ = nullptr;
  mapped_bytes_ = 0;
  void* address = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory_, 0);
  require(address != MAP_FAILED, "shared memory");
  mapped_ = static_cast<std::byte*>(address);
  mapped_bytes_ = size;
  return mapped_;
}

/// The last line on standard error, as the end of a sentence.
std::string WorkerProcess::last_words() {
  const std::string& text = channel_.overheard();
  const std::size_t last = text.find_last_not_of(" \t\r\n");
  if (last == std::string::npos) return "";
  const std::size_t first = text.find_last_of('\n', last);
  const std::size_t begin = first == std::string::npos ? 0 : first + 1;
  return ": " + text.substr(begin, std::min<std::size_t>(last + 1 - begin, 300));
}

/// How the process ended, after it ended the conversation.
std::string WorkerProcess::end() {
  int status = 0;
  pid_t ended = 0;
  dismiss_guardian();
  for (int i = 0; i < 1000 && (ended = ::waitpid(process_, &status, WNOHANG)) == 0; ++i) std::this_thread::sleep_for(1ms);
  if (ended != process_) {
    kill();
    return "the worker closed its end of the conversation" + last_words();
  }
  ::kill(-process_, SIGKILL);
  process_ = -1;
  if (WIFSIGNALED(status)) {
    const char* abbreviation = ::sigabbrev_np(WTERMSIG(status));
    return fmt::format("the worker was killed by SIG{} ({})", abbreviation ? abbreviation : "?", ::strsignal(WTERMSIG(status))) + last_words();
  }
  return fmt::format("the worker exited with code {}", WEXITSTATUS(status)) + last_words();
}

Message WorkerProcess::ask(std::string_view head, std::span<const std::byte> bytes, std::size_t most_bytes, double seconds) {
  if (process_ <= 0) throw Crashed("the worker is gone");
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
  try {
    if (const std::string text = channel_.unasked(); !text.empty())
      throw BrokenMessage("it wrote '" + text + "' to standard output, which belongs to the protocol; print to standard error");
    std::optional<Message> answer;
    // A worker that died on sending may have written why before.
    const bool sent = channel_.send(head, bytes, deadline);
    if (sent) answer = channel_.receive(most_bytes, deadline);
    if (answer) return std::move(*answer);
    throw Crashed(end());
  } catch (const MessageTimeout&) {
    kill();
    throw TimedOut(fmt::format("the worker did not answer within {:g} s; allow more with --timeout", seconds) + last_words());
  } catch (const BrokenMessage& broken) {
    kill();
    throw Crashed(std::string("the worker broke the protocol: ") + broken.what());
  }
}

}  // namespace sumzero
