// Products, attentions and scans of one row, one after the other in one persistent kernel: a block on every multiprocessor runs the
// whole program. A producer warp prefetches the weights, keys and values of all steps in turn, as far ahead as a ring in shared
// memory has room, across step boundaries; eight warps multiply; one runs epilogues. A grid barrier ends each step, and the producer
// keeps memory busy meanwhile. Reads every weight and every key and value once.
//
// A stage of the ring is 16 rows of a weight (gated: 8 of each half) by kPiece inputs, or four tiles of 16 keys and values. In each
// stage every worker warp multiplies its kPiece / kWarps inputs; their order inside 32 is permuted alike in weight and x, so that
// lane 4 g + t holds 8 t .. 8 t + 7 of row g.
#include <algorithm>

#include "backend/cuda/chain/ring.cuh"

namespace mr::cuda {

namespace {

// Copies a product's weights. row_of(part, output, second): address of a row, called by all lanes; second: a gated output's up row.
template <class RowOf>
__device__ void fetch(const Program& program, Shared& shared, uint32_t ring, const Product& p, int parts, const Share& mine,
                      Fetching& fetching, RowOf row_of) {
  const int lane = threadIdx.x % 32, in = int(p.in);
  Turn& turn = fetching.turn;
  for (int tile = mine.begin; tile < mine.end; tile += mine.per) {
    const int most = lanes_of(p), n = min(mine.per, mine.end - tile), output = tile + min(lane % most, n - 1);
    const bool valid = lane < kRows && lane % most < n;
    for (int part = 0; part < parts; part++) {
      const bf16* row = row_of(part, output, p.gated && lane >= most);
#pragma unroll 1
      for (int k = 0; k < in; k += kPiece, turn.next(program.stages)) {
        const int bytes = min(kPiece, in - k) * 2;
        fetching.begin(shared.full, shared.empty, program.stages, n * (p.gated ? 2 : 1) * bytes);
        if (valid) copy_bytes(ring + turn.at * kStage + row_at(lane), row + k, bytes, &shared.full[turn.at], kReadOnce);
      }
    }
  }
}
__device__ void fetch(const Program& program, Shared& shared, uint32_t ring, const Product& p, const Share& mine, Fetching& fetching) {
  const bf16* weight = static_cast<const bf16*>(p.weight);
  const int64_t half = p.out / 2;
  fetch(program, shared, ring, p, 1, mine, fetching,
        [&](int, int output, bool second) { return weight + (second ? half + output : output) * p.in; });
}
// Loads the expert tables before wait(), which returns when the experts are chosen.
template <class Wait>
__device__ void fetch(const Program& program, Shared& shared, uint32_t ring, const ExpertsStep& e, const Share& mine, Fetching& fetching,
                      Wait wait) {
  const Product& p = e.product;
  const int lane = threadIdx.x % 32, each = p.gated ? int(p.out / 2) / e.k : int(p.out);
  const void* first = lane < e.n ? e.first[lane].quants : nullptr;
  const void* second = lane < e.n && e.second ? e.second[lane].quants : nullptr;
  wait();
  const int mine_is = lane < e.k ? min(max(shared.choice.expert[lane], 0), e.n - 1) : 0;  // rows of NaN have no valid expert
  fetch(program, shared, ring, p, p.gated ? 1 : e.k, mine, fetching, [&](int part, int output, bool other) {
    const int expert = __shfl_sync(~0u, mine_is, p.gated ? output / each : part);
    const uint64_t a = __shfl_sync(~0u, uint64_t(first), expert), b = __shfl_sync(~0u, uint64_t(second), expert);
    return reinterpret_cast<const bf16*>(other ? b : a) + int64_t(output % each) * p.in;
  });
}

// Copies the keys and values of the block's tiles.
__device__ void fetch(const Program& program, Shared& shared, uint32_t ring, const AttendCall& call, const Share& mine,
                      Fetching& fetching) {
  fetch_part(ring, kStage, program.stages, shared.full, shared.empty, call, mine, fetching);
}

// Epilogue of a product. by: the weights of its parts, or null.
template <bool Mixed>
__device__ void finish(Shared& shared, const Product& p, int parts, const float* by, const Share& mine, Turn& turn) {
  const int lane = threadIdx.x % 32;
  float factor = 1, squares = 0;
  int32_t src = 0, to = -1;  // of a convolution
  if (Mixed && p.conv.n) {
    src = p.conv.slots.src[0];
    to = p.conv.slots.dst[0];
  }
  // The epilogue's other inputs are prefetched two tiles ahead, as memory latency is high under load.
  struct Beside {
    float residual, bias, weight;
    Tap tap;
  };
  auto prefetch = [&](Beside& b, int tile) {
    const int at = tile + lane;
    b.residual = b.bias = b.weight = 0;
    b.tap.there = false;
    if (lane >= mine.per || at >= mine.end) return;
    if (p.residual) b.residual = __ldcg(p.residual + at);
    if (p.bias) b.bias = p.bias[at];
    if (p.next.x && p.next.weight) b.weight = p.next.weight[at];
    if (Mixed && p.conv.n) b.tap.ask(p, at, src, to);
  };
  auto finish_tile = [&](int tile, const Beside& beside) {
    const int at = tile + lane;
    const bool valid = lane < mine.per && at < mine.end;
    float sum = 0;
    for (int part = 0; part < (Mixed ? parts : 1); part++, turn.next(kSlots)) {
      barrier_wait(&shared.sums_full[turn.at], turn.parity);
      float one = 0;
#pragma unroll
      for (int w = 0; w < kWarps / 2; w++) one += shared.sums[turn.at][lane / 16 * (kWarps / 2) + w][lane % 16];
      __syncwarp();
      if (lane == 0) barrier_arrive(&shared.sums_empty[turn.at]);
      sum = Mixed && by ? fmaf(by[part], one, sum) : one;
    }
    sum = (sum + __shfl_xor_sync(~0u, sum, 16)) * factor;
    if (p.gated) {
      const float value = __shfl_down_sync(~0u, sum, 8);
      if (valid) store(p.y.data, p.y.dtype, at, activated(p.activation, sum) * value);
    } else if (Mixed && beside.tap.there) {
      beside.tap.write(p, (sum + beside.bias) * p.scale);
    } else if (valid) {
      const float y = (sum + beside.bias) * p.scale + beside.residual;
      store(p.y.data, p.y.dtype, at, y);
      if (p.next.x) put_half(p.next, at, y, beside.weight);
      squares += y * y;
    }
  };
  Beside even, odd;
  if (Mixed) {
    prefetch(even, mine.begin);
    prefetch(odd, mine.begin + mine.per);
  }
  if (p.squares) {
    float of = 0;
    for (int j = lane; j < int(p.n_squares); j += 32) of += __ldcg(p.squares + j);
    factor = rsqrtf(warp_sum(of) / float(p.in) + p.eps);
  }
  for (int tile = mine.begin; !Mixed && tile < mine.end; tile += mine.per) {
    prefetch(even, tile);
    finish_tile(tile, even);
  }
#pragma unroll 1
  for (int tile = mine.begin; Mixed && tile < mine.end; tile += 2 * mine.per) {
    finish_tile(tile, even);
    prefetch(even, tile + 2 * mine.per);
    if (tile + mine.per >= mine.end) break;
    finish_tile(tile + mine.per, odd);
    prefetch(odd, tile + 3 * mine.per);
  }
  if (!p.next.x) return;
  put_squares(p.next, 0, int(blockIdx.x), int(gridDim.x), warp_sum(squares), lane, 32);
}

// Copies this warp's inputs of x to shared memory, in whole pieces.
__device__ void take_x(bf16* to, const void* x, int in) {
  constexpr int lanes = kShare / 8, kAtOnce = 8;  // lanes per share; loads in flight per lane
  const int first = threadIdx.x % 32 / lanes * kPiece + threadIdx.x / 32 * kShare + threadIdx.x % lanes * 8;
#pragma unroll 1
  for (int from = first; from / kPiece * kPiece < in; from += 32 / lanes * kPiece * kAtOnce) {
    uint4 v[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      const int k = from + i * (32 / lanes) * kPiece;
      v[i] = k < in ? __ldcg(reinterpret_cast<const uint4*>(static_cast<const bf16*>(x) + k)) : uint4{};
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      const int k = from + i * (32 / lanes) * kPiece;
      if (k / kPiece * kPiece < in) *reinterpret_cast<uint4*>(to + k) = v[i];
    }
  }
  __syncwarp();
}

__device__ void multiply(const Program& program, Shared& shared, const char* ring, bf16* x, const Product& p, int parts, const Share& mine,
                         Turn& turn, Turn& slot) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, in = int(p.in);
  const int apart = (in + kPiece - 1) / kPiece * kPiece;  // stride between the parts' x
  for (int part = 0; part < parts && mine.begin < mine.end; part++)
    take_x(x + part * apart, static_cast<const bf16*>(p.x.data) + part * p.x.stride, in);
  const int first = warp * kShare + 8 * t;
  int part = 0;
  for (int tile = mine.begin; tile < mine.end; tile += part == 0 ? mine.per : 0, slot.next(kSlots)) {
    float sum[4] = {};
    for (int k = 0; k < in; k += kPiece, turn.next(program.stages)) {
      barrier_wait(&shared.full[turn.at], turn.parity);
      const char* rows = ring + turn.at * kStage + first * 2;
#pragma unroll
      for (int j = 0; j < kShare; j += 32) {
        uint4 a = *reinterpret_cast<const uint4*>(rows + row_at(g) + j * 2);
        uint4 b = *reinterpret_cast<const uint4*>(rows + row_at(g + 8) + j * 2);
        const uint4 v = *reinterpret_cast<const uint4*>(x + part * apart + k + first + j);
        if (k + first + j >= in) a = b = uint4{};  // stale contents of the stage
        mma(sum, a.x, b.x, a.y, b.y, v.x, v.y);
        mma(sum, a.z, b.z, a.w, b.w, v.z, v.w);
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(&shared.empty[turn.at]);
    }
    barrier_wait(&shared.sums_empty[slot.at], slot.parity ^ 1);
    if (t == 0) {
      shared.sums[slot.at][warp][g] = sum[0];
      shared.sums[slot.at][warp][g + 8] = sum[2];
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(&shared.sums_full[slot.at]);
    if (++part == parts) part = 0;
  }
}

// The block's tiles of a K/V head; the last block to finish merges those of all blocks.
template <int D>
__device__ void attend(const Program& program, Shared& shared, char* ring, char* room, const AttendCall& call, const Share& mine,
                       Turn& turn) {
  DecodePlan plan;
  plan.partial = program.memory.partial;
  plan.arrived = reinterpret_cast<int32_t*>(program.memory.arrived + 2);
  auto stages = [&](auto f) {
#pragma unroll 1
    for (int s = 0; s * kTiles < mine.n_tiles; s++, turn.next(program.stages)) {
      barrier_wait(&shared.full[turn.at], turn.parity);
      f(s, ring + turn.at * kStage);
      __syncwarp();
      if (threadIdx.x % 32 == 0) barrier_arrive(&shared.empty[turn.at]);
    }
  };
  attend_part(shared.softmaxes, *reinterpret_cast<Mixing<D>*>(room), call, plan, mine, stages);
}

__device__ void begin(Shared& shared, int stages) {
  for (int s = 0; s < stages; s++) {
    barrier_init(&shared.full[s], 1);
    barrier_init(&shared.empty[s], kWarps);
  }
  for (int s = 0; s < kSlots; s++) {
    barrier_init(&shared.sums_full[s], kWarps);
    barrier_init(&shared.sums_empty[s], 1);
  }
  for (int s = 0; s < kSteps; s++) {
    barrier_init(&shared.step_full[s], 1);
    barrier_init(&shared.share_full[s], 1);
    barrier_init(&shared.step_empty[s], kWarps + 1);
  }
  barrier_init(&shared.go, 1);
  barrier_init(&shared.worked, kWarps);
  barrier_init(&shared.routed, 1);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// The producer warp: steps, weights, keys and values.
template <bool Mixed>
__device__ void fetch_steps(const Program& program, Shared& shared, uint32_t ring) {
  const int lane = threadIdx.x % 32;
  Fetching fetching;
  auto fetch_step = [&](int i) {
    if (i >= program.n) return;
    barrier_wait(&shared.step_empty[i % kSteps], (i / kSteps & 1) ^ 1);
    if (lane > 0) return;
    barrier_expect(&shared.step_full[i % kSteps], sizeof(ChainStep));
    copy_bytes(shared_address(&shared.step[i % kSteps]), program.step + i, sizeof(ChainStep), &shared.step_full[i % kSteps], kReadAgain);
  };
  int routes = 0, seen = 0;
  auto choice = [&] {
    if (seen < routes) barrier_wait(&shared.routed, seen++ & 1);
  };
  for (int i = 0; i <= kStepsAhead; i++) fetch_step(i);
  for (int i = 0; i < program.n; i++) {
    const int at = i % kSteps;
    barrier_wait(&shared.step_full[at], i / kSteps & 1);
    const ChainStep& step = shared.step[at];
    if (step.kind == Kind::attend) wait_before();  // keys of earlier steps
    const Share share = share_of<Mixed>(step, i);
    if (lane == 0) {
      shared.share[at] = share;
      barrier_arrive(&shared.share_full[at]);
    }
    if (step.kind == Kind::product) fetch(program, shared, ring, step.product, share, fetching);
    if (step.kind == Kind::attend) fetch(program, shared, ring, step.attend, share, fetching);
    if (Mixed && step.kind == Kind::experts) fetch(program, shared, ring, step.experts, share, fetching, choice);
    if (Mixed && step.kind == Kind::route) routes++;
    __syncwarp();
    fetch_step(i + 1 + kStepsAhead);
  }
}

// The epilogue warp, which also runs the grid barrier.
template <bool Mixed>
__device__ void finish_steps(const Program& program, Shared& shared) {
  const int lane = threadIdx.x % 32;
  wait_before();
  unsigned *arrived = program.memory.arrived, before;
  Turn slot;
  int worked = 0;
  bool routed = false;  // previous step was a route: experts then depend only on their own block
  for (int i = 0; i < program.n; i++) {
    const int at = i % kSteps;
    barrier_wait(&shared.step_full[at], i / kSteps & 1);
    barrier_wait(&shared.share_full[at], i / kSteps & 1);
    if (lane == 0) {
      while (!(Mixed && routed && shared.step[at].kind == Kind::experts) && peek(arrived) < unsigned(i) * gridDim.x) {
      }
      barrier_arrive(&shared.go);
    }
    __syncwarp();
    routed = shared.step[at].kind == Kind::route;
    if (multiplies<Mixed>(shared.step[at])) {
      const ChainStep& step = shared.step[at];
      const float* by = Mixed && step.kind == Kind::experts && !step.experts.product.gated ? shared.choice.weight : nullptr;
      finish<Mixed>(shared, product_of<Mixed>(step), parts_of<Mixed>(step), by, shared.share[at], slot);
    }
    if (!leaves_sums<Mixed>(shared.step[at], shared.share[at])) barrier_wait(&shared.worked, worked++ & 1);
    __syncwarp();
    if (lane == 0) {
      asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrived) : "memory");
      barrier_arrive(&shared.step_empty[at]);
    }
  }
  if (lane > 0) return;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(arrived + 1) : "memory");
  if (before == gridDim.x - 1) arrived[0] = arrived[1] = 0;  // all blocks have passed the last barrier
}

// The worker warps: multiply, attend and scan. room: scratch for x, or for the partial softmaxes of an attention.
template <bool Mixed>
__device__ void work_steps(const Program& program, Shared& shared, char* ring, char* room) {
  const int lane = threadIdx.x % 32;
  Turn turn, slot;
  for (int i = 0; i < program.n; i++) {
    const int at = i % kSteps;
    barrier_wait(&shared.step_full[at], i / kSteps & 1);
    barrier_wait(&shared.share_full[at], i / kSteps & 1);
    const ChainStep& step = shared.step[at];
    const Share& share = shared.share[at];
    auto wait = [&] { barrier_wait(&shared.go, i & 1); };
    auto done = [&] {
      __syncwarp();
      if (lane == 0 && !leaves_sums<Mixed>(step, share)) barrier_arrive(&shared.worked);
    };
    if (Mixed && step.kind == Kind::outer) {
      outer_of_one(reinterpret_cast<float*>(room), step.outer, share.begin, share.end, wait, workers_meet, done);
    } else if (Mixed && step.kind == Kind::select) {
      select_of_one(reinterpret_cast<float*>(room), step.select, share.begin, share.end, wait, done);
    } else if (Mixed && step.kind == Kind::route) {
      route_one(reinterpret_cast<float*>(room), shared.choice, step.route, share.begin, share.end, wait, workers_meet);
      if (threadIdx.x == 0) barrier_arrive(&shared.routed);
      done();
    } else {
      wait();
      if (multiplies<Mixed>(step)) {
        multiply(program, shared, ring, reinterpret_cast<bf16*>(room), product_of<Mixed>(step), parts_of<Mixed>(step), share, turn, slot);
      } else if (share.count > 0 && step.attend.pages.k_dim == 128) {
        attend<128>(program, shared, ring, room, step.attend, share, turn);
      } else if (share.count > 0) {
        attend<64>(program, shared, ring, room, step.attend, share, turn);
      }
      done();
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(&shared.step_empty[at]);
  }
}

template <bool Mixed>
__global__ void __launch_bounds__(kThreads, 1) chain_kernel(const Program program) {
  extern __shared__ __align__(128) char ring[];
  __shared__ __align__(16) char shared_room[sizeof(Shared)];  // raw bytes: __shared__ objects may not have constructors
  Shared& shared = *reinterpret_cast<Shared*>(shared_room);
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == 0) begin(shared, program.stages);
  __syncthreads();
  launch_next();
  if (warp == kWarps) {
    fetch_steps<Mixed>(program, shared, shared_address(ring));
  } else if (warp == kWarps + 1) {
    finish_steps<Mixed>(program, shared);
  } else {
    work_steps<Mixed>(program, shared, ring, ring + program.stages * kStage);
  }
}

size_t room_of(const ChainStep& s) {
  auto of_x = [](const Product& p) { return size_t(div_up(p.in, kPiece)) * kPiece * 2; };
  if (s.kind == Kind::product) return of_x(s.product);
  if (s.kind == Kind::experts) return of_x(s.experts.product) * (s.experts.product.gated ? 1 : s.experts.k);
  if (s.kind == Kind::route) return size_t(s.route.call.n_experts) * 4;
  if (s.kind == Kind::outer) return outer_room(s.outer.shape);
  if (s.kind == Kind::select) return select_room();
  const size_t heads = size_t(s.attend.heads / s.attend.pages.kv_heads);
  return s.attend.pages.k_dim == 128 ? sizeof(Mixing<128>) + kWarps * heads * kPart<128> * 4
                                     : sizeof(Mixing<64>) + kWarps * heads * kPart<64> * 4;
}
constexpr size_t kMostRoom = kMostShared - sizeof(Shared) - 64 - kLeastStages * kStage;

}  // namespace

