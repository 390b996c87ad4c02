// Mamba's and Mamba-2's scans, token by token, with the state in registers, or in shared
// memory for odd shapes. Each sequence reads slot src and rows write slots dst, which may be src: all reads of it come before the
// writes. In a tree a row starts from its parent's state, which is recomputed from the context's along the path.
#include <algorithm>

#include "backend/cuda/recurrent/scan.cuh"

namespace mr::cuda {

namespace {

constexpr int kMostRows = 64;  // of a tree

// The rows of a tree from the context down to `row`, itself included.
__device__ int path_to(const Recurrence& r, int row, int first, int (&path)[kMostRows]) {
  int n = 0;
  for (int at = row; at >= first && n < kMostRows; at = r.parent[at]) n++;
  for (int at = row, i = n - 1; i >= 0; at = r.parent[at], i--) path[i] = at;
  return n;
}

// Runs step(row, wanted) over the rows of a sequence; reset() restores the context's state. wanted: false when recomputing a path.
template <class Reset, class Step>
__device__ void each_row(const Recurrence& r, int seq, Reset reset, Step step) {
  const int first = r.row_begin[seq], last = r.row_begin[seq + 1];
  const bool tree = r.parent && r.corner[seq] == Corner::bits;
  for (int row = first; row < last; row++) {
    if (tree && r.parent[row] != row - 1) {
      int path[kMostRows];
      const int n = path_to(r, row, first, path);
      reset();
      for (int i = 0; i + 1 < n; i++) step(path[i], false);
    } else if (tree && row == first) {
      reset();
    }
    step(row, true);
  }
}

// One thread per channel of a sequence; shared: h [n_state][threads], and for a tree the context's.
__global__ void diag_scan_kernel(ScanRows rows, int n, const float* a, const float* d, Slots slots, Recurrence r) {
  const Matrix &x = rows.x, &b = rows.b, &c = rows.c;
  extern __shared__ float shared[];
  launch_next();
  wait_before();
  const int i = blockIdx.x * blockDim.x + threadIdx.x, seq = blockIdx.y, t = threadIdx.x, width = blockDim.x;
  if (i >= int(x.cols)) return;
  float *h = shared, *context = shared + n * width;
  const bool tree = r.parent && r.corner[seq] == Corner::bits;
  for (int j = 0; j < n; j++) {
    h[j * width + t] = slot_at(slots, slots.src[seq])[int64_t(i) * n + j];
    if (tree) context[j * width + t] = h[j * width + t];
  }
  auto reset = [&] {
    for (int j = 0; j < n; j++) h[j * width + t] = context[j * width + t];
  };
  each_row(r, seq, reset, [&](int row, bool wanted) {
    const float step = step_at(rows, row, i), in = element(x, row * x.stride + i);
    float sum = d ? d[i] * in : 0.0f;
    for (int j = 0; j < n; j++) {
      float& value = h[j * width + t];
      value = expf(step * a[int64_t(i) * n + j]) * value + step * element(b, row * b.stride + j) * in;
      sum += element(c, row * c.stride + j) * value;
    }
    if (!wanted) return;
    write_at(rows, row, i, sum);
    if (slots.dst[row] < 0) return;
    float* to = slot_at(slots, slots.dst[row]) + int64_t(i) * n;
    for (int j = 0; j < n; j++) to[j] = h[j * width + t];
  });
}

// One block per head of a sequence, one thread per channel; shared: h [n_state][head_dim], and for a tree the context's.
__global__ void outer_scan_kernel(ScanRows rows, OuterShape s, Slots slots, Recurrence r) {
  const Matrix &x = rows.x, &b = rows.b, &c = rows.c;
  extern __shared__ float shared[];
  launch_next();
  wait_before();
  const int head = blockIdx.x, seq = blockIdx.y, i = threadIdx.x, n = s.n_state, width = s.head_dim;
  if (i >= width) return;
  const int group = head / (s.heads / s.groups);
  const int64_t at = int64_t(head) * n * width + i;
  float *h = shared, *context = shared + n * width;
  const bool tree = r.parent && r.corner[seq] == Corner::bits;
  for (int j = 0; j < n; j++) {
    h[j * width + i] = slot_at(slots, slots.src[seq])[at + int64_t(j) * width];
    if (tree) context[j * width + i] = h[j * width + i];
  }
  auto reset = [&] {
    for (int j = 0; j < n; j++) h[j * width + i] = context[j * width + i];
  };
  each_row(r, seq, reset, [&](int row, bool wanted) {
    const float step = fminf(fmaxf(step_at(rows, row, head), s.dt_min), s.dt_max);
    const float in = element(x, row * x.stride + head * width + i), decay = expf(step * s.a[head]), gain = step * in;
    float sum = s.d ? s.d[head] * in : 0.0f;
    for (int j = 0; j < n; j++) {
      float& value = h[j * width + i];
      value = decay * value + gain * element(b, row * b.stride + group * n + j);
      sum += element(c, row * c.stride + group * n + j) * value;
    }
    if (!wanted) return;
    write_at(rows, row, head * width + i, sum);
    if (slots.dst[row] < 0) return;
    float* to = slot_at(slots, slots.dst[row]) + at;
    for (int j = 0; j < n; j++) to[int64_t(j) * width] = h[j * width + i];
  });
}

// The fast kernels: states stay in registers while rows stream through shared memory, kAtOnce at a time. The arithmetic of a row does
// not depend on the number of rows.
constexpr int kScanThreads = 128, kScanWarps = kScanThreads / 32, kAtOnce = 16;

// The block calls put(e, value) for n values of m, value e being element at(e); every thread has Ahead loads in flight.
template <int Ahead, class At, class Put>
__device__ void stage_values(const Matrix& m, int n, At at, Put put) {
  for (int e0 = threadIdx.x; e0 < n; e0 += Ahead * kScanThreads) {
    uint32_t bits[Ahead];
#pragma unroll
    for (int i = 0; i < Ahead; i++) bits[i] = ask(m, at(min(e0 + i * kScanThreads, n - 1)));
#pragma unroll
    for (int i = 0; i < Ahead; i++)
      if (e0 + i * kScanThreads < n) put(e0 + i * kScanThreads, got(m, bits[i]));
  }
}

// Runs over a sequence's rows (at_once 1: every sequence has one): stage(row, n) loads n of them to shared memory, step(i, row, wanted)
// computes the i-th, finish(row, n) writes n results.
template <bool Trees, class Reset, class Stage, class Step, class Finish>
__device__ void staged_rows(const Recurrence& r, int seq, int at_once, Reset reset, Stage stage, Step step, Finish finish) {
  if constexpr (Trees) {
    if (r.corner[seq] == Corner::bits)
      return each_row(r, seq, reset, [&](int row, bool wanted) {
        stage(row, 1);
        __syncthreads();
        step(0, row, wanted);
        __syncthreads();
        if (wanted) finish(row, 1);
        __syncthreads();
      });
  }
  const int first = at_once == 1 ? seq : r.row_begin[seq], last = at_once == 1 ? seq + 1 : r.row_begin[seq + 1];
  for (int row = first; row < last; row += at_once) {
    const int n = min(at_once, last - row);
    stage(row, n);
    __syncthreads();
    for (int i = 0; i < n; i++) step(i, row + i, true);
    __syncthreads();
    finish(row, n);
    if (row + n < last) __syncthreads();
  }
}

// Loads B and C of n_rows rows, n values each from column `first`, to bc [n_rows][2][n].
__device__ void stage_groups(float* bc, const ScanRows& rows, int64_t row, int n_rows, int first, int n) {
  const Matrix &b = rows.b, &c = rows.c;
  for (int j = threadIdx.x; j < n; j += kScanThreads)
    for (int k0 = 0; k0 < n_rows; k0 += 8) {
      uint32_t bk[8], ck[8];  // loads in flight
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const int64_t at = row + min(k0 + i, n_rows - 1);
        bk[i] = ask(b, at * b.stride + first + j);
        ck[i] = ask(c, at * c.stride + first + j);
      }
#pragma unroll
      for (int i = 0; i < 8; i++)
        if (k0 + i < n_rows) {
          bc[(k0 + i) * 2 * n + j] = got(b, bk[i]);
          bc[(k0 + i) * 2 * n + n + j] = got(c, ck[i]);
        }
    }
}

// A block computes `slice` channels of one head, four per thread; slice / 4 threads cover the channels, the others split the states.
// States: most per thread. Reads and writes heads * n_state * head_dim * 4 bytes, loaded before wait_before().
template <int States, bool Trees>
__global__ void __launch_bounds__(kScanThreads, States == 4 && !Trees ? 5 : 0)
    outer_held_kernel(ScanRows rows, OuterShape s, Slots slots, Recurrence r, int slice, int at_once) {
  const Matrix& x = rows.x;
  extern __shared__ float shared[];
  const int slices = s.head_dim / slice, head = blockIdx.x / slices, seq = blockIdx.y, n = s.n_state, group = head / (s.heads / s.groups);
  const int lanes = slice / 4, lane = threadIdx.x % lanes, first = threadIdx.x / lanes, apart = kScanThreads / lanes;
  const int warp = threadIdx.x / 32, col = head * s.head_dim + blockIdx.x % slices * slice;
  float *in = shared, *sums = in + at_once * slice, *steps = sums + at_once * kScanWarps * slice, *decays = steps + at_once,
        *bc = decays + at_once;
  const int64_t at = int64_t(head) * n * s.head_dim + blockIdx.x % slices * slice + 4 * lane;
  float4 held[States], context[Trees ? States : 1];
  const float* from = slot_at(slots, slots.src[seq]) + at;
#pragma unroll
  for (int i = 0; i < States; i++) {
    const int j = first + i * apart;
    if (j < n) held[i] = *reinterpret_cast<const float4*>(from + int64_t(j) * s.head_dim);
    if (Trees) context[i] = held[i];
  }
  const float rate = s.a[head], d = s.d ? s.d[head] : 0.0f;
  const int32_t only_to = at_once == 1 ? slots.dst[seq] : -1;
  launch_next();
  wait_before();

  auto reset = [&] {
    if constexpr (Trees)
#pragma unroll
      for (int i = 0; i < States; i++) held[i] = context[i];
  };
  auto stage = [&](int row, int n_rows) {
    stage_groups(bc, rows, row, n_rows, group * n, n);
    stage_values<4>(
        x, n_rows * slice, [&](int e) { return (row + e / slice) * x.stride + col + e % slice; }, [&](int e, float v) { in[e] = v; });
    for (int k = threadIdx.x; k < n_rows; k += kScanThreads) {
      steps[k] = fminf(fmaxf(step_at(rows, row + k, head), s.dt_min), s.dt_max);
      decays[k] = expf(steps[k] * rate);
    }
  };
  auto step = [&](int k, int row, bool wanted) {
    const float decay = decays[k], *bk = bc + k * 2 * n, *ck = bk + n;
    const float4 gain = times(steps[k], *reinterpret_cast<const float4*>(in + k * slice + 4 * lane));
    float4 sum{};
    const int32_t to = !wanted ? -1 : at_once == 1 ? only_to : slots.dst[row];
    float* kept = slot_at(slots, max(to, 0)) + at;
#pragma unroll
    for (int i = 0; i < States; i++) {
      const int j = first + i * apart;
      if (j >= n) break;
      held[i] = fma4(decay, held[i], times(bk[j], gain));
      sum = fma4(ck[j], held[i], sum);
      if (to >= 0) __stcs(reinterpret_cast<float4*>(kept + int64_t(j) * s.head_dim), held[i]);
    }
    sum = over_lanes(sum, lanes);
    if (threadIdx.x % 32 < lanes) *reinterpret_cast<float4*>(sums + (k * kScanWarps + warp) * slice + 4 * lane) = sum;
  };
  auto finish = [&](int row, int n_rows) {
    for (int e0 = threadIdx.x; e0 < n_rows * slice; e0 += 4 * kScanThreads) {
      uint32_t gate[4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int e = min(e0 + j * kScanThreads, n_rows * slice - 1);
        gate[j] = ask_gate(rows, row + e / slice, col + e % slice);
      }
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int e = e0 + j * kScanThreads, k = e / slice, i = e % slice;
        if (e >= n_rows * slice) break;
        float sum = d * in[e];
        for (int w = 0; w < kScanWarps; w++) sum += sums[(k * kScanWarps + w) * slice + i];
        half_norm_at(rows, row + k, col + i, write_at(rows, row + k, col + i, sum, gate[j]));
      }
    }
  };
  staged_rows<Trees>(r, seq, at_once, reset, stage, step, finish);
}

