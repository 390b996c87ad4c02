#include "backend/cpu/attend.h"

#include <algorithm>
#include <cstring>

namespace mr {

static constexpr int kBlockQueries = 48;          // target number of queries per K/V head in a block of rows
static constexpr int64_t kInlineCost = 48 << 10;  // multiply-adds below which waking the pool costs more than it gains
static constexpr int64_t kCutCost = 400 << 10;    // multiply-adds below which splitting a sequence into spans does
static constexpr float kNothing = -1e30f;

StoredAs stored_as(DType type) {
  constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::f8_e5m2, DType::i8, DType::i4};  // as in StoredAs
  for (int i = 0; i < int(std::size(kTypes)); i++)
    if (kTypes[i] == type) return StoredAs(i);
  fail("state cannot be stored as {}", name_of(type));
}

void store_head(const OpKernels& kernels, const KvPages& pages, int seq, int head, int64_t place, const float* k, const float* v) {
  const PagedKv& kv = *pages.kv;
  const StoredAs type = stored_as(kv.dtype);
  float k_scale = kv.k_scale, v_scale = kv.v_scale;
  if (pages.format->scaled) {
    k_scale = kv_scale(k, kv.k_dim, pages.format->largest);
    v_scale = kv_scale(v, kv.v_dim, pages.format->largest);
    pages.k_scales(pages.k_tile(seq, head, place))[place % kKeyTile] = bf16_from_f32(k_scale);
    pages.v_scales(pages.v_tile(seq, head, place))[place % kKeyTile] = bf16_from_f32(v_scale);
  }
  kernels.store(pages.k_row(seq, head, place), k, kv.k_dim, kKeyTile, type, k_scale);
  kernels.store(pages.v_row(seq, head, place), v, kv.v_dim, 1, type, v_scale);
}

static int64_t v_stride_of(const PagedKv& kv) { return (kv.v_dim + SpanCall::kTile - 1) / SpanCall::kTile * SpanCall::kTile; }

struct CpuAttention::Call {
  Tensor out, q;
  const PagedKv& kv;
  const Batch& batch;
  const AttendArgs& args;
  const NewRows& fresh;
  const RoundAhead& ahead;
  KvPages pages;
  int group;
  StoredAs type;
  int64_t v_stride;  // v_dim rounded up to whole vectors

  int64_t results(const Block& b) const { return int64_t(b.n_rows) * group * (2 + v_stride); }  // floats of one span's partial softmax
};

// Views into one worker's memory. Queries of a block are numbered row by row, and within a row by head of the group.
struct CpuAttention::Scratch {
  float *q, *scores, *k, *v, *k_scale, *v_scale, *max, *sum, *acc, *span_max, *span_sum, *span_acc;
  Sight* sight;
  using TileList = const void * [SpanCall::kSpan / SpanCall::kTile];
  TileList k_tile, v_tile, next_k_tile;

  // With null memory, only counts the bytes.
  size_t place(std::byte* memory, const PagedKv& kv, int group, int max_queries) {
    const int64_t n = std::max(kBlockQueries, group), v_stride = v_stride_of(kv);
    int64_t used = 0;
    auto take = [&]<class T>(T*& p, int64_t count) {
      p = reinterpret_cast<T*>(memory + used);
      used += (count * int64_t(sizeof(T)) + 63) / 64 * 64;
    };
    take(q, n * kv.k_dim);
    take(scores, int64_t(max_queries) * SpanCall::kSpan);
    const bool coded = kv.format().largest > 0;
    take(k, coded ? SpanCall::kSpan * kv.k_dim : 0);
    take(v, coded || kv.v_dim % SpanCall::kTile ? SpanCall::kSpan * v_stride : 0);
    take(k_scale, coded ? SpanCall::kSpan : 0);
    take(v_scale, coded ? SpanCall::kSpan : 0);
    take(max, n);
    take(sum, n);
    take(acc, n * v_stride);
    take(span_max, n);
    take(span_sum, n);
    take(span_acc, n * v_stride);
    take(sight, n);
    return size_t(used);
  }
  void clear(int64_t n, int64_t v_stride) {
    std::fill(max, max + n, kNothing);
    std::fill(sum, sum + n, 0.0f);
    std::fill(acc, acc + n * v_stride, 0.0f);
  }
  void keep_span(float* results, int64_t n) {
    span_max = results;
    span_sum = results + n;
    span_acc = results + 2 * n;
  }
  void merge(const OpKernels& kernels, int64_t n, int64_t v_stride) {  // folds in the partial softmax of the next span
    for (int64_t i = 0; i < n; i++)
      kernels.merge(max + i, sum + i, acc + i * v_stride, span_max[i], span_sum[i], span_acc + i * v_stride, v_stride);
  }
};

