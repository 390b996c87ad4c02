// Routing of one row whose norm is half done; every block of a chain computes it redundantly.
#pragma once

#include "backend/cuda/chain/steps.h"
#include "backend/cuda/gemm/choose.cuh"

namespace mr::cuda {

constexpr int kMostChosen = 8, kMostExperts = 32, kRouterAhead = 8;  // ahead: vectors of eight inputs prefetched per thread before wait()

struct Chosen {
  int32_t expert[kMostChosen];
  float weight[kMostChosen];
};

inline bool can_chain_route(const RouteStep& s) {
  return s.call.n_experts <= kMostExperts && s.call.expert.cols <= kMostChosen && s.call.x.cols % 8 == 0;
}

// wait() returns when the previous steps are done; meet() is a barrier of the block's eight worker warps, which compute one expert each
// at a time. logits: scratch [n_experts]; the block writes inputs [begin, end) of the normalized row, block 0 also the choice.
template <class Wait, class Meet>
__device__ void route_one(float* logits, Chosen& choice, const RouteStep& s, int begin, int end, Wait wait, Meet meet) {
  const RouteCall& r = s.call;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n = int(r.x.cols);
  const bf16 *router = static_cast<const bf16*>(r.router) + lane * 8, *x = static_cast<const bf16*>(s.x) + lane * 8;
  uint4 ahead[kRouterAhead];  // prefetched weights of this warp's first expert
#pragma unroll
  for (int i = 0; i < kRouterAhead; i++)
    if (warp < r.n_experts && i * 256 + lane * 8 < n) ahead[i] = stream16(router + int64_t(warp) * n + i * 256);
  wait();
  float squares = 0;
  for (int i = lane; i < int(s.n_squares); i += 32) squares += __ldcg(s.squares + i);
  auto input = [&](int i, float(&v)[8]) {
    const uint4 a = __ldcg(reinterpret_cast<const uint4*>(x + i));
    v[0] = low(a.x);
    v[1] = high(a.x);
    v[2] = low(a.y);
    v[3] = high(a.y);
    v[4] = low(a.z);
    v[5] = high(a.z);
    v[6] = low(a.w);
    v[7] = high(a.w);
  };
  const float by = rsqrtf(warp_sum(squares) / float(n) + r.eps);
  for (int e = warp; e < r.n_experts; e += 8) {
    float logit = 0, v[8];
#pragma unroll
    for (int i = 0; i < kRouterAhead; i++)
      if (i * 256 + lane * 8 < n) {
        input(i * 256, v);
        logit = dot8(e == warp ? ahead[i] : stream16(router + int64_t(e) * n + i * 256), v, logit);
      }
    for (int i = kRouterAhead * 256; i + lane * 8 < n; i += 256) {
      input(i, v);
      logit = dot8(stream16(router + int64_t(e) * n + i), v, logit);
    }
    logit = warp_sum(logit);
    if (lane == 0) logits[e] = logit * by;
  }
  meet();
  const int k = int(r.expert.cols);
  if (warp == 0) {
    choose(logits, r.n_experts, k, choice.expert, choice.weight, r.renormalize);
    __syncwarp();
    if (blockIdx.x == 0 && lane < k) {
      static_cast<int32_t*>(r.expert.data)[lane] = choice.expert[lane];
      static_cast<float*>(r.weight.data)[lane] = choice.weight[lane];
    }
  } else {
    const bf16* all = static_cast<const bf16*>(s.x);
    for (int i = begin + int(threadIdx.x) - 32; i < end; i += 224)
      static_cast<bf16*>(r.normed.data)[i] = __float2bfloat16(by * low(__ldcg(reinterpret_cast<const uint16_t*>(all + i))));
  }
}

}  // namespace mr::cuda
