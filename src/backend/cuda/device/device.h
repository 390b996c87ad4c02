// Common arguments of the kernel launchers, usable from plain C++: launch context and views of memory. All pointers in this folder's
// and its siblings' headers are device pointers unless noted; every launch goes to the stream of its Launch and may overlap the end of
// the previous one (programmatic dependent launch), where the GPU can.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/batch.h"
#include "backend/cuda/device/launch_log.h"
#include "program/ops.h"

namespace mr::cuda {

void must(cudaError_t);  // throws Error unless it is cudaSuccess

// Launch context.
struct Launch {
  cudaStream_t stream = nullptr;
  int n_sm = 132;
  bool deterministic = false;  // a row's bits do not depend on the other rows
  bool plain = false;          // only kernels that need nothing of Hopper (CudaOptions)
  bool overlaps = true;        // whether the GPU can start a kernel before the previous one has ended
  const LaunchLog* log = nullptr;
};

// A matrix of f32 or bf16, with a row stride in elements.
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::f32;
  int64_t rows = 0, cols = 0, stride = 0;
};

// [rows, heads, dim] of f32 or bf16.
struct Heads {
  void* data = nullptr;
  DType dtype = DType::f32;
  int64_t rows = 0, heads = 0, dim = 0, stride = 0, head_stride = 0;
};

bool aligned(const Matrix&);  // whether every row begins at a multiple of 16 bytes

struct Slots {  // of one recurrent layer
  std::byte* base = nullptr;
  int64_t unit_bytes = 0;
  const int32_t *src = nullptr, *dst = nullptr;
};

}  // namespace mr::cuda
