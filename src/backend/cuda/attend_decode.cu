// Attention of one new token a sequence over its pages (Flash-Decoding, Dao et al. 2023): the keys of a sequence are cut into
// items, a block takes one item of one K/V head for all query heads that share it, and the block that finishes last merges the
// items in their order. The new key is rotated and stored on the way. Reads end - begin tokens of (k_dim + v_dim) * 2 bytes.
//
// Everything stays in registers, as mma fragments read straight from the pages: dimensions of q and k are permuted alike, so
// that lane 4 g + t holds 8 t .. 8 t + 7 of every 32 of query head g, or of token g; and of v lane 4 g + t holds dimensions 8 g ..
// 8 g + 7 of tokens 2t, 2t + 1, 2t + 8 and 2t + 9.
#include "backend/cuda/device.cuh"

namespace mr::cuda {

namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kTile = 16;         // tokens a warp takes at a time
constexpr int kItemPages = 1024;  // page numbers of an item that are kept at hand

template <int D>
struct Shared {
  float m[kWarps][kGroup], l[kWarps][kGroup];
  float o[kWarps][kGroup][D];
  int32_t unit[kItemPages];
  int last;
};

__device__ uint32_t rotated(uint32_t x, uint32_t other, float2 c, float2 s) {  // s is negated for the first half
  return pack(low(x) * c.x + low(other) * s.x, high(x) * c.y + high(other) * s.y);
}

// Rotates a lane's part of one head: chunk c and c + D / 64 hold the pairs.
template <int D>
__device__ void rotate(uint4 (&x)[D / 32], const float* cosine, int t) {
  constexpr int kHalf = D / 64;
#pragma unroll
  for (int c = 0; c < kHalf; c++) {
    const float2* cs = reinterpret_cast<const float2*>(cosine + 32 * c + 8 * t);
    const float2* sn = reinterpret_cast<const float2*>(cosine + D / 2 + 32 * c + 8 * t);
    uint32_t* a = reinterpret_cast<uint32_t*>(&x[c]);
    uint32_t* b = reinterpret_cast<uint32_t*>(&x[c + kHalf]);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float2 co = cs[i], si = sn[i];
      uint32_t first = rotated(a[i], b[i], co, make_float2(-si.x, -si.y));
      b[i] = rotated(b[i], a[i], co, si);
      a[i] = first;
    }
  }
}

// Stores this step's key, rotated, and value; by one warp.
template <int D>
__device__ void store_new(const AttendCall& call, int row, int kv_head, bf16* k_page, bf16* v_page, int at, int lane) {
  if (lane < 4) {
    const bf16* k = static_cast<const bf16*>(call.k.data) + row * call.k.stride + kv_head * call.k.head_stride;
    uint4 x[D / 32];
#pragma unroll
    for (int c = 0; c < D / 32; c++) x[c] = *reinterpret_cast<const uint4*>(k + 32 * c + 8 * lane);
    if (call.rope.angles) rotate<D>(x, call.rope.angles + row * call.rope.stride, lane);
#pragma unroll
    for (int c = 0; c < D / 32; c++) *reinterpret_cast<uint4*>(k_page + at * D + 32 * c + 8 * lane) = x[c];
  } else if (lane >= 16 && lane < 16 + D / 8) {
    const bf16* v = static_cast<const bf16*>(call.v.data) + row * call.v.stride + kv_head * call.v.head_stride;
    *reinterpret_cast<uint4*>(v_page + at * D + (lane - 16) * 8) = *reinterpret_cast<const uint4*>(v + (lane - 16) * 8);
  }
}

