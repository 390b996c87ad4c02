#include "cli/about.h"

#include <fmt/format.h>

#include "backend/cuda/cuda_backend.h"
#include "core/config.h"
#include "core/words.h"
#include "state/memory_plan.h"

namespace mr {

std::string version_line() { return "millrace " MR_VERSION; }

std::string build_line() {
#if defined(MR_CUDA)
  const char* cuda = "with CUDA";
#else
  const char* cuda = "without CUDA";
#endif
#if defined(MR_SERVE)
  const char* server = "";
#else
  const char* server = ", without the server";
#endif
#if defined(MR_NET)
  const char* hub = "";
#else
  const char* hub = ", without the hub";
#endif
#if defined(__clang__)
  const char* compiler = "Clang " __clang_version__;
#else
  const char* compiler = "GCC " __VERSION__;
#endif
  return fmt::format("built by {} ({}), {}{}{}", compiler, MR_BUILD_TYPE, cuda, server, hub);
}

std::string machine_line() {
  std::string isas;
  for (Isa isa : available_isas()) isas += (isas.empty() ? "" : ", ") + std::string(name_of(isa));
  const std::string why = why_no_cuda();
  return fmt::format("this machine: {}; {}; {}", counted(default_threads(), "thread"), isas, why.empty() ? "a GPU" : why);
}

static Finding instructions(const Machine& m, const Reach& r) {
  Finding f{"instructions", std::string(name_of(r.isa)), ""};
  if (m.has_tiles && r.isa < Isa::amx)
    f.advice = "the processor has AMX tiles, but the system does not hand them out: Linux 5.16 or later does";
  else if (m.has_avx512 && r.isa < Isa::avx512)
    f.advice = "the processor has AVX-512, but this system or virtual machine hides parts of it";
  else if (r.isa == Isa::scalar)
    f.advice = "neither AVX2 nor more: portable code is several times slower";
  return f;
}

static Finding processors(const Machine& m, const Reach& r) {
  Finding f{"processors",
            fmt::format("{}: {} on {}", m.processor.empty() ? "unknown" : m.processor, counted(r.threads, "thread"),
                        counted(m.cpus, "processor")),
            ""};
  if (m.cpu_quota > 0 && m.cpu_quota < r.threads)
    f.advice = fmt::format("the control group allows {:.1f} processors: threads beyond that wait for each other; use --threads {}",
                           m.cpu_quota, std::max(1, int(m.cpu_quota)));
  else if (m.load > 1 && m.load > 0.5 * m.cpus)
    f.advice =
        fmt::format("other programs keep {:.0f} of them busy: a step waits for its slowest thread", std::min(m.load, double(m.cpus)));
  return f;
}

static Finding clocks(const Machine& m) {
  Finding f{"clock", m.governor, ""};
  if (m.governor == "powersave" || m.governor == "conservative")
    f.advice = "the governor keeps clocks low between steps: cpupower frequency-set -g performance";
  return f;
}

static Finding memory(const Machine& m) {
  const int64_t all = m.memory_limit ? std::min(m.memory, m.memory_limit) : m.memory;
  Finding f{"memory",
            fmt::format("{} free of {}{}", size_text(m.memory_free), size_text(all),
                        m.memory_limit && m.memory_limit < m.memory ? " that the control group allows" : ""),
            ""};
  if (m.swapped > all / 20)
    f.advice =
        fmt::format("{} are swapped out: a model that does not stay in memory reads from the disk at every step", size_text(m.swapped));
  return f;
}

static Finding nodes(const Machine& m) {
  Finding f{"memory nodes", fmt::format("{}", m.nodes), ""};
  if (m.nodes > 1)
    f.advice = fmt::format(
        "{} nodes: a model on one and threads on another share the link between them; numactl --interleave=all millrace …, "
        "or one server a node with numactl --cpunodebind=N --membind=N",
        m.nodes);
  return f;
}

static Finding huge_pages(const Machine& m) {
  Finding f{"huge pages", m.huge_pages, ""};
  if (m.huge_pages == "never")
    f.advice = "weights lie in pages of 4 KB: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, as root";
  return f;
}

static Finding gpu(const Machine& m, const Reach& r) {
  Finding f{"GPU", r.why_no_gpu.empty() ? "an NVIDIA Hopper, used by default" : r.why_no_gpu, ""};
  if (r.why_no_gpu.empty()) return f;
  if (m.nvidia_driver.empty()) return {"GPU", "no NVIDIA driver is loaded", ""};
  f.advice =
      fmt::format("an NVIDIA driver ({}) is loaded: millrace runs on Hopper GPUs, built where nvcc 13 is found, with drivers from 580 on",
                  m.nvidia_driver);
  return f;
}

std::vector<Finding> examine(const Machine& m, const Reach& r) {
  std::vector<Finding> all{processors(m, r), instructions(m, r), memory(m), nodes(m), gpu(m, r)};
  if (!m.huge_pages.empty()) all.push_back(huge_pages(m));
  if (!m.governor.empty()) all.push_back(clocks(m));
  if (!r.has_model)
    all.push_back({"default model", "not on this machine", "`millrace run` fetches it from the hub, or names another: `millrace run OWNER/NAME`"});
  return all;
}

}  // namespace mr
