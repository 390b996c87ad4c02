// The AMX kernels over tiles in memory, whose product follows Intel's description of TDPBF16PS step by step. Compiled for AVX-512:
// nothing but code of internal linkage and the table.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // false, in gcc 12's own immintrin.h
#pragma GCC diagnostic ignored "-Wuninitialized"
#include "backend/soft_tiles.h"

#include "backend/cpu/linear_amx.inl"

namespace {

struct Tile {
  int rows, bytes;
  uint8_t at[16][64];
};
thread_local Tile tile_[8];

float flushed(float x) { return (__builtin_bit_cast(uint32_t, x) & 0x7f800000u) ? x : 0 * x; }  // denormals are zeros of their sign

struct SoftTiles {
  static void configure(const TileShapes& s) {
    for (int i = 0; i < 8; i++) {
      tile_[i] = {};
      tile_[i].rows = s.rows[i];
      tile_[i].bytes = s.row_bytes[i];
    }
  }
  static void release() { __builtin_memset(tile_, 0, sizeof(tile_)); }
  template <int T>
  static void zero() {
    __builtin_memset(tile_[T].at, 0, sizeof(tile_[T].at));
  }
  template <int T>
  static void load(const void* p, int64_t stride) {
    zero<T>();
    for (int r = 0; r < tile_[T].rows; r++) __builtin_memcpy(tile_[T].at[r], (const uint8_t*)p + r * stride, size_t(tile_[T].bytes));
  }
  template <int T>
  static void store(void* p, int64_t stride) {
    for (int r = 0; r < tile_[T].rows; r++) __builtin_memcpy((uint8_t*)p + r * stride, tile_[T].at[r], size_t(tile_[T].bytes));
  }
  static float bf16(const Tile& t, int row, int i) {
    uint16_t h;
    __builtin_memcpy(&h, t.at[row] + 2 * i, 2);
    return flushed(__builtin_bit_cast(float, uint32_t(h) << 16));
  }
  template <int C, int A, int B>
  static void dot() {
    Tile &c = tile_[C], &a = tile_[A], &b = tile_[B];
    for (int m = 0; m < c.rows; m++)
      for (int n = 0; n < c.bytes / 4; n++) {
        float even = 0, odd = 0, sum;
        for (int k = 0; k < a.bytes / 4; k++) {
          even = flushed(__builtin_fmaf(bf16(a, m, 2 * k), bf16(b, k, 2 * n), even));
          odd = flushed(__builtin_fmaf(bf16(a, m, 2 * k + 1), bf16(b, k, 2 * n + 1), odd));
        }
        __builtin_memcpy(&sum, c.at[m] + 4 * n, 4);
        sum = flushed(flushed(sum) + flushed(even + odd));
        __builtin_memcpy(c.at[m] + 4 * n, &sum, 4);
      }
  }
};

}  // namespace

namespace mr {

const LinearKernels& soft_tile_kernels() { return amx::Kernels<SoftTiles>::all; }

}  // namespace mr
