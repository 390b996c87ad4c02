#include "core/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <fstream>
#include <sstream>

namespace mr {

namespace fs = std::filesystem;

static std::string first_line(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

// The value after "key:" in a file of such lines; empty: none.
static std::string value_of(const fs::path& file, std::string_view key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':');
    if (colon == line.npos || !line.starts_with(key) || line.find_last_not_of(" \t", colon - 1) != key.size() - 1) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == line.npos ? "" : line.substr(begin);
  }
  return "";
}

static int64_t kilobytes(const fs::path& meminfo, std::string_view key) {
  std::istringstream in(value_of(meminfo, key));
  int64_t n = 0;
  return in >> n ? n * 1024 : 0;
}

// How many entries of a folder are a word followed by a number: cpu0, cpu1, ...
static int numbered(const fs::path& folder, std::string_view word) {
  int n = 0;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename();
    n += name.starts_with(word) && name.size() > word.size() &&
         std::all_of(name.begin() + ptrdiff_t(word.size()), name.end(), [](unsigned char c) { return std::isdigit(c); });
  }
  return n;
}

// "0-3,8": five.
static int count_of(const std::string& ranges) {
  std::istringstream in(ranges);
  int n = 0;
  for (std::string range; std::getline(in, range, ',');) {
    int first = 0, last = 0;
    const int read = std::sscanf(range.c_str(), "%d-%d", &first, &last);
    n += read == 2 ? std::max(0, last - first + 1) : read == 1;
  }
  return n;
}

// "always [madvise] never": the one in brackets.
static std::string chosen_of(const std::string& line) {
  const size_t begin = line.find('['), end = line.find(']');
  return begin < end && end != line.npos ? line.substr(begin + 1, end - begin - 1) : "";
}

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue ...": the first word of digits and points.
static std::string driver_version(const std::string& line) {
  std::istringstream words(line);
  for (std::string word; words >> word;)
    if (word.find('.') != word.npos && word.find_first_not_of("0123456789.") == word.npos) return word;
  return "";
}

Machine survey_machine(const fs::path& root) {
  const fs::path proc = root / "proc", system = root / "sys/devices/system", group = root / "sys/fs/cgroup";
  Machine m;
  m.processor = value_of(proc / "cpuinfo", "model name");
  const std::string flags = " " + value_of(proc / "cpuinfo", "flags") + " ";
  m.has_avx512 = flags.find(" avx512bw ") != flags.npos;
  m.has_tiles = flags.find(" amx_bf16 ") != flags.npos;
  m.cpus = count_of(first_line(system / "cpu/online"));
  m.nodes = std::max(1, numbered(system / "node", "node"));
  m.memory = kilobytes(proc / "meminfo", "MemTotal");
  m.memory_free = kilobytes(proc / "meminfo", "MemAvailable");
  m.swapped = kilobytes(proc / "meminfo", "SwapTotal") - kilobytes(proc / "meminfo", "SwapFree");
  m.huge_pages = chosen_of(first_line(root / "sys/kernel/mm/transparent_hugepage/enabled"));
  m.governor = first_line(system / "cpu/cpu0/cpufreq/scaling_governor");
  m.nvidia_driver = driver_version(first_line(proc / "driver/nvidia/version"));
  if (double quota = 0, period = 0; std::istringstream(first_line(group / "cpu.max")) >> quota >> period && period > 0)
    m.cpu_quota = quota / period;
  if (int64_t limit = 0, used = 0; std::istringstream(first_line(group / "memory.max")) >> limit) {
    m.memory_limit = limit;
    std::istringstream(first_line(group / "memory.current")) >> used;
    m.memory_free = std::min(m.memory_free, std::max<int64_t>(0, limit - used));
  }
  std::istringstream(first_line(proc / "loadavg")) >> m.load;
  return m;
}

}  // namespace mr
