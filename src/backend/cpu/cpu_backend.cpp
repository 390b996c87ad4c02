// The CPU backend: each operation splits its rows into pieces for the pool and calls the kernels of the chosen instruction
// set. The split never changes a row's arithmetic, so results depend neither on threads nor on other rows.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/angles.h"
#include "backend/backend.h"
#include "backend/cpu/attend.h"
#include "backend/cpu/experts.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/op_kernels.h"
#include "backend/kv_pages.h"
#include "backend/sample.h"
#include "core/error.h"

namespace mr {

namespace {

const OpKernels& op_kernels(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::avx2:
      return op_kernels_avx2();
    case Isa::avx512:
    case Isa::vnni:
    case Isa::amx:
      return op_kernels_avx512();
#endif
    default:
      return op_kernels_scalar();
  }
}

constexpr int kWidestConv = 16;
constexpr int64_t kConvUnit = 16;          // channels of a convolution per vector
constexpr int64_t kInlineWork = 24 << 10;  // elements below which waking the pool costs more than it gains

class CpuBackend : public Backend {
 public:
  CpuBackend(Isa isa, int n_threads) : isa_(isa), pool_(n_threads), ops_(op_kernels(isa)), linear_(linear_kernels(isa)), attention_(ops_) {}

  std::string_view name() const override { return name_of(isa_); }
  ThreadPool& pool() override { return pool_; }

  void check_runs(const Program& program) const override { check_conv_widths(program, kWidestConv, "the CPU"); }
  std::vector<OwnMemory> own_memory(const Program& program, const StepLimits& most) const override {
    LinearNeeds linear;
    int64_t attention = 0, experts = 0, state = 0;
    for (const Op& op : program.whole.ops) {
      const int64_t rows = op.rows == Rows::Base::outputs ? most.outputs : most.tokens;
      if (const LinearOp* o = op.get<LinearOp>()) linear.count(*o->weight, rows, linear_, pool_.size());
      if (const GroupedLinearOp* o = op.get<GroupedLinearOp>()) {
        const int64_t pairs = rows * o->expert.cols;
        linear.count(o->experts[0], pairs, linear_, pool_.size());
        experts = std::max(experts, ExpertScratch::needs(pairs, o->experts));
      }
      if (const AttendOp* o = op.get<AttendOp>()) attention = std::max(attention, attention_.needs(*o->kv, o->args, most, pool_.size()));
      if (const ShortConvOp* o = op.get<ShortConvOp>()) state = std::max(state, (o->conv->weight.shape[1] - 1) * kConvUnit);
      if (const DiagScanOp* o = op.get<DiagScanOp>()) state = std::max<int64_t>(state, o->scan->n_state);
      if (const OuterScanOp* o = op.get<OuterScanOp>()) state = std::max(state, int64_t(o->scan->n_state) * o->scan->head_dim);
    }
    const int64_t workers = pool_.size(), pointers = int64_t(sizeof(void*) + sizeof(int32_t));
    const int64_t recurrent = state ? 2 * (workers * state * int64_t(sizeof(float)) + most.tokens * pointers) : 0;  // vectors may double
    const int64_t sampling = workers * SampleScratch::needs(program.logits.cols) + 2 * most.outputs * int64_t(sizeof(int32_t));
    return {
        {"products", linear.bytes()}, {"attention", attention}, {"experts", experts}, {"recurrences", recurrent}, {"sampling", sampling}};
  }
  int64_t own_bytes() const override {
    size_t bytes = sampled_.capacity() * sizeof(int32_t) + store_.capacity() * sizeof(void*) + parents_.capacity() * sizeof(int32_t);
    for (const std::vector<float>& scratch : state_scratch_) bytes += scratch.capacity() * sizeof(float);
    int64_t sampling = 0;
    for (const SampleScratch& scratch : sample_scratch_) sampling += scratch.bytes();
    return int64_t(bytes) + sampling + linear_scratch_.bytes() + attention_.bytes() + expert_scratch_.bytes();
  }

  Weight place(const StoredWeight& stored, WeightStore& store) override { return pack(stored, store, pool_); }

