// The build and the machine: for --version and `millrace doctor`.
#pragma once

#include <string>
#include <vector>

#include "core/isa.h"
#include "core/machine.h"

namespace mr {

std::string version_line();  // "millrace 0.1.0"
std::string build_line();    // compiler, build type, components
std::string machine_line();  // what this machine offers

// What the program can use of this machine.
struct Reach {
  Isa isa = Isa::scalar;
  int threads = 1;
  std::string why_no_gpu;  // empty: it runs on one
  bool has_model = true;   // the default one
};

struct Finding {
  std::string topic, text;
  std::string advice;  // empty: nothing to improve
};

std::vector<Finding> examine(const Machine&, const Reach&);

}  // namespace mr
