#include "core/amounts.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "core/config.h"
#include "core/words.h"

namespace mr {

std::string bytes_text(int64_t bytes) {
  if (bytes < 1000) return counted(bytes, "byte");
  double value = double(bytes);
  const char* unit = "";
  for (const char* next : {"kB", "MB", "GB", "TB", "PB"}) {
    if (value < 999.5) break;
    value /= 1000;
    unit = next;
  }
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, decimals, unit);
}

std::string clock_text(double seconds) {
  const int64_t s = std::llround(std::clamp(seconds, 0.0, 359999.0));
  if (s < 3600) return fmt::format("{}:{:02}", s / 60, s % 60);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

std::string age_text(double seconds) {
  const int64_t s = int64_t(std::max(0.0, seconds));
  if (s < 60) return counted(s, "second");
  if (s < 3600) return counted(s / 60, "minute");
  if (s < 86400) return counted(s / 3600, "hour");
  return counted(s / 86400, "day");
}

int64_t memory_bytes(const std::string& text) {
  size_t used = 0;
  double number = -1;
  try {
    number = std::stod(text, &used);
  } catch (const std::exception&) {
  }
  std::string unit = text.substr(used);
  bool share = unit.empty() && number > 0 && number < 1;
  double scale = share          ? double(physical_memory())
                 : unit.empty() ? 1
                 : unit == "K"  ? 1024.0
                 : unit == "M"  ? 1048576.0
                 : unit == "G"  ? 1073741824.0
                                : 0;
  bool good = number > 0 && scale > 0 && number * scale >= 1024 && number * scale < 9e18;
  return good ? int64_t(number * scale) : 0;
}

}  // namespace mr
