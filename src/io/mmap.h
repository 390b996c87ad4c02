// A file mapped read-only: pages are read when touched, and can be released.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace mr {

class MappedFile {
 public:
  explicit MappedFile(std::filesystem::path path);  // throws if it is missing, unreadable, not regular or empty
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept { swap(other); }
  MappedFile& operator=(MappedFile&& other) noexcept {
    swap(other);
    return *this;
  }

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  void drop(size_t offset, size_t length) const;  // releases the whole pages inside; touching them again reads the file again

 private:
  void swap(MappedFile& other) noexcept;
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace mr
