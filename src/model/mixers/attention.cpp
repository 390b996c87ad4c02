// Softmax attention with grouped key/value heads (MHA: as many as query heads, MQA: one), rotary positions, optional norms
// on the heads, optional window. Reads and writes pages of its group; a layer that shares another's keys and values only reads.
#include "model/mixers/mixers.h"

namespace mr {

class Attention final : public Mixer {
 public:
  Attention(const AttentionSpec& spec, BuildContext& build) : spec_(spec) {
    Loader& load = build.loader;
    int64_t q = int64_t(spec.heads) * spec.head_dim, kv = int64_t(spec.kv_heads) * spec.head_dim;
    if (own_kv()) {
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
    kv_ = {{}, build.kv_dtype, spec.kv_heads, spec.head_dim, spec.head_dim};
    kv_.ref = own_kv() ? build.layout.add(state_of(spec, build.kv_dtype)) : build.kv[size_t(spec.kv_owner)];
    build.kv[size_t(build.layer)] = kv_.ref;
  }

  void forward(Tensor out, const Input& x, const Epilogue& epilogue, Step& step) const override {
    Backend& ops = step.ops;
    const int64_t rows = x.rows(), d = spec_.head_dim;
    Tensor qkv = qkv_(x, step);
    Tensor q = heads(qkv, 0, spec_.heads), k, v;
    if (spec_.qk_norm) ops.norm(q, q, q_norm_);
    if (own_kv()) {
      k = heads(qkv, spec_.heads, spec_.kv_heads), v = heads(qkv, spec_.heads + spec_.kv_heads, spec_.kv_heads);
      if (spec_.qk_norm) ops.norm(k, k, k_norm_);
      if (spec_.v_norm) ops.norm(v, v, v_norm_);
    }
    Tensor mixed = step.activation({rows, spec_.heads, d});
    if (out.shape[0] == rows) out_.announce(step);
    ops.attend_new(mixed, q, k, v, spec_.rope >= 0 ? step.angles[size_t(spec_.rope)] : Tensor{}, false, kv_, step.batch, step.state,
                   {.heads = spec_.heads, .scale = spec_.scale, .window = spec_.window, .softcap = spec_.softcap});
    mixed = step.rows_of(out, mixed.reshape({rows, spec_.heads * d}));
    if (out.shape[0] > 0) out_.into(out, mixed, step, epilogue);
  }

  int64_t workspace(int64_t rows) const override {
    return arena_bytes(rows * qkv_.out()) + arena_bytes(rows * spec_.heads * spec_.head_dim) +
           arena_bytes(rows / 2 * spec_.heads * spec_.head_dim);
  }
  int64_t decode_bytes() const override { return qkv_.bytes() + out_.bytes(); }

 private:
  bool own_kv() const { return spec_.kv_owner < 0; }

  // Heads [first, first + n) of the fused projection, as [T, n, d].
  Tensor heads(Tensor qkv, int64_t first, int64_t n) const {
    Tensor t = qkv.cols(first * spec_.head_dim, n * spec_.head_dim);
    t.rank = 3;
    t.shape = {qkv.shape[0], n, spec_.head_dim};
    t.stride = {qkv.stride[0], spec_.head_dim, 1};
    return t;
  }

  AttentionSpec spec_;
  Linear qkv_;  // [(heads + 2 kv_heads) * head_dim, dim]; sharing: q alone
  Linear out_;  // [dim, heads * head_dim]
  Norm q_norm_, k_norm_, v_norm_;
  PagedKv kv_;
};

std::unique_ptr<Mixer> make_attention(const AttentionSpec& spec, BuildContext& build) { return std::make_unique<Attention>(spec, build); }

}  // namespace mr
