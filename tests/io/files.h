// Files for the tests: a temporary directory, a builder of GGUF and safetensors bytes (valid or deliberately broken), and the ramp in
// the fixtures' tensors.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "io/checkpoint.h"
#include "io/stored_tensor.h"

namespace mr::test {

namespace fs = std::filesystem;

inline fs::path fixture(const std::string& name) { return fs::path(MR_FIXTURES) / "io" / name; }

class TempDir {
 public:
  TempDir() {
    std::string pattern = (fs::temp_directory_path() / "millrace-io-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TempDir() { fs::remove_all(path_); }
  fs::path operator/(const std::string& name) const { return path_ / name; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

inline fs::path write_file(const fs::path& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), std::streamsize(bytes.size()));
  EXPECT_TRUE(out.good());
  return path;
}

inline std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

// The message of the mr::Error that f throws; empty if it throws nothing. Any other exception fails the test.
template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

inline void expect_says(const std::string& text, std::initializer_list<std::string_view> parts) {
  for (std::string_view part : parts) EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

// Appends numbers in host byte order, and strings with their length before them as in GGUF.
struct Bytes : std::string {
  template <class T>
  Bytes& num(T value) {
    append(reinterpret_cast<const char*>(&value), sizeof(T));
    return *this;
  }
  Bytes& str(std::string_view s) {
    num(uint64_t(s.size()));
    append(s);
    return *this;
  }
  Bytes& pad(size_t alignment) {
    resize((size() + alignment - 1) / alignment * alignment);
    return *this;
  }
  Bytes& head(uint64_t tensors, uint64_t metadata, uint32_t version = 3) {
    append("GGUF");
    return num(version).num(tensors).num(metadata);
  }
  Bytes& key(std::string_view name, uint32_t type) { return str(name).num(type); }
  Bytes& info(std::string_view name, std::vector<uint64_t> dims, uint32_t type, uint64_t offset) {
    str(name).num(uint32_t(dims.size()));
    for (uint64_t d : dims) num(d);
    return num(type).num(offset);
  }
};

inline std::string safetensors(const std::string& header, size_t data_bytes) {
  return Bytes().num(uint64_t(header.size())) + header + std::string(data_bytes, '\1');
}

// Element i of the fixtures' tensors.
inline float ramp(size_t i) { return (float(i % 64) - 32) / 8; }

template <class T>
T element(const StoredTensor& t, size_t i) {
  T value;
  EXPECT_LE((i + 1) * sizeof(T), t.bytes.size());
  std::memcpy(&value, t.bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

// A file of one format, `name`, that must be refused.
class RefusedFile : public testing::Test {
 protected:
  explicit RefusedFile(const char* name) : path_(dir_ / name) {}
  std::string error(const std::string& bytes) {
    write_file(path_, bytes);
    return error_of([&] { Checkpoint::open(path_); });
  }
  void expect_error(const std::string& bytes, std::initializer_list<std::string_view> parts) {
    std::string text = error(bytes);
    expect_says(text, parts);
    expect_says(text, {path_.native()});
  }
  TempDir dir_;
  fs::path path_;
};

}  // namespace mr::test
