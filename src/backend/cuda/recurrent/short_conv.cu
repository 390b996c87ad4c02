// Short convolutions. Each sequence reads slot src and rows write slots dst, which may be src: all reads of it come before the
// writes.
#include <type_traits>

#include "backend/cuda/recurrent/scan.cuh"

namespace mr::cuda {

namespace {

constexpr int kMostWidth = 8;

// Consecutive channels of a thread: one of f32 or bf16, or four of bf16.
template <int V>
struct Lanes {
  float v[V];
};
template <int V>
using Bits = std::conditional_t<V == 1, uint32_t, uint2>;
template <int V>
__device__ Bits<V> ask_lanes(const Matrix& m, int64_t i) {
  if constexpr (V == 1)
    return ask(m, i);
  else
    return *reinterpret_cast<const uint2*>(static_cast<const bf16*>(m.data) + i);
}
__device__ Lanes<1> got_lanes(const Matrix& m, uint32_t bits) { return {got(m, bits)}; }
__device__ Lanes<4> got_lanes(const Matrix&, uint2 bits) { return {low(bits.x), high(bits.x), low(bits.y), high(bits.y)}; }
template <int V>
__device__ Lanes<V> load_floats(const float* from) {
  if constexpr (V == 1) {
    return {*from};
  } else {
    const float4 x = *reinterpret_cast<const float4*>(from);
    return {x.x, x.y, x.z, x.w};
  }
}
template <int V>
__device__ void store_floats(float* to, const Lanes<V>& x) {
  if constexpr (V == 1)
    *to = x.v[0];
  else
    *reinterpret_cast<float4*>(to) = {x.v[0], x.v[1], x.v[2], x.v[3]};
}
template <int V>
__device__ void store_lanes(const Matrix& m, int64_t i, const Lanes<V>& x) {
  if constexpr (V == 1)
    store(m.data, m.dtype, i, x.v[0]);
  else
    *reinterpret_cast<uint2*>(static_cast<bf16*>(m.data) + i) = make_uint2(pack(x.v[0], x.v[1]), pack(x.v[2], x.v[3]));
}

// The last sequence that begins at or before a row.
__device__ int sequence_of(const Recurrence& r, int row) {
  int low = 0;
  for (int high = r.n_seqs - 1; low < high;) {
    const int middle = (low + high + 1) / 2;
    if (r.row_begin[middle] <= row)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

template <int Taps, int V>
__device__ void load_taps(Lanes<V> (&w)[Taps], const float* from, int width) {
#pragma unroll
  for (int j = 0; j < Taps; j++)
#pragma unroll
    for (int i = 0; i < V; i++) w[j].v[i] = j < width ? from[i * width + j] : 0;
}

// The result of a row, whose inputs are in `window`, oldest first; sum: the bias.
template <int Taps, int V>
__device__ Lanes<V> convolved(const Lanes<V> (&window)[Taps], const Lanes<V> (&w)[Taps], int width, Lanes<V> sum, Activation act) {
#pragma unroll
  for (int i = 0; i < V; i++) {
#pragma unroll
    for (int j = 0; j < Taps; j++) sum.v[i] = j < width ? fmaf(w[j].v[i], window[j].v[i], sum.v[i]) : sum.v[i];
    sum.v[i] = activated(act, sum.v[i]);
  }
  return sum;
}

// Moves the window on by one row, whose input is `next`.
template <int Taps, int V>
__device__ void shift(Lanes<V> (&window)[Taps], int width, const Lanes<V>& next) {
#pragma unroll
  for (int j = 0; j < Taps; j++)
#pragma unroll
    for (int i = 0; i < V; i++) {
      if (j + 1 < Taps) window[j].v[i] = j + 1 < width ? window[j + 1].v[i] : window[j].v[i];
      window[j].v[i] = j == width - 1 ? next.v[i] : window[j].v[i];
    }
}

// The index-th of the rows that were prefetched; `other` if it is none of them.
template <int N, int V>
__device__ Lanes<V> one_of(const Matrix& x, const Bits<V> (&ahead)[N], int index, Lanes<V> other) {
#pragma unroll
  for (int k = 1; k < N; k++) {
    const Lanes<V> came = got_lanes(x, ahead[k]);
#pragma unroll
    for (int i = 0; i < V; i++) other.v[i] = index == k ? came.v[i] : other.v[i];
  }
  return other;
}

// One thread per V channels of `tile` rows. A slot may be both src and dst: only the tile with a sequence's first row reads src and
// writes to it, so it computes all rows that need src, and all of a tree. Reads and writes every value about once.
constexpr int kConvRows = 8;

template <int Width, int V>  // Width 0: any
__global__ void __launch_bounds__(128) short_conv_kernel(Matrix out, Matrix x, const float* weight, int some_width, const float* bias,
                                                         Activation act, Slots slots, Recurrence r, int tile) {
  constexpr int kTaps = Width ? Width : kMostWidth;
  const int width = Width ? Width : some_width;
  const bool single = tile == 1;  // every sequence has one row
  const int channels = int(x.cols), at = V * (blockIdx.x * blockDim.x + threadIdx.x), c = min(at, channels - V);
  const bool there = at < channels;
  const int row0 = blockIdx.y * tile, row1 = row0 + tile;
  Lanes<V> before[kTaps] = {}, w[kTaps], more{};  // before: the context's last inputs, oldest first
  load_taps<kTaps, V>(w, weight + c * width, width);
  if (bias) more = load_floats<V>(bias + c);
  int seq = single ? row0 : sequence_of(r, row0);
  int32_t src = slots.src[seq];
  auto read_slot = [&] {
#pragma unroll
    for (int j = 0; j < width - 1; j++) before[j] = load_floats<V>(slot_at(slots, src) + j * channels + c);
  };
  if (single) read_slot();
  launch_next();
  wait_before();
  auto read = [&](int row) { return got_lanes(x, ask_lanes<V>(x, row * x.stride + c)); };
  for (; seq < r.n_seqs && (single ? seq : r.row_begin[seq]) < row1; seq++) {
    const int first = single ? seq : r.row_begin[seq], last = single ? seq + 1 : r.row_begin[seq + 1],
              alone = first + width - 1;  // rows from here on do not need src
    const bool tree = r.parent && r.corner[seq] == Corner::bits, mine = first >= row0;
    const int begin = mine ? first : max(alone, row0), end = tree ? last : min(last, mine ? max(alone, row1) : row1);
    if (begin >= end || (tree && !mine)) continue;
    if (!single) src = slots.src[seq];
    if (mine && !single) read_slot();
    auto window_at = [&](int row, Lanes<V>(&window)[kTaps]) {  // the inputs of a row, oldest first
      int missing = 0;
#pragma unroll
      for (int j = width - 1; j >= 0; j--) {
        if (row >= first) {
          window[j] = read(row);
          row = tree ? r.parent[row] : row - 1;
        } else {
#pragma unroll
          for (int k = 0; k < kTaps - 1; k++)
#pragma unroll
            for (int i = 0; i < V; i++) window[j].v[i] = k == width - 2 - missing ? before[k].v[i] : window[j].v[i];
          missing++;
        }
      }
    };
    auto keep = [&](int32_t slot, const Lanes<V>(&window)[kTaps]) {
#pragma unroll
      for (int j = 1; j < width; j++)
        if (there) store_floats<V>(slot_at(slots, slot) + (j - 1) * channels + c, window[j]);
    };
    Lanes<V> window[kTaps] = {};
    Bits<V> next[kConvRows];
    window_at(begin, window);
    if (!tree) {
#pragma unroll
      for (int i = 1; i < kConvRows; i++) next[i] = ask_lanes<V>(x, min(begin + i, end - 1) * x.stride + c);
    }
    for (int row = begin; row < end; row++) {
      if (tree && row > begin) window_at(row, window);
      const Lanes<V> y = convolved<kTaps, V>(window, w, width, more, act);
      if (there) store_lanes<V>(out, row * out.stride + c, y);
      const int32_t dst = slots.dst[row];
      if (dst >= 0 && (mine || dst != src)) keep(dst, window);
      if (tree) continue;
      Lanes<V> after{};
      if (row + 1 - begin >= kConvRows && row + 1 < end) after = read(row + 1);
      shift<kTaps, V>(window, width, one_of<kConvRows, V>(x, next, row + 1 - begin, after));
    }
    for (int base = end; mine && base < last; base += 32) {  // rows of other tiles whose dst is src
      const int row = base + int(threadIdx.x % 32);
      for (unsigned all = __ballot_sync(~0u, row < last && slots.dst[row] == src); all; all &= all - 1) {
        window_at(base + __ffs(int(all)) - 1, window);
        keep(src, window);
      }
    }
  }
}

// One row per sequence, four taps, four channels per thread.
__global__ void __launch_bounds__(128)
    conv_step_kernel(Matrix out, Matrix x, const float* weight, const float* bias, Activation act, Slots slots) {
  const int channels = int(x.cols), c = 4 * (blockIdx.x * blockDim.x + threadIdx.x), row = blockIdx.y;
  if (c >= channels) return;
  const float* from = slot_at(slots, slots.src[row]) + c;
  const int32_t to = slots.dst[row];
  float4 before[3], taps[4], sum{};
#pragma unroll
  for (int j = 0; j < 3; j++) before[j] = *reinterpret_cast<const float4*>(from + j * channels);
#pragma unroll
  for (int i = 0; i < 4; i++) taps[i] = *reinterpret_cast<const float4*>(weight + (c + i) * 4);
  if (bias) sum = *reinterpret_cast<const float4*>(bias + c);
  launch_next();
  wait_before();
  const uint2 pairs = *reinterpret_cast<const uint2*>(static_cast<const bf16*>(x.data) + row * x.stride + c);
  const float4 now = {low(pairs.x), high(pairs.x), low(pairs.y), high(pairs.y)};
  auto one = [&](float4 w, float a, float b, float c, float d, float more) {
    return fmaf(w.w, d, fmaf(w.z, c, fmaf(w.y, b, fmaf(w.x, a, more))));
  };
  sum.x = one(taps[0], before[0].x, before[1].x, before[2].x, now.x, sum.x);
  sum.y = one(taps[1], before[0].y, before[1].y, before[2].y, now.y, sum.y);
  sum.z = one(taps[2], before[0].z, before[1].z, before[2].z, now.z, sum.z);
  sum.w = one(taps[3], before[0].w, before[1].w, before[2].w, now.w, sum.w);
  *reinterpret_cast<uint2*>(static_cast<bf16*>(out.data) + row * out.stride + c) =
      make_uint2(pack(activated(act, sum.x), activated(act, sum.y)), pack(activated(act, sum.z), activated(act, sum.w)));
  if (to < 0) return;
  float* kept = slot_at(slots, to) + c;
  *reinterpret_cast<float4*>(kept) = before[1];
  *reinterpret_cast<float4*>(kept + channels) = before[2];
  *reinterpret_cast<float4*>(kept + 2 * channels) = now;
}

}  // namespace

void short_conv(const Launch& at, Matrix out, Matrix x, const float* weight, int width, const float* bias, Activation act,
                const Slots& slots, const Recurrence& r) {
  const bool four = width == 4 && vectors(x) && vectors(out) && by_four(slots, x.cols) &&
                    (reinterpret_cast<uintptr_t>(weight) | reinterpret_cast<uintptr_t>(bias)) % 16 == 0;
  if (four && x.rows == r.n_seqs)
    return launch(at, conv_step_kernel, grid2(div_up(x.cols, 512), x.rows), 128, 0, out, x, weight, bias, act, slots);
  const int tile = x.rows == r.n_seqs ? 1 : kConvRows;
  auto kernel = four ? short_conv_kernel<4, 4> : width == 4 ? short_conv_kernel<4, 1> : short_conv_kernel<0, 1>;
  launch(at, kernel, grid2(div_up(x.cols, four ? 512 : 128), div_up(x.rows, tile)), 128, 0, out, x, weight, width, bias, act, slots, r,
         tile);
}

}  // namespace mr::cuda
