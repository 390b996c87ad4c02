// Mamba-2's scan of many rows on the tensor cores, 64 rows at a time (state-space duality, Dao & Gu 2024, section 6). A block
// computes one head of a sequence, whose state [n_state, head_dim] stays in registers in f32. With s the sum of the log decays
// since the beginning of the chunk, h the state before it:
//   y_t = sum over u <= t of exp(s_t - s_u) dt_u (C_t . B_u) x_u + exp(s_t) C_t . h,   h = exp(s_end) h + sum of exp(s_end - s_u) dt_u B_u
//   x_u
// A chunk ends early at a row whose state is stored. Operands are rounded to bf16, those of the state update split into two bf16
// pieces, and sums are f32. Flops of a chunk: 2 * 64 * (64 * (n_state + 64) + 3 * n_state * 64).
#include "backend/cuda/recurrent/scan.cuh"

namespace mr::cuda {

namespace {

constexpr int kRows = 64, kDim = 64, kStates = 128, kThreads = 256;
constexpr int kWide = kRows * kStates * 2, kNarrow = kRows * kDim * 2;                         // bytes of B or C, of x
constexpr int kTurn = 2 * kWide + kNarrow, kBytes = 2 * kTurn + kNarrow + kStates * kDim * 2;  // two chunks, the weights of x, h

// Swizzled address of a 16-byte unit of a row of `Bytes`: eight rows of one column are in different banks.
template <int Bytes>
__device__ uint32_t place(uint32_t base, int row, int unit) {
  return base + uint32_t(row * Bytes + ((unit ^ (row & 7)) << 4));
}
__device__ void copy_16(uint32_t to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
// Four 8 x 8 matrices of bf16; lane l passes the address of row l % 8 of matrix l / 8. Lane 4 g + t gets (g, 2t) of each, or (2t, g).
template <bool Turned>
__device__ void load_matrices(uint32_t (&to)[4], uint32_t from) {
  if constexpr (Turned)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}
__device__ void put_pair(uint32_t at, float a, float b) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(pack(a, b)) : "memory"); }
__device__ uint32_t get_pair(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}

// A block's head of a sequence: its states in registers, the current and the next chunk of rows in shared memory.
struct Chunks {
  const ScanRows& rows;
  const OuterShape& s;
  const Slots& slots;
  float *sums, *steps;  // [kRows]; sums: running sums of base-2 log decays
  const int head = blockIdx.x, group, last;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int tile = warp % 4, half = warp / 4;  // of y and of the weights: 16 rows, 32 columns
  const uint32_t base, weights = base + 2 * kTurn, states = weights + kNarrow;
  const int64_t at = (int64_t(head) * kStates + warp * 16 + g) * kDim + 2 * t;
  const float rate, through;
  float h[kDim / 8][4];  // states warp * 16 + g and 8 more, channels 8 j + 2 t and one more
  uint32_t next_dt[2];

  __device__ Chunks(const ScanRows& r, const OuterShape& shape, const Slots& of, uint32_t memory, float* sums_to, float* steps_to, int end)
      : rows(r),
        s(shape),
        slots(of),
        sums(sums_to),
        steps(steps_to),
        group(head / (shape.heads / shape.groups)),
        last(end),
        base(memory),
        rate(shape.a[head] * 1.44269504f),
        through(shape.d ? shape.d[head] : 0.0f) {}

