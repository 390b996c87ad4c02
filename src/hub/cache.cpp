#include "hub/cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>

#include "core/error.h"

namespace mr {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "models--";

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

static void make_folder_of(const fs::path& file) {
  std::error_code failed;
  fs::create_directories(file.parent_path(), failed);
  check(!failed, "cannot make the folder '{}': {}", file.parent_path().string(), failed.message());
}

FileLock FileLock::take(const fs::path& file, Kind kind) {
  make_folder_of(file);
  FileLock lock;
  lock.fd_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  check(lock.fd_ >= 0, "cannot make the lock '{}': {}", file.string(), std::strerror(errno));
  if (::flock(lock.fd_, (kind == Kind::shared ? LOCK_SH : LOCK_EX) | LOCK_NB) == 0) return lock;
  check(errno == EWOULDBLOCK, "cannot lock '{}': {}", file.string(), std::strerror(errno));
  return {};
}

static std::string folder_name(std::string repo) {
  if (const size_t slash = repo.find('/'); slash != repo.npos) repo.replace(slash, 1, "--");
  return std::string(kPrefix) + repo;
}

static std::string repo_of(std::string folder) {
  folder.erase(0, kPrefix.size());
  if (const size_t dashes = folder.find("--"); dashes != folder.npos) folder.replace(dashes, 2, "/");
  return folder;
}

fs::path HubCache::folder_of(const std::string& repo) const { return root_ / folder_name(repo); }
fs::path HubCache::locks_of(const std::string& repo) const { return root_ / ".locks" / folder_name(repo); }

FileLock HubCache::lock_blob(const std::string& repo, const std::string& hash) const {
  return FileLock::take(locks_of(repo) / (hash + ".lock"));
}

FileLock HubCache::lock_repository(const std::string& repo, FileLock::Kind kind) const {
  return FileLock::take(locks_of(repo) / "millrace.lock", kind);
}

static std::string read_ref(const fs::path& file) {
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) return "";  // a pipe would wait for its writer
  std::ifstream in(file);
  std::string commit;
  in >> commit;
  return commit;
}

std::vector<Snapshot> HubCache::snapshots_of(const std::string& repo) const {
  const fs::path folder = folder_of(repo);
  const std::string current = read_ref(folder / "refs" / "main");
  std::vector<Snapshot> out;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder / "snapshots", ignored)) {
    if (!entry.is_directory(ignored)) continue;
    const std::string commit = entry.path().filename().string();
    out.push_back({repo, commit, commit == current, entry.path()});
  }
  std::ranges::sort(out, {}, [](const Snapshot& s) { return std::pair(!s.is_current, s.commit); });
  if (out.size() == 1) out.front().is_current = true;
  return out;
}

std::vector<Snapshot> HubCache::snapshots() const {
  std::vector<std::string> repos;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(root_, ignored))
    if (const std::string name = entry.path().filename().string(); name.starts_with(kPrefix) && entry.is_directory(ignored))
      repos.push_back(repo_of(name));
  std::ranges::sort(repos);
  std::vector<Snapshot> out;
  for (const std::string& repo : repos)
    for (Snapshot& s : snapshots_of(repo)) out.push_back(std::move(s));
  return out;
}

std::optional<Snapshot> HubCache::find(const std::string& repo, const std::string& revision) const {
  std::string commit = is_revision(revision) ? read_ref(folder_of(repo) / "refs" / revision) : "";
  if (commit.empty()) commit = revision;
  std::optional<Snapshot> found;
  for (Snapshot& s : snapshots_of(repo)) {
    const bool is_it = s.commit == commit || (commit.size() >= 7 && s.commit.starts_with(commit)) || (revision == "main" && s.is_current);
    if (is_it && !found) found = std::move(s);
  }
  return found;
}

void HubCache::link(const std::string& repo, const std::string& commit, const std::string& file, const std::string& hash) const {
  check(is_file_in_repository(file), "the hub names a file '{}', which does not lie in its repository", file);
  const fs::path where = folder_of(repo) / "snapshots" / commit / file;
  make_folder_of(where);
  const fs::path target = blob(repo, hash).lexically_relative(where.parent_path());
  std::error_code failed;
  if (fs::read_symlink(where, failed) == target && !failed) return;
  const fs::path fresh = where.parent_path() / fmt::format(".{}.{}", hash, ::getpid());  // renamed atomically below
  fs::create_symlink(target, fresh, failed);
  if (!failed) fs::rename(fresh, where, failed);
  check(!failed, "cannot link '{}': {}", where.string(), failed.message());
}

