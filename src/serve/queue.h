// Bounds how many answers, and tokens of their prompts, may wait for a first token. RAII: a Place is released with its owner.
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>

#include "serve/api_error.h"

namespace mr {

// Any thread.
class Queue {
 public:
  Queue(int max_answers, int64_t max_tokens) : max_answers_(max_answers), max_tokens_(max_tokens) {}

  struct Length {
    int64_t answers = 0, tokens = 0;
  };

  class Place {
   public:
    Place(Queue& queue, Length length) : queue_(&queue), length_(length) {}
    Place(Place&& other) noexcept : queue_(other.queue_), length_(std::exchange(other.length_, {})) {}
    Place& operator=(Place&&) = delete;
    ~Place() { leave(); }
    void leave() { queue_->leave(std::exchange(length_, {})); }
    Place split(Length part) {  // moves part of its length into another place
      length_ = {length_.answers - part.answers, length_.tokens - part.tokens};
      return {*queue_, part};
    }

   private:
    Queue* queue_;
    Length length_;
  };

  Place join(Length more) {  // throws 429
    std::lock_guard lock(mutex_);
    const bool full = now_.answers + more.answers > max_answers_ || now_.tokens + more.tokens > max_tokens_;
    if (full && now_.answers > 0)  // an empty queue accepts any request, however large
      throw ApiError(429, fmt::format("the queue is full: {} answers to {} tokens are waiting", now_.answers, now_.tokens), "",
                     "queue_full");
    now_ = {now_.answers + more.answers, now_.tokens + more.tokens};
    return {*this, more};
  }
  Length length() const {
    std::lock_guard lock(mutex_);
    return now_;
  }

 private:
  void leave(Length part) {
    std::lock_guard lock(mutex_);
    now_ = {now_.answers - part.answers, now_.tokens - part.tokens};
  }

  const int64_t max_answers_, max_tokens_;
  mutable std::mutex mutex_;
  Length now_;
};

}  // namespace mr
