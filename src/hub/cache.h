// The cache shared with Hugging Face's tools, in their layout:
//   models--OWNER--NAME/blobs/HASH            contents, named by SHA-256 (large files) or git's SHA-1
//   models--OWNER--NAME/snapshots/COMMIT/...  links to them under their names
//   models--OWNER--NAME/refs/main             the commit of a branch or tag when it was last resolved
//   .locks/models--OWNER--NAME/HASH.lock      flock held by the process that downloads a blob
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hub/folder.h"
#include "hub/reference.h"

namespace mr {

// An exclusive or shared flock on a file created for it; released with the object or the process.
class FileLock {
 public:
  FileLock() = default;
  FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileLock& operator=(FileLock&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileLock();
  enum class Kind : uint8_t { exclusive, shared };
  static FileLock take(const std::filesystem::path&, Kind = Kind::exclusive);  // empty: another process holds it
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct Snapshot {
  std::string repo, commit;
  bool is_current = false;  // named by refs/main, or the only one
  std::filesystem::path folder;
};

class HubCache {
 public:
  explicit HubCache(std::filesystem::path root) : root_(std::move(root)) {}

  std::vector<Snapshot> snapshots() const;                            // of all repositories
  std::vector<Snapshot> snapshots_of(const std::string& repo) const;  // the current one first
  // By branch, tag, commit or a prefix of one (7 digits or more).
  std::optional<Snapshot> find(const std::string& repo, const std::string& revision) const;

  std::filesystem::path folder_of(const std::string& repo) const;
  std::filesystem::path blob(const std::string& repo, const std::string& hash) const { return folder_of(repo) / "blobs" / hash; }
  FileLock lock_blob(const std::string& repo, const std::string& hash) const;
  // Taken shared while adding to a repository, so that blobs about to be linked are not deleted.
  FileLock lock_repository(const std::string& repo, FileLock::Kind) const;

  void link(const std::string& repo, const std::string& commit, const std::string& file, const std::string& hash) const;
  void set_ref(const std::string& repo, const std::string& revision, const std::string& commit) const;

  // Deletes files of a snapshot, then everything unreferenced: blobs without a link, refs and folders. Returns the bytes freed.
  int64_t remove(const Snapshot&, const std::vector<std::filesystem::path>& files) const;

  const std::filesystem::path& root() const { return root_; }

 private:
  std::filesystem::path locks_of(const std::string& repo) const;
  int64_t sweep(const std::string& repo) const;
  std::filesystem::path root_;
};

}  // namespace mr
