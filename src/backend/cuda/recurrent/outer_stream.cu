// Mamba-2's scan of one row per sequence, for many sequences: persistent blocks stream the states of heads, one after the other,
// through a ring in shared memory, which keeps memory busy. A head's state is n_state * head_dim * 4 contiguous bytes; it is copied in,
// updated in place, and copied out while the next ones are in flight. Reads and writes every state once.
#include <algorithm>

#include "backend/cuda/device/copies.cuh"
#include "backend/cuda/recurrent/scan.cuh"

namespace mr::cuda {

namespace {

constexpr int kStreamThreads = 256, kStreamWarps = kStreamThreads / 32, kStreamRing = 3;

__device__ void copy_out_bytes(void* to, uint32_t from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}

// A row's inputs for an item (a head of a sequence), prefetched one item ahead: a thread has a value of B or C, of x, of the gate, and dt.
struct StreamRow {
  const ScanRows& rows;
  const OuterShape& s;
  uint32_t bc = 0, x = 0, dt = 0, gate = 0;

  __device__ void load(int item, int n_items) {
    if (item >= n_items) return;
    const int64_t row = item / s.heads;
    const int head = item % s.heads, n = s.n_state, group = head / (s.heads / s.groups), i = threadIdx.x;
    if (i < n) bc = ask(rows.b, row * rows.b.stride + group * n + i);
    if (i >= n && i < 2 * n) bc = ask(rows.c, row * rows.c.stride + group * n + i - n);
    if (i < s.head_dim) {
      x = ask(rows.x, row * rows.x.stride + head * s.head_dim + i);
      gate = ask_gate(rows, row, head * s.head_dim + i);
    }
    dt = ask(rows.dt, row * rows.dt.stride + head);
  }
  // B and C to bc_to [2 n], x to x_to [head_dim]; returns dt.
  __device__ float keep(int item, float* bc_to, float* x_to) const {
    if (threadIdx.x < 2 * s.n_state) bc_to[threadIdx.x] = got(rows.b, bc);
    if (threadIdx.x < s.head_dim) x_to[threadIdx.x] = got(rows.x, x);
    return fminf(fmaxf(step_of(rows, got(rows.dt, dt), item % s.heads), s.dt_min), s.dt_max);
  }
};

// Thread (first, lane) has four channels of states first, first + apart, ...
__global__ void __launch_bounds__(kStreamThreads, 2) outer_stream_kernel(ScanRows rows, OuterShape s, Slots slots, int n_items) {
  extern __shared__ __align__(128) char ring[];
  __shared__ uint64_t full[kStreamRing];
  const int n = s.n_state, dim = s.head_dim, size = n * dim * 4, lanes = dim / 4, lane = threadIdx.x % lanes, first = threadIdx.x / lanes,
            apart = kStreamThreads / lanes, warp = threadIdx.x / 32;
  float* sums = reinterpret_cast<float*>(ring + kStreamRing * size);  // [2][kStreamWarps][dim]
  float *bc = sums + 2 * kStreamWarps * dim, *in = bc + 2 * 2 * n;    // [2][2 n], [2][dim]
  auto slot_of = [&](const int32_t* unit, int item) {
    return reinterpret_cast<char*>(slots.base + int64_t(unit[item / s.heads]) * slots.unit_bytes) + int64_t(item % s.heads) * size;
  };
  auto ask_state = [&](int item, int stage) {  // by one thread
    if (item >= n_items) return;
    barrier_expect(&full[stage], size);
    copy_bytes(shared_address(ring + stage * size), slot_of(slots.src, item), size, &full[stage], kReadOnce);
  };
  if (threadIdx.x == 0) {
    for (uint64_t& f : full) barrier_init(&f, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    for (int i = 0; i + 1 < kStreamRing; i++) ask_state(blockIdx.x + i * gridDim.x, i);
  }
  launch_next();
  wait_before();

  StreamRow row_of{rows, s};
  float step = 0;
  auto keep_row = [&](int turn, int item) { step = row_of.keep(item, bc + turn * 2 * n, in + turn * dim); };
  row_of.load(blockIdx.x, n_items);
  keep_row(0, blockIdx.x);
  __syncthreads();

  for (int item = blockIdx.x, i = 0; item < n_items; item += gridDim.x, i++) {
    const int stage = i % kStreamRing, turn = i % 2, head = item % s.heads, row = item / s.heads;
    const float decay = expf(step * s.a[head]), *bi = bc + turn * 2 * n, *ci = bi + n;
    const float4 gain = times(step, *reinterpret_cast<const float4*>(in + turn * dim + 4 * lane));
    const uint32_t gate = row_of.gate;
    row_of.load(item + gridDim.x, n_items);
    barrier_wait(&full[stage], i / kStreamRing % 2);
    float4* h = reinterpret_cast<float4*>(ring + stage * size) + lane;
    float4 sum{};
#pragma unroll 8
    for (int j = first; j < n; j += apart) {
      h[j * lanes] = fma4(decay, h[j * lanes], times(bi[j], gain));
      sum = fma4(ci[j], h[j * lanes], sum);
    }
    sum = over_lanes(sum, lanes);
    float* here = sums + turn * kStreamWarps * dim;
    if (threadIdx.x % 32 < lanes) *reinterpret_cast<float4*>(here + warp * dim + 4 * lane) = sum;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    keep_row(turn ^ 1, item + int(gridDim.x));
    __syncthreads();
    if (threadIdx.x == kStreamThreads - 1) {
      if (slots.dst[row] >= 0) copy_out_bytes(slot_of(slots.dst, item), shared_address(ring + stage * size), size);
      asm volatile("cp.async.bulk.commit_group;" ::: "memory");
      asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");  // the previous stage is free
      ask_state(item + (kStreamRing - 1) * gridDim.x, (i + kStreamRing - 1) % kStreamRing);
    }
    if (threadIdx.x < dim) {
      float y = (s.d ? s.d[head] : 0.0f) * in[turn * dim + threadIdx.x];
      for (int w = 0; w < kStreamWarps; w++) y += here[w * dim + threadIdx.x];
      half_norm_at(rows, row, head * dim + threadIdx.x, write_at(rows, row, head * dim + threadIdx.x, y, gate));
    }
  }
  if (threadIdx.x == kStreamThreads - 1) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

}  // namespace

bool can_stream(const OuterShape& s) {
  const int lanes = s.head_dim / 4;
  return s.head_dim % 4 == 0 && lanes <= 32 && (lanes & (lanes - 1)) == 0 && 2 * s.n_state <= kStreamThreads &&
         s.head_dim <= kStreamThreads && s.n_state * s.head_dim * 4 <= 32 << 10;
}

void outer_stream(const Launch& at, const ScanRows& rows, const OuterShape& s, const Slots& slots) {
  const int items = int(rows.x.rows) * s.heads;
  const size_t shared =
      size_t(kStreamRing) * s.n_state * s.head_dim * 4 + size_t(2 * kStreamWarps * s.head_dim + 4 * s.n_state + 2 * s.head_dim) * 4;
  launch(at, outer_stream_kernel, grid2(std::min(items, 2 * at.n_sm)), kStreamThreads, shared, rows, s, slots, items);
}

}  // namespace mr::cuda
