// The tokens of steps that were launched: chosen on the device, or on the host where a row wants more alternatives than the device
// reports. Results come in the order of the launches.
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
  // host: the batch as the engine wrote it; device: as it lies there. The tokens are written to `sampled` on the device, too.
  void launch(Tensor logits, const Batch& host, const Batch& device, int64_t n_edits, int32_t* sampled);
  void collect(std::vector<Sampled>&);
  static int64_t needs(int64_t n_out, int64_t n_edits);  // bytes on the device, without masks
  int64_t bytes() const;                                 // that were taken

 private:
  struct Launched {
    int n = 0, room = 0;
    int most_top = 0;          // alternatives that there are
    Choice* choice = nullptr;  // [room], pinned
    TopToken* top = nullptr;   // [room, kMostTop], pinned
    std::vector<SampleRow> row;
    std::vector<int> drawn;        // rows that the host chooses for
    std::vector<Sampled> sampled;  // [drawn]
    cudaEvent_t done;
  };
  // Memory on the device that grows.
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
  std::vector<float> logits_;  // of rows that the host chooses for
};

}  // namespace mr::cuda
