// The cost of one rendering. All values of a template are allocated through Counted, which charges their bytes first;
// everything that walks over values takes the meter and charges what it visits. A unit of work is about a nanosecond on a
// slow core.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "text/chat_template.h"

namespace mr::jinja {

inline constexpr size_t step_cost = 32;   // of one node or call
inline constexpr size_t visit_cost = 16;  // of one value in a walk
inline constexpr size_t scope_cost = 16;  // of one scope on the way to a name

class Meter {
 public:
  explicit Meter(TemplateLimits limits = {}) : limits_(std::move(limits)) {}
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  // Call before the work; throws when the budget is spent or the rendering is stopped.
  void work(size_t units) {
    if (units >= next_look_ - spent_) [[unlikely]]
      look(units);
    spent_ += units;
  }
  void take(size_t bytes);
  void give_back(size_t bytes) noexcept { held_ -= bytes; }

  const TemplateLimits& limits() const { return limits_; }
  size_t spent() const { return spent_; }
  size_t held() const { return held_; }
  size_t peak() const { return peak_; }

 private:
  void look(size_t units);

  TemplateLimits limits_;
  size_t spent_ = 0, next_look_ = 0;  // next_look_ >= spent_
  size_t held_ = 0, peak_ = 0, granted_ = 0;
};

// The allocator of everything in a rendering. Every construction and copy names the meter to charge: there is no default, and
// implicit copies of containers do not compile. A null meter is for the constants of a parsed template, bounded by its size.
template <class T>
struct Counted {
  using value_type = T;
  static constexpr size_t overhead = 16;  // of malloc, per block

  Counted(Meter& meter) : meter(&meter) {}
  explicit Counted(std::nullptr_t) {}
  template <class U>
  Counted(const Counted<U>& other) : meter(other.meter) {}

  T* allocate(size_t n) {  // containers never ask for more than PTRDIFF_MAX bytes
    if (meter != nullptr) meter->take(n * sizeof(T) + overhead);
    try {
      return std::allocator<T>().allocate(n);
    } catch (...) {
      if (meter != nullptr) meter->give_back(n * sizeof(T) + overhead);
      throw;
    }
  }
  void deallocate(T* at, size_t n) noexcept {
    std::allocator<T>().deallocate(at, n);
    if (meter != nullptr) meter->give_back(n * sizeof(T) + overhead);
  }
  Counted select_on_container_copy_construction() const {
    static_assert(sizeof(T) == 0, "a copy must say which meter pays for it");
    return *this;
  }
  template <class U>
  bool operator==(const Counted<U>& other) const {
    return meter == other.meter;
  }

  Meter* meter = nullptr;
};

using Text = std::basic_string<char, std::char_traits<char>, Counted<char>>;

}  // namespace mr::jinja
