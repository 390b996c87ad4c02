// Runs of several backends of one process on one GPU take turns. A chain has a block on every multiprocessor, all of which wait for each
// other: two chains at once might hold half of the multiprocessors each, and wait for ever. A run begins on the device when the last
// one of any other backend has ended; a backend alone never waits. (Processes take turns by themselves: the driver gives each the whole
// GPU for a while.)
#pragma once

#include <cuda_runtime_api.h>

#include <mutex>

namespace mr::cuda {

class Turns {
 public:
  explicit Turns(cudaStream_t);
  ~Turns();
  Turns(const Turns&) = delete;

  // From its construction to its end the stream may be given the work of one run.
  class Turn {
   public:
    explicit Turn(Turns&);
    ~Turn();

   private:
    Turns& of_;
    std::lock_guard<std::mutex> lock_;
  };

 private:
  struct All;  // those of this process
  static All& all();

  cudaStream_t stream_;
  cudaEvent_t ended_ = nullptr;  // the last run, if there are others
};

}  // namespace mr::cuda
