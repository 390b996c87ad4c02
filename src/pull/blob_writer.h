// One blob while it is fetched: takes pieces in any order, from any thread, and writes and hashes them in order.
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
  // Goes on with blobs/HASH.incomplete where there is one. The lock is held as long as the writer lives.
  BlobWriter(std::filesystem::path blob, const HubFile&, FileLock);
  ~BlobWriter();
  BlobWriter(const BlobWriter&) = delete;

  int64_t written() const { return written_; }  // in order, from the beginning
  bool is_whole() const { return written_ == file_.size; }
  void put(int64_t offset, std::string bytes);  // throws when the disk refuses
  // Whole: gives the blob its name. False: the hash is not the one that was promised; all is dropped and it begins anew.
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
