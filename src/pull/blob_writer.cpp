#include "pull/blob_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace mr {

namespace fs = std::filesystem;

BlobWriter::BlobWriter(fs::path blob, const HubFile& file, FileLock lock)
    : blob_(std::move(blob)), partial_(blob_.string() + ".incomplete"), file_(file), lock_(std::move(lock)), digest_(file.hash, file.size) {
  std::error_code failed;
  fs::create_directories(blob_.parent_path(), failed);
  check(!failed, "cannot make the folder '{}': {}", blob_.parent_path().string(), failed.message());
  open(true);
}

BlobWriter::~BlobWriter() {
  if (fd_ >= 0) ::close(fd_);
}

// Existing bytes are hashed again: the final hash decides whether they belong to this file.
void BlobWriter::open(bool resume) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = ::open(partial_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | (resume ? 0 : O_TRUNC), 0644);
  check(fd_ >= 0, "cannot write '{}': {}", partial_.string(), std::strerror(errno));
  digest_ = Digest(file_.hash, file_.size);
  early_.clear();
  written_ = 0;
  std::string piece(1 << 20, '\0');
  while (resume && written_ < file_.size) {
    const ssize_t n = ::pread(fd_, piece.data(), size_t(std::min<int64_t>(int64_t(piece.size()), file_.size - written_)), written_.load());
    if (n <= 0) break;
    digest_.add(std::string_view(piece.data(), size_t(n)));
    written_ += n;
  }
  was_resumed_ = written_ > 0;
  check(::ftruncate(fd_, written_) == 0, "cannot write '{}': {}", partial_.string(), std::strerror(errno));
}

void BlobWriter::write(std::string_view bytes) {
  digest_.add(bytes);
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), written_.load());
    if (n < 0 && errno == EINTR) continue;
    check(n > 0, "cannot write '{}': {}", partial_.string(), n < 0 ? std::strerror(errno) : "the disk takes no more");
    written_ += n;
    bytes.remove_prefix(size_t(n));
  }
}

void BlobWriter::put(int64_t offset, std::string bytes) {
  std::lock_guard lock(mutex_);
  if (offset != written_) {
    early_[offset] = std::move(bytes);
    return;
  }
  write(bytes);
  for (auto next = early_.begin(); next != early_.end() && next->first == written_.load(); next = early_.erase(next)) write(next->second);
}

bool BlobWriter::finish() {
  if (digest_.hex() != file_.hash) {
    open(false);
    return false;
  }
  check(::fdatasync(fd_) == 0, "cannot write '{}': {}", partial_.string(), std::strerror(errno));  // before the rename
  std::error_code failed;
  fs::rename(partial_, blob_, failed);
  check(!failed, "cannot write '{}': {}", blob_.string(), failed.message());
  return true;
}

}  // namespace mr
