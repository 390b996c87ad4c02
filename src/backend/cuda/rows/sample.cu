// Samples a token from a row of logits as backend/sample.cpp defines it; one block per row. No full sort: a histogram of counts and
// weights has 2048 bins of equal width below the largest logit; only the bin in which a target count or weight is reached is then
// gathered and sorted. Weights are integers (units of 2^-40 of the largest), so that sums do not depend on their order.
#include "backend/cuda/device/device.cuh"
#include "backend/cuda/rows/rows.h"
#include "core/random.h"

namespace mr::cuda {

namespace {

constexpr int kThreads = 1024;
constexpr int kBins = 2048;      // two per thread
constexpr int kMostHeld = 4096;  // most tokens sorted at a time
constexpr float kPerNat = 64;    // bins per nat: 32 nats in all, the last bin holds everything below
constexpr uint64_t kNone = ~uint64_t(0);

struct Best {
  float logit;
  int token;
  float sum;  // of exp(logit - largest)
};

__device__ Best merge(Best a, Best b) {
  bool first = a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
  Best best = first ? a : b, other = first ? b : a;
  best.sum += other.sum == 0 ? 0.0f : other.sum * __expf(other.logit - best.logit);
  return best;
}

// Calls f(logit, token) for a thread's share of a row.
template <class F>
__device__ void each_logit(const float* x, int n, F f) {
  if (n % 4 == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0) {
    for (int i = threadIdx.x * 4; i < n; i += kThreads * 4) {
      float4 v = *reinterpret_cast<const float4*>(x + i);
      f(v.x, i);
      f(v.y, i + 1);
      f(v.z, i + 2);
      f(v.w, i + 3);
    }
  } else {
    for (int i = threadIdx.x; i < n; i += kThreads) f(x[i], i);
  }
}

// The largest logit, its lowest id and the sum of exp, returned to every thread.
__device__ Best largest(const float* x, int n, Best* shared) {
  Best best{-INFINITY, INT32_MAX, 0};
  each_logit(x, n, [&](float v, int i) {
    if (v > best.logit) {
      best.sum = best.sum * __expf(best.logit - v) + 1;
      best.logit = v;
      best.token = i;
    } else if (v > -INFINITY) {
      best.sum += __expf(v - best.logit);
    }
  });
  auto over_warp = [&] {
    for (int i = 16; i; i >>= 1)
      best = merge(best, {__shfl_xor_sync(~0u, best.logit, i), __shfl_xor_sync(~0u, best.token, i), __shfl_xor_sync(~0u, best.sum, i)});
  };
  over_warp();
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = best;
  __syncthreads();
  best = shared[threadIdx.x % 32];
  over_warp();
  __syncthreads();
  return best;
}

__global__ void __launch_bounds__(kThreads) greedy_kernel(Matrix logits, const Out* out, Choice* choice, int32_t* sampled) {
  __shared__ Best shared[32];
  launch_next();
  wait_before();
  const int row = blockIdx.x;
  if (out && out[row] != Out::token) {
    if (threadIdx.x == 0) choice[row] = {-1, 0};
    return;
  }
  const Best best = largest(static_cast<const float*>(logits.data) + row * logits.stride, int(logits.cols), shared);
  if (threadIdx.x) return;
  int token = fabsf(best.logit) < INFINITY ? best.token : -1;
  choice[row] = {token, -logf(best.sum)};
  sampled[row] = token;
}

struct Shared {
  union {
    struct {
      uint32_t count[kBins], low[kBins], high[kBins];  // weights in two words
    };
    uint64_t held[kMostHeld];
  };
  Best best[32];
  uint64_t warp_weight[32];
  uint32_t warp_count[32];
  uint64_t found_weight, found_key;  // results of find() and pick()
  uint32_t found_count, n_held;
  int found_at;
};

// Order: larger logits first, then lower ids.
__device__ uint64_t key_of(float x, int id) {
  uint32_t bits = __float_as_uint(x == 0 ? 0.0f : x);
  bits = bits >> 31 ? bits : ~bits & 0x7fffffffu;
  return uint64_t(bits) << 32 | uint32_t(id);
}
__device__ int token_of(uint64_t key) { return int(uint32_t(key)); }
__device__ float logit_of(uint64_t key) {
  uint32_t bits = uint32_t(key >> 32);
  return __uint_as_float(bits >> 31 ? bits : ~bits & 0x7fffffffu);
}

struct Row {
  const float* x;
  int n;
  float max, factor;