  __device__ void load_states(const float* from) {
#pragma unroll
    for (int j = 0; j < kDim / 8; j++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const float2 v = *reinterpret_cast<const float2*>(from + i * 8 * kDim + j * 8);
        h[j][2 * i] = v.x;
        h[j][2 * i + 1] = v.y;
      }
  }
  __device__ void keep_states(int32_t slot) const {
    float* kept = slot_at(slots, slot) + at;
#pragma unroll
    for (int j = 0; j < kDim / 8; j++)
#pragma unroll
      for (int i = 0; i < 2; i++) *reinterpret_cast<float2*>(kept + i * 8 * kDim + j * 8) = make_float2(h[j][2 * i], h[j][2 * i + 1]);
  }
  __device__ void write_states() const {  // to shared memory as bf16, for the products with C
#pragma unroll
    for (int j = 0; j < kDim / 8; j++)
#pragma unroll
      for (int i = 0; i < 2; i++) put_pair(place<kDim * 2>(states, warp * 16 + g + 8 * i, j) + 4 * t, h[j][2 * i], h[j][2 * i + 1]);
  }
  __device__ int rows_from(int row) const {  // of the chunk that begins there: up to a row whose state is stored
    const int n = min(kRows, last - row);
    auto kept = [&](int i) { return __ballot_sync(~0u, i < n && slots.dst[row + i] >= 0); };
    const unsigned low = kept(lane), high = kept(32 + lane);
    return low ? __ffs(int(low)) : high ? 32 + __ffs(int(high)) : n;
  }
  __device__ void fetch(int turn, int row, int n) {
    const uint32_t to = base + turn * kTurn;
    auto wide = [&](const Matrix& m, uint32_t to) {
      for (int e = threadIdx.x; e < kRows * (kStates / 8); e += kThreads) {
        const int i = e / (kStates / 8), unit = e % (kStates / 8);
        copy_16(place<kStates * 2>(to, i, unit),
                static_cast<const bf16*>(m.data) + (row + min(i, n - 1)) * m.stride + group * kStates + unit * 8, i < n);
      }
    };
    wide(rows.b, to);
    wide(rows.c, to + kWide);
    for (int e = threadIdx.x; e < kRows * (kDim / 8); e += kThreads) {
      const int i = e / (kDim / 8), unit = e % (kDim / 8);
      copy_16(place<kDim * 2>(to + 2 * kWide, i, unit),
              static_cast<const bf16*>(rows.x.data) + (row + min(i, n - 1)) * rows.x.stride + head * kDim + unit * 8, i < n);
    }
    if (warp == 0)
#pragma unroll
      for (int i = 0; i < 2; i++) next_dt[i] = ask(rows.dt, (row + min(2 * lane + i, n - 1)) * rows.dt.stride + head);
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

  // Steps of a chunk's n rows and the running sums of their log decays, by one warp.
  __device__ void sum_steps(int n) const {
    float step[2], sum[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      step[i] = fminf(fmaxf(step_of(rows, got(rows.dt, next_dt[i]), head), s.dt_min), s.dt_max);
      if (2 * lane + i >= n) step[i] = 0;
      steps[2 * lane + i] = step[i];
    }
    sum[0] = step[0] * rate;
    sum[1] = sum[0] + step[1] * rate;
    float before = sum[1];
    for (int d = 1; d < 32; d *= 2) {
      const float other = __shfl_up_sync(~0u, before, d);
      if (lane >= d) before += other;
    }
    before -= sum[1];
    sums[2 * lane] = before + sum[0];
    sums[2 * lane + 1] = before + sum[1];
  }

  // Weights of x: C . B^T, decayed; rows tile * 16 + ..., columns half * 32 + ...
  __device__ void weigh(uint32_t b, uint32_t c) const {
    if (half * 2 > tile) return;
    float d[4][4] = {};
#pragma unroll
    for (int k = 0; k < kStates / 16; k++) {
      uint32_t left[4], right[2][4];
      load_matrices<false>(left, place<kStates * 2>(c, tile * 16 + lane % 16, 2 * k + lane / 16));
#pragma unroll
      for (int j = 0; j < 2; j++)
        load_matrices<false>(right[j], place<kStates * 2>(b, half * 32 + j * 16 + lane / 16 * 8 + lane % 8, 2 * k + (lane >> 3 & 1)));
#pragma unroll
      for (int j = 0; j < 4; j++) mma(d[j], left[0], left[1], left[2], left[3], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int to = tile * 16 + g + 8 * i;
      const float sum = sums[to];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int u = half * 32 + j * 8 + 2 * t;
        float v[2];
#pragma unroll
        for (int e = 0; e < 2; e++) v[e] = u + e <= to ? d[j][2 * i + e] * exp2_fast(sum - sums[u + e]) * steps[u + e] : 0.0f;
        put_pair(place<kDim * 2>(weights, to, half * 4 + j) + 4 * t, v[0], v[1]);
      }
    }
  }

  __device__ void load_gate(uint32_t (&gate)[2][4], int row, int n) const {
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int64_t to = row + min(tile * 16 + g + 8 * i, n - 1);
        gate[i][j] = rows.gate.data ? *reinterpret_cast<const uint32_t*>(static_cast<const bf16*>(rows.gate.data) + to * rows.gate.stride +
                                                                         head * kDim + half * 32 + j * 8 + 2 * t)
                                    : 0;
      }
  }

