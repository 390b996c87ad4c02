// millrace bench --url and --load: one load on any OpenAI server, or on the engine in this process, and plots of several such runs.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/measure.h"
#include "core/json.h"
#include "engine/traffic.h"

namespace mr {

struct LoadFlags {
  bool here = false;          // on the engine in this process
  std::string file;           // requests, one a line; empty: synthetic
  std::vector<int> streams;   // none: 1 on a server, all requests at once on the engine
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

// One row for each number of streams, or rate. `model`: its name on the server; empty: the first listed.
int bench_url(const LoadFlags&, const std::string& model, const Patience&, bool json);

// The same on the engine in this process, with its share of the limit.
int bench_mix(const LoadFlags&, EngineFlags, const Patience&, bool json);

bool is_busy(const Json& row);  // measured while other programs used the machine

// A self-contained page with the latency-throughput curves of `rows`, one curve a label.
std::string load_page(const Json& rows);
std::string ttft_svg(const Json& rows);  // its plots alone
std::string tpot_svg(const Json& rows);

}  // namespace mr
