// This user's servers on this machine. Each `serve` keeps a small file in a folder of the user while it runs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace mr {

struct RunningServer {
  int pid = 0;
  int64_t started_ticks = 0;  // the process's start in kernel ticks: detects a reused process id
  std::string host;
  int port = 0;
  std::string model;
  double uptime_s = 0;
  int64_t memory = 0;  // bytes, resident
};

// RAII; the file of a killed server is deleted by the next reader.
class ServerEntry {
 public:
  ServerEntry(const std::string& host, int port, const std::string& model);
  ~ServerEntry() { remove(); }
  ServerEntry(const ServerEntry&) = delete;
  void remove();

 private:
  std::filesystem::path file_;  // empty: none
};

std::vector<RunningServer> running_servers();  // by port; deletes stale entries

}  // namespace mr
