// Attention of one new token per sequence over its pages (Flash-Decoding, Dao et al. 2023): the keys of a sequence are split into
// items, a block computes one item for up to kGroup query heads of one K/V head, and the last block of a sequence to finish merges
// its items in order. The new key is also rotated and stored. Reads (k_dim + v_dim) * 2 bytes per token and K/V head.
// Every warp has a separate ring in shared memory, filled by bulk copies of 16 tokens at a time.
#include "backend/cuda/attention/warp.cuh"

namespace mr::cuda {

namespace {

template <int D>
constexpr int kWarps = D > 128 ? 2 : 4;  // so that the rings of kDecodeBlocks blocks fit
template <int D>
constexpr int kThreads = 32 * kWarps<D>;
constexpr int kWeights = 128;     // items whose factors are kept in shared memory for merging
constexpr int kHeld = 16;         // items whose values are kept in registers
constexpr int kItemPages = 1024;  // entries of the block table kept in shared memory

constexpr int kStages = 3;  // tiles in flight per warp

template <int D>
struct Shared {
  union {
    bf16 ring[kWarps<D>][kStages][2][kTile * D];  // per stage k, then v
    struct {
      float o[kWarps<D>][kGroup][D + 4];
      float weight[kGroup][kWeights];  // merge factors of the items
    };
  };
  float m[kWarps<D>][kGroup], l[kWarps<D>][kGroup];
  int32_t unit[kItemPages];
  uint64_t full[kWarps<D>][kStages];
  int last;
};

__device__ uint32_t rotated(uint32_t x, uint32_t other, float2 c, float2 s) {  // s is negated for the first half
  return pack(low(x) * c.x + low(other) * s.x, high(x) * c.y + high(other) * s.y);
}

// Rotates eight dimensions of a head from `at`, and their partners D / 2 further.
template <int D>
__device__ void rotate(uint4& x, uint4& partner, const float* cosine, int at) {
  const float2* cs = reinterpret_cast<const float2*>(cosine + at);
  const float2* sn = reinterpret_cast<const float2*>(cosine + D / 2 + at);
  uint32_t* a = reinterpret_cast<uint32_t*>(&x);
  uint32_t* b = reinterpret_cast<uint32_t*>(&partner);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float2 co = cs[i], si = sn[i];
    const uint32_t first = rotated(a[i], b[i], co, make_float2(-si.x, -si.y));
    b[i] = rotated(b[i], a[i], co, si);
    a[i] = first;
  }
}

// This step's key and value, in the registers of one warp: lane l < D / 16 has dimensions 8 l .. 8 l + 7 of the key and those D / 2
// further, lane 16 + l the same of the value.
template <int D>
struct Fresh {
  uint4 x[2];

  template <class F>
  __device__ void each(int lane, F f) {  // f(eight dimensions, whether they are the value's, the first dimension)
    if (lane % 16 >= D / 16) return;
    f(x[0], lane >= 16, lane % 16 * 8);
    f(x[1], lane >= 16, D / 2 + lane % 16 * 8);
  }
  __device__ void load(const AttendCall& call, int row, int kv_head, int lane) {
    each(lane, [&](uint4& x, bool value, int at) {
      const Heads& from = value ? call.v : call.k;
      x = *reinterpret_cast<const uint4*>(static_cast<const bf16*>(from.data) + row * from.stride + kv_head * from.head_stride + at);
    });
  }
  __device__ void turn(const AttendCall& call, int row, int lane) {
    if (lane < D / 16 && call.rope.angles) rotate<D>(x[0], x[1], call.rope.angles + row * call.rope.stride, lane * 8);
  }
  __device__ void store(bf16* k, bf16* v, int lane) {
    each(lane, [&](const uint4& x, bool value, int at) { *reinterpret_cast<uint4*>((value ? v : k) + at) = x; });
  }
};

// A block's item and its query heads: `group` of them from head0 on, which share a K/V head.
struct Work {
  int seq, row, context, begin, end, index, count, slot, shared;
  int seen_from;  // the first token of the item inside the window
  int share, shares, kv_head, head0, group;
  const int32_t* table;

