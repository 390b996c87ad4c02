// Mamba's selection of dt, B and C, and the scan of one row per sequence with them, in one kernel: a block computes 1024 / n_state
// channels of kSelectRows rows. It normalizes the few values of a row that all channels share, multiplies them with its part of dt's
// weight, and updates the states, all of which are prefetched. Reads and writes every state once, dt's weight once per kSelectRows.
#include "backend/cuda/gemm/few_rows.cuh"
#include "backend/cuda/recurrent/scan.cuh"

namespace mr::cuda {

namespace {

constexpr int kSelectThreads = 256, kSelectRows = 4;

template <int Vectors>  // most per thread
__global__ void __launch_bounds__(kSelectThreads, Vectors > 5 ? 2 : 3) select_kernel(const __grid_constant__ SelectCall s, Slots slots) {
  __shared__ __align__(16) float chosen[kSelectRows][kSelectShared];  // low, B, C
  __shared__ float norm_weight[kSelectShared];
  const Matrix& x = s.rows.x;
  const int n = s.n_state, parts = n / 4, row0 = blockIdx.y * kSelectRows, n_rows = min(kSelectRows, int(x.rows) - row0);
  const int at = blockIdx.x * kSelectThreads + threadIdx.x, i = min(at / parts, int(x.cols) - 1), part = at % parts;
  const bool there = at / parts < x.cols;
  const int64_t place = int64_t(i) * n + 4 * part;
  const int each = s.rank / parts;  // inputs of dt per thread
  float4 h[kSelectRows];
#pragma unroll
  for (int r = 0; r < kSelectRows; r++)
    if (r < n_rows) h[r] = *reinterpret_cast<const float4*>(slot_at(slots, slots.src[row0 + r]) + place);
  uint4 low_weight[Vectors];
  const bf16* from = static_cast<const bf16*>(s.low) + int64_t(i) * s.rank + part * each;
#pragma unroll
  for (int v = 0; v < Vectors; v++)
    if (v * 8 < each) low_weight[v] = *reinterpret_cast<const uint4*>(from + v * 8);
  const float4 rate = rates_at(s.a, place);
  const float through = s.d ? s.d[i] : 0.0f;
  const float bias = s.rows.dt_bias[i];
  int32_t to[kSelectRows];
#pragma unroll
  for (int r = 0; r < kSelectRows; r++) to[r] = r < n_rows ? slots.dst[row0 + r] : -1;
  const Segments segments(s);
  for (int j = threadIdx.x; j < segments.width(); j += kSelectThreads) {
    const float* weight = s.weight[segments.of(j)];
    norm_weight[j] = weight ? weight[j < s.rank ? j : (j - s.rank) % n] : 1.0f;
  }
  launch_next();
  wait_before();

  uint32_t in[kSelectRows], gate[kSelectRows];
#pragma unroll
  for (int r = 0; r < kSelectRows; r++) {
    const int64_t row = row0 + min(r, n_rows - 1);
    in[r] = ask(x, row * x.stride + i);
    gate[r] = ask_gate(s.rows, row, i);
  }
  const int warp = threadIdx.x / 32;
  if (warp < kSelectRows) {  // one row per warp
    const float* row = static_cast<const float*>(s.dbc.data) + (row0 + min(warp, n_rows - 1)) * s.dbc.stride;
    SelectRow shared_values;
    shared_values.load(s, segments, [&](int j) { return row[j]; });
    __syncthreads();  // norm_weight is complete
    shared_values.put(segments, chosen[warp], [&](int, int j) { return s.norms ? norm_weight[j] : 1.0f; });
  } else {
    __syncthreads();
  }
  __syncthreads();
  float step[kSelectRows] = {};
#pragma unroll
  for (int v = 0; v < Vectors; v++) {
    if (v * 8 >= each) break;
    const uint4 w = low_weight[v];
#pragma unroll
    for (int r = 0; r < kSelectRows; r++) {
      const float4 *at = reinterpret_cast<const float4*>(chosen[r] + part * each + v * 8), a = at[0], b = at[1];
      const float values[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
      step[r] = dot8(w, values, step[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < kSelectRows; r++) step[r] = softplus_of(over_parts(step[r], parts) + bias);
#pragma unroll
  for (int r = 0; r < kSelectRows; r++) {
    if (r >= n_rows) break;
    const float4 b = *reinterpret_cast<const float4*>(chosen[r] + s.rank + 4 * part),
                 c = *reinterpret_cast<const float4*>(chosen[r] + s.rank + n + 4 * part);
    const float now = got(x, in[r]), sum = over_parts(diag_update(h[r], rate, step[r], now, b, c), parts);
    if (there && to[r] >= 0) __stcs(reinterpret_cast<float4*>(slot_at(slots, to[r]) + place), h[r]);
    if (there && part == 0) write_at(s.rows, row0 + r, i, fmaf(through, now, sum), gate[r]);
  }
}

// A block computes two outputs; its warps split the inputs, and their sums are added in order.
constexpr int kThinWarps = 8, kThinStep = 32 * 8, kThinDepth = 3, kThinRows = 8;

template <int Rows>
__global__ void __launch_bounds__(kThinWarps * 32, 2) thin_kernel(Matrix y, Matrix x, const bf16* weight) {
  __shared__ float sums[kThinWarps][2][Rows];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, in = int(x.cols), n_rows = int(x.rows);
  const int64_t first = int64_t(blockIdx.x) * 2, second = min(first + 1, y.cols - 1);
  const bf16 *a_row = weight + first * in, *b_row = weight + second * in;
  auto input = [&](int chunk) { return (chunk * kThinWarps + warp) * kThinStep + lane * 8; };
  uint4 a[kThinDepth], b[kThinDepth];
  auto prefetch = [&](int slot, int chunk) {
    a[slot] = b[slot] = uint4{};
    if (input(chunk) < in) {
      a[slot] = stream16(a_row + input(chunk));
      b[slot] = stream16(b_row + input(chunk));
    }
  };
#pragma unroll
  for (int i = 0; i < kThinDepth; i++) prefetch(i, i);
  launch_next();
  wait_before();
  float sum[2][Rows] = {};
  for (int base = 0; base * kThinWarps * kThinStep < in; base += kThinDepth) {
#pragma unroll
    for (int i = 0; i < kThinDepth; i++) {
      const int from = input(base + i);
      if (from < in) {
#pragma unroll
        for (int r = 0; r < Rows; r++) {
          if (r >= n_rows) break;
          float v[8];
          load_n<8>(x.data, DType::bf16, r * x.stride + from, v);
          sum[0][r] = dot8(a[i], v, sum[0][r]);
          sum[1][r] = dot8(b[i], v, sum[1][r]);
        }
      }
      prefetch(i, base + i + kThinDepth);
    }
  }
#pragma unroll
  for (int o = 0; o < 2; o++)
#pragma unroll
    for (int r = 0; r < Rows; r++) {
      const float all = warp_sum(sum[o][r]);
      if (lane == 0) sums[warp][o][r] = all;
    }
  __syncthreads();
  if (threadIdx.x >= 2 * Rows) return;
  const int o = threadIdx.x / Rows, r = threadIdx.x % Rows;
  float all = 0;
#pragma unroll
  for (auto& part : sums) all += part[o][r];
  if (r < n_rows && first + o < y.cols) static_cast<float*>(y.data)[r * y.stride + first + o] = all;
}

}  // namespace

bool can_select(const SelectCall& s, const Slots& slots) {
  const int n = s.n_state, parts = n / 4;
  auto by_sixteen = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return n % 4 == 0 && parts > 0 && parts <= 32 && (parts & (parts - 1)) == 0 && s.rank % (8 * parts) == 0 &&
         s.rank / (8 * parts) <= kSelectVectors && s.rank + 2 * n <= kSelectShared && by_sixteen(slots.base) &&
         slots.unit_bytes % 16 == 0 && by_sixteen(s.a) && by_sixteen(s.low);
}

void select_scan(const Launch& at, const SelectCall& s, const Slots& slots) {
  const int parts = s.n_state / 4;
  launch(at, s.rank / (8 * parts) <= 5 ? select_kernel<5> : select_kernel<kSelectVectors>,
         grid2(div_up(s.rows.x.cols * parts, kSelectThreads), div_up(s.rows.x.rows, kSelectRows)), kSelectThreads, 0, s, slots);
}

void product_thin(const Launch& at, Matrix y, Matrix x, const void* weight) {
  if (x.rows > kThinRows) {
    Product p;
    p.out = y.cols;
    p.in = x.cols;
    p.x = x;
    p.y = y;
    return few_rows<Packing::bf16, 1, 1, 16, false>(at, p, {Packing::bf16, weight, nullptr, y.cols, x.cols}, div_up(x.rows, 8));
  }
  auto kernel = x.rows == 1 ? thin_kernel<1> : x.rows <= 4 ? thin_kernel<4> : thin_kernel<kThinRows>;
  launch(at, kernel, grid2(div_up(y.cols, 2)), kThinWarps * 32, 0, y, x, static_cast<const bf16*>(weight));
}

}  // namespace mr::cuda
