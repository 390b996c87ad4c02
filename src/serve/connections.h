// State shared by the connections of the HTTP server: options, memory, workers, and which of them is cut under pressure.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/thread_pool.hpp>
#include <ctime>
#include <mutex>
#include <new>
#include <thread>
#include <unordered_set>

#include "core/error.h"
#include "serve/http.h"

namespace mr {

namespace asio = boost::asio;

class Session;

// What a connection is waiting for; read by other threads to choose which one to cut.
enum class Phase : uint8_t { idle, receiving, working, sending };

class Connections {
 public:
  // The fixed charge of a connection: read buffer (8 KiB), pipelined input or headers (twice 16 KiB while they grow), a little output.
  static constexpr size_t base_bytes = 64 << 10;
  static constexpr size_t worth_cutting = base_bytes / 8;  // bytes: connections below it hold an eighth of the memory at most

  // The fixed charges of all connections are reserved: bodies and answers cannot keep new connections out.
  explicit Connections(const HttpOptions& options)
      : options(options), budget(options.memory - size_t(options.max_connections) * base_bytes) {}

  // Whether there is room for one more connection, if necessary after cutting idle ones. Closed ones that a worker still holds take no
  // place from the living until there are three times as many of them.
  bool admit() {
    if (size() >= 4 * options.max_connections) return false;
    while (size() - n_doomed - n_closed >= options.max_connections)
      if (!make_room(For::connection)) return false;
    return true;
  }

  // Cuts the connection that has waited longest for its client. Idle ones go first and at once, others after `patience`, and last those
  // that pause for memory, whose clients wait for the server. For memory only those that hold some are cut, and none while `n_missing`
  // bytes are free or held by connections that were cut already: otherwise each of many that pause would cut another one.
  // False: there is no candidate.
  enum class For { connection, memory };
  bool make_room(For, size_t n_missing = 0);

  void add(Session* s) {
    std::lock_guard lock(mutex_);
    sessions_.insert(s);
  }
  void remove(Session* s) {
    std::lock_guard lock(mutex_);
    sessions_.erase(s);
  }
  int size() const {
    std::lock_guard lock(mutex_);
    return int(sessions_.size());
  }
  void note_failure(const char* what) noexcept {
    n_failed++;
    try {
      say(fmt::format("a connection ends: {}", what));
    } catch (...) {  // no memory for a log line
    }
  }
  void note_turn(int64_t ns) noexcept {
    for (int64_t longest = longest_turn_ns; longest < ns && !longest_turn_ns.compare_exchange_weak(longest, ns);) {
    }
  }
  void say(const std::string& what) const {
    if (options.log) options.log(what);
  }

  HttpOptions options;
  Handler handler;
  HeadCheck check;
  MemoryBudget budget;
  std::array<asio::thread_pool*, 2> workers{};  // by lane
  std::atomic<int> n_busy{0}, n_doomed{0}, n_closed{0};  // with a request in flight; about to be cut; closed otherwise, held by a worker
  std::atomic<int64_t> n_cut{0}, n_failed{0}, longest_turn_ns{0};

 private:
  mutable std::mutex mutex_;
  std::unordered_set<Session*> sessions_;
  std::atomic<int64_t> nothing_to_cut_ms_{-1};  // when a search for memory last found no candidate: thousands may ask at once
};

// CPU time: unaffected by other load on the machine.
inline int64_t thread_cpu_ns() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

inline int64_t now_ms() {
  using namespace std::chrono;
  return duration_cast<milliseconds>(steady_clock::now().time_since_epoch()).count();
}

// Retries until there is memory: for posts that must not be lost.
template <class F>
void insist(F&& f) {
  for (;;) {
    try {
      return f();
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

}  // namespace mr
