// Operations over rows. Each reads its operands once and writes its result once; all are bound by memory bandwidth.
#include <algorithm>

#include "backend/cuda/device/device.cuh"
#include "backend/cuda/rows/rows.h"

namespace mr::cuda {

namespace {

constexpr int kThreads = 256;

// One block per row.
template <int V>
__global__ void embed_rows(Matrix out, const bf16* table, int64_t table_rows, int64_t in, float scale, const int32_t* token,
                           const int32_t* sampled) {
  launch_next();
  wait_before();
  int32_t id = token[blockIdx.x];
  if (id < 0) id = max(0, sampled[-1 - id]);  // a row without finite logits has none
  if (id >= table_rows) id = 0;
  for (int64_t i = threadIdx.x * V; i < in; i += blockDim.x * V) {
    float x[V];
    load_n<V>(table, DType::bf16, id * in + i, x);
    for (float& v : x) v *= scale;
    store_n<V>(out.data, out.dtype, blockIdx.x * out.stride + i, x);
  }
}

// The sum over the block, returned to every thread, with one barrier: `shared` holds one sum per warp, and may not be reused before
// another barrier.
__device__ float block_sum_once(float x, float* shared) {
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < kThreads / 32; w++) sum += shared[w];
  return sum;
}

// A block holds a vector of at most 8 * kThreads * kHold elements in registers and prefetches its next one meanwhile; the weight is
// read once.
template <int kHold>
__global__ void __launch_bounds__(kThreads)
    norm_held(Heads out, Heads x, Norm::Kind kind, float eps, const float* weight, const float* bias, float offset) {
  __shared__ float shared[3][kThreads / 32];
  launch_next();
  const bool layer = kind == Norm::Kind::layer;
  const int64_t n = x.dim, n_vectors = x.rows * x.heads;
  float v[kHold][8], next[kHold][8], w[kHold][8];
  auto each = [&](auto f) {
#pragma unroll
    for (int h = 0; h < kHold; h++) {
      const int64_t i = (h * kThreads + threadIdx.x) * 8;
      if (i < n) f(h, i);
    }
  };
  auto prefetch = [&](int64_t vector) {
    const int64_t from = vector / x.heads * x.stride + vector % x.heads * x.head_stride;
    each([&](int h, int64_t i) { load_n<8>(x.data, x.dtype, from + i, next[h]); });
  };
  if (weight) each([&](int h, int64_t i) { load_n<8>(weight, DType::f32, i, w[h]); });  // constant: no need to wait for earlier kernels
  wait_before();
  prefetch(blockIdx.x);
  int turn = 0;
  for (int64_t vector = blockIdx.x; vector < n_vectors; vector += gridDim.x, turn ^= 1) {
    each([&](int h, int64_t) {
      for (int e = 0; e < 8; e++) v[h][e] = next[h][e];
    });
    if (vector + gridDim.x < n_vectors) prefetch(vector + gridDim.x);
    float sum = 0, mean = 0;
    if (layer) {
      each([&](int h, int64_t) {
        for (float e : v[h]) sum += e;
      });
      mean = block_sum_once(sum, shared[2]) / float(n);
      sum = 0;
    }
    each([&](int h, int64_t) {
      for (float e : v[h]) sum += (e - mean) * (e - mean);
    });
    const float inverse = kind == Norm::Kind::none ? 1.0f : rsqrtf(block_sum_once(sum, shared[turn]) / float(n) + eps);
    const int64_t to = vector / x.heads * out.stride + vector % x.heads * out.head_stride;
    each([&](int h, int64_t i) {
      float b[8];
      if (bias) load_n<8>(bias, DType::f32, i, b);
      for (int e = 0; e < 8; e++) v[h][e] = (v[h][e] - mean) * inverse * (weight ? offset + w[h][e] : 1.0f) + (bias ? b[e] : 0.0f);
      store_n<8>(out.data, out.dtype, to + i, v[h]);
    });
  }
}

// Any shape: one block a vector, which is read twice (layer norms: three times).
__global__ void norm_any(Heads out, Heads x, Norm::Kind kind, float eps, const float* weight, const float* bias, float offset) {
  __shared__ float shared[32];
  launch_next();
  wait_before();
  const int64_t row = blockIdx.x / x.heads, head = blockIdx.x % x.heads, n = x.dim;
  const int64_t from = row * x.stride + head * x.head_stride, to = row * out.stride + head * out.head_stride;
  float mean = 0, sum = 0;
  if (kind == Norm::Kind::layer) {
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) sum += load(x.data, x.dtype, from + i);
    mean = block_sum(sum, shared) / float(n);
    sum = 0;
  }
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    float e = load(x.data, x.dtype, from + i) - mean;
    sum += e * e;
  }
  float inverse = kind == Norm::Kind::none ? 1.0f : rsqrtf(block_sum(sum, shared) / float(n) + eps);
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    float y = (load(x.data, x.dtype, from + i) - mean) * inverse * (weight ? offset + weight[i] : 1.0f) + (bias ? bias[i] : 0.0f);
    store(out.data, out.dtype, to + i, y);
  }
}

