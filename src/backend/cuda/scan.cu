// Recurrent layers: short convolution, Mamba's and Mamba-2's scans, one token after the other, with the state in shared memory. Each
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

}  // namespace

void short_conv(const Launch& at, Matrix out, Matrix x, const float* weight, int width, const float* bias, Activation act,
                const Slots& slots, const Recurrence& r) {
  launch(at, short_conv_kernel, grid2(div_up(x.cols, 128), r.n_seqs), 128, 0, out, x, weight, width, bias, act, slots, r);
}

void diag_scan(const Launch& at, Matrix out, Matrix x, Matrix dt, Matrix b, Matrix c, int n_state, const float* a, const float* d,
               const Slots& slots, const Recurrence& r) {
  const size_t shared = size_t(n_state) * 64 * 4 * (r.parent ? 2 : 1);
  launch(at, diag_scan_kernel, grid2(div_up(x.cols, 64), r.n_seqs), 64, shared, out, x, dt, b, c, n_state, a, d, slots, r);
}

void outer_scan(const Launch& at, Matrix out, Matrix x, Matrix dt, Matrix b, Matrix c, const OuterShape& s, const Slots& slots,
                const Recurrence& r) {
  const size_t shared = size_t(s.n_state) * s.head_dim * 4 * (r.parent ? 2 : 1);
  launch(at, outer_scan_kernel, grid2(s.heads, r.n_seqs), int(div_up(s.head_dim, 32) * 32), shared, out, x, dt, b, c, s, slots, r);
}

}  // namespace mr::cuda
