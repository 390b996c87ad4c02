// Recurrent layers: short convolution, Mamba's and Mamba-2's scans, one token after the other, with the state in shared memory, or in
// registers where every sequence has one row. Each
// sequence reads the slot src and rows write slots dst, which may be src itself: whatever is read of it is read first. In a tree a
// row starts from its parent's state, which is computed anew from the context's along the path.
#include "backend/cuda/device.cuh"

namespace mr::cuda {

namespace {

constexpr int kMostWidth = 8;  // of a convolution
constexpr int kMostRows = 64;  // of a tree

__device__ float* slot_at(const Slots& s, int32_t unit) { return reinterpret_cast<float*>(s.base + unit * s.unit_bytes); }

// The rows of a tree from the context down to `row`, itself included.
__device__ int path_to(const Recurrence& r, int row, int first, int (&path)[kMostRows]) {
  int n = 0;
  for (int at = row; at >= first && n < kMostRows; at = r.parent[at]) n++;
  for (int at = row, i = n - 1; i >= 0; at = r.parent[at], i--) path[i] = at;
  return n;
}

// One thread a channel of a sequence.
__global__ void short_conv_kernel(Matrix out, Matrix x, const float* weight, int width, const float* bias, Activation act, Slots slots,
                                  Recurrence r) {
  launch_next();
  wait_before();
  const int c = blockIdx.x * blockDim.x + threadIdx.x, seq = blockIdx.y, channels = int(x.cols);
  if (c >= channels) return;
  const int first = r.row_begin[seq], last = r.row_begin[seq + 1];
  float before[kMostWidth], w[kMostWidth];  // before: the context's last inputs, oldest first
  for (int j = 0; j < width - 1; j++) before[j] = slot_at(slots, slots.src[seq])[j * channels + c];
  for (int j = 0; j < width; j++) w[j] = weight[c * width + j];
  for (int row = first; row < last; row++) {
    float sum = bias ? bias[c] : 0, window[kMostWidth];
    int at = row, missing = 0;  // inputs that the context must give
    for (int j = width - 1; j >= 0; j--) {
      if (at >= first) {
        window[j] = load(x.data, x.dtype, at * x.stride + c);
        at = r.parent && r.corner[seq] == Corner::bits ? r.parent[at] : at - 1;
      } else {
        window[j] = before[width - 2 - missing++];
      }
    }
    for (int j = 0; j < width; j++) sum += w[j] * window[j];
    store(out.data, out.dtype, row * out.stride + c, activated(act, sum));
    if (slots.dst[row] >= 0)
      for (int j = 1; j < width; j++) slot_at(slots, slots.dst[row])[(j - 1) * channels + c] = window[j];
  }
}

// Runs `step(row, wanted)` over the rows of a sequence; reset() puts the context's state back. wanted: the row's own turn.
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

// One thread a channel of a sequence; shared: h [n_state][threads], and of a tree the context's.
__global__ void diag_scan_kernel(Matrix out, Matrix x, Matrix dt, Matrix b, Matrix c, int n, const float* a, const float* d, Slots slots,
                                 Recurrence r) {
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
    const float step = load(dt.data, dt.dtype, row * dt.stride + i), in = load(x.data, x.dtype, row * x.stride + i);
    float sum = d ? d[i] * in : 0.0f;
    for (int j = 0; j < n; j++) {
      float& value = h[j * width + t];
      value = expf(step * a[int64_t(i) * n + j]) * value + step * load(b.data, b.dtype, row * b.stride + j) * in;
      sum += load(c.data, c.dtype, row * c.stride + j) * value;
    }
    if (!wanted) return;
    store(out.data, out.dtype, row * out.stride + i, sum);
    if (slots.dst[row] < 0) return;
    float* to = slot_at(slots, slots.dst[row]) + int64_t(i) * n;
    for (int j = 0; j < n; j++) to[j] = h[j * width + t];
  });
}

// One block a head of a sequence, one thread a channel of it; shared: h [n_state][head_dim], and of a tree the context's.
__global__ void outer_scan_kernel(Matrix out, Matrix x, Matrix dt, Matrix b, Matrix c, OuterShape s, Slots slots, Recurrence r) {
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
    const float step = fminf(fmaxf(load(dt.data, dt.dtype, row * dt.stride + head), s.dt_min), s.dt_max);
    const float in = load(x.data, x.dtype, row * x.stride + head * width + i), decay = expf(step * s.a[head]), gain = step * in;
    float sum = s.d ? s.d[head] * in : 0.0f;
    for (int j = 0; j < n; j++) {
      float& value = h[j * width + i];
      value = decay * value + gain * load(b.data, b.dtype, row * b.stride + group * n + j);
      sum += load(c.data, c.dtype, row * c.stride + group * n + j) * value;
    }
    if (!wanted) return;
    store(out.data, out.dtype, row * out.stride + head * width + i, sum);
    if (slots.dst[row] < 0) return;
    float* to = slot_at(slots, slots.dst[row]) + at;
    for (int j = 0; j < n; j++) to[int64_t(j) * width] = h[j * width + i];
  });
}