// Four states per thread, n_state / 4 threads per channel (a power of two, at most 32).
template <bool Trees>
__global__ void __launch_bounds__(kScanThreads)
    diag_held_kernel(ScanRows rows, int n, const float* a, const float* d, Slots slots, Recurrence r) {
  const Matrix &x = rows.x, &b = rows.b, &c = rows.c;
  extern __shared__ float shared[];
  const int parts = n / 4, channels = kScanThreads / parts, mine = threadIdx.x / parts, part = threadIdx.x % parts, seq = blockIdx.y;
  const int col = blockIdx.x * channels, width = min(channels, int(x.cols) - col), i = col + min(mine, width - 1);
  float *bc = shared, *in = bc + kAtOnce * 2 * n, *steps = in + kAtOnce * channels, *sums = steps + kAtOnce * channels;
  const int64_t place = int64_t(i) * n + 4 * part;
  const bool there = mine < width;
  float4 held = *reinterpret_cast<const float4*>(slot_at(slots, slots.src[seq]) + place), context = held;
  const float4 rate = rates_at(a, place);
  launch_next();
  wait_before();
  auto stage = [&](int row, int n_rows) {
    for (int e0 = threadIdx.x; e0 < n_rows * n; e0 += 2 * kScanThreads) {
      uint32_t bits[2][2];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int e = min(e0 + i * kScanThreads, n_rows * n - 1), k = e / n, j = e % n;
        bits[i][0] = ask(b, (row + k) * b.stride + j);
        bits[i][1] = ask(c, (row + k) * c.stride + j);
      }
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int e = min(e0 + i * kScanThreads, n_rows * n - 1), k = e / n, j = e % n;
        bc[k * 2 * n + j] = got(b, bits[i][0]);
        bc[k * 2 * n + n + j] = got(c, bits[i][1]);
      }
    }
    for (int e0 = threadIdx.x; e0 < n_rows * channels; e0 += 4 * kScanThreads) {
      uint32_t bits[4][2];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int e = min(e0 + i * kScanThreads, n_rows * channels - 1), k = e / channels, j = col + min(e % channels, width - 1);
        bits[i][0] = ask(x, (row + k) * x.stride + j);
        bits[i][1] = ask(rows.dt, (row + k) * rows.dt.stride + j);
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int e = min(e0 + i * kScanThreads, n_rows * channels - 1), j = col + min(e % channels, width - 1);
        in[e] = got(x, bits[i][0]);
        steps[e] = step_of(rows, got(rows.dt, bits[i][1]), j);
      }
    }
  };
  auto step = [&](int k, int row, bool wanted) {
    const float4 *bk = reinterpret_cast<const float4*>(bc + k * 2 * n), *ck = bk + parts;
    const float sum = over_parts(diag_update(held, rate, steps[k * channels + mine], in[k * channels + mine], bk[part], ck[part]), parts);
    const int32_t to = wanted ? slots.dst[row] : -1;
    if (there && to >= 0) __stcs(reinterpret_cast<float4*>(slot_at(slots, to) + place), held);
    if (part == 0) sums[k * channels + mine] = sum;
  };
  auto finish = [&](int row, int n_rows) {
    for (int e0 = threadIdx.x; e0 < n_rows * channels; e0 += 4 * kScanThreads) {
      uint32_t gate[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int e = min(e0 + i * kScanThreads, n_rows * channels - 1);
        gate[i] = ask_gate(rows, row + e / channels, col + min(e % channels, width - 1));
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int e = e0 + i * kScanThreads, k = e / channels, j = e % channels;
        if (e < n_rows * channels && j < width) write_at(rows, row + k, col + j, fmaf(d ? d[col + j] : 0.0f, in[e], sums[e]), gate[i]);
      }
    }
  };
  staged_rows<Trees>(
      r, seq, kAtOnce, [&] { held = context; }, stage, step, finish);
}

