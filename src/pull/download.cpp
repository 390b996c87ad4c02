#include "pull/download.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "core/amounts.h"
#include "pull/blob_writer.h"

namespace mr {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

namespace {

// A byte range fetched by one request.
struct Part {
  size_t job = 0;
  int64_t begin = 0, end = 0;
};

struct Job {
  const HubFile* file = nullptr;
  std::unique_ptr<BlobWriter> writer;  // null: complete, or another process holds its lock
  int64_t asked = 0;                   // parts were handed out up to here
  int open_parts = 0;
  bool is_done = false;
};

class Download {
 public:
  Download(Endpoint& endpoint, const HubCache& cache, const Repository& repository, const std::vector<HubFile>& files,
           const DownloadOptions& o)
      : endpoint_(endpoint), cache_(cache), repository_(repository), options_(o) {
    for (const HubFile& f : files) {
      const bool is_repeated = std::ranges::any_of(jobs_, [&](const Job& j) { return j.file->hash == f.hash; });
      if (!is_repeated) jobs_.emplace_back().file = &f;
    }
    for (const Job& j : jobs_) state_.total += j.file->size;
    state_.files = int(jobs_.size());
  }

  void run() {
    for (Job& j : jobs_) start(j);
    check_space();
    std::vector<std::thread> workers;
    for (int i = 0; i < options_.connections; i++) workers.emplace_back([this] { work(); });
    watch();
    for (std::thread& t : workers) t.join();
    tell();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  // The holder of a blob's lock downloads it; blobs locked by other processes are polled until those are done or gone. On the caller's
  // thread.
  void start(Job& j) {
    FileLock lock = cache_.lock_blob(repository_.name, j.file->hash);
    const fs::path blob = cache_.blob(repository_.name, j.file->hash);
    std::error_code missing;
    const auto size = fs::file_size(blob, missing);
    const bool is_there = !missing && int64_t(size) == j.file->size;
    if (!lock && !is_there) return;
    auto writer = is_there ? nullptr : std::make_unique<BlobWriter>(blob, *j.file, std::move(lock));
    const bool is_whole = writer && writer->is_whole();
    {
      std::lock_guard guard(mutex_);
      j.is_done = is_there;
      j.asked = is_there ? j.file->size : writer->written();
      j.writer = std::move(writer);
      state_.done += j.asked;
    }
    if (is_whole) complete(j);
  }

  void check_space() {
    int64_t needed = 0;
    for (const Job& j : jobs_)
      if (j.writer) needed += j.file->size - j.writer->written();
    std::error_code unknown;
    fs::create_directories(cache_.root(), unknown);
    const fs::space_info space = fs::space(cache_.root(), unknown);
    check(bool(unknown) || int64_t(space.available) >= needed, "{} needs {}, but only {} are free in {}", repository_.name,
          bytes_text(needed), bytes_text(int64_t(space.available)), cache_.root().string());
  }

  // With the lock held: the next part to fetch. The window bounds how far parts may be ahead of the writer, in memory.
  bool take(Part& part) {
    const int64_t window = options_.part_bytes * 2 * options_.connections;
    for (size_t i = 0; i < jobs_.size(); i++) {
      Job& j = jobs_[i];
      if (!j.writer || j.is_done || j.asked >= j.file->size || j.asked >= j.writer->written() + window) continue;
      part = {i, j.asked, endpoint_.knows_ranges() ? std::min(j.file->size, j.asked + options_.part_bytes) : j.file->size};
      j.asked = part.end;
      j.open_parts++;
      return true;
    }
    return false;
  }

  bool is_over() const {
    return error_ || std::ranges::all_of(jobs_, [](const Job& j) { return j.is_done; });
  }

  void work() {
    HttpClient client(endpoint_.net());
    std::unique_lock lock(mutex_);
    while (!is_over()) {
      Part part;
      if (!take(part)) {
        changed_.wait_for(lock, 100ms);
        continue;
      }
      lock.unlock();
      std::exception_ptr failed;
      try {
        fetch(client, part);
        if (is_last_of(jobs_[part.job])) complete(jobs_[part.job]);
      } catch (...) {
        failed = std::current_exception();
      }
      lock.lock();
      if (failed && !error_) error_ = failed;
      changed_.notify_all();
    }
  }

  // No other worker has a part of it, and none is left to hand out.
  bool is_last_of(Job& j) {
    std::lock_guard lock(mutex_);
    return --j.open_parts == 0 && j.asked >= j.file->size && j.writer->is_whole();
  }

  // Resumes at the byte where the last attempt was cut.
  void fetch(HttpClient& client, Part part) {
    int64_t at = part.begin;
    auto note = [&](std::string_view bytes) {
      const auto n = std::min<int64_t>(int64_t(bytes.size()), part.end - at);  // a server without ranges sends more
      if (n <= 0) throw PartIsComplete();
      jobs_[part.job].writer->put(at, std::string(bytes.substr(0, size_t(n))));
      at += n;
      std::lock_guard lock(mutex_);
      if (error_) throw Error("another part failed");
      state_.done += n;
      state_.fetched += n;
    };
    endpoint_.with_patience(
        [&] {
          if (at == part.end) return;  // cut after the last byte
          try {
            endpoint_.read(client, repository_, *jobs_[part.job].file, at, part.end, note);
          } catch (const PartIsComplete&) {
          }
        },
        {.progress = [&] { return at; }, .is_over = [&] { return has_failed(); }});
  }
  struct PartIsComplete {};

  bool has_failed() {
    std::lock_guard lock(mutex_);
    return bool(error_);
  }

  // Called by the worker with the last part. A wrong hash after a resumption may be the old part's fault: start over once.
  void complete(Job& j) {
    const bool was_resumed = j.writer->was_resumed();
    const bool is_right = j.writer->finish();  // not under the lock: the disk may be slow
    std::lock_guard lock(mutex_);
    if (is_right) {
      j.is_done = true;
      j.writer = nullptr;
      return;
    }
    state_.done -= j.file->size;
    j.asked = 0;
    check(was_resumed, "{} of {} arrived damaged: its hash is not {}; nothing of it was kept", j.file->name, repository_.name,
          j.file->hash);
  }

  void tell() {
    DownloadState state;
    {
      std::lock_guard lock(mutex_);
      state_.files_done = int(std::ranges::count(jobs_, true, &Job::is_done));
      state = state_;
    }
    if (options_.on_state) options_.on_state(state);
  }

  // Those whose lock another process holds.
  void look_at_foreign_jobs() {
    std::vector<Job*> foreign;
    {
      std::lock_guard lock(mutex_);
      for (Job& j : jobs_)
        if (!j.writer && !j.is_done) foreign.push_back(&j);
      const bool is_idle = std::ranges::none_of(jobs_, [](const Job& j) { return bool(j.writer); });
      state_.waits = is_idle && !foreign.empty() ? "another process is fetching the rest" : "";
    }
    for (Job* j : foreign) start(*j);
  }

  void watch() {
    for (;;) {
      std::exception_ptr failed;
      try {
        tell();
        look_at_foreign_jobs();
      } catch (...) {
        failed = std::current_exception();
      }
      std::unique_lock lock(mutex_);
      if (failed && !error_) error_ = failed;
      if (is_over()) break;
      changed_.wait_for(lock, 100ms);
    }
    changed_.notify_all();
  }

  Endpoint& endpoint_;
  const HubCache& cache_;
  const Repository& repository_;
  const DownloadOptions& options_;
  std::deque<Job> jobs_;  // fixed while workers run
  std::mutex mutex_;
  std::condition_variable changed_;
  DownloadState state_;
  std::exception_ptr error_;
};

}  // namespace

void download(Endpoint& endpoint, const HubCache& cache, const Repository& repository, const std::vector<HubFile>& files,
              const DownloadOptions& options) {
  Download(endpoint, cache, repository, files, options).run();
}

}  // namespace mr
