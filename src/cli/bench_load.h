// millrace bench --url: a load on any OpenAI server, and the picture of several such runs.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "core/json.h"

namespace mr {

struct LoadFlags {
  std::string url, api_key, label, html;
  std::vector<std::string> compare;  // JSON files of earlier runs
  std::vector<int> streams{1};
  std::vector<double> rates;  // if any: Poisson arrivals instead of streams
  std::string prompt_tokens = "128", max_tokens = "128";
  int requests = 0, warmup = 1, shared_prefix = 0, vocab = 21000;
  double ttft_deadline = 0, tpot_deadline = 0, timeout = 600;
  uint64_t seed = 0;
  bool chat = false, text = false;
};
void add_load_flags(CLI::App&, LoadFlags&);

// One row for each number of streams, or rate. `model`: as the server names it; empty: the first that it lists.
int bench_url(const LoadFlags&, const std::string& model, bool json);

// A page with the latency-throughput curves of `rows`, one curve a label; nothing in it is loaded from elsewhere.
std::string load_page(const Json& rows);

}  // namespace mr
