// Products of many rows with a bf16 weight, at the peak of Hopper's tensor cores. Persistent blocks: clusters of two take tiles of
// 256 rows of x and 192 to 256 of the weight in turn, each block 128 rows of x, and each multicasts half of the weights to both. A
// producer thread issues bulk tensor copies into a ring, two warpgroups multiply 64 rows each. Gate and up of an output are in one
// tile: act(gate) * up is formed in registers. f32 sums are added to the residual stream by reductions in L2. A row's sum is that of
// product(): chunks of the inputs in order, in the same number of parts.
// Flops: 2 * rows * out * in.
#include <algorithm>

#include "backend/cuda/device/tensor_map.cuh"
#include "backend/cuda/device/wgmma.cuh"
#include "backend/cuda/gemm/norm_factors.cuh"

namespace mr::cuda {

namespace {

constexpr int kChunk = 64, kRows = 128, kStages = 4;        // inputs per stage; rows per block
constexpr int kGroups = 2, kThreads = (kGroups + 1) * 128;  // warpgroups that multiply, and the producer's
constexpr int kBox = 16;                                    // rows per copy in a block with fewer than kRows rows
constexpr int kBand = 8;                                    // times 256 rows, whose x stays in L2 while all weights stream through

// kOuts: outputs per cluster, fewer than 256 if that leaves fewer multiprocessors idle.
template <int kOuts>
struct Form {
  static constexpr int x = kRows * 128, weight = kOuts * 128, stage = x + weight;
  static constexpr int columns = kOuts / 4, pitch = columns * 2;  // of a box of results; pitch: row bytes, swizzled if 128
  static constexpr int box = 64 * pitch;
  static constexpr int bytes = kStages * stage + 2 * kGroups * box + 1024;  // two boxes per group
};

struct Order {
  int tiles, parts;  // of kOuts outputs (gated: half of that), of 256 rows
  int band;          // parts per band
  int split;         // parts of the inputs, summed in order
  int shares;        // split-K: shares of the inputs that different clusters add to the residual stream
  int n_clusters;
  __device__ int n() const { return tiles * parts * shares; }
};

// The index-th piece of work.
struct Place {
  int tile, part, begin, end;  // begin, end: chunks of the inputs
  __device__ Place(const Order& o, int index, int n_chunks) {
    const int share = index / (o.tiles * o.parts), span = (n_chunks + o.shares - 1) / o.shares;
    index %= o.tiles * o.parts;
    const int in_band = o.band * o.tiles, band = index / in_band, in = index % in_band, high = min(o.band, o.parts - band * o.band);
    tile = in / high;
    part = band * o.band + in % high;
    begin = share * span;
    end = min(begin + span, n_chunks);
  }
};

__device__ void store_box(const CUtensorMap& map, int column, int row, uint32_t from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(column), "r"(row), "r"(from)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Four 8 x 8 matrices of bf16; lane l passes the address of row l % 8 of matrix l / 8.
__device__ void store_matrices(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
__device__ void store_matrices(uint32_t to, uint32_t a, uint32_t b) {  // two of them
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(a), "r"(b) : "memory");
}
__device__ void add_to(float* to, float4 v) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}

// The producer, one thread: issues all copies.
template <int kOuts>
__device__ void produce(const CUtensorMap& weight_map, const CUtensorMap& x_map, const CUtensorMap& few_map, const Product& p,
                        const Order& order, uint32_t base, uint64_t* full, uint64_t* empty) {
  constexpr int kStage = Form<kOuts>::stage, kX = Form<kOuts>::x, kWeight = Form<kOuts>::weight;
  const int member = int(blockIdx.x) % 2, n_chunks = (int(p.in) + kChunk - 1) / kChunk;
  auto boxes_of = [&](int part) { return (min(int(p.x.rows) - (part * 2 + member) * kRows, kRows) + kBox - 1) / kBox; };
  auto copy_weight = [&](int s, int chunk, const Place& place) {
    const int row = p.gated ? place.tile * (kOuts / 2) + member * int(p.out / 2) : place.tile * kOuts + member * (kOuts / 2);
    barrier_expect(&full[s], kWeight + max(boxes_of(place.part), 0) * kBox * 128);
    copy_box_to(3, base + s * kStage + kX + member * (kWeight / 2), weight_map, chunk * kChunk, row, &full[s], kNormal);
  };
  auto copy_x = [&](int s, int chunk, int part) {
    const int row = (part * 2 + member) * kRows, n = boxes_of(part);
    if (n == kRows / kBox) return copy_box(base + s * kStage, x_map, chunk * kChunk, row, &full[s], kNormal);
    for (int i = 0; i < n; i++)  // skips boxes out of bounds, which are slower than others
      copy_box(base + s * kStage + i * kBox * 128, few_map, chunk * kChunk, row + i * kBox, &full[s], kNormal);
  };
  int index = int(blockIdx.x) / 2;
  Place place(order, index, n_chunks);
  const int ahead = min(place.end - place.begin, kStages);
  for (int i = 0; i < ahead; i++) copy_weight(i, place.begin + i, place);  // constant: no need to wait for earlier kernels
  wait_before();
  for (int i = 0; i < ahead; i++) copy_x(i, place.begin + i, place.part);
  for (int chunk = place.begin + ahead, s = ahead % kStages, parity = ahead == kStages ? 0 : 1;;) {
    for (; chunk < place.end; chunk++) {
      barrier_wait(&empty[s], parity);
      copy_weight(s, chunk, place);
      copy_x(s, chunk, place.part);
      if (++s == kStages) {
        s = 0;
        parity ^= 1;
      }
    }
    index += order.n_clusters;
    if (index >= order.n()) break;
    place = Place(order, index, n_chunks);
    chunk = place.begin;
  }
  launch_next();
}

// The sums of a group: 64 rows, N per thread in wgmma.cuh's layout.
template <Activation kAct, int N>
__device__ void gate_sums(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N / 2; i++) d[i] = activated(kAct, d[i]) * d[N / 2 + i];
}
template <int N>
__device__ void gate_sums(float (&d)[N], Activation act) {
  switch (act) {
    case Activation::none:
      return gate_sums<Activation::none>(d);
    case Activation::silu:
      return gate_sums<Activation::silu>(d);
    case Activation::gelu:
      return gate_sums<Activation::gelu>(d);
    case Activation::gelu_tanh:
      return gate_sums<Activation::gelu_tanh>(d);
    case Activation::relu:
      return gate_sums<Activation::relu>(d);
    case Activation::relu2:
      return gate_sums<Activation::relu2>(d);
  }
}

// bf16 through shared memory: a quarter of the columns per box, double buffered.
template <int N>
__device__ void write_boxes(const Product& p, const CUtensorMap& y_map, const float (&d)[N], int column, int row, uint32_t boxes,
                            int group) {
  using F = Form<2 * N>;
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, n = p.gated ? 2 : 4;
  const uint32_t to_row = warp * 16 + (lane / 8 & 1) * 8 + lane % 8;
#pragma unroll
  for (int b = 0; b < 4; b++) {
    if (b >= n) break;
    const uint32_t box = boxes + (b & 1) * F::box;
    if (threadIdx.x % 128 == 0) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");  // the box has been read
    asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
#pragma unroll
    for (int j = 0; j < F::columns / 8; j += 2) {
      const float* s = &d[(b * F::columns / 8 + j) * 4];
      const uint32_t piece = uint32_t(j + lane / 16),
                     to = box + (F::pitch == 128 ? swizzle(to_row, piece) : to_row * F::pitch + piece * 16);
      if (j + 1 < F::columns / 8) {
        store_matrices(to, pack(s[0], s[1]), pack(s[2], s[3]), pack(s[4], s[5]), pack(s[6], s[7]));
      } else {
        store_matrices(to, pack(s[0], s[1]), pack(s[2], s[3]));
      }
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
    if (threadIdx.x % 128 == 0) store_box(y_map, column + b * F::columns, row, box);
  }
}

// f32 as float4: lanes in pairs exchange two sums, so that one has four of one block of 8 columns, the other of the next.
template <int N>
__device__ void write_fours(const Product& p, const float (&d)[N], int column, int64_t row) {
  const int lane = threadIdx.x % 32, odd = lane & 1;
  float* y = static_cast<float*>(p.y.data);
  const int n = p.gated ? N / 2 : N;
#pragma unroll
  for (int i = 0; i < N; i += 8) {
    if (i >= n) break;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const float *low = &d[i + 2 * h], *high = &d[i + 4 + 2 * h];
      const float a = __shfl_xor_sync(~0u, odd ? low[0] : high[0], 1), b = __shfl_xor_sync(~0u, odd ? low[1] : high[1], 1);
      const float4 v = odd ? make_float4(a, b, high[0], high[1]) : make_float4(low[0], low[1], a, b);
      const int64_t r = row + lane / 4 + 8 * h, c = column + i * 2 + 8 * odd + (lane & 2) * 2;
      if (r >= p.x.rows || c >= p.y.cols) continue;
      float* to = y + r * p.y.stride + c;
      if (p.residual) {
        add_to(to, v);
      } else {
        *reinterpret_cast<float4*>(to) = v;
      }
    }
  }
}

// Any alignment, any residual.
template <int N>
__device__ void write_any(const Product& p, const float (&d)[N], int column, int64_t row) {
  const int lane = threadIdx.x % 32, n = p.gated ? N / 2 : N;
#pragma unroll
  for (int i = 0; i < N; i++) {
    if (i >= n) break;
    const int64_t r = row + lane / 4 + (i & 2 ? 8 : 0), c = column + i / 4 * 8 + lane % 4 * 2 + i % 2;
    if (r >= p.x.rows || c >= p.y.cols) continue;
    store(p.y.data, p.y.dtype, r * p.y.stride + c, d[i] + (p.residual ? p.residual[r * p.residual_stride + c] : 0.0f));
  }
}

enum class Write : uint8_t { boxes, fours, any };

// First row of a warpgroup.
__device__ int first_row(int part) { return (part * 2 + int(blockIdx.x) % 2) * kRows + int(threadIdx.x) / 128 * 64; }

template <int N>
__device__ void finish(const Product& p, const CUtensorMap& y_map, float (&d)[N], Write write, const Place& place, uint32_t boxes) {
  const int group = threadIdx.x / 128, row = first_row(place.part);
  const int column = place.tile * (p.gated ? N : 2 * N), t = threadIdx.x % 4;
  if (p.squares) {
    const int64_t mine = row + int(threadIdx.x) / 32 % 4 * 16 + int(threadIdx.x) % 32 / 4;
    float by[2];
#pragma unroll
    for (int h = 0; h < 2; h++) by[h] = mine + 8 * h < p.x.rows ? factor_of(p, p.squares[mine + 8 * h]) : 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) d[i] = __fmul_rn(d[i], by[i / 2 % 2]);
  }
  if (p.gated) gate_sums(d, p.activation);
  if (p.bias && place.begin == 0) {
#pragma unroll
    for (int i = 0; i < N; i++) {
      const int64_t c = column + i / 4 * 8 + t * 2 + i % 2;
      if (c < p.out) d[i] += p.bias[c];
    }
  }
  if (p.scale != 1) {
#pragma unroll
    for (float& v : d) v = __fmul_rn(v, p.scale);
  }
  if (write == Write::boxes) {
    write_boxes(p, y_map, d, column, row, boxes, group);
  } else if (write == Write::fours) {
    write_fours(p, d, column, row + threadIdx.x / 32 % 4 * 16);
  } else {
    write_any(p, d, column, row + threadIdx.x / 32 % 4 * 16);
  }
}

