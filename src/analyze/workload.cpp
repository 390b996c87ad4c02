#include "analyze/workload.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace mr {

FlashCost flash_attention(double s, double h, double fast_words) {
  FlashCost c{s, h, fast_words};
  c.tile = std::clamp(std::floor(fast_words / (4 * h)), 1.0, s);
  const double whole = std::floor(s / c.tile);                                          // tiles of queries
  const double keys = c.tile * whole * (whole + 1) / 2 + (whole * c.tile < s ? s : 0);  // read by them
  c.flops = 4 * h * s * (s + 1) / 2;
  c.words = 2 * s * h + 2 * h * keys;
  c.extra_words = 2 * s;
  c.law_flops = 4 * s * s * h;
  c.law_words = s * s * h * h / fast_words;
  c.law_extra_words = s;
  return c;
}

void set_law(Operation& o, std::string_view symbols, double value, double bytes) {
  o.law = bytes == 2 ? std::string(symbols) : bytes == 1 ? fmt::format("2·{}", symbols) : fmt::format("{} · 2/{:.3g}", symbols, bytes);
  o.law_intensity = value * 2 / bytes;
}

void set_attention_law(Operation& o, const Phase& p, double g, int window, double bytes) {
  const double t = p.rows, s = window ? std::min<double>(p.context, window) : p.context;
  set_law(o, g == 1 ? "S·T/(S+T)" : "G·S·T/(S+G·T)", g * s * t / (s + g * t), bytes);
}

void set_experts_law(Operation& o, double rows, double experts, double used, double bytes) {
  set_law(o, "B·T·k/(E·(1-(1-k/E)^(B·T)))", rows * used / experts_read(experts, used, rows), bytes);
}

void set_scan_law(Operation& o, const Phase& p, double flops, DType state) {
  const double moved = 2 * double(size_of(state));  // each value is read and written once a step
  o.law = fmt::format("T·{:g}/{:g}", flops, moved);
  o.law_intensity = p.rows * flops / moved;
}

std::string attention_name(int window) { return window ? fmt::format("attention, window {}", window) : "attention"; }

double ring_bytes(int chips, double bytes) { return 2.0 * (chips - 1) / chips * bytes; }

void check_parts(std::span<const Phase> parts) {
  check(!parts.empty(), "a step without sequences is none");
  for (const Phase& p : parts)
    check(p.batch >= 1 && p.rows >= 1 && p.context >= p.rows, "a step of {} sequences with {} rows in {} tokens is none", p.batch, p.rows,
          p.context);
}

namespace {

class Counter {
 public:
  Counter(const ModelSpec& spec, const Storage& storage, std::span<const Phase> parts, int chips)
      : spec_(spec), s_(storage), shape_(parts), first_(parts[0]), chips_(chips), a_(storage.activation) {
    seqs_ = shape_.sequences;
    rows_ = shape_.tokens;
    out_rows_ = shape_.outputs;
  }

  std::vector<Operation> count() {
    const double dim = spec_.dim;
    Operation& embed = op("embedding");
    embed.read += rows_ * dim * s_.table;
    embed.written += rows_ * dim * a_;
    if (spec_.per_layer) per_layer_inputs();
    for (auto [layer, n] : kinds()) {
      std::vector<Operation> before = std::exchange(ops_, {});
      block(*layer);
      std::vector<Operation> own = std::exchange(ops_, std::move(before));
      for (Operation& o : own) add(o, n);
    }
    if (out_rows_ > 0) output();
    return std::move(ops_);
  }

 private:
  // Equal layers cost the same: each kind with its count.
  std::vector<std::pair<const LayerSpec*, int>> kinds() const {
    std::vector<std::pair<const LayerSpec*, int>> all;
    for (const LayerSpec& layer : spec_.layers) {
      auto kind = std::ranges::find_if(all, [&](auto& k) { return *k.first == layer; });
      kind == all.end() ? (void)all.emplace_back(&layer, 1) : (void)kind->second++;
    }
    return all;
  }

  void add(Operation& o, int n) {
    o.layers *= n;
    for (double* x : {&o.flops, &o.weights, &o.state, &o.read, &o.written, &o.link}) *x *= n;
    auto known = std::ranges::find(ops_, o.name, &Operation::name);
    if (known == ops_.end()) return ops_.push_back(std::move(o));
    known->layers += o.layers;
    for (double Operation::*x :
         {&Operation::flops, &Operation::weights, &Operation::state, &Operation::read, &Operation::written, &Operation::link})
      (*known).*x += o.*x;
  }

