#include "core/isa.h"

#include <array>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "core/error.h"

namespace mr {

static constexpr std::array<std::string_view, 5> kIsaNames{"scalar", "avx2", "avx512", "vnni", "amx"};

std::string_view name_of(Isa isa) { return kIsaNames[size_t(isa)]; }

#if defined(__x86_64__)
// Tiles are 8 KB of registers, which a process has to request from Linux.
static bool may_use_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (kBf16 | kTile)) != (kBf16 | kTile)) return false;
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM of asm/prctl.h, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

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
  if (!__builtin_cpu_supports("avx512vnni")) return isas;
  isas.push_back(Isa::vnni);
  if (may_use_tiles()) isas.push_back(Isa::amx);
#endif
  return isas;
}

Isa best_isa() { return available_isas().back(); }

Isa isa_from(std::string_view name) {
  for (size_t i = 0; i < kIsaNames.size(); i++) {
    if (kIsaNames[i] != name) continue;
    for (Isa isa : available_isas())
      if (isa == Isa(i)) return isa;
    fail("this machine cannot run instruction set '{}': the best it has is '{}'", name, name_of(best_isa()));
  }
  fail("unknown instruction set '{}': scalar, avx2, avx512, vnni and amx are known", name);
}

}  // namespace mr
