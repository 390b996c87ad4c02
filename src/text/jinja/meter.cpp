#include "text/jinja/meter.h"

#include <algorithm>

#include "core/error.h"

namespace mr::jinja {

namespace {

constexpr size_t between_looks = 1 << 20;   // about a millisecond
constexpr size_t between_grants = 1 << 18;  // bytes
constexpr size_t allocation_cost = 96;      // of malloc and free; bytes are charged for their first touch

}  // namespace

void Meter::look(size_t units) {
  check(units <= limits_.work - spent_, "the template does more work than is allowed");
  limits_.allowance.check_time("the template");
  next_look_ = spent_ + units + std::min(between_looks, limits_.work - spent_ - units + 1);
}

void Meter::take(size_t bytes) {
  work(allocation_cost + bytes);
  check(bytes <= limits_.bytes - held_, "the template's values take more than {} bytes", limits_.bytes);
  if (held_ + bytes > granted_) {
    const size_t more = held_ + bytes - granted_ + between_grants;
    limits_.allowance.hold(more);
    granted_ += more;
  }
  held_ += bytes;
  peak_ = std::max(peak_, held_);
}

}  // namespace mr::jinja