  // A K/V head's query heads are split evenly among as many blocks as needed.
  __device__ Work(const AttendCall& call, const DecodeItem& item)
      : seq(item.seq),
        row(item.row),
        context(item.context),
        begin(item.begin),
        end(item.end),
        index(item.index),
        count(item.count),
        slot(item.slot),
        shared(item.shared),
        share(blockIdx.y),
        shares(gridDim.y) {
    const int table_begin = item.table[min(call.pages.group, 4)];
    if (count == 0) return;
    const int all = call.heads / call.pages.kv_heads, per_head = shares / call.pages.kv_heads, most = (all + per_head - 1) / per_head;
    kv_head = share / per_head;
    head0 = kv_head * all + share % per_head * most;
    group = min(most, all - share % per_head * most);
    seen_from = max(begin, call.window ? context + 1 - call.window : 0);
    table = call.pages.unit + (call.pages.group < 5 ? table_begin : call.pages.begin[seq]);
  }
  __device__ bool alone() const { return count - shared == 1; }  // the only block for this sequence and these heads
};

// A warp's tiles of an item, and its ring.
template <int D>
struct Tiles {
  Shared<D>& shared;
  const AttendCall& call;
  const Work& work;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first_page;
  const int first, n;  // tiles of kTile tokens, interleaved with those of the other warps
  int fetched = 0;

