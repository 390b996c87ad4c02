#include "backend/cuda/rates.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>

namespace mr::cuda {

std::string why_no_gpu() {
  int n = 0;
  cudaDeviceProp properties{};
  cudaError_t error = cudaGetDeviceCount(&n);
  if (error == cudaSuccess && n > 0) error = cudaGetDeviceProperties(&properties, 0);
  if (error != cudaSuccess) return fmt::format("CUDA error: {}", cudaGetErrorString(error));
  return n == 0 ? "there is none" : properties.major == 9 ? "" : fmt::format("the first is {}", properties.name);
}

// Best of five: a copy of 1 GiB, and a product of 8192 rows with a weight of [8192, 8192].
DeviceRates rates_of(CudaBackend& gpu) {
  const int64_t n = 8192, bytes = int64_t(1) << 30;
  WeightStore store(WeightStore::Mode::holds, [&](size_t size) { return gpu.allocate(size); });
  Weight w = gpu.make_up(n, n, 1, store), x = gpu.make_up(n, n, 2, store);
  Tensor y = view(store.take(size_t(n * n) * 2), DType::bf16, {n, n});
  std::byte *a = store.take(size_t(bytes)), *b = store.take(size_t(bytes));
  double copied = 1e9, multiplied = 1e9;
  for (int i = 0; i < 5; i++) {
    copied = std::min(copied, gpu.milliseconds([&] { gpu.copy_within(a, b, size_t(bytes)); }));
    multiplied = std::min(multiplied, gpu.milliseconds([&] { gpu.linear(y, x.packed, w, {}); }));
  }
  return {2e3 * double(bytes) / copied, 2e3 * double(n * n * n) / multiplied};
}

}  // namespace mr::cuda
