// A warp's part of the attention of one new token (Flash-Decoding, Dao et al. 2023), over 16 tokens at a time in shared memory:
// scores and the online softmax. Dimensions of q and k are permuted alike: lane 4 g + t holds 8 t .. 8 t + 7 of every 32 of
// query head g, or of token g; and of v lane 4 g + t holds dimensions 8 g .. 8 g + 7 of tokens 2t, 2t + 1, 2t + 8 and 2t + 9.
#pragma once

#include "backend/cuda/attention/pages.cuh"
#include "backend/cuda/attention/softmax.cuh"
#include "backend/cuda/device/copies.cuh"

namespace mr::cuda {

inline constexpr int kTile = 16;  // tokens per step of a warp

// A lane's part of one tile.
template <int D>
struct Tile {
  uint4 k[2][D / 32], v[4][D / 64];

  // From a stage of the ring; values of tokens outside [begin, end), which may be NaN, become zero.
  __device__ void load(const bf16 (&stage)[2][kTile * D], int begin, int end, int g, int t) {
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int c = 0; c < D / 32; c++) k[n][c] = *reinterpret_cast<const uint4*>(&stage[0][(8 * n + g) * D + 32 * c + 8 * t]);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int h = 0; h < D / 64; h++)
        v[i][h] = *reinterpret_cast<const uint4*>(&stage[1][(i / 2 * 8 + 2 * t + i % 2) * D + 64 * h + 8 * g]);
    if (begin <= 0 && end >= kTile) return;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int token = i / 2 * 8 + 2 * t + i % 2;
      if (token < begin || token >= end) {
#pragma unroll
        for (int h = 0; h < D / 64; h++) v[i][h] = uint4{};
      }
    }
  }
  __device__ uint4 key(int n, int c) const { return k[n][c]; }
  __device__ uint4 value(int i, int h) const { return v[i][h]; }
};

// A tile of wide heads does not fit in registers: it is read from shared memory on demand.
template <>
struct Tile<256> {
  uint32_t k, v;  // addresses of the lane's part
  int t, begin, end;

  __device__ void load(const bf16 (&stage)[2][kTile * 256], int from, int to, int g, int of) {
    k = shared_address(&stage[0][g * 256 + 8 * of]);
    v = shared_address(&stage[1][2 * of * 256 + 8 * g]);
    t = of;
    begin = from;
    end = to;
  }
  __device__ uint4 key(int n, int c) const { return read(k + (8 * n * 256 + 32 * c) * 2); }
  __device__ uint4 value(int i, int h) const {
    const int token = i / 2 * 8 + i % 2;
    return token + 2 * t >= begin && token + 2 * t < end ? read(v + (token * 256 + 64 * h) * 2) : uint4{};
  }

 private:
  __device__ static uint4 read(uint32_t at) {  // volatile, so that it is not hoisted, which would need registers
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(at) : "memory");
    return x;
  }
};

// The online softmax of a warp: row g is query head g.
template <int D>
struct Sums {
  float m = -INFINITY, l = 0, o[D / 64][8][2] = {};

  __device__ void take(const Tile<D>& tile, const uint4 (&q)[D / 32], const AttendCall& call, int begin, int end, int t) {
    float s[2][2] = {}, most = m;
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int c = 0; c < D / 32; c++) {
        const uint4 k = tile.key(n, c);
        mma_low(s[n], q[c].x, q[c].y, k.x, k.y);
        mma_low(s[n], q[c].z, q[c].w, k.z, k.w);
      }
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int token = 8 * n + 2 * t + i;
        float x = s[n][i] * call.scale * kLog2e;
        if (call.softcap != 0) x = call.softcap * kLog2e * tanhf(s[n][i] * call.scale / call.softcap);
        s[n][i] = token >= begin && token < end ? x : -INFINITY;
        most = fmaxf(most, s[n][i]);
      }
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    const float base = most == -INFINITY ? 0.0f : most, shrink = exp2_fast(m - base);
    m = most;
    float p[2][2];
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int i = 0; i < 2; i++) p[n][i] = exp2_fast(s[n][i] - base);
    l = l * shrink + (p[0][0] + p[0][1]) + (p[1][0] + p[1][1]);
    const uint32_t p0 = pack(p[0][0], p[0][1]), p1 = pack(p[1][0], p[1][1]);
#pragma unroll
    for (int h = 0; h < D / 64; h++) {
      const uint4 v[4] = {tile.value(0, h), tile.value(1, h), tile.value(2, h), tile.value(3, h)};
      const uint32_t *v0 = &v[0].x, *v1 = &v[1].x, *v2 = &v[2].x, *v3 = &v[3].x;
#pragma unroll
      for (int j = 0; j < 8; j++) {
        const uint32_t take = j % 2 ? 0x7632 : 0x5410;
        o[h][j][0] *= shrink;
        o[h][j][1] *= shrink;
        mma_low(o[h][j], p0, p1, __byte_perm(v0[j / 2], v1[j / 2], take), __byte_perm(v2[j / 2], v3[j / 2], take));
      }
    }
  }
};

}  // namespace mr::cuda