  void embed(Tensor out, const Weight& table, float scale, const Batch& batch) override {
    rows(batch.n_tokens, table.in, [&](int64_t r) {
      int32_t token = batch.token[r];
      if (token < 0) token = std::max(0, sampled_.at(size_t(-1 - token)));  // a row without finite logits has none
      table.decode(token < table.out ? token : 0, 1, out.row<float>(r));
      if (scale != 1)
        for (int64_t i = 0; i < table.in; i++) out.row<float>(r)[i] *= scale;
    });
  }

  void norm(Tensor out, Tensor x, const Norm& norm) override {
    const NormRow row = norm_row(norm, x.shape[x.rank - 1]);
    const int64_t inner = x.rank == 3 ? x.shape[1] : 1;  // heads
    rows(x.shape[0], inner * row.n, [&](int64_t r) {
      for (int64_t i = 0; i < inner; i++) ops_.norm(out.row<float>(r) + i * out.stride[1], x.row<float>(r) + i * x.stride[1], row);
    });
  }

  void linear(Tensor out, Tensor x, const Weight& weight, const Epilogue& epilogue) override {
    cpu_linear(out, x, weight, epilogue, pool_, linear_, linear_scratch_);
  }

  void add(Tensor into, Tensor x, float scale) override {
    rows(x.shape[0], x.shape[1], [&](int64_t r) { ops_.add(into.row<float>(r), x.row<float>(r), scale, x.shape[1]); });
  }

  void gate(Tensor out, Tensor gate, Tensor up, Activation act) override {
    rows(out.shape[0], 4 * out.shape[1],
         [&](int64_t r) { ops_.gate(out.row<float>(r), gate.row<float>(r), up.row<float>(r), out.shape[1], int(act)); });
  }

  void activate(Tensor x, Activation act) override {
    rows(x.shape[0], 4 * x.shape[1], [&](int64_t r) { ops_.activate(x.row<float>(r), x.shape[1], int(act)); });
  }

  void angles(Tensor out, const RopeTable& rope, const Batch& batch) override { fill_angles(out, rope, batch); }

  void rope(Tensor x, Tensor angles, bool interleaved) override {
    const int64_t half = angles.shape[1] / 2;
    rows(x.shape[0], x.shape[1] * x.shape[2], [&](int64_t r) {
      const float* cosine = angles.row<float>(r);
      for (int64_t h = 0; h < x.shape[1]; h++) ops_.rope(x.row<float>(r) + h * x.stride[1], cosine, cosine + half, half, interleaved);
    });
  }

  void store_kv(const PagedKv& kv, Tensor k, Tensor v, const Batch& batch, const StateMemory& state) override {
    const KvPages pages(kv, batch, state);
    for (int s = 0; s < batch.n_seqs; s++) {
      rows(batch.rows(s), 2 * kv.kv_heads * (kv.k_dim + kv.v_dim), [&](int64_t i) {
        int64_t place = batch.context[s] + i, r = batch.row_begin[s] + i;
        for (int h = 0; h < kv.kv_heads; h++)
          store_head(ops_, pages, s, h, place, k.row<float>(r) + h * k.stride[1], v.row<float>(r) + h * v.stride[1]);
      });
    }
  }

  void attend(Tensor out, Tensor q, const PagedKv& kv, const Batch& batch, const StateMemory& state, const AttendArgs& args) override {
    attention_.run(out, q, kv, batch, state, args, pool_, {}, {});
  }

  bool run_mark(const Mark& mark, const Bound& at, const Batch& batch, const StateMemory& state) override {
    switch (mark.rule) {
      case Rule::norm_linear:
        return norm_linear(mark.first, at);
      case Rule::linear_gate:
      case Rule::gate_linear:
        return linear_gate(mark, at);
      case Rule::attend:
      case Rule::attend_linear:
        return attend_new(mark, at, batch, state);
      default:
        return false;
    }
  }

