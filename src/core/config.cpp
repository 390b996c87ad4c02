#include "core/config.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>

#include "core/error.h"

namespace mr {

namespace fs = std::filesystem;

static std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

fs::path cache_dir() {
  std::string cache = environment("XDG_CACHE_HOME"), home = environment("HOME");
  if (cache.empty()) cache = (home.empty() ? "/tmp" : home) + "/.cache";
  return fs::path(cache) / "millrace";
}

fs::path default_model() { return cache_dir() / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"; }

fs::path find_model(const std::string& name) {
  if (name.empty()) {
    check(fs::exists(default_model()), "the default model is not at {}: ./quickstart fetches it, or name a model's directory or .gguf file",
          default_model().string());
    return default_model();
  }
  if (fs::exists(name)) return name;
  for (const char* ending : {"", ".gguf", ".Q4_1.gguf"})
    if (fs::path p = cache_dir() / "models" / (name + ending); fs::exists(p)) return p;
  fail("there is no model '{}': neither a file or directory of that name, nor one in {}", name, (cache_dir() / "models").string());
}

std::string api_key_from_environment() { return environment("MILLRACE_API_KEY"); }

int default_threads() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return std::max(1, int(sysconf(_SC_NPROCESSORS_ONLN)));
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    std::string siblings;
    std::ifstream in(fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
    if (!std::getline(in, siblings)) siblings = std::to_string(cpu);
    cores.insert(siblings);
  }
  return std::max(1, int(cores.size()));
}

int64_t physical_memory() {
  int64_t bytes = int64_t(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  std::ifstream limit("/sys/fs/cgroup/memory.max");
  if (int64_t n; limit >> n) bytes = std::min(bytes, n);
  return bytes;
}

}  // namespace mr
