// The instruction sets of the CPU kernels, in ascending order of preference, and which of them this machine has.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace mr {

// scalar: portable C++. avx2: with FMA and F16C. avx512: F, BW, VL, DQ. vnni: avx512 with integer dot products. amx: vnni with
// tile products of bf16.
enum class Isa : uint8_t { scalar, avx2, avx512, vnni, amx };

std::string_view name_of(Isa);
Isa isa_from(std::string_view name);  // throws Error for an unknown name, or one that this machine cannot run
std::vector<Isa> available_isas();    // ascending; always includes scalar. Requests permission to use tiles
Isa best_isa();

}  // namespace mr