  void short_conv(Tensor out, Tensor x, Tensor weight, Tensor bias, Activation act, const SlotState& slot, const Batch& batch,
                  const StateMemory& state) override {
    const int64_t width = weight.shape[1];
    check(width >= 1 && width <= kWidestConv, "a short convolution of width {} is not supported: 1 to {} are", width, kWidestConv);
    recurrent(slot, batch, state, x.shape[1], kConvUnit, 4 * width, (width - 1) * kConvUnit,
              [&](RecurrentRows rows, int64_t row, int64_t first, int64_t n) {
                ops_.conv({rows, int(width), int(act), x.shape[1], first, n, x.row<float>(row), weight.as<float>(), bias.as<float>(),
                           out.row<float>(row), x.stride[0], out.stride[0]});
              });
  }

  void diag_scan(Tensor out, Tensor x, Tensor dt, Tensor b, Tensor c, const DiagScan& scan, const Batch& batch,
                 const StateMemory& state) override {
    recurrent(scan.state, batch, state, scan.inner, 1, 4 * scan.n_state, scan.n_state,
              [&](RecurrentRows rows, int64_t row, int64_t first, int64_t n) {
                ops_.scan({rows, stored_as(scan.state.dtype), scan.n_state, first, n, x.row<float>(row), dt.row<float>(row),
                           b.row<float>(row), c.row<float>(row), scan.a.as<float>(), scan.d.as<float>(), out.row<float>(row), x.stride[0],
                           dt.stride[0], b.stride[0], c.stride[0], out.stride[0]});
              });
  }

  void outer_scan(Tensor out, Tensor x, Tensor dt, Tensor b, Tensor c, const OuterScan& scan, const Batch& batch,
                  const StateMemory& state) override {
    const int64_t size = int64_t(scan.n_state) * scan.head_dim;
    recurrent(scan.state, batch, state, scan.heads, 1, 2 * size, size, [&](RecurrentRows rows, int64_t row, int64_t first, int64_t n) {
      ops_.outer_scan({rows,
                       stored_as(scan.state.dtype),
                       scan.n_state,
                       scan.head_dim,
                       scan.heads / scan.groups,
                       first,
                       n,
                       x.row<float>(row),
                       dt.row<float>(row),
                       b.row<float>(row),
                       c.row<float>(row),
                       scan.a.as<float>(),
                       scan.d.as<float>(),
                       scan.dt_min,
                       scan.dt_max,
                       out.row<float>(row),
                       x.stride[0],
                       dt.stride[0],
                       b.stride[0],
                       c.stride[0],
                       out.stride[0]});
    });
  }

  void softplus(Tensor x, Tensor bias) override {
    rows(x.shape[0], 4 * x.shape[1], [&](int64_t r) { ops_.softplus(x.row<float>(r), bias.as<float>(), x.shape[1]); });
  }

  void route(Tensor expert, Tensor weight, Tensor logits, bool renormalize) override {
    rows(logits.shape[0], (4 + expert.shape[1]) * logits.shape[1], [&](int64_t r) {
      route_row(expert.row<int32_t>(r), weight.row<float>(r), expert.shape[1], logits.row<float>(r), logits.shape[1], renormalize, ops_);
    });
  }

  void grouped_linear(Tensor out, Tensor x, std::span<const Weight> experts, Tensor expert) override {
    cpu_grouped_linear(out, x, experts, expert, pool_, linear_, linear_scratch_, expert_scratch_);
  }

  void combine(Tensor out, Tensor x, Tensor weight, bool add) override {
    out = by_token(out, weight.shape[0]);
    x = by_token(x, weight.shape[0]);
    const int64_t n = out.shape[1], k = x.shape[1], dim = x.shape[2];
    rows(weight.shape[0], n * k * dim, [&](int64_t t) {
      for (int64_t i = 0; i < n; i++)
        ops_.combine(out.row<float>(t) + i * out.stride[1], x.row<float>(t), x.stride[1], weight.row<float>(t) + i * k, k, dim, add);
    });
  }

  void magnitude(Tensor out, Tensor x, const Magnitude& what) override {
    rows(x.shape[0], x.shape[1], [&](int64_t r) {
      const float root = std::sqrt(std::max(ops_.mean_square(x.row<float>(r), x.shape[1], what.centered), what.floor));
      *out.row<float>(r) = what.inverse ? 1 / root : root;
    });
  }

