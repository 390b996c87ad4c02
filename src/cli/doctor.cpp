#include <fmt/format.h>

#include "backend/cuda/cuda_backend.h"
#include "cli/about.h"
#include "cli/cli.h"
#include "core/config.h"
#include "core/json.h"
#include "hub/models.h"

namespace mr {

namespace {

struct DoctorFlags {
  bool json = false;
};

int doctor(const DoctorFlags& flags) {
  const Reach reach{best_isa(), default_threads(), why_no_cuda(), look_up_model("").has_value()};
  const std::vector<Finding> findings = examine(survey_machine(), reach);
  if (flags.json) {
    Json all = Json::array();
    for (const Finding& f : findings) all.push_back({{"topic", f.topic}, {"text", f.text}, {"advice", f.advice}});
    fmt::print("{}\n", Json({{"version", version_line()}, {"build", build_line()}, {"findings", all}}).dump(2));
    return 0;
  }
  fmt::print("{}, {}\n\n", version_line(), build_line());
  int advices = 0;
  for (const Finding& f : findings) {
    fmt::print("  {} {:14} {}\n", f.advice.empty() ? "ok  " : "look", f.topic, f.text);
    if (f.advice.empty()) continue;
    fmt::print("                      {}\n", f.advice);
    advices++;
  }
  fmt::print("\n{}\n", advices
                           ? "What is marked 'look' would make it faster. `millrace bench` says how near the machine's limit a model runs."
                           : "Nothing here would make it faster. `millrace bench` says how near the machine's limit a model runs.");
  return 0;
}

}  // namespace

void add_doctor(CLI::App& program, Action& chosen) {
  add_command<DoctorFlags>(
      program, chosen, "doctor", "what this machine offers, and what would make it faster",
      [](CLI::App& app, DoctorFlags& f) { app.add_flag("--json", f.json, "one JSON object"); }, doctor);
}

}  // namespace mr