// One block a row.
__global__ void __launch_bounds__(kThreads) magnitude_rows(Matrix out, Matrix x, Magnitude what) {
  __shared__ float shared[32];
  launch_next();
  wait_before();
  const int64_t from = blockIdx.x * x.stride;
  float mean = 0, sum = 0;
  if (what.centered) {
    for (int64_t i = threadIdx.x; i < x.cols; i += blockDim.x) sum += load(x.data, x.dtype, from + i);
    mean = block_sum(sum, shared) / float(x.cols);
    sum = 0;
  }
  for (int64_t i = threadIdx.x; i < x.cols; i += blockDim.x) {
    const float e = load(x.data, x.dtype, from + i) - mean;
    sum += e * e;
  }
  const float square = fmaxf(block_sum(sum, shared) / float(x.cols), what.floor);
  if (threadIdx.x == 0) static_cast<float*>(out.data)[blockIdx.x * out.stride] = what.inverse ? rsqrtf(square) : sqrtf(square);
}

// A thread makes one column of every stream of its row: what it overwrites nobody else reads.
__global__ void __launch_bounds__(kThreads) combine_streams(Heads out, Heads x, Matrix weight, bool add) {
  launch_next();
  wait_before();
  const int64_t t = blockIdx.x, i = int64_t(blockIdx.y) * kThreads + threadIdx.x;
  if (i >= x.dim) return;
  const float* w = static_cast<const float*>(weight.data) + t * weight.stride;
  for (int64_t n = 0; n < out.heads; n++, w += x.heads) {
    const int64_t to = t * out.stride + n * out.head_stride + i;
    float sum = add ? load(out.data, out.dtype, to) : 0.0f;
    for (int64_t j = 0; j < x.heads; j++) sum += w[j] * load(x.data, x.dtype, t * x.stride + j * x.head_stride + i);
    store(out.data, out.dtype, to, sum);
  }
}

// f(row, column of the first of V elements); a grid of (columns, rows).
template <int V, class F>
__global__ void __launch_bounds__(kThreads) each_element(int64_t cols, F f) {
  launch_next();
  wait_before();
  int64_t i = (int64_t(blockIdx.x) * kThreads + threadIdx.x) * V;
  if (i < cols) f(int64_t(blockIdx.y), i);
}

template <int V, class F>
void for_each(const Launch& at, int64_t rows, int64_t cols, F f) {
  constexpr int64_t most = 65535;  // of a grid's second dimension
  for (; f.first < rows; f.first += most)
    launch(at, each_element<V, F>, grid2(div_up(cols, int64_t(kThreads) * V), std::min(rows - f.first, most)), kThreads, 0, cols, f);
}

struct Shift {
  int64_t first = 0;
};

template <int V>
struct Add : Shift {
  Matrix into, x;
  float scale;
  __device__ void operator()(int64_t row, int64_t i) const {
    row += first;
    float a[V], b[V];
    load_n<V>(into.data, into.dtype, row * into.stride + i, a);
    load_n<V>(x.data, x.dtype, row * x.stride + i, b);
    for (int e = 0; e < V; e++) a[e] += scale * b[e];
    store_n<V>(into.data, into.dtype, row * into.stride + i, a);
  }
};

template <int V>
struct Gate : Shift {
  Matrix out, gate, up;
  Activation act;
  __device__ void operator()(int64_t row, int64_t i) const {
    row += first;
    float a[V], b[V];
    load_n<V>(gate.data, gate.dtype, row * gate.stride + i, a);
    load_n<V>(up.data, up.dtype, row * up.stride + i, b);
    for (int e = 0; e < V; e++) a[e] = activated(act, a[e]) * b[e];
    store_n<V>(out.data, out.dtype, row * out.stride + i, a);
  }
};