bool can_chain(const Launch& at, const ChainStep& s) {
  if (s.kind == Kind::attend) {
    const Pages& pages = s.attend.pages;
    if (pages.kv_heads > at.n_sm || s.attend.heads > kGroup * pages.kv_heads || pages.k_dim > 128 || !s.attend.k.data ||
        !can_decode(s.attend))
      return false;
  }
  if (s.kind == Kind::outer && !can_chain_outer(at, s.outer)) return false;
  if (s.kind == Kind::select && !can_chain_select(at, s.select)) return false;
  if (s.kind == Kind::route && !can_chain_route(s.route)) return false;
  return room_of(s) <= kMostRoom;
}

void chain(const Launch& at, const ChainStep* host, const ChainStep* device, int n, const ChainMemory& memory) {
  size_t room = 0;
  for (int i = 0; i < n; i++) room = std::max(room, room_of(host[i]));
  const int stages = std::min<int>(kMostStages, int((kMostShared - sizeof(Shared) - 64 - room) / kStage));
  const size_t bytes = size_t(stages) * kStage + room;
  const bool mixed =
      std::any_of(host, host + n, [](const ChainStep& s) { return !s.attends() && (s.kind != Kind::product || s.product.conv.n); });
  auto kernel = mixed ? chain_kernel<true> : chain_kernel<false>;
  launch_on_all(at, kernel, kThreads, bytes, Program{device, n, stages, memory});
}

}  // namespace mr::cuda
