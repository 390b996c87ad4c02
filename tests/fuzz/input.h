// Inputs in the form that the code under test takes. An Error is a valid outcome; any other exception is a bug.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "core/error.h"
#include "io/mmap.h"

namespace mr::fuzz {

// A file in memory, rewritten for every input.
class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("fuzz", MFD_CLOEXEC)), path_("/proc/self/fd/" + std::to_string(fd_)) {}
  MappedFile map(const uint8_t* data, size_t size) {
    if (ftruncate(fd_, 0) != 0 || pwrite(fd_, data, size, 0) != ssize_t(size)) std::abort();
    return MappedFile(path_);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  int fd_;
  std::filesystem::path path_;
};

// A directory of files rewritten for every input; under TMPDIR, which should be in memory.
class MemoryDirectory {
 public:
  MemoryDirectory() : path_(std::filesystem::temp_directory_path() / ("fuzz-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~MemoryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  void write(std::string_view name, std::string_view bytes) const {
    int fd = open((path_ / name).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || ::write(fd, bytes.data(), bytes.size()) != ssize_t(bytes.size()) || close(fd) != 0) std::abort();
  }
  void remove(std::string_view name) const { unlink((path_ / name).c_str()); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// A message for the user: one line of readable length.
inline void check_message(const Error& e) {
  std::string_view text = e.what();
  if (text.empty() || text.size() > 4096 || text.find_first_of("\n\r\x1b") != text.npos) std::abort();
}

inline std::string_view as_text(const uint8_t* data, size_t size) { return {reinterpret_cast<const char*>(data), size}; }

}  // namespace mr::fuzz