// The same for one row per sequence, kStepRows per block, whose states are all prefetched at once.
constexpr int kStepThreads = 256, kStepRows = 4;

template <bool Vectors>  // B and C can be read four at a time
__global__ void __launch_bounds__(kStepThreads, 3) diag_step_kernel(ScanRows rows, int n, const float* a, const float* d, Slots slots) {
  const Matrix &x = rows.x, &b = rows.b, &c = rows.c;
  const int parts = n / 4, row0 = blockIdx.y * kStepRows, n_rows = min(kStepRows, int(x.rows) - row0);
  const int at = blockIdx.x * kStepThreads + threadIdx.x, i = min(at / parts, int(x.cols) - 1), part = at % parts;
  const bool there = at / parts < x.cols;
  const int64_t place = int64_t(i) * n + 4 * part;
  float4 h[kStepRows];
  uint2 bj[kStepRows], cj[kStepRows];  // vectors of bf16
  uint32_t step[kStepRows], in[kStepRows], gate[kStepRows];
#pragma unroll
  for (int r = 0; r < kStepRows; r++)
    if (r < n_rows) h[r] = *reinterpret_cast<const float4*>(slot_at(slots, slots.src[row0 + r]) + place);
  const float4 rate = rates_at(a, place);
  const float through = d ? d[i] : 0.0f;
  int32_t to[kStepRows];
#pragma unroll
  for (int r = 0; r < kStepRows; r++) to[r] = r < n_rows ? slots.dst[row0 + r] : -1;
  launch_next();
  wait_before();
  auto ask_four = [&](const Matrix& m, int64_t row) {
    return Vectors ? *reinterpret_cast<const uint2*>(static_cast<const bf16*>(m.data) + row * m.stride + 4 * part) : uint2{};
  };
  auto four = [&](const Matrix& m, int64_t row, uint2 v) -> float4 {
    if (Vectors) return {low(v.x), high(v.x), low(v.y), high(v.y)};
    const int64_t from = row * m.stride + 4 * part;
    return {element(m, from), element(m, from + 1), element(m, from + 2), element(m, from + 3)};
  };
#pragma unroll
  for (int r = 0; r < kStepRows; r++) {
    if (r >= n_rows) break;
    const int64_t row = row0 + r;
    step[r] = ask(rows.dt, row * rows.dt.stride + i);
    in[r] = ask(x, row * x.stride + i);
    gate[r] = ask_gate(rows, row, i);
    bj[r] = ask_four(b, row);
    cj[r] = ask_four(c, row);
  }
#pragma unroll
  for (int r = 0; r < kStepRows; r++) {
    if (r >= n_rows) break;
    const int64_t row = row0 + r;
    const float now = got(x, in[r]), by = step_of(rows, got(rows.dt, step[r]), i);
    const float sum = over_parts(diag_update(h[r], rate, by, now, four(b, row, bj[r]), four(c, row, cj[r])), parts);
    if (there && to[r] >= 0) __stcs(reinterpret_cast<float4*>(slot_at(slots, to[r]) + place), h[r]);
    if (there && part == 0) write_at(rows, row, i, fmaf(through, now, sum), gate[r]);
  }
}

