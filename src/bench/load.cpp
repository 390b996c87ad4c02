#include "bench/load.h"

#include <fmt/format.h>

#include <algorithm>

namespace mr {

std::string load_of(const Json& row) {
  return row["rate"].is_null() ? fmt::format("{}", row["streams"].get<int>()) : fmt::format("{:g}/s", row["rate"].get<double>());
}

bool is_busy(const Json& row) {
  const Json others = row.value("others_share", Json());
  return others.is_number() && others > busy_share;
}

int LoadOptions::n_requests(const Workload& w, int of_streams, double rate) const {
  if (requests) return requests;
  if (!w.items.empty()) return int(w.items.size());
  return rate > 0 ? 64 : std::max(16, 4 * of_streams);
}

}  // namespace mr
