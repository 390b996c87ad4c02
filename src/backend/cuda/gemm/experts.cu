// Mixture of experts: routing, grouped products, and the weighted sum.
#include "backend/cuda/gemm/choose.cuh"
#include "backend/cuda/gemm/few_rows.cuh"
#include "backend/cuda/gemm/two_rows.cuh"
#include "backend/cuda/rows/half_norm.cuh"

namespace mr::cuda {

namespace {

__global__ void route_kernel(Matrix expert, Matrix weight, Matrix logits, bool renormalize) {
  launch_next();
  wait_before();
  const int64_t row = blockIdx.x;
  choose(static_cast<float*>(logits.data) + row * logits.stride, int(logits.cols), int(expert.cols),
         static_cast<int32_t*>(expert.data) + row * expert.stride, static_cast<float*>(weight.data) + row * weight.stride, renormalize);
}

// One block per row: its norm, kept in shared memory rounded as the experts will read it, one warp per expert's logit, and top-k.
constexpr int kRouteWarps = 8, kRouteThreads = kRouteWarps * 32, kRouteAhead = 8;

__global__ void __launch_bounds__(kRouteThreads) route_normed_kernel(const __grid_constant__ RouteCall r) {
  extern __shared__ __align__(16) float row[];  // [D] normed, then [n_experts] logits
  __shared__ float part[32];
  const int n = int(r.x.cols), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bf16* router = static_cast<const bf16*>(r.router) + lane * 8;
  float* logits = row + n;
  uint4 ahead[kRouteAhead];  // prefetched weights of this warp's first expert
#pragma unroll
  for (int i = 0; i < kRouteAhead; i++) {
    ahead[i] = uint4{};
    if (warp < r.n_experts && i * 256 + lane * 8 < n) ahead[i] = stream16(router + int64_t(warp) * n + i * 256);
  }
  launch_next();
  wait_before();
  float sum = 0;
  for (int i = threadIdx.x * 8; i < n; i += kRouteThreads * 8) {
    float v[8];
    load_n<8>(r.x.data, DType::f32, blockIdx.x * r.x.stride + i, v);
    for (float e : v) sum += e * e;
    store_n<8>(row, DType::f32, i, v);
  }
  const float by = rsqrtf(block_sum(sum, part) / float(n) + r.eps);
  for (int i = threadIdx.x * 8; i < n; i += kRouteThreads * 8) {
    float v[8], w[8];
    load_n<8>(row, DType::f32, i, v);
    if (r.norm_weight) load_n<8>(r.norm_weight, DType::f32, i, w);
    for (int e = 0; e < 8; e++) v[e] *= by * (r.norm_weight ? r.offset + w[e] : 1.0f);
    store_n<8>(r.normed.data, DType::bf16, blockIdx.x * r.normed.stride + i, v);
    for (float& e : v) e = __bfloat162float(__float2bfloat16(e));
    store_n<8>(row, DType::f32, i, v);
  }
  __syncthreads();
  for (int e = warp; e < r.n_experts; e += kRouteWarps) {
    float logit = 0;
    auto more = [&](uint4 w, int i) {
      float v[8];
      load_n<8>(row, DType::f32, i, v);
      logit = dot8(w, v, logit);
    };
#pragma unroll
    for (int i = 0; i < kRouteAhead; i++)
      if (i * 256 + lane * 8 < n) more(e == warp ? ahead[i] : stream16(router + int64_t(e) * n + i * 256), i * 256 + lane * 8);
    for (int i = kRouteAhead * 256 + lane * 8; i < n; i += 256) more(stream16(router - lane * 8 + int64_t(e) * n + i), i);
    logit = warp_sum(logit);
    if (lane == 0) logits[e] = logit;
  }
  __syncthreads();
  if (warp == 0)
    choose(logits, r.n_experts, int(r.expert.cols), static_cast<int32_t*>(r.expert.data) + blockIdx.x * r.expert.stride,
           static_cast<float*>(r.weight.data) + blockIdx.x * r.weight.stride, r.renormalize);
}

// One row: a warp streams two rows of weights at a time.
constexpr int kOneWarps = 8;

__device__ const bf16* weight_row(const Packed& w, int64_t row, int64_t in) { return static_cast<const bf16*>(w.quants) + row * in; }

__device__ int chosen(const int32_t* expert, int j, int n) { return min(max(expert[j], 0), n - 1); }  // rows of NaN have no valid expert

// Dot products of two rows of weights with a row of x each, returned to all lanes.
__device__ float2 dot_two(const bf16* a_row, const bf16* b_row, const bf16* a_x, const bf16* b_x, int in) {
  TwoRows rows(a_row, b_row, in);
  a_x += threadIdx.x % 32 * 8;
  b_x += threadIdx.x % 32 * 8;
  launch_next();  // not earlier: the next kernel's weight loads would be queued ahead of these
  float first = 0, second = 0;
#pragma unroll 1
  for (int from = 0; from < in; from += TwoRows::kDepth * TwoRows::kStep) {
#pragma unroll
    for (int i = 0; i < TwoRows::kDepth; i++) {
      const int here = from + i * TwoRows::kStep;
      if (here < rows.left) {
        float x[8];
        load_n<8>(a_x, DType::bf16, here, x);
        first = dot8(rows.a[i], x, first);
        if (b_x != a_x) load_n<8>(b_x, DType::bf16, here, x);
        second = dot8(rows.b[i], x, second);
      }
      rows.fetch(i, here + TwoRows::kDepth * TwoRows::kStep);
    }
  }
  return {warp_sum(first), warp_sum(second)};
}

__global__ void __launch_bounds__(kOneWarps * 32, 2)
    gate_one_kernel(Matrix out, Matrix x, const Packed* gates, const Packed* ups, const int32_t* expert, int n_experts, Activation act) {
  wait_before();
  const int64_t o = int64_t(blockIdx.x) * kOneWarps + threadIdx.x / 32, in = x.cols;
  if (o >= out.cols) return;
  const int e = chosen(expert, int(blockIdx.y), n_experts);
  const bf16* from = static_cast<const bf16*>(x.data);
  const float2 sums = dot_two(weight_row(gates[e], o, in), weight_row(ups[e], o, in), from, from, int(in));
  if (threadIdx.x % 32 == 0) store(out.data, out.dtype, blockIdx.y * out.stride + o, activated(act, sums.x) * sums.y);
}

__global__ void __launch_bounds__(kOneWarps * 32, 2)
    sum_one_kernel(Matrix into, Matrix x, const Packed* downs, const int32_t* expert, int n_experts, const float* weight, HalfNorm next) {
  static_assert(kOneWarps == kSumPartOne);
  __shared__ float squares[kOneWarps];
  wait_before();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, k = int(x.rows);
  const int64_t o = int64_t(blockIdx.x) * kOneWarps + warp, in = x.cols;
  const bf16* from = static_cast<const bf16*>(x.data);
  float* to = static_cast<float*>(into.data) + o;
  float sum = 0, y = 0;
  if (o < into.cols) {
    for (int j = 0; j < k; j += 2) {
      const int other = min(j + 1, k - 1);
      const float2 two =
          dot_two(weight_row(downs[chosen(expert, j, n_experts)], o, in), weight_row(downs[chosen(expert, other, n_experts)], o, in),
                  from + j * x.stride, from + other * x.stride, int(in));
      sum += weight[j] * two.x + (other > j ? weight[other] * two.y : 0.0f);
    }
    if (lane == 0) {
      y = *to + sum;
      *to = y;
      if (next.x) put_half_of(next, o, y, o);
    }
  }
  if (!next.x) return;
  if (lane == 0) squares[warp] = y * y;
  __syncthreads();
  if (threadIdx.x > 0) return;
  float all = 0;
  for (float s : squares) all += s;
  put_squares(next, 0, int(blockIdx.x), int(gridDim.x), all);
}

// Any shape, slowly: one warp per output of a (row, expert) pair.
__global__ void grouped_any_kernel(Matrix out, Matrix x, const Packed* experts, int n_experts, int64_t in, Matrix expert) {
  launch_next();
  wait_before();
  const int64_t pair = blockIdx.y, k = expert.cols, t = pair / k, col = int64_t(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (col >= out.cols) return;
  const int e = chosen(static_cast<const int32_t*>(expert.data) + t * expert.stride, int(pair % k), n_experts);
  const int64_t from = (x.rows == out.rows ? pair : t) * x.stride, lane = threadIdx.x % 32;
  float sum = 0;
  for (int64_t i = lane; i < in; i += 32) sum += load(x.data, x.dtype, from + i) * load(experts[e].quants, DType::bf16, col * in + i);
  sum = warp_sum(sum);
  if (lane == 0) store(out.data, out.dtype, pair * out.stride + col, sum);
}

// One block per expert: lists its pairs in order, and the tiles of at most `most` pairs that they form. counts [n_experts].
constexpr int kGroupWarps = 8;
__global__ void __launch_bounds__(kGroupWarps * 32) group_kernel(GroupTile* tile, int32_t* n_tiles, int32_t* pairs, Groups g, int most) {
  extern __shared__ int counts[];
  __shared__ int before_pairs, before_tiles, in_warp[kGroupWarps];
  launch_next();
  wait_before();
  const int e = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int i = threadIdx.x; i < g.n_experts; i += blockDim.x) counts[i] = 0;
  if (threadIdx.x == 0) before_pairs = before_tiles = 0;
  __syncthreads();
  for (int p = threadIdx.x; p < g.n_pairs; p += blockDim.x) atomicAdd(&counts[g.of(p)], 1);
  __syncthreads();
  for (int i = threadIdx.x; i < e; i += blockDim.x) {
    atomicAdd(&before_pairs, counts[i]);
    atomicAdd(&before_tiles, (counts[i] + most - 1) / most);
  }
  const int share = (g.n_pairs + kGroupWarps * 32 - 1) / (kGroupWarps * 32) * 32, begin = warp * share, end = min(begin + share, g.n_pairs);
  auto each = [&](auto work) {  // over this warp's pairs of the expert
    for (int base = begin; base < end; base += 32) {
      const bool hit = base + lane < end && g.of(base + lane) == e;
      work(base + lane, hit, __ballot_sync(~0u, hit));
    }
  };
  int n = 0;
  each([&](int, bool, unsigned all) { n += __popc(all); });
  if (lane == 0) in_warp[warp] = n;
  __syncthreads();
  int at = before_pairs;
  for (int w = 0; w < warp; w++) at += in_warp[w];
  each([&](int pair, bool hit, unsigned all) {
    if (hit) pairs[at + __popc(all & ((1u << lane) - 1))] = pair;
    at += __popc(all);
  });
  const int tiles = (counts[e] + most - 1) / most;
  for (int i = threadIdx.x; i < tiles; i += blockDim.x)
    tile[before_tiles + i] = {e, before_pairs + i * most, min(most, counts[e] - i * most)};
  if (e == g.n_experts - 1 && threadIdx.x == 0) *n_tiles = before_tiles + tiles;
}

__device__ float combined(const Matrix& x, const Matrix& weight, int64_t t, int64_t i) {
  const int64_t k = weight.cols;
  float sum = 0;
  for (int64_t j = 0; j < k; j++)
    sum += static_cast<const float*>(weight.data)[t * weight.stride + j] * load(x.data, x.dtype, (t * k + j) * x.stride + i);
  return sum;
}
__global__ void combine_into_kernel(Matrix into, Matrix x, Matrix weight, HalfNorm next) {
  static_assert(kCombinePart == 32);
  launch_next();
  wait_before();
  const int64_t t = blockIdx.y, i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  float y = 0;
  if (i < into.cols) {
    float* to = static_cast<float*>(into.data) + t * into.stride + i;
    y = *to + combined(x, weight, t, i);
    *to = y;
    if (next.x) put_half_of(next, t * into.cols + i, y, i);
  }
  if (!next.x) return;
  const float squares = warp_sum(y * y);
  if (threadIdx.x % 32 == 0 && i < into.cols) put_squares(next, t, int(i / kCombinePart), int(next.parts), squares);
}

}  // namespace

void route(const Launch& at, Matrix expert, Matrix weight, Matrix logits, bool renormalize) {
  launch(at, route_kernel, grid2(logits.rows), 32, 0, expert, weight, logits, renormalize);
}
bool can_route(const RouteCall& r) {
  return by_eight(r.x) && r.x.dtype == DType::f32 && by_eight(r.normed) && r.normed.dtype == DType::bf16 &&
         reinterpret_cast<uintptr_t>(r.norm_weight) % 16 == 0 && (r.x.cols + r.n_experts) * 4 <= 64 << 10;
}
void route_normed(const Launch& at, const RouteCall& r) {
  launch(at, route_normed_kernel, grid2(r.x.rows), kRouteThreads, size_t(r.x.cols + r.n_experts) * 4, r);
}
void grouped_any(const Launch& at, Matrix out, Matrix x, const Packed* experts, int n_experts, int64_t in, Matrix expert) {
  launch(at, grouped_any_kernel, grid2(div_up(out.cols, 8), out.rows), 256, 0, out, x, experts, n_experts, in, expert);
}

GroupPlan group_plan(const Launch& at, int64_t n_pairs, int64_t n_experts) {
  const int64_t each = n_pairs / n_experts;
  GroupPlan plan;
  plan.most = each <= 4 ? 8 : each <= 8 ? 16 : each <= 16 ? 24 : each <= 24 ? 32 : 64;
  if (at.deterministic) plan.most = std::min(plan.most, 16);  // larger tiles have 8 warps, which changes the order of sums
  plan.n_tiles = std::min(n_pairs, n_experts) + n_pairs / plan.most;
  plan.listed = n_pairs > 32;
  return plan;
}

void grouped(const Launch& at, Matrix out, Matrix x, const Packed& shape, const Packed* experts, int n_experts, Matrix expert,
             const GroupPlan& plan, const Packed* ups, Activation act) {
  Groups g{.experts = experts,
           .ups = ups,
           .expert = static_cast<const int32_t*>(expert.data),
           .stride = expert.stride,
           .k = int(expert.cols),
           .n_pairs = int(out.rows),
           .n_experts = n_experts,
           .of_pairs = x.rows == out.rows};
  if (plan.listed) {
    if (!plan.known)
      launch(at, group_kernel, grid2(n_experts), kGroupWarps * 32, size_t(n_experts) * 4, plan.tile, plan.n_listed, plan.pairs, g,
             plan.most);
    g.tile = plan.tile;
    g.n_tiles = plan.n_listed;
    g.pairs = plan.pairs;
  }
  Product p;
  p.out = shape.out;
  p.in = shape.in;
  p.x = x;
  p.y = out;
  p.gated = ups != nullptr;
  p.activation = act;
  auto run = [&](auto f) {
    if (plan.most == 8 && ups && at.deterministic) return few_rows<f(), 1, 2, 16, true>(at, p, shape, plan.n_tiles, g);
    if (plan.most == 8 && ups) return few_rows<f(), 1, 2, 8, true>(at, p, shape, plan.n_tiles, g);
    if (plan.most == 8) return few_rows<f(), 1, 1, 16, true>(at, p, shape, plan.n_tiles, g);
    if (plan.most == 16) return few_rows<f(), 2, 2, 16, true>(at, p, shape, plan.n_tiles, g);
    if (plan.most == 24) return few_rows<f(), 3, 2, 8, true>(at, p, shape, plan.n_tiles, g);
    if (plan.most == 32) return few_rows<f(), 4, 2, 8, true>(at, p, shape, plan.n_tiles, g);
    few_rows<f(), 8, 2, 8, true>(at, p, shape, plan.n_tiles, g);
  };
  if (shape.packing == Packing::bf16) return run(std::integral_constant<Packing, Packing::bf16>{});
  by_packing(shape.packing, run);
}
void grouped_gate_one(const Launch& at, Matrix out, Matrix x, const Packed* gates, const Packed* ups, int n_experts, Matrix expert,
                      Activation act) {
  launch(at, gate_one_kernel, grid2(div_up(out.cols, kOneWarps), out.rows), kOneWarps * 32, 0, out, x, gates, ups,
         static_cast<const int32_t*>(expert.data), n_experts, act);
}
void grouped_sum_one(const Launch& at, Matrix into, Matrix x, const Packed* downs, int n_experts, Matrix expert, Matrix weight,
                     const HalfNorm& next) {
  launch(at, sum_one_kernel, grid2(div_up(into.cols, kOneWarps)), kOneWarps * 32, 0, into, x, downs,
         static_cast<const int32_t*>(expert.data), n_experts, static_cast<const float*>(weight.data), next);
}
void combine_into(const Launch& at, Matrix into, Matrix x, Matrix weight, const HalfNorm& next) {
  launch(at, combine_into_kernel, grid2(div_up(into.cols, 128), into.rows), 128, 0, into, x, weight, next);
}

}  // namespace mr::cuda
