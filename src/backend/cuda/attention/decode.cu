// Attention of one new token a sequence over its pages (Flash-Decoding, Dao et al. 2023): the keys of a sequence are cut into
// items, a block takes one item for up to kGroup query heads of one K/V head, and the block that finishes a sequence last merges
// its items in their order. The new key is rotated and stored on the way. Reads (k_dim + v_dim) * 2 bytes a token and K/V head.
// Every warp has a ring of its own in shared memory, which bulk copies fill with 16 tokens at a time.
#include "backend/cuda/attention/warp.cuh"

namespace mr::cuda {

namespace {

template <int D>
constexpr int kWarps = D > 128 ? 2 : 4;  // so that kDecodeBlocks rings fit
template <int D>
constexpr int kThreads = 32 * kWarps<D>;
constexpr int kWeights = 128;     // items whose factors are kept at hand for merging
constexpr int kHeld = 16;         // items whose values are
constexpr int kItemPages = 1024;  // page numbers of an item that are kept at hand

constexpr int kStages = 3;  // tiles of a warp on their way
template <int D>
constexpr int kPart = D + kPartExtra;  // floats of one head of an item: the sums, then the largest score and the sum of weights

template <int D>
struct Shared {
  union {
    bf16 ring[kWarps<D>][kStages][2][kTile * D];  // of each stage k, then v
    struct {
      float o[kWarps<D>][kGroup][D + 4];
      float weight[kGroup][kWeights];  // of the items that are merged
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

// Rotates eight dimensions of a head, from `at` on, and their partners D / 2 on.
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

// This step's key, once turned by the rotation, and value, in the registers of one warp: lane l < D / 16 has dimensions 8 l .. 8 l + 7
// of the key and those D / 2 on, lane 16 + l the same of the value.
template <int D>
struct Fresh {
  uint4 x[2];

