// Default implementations: host memory, synchronous, one operation after the other.
#include "backend/backend.h"

#include <cmath>
#include <cstring>

#include "core/config.h"
#include "core/error.h"
#include "program/walk.h"
#include "state/state_manager.h"

namespace mr {

Tensor by_token(Tensor x, int64_t n_tokens) {
  if (x.rank == 3) return x;
  const int64_t k = x.shape[0] / n_tokens;
  x.shape = {n_tokens, k, x.shape[1]};
  x.stride = {k * x.stride[0], x.stride[0], 1};
  x.rank = 3;
  return x;
}

std::span<const DType> Backend::kv_dtypes() const {
  static const std::vector<DType> types = [] {
    std::vector<DType> all;
    for (const KvFormat& f : kv_formats()) all.push_back(f.element);
    return all;
  }();
  return types;
}
std::span<const DType> Backend::state_dtypes() const {
  static constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};
  return kTypes;
}

DeviceMemory Backend::memory() const { return {physical_memory(), false}; }

void Backend::copy_in(void* to, const void* host, size_t bytes) { std::memcpy(to, host, bytes); }
void Backend::copy_out(void* host, const void* from, size_t bytes) { std::memcpy(host, from, bytes); }

void Backend::carry_out(std::span<const UnitCopy> copies, const StateMemory& state, const StateMemory& host) {
  mr::carry_out(copies, state, host);
}

Weight Backend::place(const StoredWeight& stored, WeightStore& store) { return place_stored(stored, store, pool()); }

// Pseudorandom value in [-1, 1) for element i of a stream (splitmix64).
static float made_up_value(uint64_t seed, uint64_t i) {
  uint64_t z = seed + 0x9e3779b97f4a7c15u * (i + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return float(int64_t(z ^ (z >> 31)) >> 40) * 0x1p-23f;
}

Weight Backend::make_up(int64_t out, int64_t in, uint64_t seed, WeightStore& store) {
  const Codec& bf16 = get_codec("bf16");
  if (store.mode() == WeightStore::Mode::counts) return place(StoredWeight(bf16, nullptr, out, in), store);  // which reads no rows
  std::vector<uint16_t> values(size_t(out * in));
  const float spread = std::sqrt(3.0f / float(in));
  pool().parallel(out, 64, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin * in; i < end * in; i++) values[size_t(i)] = bf16_from_f32(spread * made_up_value(seed, uint64_t(i)));
  });
  return place(StoredWeight(bf16, values.data(), out, in), store);
}

void Backend::run_op(const Op& op, const Bound& at, const Batch& batch, const StateMemory& state) {
  struct Run {
    Backend& ops;
    const Bound& at;
    const Batch& batch;
    const StateMemory& state;

    void operator()(const EmbedOp& o) { ops.embed(at(o.out), *o.table, o.scale, batch); }
    void operator()(const NormOp& o) { ops.norm(at(o.out), at(o.x), *o.norm); }
    void operator()(const LinearOp& o) { ops.linear(at(o.out), at(o.x), *o.weight, {o.bias, at(o.residual), o.scale}); }
    void operator()(const AddOp& o) { ops.add(at(o.into), at(o.x), o.scale); }
    void operator()(const GateOp& o) { ops.gate(at(o.out), at(o.gate), at(o.up), o.act); }
    void operator()(const ActivateOp& o) { ops.activate(at(o.x), o.act); }
    void operator()(const AnglesOp& o) { ops.angles(at(o.out), *o.rope, batch); }
    void operator()(const RopeOp& o) { ops.rope(at(o.x), at(o.angles), o.interleaved); }
    void operator()(const StoreKvOp& o) { ops.store_kv(*o.kv, at(o.k), at(o.v), batch, state); }
    void operator()(const AttendOp& o) { ops.attend(at(o.out), at(o.q), *o.kv, batch, state, o.args); }
    void operator()(const ShortConvOp& o) {
      ops.short_conv(at(o.out), at(o.x), o.conv->weight, o.conv->bias, o.conv->act, o.conv->state, batch, state);
    }
    void operator()(const DiagScanOp& o) { ops.diag_scan(at(o.out), at(o.x), at(o.dt), at(o.b), at(o.c), *o.scan, batch, state); }
    void operator()(const OuterScanOp& o) { ops.outer_scan(at(o.out), at(o.x), at(o.dt), at(o.b), at(o.c), *o.scan, batch, state); }
    void operator()(const SoftplusOp& o) { ops.softplus(at(o.x), o.bias); }
    void operator()(const RouteOp& o) { ops.route(at(o.expert), at(o.weight), at(o.logits), o.renormalize); }
    void operator()(const GroupedLinearOp& o) { ops.grouped_linear(at(o.out), at(o.x), o.experts, at(o.expert)); }
    void operator()(const CombineOp& o) { ops.combine(at(o.out), at(o.x), at(o.weight), o.add); }
    void operator()(const MagnitudeOp& o) { ops.magnitude(at(o.out), at(o.x), o.what); }
    void operator()(const GatherOp& o) { ops.gather(at(o.out), at(o.x), batch); }
    void operator()(const SoftcapOp& o) { ops.softcap(at(o.x), o.cap); }
  };
  std::visit(Run{*this, at, batch, state}, op.kind);
}

Tensor Backend::run(const Program& program, const Batch& batch, const StateMemory& state, Arena& arena, Observer* observer) {
  const Bound at(program, program.list(batch.n_tokens, batch.n_out), batch.n_tokens, batch.n_out, arena);
  auto take = [&](const Mark& mark) { return !(observer && joins_two(mark.rule)) && run_mark(mark, at, batch, state); };
  walk(
      at, take, [&](int i) { run_op(at.list().ops[size_t(i)], at, batch, state); },
      [&](int first, int count) {
        if (!observer) return;
        synchronize();
        observer->ran(at, first, count);
      });
  return at(program.logits);
}

void check_conv_widths(const Program& program, int widest, std::string_view backend) {
  for (const Op& op : program.whole.ops)
    if (const ShortConvOp* o = op.get<ShortConvOp>()) {
      const int64_t width = o->conv->weight.shape[1];
      check(width <= widest, "layer {} has a convolution of width {}, but {} takes at most {}", op.layer, width, backend, widest);
    }
}

void Backend::launch_sample(Tensor logits, const Batch& batch) { sample(logits, batch, launched_.emplace_back()); }

void Backend::collect(std::vector<Sampled>& out) {
  check(!launched_.empty(), "no step was launched whose tokens could be collected");
  out = std::move(launched_.front());
  launched_.pop_front();
}

}  // namespace mr
