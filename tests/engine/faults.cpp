// In a file of its own, so that no compiler sees through the replaced functions.
#include "engine/faults.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <new>

namespace mr {

Faults faults;
static thread_local int spared = 0;

void arm(int64_t first, int64_t count, size_t smallest) {
  faults.first = first;
  faults.count = count;
  faults.smallest = smallest;
  faults.seen = faults.bytes = 0;
  faults.armed = true;
}

bool disarm() {
  faults.armed = false;
  return faults.seen > faults.first;
}

Spared::Spared() { spared++; }
Spared::~Spared() { spared--; }

static bool fails(size_t size) {
  if (!faults.armed || spared > 0 || size < faults.smallest) return false;
  const int64_t i = faults.seen++;
  faults.bytes += int64_t(size);
  return i >= faults.first && i < faults.first + faults.count;
}

}  // namespace mr

#ifndef __SANITIZE_ADDRESS__  // whose own operators know each other, the ones that do not throw among them
void* operator new(size_t size) {
  void* memory = mr::fails(size) ? nullptr : std::malloc(size ? size : 1);
  if (!memory) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
#endif

// Found before the C library's.
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const int error = int(syscall(SYS_clock_gettime, clock, time));
  if (clock == CLOCK_REALTIME) time->tv_sec += mr::faults.seconds_ahead.load();
  return error;
}
