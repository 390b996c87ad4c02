#include "backend/cuda/device/turns.h"

#include <vector>

#include "backend/cuda/device/device.h"

namespace mr::cuda {

struct Turns::All {
  std::mutex mutex;
  std::vector<Turns*> turns;
  const Turns* last = nullptr;  // whose run was the last
};

Turns::All& Turns::all() {
  static All all;
  return all;
}

Turns::Turns(cudaStream_t stream) : stream_(stream) {
  must(cudaEventCreateWithFlags(&ended_, cudaEventDisableTiming));
  std::lock_guard lock(all().mutex);
  for (const Turns* other : all().turns) must(cudaEventRecord(other->ended_, other->stream_));
  all().turns.push_back(this);
}

Turns::~Turns() {
  std::lock_guard lock(all().mutex);
  std::erase(all().turns, this);
  if (all().last == this) all().last = nullptr;
  cudaStreamSynchronize(stream_);
  cudaEventDestroy(ended_);
}

Turns::Turn::Turn(Turns& of) : of_(of), lock_(all().mutex) {
  const Turns* last = all().last;
  if (last && last != &of_) must(cudaStreamWaitEvent(of_.stream_, last->ended_));
}

Turns::Turn::~Turn() {
  if (all().turns.size() > 1) cudaEventRecord(of_.ended_, of_.stream_);
  all().last = &of_;
}

}  // namespace mr::cuda