// Channels per block, and states per thread, of outer_held_kernel().
int outer_slice(const OuterShape& s) { return s.head_dim % 32 == 0 ? 32 : 16; }
int outer_states(const OuterShape& s) { return int(div_up(s.n_state, 4 * kScanThreads / outer_slice(s))); }
bool can_hold(const OuterShape& s, const Slots& slots) {
  return by_four(slots, s.head_dim) && s.head_dim % outer_slice(s) == 0 && outer_states(s) <= 16;
}

}  // namespace

void diag_scan(const Launch& at, const ScanRows& rows, int n_state, const float* a, const float* d, const Slots& slots,
               const Recurrence& r) {
  const int parts = n_state / 4;
  if (by_four(slots, n_state) && parts <= 32 && (parts & (parts - 1)) == 0 && reinterpret_cast<uintptr_t>(a) % 16 == 0) {
    if (rows.x.rows == r.n_seqs) {
      auto kernel = vectors(rows.b) && vectors(rows.c) ? diag_step_kernel<true> : diag_step_kernel<false>;
      return launch(at, kernel, grid2(div_up(rows.x.cols * parts, kStepThreads), div_up(r.n_seqs, kStepRows)), kStepThreads, 0, rows,
                    n_state, a, d, slots);
    }
    const int channels = kScanThreads / parts;
    return launch(at, r.parent ? diag_held_kernel<true> : diag_held_kernel<false>, grid2(div_up(rows.x.cols, channels), r.n_seqs),
                  kScanThreads, size_t(kAtOnce) * (2 * n_state + 3 * channels) * 4, rows, n_state, a, d, slots, r);
  }
  const size_t shared = size_t(n_state) * 64 * 4 * (r.parent ? 2 : 1);
  launch(at, diag_scan_kernel, grid2(div_up(rows.x.cols, 64), r.n_seqs), 64, shared, rows, n_state, a, d, slots, r);
}