static Sight sight_of(const Batch& batch, int seq, int row, int window) {
  const int context = batch.context[seq], begin = batch.row_begin[seq], position = batch.position[row];
  Sight s{window ? std::max(0, position - window + 1) : 0, context + batch.rows(seq), context, ~uint64_t(0)};
  if (batch.corner[seq] == Corner::causal) s.hi = context + row - begin + 1;
  if (batch.corner[seq] != Corner::bits) return s;
  s.bits = batch.ancestors[row];
  for (int i = 0; window && i < batch.rows(seq); i++)
    if (position - batch.position[begin + i] >= window) s.bits &= ~(uint64_t(1) << i);
  return s;
}

// A block that is more than a fair share of the work is split into spans.
void CpuAttention::plan(const Call& c, int n_threads) {
  blocks_.clear();
  units_.clear();
  cost_ = 0;
  const int rows = std::max(1, kBlockQueries / c.group);
  const int64_t row_cost = int64_t(c.args.heads) * (c.kv.k_dim + c.kv.v_dim);
  for (int s = 0; s < c.batch.n_seqs; s++) {
    check(c.batch.corner[s] != Corner::bits || c.batch.rows(s) <= 64, "a tree of {} rows has no place in 64 bits", c.batch.rows(s));
    for (int row = c.batch.row_begin[s]; row < c.batch.row_begin[s + 1]; row += rows) {
      Block b{s, row, std::min(rows, c.batch.row_begin[s + 1] - row), INT32_MAX, 0, -1, 0};
      for (int r = row; r < row + b.n_rows; r++) {
        Sight sight = sight_of(c.batch, s, r, c.args.window);
        b.first = std::min(b.first, sight.lo);
        b.end = std::max(b.end, sight.hi);
      }
      b.first &= ~(SpanCall::kTile - 1);
      cost_ += row_cost * b.n_rows * (b.end - b.first);
      blocks_.push_back(b);
    }
  }
  int64_t partial = 0, left = 0;
  for (int i = int(blocks_.size()) - 1; i >= 0; i--) {  // later rows see more keys: longest first
    Block& b = blocks_[size_t(i)];
    int64_t unit_cost = row_cost / c.kv.kv_heads * b.n_rows * (b.end - b.first);
    bool cut = n_threads > 1 && cost_ > kCutCost && b.n_spans() > 1 && unit_cost * 4 * n_threads > cost_;
    if (cut) {
      b.partial = partial;
      b.left = left;
      left += c.kv.kv_heads;
      partial += c.kv.kv_heads * b.n_spans() * c.results(b);
    }
    for (int h = 0; h < c.kv.kv_heads; h++)
      for (int span = cut ? 0 : -1; span < (cut ? b.n_spans() : 0); span++) units_.push_back({i, h, span});
  }
  if (int64_t(partials_.size()) < partial * 4) partials_ = Buffer(size_t(partial * 4));
  if (int64_t(left_.size()) < left) left_ = std::vector<std::atomic<int>>(size_t(left));
  for (const Block& b : blocks_)
    for (int h = 0; b.partial >= 0 && h < c.kv.kv_heads; h++) left_[size_t(b.left + h)].store(b.n_spans(), std::memory_order_relaxed);
}

