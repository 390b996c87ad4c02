#include "io/file_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace mr {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

static constexpr size_t kGathered = 1 << 20;  // bytes of small writes that go out together

FileWriter::FileWriter(std::filesystem::path path) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) failed();
}

FileWriter::~FileWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void FileWriter::failed() const { fail("cannot write '{}': {}", path_.native(), std::strerror(errno)); }

static bool write_all(int fd, const char* data, size_t n) {
  while (n > 0) {
    const ssize_t written = ::write(fd, data, std::min(n, size_t(1) << 30));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    data += written;
    n -= size_t(written);
  }
  return true;
}

void FileWriter::flush() {
  if (!write_all(fd_, pending_.data(), pending_.size())) failed();
  pending_.clear();
}

void FileWriter::write(std::span<const std::byte> bytes) {
  const char* data = reinterpret_cast<const char*>(bytes.data());
  position_ += int64_t(bytes.size());
  if (pending_.size() + bytes.size() < kGathered) {
    pending_.append(data, bytes.size());
    return;
  }
  flush();
  if (!write_all(fd_, data, bytes.size())) failed();
}

void FileWriter::pad_to(int64_t multiple) {
  const std::string zeros(size_t((multiple - position_ % multiple) % multiple), '\0');
  write(zeros);
}

void FileWriter::close() {
  flush();
  if (::fsync(fd_) != 0) failed();
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) failed();
}

void sync_directory(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool ok = fd >= 0 && ::fsync(fd) == 0;
  if (fd >= 0) ::close(fd);
  check(ok, "cannot write the directory '{}': {}", path.native(), std::strerror(errno));
}

}  // namespace mr
