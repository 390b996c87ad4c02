#include "analyze/local.h"

#include <cstring>
#include <fstream>

#include "backend/cpu/probe.h"
#include "core/config.h"
#include "core/error.h"
#include "core/machine.h"
#include "core/other_programs.h"
#include "core/tensor.h"
#include "core/words.h"

namespace mr {

namespace fs = std::filesystem;

static std::string title(int threads) {
  std::string processor = survey_machine().processor;
  if (processor.empty()) processor = "unknown processor";
  return fmt::format("{}, {}, {}", processor, counted(threads, "thread"), name_of(best_isa()));
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

// Over a buffer larger than any cache.
static double measure_bandwidth(ThreadPool& pool) {
  double bytes = std::max(512.0 * 1048576, 4 * cache_bytes("3"));
  Buffer memory(size_t(std::min(bytes, double(physical_memory()) / 4)));
  pool.parallel(int64_t(memory.size()), 1 << 20,
                [&](int64_t begin, int64_t end, int) { std::memset(memory.data() + begin, 1, size_t(end - begin)); });
  std::span<const std::byte> all(memory.data(), memory.size());
  return read_bandwidth(std::span(&all, 1), best_isa(), pool);
}

Chip probe_local(int threads) {
  ThreadPool pool(threads);
  Chip c;
  OtherPrograms others;
  for (Isa isa : available_isas()) {
    c.bf16 = float_rate(isa, pool);  // 16-bit weights times 32-bit activations
    c.int8 = c.quantized = quantized_rate(isa, pool);
    c.rates.push_back({fmt::format("{} f32", name_of(isa)), c.bf16});
    c.rates.push_back({fmt::format("{} quantized", name_of(isa)), c.quantized});
  }
  c.name = "local";
  c.title = title(threads);
  c.bandwidth = measure_bandwidth(pool);
  c.memory = double(physical_memory());
  c.units = threads;
  c.unit_memory = cache_bytes("2");
  c.cache = cache_bytes("3");
  c.activation_bytes = 4;
  c.others = others.share();
  return c;
}

static bool read_cached(const fs::path& path, int threads, Chip& chip) {
  std::ifstream in(path);
  Json j = Json::parse(in, nullptr, false);
  if (!j.is_object()) return false;
  try {
    chip = chip_from(j);
  } catch (const Json::exception&) {  // written by another version
    return false;
  }
  return chip.title == title(threads) && chip.memory == double(physical_memory()) && chip.bandwidth > 0 && chip.bf16 > 0;
}

Chip local_machine(int threads, bool probe_again) {
  if (threads == 0) threads = default_threads();
  fs::path path = cache_dir() / "hardware.json";
  Chip c;
  if (!probe_again && read_cached(path, threads, c)) return c;
  c = probe_local(threads);
  if (c.busy()) return c;   // not cached
  std::error_code ignored;  // if the folder is not writable, the next run probes again
  fs::create_directories(path.parent_path(), ignored);
  std::ofstream(path) << json_of(c).dump(1) << "\n";
  return c;
}

}  // namespace mr
