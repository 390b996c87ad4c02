#include "analyze/local.h"

#include <cstring>
#include <fstream>

#include "backend/cpu/probe.h"
#include "core/config.h"
#include "core/error.h"
#include "core/tensor.h"

namespace mr {

namespace fs = std::filesystem;

static std::string cpu_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("model name"))
      if (size_t colon = line.find(": "); colon != std::string::npos) return line.substr(colon + 2);
  return "unknown processor";
}

// Bytes of the first core's cache of this level; 0: unknown.
static double cache_bytes(const std::string& level) {
  for (int i = 0; i < 8; i++) {
    fs::path at = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}", i);
    std::string its_level, type, size;
    std::ifstream(at / "level") >> its_level;
    std::ifstream(at / "type") >> type;
    std::ifstream(at / "size") >> size;
    if (its_level != level || type == "Instruction" || size.empty()) continue;
    return std::atof(size.c_str()) * (size.back() == 'K' ? 1024 : size.back() == 'M' ? 1048576 : 1);
  }
  return 0;
}

// Over memory that no cache holds.
static double measure_bandwidth(ThreadPool& pool) {
  double bytes = std::max(512.0 * 1048576, 4 * cache_bytes("3"));
  Buffer memory(size_t(std::min(bytes, double(physical_memory()) / 4)));
  pool.parallel(int64_t(memory.size()), 1 << 20,
                [&](int64_t begin, int64_t end, int) { std::memset(memory.data() + begin, 1, size_t(end - begin)); });
  std::span<const std::byte> all(memory.data(), memory.size());
  return read_bandwidth(std::span(&all, 1), best_isa(), pool);
}

// Programs that wanted to run in the last minute, on average.
static double load_average() {
  double load = 0;
  std::ifstream("/proc/loadavg") >> load;
  return load;
}

LocalMachine probe_local(int threads) {
  ThreadPool pool(threads);
  LocalMachine m;
  m.busy = load_average() > 0.5 * threads;
  m.threads = threads;
  for (Isa isa : available_isas()) m.rates.push_back({std::string(name_of(isa)), float_rate(isa, pool), quantized_rate(isa, pool)});
  Chip& c = m.chip;
  c.name = "local";
  c.title = fmt::format("{}, {} thread{}, {}", cpu_name(), threads, threads == 1 ? "" : "s", name_of(best_isa()));
  c.bf16 = m.rates.back().f32;  // weights of 16 bits meet activations of 32
  c.int8 = c.quantized = m.rates.back().quantized;
  c.bandwidth = measure_bandwidth(pool);
  c.memory = double(physical_memory());
  c.units = threads;
  c.unit_memory = cache_bytes("2");
  c.cache = cache_bytes("3");
  c.activation_bytes = 4;
  return m;
}

static Json json_of(const LocalMachine& m) {
  Json j{{"chip", json_of(m.chip)}, {"cpu", cpu_name()}, {"threads", m.threads}};
  for (const LocalMachine::Rate& r : m.rates)
    j["rates"].push_back({{"isa", r.isa}, {"f32_flops", r.f32}, {"quantized_flops", r.quantized}});
  return j;
}

static bool read_cached(const fs::path& path, int threads, LocalMachine& m) {
  std::ifstream in(path);
  Json j = Json::parse(in, nullptr, false);
  if (!j.is_object()) return false;
  try {
    if (j.at("cpu") != cpu_name() || j.at("threads") != threads) return false;
    m = {.chip = chip_from(j.at("chip")), .threads = threads};
    for (const Json& r : j.at("rates")) m.rates.push_back({r.at("isa"), r.at("f32_flops"), r.at("quantized_flops")});
  } catch (const Json::exception&) {  // written by another version
    return false;
  }
  return !m.rates.empty() && m.rates.back().isa == name_of(best_isa()) && m.chip.memory == double(physical_memory());
}

LocalMachine local_machine(int threads, bool probe_again) {
  if (threads == 0) threads = default_threads();
  fs::path path = cache_dir() / "hardware.json";
  LocalMachine m;
  if (!probe_again && read_cached(path, threads, m)) return m;
  m = probe_local(threads);
  if (m.busy) return m;     // not worth keeping
  std::error_code ignored;  // a folder that cannot be written costs the next run a second probe, no more
  fs::create_directories(path.parent_path(), ignored);
  std::ofstream(path) << json_of(m).dump(1) << "\n";
  return m;
}

}  // namespace mr
