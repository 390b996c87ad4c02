// The servers of this user that run on this machine. Each `serve` leaves a small file in a folder of the user's own while it runs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace mr {

struct RunningServer {
  int pid = 0;
  int64_t started_ticks = 0;  // the process's start by the kernel's clock: a number that was given anew belongs to another
  std::string host;
  int port = 0;
  std::string model;
  double uptime_s = 0;
  int64_t memory = 0;  // bytes, resident
};

// Kept while the object lives; a program that is killed leaves its file to the next reader.
class ServerEntry {
 public:
  ServerEntry(const std::string& host, int port, const std::string& model);
  ~ServerEntry() { remove(); }
  ServerEntry(const ServerEntry&) = delete;
  void remove();

 private:
  std::filesystem::path file_;  // empty: there is none
};

std::vector<RunningServer> running_servers();  // by port; entries of processes that ended are deleted

}  // namespace mr
