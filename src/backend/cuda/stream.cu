// Products of up to 8 rows with a bf16 weight, straight from memory through registers: a warp takes 16 weight rows and a part of the
// inputs, eight loads a lane and row ahead, and its block adds the parts up in order. Blocks are small and many, so that the first
// loads of the next product begin wherever a multiprocessor has room, before the sums ahead of it are known. With a norm, x is the
// f32 residual and every block normalizes it for itself. Reads out * in * 2 bytes of weights once.
// Inputs are permuted alike in weights and x: lane 4 g + t holds 8 t .. 8 t + 7 of every 32 of weight rows g and g + 8, and of row g of x.
#include "backend/cuda/device.cuh"

namespace mr::cuda {

namespace {

constexpr int kDepth = 8, kNear = 4;  // steps of 32 inputs of the weights, of x on their way

template <int W, bool Normed>
__global__ void __launch_bounds__(32 * W, W == 4 ? 4 : 2) stream_kernel(const Product p) {
  extern __shared__ __align__(16) char raw[];
  __shared__ float sums[W][8][17], shared[32];
  launch_next();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int in = int(p.in), width = p.gated ? 8 : 16, tile = blockIdx.x * width, rows = int(p.x.rows);
  const int64_t outs = p.gated ? p.out / 2 : p.out;
  const int64_t low_row = min(int64_t(tile) + g, outs - 1), high_row = p.gated ? outs + low_row : min(int64_t(tile) + 8 + g, outs - 1);
  const int n_steps = (in + 31) / 32, per = (n_steps + W - 1) / W, begin = min(warp * per, n_steps), n = min(begin + per, n_steps) - begin;
  const int from = begin * 32 + 8 * t;
  const bf16* low_at = static_cast<const bf16*>(p.weight) + low_row * in + from;
  const bf16* high_at = static_cast<const bf16*>(p.weight) + high_row * in + from;
  int left = from < in ? min(n, (in - from + 31) / 32) : 0;  // steps that this lane has inputs of
  uint4 a[kDepth], b[kDepth], x[kNear];
  auto ask_weights = [&](uint4& low, uint4& high, int i) {
    low = high = uint4{};
    if (i < left) low = stream16(low_at + 32 * i), high = stream16(high_at + 32 * i);
  };
#pragma unroll
  for (int i = 0; i < kDepth; i++) ask_weights(a[i], b[i], i);

  bf16* normal = reinterpret_cast<bf16*>(raw);  // [rows][in]
  const bf16* x_at = nullptr;
  wait_before();
  if constexpr (Normed) {
    constexpr int kHold = 4, kAll = 32 * W * 8;  // vectors of 8 that a thread holds; what the block holds of one
    for (int r = 0; r < rows; r++) {
      const float* row = static_cast<const float*>(p.x.data) + r * p.x.stride;
      float sum = 0, v[kHold][8];
      auto take = [&](float(&v)[8], int i) {  // squares are counted, then the norm's weight comes in
        float gain[8];
        load_n<8>(row, DType::f32, i, v);
        if (p.norm_weight) load_n<8>(p.norm_weight, DType::f32, i, gain);
        for (int e = 0; e < 8; e++) sum += v[e] * v[e], v[e] *= p.norm_weight ? p.norm_offset + gain[e] : 1.0f;
      };
#pragma unroll
      for (int h = 0; h < kHold; h++)
        if (h * kAll + int(threadIdx.x) * 8 < in) take(v[h], h * kAll + threadIdx.x * 8);
      for (int i = kHold * kAll + threadIdx.x * 8; i < in; i += kAll) {
        float more[8];
        take(more, i);
      }
      const float inverse = rsqrtf(block_sum(sum, shared) / float(in) + p.norm_eps);
      auto put = [&](float(&v)[8], int i) {
        for (float& e : v) e *= inverse;
        store_n<8>(normal, DType::bf16, int64_t(r) * in + i, v);
      };
#pragma unroll
      for (int h = 0; h < kHold; h++)
        if (h * kAll + int(threadIdx.x) * 8 < in) put(v[h], h * kAll + threadIdx.x * 8);
      for (int i = kHold * kAll + threadIdx.x * 8; i < in; i += kAll) {
        float more[8];
        take(more, i), put(more, i);
      }
    }
    __syncthreads();
    x_at = normal + int64_t(min(g, rows - 1)) * in + from;
  } else {
    x_at = static_cast<const bf16*>(p.x.data) + min(g, rows - 1) * p.x.stride + from;
  }
  auto ask_x = [&](uint4& to, int i) {
    to = uint4{};
    if (g < rows && i < left) {
      if constexpr (Normed) {
        to = *reinterpret_cast<const uint4*>(x_at + 32 * i);
      } else {
        to = load16(x_at + 32 * i);
      }
    }
  };
  if constexpr (!Normed) {
#pragma unroll
    for (int i = 0; i < kNear; i++) ask_x(x[i], i);
  }
  float c[4] = {};
#pragma unroll 1
  for (int base = 0; base < n; base += kDepth, left -= kDepth, low_at += 32 * kDepth, high_at += 32 * kDepth, x_at += 32 * kDepth) {
#pragma unroll
    for (int i = 0; i < kDepth; i++) {
      uint4& now = x[i % kNear];
      if constexpr (Normed) ask_x(now, i);
      mma(c, a[i].x, b[i].x, a[i].y, b[i].y, now.x, now.y);
      mma(c, a[i].z, b[i].z, a[i].w, b[i].w, now.z, now.w);
      ask_weights(a[i], b[i], kDepth + i);
      if constexpr (!Normed) ask_x(now, kNear + i);
    }
  }
  sums[warp][2 * t][g] = c[0], sums[warp][2 * t + 1][g] = c[1], sums[warp][2 * t][8 + g] = c[2], sums[warp][2 * t + 1][8 + g] = c[3];
  __syncthreads();
  for (int e = threadIdx.x; e < rows * width; e += 32 * W) {
    const int place = e % width, row = e / width;
    const int64_t at = int64_t(tile) + place;
    if (at >= outs) continue;
    auto total = [&](int i) {
      float sum = 0;
      for (int w = 0; w < W; w++) sum += sums[w][row][i];
      return sum;
    };
    float y = total(place);
    if (p.gated) {
      y = activated(p.activation, y) * total(8 + place);
    } else {
      if (p.bias) y += p.bias[at];
      y *= p.scale;
      if (p.residual) y += p.residual[row * p.residual_stride + at];
    }
    store(p.y.data, p.y.dtype, row * p.y.stride + at, y);
  }
}

template <int W, bool Normed>
void run(const Launch& at, const Product& p) {
  const size_t bytes = Normed ? size_t(p.x.rows * p.in) * 2 : 0;
  launch(at, stream_kernel<W, Normed>, grid2(p.gated ? div_up(p.out / 2, 8) : div_up(p.out, 16)), 32 * W, bytes, p);
}

}  // namespace

bool can_stream(const Product& p) {
  const bool whole = p.in % 8 == 0 && p.x.stride % 8 == 0 && reinterpret_cast<uintptr_t>(p.x.data) % 16 == 0;
  if (p.normed) return whole && p.x.dtype == DType::f32 && p.x.rows * p.in <= 16384 && reinterpret_cast<uintptr_t>(p.norm_weight) % 16 == 0;
  return whole && p.x.dtype == DType::bf16 && p.x.rows <= 8;
}

void stream(const Launch& at, const Product& p) {
  const bool deep = p.in > 8192;  // few outputs then: more warps a block, so that enough is on its way
  if (p.normed) {
    deep ? run<8, true>(at, p) : run<4, true>(at, p);
  } else {
    deep ? run<8, false>(at, p) : run<4, false>(at, p);
  }
}

}  // namespace mr::cuda