  // y: rows tile * 16 + ..., channels half * 32 + ...
  __device__ void outputs(uint32_t c, uint32_t x, const uint32_t (&gate)[2][4], int row, int n) const {
    float y[4][4] = {};
    auto add_products = [&](uint32_t from, uint32_t factor, int k) {  // 16 columns at `from` times 16 rows of a factor
      uint32_t left[4], right[2][4];
      load_matrices<false>(left, from);
#pragma unroll
      for (int j = 0; j < 2; j++) load_matrices<true>(right[j], place<kDim * 2>(factor, k * 16 + lane % 16, half * 4 + 2 * j + lane / 16));
#pragma unroll
      for (int j = 0; j < 4; j++) mma(y[j], left[0], left[1], left[2], left[3], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
    };
#pragma unroll
    for (int k = 0; k < kStates / 16; k++) add_products(place<kStates * 2>(c, tile * 16 + lane % 16, 2 * k + lane / 16), states, k);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const float decay = exp2_fast(sums[tile * 16 + g + 8 * i]);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        y[j][2 * i] *= decay;
        y[j][2 * i + 1] *= decay;
      }
    }
#pragma unroll
    for (int k = 0; k < kRows / 16; k++) {
      if (k > tile) break;
      add_products(place<kDim * 2>(weights, tile * 16 + lane % 16, 2 * k + lane / 16), x, k);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int to = tile * 16 + g + 8 * i;
      if (to >= n) continue;
      bf16* out = static_cast<bf16*>(rows.out.data) + (row + to) * rows.out.stride + head * kDim + half * 32 + 2 * t;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const uint32_t in = get_pair(place<kDim * 2>(x, to, half * 4 + j) + 4 * t);
        float a = fmaf(through, low(in), y[j][2 * i]), b = fmaf(through, high(in), y[j][2 * i + 1]);
        if (rows.gate.data) {
          a *= activated(Activation::silu, low(gate[i][j]));
          b *= activated(Activation::silu, high(gate[i][j]));
        }
        *reinterpret_cast<uint32_t*>(out + j * 8) = pack(a, b);
      }
    }
  }

  // States warp * 16 + ..., all channels.
  __device__ void advance(uint32_t b, uint32_t x) {
    const float end = sums[kRows - 1], decay = exp2_fast(end);
#pragma unroll
    for (int j = 0; j < kDim / 8; j++)
#pragma unroll
      for (float& v : h[j]) v *= decay;
#pragma unroll
    for (int k = 0; k < kRows / 16; k++) {
      uint32_t left[4], rest[4];
      load_matrices<true>(left, place<kStates * 2>(b, k * 16 + lane / 16 * 8 + lane % 8, 2 * warp + (lane >> 3 & 1)));
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int u = k * 16 + i / 2 * 8 + 2 * t;
        const float v = low(left[i]) * steps[u] * exp2_fast(end - sums[u]), w = high(left[i]) * steps[u + 1] * exp2_fast(end - sums[u + 1]);
        left[i] = pack(v, w);
        rest[i] = pack(v - low(left[i]), w - high(left[i]));
      }
#pragma unroll
      for (int j = 0; j < kDim / 16; j++) {
        uint32_t right[4];
        load_matrices<true>(right, place<kDim * 2>(x, k * 16 + lane % 16, 2 * j + lane / 16));
#pragma unroll
        for (int i = 0; i < 2; i++) {
          mma(h[2 * j + i], left[0], left[1], left[2], left[3], right[2 * i], right[2 * i + 1]);
          mma(h[2 * j + i], rest[0], rest[1], rest[2], rest[3], right[2 * i], right[2 * i + 1]);
        }
      }
    }
  }
};

__global__ void __launch_bounds__(kThreads, 2) chunk_kernel(ScanRows rows, OuterShape s, Slots slots, Recurrence r) {
  extern __shared__ __align__(1024) char raw[];
  __shared__ float sums[kRows], steps[kRows];
  const int seq = blockIdx.y, first = r.row_begin[seq], last = r.row_begin[seq + 1];
  Chunks chunks(rows, s, slots, uint32_t(__cvta_generic_to_shared(raw)), sums, steps, last);
  chunks.load_states(slot_at(slots, slots.src[seq]) + chunks.at);
  launch_next();
  wait_before();
  int n = first < last ? chunks.rows_from(first) : 0;
  if (n) chunks.fetch(0, first, n);
  chunks.write_states();
  for (int row = first, turn = 0; row < last; turn ^= 1) {
    const uint32_t b = chunks.base + turn * kTurn, c = b + kWide, x = c + kWide;
    if (chunks.warp == 0) chunks.sum_steps(n);
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    const int next = row + n, next_n = next < last ? chunks.rows_from(next) : 0;
    if (next_n) chunks.fetch(turn ^ 1, next, next_n);
    chunks.weigh(b, c);
    uint32_t gate[2][4];
    chunks.load_gate(gate, row, n);
    __syncthreads();
    chunks.outputs(c, x, gate, row, n);
    chunks.advance(b, x);
    if (const int32_t slot = slots.dst[next - 1]; slot >= 0) chunks.keep_states(slot);
    __syncthreads();  // the old states have been read
    chunks.write_states();
    row = next;
    n = next_n;
  }
}

bool by_sixteen(const Matrix& m) { return m.dtype == DType::bf16 && reinterpret_cast<uintptr_t>(m.data) % 16 == 0 && m.stride % 8 == 0; }

}  // namespace

bool can_chunk(const ScanRows& rows, const OuterShape& s, const Slots& slots, const Recurrence& r) {
  return s.head_dim == kDim && s.n_state == kStates && !r.parent && !rows.next.x && rows.x.rows >= 8 * r.n_seqs && by_sixteen(rows.x) &&
         by_sixteen(rows.b) && by_sixteen(rows.c) && by_sixteen(rows.out) && (!rows.gate.data || by_sixteen(rows.gate)) &&
         reinterpret_cast<uintptr_t>(slots.base) % 8 == 0 && slots.unit_bytes % 8 == 0;
}

void outer_chunks(const Launch& at, const ScanRows& rows, const OuterShape& s, const Slots& slots, const Recurrence& r) {
  launch(at, chunk_kernel, grid2(s.heads, r.n_seqs), kThreads, kBytes, rows, s, slots, r);
}

}  // namespace mr::cuda
