// AMX's 8 tile registers, each of up to 16 rows of 64 bytes. Include only in the AMX translation unit.
#pragma once

#include <cstddef>
#include <cstdint>

namespace {

// Rows and bytes per row of each tile, in the format of LDTILECFG.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

struct Tiles {
  static void configure(const TileShapes& s) { asm volatile("ldtilecfg %0" ::"m"(s)); }
  static void release() { asm volatile("tilerelease" ::: "memory"); }
  template <int T>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(T));
  }
  template <int T>
  static void load(const void* p, int64_t stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(T), "r"(p), "r"(stride) : "memory");
  }
  template <int T>
  static void store(void* p, int64_t stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(T), "r"(p), "r"(stride) : "memory");
  }
  // C [m, n] += A [m, 2 k] . B [k, n pairs], bf16 to f32. The even inputs' products are one fma chain from 0, the odd ones' another;
  // their sum is added to C; denormals are flushed to 0.
  template <int C, int A, int B>
  static void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
};

}  // namespace
