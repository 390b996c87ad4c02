// Properties of this machine that decide how fast a model runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace mr {

struct Machine {
  std::string processor;      // brand name; empty: unknown
  int cpus = 0;               // online
  int nodes = 1;              // NUMA
  double cpu_quota = 0;       // processors that the control group allows; 0: no limit
  int64_t memory = 0;         // bytes
  int64_t memory_limit = 0;   // bytes that the control group allows; 0: no limit
  int64_t memory_free = 0;    // bytes still available, within that limit
  int64_t swapped = 0;        // bytes swapped out
  std::string huge_pages;     // "always", "madvise", "never"; empty: unknown
  std::string governor;       // of the CPU frequency; empty: unknown, as in most virtual machines
  double load = 0;            // load average of the last minute
  std::string nvidia_driver;  // "580.95.05"; empty: none is loaded
  bool has_avx512 = false;    // of the processor, whether this program uses it or not
  bool has_tiles = false;     // AMX with bf16, likewise
};

// root: where /proc and /sys are; tests provide their own.
Machine survey_machine(const std::filesystem::path& root = "/");

}  // namespace mr