template <int kOuts>
__device__ void multiply(const CUtensorMap& y_map, const Product& p, const Order& order, Write write, uint32_t base, uint64_t* full,
                         uint64_t* empty) {
  constexpr int kStage = Form<kOuts>::stage, N = kOuts / 2;
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32;
  const int n_chunks = (int(p.in) + kChunk - 1) / kChunk, per = (n_chunks + order.split - 1) / order.split;
  const uint32_t x = base + group * 64 * 128, weight = base + Form<kOuts>::x,
                 boxes = base + kStages * kStage + group * 2 * Form<kOuts>::box;
  float d[N], before[N];  // before: sums of the earlier parts, kept in local memory
  float* earlier = before;
  asm volatile("" : "+l"(earlier));
  auto release = [&](int s) {
    if (lane < 2) arrive_at(&empty[s], lane);
  };
  for (int index = int(blockIdx.x) / 2, s = 0, parity = 0; index < order.n(); index += order.n_clusters) {
    const Place place(order, index, n_chunks);
    if (first_row(place.part) >= p.x.rows) {  // no rows: only release the stages
      for (int i = place.begin; i < place.end; i++) {
        barrier_wait(&full[s], parity);
        release(s);
        if (++s == kStages) {
          s = 0;
          parity ^= 1;
        }
      }
      continue;
    }
    for (int begin = place.begin; begin < place.end; begin += per) {
      const int n = min(per, place.end - begin);
#pragma unroll
      for (float& v : d) v = 0;
      for (int i = 0; i < n; i++) {
        barrier_wait(&full[s], parity);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < kChunk / 16; k++)
          wgmma(d, rows_descriptor(x + s * kStage + k * 32), rows_descriptor(weight + s * kStage + k * 32), 1);
        wgmma_commit();
        wgmma_wait<1>();  // the previous stage's products are done
        if (i > 0) release(s == 0 ? kStages - 1 : s - 1);
        if (++s == kStages) {
          s = 0;
          parity ^= 1;
        }
      }
      wgmma_wait<0>();
      settle(d);
      release(s == 0 ? kStages - 1 : s - 1);
      if (order.split > 1) {
        if (begin > 0) {
#pragma unroll
          for (int i = 0; i < N; i++) d[i] = earlier[i] + d[i];
        }
        if (begin + n < n_chunks) {
#pragma unroll
          for (int i = 0; i < N; i++) earlier[i] = d[i];
        }
      }
    }
    finish(p, y_map, d, write, place, boxes);
  }
}