template <int D>
__global__ void __launch_bounds__(kThreads, 3) decode_kernel(AttendCall call, DecodePlan plan) {
  extern __shared__ __align__(16) char raw[];
  Shared<D>& shared = *reinterpret_cast<Shared<D>*>(raw);
  constexpr int kChunks = D / 32, kSides = D / 64;
  launch_next();
  wait_before();
  if (int(blockIdx.x) >= *plan.n_items) return;
  const DecodeItem item = plan.item[blockIdx.x];
  const int kv_head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int group = call.heads / call.pages.kv_heads, page_tokens = call.pages.page_tokens;
  const int row = call.spots.row_begin[item.seq], context = call.spots.context[item.seq];
  const int32_t* table = call.pages.unit + call.pages.begin[item.seq];
  const int seen_from = call.window ? max(0, context + 1 - call.window) : 0;  // the first token inside the window
  const int begin = max(item.begin, seen_from), end = item.end;
  const int first_page = item.begin / page_tokens;
  for (int i = threadIdx.x; i <= (end - 1) / page_tokens - first_page; i += kThreads)
    if (i < kItemPages) shared.unit[i] = table[first_page + i];

  // q, scaled to base 2 once the products are there
  uint4 q[kChunks] = {};
  if (g < group) {
    const bf16* from = static_cast<const bf16*>(call.q.data) + row * call.q.stride + (kv_head * group + g) * call.q.head_stride + 8 * t;
#pragma unroll
    for (int c = 0; c < kChunks; c++) q[c] = *reinterpret_cast<const uint4*>(from + 32 * c);
    if (call.rope.angles) rotate<D>(q, call.rope.angles + row * call.rope.stride, t);
  }
  __syncthreads();
  auto page_at = [&](int token) {
    int i = token / page_tokens - first_page;
    int64_t unit = i < kItemPages ? shared.unit[i] : table[first_page + i];
    return reinterpret_cast<bf16*>(call.pages.base + unit * call.pages.unit_bytes) + int64_t(kv_head) * page_tokens * D;
  };
  const int64_t v_offset = int64_t(call.pages.kv_heads) * page_tokens * D;
  if (call.k.data && end == context + 1) {
    if (warp == 0) {
      bf16* page = page_at(context);
      store_new<D>(call, row, kv_head, page, page + v_offset, context % page_tokens, lane);
    }
    __syncthreads();
  }

  float m = -INFINITY, l = 0, o[kSides][8][2] = {};
  const float log2e = 1.44269504f, factor = call.scale * log2e;
#pragma unroll 1
  for (int tile = begin / kTile * kTile + warp * kTile; tile < end; tile += kWarps * kTile) {
    const bf16* page = page_at(tile) + (tile % page_tokens) * D;
    const bool whole = tile >= begin && tile + kTile <= end;
    uint4 k[2][kChunks], v[4][kSides];
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int c = 0; c < kChunks; c++) k[n][c] = load16(page + (8 * n + g) * D + 32 * c + 8 * t);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int token = i / 2 * 8 + 2 * t + i % 2;
      const bool there = whole || (tile + token >= begin && tile + token < end);
#pragma unroll
      for (int h = 0; h < kSides; h++) v[i][h] = there ? load16(page + v_offset + token * D + 64 * h + 8 * g) : uint4{};
    }
    float s[2][2] = {};
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int c = 0; c < kChunks; c++) {
        mma_low(s[n], q[c].x, q[c].y, k[n][c].x, k[n][c].y);
        mma_low(s[n], q[c].z, q[c].w, k[n][c].z, k[n][c].w);
      }
    float most = m;
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int token = tile + 8 * n + 2 * t + i;
        float x = s[n][i] * factor;
        if (call.softcap != 0) x = call.softcap * log2e * tanhf(s[n][i] * call.scale / call.softcap);
        s[n][i] = whole || (token >= begin && token < end) ? x : -INFINITY;
        most = fmaxf(most, s[n][i]);
      }
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    const float shrink = most == -INFINITY ? 1.0f : exp2f(m - most), base = most == -INFINITY ? 0.0f : most;
    m = most;
    float p[2][2];
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int i = 0; i < 2; i++) p[n][i] = exp2f(s[n][i] - base);
    l = l * shrink + (p[0][0] + p[0][1]) + (p[1][0] + p[1][1]);
    const uint32_t p0 = pack(p[0][0], p[0][1]), p1 = pack(p[1][0], p[1][1]);
#pragma unroll
    for (int h = 0; h < kSides; h++) {
      const uint32_t *v0 = &v[0][h].x, *v1 = &v[1][h].x, *v2 = &v[2][h].x, *v3 = &v[3][h].x;
#pragma unroll
      for (int j = 0; j < 8; j++) {
        const uint32_t take = j % 2 ? 0x7632 : 0x5410;
        o[h][j][0] *= shrink, o[h][j][1] *= shrink;
        mma_low(o[h][j], p0, p1, __byte_perm(v0[j / 2], v1[j / 2], take), __byte_perm(v2[j / 2], v3[j / 2], take));
      }
    }
  }

  // The warps' parts become the item's.
  l += __shfl_xor_sync(~0u, l, 1);
  l += __shfl_xor_sync(~0u, l, 2);
  if (t == 0) shared.m[warp][g] = m, shared.l[warp][g] = l;
