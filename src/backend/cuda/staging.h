// Uploads weights through a ring of pinned buffers: threads write rows, as bf16 or packed, into one while the others are being
// copied.
#pragma once

#include <span>

#include "backend/cuda/gemm/gemm.h"

namespace mr::cuda {

class Staging {
 public:
  Staging(cudaStream_t, ThreadPool&);
  ~Staging();
  // Stored rows of any codec to bf16 [out, in]. When it returns the rows are no longer needed; the copies are in the stream.
  void send(std::byte* device, const StoredWeight&);
  // Codes in packed.cu's layout.
  struct Room {
    int64_t quants, scales;  // bytes
  };
  static Room room(Packing, int64_t out, int64_t in);
  void send_packed(std::byte* quants, std::byte* scales, Packing, const StoredWeight&);

 private:
  static constexpr size_t kBytes = size_t(16) << 20;
  static constexpr int kBuffers = 4;
  struct Pinned {
    std::byte* data = nullptr;
    size_t bytes = 0;
    cudaEvent_t copied;
  };
  Pinned& next(size_t bytes);  // waits until its last copy is done

  cudaStream_t stream_;
  ThreadPool& pool_;
  Pinned pinned_[kBuffers];
  int turn_ = 0;
};

}  // namespace mr::cuda