template <int kOuts>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    many_kernel(const __grid_constant__ CUtensorMap weight_map, const __grid_constant__ CUtensorMap x_map,
                const __grid_constant__ CUtensorMap few_map, const __grid_constant__ CUtensorMap y_map, const __grid_constant__ Product p,
                const __grid_constant__ Order order, const Write write) {
  extern __shared__ char raw[];
  __shared__ uint64_t full[kStages], empty[kStages];
  const uint32_t base = (shared_address(raw) + 1023) & ~1023u;
  begin_ring(full, empty, 2 * kGroups * 4);
  if (threadIdx.x / 128 == kGroups) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x % 128 == 0) produce<kOuts>(weight_map, x_map, few_map, p, order, base, full, empty);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    wait_before();
    multiply<kOuts>(y_map, p, order, write, base, full, empty);
    if (threadIdx.x % 128 == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
  cluster_sync();  // the other block may still multicast into this one's shared memory
}

Write way_of(const Product& p) {
  if (!aligned(p.y)) return Write::any;
  if (p.y.dtype == DType::bf16) return p.residual ? Write::any : Write::boxes;
  return p.y.cols % 4 == 0 && (!p.residual || p.residual == p.y.data) ? Write::fours : Write::any;
}
// Split-K factor that gives all clusters work.
int shares_of(const Launch& at, const Product& p, int64_t items) {
  int shares = 1;
  if (way_of(p) != Write::fours || !p.residual || at.deterministic) return shares;
  while (shares < 8 && items * shares * 2 <= at.n_sm / 2 && div_up(p.in, kChunk) >= shares * 16) shares *= 2;
  return shares;
}

