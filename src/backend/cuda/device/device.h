// What every launcher of kernels takes, callable from plain C++: where a launch goes, and views of memory. All pointers of the rooms'
// headers are device pointers unless they say host; every launch goes to the stream of its Launch and may overlap the end of the
// launch before it (programmatic dependent launch).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/batch.h"
#include "backend/cuda/device/launch_log.h"
#include "program/ops.h"

namespace mr::cuda {

void must(cudaError_t);  // throws Error unless it is cudaSuccess

// Where a launch goes.
struct Launch {
  cudaStream_t stream = nullptr;
  int n_sm = 132;
  bool deterministic = false;  // a row's bits do not depend on the rows beside it
  const LaunchLog* log = nullptr;
};

// A matrix of f32 or bf16; rows may lie apart.
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

bool aligned(const Matrix&);  // may rows be read 16 bytes at a time?

struct Slots {  // of one recurrent layer
  std::byte* base = nullptr;
  int64_t unit_bytes = 0;
  const int32_t *src = nullptr, *dst = nullptr;
};

}  // namespace mr::cuda