#pragma unroll
  for (int h = 0; h < kSides; h++)
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int i = 0; i < 2; i++) shared.o[warp][g][64 * h + 8 * (2 * t + i) + j] = o[h][j][i];
  __syncthreads();

  auto write = [&](int head, int d, float most, float total, float value) {
    if (call.sinks) {
      float sink = call.sinks[kv_head * group + head] * log2e, top = fmaxf(most, sink);
      total = total * exp2f(most - top) + exp2f(sink - top), value *= exp2f(most - top);
    }
    store(call.out.data, call.out.dtype, row * call.out.stride + (kv_head * group + head) * call.out.head_stride + d, value / total);
  };
  const int64_t slot = (int64_t(blockIdx.x) * call.pages.kv_heads + kv_head) * kGroup;
  for (int i = threadIdx.x; i < group * D; i += kThreads) {
    const int head = i / D, d = i % D;
    float most = -INFINITY, total = 0, value = 0;
    for (int w = 0; w < kWarps; w++) most = fmaxf(most, shared.m[w][head]);
    for (int w = 0; w < kWarps; w++) {
      float weight = most == -INFINITY ? 0.0f : exp2f(shared.m[w][head] - most);
      total += weight * shared.l[w][head], value += weight * shared.o[w][head][d];
    }
    if (item.count == 1) {
      write(head, d, most, total, value);
    } else {
      float* to = plan.partial + (slot + head) * (D + 2);
      to[d] = value;
      if (d == 0) to[D] = most, to[D + 1] = total;
    }
  }
  if (item.count == 1) return;

  // Whoever comes last merges all items of this sequence and head, first to last.
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t* arrived = plan.arrived + item.seq * call.pages.kv_heads + kv_head;
    shared.last = atomicAdd(arrived, 1) == item.count - 1;
    if (shared.last) *arrived = 0;
  }
  __syncthreads();
  if (!shared.last) return;
  __threadfence();
  const int64_t first = (int64_t(int(blockIdx.x) - item.index) * call.pages.kv_heads + kv_head) * kGroup;
  const int64_t step = int64_t(call.pages.kv_heads) * kGroup * (D + 2);
  for (int i = threadIdx.x; i < group * D; i += kThreads) {
    const int head = i / D, d = i % D;
    const float* from = plan.partial + (first + head) * (D + 2);
    float most = -INFINITY, total = 0, value = 0;
    for (int n = 0; n < item.count; n++) most = fmaxf(most, __ldcg(from + n * step + D));
    for (int n = 0; n < item.count; n++) {
      float weight = exp2f(__ldcg(from + n * step + D) - most);
      total += weight * __ldcg(from + n * step + D + 1), value += weight * __ldcg(from + n * step + d);
    }
    write(head, d, most, total, value);
  }
}

}  // namespace

bool can_decode(const AttendCall& c) {
  const int d = c.pages.k_dim;
  auto fits = [&](const Heads& x) {
    return x.dtype == DType::bf16 && x.stride % 8 == 0 && x.head_stride % 8 == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
  };
  bool rope = !c.rope.angles || (c.rope.dim == d && c.rope.stride % 2 == 0);
  return (d == 64 || d == 128) && c.pages.v_dim == d && c.pages.dtype == DType::bf16 && c.pages.page_tokens % kTile == 0 &&
         c.heads / c.pages.kv_heads <= kGroup && rope && fits(c.q) && (!c.k.data || (fits(c.k) && fits(c.v)));
}

void attend_decode(const Launch& at, const AttendCall& call, const DecodePlan& plan) {
  const bool wide = call.pages.k_dim == 128;
  auto kernel = wide ? decode_kernel<128> : decode_kernel<64>;
  size_t shared = wide ? sizeof(Shared<128>) : sizeof(Shared<64>);
  launch(at, kernel, grid2(plan.grid, call.pages.kv_heads), kThreads, shared, call, plan);
}

}  // namespace mr::cuda