bool outer_can_norm(const OuterShape& s, const Slots& slots) { return can_hold(s, slots) && outer_slice(s) == kScanPart; }

void outer_scan(const Launch& at, const ScanRows& rows, const OuterShape& s, const Slots& slots, const Recurrence& r) {
  const bool many = rows.x.rows == r.n_seqs && rows.x.rows * s.heads >= 2 * at.n_sm;  // states of one row each
  if (many && !at.deterministic && !at.plain && by_four(slots, s.head_dim) && can_stream(s)) return outer_stream(at, rows, s, slots);
  if (!at.deterministic && can_chunk(rows, s, slots, r)) return outer_chunks(at, rows, s, slots, r);
  const int slice = outer_slice(s), states = outer_states(s);
  if (can_hold(s, slots)) {
    const int at_once = rows.x.rows == r.n_seqs ? 1 : kAtOnce;
    const size_t shared = size_t(at_once) * (2 * s.n_state + slice * (1 + kScanWarps) + 2) * 4;
    auto kernel = states <= 4   ? r.parent ? outer_held_kernel<4, true> : outer_held_kernel<4, false>
                    : states <= 8 ? r.parent ? outer_held_kernel<8, true> : outer_held_kernel<8, false>
                    : r.parent ? outer_held_kernel<16, true>
                                : outer_held_kernel<16, false>;
    return launch(at, kernel, grid2(s.heads * (s.head_dim / slice), r.n_seqs), kScanThreads, shared, rows, s, slots, r, slice, at_once);
  }
  const size_t shared = size_t(s.n_state) * s.head_dim * 4 * (r.parent ? 2 : 1);
  launch(at, outer_scan_kernel, grid2(s.heads, r.n_seqs), int(div_up(s.head_dim, 32) * 32), shared, rows, s, slots, r);
}

}  // namespace mr::cuda