  void block(const LayerSpec& layer) {
    check(!spec_.altup.streams && !layer.laurel,
          "blocks with AltUp or Laurel are counted as they run, so only the model as it is can be analysed");
    norms(layer.post_norms ? 2 : 1, rows_);
    std::visit([&](const auto& mixer) { mix(mixer); }, layer.mixer);
    all_reduce();
    if (!std::holds_alternative<std::monostate>(layer.ffn)) {
      norms(layer.post_norms ? 2 : 1, rows_);
      std::visit([&](const auto& ffn) { feed(ffn); }, layer.ffn);
      all_reduce();
    }
    if (spec_.per_layer) per_layer_gate();
  }

  Operation& op(const std::string& name) {
    auto known = std::ranges::find(ops_, name, &Operation::name);
    if (known == ops_.end()) known = ops_.insert(known, {.name = name});
    known->layers++;
    return *known;
  }

  // [rows, in] . [in, out]: reads the weights and its input, writes its output.
  Operation& product(const std::string& name, double rows, double in, double out, bool table = false) {
    Operation& o = op(name);
    const double bytes = table ? s_.table : s_.block;
    o.product = true;
    o.format = table ? s_.table_product : s_.block_product;
    o.flops += 2 * rows * in * out;
    o.weights += in * out * bytes;
    o.read += rows * in * a_;
    o.written += rows * out * a_;
    set_law(o, table ? "B" : "B·T", table ? out_rows_ : rows, bytes);
    return o;
  }

  void elementwise(const std::string& name, double flops, double read, double written) {
    Operation& o = op(name);
    o.flops += rows_ * flops;
    o.read += rows_ * read * a_;
    o.written += rows_ * written * a_;
  }

  // With the residual: reads it and the addend, writes the sum and the normed sum. Replicated on every chip.
  void norms(int n, double rows) {
    Operation& o = op("norms, residual");
    const double values = n * rows * spec_.dim;
    o.split = false;
    o.flops += 5 * values;
    o.weights += double(n) * spec_.dim * a_;
    o.read += 2 * values * a_;
    o.written += 2 * values * a_;
  }

  void all_reduce() {
    if (chips_ == 1) return;
    Operation& o = op("all-reduce");
    o.split = false;
    o.link += ring_bytes(chips_, rows_ * spec_.dim * a_);
  }

  void mix(const AttentionSpec& a) {
    const double q = double(a.heads) * a.head_dim, kv = double(a.kv_heads) * a.head_dim, own = a.kv_owner < 0 ? 1 : 0;
    product("q, k, v", rows_, spec_.dim, q + 2 * own * kv);
    const double kept = kv_bytes(s_, {{}, DType::bf16, a.kv_heads, a.head_dim, a.head_dim});
    if (a.rope >= 0) {
      Operation& store = op("rope, store K/V");
      store.flops += 3 * rows_ * (a.heads + own * a.kv_heads) * spec_.ropes[size_t(a.rope)].dim;
      store.read += rows_ * (q + 2 * own * kv) * a_;
      store.written += rows_ * (q * a_ + own * kept);
    } else if (own > 0) {
      Operation& store = op("store K/V");
      store.read += rows_ * 2 * kv * a_;
      store.written += rows_ * kept;
    }

    Operation& o = op(attention_name(a.window));
    o.flops += 4 * shape_.pairs(a.window) * q;
    o.state += shape_.keys(a.window) * kept;
    o.read += rows_ * q * a_;
    o.written += rows_ * q * a_;
    o.state_ways = a.kv_heads;
    set_attention_law(o, first_, double(a.heads) / a.kv_heads, a.window, s_.kv);
    product("attention out", rows_, q, spec_.dim);
  }

  // Absorbed: queries are projected into the latent space, so that only latents are read. Expanded: keys and values are computed from
  // the latents first, cheaper if many rows share them.
  void mix(const MlaSpec& m) {
    const double n = m.heads, latent = m.kv_rank + m.rope_dim, qk = m.nope_dim + m.rope_dim;
    if (m.q_rank) product("q down", rows_, spec_.dim, m.q_rank);
    product("q up", rows_, m.q_rank ? m.q_rank : spec_.dim, n * qk);
    product("latent down", rows_, spec_.dim, latent);
    const double token = kv_bytes(s_, {{}, DType::bf16, 1, m.kv_rank + m.rope_dim, 0});
    op("store latent").written += rows_ * token;

    const double all = shape_.pairs(0), kept = shape_.keys(0);
    const double absorb = 2 * rows_ * n * m.kv_rank * (m.nope_dim + m.v_dim), absorbed = 2 * all * n * (latent + m.kv_rank);
    const double expand = 2 * kept * n * m.kv_rank * (m.nope_dim + m.v_dim), expanded = 2 * all * n * (qk + m.v_dim);
    const bool absorbs = absorb + absorbed <= expand + expanded;
    Operation& up = op(absorbs ? "absorb latent" : "expand latent");
    up.product = true;
    up.format = s_.block_product;
    up.flops += absorbs ? absorb : expand;
    up.weights += double(m.kv_rank) * n * (m.nope_dim + m.v_dim) * s_.block;
    up.read += (absorbs ? rows_ * n * (m.nope_dim + m.kv_rank) : kept * m.kv_rank) * a_;
    up.written += (absorbs ? rows_ * n * (m.kv_rank + m.v_dim) : kept * n * (m.nope_dim + m.v_dim)) * a_;

    Operation& o = op("latent attention");
    o.flops += absorbs ? absorbed : expanded;
    o.state_ways = 1;
    if (absorbs) {
      o.state += kept * token;
      o.read += rows_ * n * latent * a_;
      o.written += rows_ * n * m.kv_rank * a_;
      set_law(o, "N·(2r+d)/(r+d)", n * (latent + m.kv_rank) / latent * first_.rows, s_.kv);
    } else {
      o.read += (kept * n * (qk + m.v_dim) + rows_ * n * qk) * a_;
      o.written += rows_ * n * m.v_dim * a_;
      set_law(o, "S·T/(S+T)", first_.context * first_.rows / (first_.context + first_.rows), 2);
    }
    product("attention out", rows_, n * m.v_dim, spec_.dim);
  }

