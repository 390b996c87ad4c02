// What the system says about this machine, as far as it decides how fast a model runs here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace mr {

struct Machine {
  std::string processor;      // as its maker calls it; empty: unknown
  int cpus = 0;               // online
  int nodes = 1;              // of memory (NUMA)
  double cpu_quota = 0;       // processors that the control group allows; 0: no limit
  int64_t memory = 0;         // bytes
  int64_t memory_limit = 0;   // bytes that the control group allows; 0: no limit
  int64_t memory_free = 0;    // bytes that programs may still take, within that limit
  int64_t swapped = 0;        // bytes of memory on a disk
  std::string huge_pages;     // "always", "madvise", "never"; empty: unknown
  std::string governor;       // of the processors' clock; empty: unknown, as in most virtual machines
  double load = 0;            // processes that ran or wanted to, over the last minute
  std::string nvidia_driver;  // "580.95.05"; empty: none is loaded
  bool has_avx512 = false;    // of the processor, whether this program may use it or not
  bool has_tiles = false;     // AMX with bf16, likewise
};

// root: where the system's files are looked up, so that a test can make some up.
Machine survey_machine(const std::filesystem::path& root = "/");

}  // namespace mr