  __device__ Tiles(Shared<D>& to, const AttendCall& of, const Work& w)
      : shared(to),
        call(of),
        work(w),
        first_page(page_number(of.pages, w.begin)),
        first(w.seen_from / kTile * kTile + warp * kTile),
        n(first < w.end ? (w.end - first - 1) / (kWarps<D> * kTile) + 1 : 0) {}
  __device__ void begin() {  // called by the whole block
    for (int i = threadIdx.x; i <= page_number(call.pages, work.end - 1) - first_page; i += kThreads<D>)
      if (i < kItemPages) shared.unit[i] = work.table[first_page + i];
    if (lane == 0) {
      for (uint64_t& full : shared.full[warp]) barrier_init(&full, 1);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
  }
  __device__ int at(int i) const { return first + i * kWarps<D> * kTile; }
  __device__ bf16* key_at(int token) const {
    const int page = page_number(call.pages, token), i = page - first_page;
    const int64_t unit = i < kItemPages ? shared.unit[i] : work.table[page], tokens = call.pages.page_tokens;
    return reinterpret_cast<bf16*>(call.pages.base + unit * call.pages.unit_bytes) + (work.kv_head * tokens + token - page * tokens) * D;
  }
  __device__ int64_t to_value() const { return int64_t(call.pages.kv_heads) * call.pages.page_tokens * D; }  // from its key
  __device__ void fetch() {
    if (lane == 0) {
      const int stage = fetched % kStages;
      uint64_t* full = &shared.full[warp][stage];
      const bf16* from = key_at(at(fetched));
      barrier_expect(full, int(sizeof shared.ring[0][0]));
      copy_bytes(shared_address(shared.ring[warp][stage][0]), from, kTile * D * 2, full, kReadOnce);
      copy_bytes(shared_address(shared.ring[warp][stage][1]), from + to_value(), kTile * D * 2, full, kReadOnce);
    }
    if (++fetched == n && warp == 0) launch_next();
  }
  __device__ void fetch_ahead() {
    while (fetched < min(kStages, n)) fetch();
  }
};

// The partial softmax of a warp over its tiles. Writes the new key, rotated, and value to their tile once it is loaded, and to their page.
template <int D>
__device__ Sums<D> attend_tiles(Tiles<D>& tiles) {
  const AttendCall& call = tiles.call;
  const Work& work = tiles.work;
  const int lane = tiles.lane, g = lane / 4, t = lane % 4, row = work.row, context = work.context, last = tiles.at(tiles.n - 1);
  const bool newest = call.k.data && work.end == context + 1 && tiles.n > 0 && last <= context && context < last + kTile;
  const float* angles = call.rope.angles ? call.rope.angles + row * call.rope.stride : nullptr;
  Fresh<D> fresh;
  if (newest) fresh.load(call, row, work.kv_head, lane);
  uint4 q[D / 32] = {};
  if (g < work.group) {
    const bf16* from = static_cast<const bf16*>(call.q.data) + row * call.q.stride + (work.head0 + g) * call.q.head_stride + 8 * t;
#pragma unroll
    for (int c = 0; c < D / 32; c++) q[c] = *reinterpret_cast<const uint4*>(from + 32 * c);
    if (angles) {
#pragma unroll
      for (int c = 0; c < D / 64; c++) rotate<D>(q[c], q[c + D / 64], angles, 32 * c + 8 * t);
    }
  }
  if (newest) fresh.turn(call, row, lane);
  Sums<D> sums;
#pragma unroll 1
  for (int i = 0; i < tiles.n; i++) {
    Tile<D> tile;
    const int stage = i % kStages, at = tiles.at(i);
    auto& ring = tiles.shared.ring[tiles.warp][stage];
    barrier_wait(&tiles.shared.full[tiles.warp][stage], i / kStages & 1);
    if (newest && i == tiles.n - 1) {
      bf16* key = tiles.key_at(context);
      fresh.store(&ring[0][(context - at) * D], &ring[1][(context - at) * D], lane);
      fresh.store(key, key + tiles.to_value(), lane);
      __syncwarp();
    }
    tile.load(ring, work.seen_from - at, work.end - at, g, t);
    sums.take(tile, q, call, work.seen_from - at, work.end - at, t);
    __syncwarp();
    if (tiles.fetched < tiles.n) tiles.fetch();
  }
  return sums;
}

template <int D>
__device__ void leave(Shared<D>& shared, Sums<D>& sums) {
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  __syncthreads();  // the rings are free
  sums.l += __shfl_xor_sync(~0u, sums.l, 1);
  sums.l += __shfl_xor_sync(~0u, sums.l, 2);
  if (t == 0) {
    shared.m[warp][g] = sums.m;
    shared.l[warp][g] = sums.l;
  }
#pragma unroll
  for (int h = 0; h < D / 64; h++)
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int i = 0; i < 2; i++) shared.o[warp][g][64 * h + 8 * (2 * t + i) + j] = sums.o[h][j][i];
  __syncthreads();
}

// The partial results of a sequence for a block's heads: item j's is at j * step.
template <int D>
struct Parts {
  float* first;
  int64_t step;
  __device__ Parts(const DecodePlan& plan, const Work& work)
      : first(plan.partial + (int64_t(work.slot - work.index) * work.shares + work.share) * kGroup * kPart<D>),
        step(int64_t(work.shares) * kGroup * kPart<D>) {}
  __device__ float* at(int item, int head, int d = 0) const { return first + item * step + head * kPart<D> + d; }
  __device__ float2 weight(int item, int head) const { return __ldcg(reinterpret_cast<const float2*>(at(item, head, D))); }
};

// Merges the warps' partial softmaxes into the item's; if this is the only block, merges the shared prefix and writes the result.
template <int D>
__device__ void merge_warps(Shared<D>& shared, const AttendCall& call, const Work& work, const Parts<D>& parts) {
  for (int i = threadIdx.x; i < work.group * D / 2; i += kThreads<D>) {
    const int head = i / (D / 2), d = i % (D / 2) * 2;
    Found f = merged<kWarps<D>>(
        kWarps<D>, [&](int w) { return make_float2(shared.m[w][head], shared.l[w][head]); },
        [&](int w) { return *reinterpret_cast<const float2*>(&shared.o[w][head][d]); });
    if (work.alone()) {
      f = merged<4>(
          work.shared, [&](int j) { return parts.weight(j, head); },
          [&](int j) { return __ldcg(reinterpret_cast<const float2*>(parts.at(j, head, d))); }, f);
      write_head(call, work.row, work.head0 + head, d, f);
    } else {
      *reinterpret_cast<float2*>(parts.at(work.index, head, d)) = make_float2(f.x, f.y);
      if (d == 0) *reinterpret_cast<float2*>(parts.at(work.index, head, D)) = make_float2(f.most, f.total);
    }
  }
}

// Merges all items of a sequence, first to last, four consecutive values per thread. There may be hundreds: so one warp computes the
// factors of a head's items for all of its values, which in merged() every thread does for itself.
template <int D>
__device__ void merge_items(Shared<D>& shared, const AttendCall& call, const Work& work, const Parts<D>& parts) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = threadIdx.x * 4, n = work.count;
  auto value_at = [&](int i, int j) { return __ldcg(reinterpret_cast<const float4*>(parts.at(j, i / D, i % D))); };
  const bool few = n <= kHeld;  // prefetches their values before their factors are known
  float4 held[kHeld];
  if (few && first < work.group * D) {
#pragma unroll
    for (int j = 0; j < kHeld; j++)
      if (j < n) held[j] = value_at(first, j);
  }
  for (int head = warp; head < work.group; head += kWarps<D>) {
    const float2 own = lane < n ? parts.weight(lane, head) : make_float2(-INFINITY, 0);
    float most = own.x, total = 0;
    for (int i = lane + 32; i < n; i += 32) most = fmaxf(most, parts.weight(i, head).x);
    most = warp_max(most);
    for (int i = lane; i < n; i += 32) {
      const float2 ml = i < 32 ? own : parts.weight(i, head);
      const float weight = exp2_fast(ml.x - most);
      total += weight * ml.y;
      if (i < kWeights) shared.weight[head][i] = weight;
    }
    total = warp_sum(total);
    if (lane == 0) {
      shared.m[0][head] = most;
      shared.l[0][head] = total;
    }
  }
  __syncthreads();
  for (int i = first; i < work.group * D; i += kThreads<D> * 4) {
    const int head = i / D, d = i % D;
    const float most = shared.m[0][head], total = shared.l[0][head];
    float4 value{};
    auto take = [&](float weight, float4 v) {
      value = {fmaf(weight, v.x, value.x), fmaf(weight, v.y, value.y), fmaf(weight, v.z, value.z), fmaf(weight, v.w, value.w)};
    };
    if (few && i == first) {
#pragma unroll
      for (int j = 0; j < kHeld; j++)
        if (j < n) take(shared.weight[head][j], held[j]);
    } else {
#pragma unroll 16
      for (int j = 0; j < min(n, kWeights); j++) take(shared.weight[head][j], value_at(i, j));
      for (int j = kWeights; j < n; j++) take(exp2_fast(parts.weight(j, head).x - most), value_at(i, j));
    }
    write_head(call, work.row, work.head0 + head, d, {most, total, value.x, value.y});
    write_head(call, work.row, work.head0 + head, d + 2, {most, total, value.z, value.w});
  }
}