// One row a sequence. A block takes one head: `lanes` threads side by side hold four channels each, and rows of states go round among
// the others. Reads and writes heads * n_state * head_dim * 4 bytes; what it reads of the state is asked for before the wait.
constexpr int kStepThreads = 256, kStepStates = 8;  // states that a thread asks for at once

__global__ void __launch_bounds__(kStepThreads)
    outer_step_kernel(Matrix out, Matrix x, Matrix dt, Matrix b, Matrix c, OuterShape s, Slots slots) {
  __shared__ float4 sums[kStepThreads];
  const int head = blockIdx.x, row = blockIdx.y, lanes = s.head_dim / 4, apart = kStepThreads / lanes, lane = threadIdx.x % lanes,
            first = threadIdx.x / lanes, n = s.n_state, group = head / (s.heads / s.groups);
  const int32_t from = slots.src[row], to = slots.dst[row];
  const int64_t at = int64_t(head) * n * s.head_dim + 4 * lane;
  const float* h = slot_at(slots, from) + at;
  float* kept = to < 0 ? nullptr : slot_at(slots, to) + at;
  launch_next();
  const bool works = first < apart;
  float4 held[kStepStates];
  auto ask = [&](int j0) {
#pragma unroll
    for (int i = 0; i < kStepStates; i++) {
      const int j = j0 + i * apart;
      if (works && j < n) held[i] = *reinterpret_cast<const float4*>(h + int64_t(j) * s.head_dim);
    }
  };
  ask(first);
  wait_before();
  const float step = fminf(fmaxf(load(dt.data, dt.dtype, row * dt.stride + head), s.dt_min), s.dt_max), decay = expf(step * s.a[head]);
  float in[4], gain[4];
  float4 sum{};
  for (int e = 0; e < 4; e++) in[e] = load(x.data, x.dtype, row * x.stride + head * s.head_dim + 4 * lane + e), gain[e] = step * in[e];
  for (int j0 = first; works && j0 < n; j0 += kStepStates * apart) {
    float bj[kStepStates], cj[kStepStates];
#pragma unroll
    for (int i = 0; i < kStepStates; i++) {
      const int j = min(j0 + i * apart, n - 1);
      bj[i] = load(b.data, b.dtype, row * b.stride + group * n + j), cj[i] = load(c.data, c.dtype, row * c.stride + group * n + j);
    }
#pragma unroll
    for (int i = 0; i < kStepStates; i++) {
      const int j = j0 + i * apart;
      if (j >= n) break;
      float4 v = held[i];
      v.x = decay * v.x + gain[0] * bj[i], v.y = decay * v.y + gain[1] * bj[i];
      v.z = decay * v.z + gain[2] * bj[i], v.w = decay * v.w + gain[3] * bj[i];
      sum.x += cj[i] * v.x, sum.y += cj[i] * v.y, sum.z += cj[i] * v.z, sum.w += cj[i] * v.w;
      if (kept) __stcs(reinterpret_cast<float4*>(kept + int64_t(j) * s.head_dim), v);
    }
    if (j0 + kStepStates * apart < n) ask(j0 + kStepStates * apart);
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x >= lanes) return;
  for (int i = 1; i < apart; i++) {
    const float4 v = sums[i * lanes + lane];
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
  }
  const float d = s.d ? s.d[head] : 0.0f, y[4] = {sum.x + d * in[0], sum.y + d * in[1], sum.z + d * in[2], sum.w + d * in[3]};
  for (int e = 0; e < 4; e++) store(out.data, out.dtype, row * out.stride + head * s.head_dim + 4 * lane + e, y[e]);
}

// One row a sequence, kStepRows of them a block; four states a thread, n_state / 4 (a power of two of at most 32) threads a channel.
constexpr int kStepRows = 2;