// out = g(x): activations, softcaps, conversions, gathered rows.
enum class Map : uint8_t { copy, activate, softplus, softcap };
template <int V>
struct Apply : Shift {
  Matrix out, x;
  Map map;
  Activation act;
  const float* bias;
  float cap;
  const int32_t* from_row;
  __device__ float value(float v, int64_t i) const {
    if (map == Map::activate) return activated(act, v);
    if (map == Map::softcap) return cap * tanhf(v / cap);
    if (map == Map::softplus) return softplus_of(v + (bias ? bias[i] : 0.0f));
    return v;
  }
  __device__ void operator()(int64_t row, int64_t i) const {
    row += first;
    float a[V];
    load_n<V>(x.data, x.dtype, (from_row ? from_row[row] : row) * x.stride + i, a);
    for (int e = 0; e < V; e++) a[e] = value(a[e], i + e);
    store_n<V>(out.data, out.dtype, row * out.stride + i, a);
  }
};

void apply(const Launch& at, Matrix out, Matrix x, Map map, Activation act, const float* bias, float cap, const int32_t* from_row) {
  if (by_eight(out) && by_eight(x)) {
    for_each<8>(at, out.rows, out.cols, Apply<8>{{}, out, x, map, act, bias, cap, from_row});
  } else {
    for_each<1>(at, out.rows, out.cols, Apply<1>{{}, out, x, map, act, bias, cap, from_row});
  }
}

}  // namespace

void embed(const Launch& at, Matrix out, const void* table, int64_t table_rows, int64_t in, float scale, const int32_t* token,
           const int32_t* sampled) {
  auto kernel = in % 8 == 0 && by_eight(out) ? embed_rows<8> : embed_rows<1>;
  launch(at, kernel, grid2(out.rows), kThreads, 0, out, static_cast<const bf16*>(table), table_rows, in, scale, token, sampled);
}

void norm(const Launch& at, Heads out, Heads x, Norm::Kind kind, float eps, const float* weight, const float* bias, float offset) {
  const bool held = x.dim <= 8 * kThreads * 4 && by_eight(x.data, x.dtype, x.dim, x.stride) &&
                    by_eight(out.data, out.dtype, x.dim, out.stride) && x.head_stride % 8 == 0 && out.head_stride % 8 == 0 &&
                    reinterpret_cast<uintptr_t>(weight) % 16 == 0 && reinterpret_cast<uintptr_t>(bias) % 16 == 0;
  auto kernel = !held ? norm_any : x.dim <= 8 * kThreads ? norm_held<1> : x.dim <= 8 * kThreads * 2 ? norm_held<2> : norm_held<4>;
  const int64_t most = int64_t(at.n_sm) * (x.dim <= 8 * kThreads * 2 ? 3 : 2), vectors = x.rows * x.heads;  // blocks at a time
  launch(at, kernel, grid2(held && vectors > 2 * most ? most : vectors), kThreads, 0, out, x, kind, eps, weight, bias, offset);
}

void add(const Launch& at, Matrix into, Matrix x, float scale) {
  if (by_eight(into) && by_eight(x)) {
    for_each<8>(at, into.rows, into.cols, Add<8>{{}, into, x, scale});
  } else {
    for_each<1>(at, into.rows, into.cols, Add<1>{{}, into, x, scale});
  }
}

void combine(const Launch& at, Heads out, Heads x, Matrix weight, bool add) {
  launch(at, combine_streams, grid2(x.rows, div_up(x.dim, int64_t(kThreads))), kThreads, 0, out, x, weight, add);
}
void magnitude(const Launch& at, Matrix out, Matrix x, const Magnitude& what) {
  launch(at, magnitude_rows, grid2(x.rows), kThreads, 0, out, x, what);
}

void gate(const Launch& at, Matrix out, Matrix gate, Matrix up, Activation act) {
  if (by_eight(out) && by_eight(gate) && by_eight(up)) {
    for_each<8>(at, out.rows, out.cols, Gate<8>{{}, out, gate, up, act});
  } else {
    for_each<1>(at, out.rows, out.cols, Gate<1>{{}, out, gate, up, act});
  }
}

void activate(const Launch& at, Matrix x, Activation act) { apply(at, x, x, Map::activate, act, nullptr, 0, nullptr); }
void softplus(const Launch& at, Matrix x, const float* bias) { apply(at, x, x, Map::softplus, Activation::none, bias, 0, nullptr); }
void softcap(const Launch& at, Matrix x, float cap) { apply(at, x, x, Map::softcap, Activation::none, nullptr, cap, nullptr); }
void convert(const Launch& at, Matrix out, Matrix x) { apply(at, out, x, Map::copy, Activation::none, nullptr, 0, nullptr); }
void gather(const Launch& at, Matrix out, Matrix x, const int32_t* out_row) {
  apply(at, out, x, Map::copy, Activation::none, nullptr, 0, out_row);
}

}  // namespace mr::cuda
