// One group's units with reference counts. Unit 0 is reserved and never allocated. A unit referenced only by the prefix
// tree is idle: no sequence reads it, so eviction may free it, and it counts as available.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/error.h"

namespace mr {

class UnitPool {
 public:
  explicit UnitPool(int n_units) : refs_(size_t(n_units)), cached_(size_t(n_units)) {
    free_.reserve(refs_.size());
    reset();
  }

  void reset() noexcept {  // frees all units; free_ has capacity for them
    std::ranges::fill(refs_, 0);
    std::ranges::fill(cached_, 0);
    n_idle_ = 0;
    free_.clear();
    for (int unit = n_units(); unit > 0; unit--) free_.push_back(unit);
  }

  int n_units() const { return int(refs_.size()) - 1; }  // without the reserved one
  int n_free() const { return int(free_.size()); }
  int n_idle() const { return n_idle_; }
  int n_available() const { return n_free() + n_idle(); }
  int refs(int32_t unit) const { return refs_[unit]; }
  bool cached(int32_t unit) const { return cached_[unit]; }
  bool idle(int32_t unit) const { return cached(unit) && refs(unit) == 1; }

  int32_t take() {  // the unit freed last, the most likely to be cached
    check(!free_.empty(), "no free unit among {}", n_units());
    int32_t unit = free_.back();
    free_.pop_back();
    refs_[unit] = 1;
    return unit;
  }
  // First fit: the first of n consecutive free units, -1: no hole is that long.
  int32_t find_run(int n) const {
    for (int32_t unit = 1, length = 0; unit < int32_t(refs_.size()); unit++) {
      length = refs_[unit] == 0 ? length + 1 : 0;
      if (length == n) return unit - n + 1;
    }
    return -1;
  }
  void take_run(int32_t first, int n) {
    std::erase_if(free_, [&](int32_t unit) { return unit >= first && unit < first + n; });
    for (int32_t unit = first; unit < first + n; unit++) refs_[unit] = 1;
  }
  void retain(int32_t unit) {
    n_idle_ -= idle(unit);
    refs_[unit]++;
  }
  void release(int32_t unit) {
    if (--refs_[unit] == 0) free_.push_back(unit);
    n_idle_ += idle(unit);
  }

  // The tree's reference; a unit is in at most one node.
  void cache(int32_t unit) {
    retain(unit);
    cached_[unit] = 1;
  }
  void uncache(int32_t unit) {
    n_idle_ -= idle(unit);
    cached_[unit] = 0;
    release(unit);
  }

 private:
  std::vector<int32_t> refs_, free_;  // refs of unit 0 stay 0
  std::vector<uint8_t> cached_;
  int n_idle_ = 0;
};

}  // namespace mr
