#include "backend/cuda/device/launch_log.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <regex>

namespace mr::cuda {

// A kernel's name without its parameters and without namespaces, whose mangling contains the file: "product_kernel<64, 8>".
static std::string name_of(const void* function) {
  const char* mangled = nullptr;
  if (cudaFuncGetName(&mangled, function) != cudaSuccess) return "unknown";
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> demangled(abi::__cxa_demangle(mangled, nullptr, nullptr, &status), std::free);
  std::string name = status == 0 ? demangled.get() : mangled;
  static const std::regex namespaces(R"(\(anonymous namespace\)::|\w*_GLOBAL__N_\w*::|mr::cuda::|mr::|^void )");
  name = std::regex_replace(name, namespaces, "");
  int depth = 0;  // of template arguments
  size_t end = 0;
  while (end < name.size() && (depth > 0 || name[end] != '(')) {
    if (name[end] == '<') depth++;
    if (name[end] == '>') depth--;
    end++;
  }
  name.resize(end);
  return name;
}

std::string LaunchLog::line(const void* function, dim3 grid, dim3 block, size_t shared) {
  return fmt::format("{} {}x{}x{} {} {}", name_of(function), grid.x, grid.y, grid.z, block.x, shared);
}

}  // namespace mr::cuda
