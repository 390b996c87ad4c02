// The fuzzers run on the reference backend: kernels would take minutes to compile, and clang 14 does not support every instruction set.
#include "backend/backend.h"
#include "core/error.h"

namespace mr {

std::unique_ptr<Backend> make_cpu_backend(Isa, int) { fail("the fuzzers have no kernels"); }
Isa best_isa() { return Isa::scalar; }
std::string_view name_of(Isa) { return "scalar"; }

}  // namespace mr