  __device__ int bin(float v) const { return int(fminf((max - v) * factor * kPerNat, float(kBins - 1))); }
  __device__ uint64_t weight(float v) const { return uint64_t(expf((v - max) * factor) * 0x1p40f); }
};

// Exclusive prefix sums of (count, weight) over the threads of the block.
__device__ void running(Shared& s, uint32_t count, uint64_t weight, uint32_t& count_before, uint64_t& weight_before) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t c = count;
  uint64_t w = weight;
  for (int i = 1; i < 32; i <<= 1) {
    uint32_t other_c = __shfl_up_sync(~0u, c, i);
    uint64_t other_w = __shfl_up_sync(~0u, w, i);
    if (lane >= i) {
      c += other_c;
      w += other_w;
    }
  }
  __syncthreads();
  if (lane == 31) {
    s.warp_count[warp] = c;
    s.warp_weight[warp] = w;
  }
  __syncthreads();
  count_before = c - count;
  weight_before = w - weight;
  for (int i = 0; i < warp; i++) {
    count_before += s.warp_count[i];
    weight_before += s.warp_weight[i];
  }
}

// The token to find: the first at which the cumulative count, or weight, reaches the target.
struct Goal {
  uint32_t count;  // 0: by weight
  uint64_t weight;
  __device__ bool reached(uint32_t c, uint64_t w) const { return count ? c >= count : w >= weight; }
};

// Fills the bins with the tokens for which digit(x, id) is not negative.
template <class Digit>
__device__ void fill_bins(Shared& s, const Row& row, Digit digit) {
  __syncthreads();
  for (int i = threadIdx.x; i < kBins; i += kThreads) s.count[i] = s.low[i] = s.high[i] = 0;
  __syncthreads();
  each_logit(row.x, row.n, [&](float v, int i) {
    if (!(v > -INFINITY)) return;
    const int at = digit(v, i);
    if (at < 0) return;
    const uint64_t w = row.weight(v);
    const uint32_t low = uint32_t(w), before = low ? atomicAdd(&s.low[at], low) : 0;
    const uint32_t high = uint32_t(w >> 32) + (before + low < before);
    if (high) atomicAdd(&s.high[at], high);
    atomicAdd(&s.count[at], 1);
  });
  __syncthreads();
}

// The bin in which the goal is reached, or the last nonempty one; adds what precedes it to `count` and `weight`.
__device__ int find(Shared& s, const Goal& goal, uint32_t& count, uint64_t& weight, uint32_t& inside) {
  const int a = 2 * threadIdx.x, b = a + 1;
  auto weight_of = [&](int i) { return uint64_t(s.high[i]) << 32 | s.low[i]; };
  uint32_t c, ca = s.count[a], cb = s.count[b];
  uint64_t w, wa = weight_of(a), wb = weight_of(b);
  running(s, ca + cb, wa + wb, c, w);
  c += count;
  w += weight;
  if (threadIdx.x == 0) {
    s.found_at = INT32_MAX;
    s.n_held = 0;
  }
  __syncthreads();
  if (ca && goal.reached(c + ca, w + wa)) {
    atomicMin(&s.found_at, a);
  } else if (cb && goal.reached(c + ca + cb, w + wa + wb)) {
    atomicMin(&s.found_at, b);
  }
  if (ca + cb) atomicMax(&s.n_held, uint32_t(cb ? b : a));
  __syncthreads();
  const int at = s.found_at == INT32_MAX ? int(s.n_held) : s.found_at;
  if (a == at || b == at) {
    s.found_count = a == at ? c : c + ca;
    s.found_weight = a == at ? w : w + wa;
  }
  __syncthreads();
  count = s.found_count;
  weight = s.found_weight;
  inside = s.count[at];
  __syncthreads();
  return at;
}

// Gathers and sorts the tokens that `inside` accepts, at most kMostHeld.
template <class Inside>
__device__ void hold(Shared& s, const Row& row, Inside inside) {
  __syncthreads();
  if (threadIdx.x == 0) s.n_held = 0;
  __syncthreads();
  each_logit(row.x, row.n, [&](float v, int i) {
    if (v > -INFINITY && inside(v, i)) s.held[atomicAdd(&s.n_held, 1)] = key_of(v, i);
  });
  __syncthreads();
  int size = 2;
  while (size < int(s.n_held)) size *= 2;
  for (int i = s.n_held + threadIdx.x; i < size; i += kThreads) s.held[i] = kNone;
  for (int k = 2; k <= size; k *= 2)  // bitonic
    for (int j = k / 2; j; j /= 2) {
      __syncthreads();
      for (int i = threadIdx.x; i < size; i += kThreads) {
        const int other = i ^ j;
        if (other > i && (s.held[i] > s.held[other]) == ((i & k) == 0)) {
          const uint64_t t = s.held[i];
          s.held[i] = s.held[other];
          s.held[other] = t;
        }
      }
    }
  __syncthreads();
}

struct Found {
  uint64_t key;     // of the token at which the goal is reached, or the last token
  uint64_t weight;  // cumulative, including it
};

// Expects the bins of `row` in s.count, s.low and s.high, and overwrites them.
__device__ Found pick(Shared& s, const Row& row, const Goal& goal) {
  uint32_t count = 0, inside;
  uint64_t weight = 0, prefix = 0;
  const int bin = find(s, goal, count, weight, inside);
  int shift = 64;  // bits of the key below the prefix
  while (inside > kMostHeld) {
    const int next = shift > 11 ? shift - 11 : 0, mask = (1 << (shift - next)) - 1;
    fill_bins(s, row, [&](float v, int i) {
      const uint64_t key = key_of(v, i);
      return row.bin(v) == bin && (shift == 64 || key >> shift == prefix) ? int(key >> next) & mask : -1;
    });
    const int digit = find(s, goal, count, weight, inside);
    prefix = (shift == 64 ? 0 : prefix << (shift - next)) | uint64_t(digit);
    shift = next;
  }
  hold(s, row, [&](float v, int i) { return row.bin(v) == bin && (shift == 64 || key_of(v, i) >> shift == prefix); });
  constexpr int kEach = kMostHeld / kThreads;
  const int n = int(s.n_held), first = threadIdx.x * kEach;
  uint64_t keys[kEach], weights[kEach], sum = 0, w;
  uint32_t own = 0, c;
#pragma unroll
  for (int i = 0; i < kEach; i++) {
    keys[i] = first + i < n ? s.held[first + i] : kNone;
    weights[i] = keys[i] != kNone ? row.weight(logit_of(keys[i])) : 0;
    sum += weights[i];
    own += keys[i] != kNone;
  }
  running(s, own, sum, c, w);
  if (threadIdx.x == 0) s.found_at = n - 1;
  __syncthreads();
  c += count;
  w += weight;
  uint64_t up_to[kEach];
#pragma unroll
  for (int i = 0; i < kEach; i++) {
    c += 1;
    w += weights[i];
    up_to[i] = w;
    if (first + i < n && goal.reached(c, w)) atomicMin(&s.found_at, first + i);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kEach; i++)
    if (first + i == s.found_at) {
      s.found_key = keys[i];
      s.found_weight = up_to[i];
    }
  __syncthreads();
  const Found found{s.found_key, s.found_weight};
  __syncthreads();
  return found;
}

// Applies the row's edits; the original logits are saved in `unchanged`.
__device__ void edit_logits(float* x, const SampleRow& row, const LogitEdit* edits, float* unchanged) {
  for (int i = threadIdx.x; i < row.n_edits; i += kThreads) {
    const LogitEdit e = edits[row.edit_begin + i];
    float v = x[e.token];
    unchanged[row.edit_begin + i] = v;
    if (e.seen) v = v > 0 ? __fdiv_rn(v, row.repetition_penalty) : __fmul_rn(v, row.repetition_penalty);
    v = __fsub_rn(v, __fmul_rn(float(e.n_generated), row.frequency_penalty));
    if (e.n_generated > 0) v = __fsub_rn(v, row.presence_penalty);
    x[e.token] = __fadd_rn(v, e.bias);
  }
}

__device__ int draw(Shared& s, const Row& row, const SampleRow& how) {
  const double u = uniform(how.seed, uint32_t(how.choice), uint32_t(how.position));
  auto fill = [&] { fill_bins(s, row, [&](float v, int) { return row.bin(v); }); };
  uint64_t total = 0, above = 0;  // above: weight of the tokens that pass min_p
  if (how.min_p > 0) {
    each_logit(row.x, row.n, [&](float v, int) {
      if (v > -INFINITY && expf((v - row.max) * row.factor) >= how.min_p) above += row.weight(v);
    });
    for (int i = 16; i; i >>= 1) above += __shfl_xor_sync(~0u, above, i);
    __syncthreads();
    if (threadIdx.x % 32 == 0) s.warp_weight[threadIdx.x / 32] = above;
    __syncthreads();
    above = 0;
    for (int i = 0; i < 32; i++) above += s.warp_weight[i];
    __syncthreads();
  }
  fill();
  if (how.top_k > 0 && how.top_k < row.n) {
    total = pick(s, row, {uint32_t(how.top_k), 0}).weight;
    fill();
  } else {
    uint32_t count;
    uint64_t before, own = 0;
    for (int i = 2 * threadIdx.x; i < 2 * int(threadIdx.x) + 2; i++) own += uint64_t(s.high[i]) << 32 | s.low[i];
    running(s, 0, own, count, before);
    if (threadIdx.x == kThreads - 1) s.found_weight = before + own;
    __syncthreads();
    total = s.found_weight;
    __syncthreads();
  }
  uint64_t mass = total;
  if (how.top_p < 1) {
    const double least = double(how.top_p) * double(total);
    mass = pick(s, row, {0, least > 0 ? uint64_t(ceil(least)) : 0}).weight;
    fill();
  }
  if (how.min_p > 0) mass = min(mass, max(above, row.weight(row.max)));
  uint64_t target = uint64_t(u * double(mass));
  return token_of(pick(s, row, {0, min(target + 1, mass)}).key);
}

__global__ void __launch_bounds__(kThreads) sample_kernel(SampleCall call) {
  extern __shared__ __align__(16) char raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw);
  launch_next();
  wait_before();
  const int at = blockIdx.x, n = int(call.logits.cols);
  if (call.out[at] != Out::token) {
    if (threadIdx.x == 0) call.choice[at] = {-1, 0};
    return;
  }
  const SampleRow how = call.row[at];
  float* x = static_cast<float*>(call.logits.data) + at * call.logits.stride;
  Best best = largest(x, n, s.best);
  const float all = best.logit + logf(best.sum);
  const int n_top = min(min(how.n_logprobs, kMostTop), n);
  if (n_top > 0 && fabsf(best.logit) < INFINITY) {
    const Row row{x, n, best.logit, 1};
    fill_bins(s, row, [&](float v, int) { return row.bin(v); });
    const uint64_t last = pick(s, row, {uint32_t(n_top), 0}).key;
    hold(s, row, [&](float v, int i) { return key_of(v, i) <= last; });
    if (threadIdx.x < kMostTop)
      call.top[at * kMostTop + threadIdx.x] =
          threadIdx.x < s.n_held ? TopToken{token_of(s.held[threadIdx.x]), logit_of(s.held[threadIdx.x]) - all} : TopToken{-1, 0};
    __syncthreads();
  }
  const int mask_row = call.mask_row ? call.mask_row[at] : -1;
  edit_logits(x, how, call.edit, call.unchanged);
  __syncthreads();
  if (mask_row >= 0) {
    const uint32_t* mask = call.mask + int64_t(mask_row) * ((n + 31) / 32);
    for (int i = threadIdx.x; i < n; i += kThreads)
      if (!(mask[i / 32] >> (i % 32) & 1)) x[i] = -INFINITY;
    __syncthreads();
  }
  if (mask_row >= 0 || how.n_edits) best = largest(x, n, s.best);
  int token = fabsf(best.logit) < INFINITY ? best.token : -1;
  if (token >= 0 && how.temperature > 0) token = draw(s, {x, n, best.logit, 1 / how.temperature}, how);
  if (threadIdx.x == 0) {
    call.choice[at] = {token, token < 0 ? 0.0f : x[token] - all};
    call.sampled[at] = token;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < how.n_edits; i += kThreads)
    if (token >= 0 && call.edit[how.edit_begin + i].token == token) call.choice[at].logprob = call.unchanged[how.edit_begin + i] - all;
}

__global__ void fill_random_kernel(bf16* to, int64_t n, uint64_t seed, float spread) {
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x) {
    uint64_t z = seed + 0x9e3779b97f4a7c15u * uint64_t(i + 1);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    to[i] = __float2bfloat16(spread * (float(int64_t(z ^ (z >> 31)) >> 40) * 0x1p-23f));
  }
}

}  // namespace

void greedy(const Launch& at, Matrix logits, const Out* out, Choice* choice, int32_t* sampled) {
  launch(at, greedy_kernel, grid2(logits.rows), kThreads, 0, logits, out, choice, sampled);
}

void sample(const Launch& at, const SampleCall& call) {
  launch(at, sample_kernel, grid2(call.logits.rows), kThreads, sizeof(Shared), call);
}

void fill_random(const Launch& at, void* to, int64_t n, uint64_t seed, float spread) {
  launch_after_all(at, fill_random_kernel, at.n_sm * 8, 256, static_cast<bf16*>(to), n, seed, spread);
}

}  // namespace mr::cuda
