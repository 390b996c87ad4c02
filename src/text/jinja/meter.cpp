#include "text/jinja/meter.h"

#include <algorithm>

#include "core/error.h"

namespace mr::jinja {

namespace {

constexpr size_t between_looks = 1 << 20;  // about a millisecond
constexpr size_t allocation_cost = 96;     // malloc and free; the bytes' own price is their first touch

}  // namespace

void Meter::look(size_t units) {
  check(units <= limits_.work - spent_, "the template does more work than is allowed");
  check(!limits_.stop.stop_requested(), "the rendering was stopped");
  check(std::chrono::steady_clock::now() < limits_.deadline, "the template takes longer than is allowed");
  next_look_ = spent_ + units + std::min(between_looks, limits_.work - spent_ - units + 1);
}

void Meter::take(size_t bytes) {
  work(allocation_cost + bytes);
  check(bytes <= limits_.bytes - held_, "the template's values take more than {} bytes", limits_.bytes);
  held_ += bytes;
  peak_ = std::max(peak_, held_);
}

}  // namespace mr::jinja
