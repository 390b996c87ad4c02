#include "cli/plan_text.h"

#include "core/config.h"
#include "core/error.h"

namespace mr {

std::string indented(std::string_view text, std::string_view by) {
  std::string out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    out += fmt::format("{}{}", by, text.substr(begin, end - begin));
    begin = end;
  }
  return out;
}

std::string plan_text(const Model& outline, const EngineOptions& options) {
  const auto backend = make_cpu_backend(options.isa.value_or(best_isa()), options.threads > 0 ? options.threads : default_threads());
  try {
    return plan_engine(outline, options, *backend, backend->memory()).text();
  } catch (const Error& e) {  // too large for this machine: a message, not a failure
    return std::string(e.what()) + "\n";
  }
}

}  // namespace mr
