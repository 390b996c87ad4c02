// Bulk tensor copies (TMA): maps of bf16 tensors, and copies of boxes into shared memory, swizzled as described in wgmma.cuh.
#pragma once

#include <cuda.h>

#include <vector>

#include "backend/cuda/device/copies.cuh"

namespace mr::cuda {

// Innermost dimension first; `step`: strides in bytes of dimensions 1 and up. Elements out of bounds read as zero.
inline CUtensorMap tensor_map(const void* data, const std::vector<int64_t>& size, const std::vector<int64_t>& step,
                              const std::vector<int>& box, bool swizzled = true) {
  static const auto encode = [] {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult found;
    must(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found));
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(f);
  }();
  CUtensorMap map;
  const std::vector<cuuint64_t> sizes(size.begin(), size.end()), steps(step.begin(), step.end());
  const std::vector<cuuint32_t> boxes(box.begin(), box.end()), ones(box.size(), 1);
  CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, cuuint32_t(size.size()), const_cast<void*>(data), sizes.data(), steps.data(),
             boxes.data(), ones.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  must(result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue);
  return map;
}

// Needed before copies use a map that the host or an earlier kernel wrote to global memory.
__device__ inline void acquire_map(const CUtensorMap& map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(&map) : "memory");
}

// Copies the box whose first element is (column, row), with more dimensions (column, row, plane) or (column, row, plane, unit).
__device__ inline void copy_box(uint32_t to, const CUtensorMap& map, int column, int row, uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(
          to),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}
__device__ inline void copy_box(uint32_t to, const CUtensorMap& map, int column, int row, int plane, uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::
          "r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(plane), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}
__device__ inline void copy_box(uint32_t to, const CUtensorMap& map, int column, int row, int plane, int unit, uint64_t* barrier,
                                uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], "
      "%7;" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(plane), "r"(unit), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}
// Multicast to the blocks of the cluster whose bits are set.
__device__ inline void copy_box_to(uint16_t blocks, uint32_t to, const CUtensorMap& map, int column, int row, uint64_t* barrier,
                                   uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [%0], [%1, {%2, "
      "%3}], [%4], %5, %6;" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier)), "h"(blocks), "l"(policy)
      : "memory");
}

}  // namespace mr::cuda