__global__ void __launch_bounds__(kStepThreads)
    diag_step_kernel(Matrix out, Matrix x, Matrix dt, Matrix b, Matrix c, int n, const float* a, const float* d, Slots slots) {
  const int parts = n / 4, row0 = blockIdx.y * kStepRows, n_rows = min(kStepRows, int(x.rows) - row0);
  const int at = blockIdx.x * kStepThreads + threadIdx.x, i = min(at / parts, int(x.cols) - 1), part = at % parts;
  const bool there = at / parts < x.cols;
  const int64_t place = int64_t(i) * n + 4 * part;
  launch_next();
  float4 h[kStepRows];
#pragma unroll
  for (int r = 0; r < kStepRows; r++)
    if (r < n_rows) h[r] = *reinterpret_cast<const float4*>(slot_at(slots, slots.src[row0 + r]) + place);
  const float4 rate = *reinterpret_cast<const float4*>(a + place);
  wait_before();
  float step[kStepRows], in[kStepRows], bj[kStepRows][4], cj[kStepRows][4];
#pragma unroll
  for (int r = 0; r < kStepRows; r++) {
    const int64_t row = row0 + min(r, n_rows - 1);
    step[r] = load(dt.data, dt.dtype, row * dt.stride + i), in[r] = load(x.data, x.dtype, row * x.stride + i);
#pragma unroll
    for (int e = 0; e < 4; e++) {
      bj[r][e] = load(b.data, b.dtype, row * b.stride + 4 * part + e);
      cj[r][e] = load(c.data, c.dtype, row * c.stride + 4 * part + e);
    }
  }
#pragma unroll
  for (int r = 0; r < kStepRows; r++) {
    if (r >= n_rows) break;
    const int64_t row = row0 + r;
    const float gain = step[r] * in[r];
    float4 v = h[r];
    v.x = expf(step[r] * rate.x) * v.x + gain * bj[r][0], v.y = expf(step[r] * rate.y) * v.y + gain * bj[r][1];
    v.z = expf(step[r] * rate.z) * v.z + gain * bj[r][2], v.w = expf(step[r] * rate.w) * v.w + gain * bj[r][3];
    float sum = cj[r][0] * v.x + cj[r][1] * v.y + cj[r][2] * v.z + cj[r][3] * v.w;
    for (int k = parts / 2; k; k /= 2) sum += __shfl_xor_sync(~0u, sum, k);
    const int32_t to = slots.dst[row];
    if (there && to >= 0) __stcs(reinterpret_cast<float4*>(slot_at(slots, to) + place), v);
    if (there && part == 0) store(out.data, out.dtype, row * out.stride + i, sum + (d ? d[i] * in[r] : 0.0f));
  }
}

// Four values at a time?
bool by_four(const Slots& s, int64_t n) { return n % 4 == 0 && reinterpret_cast<uintptr_t>(s.base) % 16 == 0 && s.unit_bytes % 16 == 0; }

}  // namespace

void short_conv(const Launch& at, Matrix out, Matrix x, const float* weight, int width, const float* bias, Activation act,
                const Slots& slots, const Recurrence& r) {
  launch(at, short_conv_kernel, grid2(div_up(x.cols, 128), r.n_seqs), 128, 0, out, x, weight, width, bias, act, slots, r);
}

void diag_scan(const Launch& at, Matrix out, Matrix x, Matrix dt, Matrix b, Matrix c, int n_state, const float* a, const float* d,
               const Slots& slots, const Recurrence& r) {
  // Deterministic: one order of sums for all.
  const int parts = n_state / 4;
  if (!at.deterministic && x.rows == r.n_seqs && by_four(slots, n_state) && parts <= 32 && (parts & (parts - 1)) == 0 &&
      reinterpret_cast<uintptr_t>(a) % 16 == 0)
    return launch(at, diag_step_kernel, grid2(div_up(x.cols * parts, kStepThreads), div_up(r.n_seqs, kStepRows)), kStepThreads, 0, out, x,
                  dt, b, c, n_state, a, d, slots);
  const size_t shared = size_t(n_state) * 64 * 4 * (r.parent ? 2 : 1);
  launch(at, diag_scan_kernel, grid2(div_up(x.cols, 64), r.n_seqs), 64, shared, out, x, dt, b, c, n_state, a, d, slots, r);
}

void outer_scan(const Launch& at, Matrix out, Matrix x, Matrix dt, Matrix b, Matrix c, const OuterShape& s, const Slots& slots,
                const Recurrence& r) {
  if (!at.deterministic && x.rows == r.n_seqs && by_four(slots, s.head_dim) && s.head_dim <= 4 * kStepThreads)
    return launch(at, outer_step_kernel, grid2(s.heads, r.n_seqs), kStepThreads, 0, out, x, dt, b, c, s, slots);
  const size_t shared = size_t(s.n_state) * s.head_dim * 4 * (r.parent ? 2 : 1);
  launch(at, outer_scan_kernel, grid2(s.heads, r.n_seqs), int(div_up(s.head_dim, 32) * 32), shared, out, x, dt, b, c, s, slots, r);
}

}  // namespace mr::cuda
