// Attention for any head size, stored type and corner: one warp per row and head, key by key. For shapes that the fast kernels do
// not support.
#include "backend/cuda/attention/pages.cuh"

namespace mr::cuda {

namespace {

constexpr int kMost = 32;  // dimensions per lane: heads of up to 1024

__global__ void any_kernel(AttendCall call) {
  launch_next();
  wait_before();
  const int row = blockIdx.x, head = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (head >= call.heads) return;
  const Spots& s = call.spots;
  int seq = 0;
  while (s.row_begin[seq + 1] <= row) seq++;
  const Pages& p = call.pages;
  const int first = s.row_begin[seq], context = s.context[seq], n = context + s.row_begin[seq + 1] - first;
  const int kv_head = head / (call.heads / p.kv_heads);
  const int64_t v_offset = int64_t(p.kv_heads) * p.page_tokens * p.k_dim;
  float q[kMost], o[kMost], m = call.sinks ? call.sinks[head] : -INFINITY, l = call.sinks ? 1.0f : 0.0f;
#pragma unroll
  for (int i = 0; i < kMost; i++) {
    q[i] = lane + 32 * i < p.k_dim ? load(call.q.data, call.q.dtype, row * call.q.stride + head * call.q.head_stride + lane + 32 * i) : 0;
    o[i] = 0;
  }
  for (int j = 0; j < n; j++) {
    if (!sees(s, seq, row, first, context, j, call.window)) continue;
    const std::byte* page = p.base + p.unit[p.begin[seq] + j / p.page_tokens] * p.unit_bytes;
    const int64_t at = int64_t(kv_head) * p.page_tokens + j % p.page_tokens;
    float dot = 0;
#pragma unroll
    for (int i = 0; i < kMost; i++)
      if (lane + 32 * i < p.k_dim) dot += q[i] * load(page, p.dtype, at * p.k_dim + lane + 32 * i);
    dot = warp_sum(dot) * call.scale;
    if (call.softcap != 0) dot = call.softcap * tanhf(dot / call.softcap);
    float most = fmaxf(m, dot), shrink = expf(m - most), weight = expf(dot - most);
    m = most;
    l = l * shrink + weight;
#pragma unroll
    for (int i = 0; i < kMost; i++)
      if (lane + 32 * i < p.v_dim) o[i] = o[i] * shrink + weight * load(page, p.dtype, v_offset + at * p.v_dim + lane + 32 * i);
  }
#pragma unroll
  for (int i = 0; i < kMost; i++)
    if (lane + 32 * i < p.v_dim)
      store(call.out.data, call.out.dtype, row * call.out.stride + head * call.out.head_stride + lane + 32 * i, o[i] / l);
}

}  // namespace

void attend_any(const Launch& at, const AttendCall& call) {
  launch(at, any_kernel, grid2(call.spots.n_tokens, div_up(call.heads, 4)), 128, 0, call);
}

}  // namespace mr::cuda