CpuAttention::Keys CpuAttention::first_keys(size_t unit) const {
  if (unit >= units_.size()) return {};
  const Unit& u = units_[unit];
  return blocks_[size_t(u.block)].span(u.kv_head, std::max(0, u.span));
}

// Partial softmax of all queries of a block over one span, into scratch.span_*.
void CpuAttention::run_span(const Call& c, const Block& b, const Keys& keys, const Keys& next, Scratch& s, Worker& worker) {
  const int32_t begin = keys.begin, end = keys.end;
  const int n_tiles = c.pages.tiles(b.seq, keys.kv_head, begin, end, s.k_tile, s.v_tile);
  const int n_next = c.pages.tiles(next.seq, next.kv_head, next.begin, next.end, s.next_k_tile, nullptr);
  const bool fetched = s.k_tile[0] == worker.fetched;
  worker.fetched = n_next ? s.next_k_tile[0] : nullptr;
  const int n = b.n_rows * c.group, n_calls = (n + kernels_.max_queries - 1) / kernels_.max_queries, each = (n + n_calls - 1) / n_calls;
  SpanCall call = prepare_tiles(c, keys, n_tiles, n, s);
  call.k_fetched = fetched;
  call.next_k_tile = s.next_k_tile;
  call.n_next = n_next;
  for (int i = 0; i < n; i += each) {
    const int m = std::min(each, n - i);
    int32_t lo = end, hi = begin;
    for (int j = i; j < i + m; j++) {
      lo = std::min(lo, s.sight[j].lo);
      hi = std::max(hi, s.sight[j].hi);
    }
    lo = std::max(begin, lo & ~(SpanCall::kTile - 1));
    hi = std::min(end, hi);
    if (lo >= hi) {
      for (int j = i; j < i + m; j++) {
        s.span_max[j] = kNothing;
        s.span_sum[j] = 0;
      }
      std::memset(s.span_acc + i * c.v_stride, 0, size_t(m * c.v_stride) * 4);
      continue;
    }
    const int skipped = (lo - begin) / SpanCall::kTile;
    auto scales = [&](const float* all) { return c.pages.format->largest > 0 ? all + skipped * SpanCall::kTile : nullptr; };
    call.n_queries = m;
    call.q = s.q + int64_t(i) * c.kv.k_dim;
    call.sight = s.sight + i;
    call.first = lo;
    call.end = hi;
    call.k_tile = s.k_tile + skipped;
    call.v_tile = s.v_tile + skipped;
    call.k_scale = scales(s.k_scale);
    call.v_scale = scales(s.v_scale);
    call.max = s.span_max + i;
    call.sum = s.span_sum + i;
    call.acc = s.span_acc + i * c.v_stride;
    kernels_.attend_span(call);
  }
}

