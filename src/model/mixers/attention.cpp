// Softmax attention with grouped key/value heads (MHA: as many as query heads, MQA: one), rotary positions, optional norms
// on the heads, optional window. Reads and writes pages of its group; a layer that uses another's keys and values only reads.
#include <fmt/format.h>

#include "model/mixers/mixers.h"

namespace mr {

static PagedKv kept(const AttentionSpec& spec, const StateTypes& types) {
  return {{}, types.kv, spec.kv_heads, spec.head_dim, spec.head_dim};
}

class Attention final : public Mixer {
 public:
  Attention(const AttentionSpec& spec, BuildContext& build) : spec_(spec) {
    Loader& load = build.loader;
    int64_t q = int64_t(spec.heads) * spec.head_dim, kv = int64_t(spec.kv_heads) * spec.head_dim;
    if (load.has("qkv", build.layer)) {
      qkv_ = load.linear({{"qkv", q + 2 * kv}}, build.spec.dim, spec.qkv_bias, build.layer);
    } else if (own_kv()) {
      qkv_ = load.linear({{"q", q, spec.head_dim}, {"k", kv, spec.head_dim}, {"v", kv}}, build.spec.dim, spec.qkv_bias, build.layer);
    } else {
      qkv_ = load.linear({{"q", q, spec.head_dim}}, build.spec.dim, spec.qkv_bias, build.layer);
    }
    out_ = load.linear({{"o", build.spec.dim}}, q, spec.out_bias, build.layer);
    if (spec.qk_norm) {
      q_norm_ = load.norm(build.spec.norm, "q_norm", spec.head_dim, build.layer);
      if (own_kv()) k_norm_ = load.norm(build.spec.norm, "k_norm", spec.head_dim, build.layer);
    }
    v_norm_.eps = build.spec.norm.eps;
    if (spec.rope >= 0) rope_ = &build.ropes[size_t(spec.rope)];
    kv_ = own_kv() ? kept(spec, build.types) : build.kv[size_t(spec.kv_owner)];
    if (own_kv()) kv_.ref = build.layout.add(spec.state(build.types));
    if (own_kv() && kv_.format().largest > 0 && !kv_.format().scaled) {
      kv_.k_scale = load.kv_scale("k", build.layer);
      kv_.v_scale = load.kv_scale("v", build.layer);
    }
    build.kv[size_t(build.layer)] = kv_;
  }

  Value record(Recorder& r, Value x) const override {
    const Value qkv = qkv_(r, x);
    const Value q = heads(qkv, 0, spec_.heads);
    const Value angles = rope_ ? r.angles(*rope_) : Value{};
    if (spec_.qk_norm) r.norm_in_place(q, q_norm_);
    if (own_kv()) {
      const Value k = heads(qkv, spec_.heads, spec_.kv_heads), v = heads(qkv, spec_.heads + spec_.kv_heads, spec_.kv_heads);
      if (spec_.qk_norm) r.norm_in_place(k, k_norm_);
      if (spec_.v_norm) r.norm_in_place(v, v_norm_);
      if (rope_) r.rope(q, angles, false);
      if (rope_) r.rope(k, angles, false);
      r.store_kv(k, v, kv_);
    } else if (rope_) {
      r.rope(q, angles, false);
    }
    return out_(r, r.attend(q, kv_, {.heads = spec_.heads, .scale = spec_.scale, .window = spec_.window, .softcap = spec_.softcap}));
  }

 private:
  bool own_kv() const { return spec_.kv_owner < 0; }

  // Heads [first, first + n) of the fused projection, as [T, n, d].
  Value heads(Value qkv, int64_t first, int n) const { return qkv.columns(first * spec_.head_dim, n * spec_.head_dim).as_heads(n); }

  AttentionSpec spec_;
  Linear qkv_;  // [(heads + 2 kv_heads) * head_dim, dim]; with shared keys and values: only q
  Linear out_;  // [dim, heads * head_dim]
  Norm q_norm_, k_norm_, v_norm_;
  PagedKv kv_;
  const RopeTable* rope_ = nullptr;  // may be null
};

int64_t AttentionSpec::parameters(int64_t dim) const {
  const int64_t q = int64_t(heads) * head_dim, kv = kv_owner < 0 ? int64_t(kv_heads) * head_dim : 0;
  return dim * (q + 2 * kv) + q * dim + (qkv_bias ? q + 2 * kv : 0) + (out_bias ? dim : 0) + (qk_norm ? (kv ? 2 : 1) * head_dim : 0);
}

StateSpec AttentionSpec::state(const StateTypes& types) const {
  return {StateSpec::Kind::paged, kv_owner < 0 ? kept(*this, types).bytes_per_token() : 0, window};
}

static const char* grouping(const AttentionSpec& a) { return a.kv_heads == a.heads ? "MHA" : a.kv_heads == 1 ? "MQA" : "GQA"; }

std::string AttentionSpec::text(const ModelSpec& model) const {
  std::string text = fmt::format("{} attention, {} query and {} key/value heads of {}", grouping(*this), heads, kv_heads, head_dim);
  if (window) text += fmt::format(", window {}", window);
  text += rope < 0 ? ", no positions" : fmt::format(", rope theta {:g}", model.ropes[size_t(rope)].theta);
  if (qk_norm) text += ", norms on q and k";
  if (kv_owner >= 0) text += fmt::format(", keys and values of layer {}", kv_owner);
  return text;
}

std::string AttentionSpec::kind() const {
  std::string text = fmt::format("{} {}:{}", grouping(*this), heads, kv_heads);
  if (window) text += fmt::format(", window {}", window);
  return text + (kv_owner >= 0 ? ", shares K/V" : "");
}

std::unique_ptr<Mixer> make(const AttentionSpec& spec, BuildContext& build) { return std::make_unique<Attention>(spec, build); }

}  // namespace mr
