#include "core/tensor.h"

#include <sys/mman.h>

#include "core/error.h"

namespace mr {

int64_t Tensor::size() const {
  int64_t n = rank ? 1 : 0;
  for (int i = 0; i < rank; i++) n *= shape[i];
  return n;
}

bool Tensor::contiguous() const {
  int64_t expected = 1;
  for (int i = rank - 1; i >= 0; i--) {
    if (shape[i] != 1 && stride[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

Tensor Tensor::rows(int64_t begin, int64_t count) const {
  Tensor t = *this;
  if (data) t.data = static_cast<std::byte*>(data) + begin * stride[0] * size_of(dtype);
  t.shape[0] = count;
  return t;
}

Tensor Tensor::cols(int64_t begin, int64_t count) const {
  Tensor t = *this;
  if (data) t.data = static_cast<std::byte*>(data) + begin * stride[rank - 1] * size_of(dtype);
  t.shape[rank - 1] = count;
  return t;
}

Tensor Tensor::reshape(std::initializer_list<int64_t> s) const {
  Tensor t = view(data, dtype, s, device);
  check(contiguous() && t.size() == size(), "cannot view {} as {}", shape_string(*this), shape_string(t));
  return t;
}

Tensor view(void* data, DType dtype, std::initializer_list<int64_t> shape, Device device) {
  Tensor t{data, dtype, device, int(shape.size())};
  int i = 0;
  for (int64_t s : shape) t.shape[i++] = s;
  int64_t step = 1;
  for (i = t.rank - 1; i >= 0; i--) {
    t.stride[i] = step;
    step *= t.shape[i];
  }
  return t;
}

std::string shape_string(const Tensor& t) {
  std::string s = "[";
  for (int i = 0; i < t.rank; i++) s += (i ? ", " : "") + std::to_string(t.shape[i]);
  return s + "]";
}

Buffer::Buffer(size_t bytes) : size_(bytes) {
  if (!bytes) return;
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  check(p != MAP_FAILED, "cannot allocate {} bytes of memory", bytes);
  if (bytes >= (2u << 20)) madvise(p, bytes, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(p);
}

Buffer::~Buffer() {
  if (data_ && free_) free_(data_, size_);
  if (data_ && !free_) munmap(data_, size_);
}

}  // namespace mr
