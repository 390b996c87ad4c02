// One load, on any OpenAI server or on the engine in this process, and the plots of several such runs.
#pragma once

#include <string>
#include <vector>

#include "bench/measure.h"
#include "bench/traffic.h"
#include "core/json.h"

namespace mr {

struct LoadOptions {
  std::string file;           // requests, one a line; empty: synthetic
  std::vector<int> streams;   // none: 1 on a server, all requests at once on the engine
  std::vector<double> rates;  // if any: Poisson arrivals instead of streams
  std::string prompt_tokens = "128", max_tokens = "128";
  int requests = 0, shared_prefix = 0;
  uint64_t seed = 0;

  // Servers only.
  std::string url, api_key, label;
  int warmup = 1;
  double ttft_deadline = 0, tpot_deadline = 0, timeout = 600;

  int n_requests(const Workload&, int of_streams, double rate) const;  // of a row
};

// Adds to the earlier `rows` one for each number of streams, or rate, and prints them as a table unless they are wanted as JSON.
// Returns how many requests were answered. `work.model`: its name on the server; empty: the first listed. Without a URL: the table alone.
int load_server(const LoadOptions&, Workload work, const Patience&, bool json, Json& rows);

// The same on the engine in this process, with its share of the limit.
int load_engine(const LoadOptions&, Workload, EngineSetup, const Patience&, bool json);

bool is_busy(const Json& row);         // measured while other programs used the machine
std::string load_of(const Json& row);  // streams or rate: "16", "2.5/s"

// A self-contained page with the latency-throughput curves of `rows`, one curve a label.
std::string load_page(const Json& rows);
std::string ttft_svg(const Json& rows);  // its plots alone
std::string tpot_svg(const Json& rows);

}  // namespace mr
