// Attention of many rows of a sequence over its pages (FlashAttention, Dao 2022; on Hopper as in Shah et al. 2024). A block takes 128
// rows of one query head, each of two groups of four warps 64 of them; three more warps bring keys and values in tiles of 128
// tokens, or 64 where heads are wide (bulk tensor copies of a page or of 16 tokens each), and the queries. The values of a tile are
// multiplied under the softmax of the next one, be it of the next 128 rows, and the two groups take turns, so that one multiplies while the
// other takes exponentials. A row's tiles begin at absolute places, and a tile that it does not see changes nothing: its bits do not depend
// on the rows beside it. Flops: 4 * D for every pair of a row and a key it sees.
#include <cuda.h>

#include <algorithm>
#include <type_traits>

#include "backend/cuda/attention/pages.cuh"
#include "backend/cuda/device/tensor_map.cuh"
#include "backend/cuda/device/wgmma.cuh"

namespace mr::cuda {

namespace {

constexpr int kGroups = 2, kThreads = 128 * (kGroups + 1), kMostStages = 3;

template <int D>
struct Sizes {
  static constexpr int keys = D > 128 ? 64 : 128, stages = D > 128 ? 2 : kMostStages;  // of a tile; tiles on their way
  static constexpr int sides = D / 64;                                                 // blocks of 64 dimensions, 128 bytes a row
  static constexpr int q = sides * kPrefillRows * 128, tile = sides * keys * 128;
  static constexpr int all = q + stages * 2 * tile + 1024;
};
template <int D>
constexpr int kKeys = Sizes<D>::keys;
template <int D>
constexpr int kStages = Sizes<D>::stages;

__device__ void copy16(uint32_t to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ void turn_wait(int group) { asm volatile("bar.sync %0, 256;" ::"r"(2 + group) : "memory"); }
__device__ void turn_give(int group) { asm volatile("bar.arrive %0, 256;" ::"r"(2 + group) : "memory"); }

// How tiles are laid out: `pack` query heads of a K/V head side by side for each row of a sequence, `groups` times 64 rows of both.
struct Layout {
  const PrefillTile* tiles;
  DecodePlan shared;  // instead of tiles, where sequences begin alike
  int n_tiles, pack, groups;
  int piece;  // tokens of K or V that lie together and are copied at once
  __device__ bool is_shared() const { return shared.shared_room > 0; }
  __device__ bool copies_q() const { return pack > 1 || is_shared(); }  // the groups copy it, else it is brought
};

// An item as it lies in memory: PrefillTile or SharedTile.
struct Raw {
  int v[6];
};
static_assert(sizeof(PrefillTile) == sizeof(Raw) && sizeof(SharedTile) == sizeof(Raw));
__device__ Raw load_raw(const AttendCall& call, const Layout& layout, int item) {
  const int at = item / (call.heads / layout.pack);
  const int* from = layout.is_shared() ? &layout.shared.shared[at].first : &layout.tiles[at].seq;
  Raw raw;
#pragma unroll
  for (int i = 0; i < 6; i++) raw.v[i] = from[i];
  return raw;
}

// What a block works on at a time. Its rows r stand for row token(r) of the sequence, or for the token(r)-th of the sequences that
// share the keys, and query head head(r).
template <int D>
struct Work {
  int head0, seq, row, first, n_rows, context, begin, end, pack, part;
  bool causal;
  __device__ Work(const AttendCall& call, const Layout& layout, int item, const Raw& raw) {
    const int n_heads = call.heads / layout.pack;
    pack = layout.pack;
    head0 = item % n_heads * pack;
    if (layout.is_shared()) {
      first = raw.v[0];
      n_rows = raw.v[1];
      seq = raw.v[2];
      begin = raw.v[3];
      end = raw.v[4];
      part = raw.v[5];
      row = 0;
      context = end;
      causal = true;  // everybody sees all of it
      return;
    }
    seq = raw.v[0];
    row = raw.v[1];
    first = raw.v[2];
    n_rows = raw.v[3];
    context = raw.v[4];
    causal = raw.v[5];
    part = 0;
    end = causal ? min(context + row + layout.groups * 64 / pack, context + n_rows) : context + n_rows;
    begin = call.window ? max(0, context + (causal ? row : 0) - call.window + 1) / kKeys<D> * kKeys<D> : 0;
  }
  __device__ Work(const AttendCall& call, const Layout& layout, int item) : Work(call, layout, item, load_raw(call, layout, item)) {}
  __device__ int token(int r) const { return row + (pack == 1 ? r : r / pack); }
  __device__ int head(int r) const { return head0 + (pack == 1 ? 0 : r % pack); }
  __device__ int q_row(const Layout& layout, int token) const {  // of the batch
    return layout.is_shared() ? layout.shared.shared_row[first + token].row : first + token;
  }
  __device__ int n() const { return (end - begin + kKeys<D> - 1) / kKeys<D>; }
};

__device__ int count_items(const AttendCall& call, const Layout& layout) {
  return (layout.is_shared() ? *layout.shared.n_shared : layout.n_tiles) * (call.heads / layout.pack);
}

// The items of a block, longest first, so that all blocks have about the same to do; -1: no more.
__device__ int item_at(int turn, int n_items) {
  const int n = gridDim.x, at = turn * n + (turn % 2 ? n - 1 - int(blockIdx.x) : int(blockIdx.x));
  return at < n_items ? at : -1;
}

struct Barriers {
  uint64_t full[2 * kMostStages], empty[2 * kMostStages];  // of K and V of each stage
  uint64_t q_full[kGroups], q_empty[kGroups];
};

// A thread asks for the queries of both groups.
template <int D>
__device__ void bring_queries(const AttendCall& call, const CUtensorMap& map, const Layout& layout, uint32_t to, Barriers& b) {
  const int n_items = count_items(call, layout);
  for (int turn = 0, item; (item = item_at(turn, n_items)) >= 0; turn++) {
    const PrefillTile& tile = layout.tiles[item / call.heads];
    const int row = tile.first + tile.row, head = item % call.heads;
    for (int g = 0; g < kGroups; g++) {
      barrier_wait(&b.q_empty[g], (turn & 1) ^ 1);
      barrier_expect(&b.q_full[g], Sizes<D>::q / kGroups);
      for (int h = 0; h < Sizes<D>::sides; h++)
        copy_box(to + h * kPrefillRows * 128 + g * 64 * 128, map, 64 * h, head, row + g * 64, &b.q_full[g], kReadOnce);
    }
  }
}

// One warp asks for all tiles of K (side 0) or V (side 1), each lane of it for one piece of a tile.
template <int D>
__device__ void bring_tiles(const AttendCall& call, const CUtensorMap& map, const Layout& layout, int side, uint32_t to, Barriers& b) {
  using Size = Sizes<D>;
  const Pages& pages = call.pages;
  const int lane = threadIdx.x % 32, n_items = count_items(call, layout), n_pieces = kKeys<D> / layout.piece;
  int stage = 0, parity = 1;
  for (int turn = 0, item; (item = item_at(turn, n_items)) >= 0; turn++) {
    const Work<D> work(call, layout, item);
    const int plane = side * pages.kv_heads + work.head0 / (call.heads / pages.kv_heads);
    const int32_t* table = pages.unit + pages.begin[work.seq];
    for (int key = work.begin; key < work.end; key += kKeys<D>) {
      const int token = key + lane * layout.piece, page = page_number(pages, token);
      const int unit = lane < n_pieces && token < work.end ? table[page] : -1;  // -1: outside the tensor, so zeros
      uint64_t* barrier = &b.full[2 * stage + side];
      if (lane == 0) {
        barrier_wait(&b.empty[2 * stage + side], parity);
        barrier_expect(barrier, Size::tile);
      }
      __syncwarp();
      if (lane < n_pieces)
        for (int h = 0; h < Size::sides; h++)
          copy_box(to + stage * Size::tile + h * kKeys<D> * 128 + lane * layout.piece * 128, map, 64 * h, token - page * pages.page_tokens,
                   plane, unit, barrier, kReadAgain);
      if (++stage == kStages<D>) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
}

// The running softmax of a group's 64 rows; a lane holds parts of two of them, rows token[0] and token[1] of the sequence.
template <int D>
struct Softmax {
  float m[2] = {-INFINITY, -INFINITY}, l[2] = {}, shrink[2];

  __device__ void mask(float (&s)[kKeys<D> / 2], const AttendCall& call, const Work<D>& work, int key, const int (&token)[2], int t) const {
    if (call.softcap != 0) {
      const float slope = 2 * 1.44269504f * call.scale / call.softcap;  // tanh(x) = 1 - 2 / (1 + exp(2 x))
#pragma unroll
      for (float& x : s) x = call.softcap - __fdividef(2 * call.softcap, 1 + exp2_fast(x * slope));
    }
    const bool below = key + kKeys<D> - 1 <= work.context + work.row,
               inside = !call.window || key > work.context + work.row + kPrefillRows - 1 - call.window;
    if (work.causal && below && inside) return;
    auto hide = [&](auto hidden) {  // of the key's place in the tile, less 2 t, and whose of the two rows
#pragma unroll
      for (int i = 0; i < kKeys<D> / 2; i++)
        if (hidden(i / 4 * 8 + i % 2, (i >> 1) & 1)) s[i] = -INFINITY;
    };
    auto last = [&](int h) { return min(work.context + token[h], work.end - 1) - key - 2 * t; };
    if (work.causal && !call.window) return hide([&](int place, int h) { return place > last(h); });
    if (work.causal)
      return hide([&](int place, int h) { return place > last(h) || place <= work.context + token[h] - call.window - key - 2 * t; });
    uint64_t seen = 0;
#pragma unroll 1
    for (int i = 0; i < kKeys<D> / 2; i++) {
      const int place = key + i / 4 * 8 + 2 * t + i % 2, r = token[i >> 1 & 1];
      if (place < work.end && r < work.n_rows && sees(call.spots, work.seq, work.first + r, work.first, work.context, place, call.window))
        seen |= uint64_t(1) << i;
    }
#pragma unroll
    for (int i = 0; i < kKeys<D> / 2; i++)
      if (!(seen >> i & 1)) s[i] = -INFINITY;
  }
  // Scores become weights; shrink is what earlier sums are to be multiplied with.
  __device__ void take(float (&s)[kKeys<D> / 2], float factor) {
    float base[2], most[2][4], sum[2][4];  // several chains of each, so that they overlap
#pragma unroll
    for (int i = 0; i < kKeys<D> / 2; i++) {
      float& to = most[(i >> 1) & 1][(i & 1) + 2 * ((i >> 2) & 1)];
      to = i < 8 ? s[i] : fmaxf(to, s[i]);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float top = fmaxf(fmaxf(most[h][0], most[h][1]), fmaxf(most[h][2], fmaxf(most[h][3], m[h])));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      base[h] = top == -INFINITY ? 0.0f : __fmul_rn(top, factor);
      shrink[h] = exp2_fast(__fmul_rn(m[h], factor) - base[h]);  // one where nothing has changed
      m[h] = top;
    }
#pragma unroll
    for (int i = 0; i < kKeys<D> / 2; i++) {
      s[i] = exp2_fast(fmaf(s[i], factor, -base[(i >> 1) & 1]));
      float& to = sum[(i >> 1) & 1][(i & 1) + 2 * ((i >> 2) & 1)];
      to = i < 8 ? s[i] : to + s[i];
    }
#pragma unroll
    for (int h = 0; h < 2; h++) l[h] = l[h] * shrink[h] + ((sum[h][0] + sum[h][1]) + (sum[h][2] + sum[h][3]));
  }
};

// A lane's part of one row's result: `most` and `total` are the largest score (a power of two) and the sum of weights.
template <int D>
__device__ void write_row(const AttendCall& call, const Work<D>& work, int token, int head, const float (&o)[D / 2], int h, float most,
                          float total, int t) {
  float value = 1;
  if (call.sinks) {
    const float sink = call.sinks[head] * 1.44269504f, top = fmaxf(most, sink);
    total = total * exp2_fast(most - top) + exp2_fast(sink - top);
    value = exp2_fast(most - top);
  }
  const float scale = value / total;
  const int64_t to = (work.first + token) * call.out.stride + head * call.out.head_stride + 2 * t;
#pragma unroll
  for (int j = 0; j < D / 8; j++) {
    const float a = o[4 * j + 2 * h] * scale, b = o[4 * j + 2 * h + 1] * scale;
    if (call.out.dtype == DType::bf16) {
      *reinterpret_cast<uint32_t*>(static_cast<bf16*>(call.out.data) + to + 8 * j) = pack(a, b);
    } else {
      store(call.out.data, call.out.dtype, to + 8 * j, a);
      store(call.out.data, call.out.dtype, to + 8 * j + 1, b);
    }
  }
}
// The same as an item of attend_decode().
template <int D>
__device__ void write_part(const AttendCall& call, const DecodePlan& plan, const Work<D>& work, int token, int head,
                           const float (&o)[D / 2], int h, float most, float total, int t) {
  const int group = call.heads / call.pages.kv_heads;
  const int64_t slot = plan.shared_row[work.first + token].slot + work.part;
  float* to = plan.partial + ((slot * call.pages.kv_heads + head / group) * kGroup + head % group) * (D + kPartExtra);
#pragma unroll
  for (int j = 0; j < D / 8; j++) *reinterpret_cast<float2*>(to + 8 * j + 2 * t) = make_float2(o[4 * j + 2 * h], o[4 * j + 2 * h + 1]);
  if (t == 0) {
    to[D] = most;
    to[D + 1] = total;
  }
}

template <int D>
__device__ void attend_rows(const AttendCall& call, const Layout& layout, uint32_t q_at, uint32_t k_at, uint32_t v_at, Barriers& b) {
  using Size = Sizes<D>;
  auto uniform = [](int x) { return __shfl_sync(~0u, x, 0); };  // which the compiler then knows
  const int wg = uniform(threadIdx.x / 128), warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int row0 = wg * 64 + warp % 4 * 16 + g, n_items = count_items(call, layout);         // its rows: row0, row0 + 8
  const float log2e = 1.44269504f, factor = call.softcap != 0 ? log2e : call.scale * log2e;  // scores to powers of two
  auto copy_q = [&](const Work<D>& work) {
    for (int i = threadIdx.x % 128; i < 64 * D / 8; i += 128) {
      const int row = wg * 64 + i / (D / 8), piece = i % (D / 8), token = work.token(row);
      const bool there = token < work.n_rows;
      const bf16* from = static_cast<const bf16*>(call.q.data) + work.q_row(layout, there ? token : 0) * call.q.stride +
                         work.head(row) * call.q.head_stride;
      copy16(q_at + piece / 8 * kPrefillRows * 128 + swizzle(row, piece % 8), from + piece * 8, there);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  auto group_sync = [&] { asm volatile("bar.sync %0, 128;" ::"r"(4 + wg) : "memory"); };
  float o[D / 2], s[kKeys<D> / 2];
  uint32_t p[kKeys<D> / 16][4];
  const uint64_t q_rows = rows_descriptor(q_at + wg * 64 * 128), k_rows = rows_descriptor(k_at),
                 v_columns = columns_descriptor(v_at, kKeys<D> * 128);  // addresses count in sixteens
  auto scores = [&](int stage) {
    stage = uniform(stage);
#pragma unroll
    for (int k = 0; k < D / 16; k++)
      wgmma(s, q_rows + (k / 4 * kPrefillRows * 128 + k % 4 * 32) / 16,
            k_rows + stage * (Size::tile / 16) + (k / 4 * kKeys<D> * 128 + k % 4 * 32) / 16, k > 0);
    wgmma_commit();
  };
  auto values = [&](int stage) {
    stage = uniform(stage);
#pragma unroll
    for (int k = 0; k < kKeys<D> / 16; k++) wgmma_columns(o, p[k], v_columns + stage * (Size::tile / 16) + k * (2048 / 16));
    wgmma_commit();
  };
  auto pack_weights = [&] {
#pragma unroll
    for (int k = 0; k < kKeys<D> / 16; k++)
#pragma unroll
      for (int i = 0; i < 4; i++) p[k][i] = pack(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
  };
  // Whatever lies behind the last token of an item may be no number: it must not meet a weight of zero.
  auto clear_rest = [&](const Work<D>& work, int stage) {
    const int there = (work.end - work.begin - 1) % kKeys<D> + 1;
    if (there == kKeys<D>) return;
    for (int e = threadIdx.x % 128; e < (kKeys<D> - there) * (D / 8); e += 128) {
      const int row = there + e / (D / 8), piece = e % (D / 8);
      const uint32_t to = v_at + stage * Size::tile + piece / 8 * kKeys<D> * 128 + swizzle(row, piece % 8);
      asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    group_sync();
  };
  auto wait_q = [&](int turn) {
    if (!layout.copies_q()) return barrier_wait(&b.q_full[wg], turn & 1);
    asm volatile("cp.async.wait_all;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    group_sync();
  };
  auto arrive = [&](uint64_t* barrier) {
    if (lane == 0) barrier_arrive(barrier);
  };
  auto wait = [&](int i, int side) { barrier_wait(&b.full[2 * (i % kStages<D>)+side], i / kStages<D> & 1); };
  auto write = [&](const Work<D>& work, Softmax<D>& softmax) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      softmax.l[h] += __shfl_xor_sync(~0u, softmax.l[h], 1);
      softmax.l[h] += __shfl_xor_sync(~0u, softmax.l[h], 2);
      const int token = work.token(row0 + 8 * h), head = work.head(row0 + 8 * h);
      if (token >= work.n_rows) continue;
      const float most = __fmul_rn(softmax.m[h], factor);
      if (layout.is_shared()) {
        write_part<D>(call, layout.shared, work, token, head, o, h, most, softmax.l[h], t);
      } else {
        write_row<D>(call, work, token, head, o, h, most, softmax.l[h], t);
      }
    }
#pragma unroll
    for (int e = 0; e < D / 2; e++) o[e] = 0;
  };
  const bool turns = layout.groups > 1;

  int turn = 0, next = item_at(1, n_items);  // the next item
  if (item_at(0, n_items) < 0) return;
  Work<D> work(call, layout, item_at(0, n_items));
  Raw raw = load_raw(call, layout, max(next, 0));  // of the next one, long before it is needed
  int n = work.n(), token[2] = {work.token(row0), work.token(row0 + 8)};
  auto leave_q = [&] {  // all scores of an item are there
    if (!layout.copies_q()) return arrive(&b.q_empty[wg]);
    group_sync();
    if (next >= 0) copy_q(Work<D>(call, layout, next, raw));
  };
  Softmax<D> softmax;
#pragma unroll
  for (int e = 0; e < D / 2; e++) o[e] = 0;
  if (layout.copies_q()) copy_q(work);
  wait_q(0);
  wait(0, 0);
  wgmma_begin();
  scores(0);
  wgmma_wait<0>();
  settle(s);
  arrive(&b.empty[0]);
  if (n == 1) leave_q();
  softmax.mask(s, call, work, work.begin, token, t);
  softmax.take(s, factor);
  pack_weights();
  if (turns && wg == 1 && (n > 1 || next >= 0)) turn_give(0);  // group 0 begins
  int done = 1, i = 1;                                         // tiles of K: of all items so far, of this one
  // One more tile, with the values of the one before it. Fresh: it is the first of its item; `before` and `sums` are of the last item.
  auto step = [&](auto fresh, const Work<D>& before, Softmax<D>& sums) {
    wait(done, 0);
    wait(done - 1, 1);
    if (fresh) clear_rest(before, (done - 1) % kStages<D>);
    if (turns) turn_wait(wg);
    wgmma_begin();
    scores(done % kStages<D>);
    values((done - 1) % kStages<D>);
    if (turns && (wg == 0 || i + 1 < n || next >= 0)) turn_give(wg ^ 1);
    wgmma_wait<1>();
    settle(s);
    arrive(&b.empty[2 * (done % kStages<D>)]);
    if (i + 1 == n) leave_q();
    softmax.mask(s, call, work, work.begin + i * kKeys<D>, token, t);
    softmax.take(s, factor);
    // Exponentials are to be taken while values are multiplied: a never taken turn that needs their sums holds the wait back.
    if (softmax.l[0] + softmax.l[1] < 0) asm volatile("nanosleep.u32 0;" ::: "memory");
    wgmma_wait<0>();
    settle(o);
    arrive(&b.empty[2 * ((done - 1) % kStages<D>)+1]);
    if (fresh) {
      write(before, sums);
    } else if (__any_sync(~0u, softmax.shrink[0] != 1 || softmax.shrink[1] != 1)) {
#pragma unroll
      for (int e = 0; e < D / 2; e++) o[e] *= softmax.shrink[(e >> 1) & 1];
    }
    pack_weights();
    i++;
    done++;
  };
  for (;;) {
#pragma unroll 1
    while (i < n) step(std::false_type(), work, softmax);
    if (next < 0) break;
    const Work<D> before = work;
    Softmax<D> sums = softmax;
    work = Work<D>(call, layout, next, raw);
    n = work.n();
    i = 0;
    softmax = {};
    next = item_at(++turn + 1, n_items);
    raw = load_raw(call, layout, max(next, 0));
    token[0] = work.token(row0);
    token[1] = work.token(row0 + 8);
    wait_q(turn);
    step(std::true_type(), before, sums);
  }
  wait(done - 1, 1);
  clear_rest(work, (done - 1) % kStages<D>);
  wgmma_begin();
  values((done - 1) % kStages<D>);
  wgmma_wait<0>();
  settle(o);
  write(work, softmax);
}

template <int D>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_kernel(const __grid_constant__ CUtensorMap map, const __grid_constant__ CUtensorMap q_map,
                   const __grid_constant__ AttendCall call, const __grid_constant__ Layout layout) {
  extern __shared__ char raw[];
  __shared__ Barriers b;
  const uint32_t q_at = (shared_address(raw) + 1023) & ~1023u, k_at = q_at + Sizes<D>::q, v_at = k_at + kStages<D> * Sizes<D>::tile;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 * kStages<D>; i++) {
      barrier_init(&b.full[i], 1);
      barrier_init(&b.empty[i], 4 * layout.groups);
    }
    for (int i = 0; i < kGroups; i++) {
      barrier_init(&b.q_full[i], 1);
      barrier_init(&b.q_empty[i], 4);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  launch_next();
  wait_before();
  __syncthreads();
  if (threadIdx.x >= 128 * kGroups) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    const int side = int(threadIdx.x) / 32 - 4 * kGroups;
    if (side < 2) bring_tiles<D>(call, map, layout, side, side ? v_at : k_at, b);
    if (side == 2 && threadIdx.x % 32 == 0 && !layout.copies_q()) bring_queries<D>(call, q_map, layout, q_at, b);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    if (int(threadIdx.x) < 128 * layout.groups) attend_rows<D>(call, layout, q_at, k_at, v_at, b);
  }
}

template <int D>
void run(const Launch& at, const AttendCall& call, Layout layout) {
  const Pages& p = call.pages;
  layout.piece = kKeys<D> % p.page_tokens == 0 ? p.page_tokens : 16;
  const CUtensorMap map = tensor_map(p.base, {D, p.page_tokens, 2 * p.kv_heads, int64_t(1) << 24},
                                     {D * 2, int64_t(p.page_tokens) * D * 2, p.unit_bytes}, {64, layout.piece, 1, 1}),
                    q_map = tensor_map(call.q.data, {D, call.heads, call.q.rows}, {call.q.head_stride * 2, call.q.stride * 2}, {64, 1, 64});
  const int64_t n_items = int64_t(layout.n_tiles) * (call.heads / layout.pack);
  launch(at, prefill_kernel<D>, grid2(std::min<int64_t>(n_items, at.n_sm)), kThreads, Sizes<D>::all, map, q_map, call, layout);
}
void run_any(const Launch& at, const AttendCall& call, const Layout& layout) {
  switch (call.pages.k_dim) {
    case 64:
      return run<64>(at, call, layout);
    case 128:
      return run<128>(at, call, layout);
    default:
      return run<256>(at, call, layout);
  }
}

}  // namespace

bool can_prefill(const AttendCall& c) {
  const int d = c.pages.k_dim;
  return (d == 64 || d == 128 || d == 256) && c.pages.v_dim == d && c.pages.dtype == DType::bf16 && c.pages.page_tokens % 16 == 0 &&
         c.q.dtype == DType::bf16 && c.q.stride % 8 == 0 && c.q.head_stride % 8 == 0 && reinterpret_cast<uintptr_t>(c.q.data) % 16 == 0 &&
         c.out.stride % 2 == 0 && c.out.head_stride % 2 == 0 && reinterpret_cast<uintptr_t>(c.out.data) % 4 == 0;
}

void attend_prefill(const Launch& at, const AttendCall& call, const PrefillTile* tiles, int n_tiles, bool singles) {
  const int group = call.heads / call.pages.kv_heads;
  run_any(at, call, singles && group <= 64 ? Layout{tiles, {}, n_tiles, group, 1, 0} : Layout{tiles, {}, n_tiles, 1, kGroups, 0});
}

void attend_shared(const Launch& at, const AttendCall& call, const DecodePlan& plan) {
  run_any(at, call, {nullptr, plan, plan.shared_room, call.heads / call.pages.kv_heads, kGroups, 0});
}

}  // namespace mr::cuda
