#include "cli/running_servers.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "core/bounded_json.h"
#include "core/config.h"
#include "core/error.h"

namespace mr {

namespace fs = std::filesystem;

// Field 22 of /proc/PID/stat, counted after the name in parentheses; 0: no such process.
static int64_t started_ticks(int pid) {
  std::ifstream in(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(in, line);
  const size_t name_end = line.rfind(')');
  if (name_end == line.npos) return 0;
  std::istringstream fields(line.substr(name_end + 1));
  std::string skipped;
  for (int i = 3; i < 22; i++) fields >> skipped;
  int64_t ticks = 0;
  fields >> ticks;
  return ticks;
}

static double machine_uptime() {
  double seconds = 0;
  std::ifstream("/proc/uptime") >> seconds;
  return seconds;
}

static int64_t resident_bytes(int pid) {
  int64_t size = 0, resident = 0;
  std::ifstream(fmt::format("/proc/{}/statm", pid)) >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// The folder's owner decides where the servers are, and so who receives this user's key.
static bool is_ours(const fs::path& folder) {
  struct stat s {};
  return lstat(folder.c_str(), &s) == 0 && S_ISDIR(s.st_mode) && s.st_uid == geteuid();
}

// Best effort: a server works without an entry, so failures are ignored.
ServerEntry::ServerEntry(const std::string& host, int port, const std::string& model) {
  std::error_code failed;
  fs::create_directories(runtime_dir(), failed);
  if (!is_ours(runtime_dir())) return;
  fs::permissions(runtime_dir(), fs::perms::owner_all, failed);
  file_ = runtime_dir() / fmt::format("serve-{}.json", getpid());
  const Json entry{{"pid", getpid()}, {"started", started_ticks(getpid())}, {"host", host}, {"port", port}, {"model", model}};
  const fs::path fresh = file_.string() + ".new";
  std::ofstream out(fresh);
  out << entry.dump(-1, ' ', false, Json::error_handler_t::replace);
  out.close();
  if (out.good()) fs::rename(fresh, file_, failed);
}

void ServerEntry::remove() {
  std::error_code ignored;
  if (!file_.empty()) fs::remove(file_, ignored);
  file_.clear();
}

static RunningServer read_entry(const fs::path& file) {
  RunningServer s;
  try {
    std::ifstream in(file);
    std::string text(65536, '\0');
    in.read(text.data(), std::streamsize(text.size()));
    text.resize(size_t(in.gcount()));
    const Json j = parse_json<Json>(text, "an entry");
    s = {.pid = j.at("pid").get<int>(),
         .started_ticks = j.at("started").get<int64_t>(),
         .host = j.at("host").get<std::string>(),
         .port = j.at("port").get<int>(),
         .model = j.at("model").get<std::string>()};
  } catch (const std::exception&) {
    s.pid = 0;
  }
  return s;
}

std::vector<RunningServer> running_servers() {
  if (!is_ours(runtime_dir())) return {};
  std::vector<RunningServer> servers;
  std::vector<fs::path> stale;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(runtime_dir(), ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("serve-") || !name.ends_with(".json")) continue;
    RunningServer s = read_entry(entry.path());
    const int64_t ticks = s.pid > 0 ? started_ticks(s.pid) : 0;
    if (ticks == 0 || ticks != s.started_ticks) {
      stale.push_back(entry.path());
      continue;
    }
    s.uptime_s = std::max(0.0, machine_uptime() - double(ticks) / double(sysconf(_SC_CLK_TCK)));
    s.memory = resident_bytes(s.pid);
    servers.push_back(std::move(s));
  }
  for (const fs::path& file : stale) fs::remove(file, ignored);
  std::ranges::sort(servers, {}, &RunningServer::port);
  return servers;
}

}  // namespace mr
