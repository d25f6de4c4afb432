// Reading and writing of whole small files, the only place that touches the file system for results.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace sumzero {

/// Largest file that `read_file` takes into memory.
constexpr std::uintmax_t largest_file = std::uintmax_t{4} << 30;

/// Contents of a regular file. Throws InvalidInput when it is missing, not a regular file, unreadable or larger than
/// `largest_file`.
std::string read_file(const std::filesystem::path& path);

/// Replaces `path` by `text` in one step (temporary file in the same folder, then rename), creating missing folders: a
/// reader sees the old text or the new one, also when the process dies or shards write the same file at once. A file
/// that already holds `text` is left alone. Throws InvalidInput when the folder cannot be written.
void write_file(const std::filesystem::path& path, std::string_view text);

/// The program that runs.
std::filesystem::path executable();
/// A file that is installed beside the tool, in share/sumzero; where there is none, the path where it should be.
std::filesystem::path shared_file(const std::filesystem::path& name);

/// Keeps other runs out of a folder until it is destroyed or the process ends; creates the folder, and removes what killed
/// runs left half written. Throws InvalidInput when another run has the folder, or it cannot be written.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int file_ = -1;
};

}  // namespace sumzero
