#include "core/isa.h"

#include <array>

#include "core/error.h"

namespace mr {

static constexpr std::array<std::string_view, 4> kNames{"scalar", "avx2", "avx512", "vnni"};

std::string_view name_of(Isa isa) { return kNames[size_t(isa)]; }

std::vector<Isa> available_isas() {
  std::vector<Isa> isas{Isa::scalar};
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))) return isas;
  isas.push_back(Isa::avx2);
  if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq")))
    return isas;
  isas.push_back(Isa::avx512);
  if (__builtin_cpu_supports("avx512vnni")) isas.push_back(Isa::vnni);
#endif
  return isas;
}

Isa best_isa() { return available_isas().back(); }

Isa isa_from(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); i++) {
    if (kNames[i] != name) continue;
    for (Isa isa : available_isas())
      if (isa == Isa(i)) return isa;
    fail("this machine cannot run instruction set '{}': the best it has is '{}'", name, name_of(best_isa()));
  }
  fail("unknown instruction set '{}': scalar, avx2, avx512 and vnni are known", name);
}

}  // namespace mr
