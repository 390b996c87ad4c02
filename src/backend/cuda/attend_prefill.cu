// Attention of many rows of a sequence over its pages (FlashAttention, Dao 2022; on Hopper's matrix instructions, Shah et al. 2024).
// A block takes 128 rows of one query head, each group of four warps 64 of them; keys and values come in tiles of 64 tokens, the
// next tile's copy runs under this tile's products. Flops: 4 * D for every pair of a row and a key it sees.
#include "backend/cuda/device.cuh"
#include "backend/cuda/wgmma.cuh"

namespace mr::cuda {

namespace {

constexpr int kThreads = 256, kKeys = 64, kStages = 2;

template <int D>
struct Sizes {
  static constexpr int sides = D / 64;  // blocks of 64 dimensions, 128 bytes a row
  static constexpr int q = sides * kPrefillRows * 128, tile = sides * kKeys * 128;
  static constexpr int all = q + kStages * 2 * tile + 1024;
};

__device__ void copy16(uint32_t to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

template <int D>
__global__ void __launch_bounds__(kThreads, 2) prefill_kernel(AttendCall call, const PrefillTile* tiles) {
  using Size = Sizes<D>;
  extern __shared__ char raw[];
  const uint32_t q_at = (shared_address(raw) + 1023) & ~1023u, k_at = q_at + Size::q, v_at = k_at + kStages * Size::tile;
  launch_next();
  wait_before();
  const PrefillTile tile = tiles[blockIdx.y];
  const int head = blockIdx.x, seq = tile.seq, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const Pages& pages = call.pages;
  const int first = call.spots.row_begin[seq], n_rows = call.spots.row_begin[seq + 1] - first, context = call.spots.context[seq];
  const bool causal = call.spots.corner[seq] == Corner::causal;
  const int end = causal ? min(context + tile.row + kPrefillRows, context + n_rows) : context + n_rows;
  const int begin = call.window ? max(0, context + (causal ? tile.row : 0) - call.window + 1) / kKeys * kKeys : 0;
  const int kv_head = head / (call.heads / pages.kv_heads);
  const int32_t* table = pages.unit + pages.begin[seq];

  for (int i = threadIdx.x; i < kPrefillRows * D / 8; i += kThreads) {
    const int row = i / (D / 8), piece = i % (D / 8);
    const bool there = tile.row + row < n_rows;
    const bf16* from =
        static_cast<const bf16*>(call.q.data) + (first + (there ? tile.row + row : 0)) * call.q.stride + head * call.q.head_stride;
    copy16(q_at + piece / 8 * kPrefillRows * 128 + swizzle(row, piece % 8), from + piece * 8, there);
  }
  // Pages hold whole sixteens of tokens, and a thread copies one token of each sixteen of a tile.
  constexpr int kPer = kKeys * D / 8 / kThreads, kApart = kKeys / kPer;
  const int token0 = threadIdx.x / (D / 8), piece = threadIdx.x % (D / 8);
  const int64_t head_at = int64_t(kv_head) * pages.page_tokens, v_offset = int64_t(pages.kv_heads) * pages.page_tokens * D;
  auto copy_tile = [&](int key, int stage) {
#pragma unroll
    for (int n = 0; n < kPer; n++) {
      const int token = token0 + n * kApart, place = key + token, page = page_number(pages, place);
      const bool there = place < end;
      int64_t unit = there ? table[page] : 0;
      if (unit < 0) unit = 0;  // behind a window: masked below
      const bf16* from = reinterpret_cast<const bf16*>(pages.base + unit * pages.unit_bytes) +
                         (head_at + place - page * pages.page_tokens) * D + piece * 8;
      const uint32_t to = piece / 8 * kKeys * 128 + swizzle(token, piece % 8);
      copy16(k_at + stage * Size::tile + to, from, there);
      copy16(v_at + stage * Size::tile + to, from + v_offset, there);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  copy_tile(begin, 0);

  const int wg = warp / 4, row0 = tile.row + wg * 64 + warp % 4 * 16 + g;                    // and row0 + 8
  const float log2e = 1.44269504f, factor = call.softcap != 0 ? log2e : call.scale * log2e;  // scores to powers of two
  float o[D / 2], m[2] = {-INFINITY, -INFINITY}, l[2] = {};
#pragma unroll
  for (float& x : o) x = 0;
  int stage = 0;
#pragma unroll 1
  for (int key = begin; key < end; key += kKeys, stage ^= 1) {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();  // this tile is there, and nobody reads the other stage any more
    float s[kKeys / 2];
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < D / 16; k++)
      wgmma(s, rows_descriptor(q_at + k / 4 * kPrefillRows * 128 + wg * 64 * 128 + k % 4 * 32),
            rows_descriptor(k_at + stage * Size::tile + k / 4 * kKeys * 128 + k % 4 * 32), k > 0);
    wgmma_commit();
    if (key + kKeys < end) copy_tile(key + kKeys, stage ^ 1);
    wgmma_wait<0>();

    if (call.softcap != 0) {
#pragma unroll
      for (float& x : s) x = call.softcap * tanhf(x * call.scale / call.softcap);
    }
    const bool below = key + kKeys - 1 <= context + tile.row,
               inside = !call.window || key > context + tile.row + kPrefillRows - 1 - call.window;
    if (!(causal && below && inside)) {
#pragma unroll
      for (int i = 0; i < kKeys / 2; i++) {
        const int place = key + i / 4 * 8 + 2 * t + i % 2, row = row0 + (i & 2 ? 8 : 0);
        bool seen = place < end && row < n_rows;
        if (seen && causal && !call.window) seen = place <= context + row;
        if (seen && (!causal || call.window)) seen = sees(call.spots, seq, first + row, first, context, place, call.window);
        if (!seen) s[i] = -INFINITY;
      }
    }
    float shrink[2], base[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float most = m[h];
#pragma unroll
      for (int i = 0; i < kKeys / 2; i++)
        if ((i & 2) == 2 * h) most = fmaxf(most, s[i]);
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      base[h] = most == -INFINITY ? 0.0f : most * factor;
      shrink[h] = exp2_fast(m[h] * factor - base[h]);
      m[h] = most;
      l[h] *= shrink[h];
    }
#pragma unroll
    for (int i = 0; i < kKeys / 2; i++) {
      s[i] = exp2_fast(s[i] * factor - base[(i >> 1) & 1]);
      l[(i >> 1) & 1] += s[i];
    }
    if (__any_sync(~0u, shrink[0] != 1 || shrink[1] != 1)) {
#pragma unroll
      for (int i = 0; i < D / 2; i++) o[i] *= shrink[(i >> 1) & 1];
    }
    uint32_t p[kKeys / 16][4];
#pragma unroll
    for (int k = 0; k < kKeys / 16; k++)
#pragma unroll
      for (int i = 0; i < 4; i++) p[k][i] = pack(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < kKeys / 16; k++) wgmma_columns(o, p[k], columns_descriptor(v_at + stage * Size::tile + k * 2048, kKeys * 128));
    wgmma_commit();
    wgmma_wait<0>();
  }

#pragma unroll
  for (int h = 0; h < 2; h++) {
    l[h] += __shfl_xor_sync(~0u, l[h], 1);
    l[h] += __shfl_xor_sync(~0u, l[h], 2);
    float value = 1;
    if (call.sinks) {
      const float sink = call.sinks[head] * log2e, most = m[h] * factor, top = fmaxf(most, sink);
      l[h] = l[h] * exp2_fast(most - top) + exp2_fast(sink - top), value = exp2_fast(most - top);
    }
    l[h] = value / l[h];
    const int row = row0 + 8 * h;
    if (row >= n_rows) continue;
    const int64_t to = (first + row) * call.out.stride + head * call.out.head_stride + 2 * t;
#pragma unroll
    for (int j = 0; j < D / 8; j++) {
      const float a = o[4 * j + 2 * h] * l[h], b = o[4 * j + 2 * h + 1] * l[h];
      if (call.out.dtype == DType::bf16) {
        *reinterpret_cast<uint32_t*>(static_cast<bf16*>(call.out.data) + to + 8 * j) = pack(a, b);
      } else {
        store(call.out.data, call.out.dtype, to + 8 * j, a);
        store(call.out.data, call.out.dtype, to + 8 * j + 1, b);
      }
    }
  }
}

template <int D>
void run(const Launch& at, const AttendCall& call, const PrefillTile* tiles, int n_tiles) {
  must(cudaFuncSetAttribute(prefill_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, Sizes<D>::all));
  launch(at, prefill_kernel<D>, grid2(call.heads, n_tiles), kThreads, Sizes<D>::all, call, tiles);
}

}  // namespace

bool can_prefill(const AttendCall& c) {
  const int d = c.pages.k_dim;
  return (d == 64 || d == 128) && c.pages.v_dim == d && c.pages.dtype == DType::bf16 && c.q.dtype == DType::bf16 && c.q.stride % 8 == 0 &&
         c.q.head_stride % 8 == 0 && reinterpret_cast<uintptr_t>(c.q.data) % 16 == 0 && c.out.stride % 2 == 0 &&
         c.out.head_stride % 2 == 0 && reinterpret_cast<uintptr_t>(c.out.data) % 4 == 0;
}

void attend_prefill(const Launch& at, const AttendCall& call, const PrefillTile* tiles, int n_tiles) {
  if (call.pages.k_dim == 128) {
    run<128>(at, call, tiles, n_tiles);
  } else {
    run<64>(at, call, tiles, n_tiles);
  }
}

}  // namespace mr::cuda
