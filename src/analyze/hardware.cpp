#include "analyze/hardware.h"

#include <fmt/ranges.h>

#include "core/error.h"
#include "core/other_programs.h"

namespace mr {

bool Chip::busy() const { return others > busy_share; }

static constexpr double T = 1e12, G = 1e9, KiB = 1024, MiB = 1048576;

std::span<const Link> links() {
  static constexpr Link kLinks[] = {
      {"nvlink3", 300 * G}, {"nvlink4", 450 * G}, {"nvlink5", 900 * G}, {"infinity-fabric", 448 * G},
      {"ici-v5e", 200 * G}, {"pcie4", 32 * G},    {"pcie5", 64 * G},
  };
  return kLinks;
}

const Link& link_named(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Link& link : links()) {
    if (link.name == name) return link;
    names.push_back(link.name);
  }
  fail("there is no link '{}': {} are known", name, fmt::join(names, ", "));
}

std::span<const Chip> chips() {
  auto link = [](std::string_view name) { return link_named(name).bytes_per_s; };
  static const Chip kChips[] = {
      //                                   bf16      fp8       int8      bytes/s   memory   units, of each, shared
      {"h100", "NVIDIA H100 SXM", 989 * T, 1979 * T, 1979 * T, 3.35 * T, 80 * G, 132, 228 * KiB, 50 * MiB, link("nvlink4")},
      {"h200", "NVIDIA H200 SXM", 989 * T, 1979 * T, 1979 * T, 4.8 * T, 141 * G, 132, 228 * KiB, 50 * MiB, link("nvlink4")},
      {"a100", "NVIDIA A100 SXM 80 GB", 312 * T, 0, 624 * T, 2.039 * T, 80 * G, 108, 164 * KiB, 40 * MiB, link("nvlink3")},
      {"b200", "NVIDIA B200", 2250 * T, 4500 * T, 4500 * T, 8 * T, 192 * G, 148, 228 * KiB, 126 * MiB, link("nvlink5")},
      {"l40s", "NVIDIA L40S", 362 * T, 733 * T, 733 * T, 864 * G, 48 * G, 142, 100 * KiB, 96 * MiB, link("pcie4")},
      {"mi300x", "AMD MI300X", 1307 * T, 2615 * T, 2615 * T, 5.3 * T, 192 * G, 304, 64 * KiB, 256 * MiB, link("infinity-fabric")},
      {"tpu-v5e", "Google TPU v5e", 197 * T, 0, 394 * T, 819 * G, 16 * G, 1, 128 * MiB, 0, link("ici-v5e")},
  };
  return kChips;
}

std::string chip_names() {
  std::vector<std::string_view> names;
  for (const Chip& chip : chips()) names.push_back(chip.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

const Chip& chip_named(std::string_view name) {
  for (const Chip& chip : chips())
    if (chip.name == name) return chip;
  fail("there is no hardware '{}': local and {} are known", name, chip_names());
}

Json json_of(const Chip& c) {
  Json j{{"name", c.name},           {"title", c.title},
         {"bf16_flops", c.bf16},     {"fp8_flops", c.fp8},
         {"int8_flops", c.int8},     {"quantized_flops", c.quantized},
         {"bandwidth", c.bandwidth}, {"memory_bytes", c.memory},
         {"units", c.units},         {"unit_memory_bytes", c.unit_memory},
         {"cache_bytes", c.cache},   {"link_bytes_per_s", c.link},
         {"ratio", c.ratio()},       {"activation_bytes", c.activation_bytes}};
  for (auto [type, flops] : {std::pair{"bf16", c.bf16}, {"fp8", c.fp8}, {"int8", c.int8}, {"quantized", c.quantized}})
    if (flops > 0) j["ratios"][type] = flops / c.bandwidth;
  if (c.others > 0) j["others_share"] = c.others;
  for (const Chip::Rate& r : c.rates) j["rates"].push_back({{"name", r.name}, {"flops", r.flops}});
  return j;
}

Chip chip_from(const Json& j) {
  Chip c;
  c.name = j.at("name");
  c.title = j.at("title");
  c.bf16 = j.at("bf16_flops");
  c.fp8 = j.at("fp8_flops");
  c.int8 = j.at("int8_flops");
  c.quantized = j.at("quantized_flops");
  c.bandwidth = j.at("bandwidth");
  c.memory = j.at("memory_bytes");
  c.units = j.at("units");
  c.unit_memory = j.at("unit_memory_bytes");
  c.cache = j.at("cache_bytes");
  c.link = j.at("link_bytes_per_s");
  c.activation_bytes = j.at("activation_bytes");
  if (j.contains("rates"))
    for (const Json& r : j.at("rates")) c.rates.push_back({r.at("name"), r.at("flops")});
  return c;
}

}  // namespace mr
