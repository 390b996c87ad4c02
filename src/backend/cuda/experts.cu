// Experts: the choice of a few for every row, their products, and the weighted sum.
#include "backend/cuda/few_rows.cuh"

namespace mr::cuda {

namespace {

// One warp a row: k times the largest that is left, ties to the lower id. A chosen logit becomes NaN.
__global__ void route_kernel(Matrix expert, Matrix weight, Matrix logits, bool renormalize) {
  launch_next();
  wait_before();
  const int row = blockIdx.x, lane = threadIdx.x, n = int(logits.cols), k = int(expert.cols);
  float* x = static_cast<float*>(logits.data) + row * logits.stride;
  float largest = 0, total = 0;
  for (int j = 0; j < k; j++) {
    float best = -INFINITY;
    int id = n;
    for (int i = lane; i < n; i += 32)
      if (x[i] > best || (x[i] == best && i < id)) best = x[i], id = i;
    for (int d = 16; d; d >>= 1) {
      float other = __shfl_xor_sync(~0u, best, d);
      int other_id = __shfl_xor_sync(~0u, id, d);
      if (other > best || (other == best && other_id < id)) best = other, id = other_id;
    }
    if (j == 0) {
      largest = best;
      for (int i = lane; i < n && !renormalize; i += 32) total += expf(x[i] - largest);
      total = warp_sum(total);
    }
    if (renormalize) total += expf(best - largest);
    if (lane == 0) {
      static_cast<int32_t*>(expert.data)[row * expert.stride + j] = id;
      static_cast<float*>(weight.data)[row * weight.stride + j] = expf(best - largest);
    }
    __syncwarp();
    if (lane == 0 && id < n) x[id] = NAN;
    __syncwarp();
  }
  for (int j = lane; j < k; j += 32) static_cast<float*>(weight.data)[row * weight.stride + j] /= total;
}

// Any shape, slowly: one warp an output of a pair of row and expert.
__global__ void grouped_any_kernel(Matrix out, Matrix x, const Packed* experts, int64_t in, Matrix expert) {
  launch_next();
  wait_before();
  const int64_t pair = blockIdx.y, k = expert.cols, t = pair / k, col = int64_t(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (col >= out.cols) return;
  const int32_t e = static_cast<const int32_t*>(expert.data)[t * expert.stride + pair % k];
  const int64_t from = (x.rows == out.rows ? pair : t) * x.stride, lane = threadIdx.x % 32;
  float sum = 0;
  for (int64_t i = lane; i < in; i += 32) sum += load(x.data, x.dtype, from + i) * load(experts[e].quants, DType::bf16, col * in + i);
  sum = warp_sum(sum);
  if (lane == 0) store(out.data, out.dtype, pair * out.stride + col, sum);
}

// One block an expert: its pairs in order, and the groups of at most `most` that they make. counts [n_experts].
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

__global__ void combine_kernel(Matrix out, Matrix x, Matrix weight) {
  launch_next();
  wait_before();
  const int64_t t = blockIdx.y, i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, k = weight.cols;
  if (i >= out.cols) return;
  float sum = 0;
  for (int64_t j = 0; j < k; j++)
    sum += static_cast<const float*>(weight.data)[t * weight.stride + j] * load(x.data, x.dtype, (t * k + j) * x.stride + i);
  store(out.data, out.dtype, t * out.stride + i, sum);
}

}  // namespace

void route(const Launch& at, Matrix expert, Matrix weight, Matrix logits, bool renormalize) {
  launch(at, route_kernel, grid2(logits.rows), 32, 0, expert, weight, logits, renormalize);
}
void grouped_any(const Launch& at, Matrix out, Matrix x, const Packed* experts, int64_t in, Matrix expert) {
  launch(at, grouped_any_kernel, grid2(div_up(out.cols, 8), out.rows), 256, 0, out, x, experts, in, expert);
}

GroupPlan group_plan(const Launch& at, int64_t n_pairs, int64_t n_experts) {
  const int64_t each = n_pairs / n_experts;
  GroupPlan plan;
  plan.most = each <= 4 ? 8 : each <= 8 ? 16 : each <= 24 ? 32 : 64;
  if (at.deterministic) plan.most = std::min(plan.most, 16);  // more would share the inputs among fewer warps
  plan.n_tiles = std::min(n_pairs, n_experts) + n_pairs / plan.most;
  plan.listed = n_pairs > 128;
  return plan;
}

void grouped(const Launch& at, Matrix out, Matrix x, const Packed& shape, const Packed* experts, int n_experts, Matrix expert,
             const GroupPlan& plan) {
  Groups g{experts,           static_cast<const int32_t*>(expert.data), expert.stride, int(expert.cols), int(out.rows), n_experts,
           x.rows == out.rows};
  if (plan.listed) {
    launch(at, group_kernel, grid2(n_experts), kGroupWarps * 32, size_t(n_experts) * 4, plan.tile, plan.n_listed, plan.pairs, g, plan.most);
    g.tile = plan.tile, g.n_tiles = plan.n_listed, g.pairs = plan.pairs;
  }
  Product p;
  p.out = shape.out, p.in = shape.in, p.x = x, p.y = out;
  auto run = [&](auto f) {
    if (plan.most == 8) return few_rows<f(), 1, 1, 16, true>(at, p, shape, plan.n_tiles, g);
    if (plan.most == 16) return few_rows<f(), 2, 2, 16, true>(at, p, shape, plan.n_tiles, g);
    if (plan.most == 32) return few_rows<f(), 4, 2, 8, true>(at, p, shape, plan.n_tiles, g);
    few_rows<f(), 8, 2, 8, true>(at, p, shape, plan.n_tiles, g);
  };
  if (shape.packing == Packing::bf16) return run(std::integral_constant<Packing, Packing::bf16>{});
  by_packing(shape.packing, run);
}
void combine(const Launch& at, Matrix out, Matrix x, Matrix weight) {
  launch(at, combine_kernel, grid2(div_up(out.cols, 256), out.rows), 256, 0, out, x, weight);
}

}  // namespace mr::cuda
