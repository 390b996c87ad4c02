// A backend that notes the time of every operation of another: where a step's time goes. Nothing is queued or replayed then: each
// operation is waited for.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "backend/backend.h"

namespace mr {

struct OpTime {
  int64_t calls = 0;
  double seconds = 0;
  double bytes = 0;  // of weights that linear layers read; 0: not counted
  double flops = 0;  // of linear layers
};

class TimedBackend {
 public:
  virtual ~TimedBackend() = default;
  virtual const std::map<std::string, OpTime>& times() const = 0;  // by operation; linear layers by shape and format
  virtual void reset() = 0;
};

// The result is also a TimedBackend.
std::unique_ptr<Backend> make_timed_backend(std::unique_ptr<Backend>);

}  // namespace mr
