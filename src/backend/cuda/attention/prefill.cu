// Attention of many rows of a sequence over its pages (FlashAttention, Dao 2022; on Hopper as in Shah et al. 2024). A block computes
// 128 rows of one query head, 64 per warpgroup; three producer warps copy keys, values and queries, in tiles of 128 tokens, or 64
// for wide heads (bulk tensor copies of a page or of 16 tokens each). The product with a tile's values overlaps the softmax of the
// next tile, even across items, and the two warpgroups alternate, so that one multiplies while the other computes exponentials. A
// row's tiles begin at absolute positions, and a masked tile changes nothing: its bits do not depend on the other rows. In deterministic
// mode so do spans of tiles, which are merged in order, as the chain of rows merges them from different blocks.
// Flops: 4 * D per row and visible key.
#include <cuda.h>

#include <algorithm>
#include <type_traits>

#include "backend/cuda/attention/pages_map.cuh"
#include "backend/cuda/attention/prefill_items.cuh"
#include "backend/cuda/attention/softmax.cuh"
#include "backend/cuda/device/wgmma.cuh"

namespace mr::cuda {

namespace {

// The online softmax of a warpgroup's 64 rows; a lane holds parts of two of them, rows token[0] and token[1] of the sequence.
template <class F>
struct Softmax {
  float m[2] = {-INFINITY, -INFINITY}, l[2] = {}, shrink[2];