  void gather(Tensor out, Tensor x, const Batch& batch) override {
    rows(batch.n_out, x.shape[1], [&](int64_t i) { std::copy_n(x.row<float>(batch.out_row[i]), x.shape[1], out.row<float>(i)); });
  }

  void softcap(Tensor x, float cap) override {
    rows(x.shape[0], 4 * x.shape[1], [&](int64_t r) { ops_.softcap(x.row<float>(r), cap, x.shape[1]); });
  }

  void sample(Tensor logits, const Batch& batch, std::vector<Sampled>& out) override {
    sample_rows(logits, batch, {ops_.max_of, ops_.sum_exp}, pool_, sample_scratch_, out);
    sampled_.clear();
    for (const Sampled& s : out) sampled_.push_back(s.token);
  }

 private:
  static NormRow norm_row(const Norm& norm, int64_t n) {
    return {norm.weight.as<float>(), norm.bias.as<float>(), n, norm.eps, norm.offset, int(norm.kind)};
  }

  // Each row is normalized just before the product rounds it.
  bool norm_linear(int first, const Bound& at) {
    normed(at.op<NormOp>(first), at, [&](const PrepareRow& row) {
      const LinearOp& o = at.op<LinearOp>(first + 1);
      cpu_linear(at(o.out), at(o.x), *o.weight, {o.bias, at(o.residual), o.scale}, pool_, linear_, linear_scratch_, {&row});
    });
    return true;
  }

  // [norm,] linear, gate[, linear]
  bool linear_gate(const Mark& mark, const Bound& at) {
    const bool norms = mark.count == (mark.rule == Rule::gate_linear ? 4 : 3);
    const int first = mark.first + (norms ? 1 : 0);
    const LinearOp& o = at.op<LinearOp>(first);
    const GateOp& gate = at.op<GateOp>(first + 1);
    if (o.weight->out % (2 * kPanel)) return false;
    const LinearOp* reader = mark.rule == Rule::gate_linear ? &at.op<LinearOp>(first + 2) : nullptr;
    RoundAhead rounded;
    auto run = [&](const RowsOfX& rows) {
      rounded = cpu_linear_gate(at(gate.out), at(o.x), *o.weight, ops_.gate, int(gate.act), pool_, linear_, linear_scratch_,
                                reader ? reader->weight : nullptr, rows);
    };
    if (norms) {
      normed(at.op<NormOp>(mark.first), at, [&](const PrepareRow& row) { run({&row}); });
    } else {
      run({});
    }
    if (reader) linear_of_rounded(*reader, at, rounded);
    return true;
  }

  // Calls f(row), where row(r) computes the norm of row r.
  template <class F>
  void normed(const NormOp& o, const Bound& at, F f) {
    const Tensor y = at(o.out), x = at(o.x);
    const NormRow row = norm_row(*o.norm, x.shape[1]);
    f(PrepareRow([&](int64_t r) { ops_.norm(y.row<float>(r), x.row<float>(r), row); }));
  }

  void linear_of_rounded(const LinearOp& o, const Bound& at, const RoundAhead& rounded) {
    cpu_linear(at(o.out), at(o.x), *o.weight, {o.bias, at(o.residual), o.scale}, pool_, linear_, linear_scratch_, {nullptr, &rounded});
  }

  // [rope q] [rope k] [store_kv] attend[, linear]. With one row per sequence, the unit that attends for a K/V head first rotates and
  // stores that head of the new row.
  bool attend_new(const Mark& mark, const Bound& at, const Batch& batch, const StateMemory& state) {
    const LinearOp* reader = mark.rule == Rule::attend_linear ? &at.op<LinearOp>(mark.end() - 1) : nullptr;
    const int last = mark.end() - (reader ? 2 : 1);
    const AttendOp& o = at.op<AttendOp>(last);
    const bool stores = last > mark.first && at.list().ops[size_t(last - 1)].get<StoreKvOp>();
    const bool one_each = stores && batch.n_tokens == batch.n_seqs;
    if (!one_each && !reader) return false;
    CpuAttention::NewRows fresh;
    if (one_each) {
      const StoreKvOp& store = at.op<StoreKvOp>(last - 1);
      fresh = {at(store.k), at(store.v)};
      if (const RopeOp* rope = at.list().ops[size_t(mark.first)].get<RopeOp>()) {
        fresh.angles = at(rope->angles);
        fresh.interleaved = rope->interleaved;
      }
    } else {
      for (int i = mark.first; i < last; i++) run_op(at.list().ops[size_t(i)], at, batch, state);
    }
    const bool rounds = reader && o.kv->v_dim % kBlock == 0;
    const RoundAhead rounded = rounds ? RoundAhead(*reader->weight, batch.n_tokens, linear_, linear_scratch_) : RoundAhead();
    attention_.run(at(o.out), at(o.q), *o.kv, batch, state, o.args, pool_, fresh, rounded);
    if (reader) linear_of_rounded(*reader, at, rounded);
    return true;
  }

