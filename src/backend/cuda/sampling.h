// Samples the tokens of launched steps: on the device, or on the host for rows that request more logprobs than the device
// reports. Results are collected in launch order.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "backend/cuda/rows/rows.h"
#include "core/thread_pool.h"

namespace mr::cuda {

class Sampling {
 public:
  Sampling(const Launch& at, ThreadPool& pool);
  ~Sampling();
  // host and device: the same batch in either memory. The tokens are also written to `sampled` on the device.
  void launch(Tensor logits, const Batch& host, const Batch& device, int64_t n_edits, int32_t* sampled);
  void collect(std::vector<Sampled>&);
  static int64_t needs(int64_t n_out, int64_t n_edits);  // bytes on the device, without masks
  int64_t bytes() const;                                 // allocated on the device so far

 private:
  struct Launched {
    int n = 0, room = 0;
    int most_top = 0;          // alternatives that the device reports per row
    Choice* choice = nullptr;  // [room], pinned
    TopToken* top = nullptr;   // [room, kMostTop], pinned
    std::vector<SampleRow> row;
    std::vector<int> drawn;        // rows sampled on the host
    std::vector<Sampled> sampled;  // [drawn]
    cudaEvent_t done;
  };
  // A device buffer that grows.
  template <class T>
  struct Room {
    T* data = nullptr;
    int64_t n = 0;
  };
  template <class T>
  T* take(Room<T>&, int64_t n);
  void fill(Launched&, Tensor logits, const Batch& host, const Batch& device, int64_t n_edits, int32_t* sampled);
  void make_room(Launched&);
  void send_masks(SampleCall&, const Batch& host, int n_out);
  void fetch_logits(Tensor logits, const Batch& host, Launched&);
  void draw(int64_t vocab, const Batch& host, Launched&, int32_t* sampled);

  const Launch& at_;
  ThreadPool& pool_;
  Room<Choice> choice_;
  Room<TopToken> top_;
  Room<float> unchanged_;
  Room<int32_t> mask_row_;
  Room<uint32_t> mask_;
  Launched launched_[4];
  size_t n_launched_ = 0, n_collected_ = 0;
  std::vector<float> logits_;  // of rows sampled on the host
};

}  // namespace mr::cuda