  __device__ void mask(float (&s)[F::keys / 2], const AttendCall& call, const Work<F>& work, int key, const int (&token)[2], int t) const {
    if (call.softcap != 0) {
      const float slope = cap_slope(call.scale, call.softcap);
#pragma unroll
      for (float& x : s) x = capped(x, call.softcap, slope);
    }
    const bool below = key + F::keys - 1 <= work.context + work.row,
               inside = !call.window || key > work.context + work.row + kPrefillRows - 1 - call.window;
    if (work.causal && below && inside) return;
    auto hide = [&](auto hidden) {  // hidden(index of the key in the tile - 2 t, which of the two rows)
#pragma unroll
      for (int i = 0; i < F::keys / 2; i++)
        if (hidden(i / 4 * 8 + i % 2, (i >> 1) & 1)) s[i] = -INFINITY;
    };
    auto last = [&](int h) { return min(work.context + token[h], work.end - 1) - key - 2 * t; };
    if (work.causal && !call.window) return hide([&](int place, int h) { return place > last(h); });
    if (work.causal)
      return hide([&](int place, int h) { return place > last(h) || place <= work.context + token[h] - call.window - key - 2 * t; });
    uint64_t seen = 0;
#pragma unroll 1
    for (int i = 0; i < F::keys / 2; i++) {
      const int place = key + i / 4 * 8 + 2 * t + i % 2, r = token[i >> 1 & 1];
      if (place < work.end && r < work.n_rows && sees(call.spots, work.seq, work.first + r, work.first, work.context, place, call.window))
        seen |= uint64_t(1) << i;
    }
#pragma unroll
    for (int i = 0; i < F::keys / 2; i++)
      if (!(seen >> i & 1)) s[i] = -INFINITY;
  }
  // Turns scores into weights; earlier sums must be multiplied by `shrink`.
  __device__ void take(float (&s)[F::keys / 2], float factor) {
    float base[2], most[2][4], sum[2][4];  // four independent chains each, for instruction-level parallelism
#pragma unroll
    for (int i = 0; i < F::keys / 2; i++) {
      float& to = most[(i >> 1) & 1][(i & 1) + 2 * ((i >> 2) & 1)];
      to = i < 8 ? s[i] : fmaxf(to, s[i]);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float top = fmaxf(fmaxf(most[h][0], most[h][1]), fmaxf(most[h][2], fmaxf(most[h][3], m[h])));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      base[h] = top == -INFINITY ? 0.0f : __fmul_rn(top, factor);
      shrink[h] = exp2_fast(__fmul_rn(m[h], factor) - base[h]);  // exactly 1 if the maximum is unchanged
      m[h] = top;
    }
#pragma unroll
    for (int i = 0; i < F::keys / 2; i++) {
      s[i] = exp2_fast(fmaf(s[i], factor, -base[(i >> 1) & 1]));
      float& to = sum[(i >> 1) & 1][(i & 1) + 2 * ((i >> 2) & 1)];
      to = i < 8 ? s[i] : to + s[i];
    }
#pragma unroll
    for (int h = 0; h < 2; h++) l[h] = l[h] * shrink[h] + ((sum[h][0] + sum[h][1]) + (sum[h][2] + sum[h][3]));
  }
};

// Writes a lane's part of one row's result: `most` and `total` are the largest score (base 2) and the sum of weights.
template <class F>
__device__ void write_row(const AttendCall& call, const Work<F>& work, int token, int head, const float (&o)[F::D / 2], int h, float most,
                          float total, int t) {
  const float value = call.sinks ? add_sink(call.sinks[head], most, total) : 1.0f, scale = value / total;
  const int64_t to = (work.first + token) * call.out.stride + head * call.out.head_stride + 2 * t;
#pragma unroll
  for (int j = 0; j < F::D / 8; j++) {
    const float a = o[4 * j + 2 * h] * scale, b = o[4 * j + 2 * h + 1] * scale;
    if (call.out.dtype == DType::bf16) {
      *reinterpret_cast<uint32_t*>(static_cast<bf16*>(call.out.data) + to + 8 * j) = pack(a, b);
    } else {
      store(call.out.data, call.out.dtype, to + 8 * j, a);
      store(call.out.data, call.out.dtype, to + 8 * j + 1, b);
    }
  }
}
// The same as a partial result for attend_decode().
template <class F>
__device__ void write_part(const AttendCall& call, const DecodePlan& plan, const Work<F>& work, int token, int head,
                           const float (&o)[F::D / 2], int h, float most, float total, int t) {
  const int group = call.heads / call.pages.kv_heads;
  const int64_t slot = plan.shared_row[work.first + token].slot + work.part;
  float* to = plan.partial + ((slot * call.pages.kv_heads + head / group) * kGroup + head % group) * kPart<F::D>;
#pragma unroll
  for (int j = 0; j < F::D / 8; j++) *reinterpret_cast<float2*>(to + 8 * j + 2 * t) = make_float2(o[4 * j + 2 * h], o[4 * j + 2 * h + 1]);
  if (t == 0) {
    to[F::D] = most;
    to[F::D + 1] = total;
  }
}

// One of the two warpgroups: 64 rows of an item, accumulators in registers. A lane has parts of rows row0 and row0 + 8.
template <class F>
struct Group {
  const AttendCall& call;
  const Layout& layout;
  Barriers& b;
  const uint32_t q_at, v_at;
  const int wg, lane, t, row0, n_items;
  const float factor;                        // converts scores to base-2 exponents
  const uint64_t q_rows, k_rows, v_columns;  // descriptors; their addresses are in units of 16 bytes
  float o[F::D / 2], s[F::keys / 2];
  uint32_t p[F::keys / 16][4];
  float earlier[F::spans ? F::D / 2 : 1], most[2], total[2];  // merged spans before the current one

  __device__ static int uniform(int x) { return __shfl_sync(~0u, x, 0); }  // tells the compiler that x is warp-uniform
  __device__ Group(const AttendCall& of, const Layout& how, uint32_t q, uint32_t k, uint32_t v, Barriers& barriers)
      : call(of),
        layout(how),
        b(barriers),
        q_at(q),
        v_at(v),
        wg(uniform(threadIdx.x / 128)),
        lane(threadIdx.x % 32),
        t(lane % 4),
        row0(wg * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4),
        n_items(count_items(of, how)),
        factor(of.softcap != 0 ? kLog2e : of.scale * kLog2e),
        q_rows(rows_descriptor(q + wg * 64 * 128)),
        k_rows(rows_descriptor(k)),
        v_columns(columns_descriptor(v, F::keys * 128)) {}