  // f(row) for n rows of `work` elements each.
  template <class F>
  void rows(int64_t n, int64_t work, F f) {
    if (n * work <= kInlineWork || pool_.size() == 1) {
      for (int64_t r = 0; r < n; r++) f(r);
      return;
    }
    pool_.parallel(n, std::max(n / (4 * pool_.size()), kInlineWork / 4 / work), [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; r++) f(r);
    });
  }

  // Calls f(rows, first row, first channel, channels) for every sequence, its channels in pieces of a multiple of `unit`. `work`:
  // elements per row and channel; `size`: floats of scratch per state.
  template <class F>
  void recurrent(const SlotState& slot, const Batch& batch, const StateMemory& state, int64_t channels, int64_t unit, int64_t work,
                 int64_t size, F f) {
    const GroupTable& table = batch.group[slot.ref.group];
    const auto& memory = state.group[slot.ref.group];
    auto at = [&](int32_t u) { return memory.unit(u) + slot.ref.offset + slot.offset; };
    store_.resize(size_t(batch.n_tokens));
    parents_.resize(size_t(batch.n_tokens));
    for (int s = 0; s < batch.n_seqs; s++) {
      for (int r = batch.row_begin[s]; r < batch.row_begin[s + 1]; r++) {
        store_[size_t(r)] = table.dst[r] < 0 ? nullptr : at(table.dst[r]);
        if (batch.corner[s] == Corner::bits) parents_[size_t(r)] = std::max(-1, batch.parent[r] - batch.row_begin[s]);
      }
    }
    state_scratch_.resize(size_t(pool_.size()));
    const bool together = channels * batch.n_tokens * work <= 2 * kInlineWork;
    int64_t grain = together ? channels : std::max<int64_t>(1, channels * batch.n_seqs / (8 * pool_.size()));
    grain = std::min(channels, (grain + unit - 1) / unit * unit);
    const int64_t pieces = (channels + grain - 1) / grain, n_pieces = pieces * batch.n_seqs;
    pool_.parallel(n_pieces, together ? n_pieces : 1, [&](int64_t piece, int64_t end, int worker) {
      for (; piece < end; piece++) {
        const int64_t s = piece / pieces, first = piece % pieces * grain, begin = batch.row_begin[s], n = batch.rows(int(s));
        const bool tree = batch.corner[s] == Corner::bits;
        std::vector<float>& scratch = state_scratch_[size_t(worker)];
        scratch.resize(std::max(scratch.size(), size_t((tree ? n + 1 : 1) * size)));
        f({int(n), tree ? parents_.data() + begin : nullptr, at(table.src[s]), store_.data() + begin, scratch.data()}, begin, first,
          std::min(grain, channels - first));
      }
    });
  }

  Isa isa_;
  ThreadPool pool_;
  const OpKernels& ops_;
  const LinearKernels& linear_;
  LinearScratch linear_scratch_;
  ExpertScratch expert_scratch_;
  CpuAttention attention_;
  std::vector<SampleScratch> sample_scratch_;
  std::vector<int32_t> sampled_;  // by output row of the previous step
  std::vector<void*> store_;
  std::vector<int32_t> parents_;
  std::vector<std::vector<float>> state_scratch_;  // per worker
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(Isa isa, int n_threads) { return std::make_unique<CpuBackend>(isa, n_threads); }

}  // namespace mr
