#include "io/npy.h"

#include <bit>
#include <cerrno>
#include <cstring>
#include <string>

#include "core/error.h"

namespace mr {

static_assert(std::endian::native == std::endian::little, "the header promises little-endian numbers");

NpyWriter::NpyWriter(std::filesystem::path path, int64_t rows, int64_t cols) : path_(std::move(path)), rows_(rows), cols_(cols) {
  check(rows >= 0 && cols > 0, "cannot write a matrix of {} rows and {} columns to '{}'", rows, cols, path_.native());
  file_.reset(std::fopen(path_.c_str(), "wb"));
  check(file_ != nullptr, "cannot write '{}': {}", path_.native(), std::strerror(errno));
  // Format 1.0: magic, version, two bytes of length, then a Python dictionary padded so that the data starts at a multiple of 64.
  std::string text = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, cols);
  text.append(63 - (10 + text.size()) % 64, ' ').append("\n");
  std::string head("\x93NUMPY\x01\x00", 8);
  head += char(text.size() & 0xff);
  head += char(text.size() >> 8);
  head += text;
  bool ok = std::fwrite(head.data(), 1, head.size(), file_.get()) == head.size();
  check(ok, "cannot write '{}': {}", path_.native(), std::strerror(errno));
}

void NpyWriter::append(std::span<const float> values) {
  check(file_ != nullptr, "'{}' is closed: nothing can be appended", path_.native());
  check(values.size() % size_t(cols_) == 0, "{} values are not whole rows of the {} columns of '{}'", values.size(), cols_, path_.native());
  written_ += int64_t(values.size()) / cols_;
  check(written_ <= rows_, "'{}' was opened for {} rows, not for {}", path_.native(), rows_, written_);
  bool ok = std::fwrite(values.data(), sizeof(float), values.size(), file_.get()) == values.size();
  check(ok, "cannot write '{}': {}", path_.native(), std::strerror(errno));
}

void NpyWriter::close() {
  check(written_ == rows_, "'{}' was opened for {} rows, but got {}", path_.native(), rows_, written_);
  std::FILE* file = file_.release();
  bool ok = !file || std::fclose(file) == 0;
  check(ok, "cannot write '{}': {}", path_.native(), std::strerror(errno));
}

}  // namespace mr