  // A mixer that runs needs no closed form: its program is counted. Only a what-if would need one.
  void mix(const auto& mixer) {
    fail("{}: layers of this kind are counted as they run, so only the model as it is can be analysed", mixer.kind());
  }

  void convolve(double channels, double width, double state_bytes) {
    Operation& o = op("convolution");
    o.flops += rows_ * channels * (2 * width + 4);
    o.weights += channels * width * a_;
    o.state += seqs_ * state_bytes;
    o.read += rows_ * channels * a_;
    o.written += rows_ * channels * a_ + seqs_ * state_bytes;
  }

  // values: of the state h; flops per value and token: decay, input, output.
  void scan(double inner, double values, double flops, double inputs, double weights) {
    Operation& o = op("scan");
    o.flops += rows_ * (flops * values + 3 * inner);
    o.weights += weights * 4;
    const double state = seqs_ * values * double(size_of(s_.scan));
    o.state += state;
    o.read += rows_ * inputs * a_;
    o.written += rows_ * inner * a_ + state;
    set_scan_law(o, first_, flops, s_.scan);
  }

  void mix(const MambaSpec& m) {
    const double inner = m.inner, dbc = m.dt_rank + 2.0 * m.n_state;
    product("in", rows_, spec_.dim, 2 * inner);
    convolve(inner, m.conv, double(m.conv_bytes()));
    product("dt, B, C", rows_, inner, dbc);
    product("dt", rows_, m.dt_rank, inner);
    scan(inner, inner * m.n_state, diag_scan_flops, 2 * inner + 2.0 * m.n_state, inner * m.n_state);
    elementwise("gate", 5 * inner, 2 * inner, inner);
    product("out", rows_, inner, spec_.dim);
  }

  void mix(const Mamba2Spec& m) {
    const double inner = m.inner();
    product("in", rows_, spec_.dim, inner + m.conv_channels() + m.heads);
    convolve(m.conv_channels(), m.conv, double(m.conv_bytes()));
    scan(inner, inner * m.n_state, outer_scan_flops, m.conv_channels() + m.heads, 2.0 * m.heads);
    elementwise("gate", 9 * inner, 2 * inner, inner);
    product("out", rows_, inner, spec_.dim);
  }

  void feed(std::monostate) {}

  void feed(const MlpSpec& m) {
    const double f = m.hidden;
    product("feed-forward up", rows_, spec_.dim, (m.gated ? 2 : 1) * f);
    elementwise("gate", 5 * f, (m.gated ? 2 : 1) * f, f);
    product("feed-forward down", rows_, f, spec_.dim);
  }

  void feed(const MoeSpec& m) {
    const double f = m.hidden, chosen = rows_ * m.used;
    product("router", rows_, spec_.dim, m.experts);
    Operation& o = op("experts");
    o.product = true;
    o.format = s_.block_product;
    o.flops += 6 * chosen * spec_.dim * f;
    o.weights += experts_read(m.experts, m.used, rows_) * 3 * spec_.dim * f * s_.block;
    o.read += chosen * (spec_.dim + 3 * f + spec_.dim) * a_;
    o.written += chosen * (3 * f + spec_.dim) * a_ + rows_ * spec_.dim * a_;
    set_experts_law(o, rows_, m.experts, m.used, s_.block);
    elementwise("gate", 5 * f * m.used, 0, 0);  // its reads and writes are counted with the experts
    if (m.shared) feed(MlpSpec{m.shared});
  }

