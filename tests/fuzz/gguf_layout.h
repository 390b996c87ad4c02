// Offsets of the parts of a GGUF file, so that a mutation can change one and keep the rest consistent.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace mr::fuzz {

struct GgufLayout {
  // A number or a string (with its length before it).
  struct Part {
    enum class Kind : uint8_t {
      version,
      count,
      key,
      type,
      number,
      text,
      element_type,
      length,
      name,
      rank,
      dimension,
      tensor_type,
      offset
    } kind;
    size_t begin, end;
  };
  struct Record {
    size_t begin, end;
  };
  static constexpr size_t n_tensors_at = 8, n_metadata_at = 16;
  std::vector<Part> parts;
  std::vector<Record> metadata, tensors;

  explicit GgufLayout(std::string_view file) : file_(file) {
    if (file.size() < 24) return;
    add(Part::Kind::version, 4, 4);
    add(Part::Kind::count, n_tensors_at, 8);
    add(Part::Kind::count, n_metadata_at, 8);
    at_ = 24;
    uint64_t n_tensors = peek(n_tensors_at, 8), n_metadata = peek(n_metadata_at, 8);
    for (uint64_t i = 0; whole_ && i < n_metadata; i++) read_metadata();
    for (uint64_t i = 0; whole_ && i < n_tensors; i++) read_tensor();
  }

  uint64_t peek(size_t at, size_t bytes) const {
    uint64_t n = 0;
    if (at + bytes <= file_.size()) std::memcpy(&n, file_.data() + at, bytes);
    return n;
  }

 private:
  void add(Part::Kind kind, size_t begin, size_t bytes) { parts.push_back({kind, begin, begin + bytes}); }

  uint64_t number(Part::Kind kind, size_t bytes) {
    if (!whole_ || file_.size() - at_ < bytes) return whole_ = false;
    add(kind, at_, bytes);
    at_ += bytes;
    return peek(at_ - bytes, bytes);
  }

  void string(Part::Kind kind) {
    uint64_t length = at_ + 8 <= file_.size() ? peek(at_, 8) : ~0ull;
    if (!whole_ || length > file_.size() - at_ - 8) {
      whole_ = false;
      return;
    }
    add(kind, at_, 8 + length);
    at_ += 8 + length;
  }

  void value(uint64_t type, int depth) {
    static constexpr uint8_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (type == 8) return string(Part::Kind::text);
    if (type != 9) {
      if (type < 13) number(Part::Kind::number, sizes[type]);
      whole_ = whole_ && type < 13;
      return;
    }
    uint64_t element = number(Part::Kind::element_type, 4), n = number(Part::Kind::length, 8);
    whole_ = whole_ && depth < 8;
    for (uint64_t i = 0; whole_ && i < n; i++) value(element, depth + 1);
  }

  void read_metadata() {
    size_t begin = at_;
    string(Part::Kind::key);
    value(number(Part::Kind::type, 4), 0);
    if (whole_) metadata.push_back({begin, at_});
  }

  void read_tensor() {
    size_t begin = at_;
    string(Part::Kind::name);
    uint64_t rank = number(Part::Kind::rank, 4);
    for (uint64_t i = 0; whole_ && i < rank; i++) number(Part::Kind::dimension, 8);
    number(Part::Kind::tensor_type, 4);
    number(Part::Kind::offset, 8);
    if (whole_) tensors.push_back({begin, at_});
  }

  std::string_view file_;
  size_t at_ = 0;
  bool whole_ = true;
};

}  // namespace mr::fuzz
