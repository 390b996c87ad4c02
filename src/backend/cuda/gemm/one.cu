// The product of one row with a bf16 weight: a warp streams two weight rows, or gate and up of one output, from memory through
// registers, with eight 16-byte loads in flight for each. Blocks are small and many: as those of one product end, blocks of the
// next start, and prefetch their first weights before its input is complete. Reads out * in * 2 bytes.
#include "backend/cuda/gemm/two_rows.cuh"
#include "backend/cuda/recurrent/scan.cuh"

namespace mr::cuda {

namespace {

constexpr int kWarps = kNormPartOne / 2;

// The factor of x's half-done norm. part: scratch [kWarps]; of_norm: this thread's share of the squares.
__device__ float norm_factor(const Product& p, float of_norm, float* part) {
  of_norm = warp_sum(of_norm);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = of_norm;
  __syncthreads();
  float all = 0;
#pragma unroll
  for (int w = 0; w < kWarps; w++) all += part[w];
  return rsqrtf(all / float(p.in) + p.eps);
}

// Writes a warp's two outputs, or its gated one; returns the sum of their squares.
__device__ float write_outputs(const Product& p, const int64_t (&at)[2], bool second, const float (&sum)[2], const float (&residual)[2]) {
  if (p.gated) {
    store(p.y.data, p.y.dtype, at[0], activated(p.activation, sum[0]) * sum[1]);
    return 0;
  }
  float square = 0;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    if (i == 1 && !second) break;
    const float y = (sum[i] + (p.bias ? p.bias[at[i]] : 0.0f)) * p.scale + residual[i];
    store(p.y.data, p.y.dtype, at[i], y);
    if (p.next.x) put_half_of(p.next, at[i], y, at[i]);
    square += y * y;
  }
  return square;
}

template <bool Conv>  // two lanes of a warp write an output each; else lane 0 writes both
__global__ void __launch_bounds__(32 * kWarps, 2) one_row(const Product p) {
  __shared__ float part[kWarps], squares[kWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, in = int(p.in);
  const int64_t n_outputs = p.gated ? p.out / 2 : p.out, first = int64_t(blockIdx.x) * kWarps + warp;
  const int64_t at[2] = {p.gated ? first : 2 * first, p.gated ? n_outputs + first : 2 * first + 1};
  const bool mine = first < (p.gated ? n_outputs : (n_outputs + 1) / 2), second = p.gated || at[1] < p.out;
  const bf16* weight = static_cast<const bf16*>(p.weight);
  TwoRows rows(weight + (mine ? at[0] : 0) * in, weight + (mine && second ? at[1] : 0) * in, in);
  Tap tap;
  if (Conv && mine && (lane == 0 || (lane == 1 && second))) tap.ask(p, lane == 0 ? at[0] : at[1]);

  launch_next();  // not earlier: the next kernel's weight loads would be queued ahead of these
  wait_before();
  const bf16* x_row = static_cast<const bf16*>(p.x.data) + lane * 8;
  float of_norm = 0, residual[2] = {};
  if (p.squares)
    for (int i = threadIdx.x; i < int(p.n_squares); i += 32 * kWarps) of_norm += p.squares[i];
  if (p.residual && lane == 0 && mine) {
    residual[0] = p.residual[at[0]];
    if (second) residual[1] = p.residual[at[1]];
  }
  float sum[2] = {};
#pragma unroll 1
  for (int from = 0; from < in; from += TwoRows::kDepth * TwoRows::kStep) {
#pragma unroll
    for (int i = 0; i < TwoRows::kDepth; i++) {
      const int here = from + i * TwoRows::kStep;
      float x[8] = {};
      if (here < rows.left) load_n<8>(x_row, DType::bf16, here, x);
      sum[0] = dot8(rows.a[i], x, sum[0]);
      sum[1] = dot8(rows.b[i], x, sum[1]);
      rows.fetch(i, here + TwoRows::kDepth * TwoRows::kStep);
    }
  }
  sum[0] = warp_sum(sum[0]);
  sum[1] = warp_sum(sum[1]);
  if (p.squares) {
    const float factor = norm_factor(p, of_norm, part);
    sum[0] *= factor;
    sum[1] *= factor;
  }
  if (Conv) {
    if (mine && (lane == 0 || (lane == 1 && second))) {
      const int64_t output = lane == 0 ? at[0] : at[1];
      const float y = ((lane == 0 ? sum[0] : sum[1]) + (p.bias ? p.bias[output] : 0.0f)) * p.scale;
      tap.there ? tap.write(p, y) : store(p.y.data, p.y.dtype, output, y);
    }
    return;
  }
  const float square = lane == 0 && mine ? write_outputs(p, at, second, sum, residual) : 0.0f;
  if (!p.next.x) return;
  if (lane == 0) squares[warp] = square;
  __syncthreads();
  if (threadIdx.x > 0) return;
  float all = 0;
#pragma unroll
  for (float s : squares) all += s;
  put_squares(p.next, 0, int(blockIdx.x), int(gridDim.x), all);
}

}  // namespace

void product_one(const Launch& at, const Product& p) {
  launch(at, p.conv.n ? one_row<true> : one_row<false>, grid2(div_up(p.gated ? p.out / 2 : div_up(p.out, 2), kWarps)), 32 * kWarps, 0, p);
}

}  // namespace mr::cuda