  template <class F>
  __device__ void each(int lane, F f) {  // f(the eight of the lane, whether they are the value's, where they begin)
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

template <int D>
__global__ void __launch_bounds__(kThreads<D>, kDecodeBlocks) decode_kernel(AttendCall call, DecodePlan plan) {
  extern __shared__ __align__(128) char raw[];
  Shared<D>& shared = *reinterpret_cast<Shared<D>*>(raw);
  const DecodeItem* at_item = plan.item + blockIdx.x;
  const struct {
    int seq, row, context, begin, end, index, count, slot, shared;
  } item{at_item->seq,   at_item->row,   at_item->context, at_item->begin, at_item->end,
         at_item->index, at_item->count, at_item->slot,    at_item->shared};
  const int group_begin = at_item->table[min(call.pages.group, 4)];
  if (item.count == 0) return wait_before();
  const int share = blockIdx.y, shares = gridDim.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  // A K/V head's query heads are shared by as many blocks as it takes: this one has `group` of them, from head0 on.
  const int all = call.heads / call.pages.kv_heads, per_head = shares / call.pages.kv_heads, most = (all + per_head - 1) / per_head;
  const int kv_head = share / per_head, first_of = share % per_head * most, head0 = kv_head * all + first_of,
            group = min(most, all - first_of);
  const int page_tokens = call.pages.page_tokens;
  const int row = item.row, context = item.context;
  const int32_t* table = call.pages.unit + (call.pages.group < 5 ? group_begin : call.pages.begin[item.seq]);
  const int seen_from = call.window ? max(0, context + 1 - call.window) : 0;  // the first token inside the window
  const int begin = max(item.begin, seen_from), end = item.end;
  const int first_page = page_number(call.pages, item.begin);
  for (int i = threadIdx.x; i <= page_number(call.pages, end - 1) - first_page; i += kThreads<D>)
    if (i < kItemPages) shared.unit[i] = table[first_page + i];
  uint64_t* full = shared.full[warp];
  if (lane == 0) {
    for (int i = 0; i < kStages; i++) barrier_init(&full[i], 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  auto page_at = [&](int token) {
    int i = page_number(call.pages, token) - first_page;
    int64_t unit = i < kItemPages ? shared.unit[i] : table[first_page + i];
    return reinterpret_cast<bf16*>(call.pages.base + unit * call.pages.unit_bytes) + int64_t(kv_head) * page_tokens * D;
  };
  auto place = [&](int token) { return token - page_number(call.pages, token) * page_tokens; };  // inside its page
  const int64_t v_offset = int64_t(call.pages.kv_heads) * page_tokens * D;

  const int first_tile = begin / kTile * kTile + warp * kTile,
            n_tiles = first_tile < end ? (end - first_tile - 1) / (kWarps<D> * kTile) + 1 : 0;
  auto tile_at = [&](int i) { return first_tile + i * kWarps<D> * kTile; };
  int asked = 0;
  auto ask = [&] {
    if (lane == 0) {
      const int token = tile_at(asked), stage = asked % kStages;
      const bf16* from = page_at(token) + place(token) * D;
      barrier_expect(&full[stage], int(sizeof shared.ring[0][0]));
      copy_bytes(shared_address(shared.ring[warp][stage][0]), from, kTile * D * 2, &full[stage], kReadOnce);
      copy_bytes(shared_address(shared.ring[warp][stage][1]), from + v_offset, kTile * D * 2, &full[stage], kReadOnce);
    }
    asked++;
  };
  // Earlier steps wrote all keys but the new one, which goes into its tile when that has come.
  if (call.k.data)
    while (asked < min(kStages, n_tiles)) ask();
  if (warp == 0 && asked == n_tiles) launch_next();
  wait_before();
  while (asked < min(kStages, n_tiles)) ask();
  const bool newest =
      call.k.data && end == context + 1 && n_tiles > 0 && tile_at(n_tiles - 1) <= context && context < tile_at(n_tiles - 1) + kTile;
  Fresh<D> fresh;
  if (newest) fresh.load(call, row, kv_head, lane);

  uint4 q[D / 32] = {};
  if (g < group) {
    const bf16* from = static_cast<const bf16*>(call.q.data) + row * call.q.stride + (head0 + g) * call.q.head_stride + 8 * t;
#pragma unroll
    for (int c = 0; c < D / 32; c++) q[c] = *reinterpret_cast<const uint4*>(from + 32 * c);
    if (call.rope.angles) {
#pragma unroll
      for (int c = 0; c < D / 64; c++) rotate<D>(q[c], q[c + D / 64], call.rope.angles + row * call.rope.stride, 32 * c + 8 * t);
    }
  }
  if (newest) fresh.turn(call, row, lane);
  Sums<D> sums;
#pragma unroll 1
  for (int i = 0; i < n_tiles; i++) {
    Tile<D> tile;
    const int stage = i % kStages, at = tile_at(i);
    barrier_wait(&full[stage], i / kStages & 1);
    if (newest && i == n_tiles - 1) {
      bf16* page = page_at(context) + place(context) * D;
      fresh.store(&shared.ring[warp][stage][0][(context - at) * D], &shared.ring[warp][stage][1][(context - at) * D], lane);
      fresh.store(page, page + v_offset, lane);
      __syncwarp();
    }
    tile.load(shared.ring[warp][stage], begin - at, end - at, g, t);
    sums.take(tile, q, call, begin - at, end - at, t);
    __syncwarp();
    if (asked < n_tiles) {
      ask();
      if (warp == 0 && asked == n_tiles) launch_next();
    }
  }
  __syncthreads();  // the rings are free

  // The warps' parts become the item's.
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

  auto write = [&](int head, int d, float most, float total, float value) {
    if (call.sinks) {
      float sink = call.sinks[head0 + head] * kLog2e, top = fmaxf(most, sink);
      total = total * exp2_fast(most - top) + exp2_fast(sink - top);
      value *= exp2_fast(most - top);
    }
    store(call.out.data, call.out.dtype, row * call.out.stride + (head0 + head) * call.out.head_stride + d, value / total);
  };
  const bool alone = item.count - item.shared == 1;  // no other block works for this sequence and head
  const float* parts = plan.partial + (int64_t(item.slot - item.index) * shares + share) * kGroup * kPart<D>;
  const int64_t step = int64_t(shares) * kGroup * kPart<D>;
  for (int i = threadIdx.x; i < group * D; i += kThreads<D>) {
    const int head = i / D, d = i % D;
    float most = -INFINITY, total = 0, value = 0;
    for (int w = 0; w < kWarps<D>; w++) most = fmaxf(most, shared.m[w][head]);
    for (int w = 0; w < kWarps<D>; w++) {
      float weight = most == -INFINITY ? 0.0f : exp2_fast(shared.m[w][head] - most);
      total += weight * shared.l[w][head];
      value += weight * shared.o[w][head][d];
    }
    if (alone) {  // what is shared is there already
#pragma unroll 4
      for (int j = 0; j < item.shared; j++) {
        const float* part = parts + j * step + head * kPart<D>;
        const float2 ml = __ldcg(reinterpret_cast<const float2*>(part + D));
        const float other = __ldcg(part + d), top = fmaxf(most, ml.x), mine = exp2_fast(most - top), its = exp2_fast(ml.x - top);
        most = top;
        total = total * mine + ml.y * its;
        value = value * mine + other * its;
      }
      write(head, d, most, total, value);
    } else {
      float* to = plan.partial + ((int64_t(item.slot) * shares + share) * kGroup + head) * kPart<D>;
      to[d] = value;
      if (d == 0) {
        to[D] = most;
        to[D + 1] = total;
      }
    }
  }
  if (alone) return;

  // Whoever comes last merges all items of this sequence and head, first to last.
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t* arrived = plan.arrived + item.seq * shares + share;
    int before;  // publishes this item, and shows those that came before
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(arrived) : "memory");
    shared.last = before == item.count - item.shared - 1;
    if (shared.last) *arrived = 0;
  }
  __syncthreads();
  if (!shared.last) return;
  auto value_at = [&](int i, int j) { return __ldcg(reinterpret_cast<const float4*>(parts + i / D * kPart<D> + j * step + i % D)); };
  // Values of few items are asked for before their factors are known.
  const bool few = item.count <= kHeld;
  const int first = threadIdx.x * 4;
  float4 held[kHeld];
  if (few && first < group * D) {
#pragma unroll
    for (int j = 0; j < kHeld; j++)
      if (j < item.count) held[j] = value_at(first, j);
  }
  for (int head = warp; head < group; head += kWarps<D>) {
    float most = -INFINITY, total = 0;
    auto part = [&](int i) { return __ldcg(reinterpret_cast<const float2*>(parts + i * step + head * kPart<D> + D)); };
    const float2 first = lane < item.count ? part(lane) : make_float2(-INFINITY, 0);
    most = first.x;
    for (int i = lane + 32; i < item.count; i += 32) most = fmaxf(most, part(i).x);
    most = warp_max(most);
    for (int i = lane; i < item.count; i += 32) {
      const float2 ml = i < 32 ? first : part(i);
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
  for (int i = first; i < group * D; i += kThreads<D> * 4) {
    const int head = i / D, d = i % D;
    const float most = shared.m[0][head], *part = parts + head * kPart<D>;
    float4 value{};
    auto take = [&](float weight, float4 v) {
      value.x += weight * v.x;
      value.y += weight * v.y;
      value.z += weight * v.z;
      value.w += weight * v.w;
    };
    if (few && i == first) {
#pragma unroll
      for (int j = 0; j < kHeld; j++)
        if (j < item.count) take(shared.weight[head][j], held[j]);
    } else {
#pragma unroll 16
      for (int j = 0; j < min(item.count, kWeights); j++) take(shared.weight[head][j], value_at(i, j));
      for (int j = kWeights; j < item.count; j++) take(exp2_fast(__ldcg(part + j * step + D) - most), value_at(i, j));
    }
    const float total = shared.l[0][head];
    write(head, d, most, total, value.x);
    write(head, d + 1, most, total, value.y);
    write(head, d + 2, most, total, value.z);
    write(head, d + 3, most, total, value.w);
  }
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
