// Flags of millrace bench --url and --load.
#pragma once

#include <CLI/CLI.hpp>

#include "bench/load.h"

namespace mr {

struct LoadFlags : LoadOptions {
  bool here = false;                 // on the engine in this process
  std::vector<std::string> compare;  // JSON files of earlier runs on servers
  std::string html, svg;
  int vocab = 21000;
  bool chat = false, text = false;
};
void add_load_flags(CLI::App&, LoadFlags&);
Workload workload_of(const LoadFlags&);

int bench_url(const LoadFlags&, const std::string& model, const Patience&, bool json);

}  // namespace mr