SpanCall CpuAttention::prepare_tiles(const Call& c, const Keys& keys, int n_tiles, int n_queries, Scratch& s) const {
  const bool coded = c.pages.format->largest > 0, widens = coded && n_queries > SpanCall::kFewQueries;
  const float unit = c.type == kE4m3 ? 256 : 1;
  SpanCall call{.k_type = c.type, .v_type = c.type, .k_dim = c.kv.k_dim, .v_dim = c.kv.v_dim, .softcap = c.args.softcap};
  call.scores = s.scores;
  call.v_stride = c.v_stride;
  for (int tile = 0; coded && tile < n_tiles; tile++) {
    const uint16_t *k = c.pages.k_scales(s.k_tile[tile]), *v = c.pages.v_scales(s.v_tile[tile]);
    for (int i = 0; i < SpanCall::kTile; i++) {
      s.k_scale[tile * SpanCall::kTile + i] = c.pages.format->scaled ? unit * f32_from_bf16(k[i]) : unit * c.kv.k_scale;
      s.v_scale[tile * SpanCall::kTile + i] = c.pages.format->scaled ? unit * f32_from_bf16(v[i]) : unit * c.kv.v_scale;
    }
  }
  for (int tile = 0; widens && tile < n_tiles; tile++) {
    float* k = s.k + int64_t(tile) * SpanCall::kTile * c.kv.k_dim;
    kernels_.widen_keys(k, s.k_tile[tile], c.kv.k_dim, c.type);
    s.k_tile[tile] = k;
    call.k_type = kF32;
  }
  for (int tile = 0; (widens || c.kv.v_dim % SpanCall::kTile) && tile < n_tiles; tile++) {
    float* v = s.v + tile * SpanCall::kTile * c.v_stride;
    kernels_.widen_values(v, s.v_tile[tile], std::min(SpanCall::kTile, keys.end - keys.begin - tile * SpanCall::kTile), c.kv.v_dim, c.type);
    s.v_tile[tile] = v;
    call.v_type = kF32;
  }
  return call;
}

void CpuAttention::finish(const Call& c, const Block& b, int kv_head, const Scratch& s) const {
  for (int i = 0; i < b.n_rows * c.group; i++) {
    int head = kv_head * c.group + i % c.group;
    float* out = c.out.row<float>(b.row + i / c.group) + head * c.out.stride[1];
    kernels_.finish(out, s.max[i], s.sum[i], s.acc + i * c.v_stride, c.kv.v_dim, bool(c.args.sinks),
                    c.args.sinks ? c.args.sinks.as<float>()[head] : 0);
    c.ahead(out, b.row + i / c.group, int64_t(head) * c.kv.v_dim, c.kv.v_dim);
  }
}

void CpuAttention::place(const Call& c, const Block& b, int kv_head) {
  float* k = c.fresh.k.row<float>(b.row) + kv_head * c.fresh.k.stride[1];
  if (c.fresh.angles) {
    const int64_t half = c.fresh.angles.shape[1] / 2;
    const float* cosine = c.fresh.angles.row<float>(b.row);
    auto rotate = [&](float* x) { kernels_.rope(x, cosine, cosine + half, half, c.fresh.interleaved); };
    for (int i = 0; i < c.group; i++) rotate(c.q.row<float>(b.row) + (kv_head * c.group + i) * c.q.stride[1]);
    rotate(k);
  }
  const float* v = c.fresh.v.row<float>(b.row) + kv_head * c.fresh.v.stride[1];
  store_head(kernels_, c.pages, b.seq, kv_head, c.batch.context[b.seq], k, v);
}

void CpuAttention::run_unit(const Call& c, size_t i_unit, Worker& worker) {
  Scratch s;
  s.place(worker.memory.data(), c.kv, c.group, kernels_.max_queries);
  const Unit& unit = units_[i_unit];
  const Block& b = blocks_[size_t(unit.block)];
  if (c.fresh.k && b.partial < 0) place(c, b, unit.kv_head);
  const int n = b.n_rows * c.group;
  for (int i = 0; i < n; i++) {
    int row = b.row + i / c.group, head = unit.kv_head * c.group + i % c.group;
    const float* q = c.q.row<float>(row) + head * c.q.stride[1];
    for (int d = 0; d < c.kv.k_dim; d++) s.q[i * c.kv.k_dim + d] = q[d] * c.args.scale;
    s.sight[i] = i % c.group ? s.sight[i - 1] : sight_of(c.batch, b.seq, row, c.args.window);
  }
  const Keys next = first_keys(i_unit + 1);
  if (unit.span >= 0) {
    s.keep_span(partial(c, b, unit.kv_head, unit.span), n);
    run_span(c, b, b.span(unit.kv_head, unit.span), next, s, worker);
    // The worker that finishes the last span merges them all.
    if (left_[size_t(b.left + unit.kv_head)].fetch_sub(1, std::memory_order_acq_rel) == 1) join(c, b, unit.kv_head, s);
    return;
  }
  s.clear(n, c.v_stride);
  for (int span = 0; span < b.n_spans(); span++) {
    run_span(c, b, b.span(unit.kv_head, span), span + 1 < b.n_spans() ? b.span(unit.kv_head, span + 1) : next, s, worker);
    s.merge(kernels_, n, c.v_stride);
  }
  finish(c, b, unit.kv_head, s);
}

