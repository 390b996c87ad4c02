// A new file, written from its start to its end. Errors are sentences that name the file: a full disk, a missing permission.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace mr {

class FileWriter {
 public:
  explicit FileWriter(std::filesystem::path path);  // throws if it exists or cannot be made
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }
  template <class T>
    requires std::is_arithmetic_v<T>
  void number(T value) {  // little-endian
    write(std::as_bytes(std::span(&value, 1)));
  }
  void pad_to(int64_t multiple);  // with zeros
  int64_t position() const { return position_; }
  void close();  // everything is on the disk after it; throws if not

 private:
  void flush();
  [[noreturn]] void failed() const;
  std::filesystem::path path_;
  int fd_ = -1;
  int64_t position_ = 0;
  std::string pending_;
};

// Makes the names in a directory durable.
void sync_directory(const std::filesystem::path&);

}  // namespace mr
