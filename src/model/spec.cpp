#include "model/spec.h"

namespace mr {

int ModelSpec::add_rope(const RopeSpec& rope) {
  for (size_t i = 0; i < ropes.size(); i++)
    if (ropes[i] == rope) return int(i);
  ropes.push_back(rope);
  return int(ropes.size()) - 1;
}

template <class... F>
struct Overload : F... {
  using F::operator()...;
};

static int64_t parameters(const MixerSpec& mixer, int64_t dim) {
  return std::visit(
      Overload{[&](const AttentionSpec& a) {
                 int64_t q = int64_t(a.heads) * a.head_dim, kv = a.kv_owner < 0 ? int64_t(a.kv_heads) * a.head_dim : 0;
                 return dim * (q + 2 * kv) + q * dim + (a.qkv_bias ? q + 2 * kv : 0) + (a.out_bias ? dim : 0) +
                        (a.qk_norm ? (kv ? 2 : 1) * a.head_dim : 0);
               },
               [&](const MlaSpec& m) {
                 int64_t q = int64_t(m.heads) * (m.nope_dim + m.rope_dim), v = int64_t(m.heads) * m.v_dim;
                 int64_t queries = m.q_rank ? m.q_rank * (dim + 1 + q) : dim * q;
                 return queries + dim * (m.kv_rank + m.rope_dim) + m.kv_rank + m.kv_rank * (int64_t(m.heads) * m.nope_dim + v) + v * dim;
               },
               [&](const MambaSpec& m) {
                 int64_t inner = m.inner;
                 return dim * 2 * inner + inner * m.conv + inner * (m.dt_rank + 2 * m.n_state) + m.dt_rank * inner + inner +
                        inner * m.n_state + inner + inner * dim + (m.conv_bias ? inner : 0) + (m.proj_bias ? 2 * inner + dim : 0) +
                        (m.norms == MambaSpec::Norms::weighted ? m.dt_rank + 2 * m.n_state : 0);
               },
               [&](const Mamba2Spec& m) {
                 int64_t inner = m.inner(), in = inner + m.conv_channels() + m.heads;
                 return dim * in + int64_t(m.conv_channels()) * (m.conv + m.conv_bias) + 3 * m.heads + inner + inner * dim +
                        (m.proj_bias ? in + dim : 0);
               }},
      mixer);
}

// all_experts: every expert counts; else those that one token uses.
static int64_t parameters(const FfnSpec& ffn, int64_t dim, bool all_experts) {
  return std::visit(
      Overload{
          [](std::monostate) { return int64_t(0); },
          [&](const MlpSpec& m) { return (m.gated ? 3 : 2) * dim * m.hidden + (m.bias ? (m.gated ? 2 : 1) * m.hidden + dim : 0); },
          [&](const MoeSpec& m) { return dim * m.experts + (all_experts ? m.experts : m.used) * 3 * dim * m.hidden + 3 * dim * m.shared; }},
      ffn);
}

int64_t norm_parameters(const ModelSpec& spec) {
  int64_t norm = spec.norm.kind == Norm::Kind::layer ? 2 * spec.dim : spec.dim, n = norm;
  for (const LayerSpec& layer : spec.layers) {
    bool has_ffn = !std::holds_alternative<std::monostate>(layer.ffn);
    n += norm * (has_ffn ? 2 : 1) * (layer.post_norms ? 2 : 1) + (spec.per_layer ? norm : 0);
  }
  return n + spec.per_layer;
}

int64_t table_parameters(const ModelSpec& spec) {
  return int64_t(spec.vocab) * (spec.dim * (spec.tied ? 1 : 2) + int64_t(spec.layers.size()) * spec.per_layer);
}

static int64_t count(const ModelSpec& spec, bool all_experts) {
  int64_t n = table_parameters(spec) + norm_parameters(spec);
  n += int64_t(spec.layers.size()) * 3 * spec.per_layer * spec.dim;
  for (const LayerSpec& layer : spec.layers)
    n += parameters(layer.mixer, spec.dim) + parameters(layer.ffn, spec.dim, all_experts) + layer.scaled;
  return n;
}

int64_t parameters(const ModelSpec& spec) { return count(spec, true); }
int64_t active_parameters(const ModelSpec& spec) { return count(spec, false); }

ModelFacts facts_of(const ModelSpec& spec, DType kv_dtype) {
  ModelFacts facts{.n_layers = int(spec.layers.size()), .parameters = parameters(spec), .plain_blocks = true, .kv_dtype = kv_dtype};
  for (const LayerSpec& layer : spec.layers) {
    const auto* a = std::get_if<AttentionSpec>(&layer.mixer);
    if (a) facts.attention.push_back({a->heads, a->kv_heads, a->head_dim, a->window});
    facts.plain_blocks &= a && std::holds_alternative<MlpSpec>(layer.ffn);
  }
  return facts;
}

static int64_t conv_bytes(int64_t width, int64_t channels) { return ((width - 1) * channels * 4 + 63) / 64 * 64; }
int64_t conv_state_bytes(const MambaSpec& m) { return conv_bytes(m.conv, m.inner); }
int64_t conv_state_bytes(const Mamba2Spec& m) { return conv_bytes(m.conv, m.conv_channels()); }

StateSpec state_of(const MixerSpec& mixer, DType kv_dtype) {
  return std::visit(Overload{[&](const AttentionSpec& a) {
                               PagedKv kv{{}, kv_dtype, a.kv_heads, a.head_dim, a.head_dim};
                               return StateSpec{StateSpec::Kind::paged, kv.bytes_per_token(), a.window};
                             },
                             [&](const MlaSpec& m) {
                               PagedKv latent{{}, kv_dtype, 1, m.kv_rank + m.rope_dim, 0};  // values are read from the keys
                               return StateSpec{StateSpec::Kind::paged, latent.bytes_per_token(), 0};
                             },
                             [](const MambaSpec& m) {
                               return StateSpec{StateSpec::Kind::slot, conv_state_bytes(m) + int64_t(m.inner) * m.n_state * 4};
                             },
                             [](const Mamba2Spec& m) {
                               return StateSpec{StateSpec::Kind::slot, conv_state_bytes(m) + int64_t(m.inner()) * m.n_state * 4};
                             }},
                    mixer);
}

StateLayout layout_of(const ModelSpec& spec, DType kv_dtype) {
  StateLayout layout;
  for (const LayerSpec& layer : spec.layers) {
    auto* attention = std::get_if<AttentionSpec>(&layer.mixer);
    if (!attention || attention->kv_owner < 0) layout.add(state_of(layer.mixer, kv_dtype));
  }
  return layout;
}

}  // namespace mr
