// A load as requests to a server, and the summary of their outcomes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/client.h"
#include "bench/traffic.h"
#include "core/json.h"

namespace mr {

std::string path_of(const Workload&);
std::string request_body(const Workload&, uint32_t index);  // index counts from Workload::first

struct Deadlines {
  double ttft = 0, tpot = 0;  // seconds; 0: none
  bool met(const Outcome&) const;
};

struct LoadReport {
  int requests = 0, failed = 0, good = 0;  // good: complete and within the deadlines
  double seconds = 0;                      // from the first request to the last token
  int64_t prompt_tokens = 0, tokens = 0;   // of complete answers
  Spread ttft, tpot, e2e;                  // of complete answers, seconds
  std::map<std::string, int> errors;       // kind -> how often
};
LoadReport summarize(const std::vector<Outcome>&, const Deadlines& = {});
Json report_json(const LoadReport&, const Deadlines&);

}  // namespace mr
