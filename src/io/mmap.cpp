#include "io/mmap.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace mr {

namespace {
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};
}  // namespace

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  const char* name = path_.c_str();
  Descriptor file{open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};  // opening a pipe without a writer must not block
  check(file.fd >= 0, "cannot open '{}': {}", name, std::strerror(errno));
  struct stat info;
  bool known = fstat(file.fd, &info) == 0;
  check(known, "cannot read the size of '{}': {}", name, std::strerror(errno));
  check(!S_ISDIR(info.st_mode), "'{}' is a directory, not a file", name);
  check(S_ISREG(info.st_mode), "'{}' is not a regular file", name);
  check(info.st_size > 0, "'{}' is empty", name);
  void* data = mmap(nullptr, size_t(info.st_size), PROT_READ, MAP_PRIVATE, file.fd, 0);
  check(data != MAP_FAILED, "cannot map the {} bytes of '{}': {}", info.st_size, name, std::strerror(errno));
  data_ = static_cast<const std::byte*>(data);
  size_ = size_t(info.st_size);
}

MappedFile::~MappedFile() {
  if (data_) munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::drop(size_t offset, size_t length) const {
  size_t page = size_t(sysconf(_SC_PAGESIZE));
  size_t stop = offset < size_ ? offset + std::min(length, size_ - offset) : 0;
  size_t begin = offset < size_ ? (offset + page - 1) / page * page : 0;
  size_t end = stop == size_ ? stop : stop / page * page;  // no other data follows in the last page
  if (begin < end) madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

void MappedFile::swap(MappedFile& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
}

}  // namespace mr
