#include "oracle/file.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <system_error>

#include "reference/case.hpp"

namespace sumzero {
namespace {

namespace fs = std::filesystem;

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int value() const { return value_; }
  bool close() {
    const int closing = value_;
    value_ = -1;
    return ::close(closing) == 0;
  }

 private:
  int value_;
};

std::string because() { return std::strerror(errno); }

bool write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

bool already_holds(const fs::path& path, std::string_view text) {
  std::error_code error;
  if (!fs::is_regular_file(path, error) || fs::file_size(path, error) != text.size()) return false;
  return read_file(path) == text;
}

}  // namespace

std::string read_file(const fs::path& path) {
  // Non-blocking, so that a named pipe is refused below instead of waited for.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.value() < 0)
    throw InvalidInput(path.string() + ": cannot be read (" + because() + "); check the path and its permissions");
  struct stat status {};
  if (::fstat(file.value(), &status) != 0 || !S_ISREG(status.st_mode))
    throw InvalidInput(path.string() + ": is not a regular file; give the path of a file");
  if (static_cast<std::uintmax_t>(status.st_size) > largest_file)
    throw InvalidInput(path.string() + ": has " + std::to_string(status.st_size) + " bytes, more than the " +
                       std::to_string(largest_file) + " that are read; split it");
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t got = ::read(file.value(), text.data() + filled, text.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw InvalidInput(path.string() + ": cannot be read (" + because() + "); check the device");
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  text.resize(filled);
  return text;
}

fs::path executable() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error);
}

fs::path shared_file(const fs::path& name) {
  const fs::path beside = executable().parent_path().parent_path() / "share/sumzero" / name;
  if (fs::exists(beside)) return beside;
  // A program of somebody else: the files lie beside the library, below one or two folders.
  Dl_info library;
  if (::dladdr(reinterpret_cast<const void*>(&shared_file), &library) != 0 && library.dli_fname) {
    fs::path folder = fs::absolute(library.dli_fname).parent_path();
    for (int up = 0; up < 3; ++up, folder = folder.parent_path())
      if (fs::exists(folder / "share/sumzero" / name)) return folder / "share/sumzero" / name;
  }
  return beside;
}

FolderLock::FolderLock(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw InvalidInput(folder.string() + ": cannot be created (" + error.message() + "); choose another folder");
  file_ = ::open((folder / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file_ < 0) throw InvalidInput(folder.string() + ": cannot be written (" + because() + "); choose a folder that can be");
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0) {
    const bool taken = errno == EWOULDBLOCK;
    const std::string reason = because();
    ::close(file_);
    throw InvalidInput(folder.string() + (taken ? ": another run writes here; wait for it or choose another --out"
                                                : ": cannot be locked (" + reason + "); choose another folder"));
  }
  for (const fs::path& place : {folder, folder / "witness"})
    for (fs::directory_iterator entry(place, error), end; !error && entry != end; entry.increment(error)) {
      const std::string file_name = entry->path().filename().string();
      if (!file_name.starts_with('.') || !file_name.ends_with(".tmp")) continue;
      std::error_code ignored;
      fs::remove(entry->path(), ignored);
    }
}

FolderLock::~FolderLock() { ::close(file_); }

void write_file(const fs::path& path, std::string_view text) {
  if (already_holds(path, text)) return;
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw InvalidInput(folder.string() + ": cannot be created (" + error.message() + "); choose another folder");

  static std::atomic<std::uint64_t> serial{0};
  const fs::path temporary = folder / ("." + path.filename().string() + "." + std::to_string(::getpid()) + "." +
                                       std::to_string(serial++) + ".tmp");
  // O_EXCL: never through a link that somebody else put there.
  Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (file.value() < 0)
    throw InvalidInput(path.string() + ": cannot be written (" + because() + "); choose a folder that can be");
  const bool complete = write_all(file.value(), text) && file.close();
  if (complete && ::rename(temporary.c_str(), path.c_str()) == 0) return;
  const std::string reason = because();
  ::unlink(temporary.c_str());
  throw InvalidInput(path.string() + ": cannot be written (" + reason + "); make room or choose another path");
}

}  // namespace sumzero
