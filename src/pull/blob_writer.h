// One blob during its download: takes pieces in any order, from any thread, and writes and hashes them in order.
#pragma once

#include <atomic>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "hub/cache.h"
#include "hub/select.h"
#include "pull/digest.h"

namespace mr {

class BlobWriter {
 public:
  // Resumes blobs/HASH.incomplete if there is one. Holds the lock for its lifetime.
  BlobWriter(std::filesystem::path blob, const HubFile&, FileLock);
  ~BlobWriter();
  BlobWriter(const BlobWriter&) = delete;

  int64_t written() const { return written_; }  // in order, from the beginning
  bool is_whole() const { return written_ == file_.size; }
  void put(int64_t offset, std::string bytes);  // throws when a write fails
  // When whole: renames the blob. False: the hash is wrong; everything is dropped and it starts over.
  bool finish();
  bool was_resumed() const { return was_resumed_; }

 private:
  void open(bool resume);
  void write(std::string_view);
  std::filesystem::path blob_, partial_;
  HubFile file_;
  FileLock lock_;
  Digest digest_;
  std::map<int64_t, std::string> early_;  // by offset
  std::mutex mutex_;
  std::atomic<int64_t> written_{0};
  int fd_ = -1;
  bool was_resumed_ = false;
};

}  // namespace mr