void HubCache::set_ref(const std::string& repo, const std::string& revision, const std::string& commit) const {
  if (is_commit(revision)) return;
  const fs::path file = folder_of(repo) / "refs" / revision;
  make_folder_of(file);
  const fs::path fresh = file.string() + fmt::format(".{}", ::getpid());
  std::ofstream out(fresh);
  out << commit;
  out.close();
  std::error_code failed;
  if (out.good()) fs::rename(fresh, file, failed);
  check(out.good() && !failed, "cannot write '{}'", file.string());
}

// Bytes freed by deleting it: none for a link.
static int64_t own_bytes(const fs::path& file) {
  std::error_code failed;
  if (fs::is_symlink(file, failed)) return 0;
  const auto bytes = fs::file_size(file, failed);
  return failed ? 0 : int64_t(bytes);
}

// Deletes empty folders below `folder`, and itself.
static void prune(const fs::path& folder) {
  std::error_code ignored;
  std::vector<fs::path> inside;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored))
    if (entry.is_directory(ignored) && !entry.is_symlink(ignored)) inside.push_back(entry.path());
  for (const fs::path& sub : inside) prune(sub);
  fs::remove(folder, ignored);  // fails unless empty
}

// The first target of a snapshot's link is its blob, which may itself be a link into a store shared by repositories.
static std::set<fs::path> linked_blobs(const fs::path& snapshots) {
  std::set<fs::path> blobs;
  std::error_code ignored, failed;
  if (!fs::exists(snapshots, ignored)) return blobs;
  fs::recursive_directory_iterator at(snapshots, failed);
  for (; !failed && at != fs::recursive_directory_iterator(); at.increment(failed))
    if (at->is_symlink(ignored)) blobs.insert((at->path().parent_path() / fs::read_symlink(at->path(), ignored)).lexically_normal());
  check(!failed, "cannot read '{}': {}; no blob was deleted", snapshots.string(), failed.message());
  return blobs;
}

int64_t HubCache::sweep(const std::string& repo) const {
  const fs::path folder = folder_of(repo);
  std::error_code ignored;
  prune(folder / "snapshots");
  const bool is_empty = !fs::exists(folder / "snapshots", ignored);
  const std::set<fs::path> needed = linked_blobs(folder / "snapshots");
  int64_t freed = 0;
  std::vector<fs::path> blobs;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder / "blobs", ignored)) blobs.push_back(entry.path());
  for (const fs::path& blob : blobs) {
    const std::string name = blob.filename().string();
    const bool is_partial = name.ends_with(".incomplete");
    if (needed.contains(blob.lexically_normal()) || (is_partial && !is_empty)) continue;
    const FileLock lock = lock_blob(repo, name.substr(0, name.find('.')));
    if (!lock) continue;  // another program is fetching it
    freed += own_bytes(blob);
    fs::remove(blob, ignored);
  }
  std::vector<fs::path> refs;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder / "refs", ignored))
    if (entry.is_regular_file(ignored)) refs.push_back(entry.path());
  for (const fs::path& ref : refs)
    if (!fs::exists(folder / "snapshots" / read_ref(ref), ignored)) fs::remove(ref, ignored);
  if (is_empty)
    for (const char* notes : {".no_exist", "trees"}) fs::remove_all(folder / notes, ignored);  // other tools' records of the deleted files
  prune(folder);
  return freed;
}

int64_t HubCache::remove(const Snapshot& snapshot, const std::vector<fs::path>& files) const {
  const FileLock lock = lock_repository(snapshot.repo, FileLock::Kind::exclusive);
  check(bool(lock), "{} is being pulled by another process: wait for it, or end it", snapshot.repo);
  for (const fs::path& folder : {folder_of(snapshot.repo), snapshot.folder.parent_path(), snapshot.folder})
    check(!fs::is_symlink(folder), "'{}' is a link to another folder: nothing is deleted there", folder.string());
  int64_t freed = 0;
  for (const fs::path& file : files) {
    std::error_code failed;
    freed += own_bytes(file);
    fs::remove(file, failed);
    check(!failed, "cannot delete '{}': {}", file.string(), failed.message());
  }
  freed += sweep(snapshot.repo);
  std::error_code ignored;
  if (!fs::exists(folder_of(snapshot.repo), ignored)) fs::remove_all(locks_of(snapshot.repo), ignored);
  return freed;
}

}  // namespace mr