  void per_layer_inputs() {
    const double width = double(spec_.layers.size()) * spec_.per_layer;
    op("embedding").read += rows_ * width * s_.table;
    product("per-layer inputs", rows_, spec_.dim, width);
  }

  void per_layer_gate() {
    product("per-layer gate", rows_, spec_.dim, spec_.per_layer);
    product("per-layer out", rows_, spec_.per_layer, spec_.dim);
    norms(1, rows_);
  }

  void output() {
    const double n = out_rows_;
    norms(1, n);
    Operation& o = product("output layer", n, spec_.dim, spec_.vocab, true);
    o.written += n * spec_.vocab * (4 - a_);  // logits are f32
    Operation& sample = op("sampling");
    sample.flops += 3 * n * spec_.vocab;
    sample.read += n * spec_.vocab * 4;
    sample.split = false;
  }

  const ModelSpec& spec_;
  const Storage& s_;
  const BatchShape shape_;
  const Phase& first_;
  int chips_;
  double a_;                                   // bytes of an activation
  double seqs_ = 0, rows_ = 0, out_rows_ = 0;  // of the whole batch
  std::vector<Operation> ops_;
};

// The state of a layer; in a format that the engine does not have, as many bytes as its keys and values take.
StateSpec kept_by(const LayerSpec& layer, const Storage& s) {
  const StateTypes types{s.kv_dtype.value_or(DType::f32), s.scan};
  StateSpec state = std::visit([&](const auto& mixer) { return mixer.state(types); }, layer.mixer);
  if (state.kind == StateSpec::Kind::paged && !s.kv_dtype) state.bytes = int64_t(std::ceil(double(state.bytes) / 4 * s.kv));
  return state;
}

}  // namespace

std::vector<Operation> operations(const ModelSpec& spec, const Storage& storage, std::span<const Phase> parts, int chips) {
  check_parts(parts);
  return Counter(spec, storage, parts, chips).count();
}

double parameter_bytes(const ModelSpec& spec, const Storage& s) {
  double tables = double(table_parameters(spec)), rest = double(parameters(spec) - norm_parameters(spec)) - tables;
  return tables * s.table + rest * s.block;
}

double state_bytes(const ModelSpec& spec, const Storage& storage, double context, int chips) {
  double bytes = 0;
  for (const LayerSpec& layer : spec.layers) {
    StateLayout one;  // rounds as the engine does
    StateSpec state = kept_by(layer, storage);
    if (!state.bytes) continue;
    one.add(state);
    const int ways = std::visit([](const auto& mixer) { return mixer.division().state_ways; }, layer.mixer);
    double share = 1.0 / (ways ? std::min(ways, chips) : chips), tokens = state.window ? std::min<double>(context, state.window) : context;
    bytes += share * (tokens * double(one.bytes_per_token()) + double(one.bytes_per_sequence()));
  }
  return bytes;
}

double mha_state_bytes(const ModelSpec& spec, const Storage& storage, double context) {
  double values = 0, n_attention = 0;
  for (const LayerSpec& layer : spec.layers) {
    if (auto* a = std::get_if<AttentionSpec>(&layer.mixer)) {
      n_attention++;
      values += 2.0 * a->heads * a->head_dim;
    }
    if (auto* m = std::get_if<MlaSpec>(&layer.mixer)) {
      n_attention++;
      values += double(m->heads) * (m->nope_dim + m->rope_dim + m->v_dim);
    }
  }
  return n_attention ? values / n_attention * double(spec.layers.size()) * storage.kv * context : 0;
}

double kv_bytes(const Storage& s, const PagedKv& kv) {
  if (!s.kv_dtype) return double(kv.kv_heads) * (kv.k_dim + kv.v_dim) * s.kv;
  PagedKv stored = kv;
  stored.dtype = *s.kv_dtype;
  return double(stored.bytes_per_token());
}

bool keeps_keys(const ModelSpec& spec) {
  return std::ranges::any_of(spec.layers, [](const LayerSpec& layer) { return kept_by(layer, {}).kind == StateSpec::Kind::paged; });
}

std::vector<StateKind> state_kinds(const ModelSpec& spec, const Storage& storage) {
  std::vector<StateKind> kinds;
  for (const LayerSpec& layer : spec.layers) {
    std::string name = std::visit([](const auto& mixer) { return mixer.kind(); }, layer.mixer);
    auto kind = std::ranges::find(kinds, name, &StateKind::name);
    if (kind == kinds.end()) kind = kinds.insert(kind, {.name = name});
    kind->layers++;
    StateSpec state = kept_by(layer, storage);
    kind->window = state.window;
    if (!state.bytes) continue;
    StateLayout one;
    one.add(state);
    kind->bytes_per_token += one.bytes_per_token();
    kind->bytes_per_sequence += one.bytes_per_sequence();
  }
  return kinds;
}

}  // namespace mr
