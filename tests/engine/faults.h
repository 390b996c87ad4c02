// Fault injection for the whole test program: failing allocations, a wrong system clock. Off unless a test enables it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace mr {

struct Faults {
  std::atomic<bool> armed{false};
  std::atomic<int64_t> seen{0}, bytes{0};   // allocations while armed
  std::atomic<int64_t> first{0}, count{0};  // allocations [first, first + count) fail
  std::atomic<size_t> smallest{0};          // bytes of an allocation that counts
  std::atomic<int64_t> seconds_ahead{0};    // of the system's clock
};
extern Faults faults;

void arm(int64_t first, int64_t count, size_t smallest = 0);  // counts allocations of at least `smallest` bytes
bool disarm();                                                // whether any allocation failed

// Allocations of the test itself on this thread are not counted.
struct Spared {
  Spared();
  ~Spared();
};

}  // namespace mr