float* CpuAttention::partial(const Call& c, const Block& b, int kv_head, int span) const {
  return partials_.as<float>() + b.partial + (kv_head * b.n_spans() + span) * c.results(b);
}

void CpuAttention::join(const Call& c, const Block& b, int kv_head, Scratch& s) const {
  const int n = b.n_rows * c.group;
  s.clear(n, c.v_stride);
  for (int span = 0; span < b.n_spans(); span++) {
    s.keep_span(partial(c, b, kv_head, span), n);
    s.merge(kernels_, n, c.v_stride);
  }
  finish(c, b, kv_head, s);
}

void CpuAttention::run(Tensor out, Tensor q, const PagedKv& kv, const Batch& batch, const StateMemory& state, const AttendArgs& args,
                       ThreadPool& pool, const NewRows& fresh, const RoundAhead& ahead) {
  check(kv.kv_heads > 0 && args.heads % kv.kv_heads == 0, "{} query heads cannot share {} key/value heads evenly", args.heads, kv.kv_heads);
  Call c{out, q, kv, batch, args, fresh, ahead, KvPages(kv, batch, state), args.heads / kv.kv_heads, stored_as(kv.dtype), v_stride_of(kv)};
  plan(c, pool.size());
  if (fresh.k)  // the spans of a split block share its row, so store it before any of them runs
    for (const Block& b : blocks_)
      for (int h = 0; b.partial >= 0 && h < kv.kv_heads; h++) place(c, b, h);
  workers_.resize(size_t(pool.size()));
  Scratch s;
  const size_t bytes = s.place(nullptr, kv, c.group, kernels_.max_queries);
  for (Worker& w : workers_)
    if (w.memory.size() < bytes) w.memory = Buffer(bytes);
  const int64_t n = int64_t(units_.size());
  pool.parallel(n, cost_ > kInlineCost ? 1 : n, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; i++) run_unit(c, size_t(i), workers_[size_t(worker)]);
  });
}

// Only blocks of more than 1 / (4 threads) of the work are split, so there are few of them. Vectors grow by doubling.
int64_t CpuAttention::needs(const PagedKv& kv, const AttendArgs& args, const StepLimits& most, int n_threads) const {
  const int group = args.heads / kv.kv_heads;
  const int64_t seen = args.window ? std::min<int64_t>(most.context, args.window + kBlockQueries) : most.context;
  const int64_t spans = seen / SpanCall::kSpan + 2, n_cut = n_threads > 1 ? std::min<int64_t>(4 * n_threads, most.tokens * kv.kv_heads) : 0;
  const int64_t results = std::max(kBlockQueries, group) * (2 + v_stride_of(kv)) * int64_t(sizeof(float));
  const int64_t lists = most.tokens * int64_t(sizeof(Block)) + (most.tokens * kv.kv_heads + n_cut * spans) * int64_t(sizeof(Unit));
  Scratch s;
  const int64_t worker = int64_t(sizeof(Worker) + s.place(nullptr, kv, group, kernels_.max_queries));
  return n_threads * worker + n_cut * (spans * results + int64_t(sizeof(int))) + 2 * lists;
}

int64_t CpuAttention::bytes() const {
  size_t bytes = blocks_.capacity() * sizeof(Block) + units_.capacity() * sizeof(Unit) + left_.size() * sizeof(int) + partials_.size();
  for (const Worker& w : workers_) bytes += sizeof(Worker) + w.memory.size();
  return int64_t(bytes);
}

}  // namespace mr
