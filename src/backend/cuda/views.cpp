#include "backend/cuda/views.h"

#include <bit>

#include "core/error.h"

namespace mr::cuda {

Matrix matrix(Tensor t) { return {t.data, t.dtype, t.shape[0], t.shape[1], t.stride[0]}; }
Heads heads(Tensor t) {
  if (t.rank == 2) return {t.data, t.dtype, t.shape[0], 1, t.shape[1], t.stride[0], t.shape[1]};
  return {t.data, t.dtype, t.shape[0], t.shape[1], t.shape[2], t.stride[0], t.stride[1]};
}
const float* floats(Tensor t) { return t.as<const float>(); }

bool aligned(const Matrix& m) { return reinterpret_cast<uintptr_t>(m.data) % 16 == 0 && m.stride * size_of(m.dtype) % 16 == 0; }

std::optional<Packing> packing_of(const Codec& codec) {
  const Grid& grid = codec.grid;
  if (grid.group != 32 || grid.table || grid.levels || grid.scale != Grid::Scale::f16) return std::nullopt;
  if (grid.bits == 8 && grid.offset == 128 && !grid.minimum) return Packing::q8_0;
  if (grid.bits == 4 && grid.offset == 8 && !grid.minimum) return Packing::q4_0;
  if (grid.bits == 4 && grid.offset == 0 && grid.minimum) return Packing::q4_1;
  return std::nullopt;
}

Packed packed(const Weight& w) { return {packing_of(*w.codec).value_or(Packing::bf16), w.packed.data, w.scale.data, w.out, w.in}; }

Product product_of(Tensor out, Tensor x, const Weight& weight, const Epilogue& e) {
  Product p{weight.packed.data, weight.out, weight.in, matrix(x), matrix(out), floats(e.bias), floats(e.residual), 0, e.scale};
  if (e.residual) p.residual_stride = e.residual.stride[0];
  return p;
}

Product gated_product(Tensor out, Tensor x, const Weight& weight, Activation act) {
  Product p{weight.packed.data, weight.out, weight.in, matrix(x), matrix(out)};
  p.gated = true;
  p.activation = act;
  return p;
}

bool shape_fits(const Product& p) { return p.in % 8 == 0 && !(p.gated && p.out % 16); }

Slots slots(const SlotState& slot, const Batch& batch, const StateMemory& state) {
  const StateMemory::GroupMemory& memory = state.group[size_t(slot.ref.group)];
  const GroupTable& table = batch.group[size_t(slot.ref.group)];
  return {memory.base + slot.ref.offset + slot.offset, memory.unit_bytes, table.src, table.dst};
}

Recurrence recurrence(const Batch& b) { return {b.n_seqs, b.row_begin, b.parent, b.corner}; }

Spots spots(const Batch& b) { return {b.n_seqs, b.n_tokens, b.row_begin, b.context, b.position, b.corner, b.ancestors}; }

Pages pages(const PagedKv& kv, const Batch& batch, const StateMemory& state) {
  const StateMemory::GroupMemory& memory = state.group[size_t(kv.ref.group)];
  check(kv.dtype == DType::f32 || kv.dtype == DType::f16 || kv.dtype == DType::bf16, "keys and values cannot be stored as {}",
        kv.format().name);
  const GroupTable& table = batch.group[size_t(kv.ref.group)];
  const unsigned tokens = unsigned(memory.page_tokens);
  const int shift = std::has_single_bit(tokens) ? std::countr_zero(tokens) : -1;
  const int64_t before = kv.ref.offset * memory.page_tokens,
                block = layer_bytes({StateSpec::Kind::paged, kv.bytes_per_token()}) * memory.page_tokens;
  return {memory.base + before * memory.n_units,
          block,
          memory.page_tokens,
          shift,
          kv.dtype,
          kv.kv_heads,
          kv.k_dim,
          kv.v_dim,
          table.unit,
          table.begin,
          kv.ref.group};
}

AttendCall call_of(Tensor out, Tensor q, const PagedKv& kv, const Batch& batch, const StateMemory& state, const AttendArgs& args) {
  check(args.heads % kv.kv_heads == 0, "{} query heads cannot share {} key heads", args.heads, kv.kv_heads);
  AttendCall call;
  call.q = heads(q);
  call.out = heads(out);
  call.pages = pages(kv, batch, state);
  call.spots = spots(batch);
  call.heads = args.heads;
  call.scale = args.scale;
  call.window = args.window;
  call.softcap = args.softcap;
  call.sinks = floats(args.sinks);
  return call;
}

// Up to a few hundred rows its fused epilogues win, act(gate) * up and the residual add; up to a few thousand it wins in total,
// since the next kernel can overlap its end. It computes tiles of 256 rows, so little of the last one may be padding.
bool suits_many(const Product& p) {
  if (p.x.rows <= kFewRows || p.x.rows > 2048 || !shape_fits(p)) return false;
  if (p.x.rows <= kSomeRows) return p.gated || (p.residual && p.residual == p.y.data);
  return (p.x.rows + 255) / 256 * 256 * 5 <= p.x.rows * 6;
}

std::optional<SelectCall> select_call(Tensor out, Tensor u, Tensor z, const Selection& select, const DiagScan& scan) {
  if (packing_of(*select.x->codec) || packing_of(*select.low->codec)) return std::nullopt;
  SelectCall s{.rows = {.out = matrix(out), .x = matrix(u), .dt_bias = floats(select.dt_bias), .gate = matrix(z)},
               .low = select.low->packed.data,
               .rank = int(select.low->in),
               .n_state = scan.n_state,
               .norms = select.norms[0] != nullptr,
               .a = floats(scan.a),
               .d = floats(scan.d)};
  for (int i = 0; s.norms && i < 3; i++) {
    const Norm& n = *select.norms[i];
    if (n.kind != Norm::Kind::rms || n.bias || n.offset != 0) return std::nullopt;
    s.eps[i] = n.eps;
    s.weight[i] = floats(n.weight);
  }
  return s;
}

}  // namespace mr::cuda