template <int kOuts>
void run(const Launch& at, const Product& p, int split) {
  const int64_t cols = p.gated ? p.out / 2 : p.out;
  Order order;
  order.tiles = int(div_up(cols, p.gated ? kOuts / 2 : kOuts));
  order.parts = int(div_up(p.x.rows, 2 * kRows));
  order.band = std::min(order.parts, kBand);
  order.split = split;
  const Write write = way_of(p);
  const int most = at.n_sm / 2;
  order.shares = shares_of(at, p, order.tiles * order.parts);
  order.n_clusters = std::min(order.tiles * order.parts * order.shares, most);
  const CUtensorMap weight = tensor_map(p.weight, {p.in, p.out}, {p.in * 2}, {kChunk, kOuts / 2}),
                    x = tensor_map(p.x.data, {p.in, p.x.rows}, {p.x.stride * 2}, {kChunk, kRows}),
                    few = tensor_map(p.x.data, {p.in, p.x.rows}, {p.x.stride * 2}, {kChunk, kBox}),
                    y = write == Write::boxes ? tensor_map(p.y.data, {cols, p.x.rows}, {p.y.stride * 2}, {kOuts / 4, 64}, kOuts == 256) : x;
  launch(at, many_kernel<kOuts>, grid2(2 * order.n_clusters), kThreads, Form<kOuts>::bytes, weight, x, few, y, p, order, write);
}

}  // namespace

void product_many(const Launch& at, const Product& p, int split) {
  auto time = [&](int outs) {  // of the busiest block, in outputs; a tile's rows count as 100 more
    const int64_t items = div_up(p.gated ? p.out / 2 : p.out, p.gated ? outs / 2 : outs) * div_up(p.x.rows, 2 * kRows);
    return double(div_up(items, at.n_sm / 2) * (outs + 100)) / shares_of(at, p, items);
  };
  int best = 256;
  for (int outs : {224, 192})
    if (time(outs) < time(best)) best = outs;
  switch (best) {
    case 192:
      return run<192>(at, p, split);
    case 224:
      return run<224>(at, p, split);
    default:
      return run<256>(at, p, split);
  }
}

}  // namespace mr::cuda
