// millrace bench --url and --load: one load on any OpenAI server, or on the engine here, and the picture of several such runs.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/measure.h"
#include "core/json.h"
#include "engine/traffic.h"

namespace mr {

struct LoadFlags {
  bool here = false;          // on the engine in this program
  std::string file;           // the requests, one a line; empty: they are made up
  std::vector<int> streams;   // none: one on a server, all requests at once here
  std::vector<double> rates;  // if any: Poisson arrivals instead of streams
  std::string prompt_tokens = "128", max_tokens = "128";
  int requests = 0, shared_prefix = 0;
  uint64_t seed = 0;

  // Servers only.
  std::string url, api_key, label, html, svg;
  std::vector<std::string> compare;  // JSON files of earlier runs
  int warmup = 1, vocab = 21000;
  double ttft_deadline = 0, tpot_deadline = 0, timeout = 600;
  bool chat = false, text = false;
};
void add_load_flags(CLI::App&, LoadFlags&);
Workload workload_of(const LoadFlags&);
int n_requests(const LoadFlags&, const Workload&, int streams, double rate);  // of a row

// One row for each number of streams, or rate. `model`: as the server names it; empty: the first that it lists.
int bench_url(const LoadFlags&, const std::string& model, const Patience&, bool json);

// The same on the engine here, with its share of the limit.
int bench_mix(const LoadFlags&, EngineFlags, const Patience&, bool json);

bool is_busy(const Json& row);  // other programs used the machine while it was measured

// A page with the latency-throughput curves of `rows`, one curve a label; nothing in it is loaded from elsewhere.
std::string load_page(const Json& rows);
std::string ttft_svg(const Json& rows);  // its pictures alone
std::string tpot_svg(const Json& rows);

}  // namespace mr
