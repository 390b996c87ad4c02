#include "core/other_programs.h"

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>

namespace mr {

namespace fs = std::filesystem;

static constexpr double tick = 0.01;  // seconds: USER_HZ of the kernel's interface is always 100

static std::vector<int> all_processes() {
  std::vector<int> ids;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc", ignored))
    if (int id = std::atoi(entry.path().filename().c_str()); id > 0) ids.push_back(id);
  return ids;
}

struct Process {
  int parent = 0;
  double seconds = 0;  // of CPU time
};

// Fields of /proc/ID/stat after the name, which may hold spaces: state, parent, ..., the 12th and 13th user and system time.
static Process process(int id) {
  std::ifstream in("/proc/" + std::to_string(id) + "/stat");
  std::string line;
  std::getline(in, line);
  Process p;
  long user = 0, system = 0;
  if (size_t end = line.rfind(')'); end != std::string::npos)
    if (std::sscanf(line.c_str() + end + 1, " %*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld", &p.parent, &user, &system) == 3)
      p.seconds = tick * double(user + system);
  return p;
}

// Of these processes and all their descendants.
static double seconds_of(const std::vector<int>& roots) {
  if (roots.empty()) return 0;
  std::map<int, Process> all;
  for (int id : all_processes()) all[id] = process(id);
  double seconds = 0;
  for (const auto& [id, p] : all)
    for (int at = id; at > 1; at = all.contains(at) ? all[at].parent : 0)
      if (std::ranges::count(roots, at)) {
        seconds += p.seconds;
        break;
      }
  return seconds;
}

OtherPrograms::OtherPrograms(std::vector<int> beside) : beside_(std::move(beside)), begin_(now()) {}

OtherPrograms::Ticks OtherPrograms::now() const {
  std::ifstream in("/proc/stat");
  std::string cpu;
  double user, nice, system, idle, iowait, irq, softirq, steal;
  Ticks t;
  if (!(in >> cpu >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> steal)) return t;
  t.busy = tick * (user + nice + system + irq + softirq + steal);
  t.all = t.busy + tick * (idle + iowait);
  timespec own;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own);
  t.own = double(own.tv_sec) + 1e-9 * double(own.tv_nsec) + seconds_of(beside_);
  return t;
}

double OtherPrograms::share() const {
  Ticks end = now();
  double all = end.all - begin_.all, others = (end.busy - begin_.busy) - (end.own - begin_.own);
  return all > 0 ? std::clamp(others / all, 0.0, 1.0) : 0;
}

// "  sl  local_address rem_address   st ... inode": addresses end in the port, in hexadecimal; state 0A: listening.
static void add_listening(const char* file, int port, std::set<std::string>& sockets) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    char local[64], state[8];
    unsigned long inode = 0;
    if (std::sscanf(line.c_str(), " %*s %63s %*s %7s %*s %*s %*s %*s %*s %lu", local, state, &inode) != 3) continue;
    const std::string address = local;
    if (std::string(state) == "0A" && std::stoi(address.substr(address.rfind(':') + 1), nullptr, 16) == port)
      sockets.insert("socket:[" + std::to_string(inode) + "]");
  }
}

std::vector<int> listeners(int port) {
  std::set<std::string> sockets;
  for (const char* file : {"/proc/net/tcp", "/proc/net/tcp6"}) add_listening(file, port, sockets);
  std::vector<int> found;
  if (sockets.empty()) return found;
  for (int id : all_processes()) {
    std::error_code e;
    for (fs::directory_iterator fd("/proc/" + std::to_string(id) + "/fd", e), end; !e && fd != end; fd.increment(e)) {
      std::error_code gone;
      if (!sockets.contains(fs::read_symlink(fd->path(), gone).string())) continue;
      found.push_back(id);
      break;
    }
  }
  return found;
}

}  // namespace mr