template <int D>
__global__ void __launch_bounds__(kThreads<D>, kDecodeBlocks) decode_kernel(AttendCall call, DecodePlan plan) {
  extern __shared__ __align__(128) char raw[];
  Shared<D>& shared = *reinterpret_cast<Shared<D>*>(raw);
  const Work work(call, plan.item[blockIdx.x]);
  if (work.count == 0) return wait_before();
  Tiles<D> tiles(shared, call, work);
  tiles.begin();
  if (tiles.n == 0 && tiles.warp == 0) launch_next();
  if (call.k.data) tiles.fetch_ahead();  // earlier steps wrote all keys but the new one
  wait_before();
  tiles.fetch_ahead();
  Sums<D> sums = attend_tiles(tiles);
  leave(shared, sums);
  const Parts<D> parts(plan, work);
  merge_warps(shared, call, work, parts);
  if (work.alone()) return;
  __syncthreads();
  if (threadIdx.x == 0) shared.last = arrives_last(plan.arrived + work.seq * work.shares + work.share, work.count - work.shared);
  __syncthreads();
  if (shared.last) merge_items(shared, call, work, parts);
}

template <int D>
void run(const Launch& at, const AttendCall& call, const DecodePlan& plan) {
  launch(at, decode_kernel<D>, grid2(plan.grid, decode_shares(call.heads, call.pages.kv_heads)), kThreads<D>, sizeof(Shared<D>), call,
         plan);
}

}  // namespace

bool can_decode(const AttendCall& c) {
  const int d = c.pages.k_dim;
  auto fits = [&](const Heads& x) {
    return x.dtype == DType::bf16 && x.stride % 8 == 0 && x.head_stride % 8 == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
  };
  bool rope = !c.rope.angles || (c.rope.dim == d && c.rope.stride % 2 == 0);
  return (d == 64 || d == 128 || d == 256) && c.pages.v_dim == d && c.pages.dtype == DType::bf16 && c.pages.page_tokens % kTile == 0 &&
         rope && fits(c.q) && (!c.k.data || (fits(c.k) && fits(c.v)));
}

void attend_decode(const Launch& at, const AttendCall& call, const DecodePlan& plan) {
  switch (call.pages.k_dim) {
    case 64:
      return run<64>(at, call, plan);
    case 128:
      return run<128>(at, call, plan);
    default:
      return run<256>(at, call, plan);
  }
}

}  // namespace mr::cuda