  __device__ void sync() const { asm volatile("bar.sync %0, 128;" ::"r"(4 + wg) : "memory"); }
  __device__ void arrive(uint64_t* barrier) const {
    if (lane == 0) barrier_arrive(barrier);
  }
  __device__ void wait(int i, int side) const { barrier_wait(&b.full[2 * (i % F::stages) + side], i / F::stages & 1); }
  __device__ void copy_q(const Work<F>& work) const {
    for (int i = threadIdx.x % 128; i < 64 * F::D / 8; i += 128) {
      const int row = wg * 64 + i / (F::D / 8), piece = i % (F::D / 8), token = work.token(row);
      const bool there = token < work.n_rows;
      const bf16* from = static_cast<const bf16*>(call.q.data) + work.q_row(layout, there ? token : 0) * call.q.stride +
                         work.head(row) * call.q.head_stride;
      copy16(q_at + piece / 8 * kPrefillRows * 128 + swizzle(row, piece % 8), from + piece * 8, there);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  __device__ void wait_q(int turn) const {
    if (!layout.copies_q()) return barrier_wait(&b.q_full[wg], turn & 1);
    asm volatile("cp.async.wait_all;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    sync();
  }
  __device__ void scores(int stage) {
    stage = uniform(stage);
#pragma unroll
    for (int k = 0; k < F::D / 16; k++)
      wgmma(s, q_rows + (k / 4 * kPrefillRows * 128 + k % 4 * 32) / 16,
            k_rows + stage * (F::tile / 16) + (k / 4 * F::keys * 128 + k % 4 * 32) / 16, k > 0);
    wgmma_commit();
  }
  __device__ void values(int stage) {
    stage = uniform(stage);
#pragma unroll
    for (int k = 0; k < F::keys / 16; k++) wgmma_columns(o, p[k], v_columns + stage * (F::tile / 16) + k * (2048 / 16));
    wgmma_commit();
  }
  __device__ void pack_weights() {
#pragma unroll
    for (int k = 0; k < F::keys / 16; k++)
#pragma unroll
      for (int i = 0; i < 4; i++) p[k][i] = pack(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
  }
  // V past the last token of an item may be NaN, which a weight of zero would not cancel: clears it.
  __device__ void clear_rest(const Work<F>& work, int stage) const {
    const int there = (work.end - work.begin - 1) % F::keys + 1;
    if (there == F::keys) return;
    for (int e = threadIdx.x % 128; e < (F::keys - there) * (F::D / 8); e += 128) {
      const int row = there + e / (F::D / 8), piece = e % (F::D / 8);
      const uint32_t to = v_at + stage * F::tile + piece / 8 * F::keys * 128 + swizzle(row, piece % 8);
      asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    sync();
  }
  __device__ void clear_sums() {
#pragma unroll
    for (int e = 0; e < F::D / 2; e++) o[e] = 0;
  }
  __device__ void first_scores(const Work<F>& work) {
    clear_sums();
    if (layout.copies_q()) copy_q(work);
    wait_q(0);
    wait(0, 0);
    wgmma_begin();
    scores(0);
    wgmma_wait<0>();
  }
  __device__ void last_values(const Work<F>& work, int tile) {
    wait(tile, 1);
    clear_rest(work, tile % F::stages);
    wgmma_begin();
    values(tile % F::stages);
    wgmma_wait<0>();
    settle(o);
  }
  // Merges a span's sums into those of the earlier spans.
  __device__ void fold(Softmax<F>& span) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      span.l[h] += __shfl_xor_sync(~0u, span.l[h], 1);
      span.l[h] += __shfl_xor_sync(~0u, span.l[h], 2);
      const float2 by = merge_weights(most[h], __fmul_rn(span.m[h], factor));
      total[h] = merge_sums(total[h], span.l[h], by);
#pragma unroll
      for (int j = 0; j < F::D / 8; j++)
#pragma unroll
        for (int e = 4 * j + 2 * h; e < 4 * j + 2 * h + 2; e++) earlier[e] = merge_sums(earlier[e], o[e], by);
    }
    clear_sums();
  }
  __device__ void clear_earlier() {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      most[h] = -INFINITY;
      total[h] = 0;
    }
#pragma unroll
    for (float& x : earlier) x = 0;
  }
  // An item's result; softmax: of its last span, or of all its keys.
  __device__ void write(const Work<F>& work, Softmax<F>& softmax) {
    if constexpr (F::spans) {
      fold(softmax);
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int token = work.token(row0 + 8 * h), head = work.head(row0 + 8 * h);
        if (token < work.n_rows) write_row<F>(call, work, token, head, earlier, h, most[h], total[h], t);
      }
      return clear_earlier();
    } else {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        softmax.l[h] += __shfl_xor_sync(~0u, softmax.l[h], 1);
        softmax.l[h] += __shfl_xor_sync(~0u, softmax.l[h], 2);
        const int token = work.token(row0 + 8 * h), head = work.head(row0 + 8 * h);
        if (token >= work.n_rows) continue;
        const float most = __fmul_rn(softmax.m[h], factor);
        if (layout.is_shared()) {
          write_part<F>(call, layout.shared, work, token, head, o, h, most, softmax.l[h], t);
        } else {
          write_row<F>(call, work, token, head, o, h, most, softmax.l[h], t);
        }
      }
      clear_sums();
    }
  }
};

// What a tile is the first of.
enum class First : uint8_t { nothing, span, item };
template <First kWhat>
using IsFirst = std::integral_constant<First, kWhat>;

template <class F>
__device__ void attend_rows(const AttendCall& call, const Layout& layout, uint32_t q_at, uint32_t k_at, uint32_t v_at, Barriers& b) {
  Group<F> group(call, layout, q_at, k_at, v_at, b);
  const int wg = group.wg, n_items = group.n_items;
  const bool turns = layout.groups > 1;
  int turn = 0, next = item_at(1, n_items);  // the next item
  if (item_at(0, n_items) < 0) return;
  Work<F> work(call, layout, item_at(0, n_items));
  Raw raw = load_raw(call, layout, max(next, 0));  // prefetches the next item
  int n = work.n(), token[2] = {work.token(group.row0), work.token(group.row0 + 8)};
  auto leave_q = [&] {  // an item's scores are complete: its queries may be replaced
    if (!layout.copies_q()) return group.arrive(&b.q_empty[wg]);
    group.sync();
    if (next >= 0) group.copy_q(Work<F>(call, layout, next, raw));
  };
  Softmax<F> softmax;
  int done = 0, i = 0;      // tiles of K so far: of all items, of this one
  auto take_scores = [&] {  // of tile i
    settle(group.s);
    group.arrive(&b.empty[2 * (done % F::stages)]);
    if (i + 1 == n) leave_q();
    softmax.mask(group.s, call, work, work.begin + i * F::keys, token, group.t);
    softmax.take(group.s, group.factor);
  };
  group.clear_earlier();
  group.first_scores(work);
  take_scores();
  group.pack_weights();
  if (turns && wg == 1 && (n > 1 || next >= 0)) turn_give(0);  // group 0 begins
  done = i = 1;
  // Scores of a tile, and the values of the previous one. If it is the first of its span or item, `before` and `sums` are the previous
  // one's.
  auto step = [&](auto first, const Work<F>& before, Softmax<F>& sums) {
    group.wait(done, 0);
    group.wait(done - 1, 1);
    if (first == First::item) group.clear_rest(before, (done - 1) % F::stages);
    if (turns) turn_wait(wg);
    wgmma_begin();
    group.scores(done % F::stages);
    group.values((done - 1) % F::stages);
    if (turns && (wg == 0 || i + 1 < n || next >= 0)) turn_give(wg ^ 1);
    wgmma_wait<1>();
    take_scores();
    // Exponentials must overlap the value product: a never-taken branch on their sums keeps the compiler from hoisting the wait.
    if (softmax.l[0] + softmax.l[1] < 0) asm volatile("nanosleep.u32 0;" ::: "memory");
    wgmma_wait<0>();
    settle(group.o);
    group.arrive(&b.empty[2 * ((done - 1) % F::stages) + 1]);
    if constexpr (first == First::item) {
      group.write(before, sums);
    } else if constexpr (first == First::span) {
      group.fold(sums);
    } else if (__any_sync(~0u, softmax.shrink[0] != 1 || softmax.shrink[1] != 1)) {
#pragma unroll
      for (int e = 0; e < F::D / 2; e++) group.o[e] *= softmax.shrink[(e >> 1) & 1];
    }
    group.pack_weights();
    i++;
    done++;
  };
  for (;;) {
#pragma unroll 1
    while (i < n) {
      if (!F::spans || (work.begin + i * F::keys) % kSpan) {
        step(IsFirst<First::nothing>(), work, softmax);
        continue;
      }
      if constexpr (F::spans) {
        Softmax<F> sums = softmax;
        softmax = {};
        step(IsFirst<First::span>(), work, sums);
      }
    }
    if (next < 0) break;
    const Work<F> before = work;
    Softmax<F> sums = softmax;
    work = Work<F>(call, layout, next, raw);
    n = work.n();
    i = 0;
    softmax = {};
    next = item_at(++turn + 1, n_items);
    raw = load_raw(call, layout, max(next, 0));
    token[0] = work.token(group.row0);
    token[1] = work.token(group.row0 + 8);
    group.wait_q(turn);
    step(IsFirst<First::item>(), before, sums);
  }
  group.last_values(work, done - 1);
  group.write(work, softmax);
}

template <class F>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_kernel(const __grid_constant__ CUtensorMap map, const __grid_constant__ CUtensorMap q_map,
                   const __grid_constant__ AttendCall call, const __grid_constant__ Layout layout) {
  extern __shared__ char raw[];
  __shared__ Barriers b;
  const uint32_t q_at = (shared_address(raw) + 1023) & ~1023u, k_at = q_at + F::q, v_at = k_at + F::stages * F::tile;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 * F::stages; i++) {
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
    if (side < 2) bring_tiles<F>(call, map, layout, side, side ? v_at : k_at, b);
    if (side == 2 && threadIdx.x % 32 == 0 && !layout.copies_q()) bring_queries<F>(call, q_map, layout, q_at, b);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    if (int(threadIdx.x) < 128 * layout.groups) attend_rows<F>(call, layout, q_at, k_at, v_at, b);
  }
}

template <class F>
void run(const Launch& at, const AttendCall& call, Layout layout) {
  constexpr int D = F::D;
  const Pages& p = call.pages;
  layout.piece = F::keys % p.page_tokens == 0 ? p.page_tokens : 16;
  const CUtensorMap map = pages_map(p, layout.piece),
                    q_map = tensor_map(call.q.data, {D, call.heads, call.q.rows}, {call.q.head_stride * 2, call.q.stride * 2}, {64, 1, 64});
  const int64_t n_items = int64_t(layout.n_tiles) * (call.heads / layout.pack);
  launch(at, prefill_kernel<F>, grid2(std::min<int64_t>(n_items, at.n_sm)), kThreads, F::all, map, q_map, call, layout);
}
template <bool kFixed>
void run_any(const Launch& at, const AttendCall& call, const Layout& layout) {
  switch (call.pages.k_dim) {
    case 64:
      return run<Form<64, kFixed>>(at, call, layout);
    case 128:
      return run<Form<128, kFixed>>(at, call, layout);
    default:
      return run<Form<256, false>>(at, call, layout);
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
  const Layout layout = singles && group <= 64 ? Layout{tiles, {}, n_tiles, group, 1, 0} : Layout{tiles, {}, n_tiles, 1, kGroups, 0};
  at.deterministic ? run_any<true>(at, call, layout) : run_any<false>(at, call, layout);
}

void attend_shared(const Launch& at, const AttendCall& call, const DecodePlan& plan) {
  run_any<false>(at, call, {nullptr, plan, plan.shared_room, call.heads / call.pages.kv_heads, kGroups, 0});
}

}  // namespace mr::cuda
