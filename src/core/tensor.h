// Tensor is a view: it never owns. Buffer is the owner. A stride counts elements; the last dimension is contiguous
// unless a comment says otherwise.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>

#include "core/dtype.h"

namespace mr {

enum class Device : uint8_t { cpu, cuda };

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  Device device = Device::cpu;
  int rank = 0;
  std::array<int64_t, 4> shape{}, stride{};

  explicit operator bool() const { return data != nullptr; }
  int64_t size() const;  // elements
  int64_t bytes() const { return size() * size_of(dtype); }
  bool contiguous() const;
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  template <class T>
  T* row(int64_t i) const {
    return static_cast<T*>(data) + i * stride[0];
  }
  Tensor rows(int64_t begin, int64_t count) const;             // [begin, begin + count) of the first dimension
  Tensor cols(int64_t begin, int64_t count) const;             // of the last dimension; rows keep their stride
  Tensor reshape(std::initializer_list<int64_t> shape) const;  // needs a contiguous view
};

Tensor view(void* data, DType dtype, std::initializer_list<int64_t> shape, Device device = Device::cpu);
std::string shape_string(const Tensor&);  // "[3, 4096]"

// Zeroed, 64-byte aligned; large ones use huge pages where possible. Or memory of another kind, with its own deleter.
class Buffer {
 public:
  Buffer() = default;
  using Free = void (*)(std::byte* data, size_t bytes);
  explicit Buffer(size_t bytes);
  Buffer(std::byte* data, size_t bytes, Free free) : data_(data), size_(bytes), free_(free) {}
  ~Buffer();
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  bool on_host() const { return !free_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(free_, other.free_);
  }
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  Free free_ = nullptr;  // null: host pages
};

}  // namespace mr
