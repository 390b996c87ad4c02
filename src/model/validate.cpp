#include "model/validate.h"

#include <cmath>

#include "core/error.h"

namespace mr {

namespace {

// These bounds keep all sums over layers within 64 bits: a layer has less than 2^49 parameters, the tables
// have less than 2^50, and a token takes less than 2^40 bytes of state before that is checked.
constexpr int64_t kLayers = 4096;
constexpr int64_t kWidth = 1 << 20;        // of the model; ranks; numbers of heads and experts
constexpr int64_t kHeadDim = 8192;         // of one head
constexpr int64_t kInner = 1 << 24;        // of all heads together, of a feed-forward
constexpr int64_t kExperts = 1 << 18;      // of all layers together
constexpr int64_t kExpertCells = 1 << 26;  // experts times their width
constexpr int64_t kVocab = 1 << 24;
constexpr int64_t kContext = 1 << 30;
constexpr int64_t kConv = 1024;
constexpr int64_t kStreams = 64;
constexpr int64_t kStateCells = int64_t(1) << 30;  // values of one layer's recurrent state
constexpr int64_t kParameters = int64_t(1) << 50;
constexpr int64_t kTokenBytes = int64_t(1) << 30;     // times the longest context: 2^60
constexpr int64_t kSequenceBytes = int64_t(1) << 40;  // of recurrent layers

class Checker {
 public:
  explicit Checker(const std::string& where) : where_(where) {}

  template <class... Args>
  void require(bool ok, fmt::format_string<Args...> text, Args&&... args) const {
    if (!ok) throw Error(sentence("{}: ", where_) + sentence(text, std::forward<Args>(args)...));
  }
  void size(std::string_view what, int64_t n, int64_t low, int64_t high) const {
    require(n >= low && n <= high, "{} is {}, but must be between {} and {}", what, n, low, high);
  }
  // NaN fails.
  void number(std::string_view what, double x, double low, double high) const {
    require(x >= low && x <= high, "{} is {:g}, but must be between {:g} and {:g}", what, x, low, high);
  }
  void numbers(std::string_view what, const std::vector<float>& list, double low, double high) const {
    for (float x : list) number(what, x, low, high);
  }

 private:
  const std::string& where_;
};

void check_rope(const Checker& c, const RopeSpec& r) {
  using S = RopeSpec::Scaling;
  c.size("the number of rotated dimensions", r.dim, 2, kHeadDim);
  c.size("the number of rotated pairs", r.pairs, 0, r.dim / 2);
  c.number("the rope's theta", r.theta, 1.001, 1e15);
  c.number("the rope's factor", r.factor, 1e-3, 1e6);
  c.size("the rope's original context", r.original, 0, kContext);
  c.number("the rope's attention factor", r.attention_factor, 0, 1e6);
  c.number("the rope's mscale", r.mscale, 0, 1e6);
  c.number("the rope's mscale_all_dim", r.mscale_all_dim, 0, 1e6);
  c.numbers("an entry of the rope's short_factor", r.short_factor, 1e-6, 1e9);
  c.numbers("an entry of the rope's long_factor", r.long_factor, 1e-6, 1e9);
  if (r.scaling == S::llama3) {
    c.number("the rope's low_freq_factor", r.low_freq_factor, 1e-6, 1e6);
    c.number("the rope's high_freq_factor", r.high_freq_factor, std::nextafter(r.low_freq_factor, 2e6f), 1e6);
  }
  if (r.scaling == S::yarn) {
    c.number("the rope's beta_slow", r.beta_slow, 1e-6, 1e6);
    c.number("the rope's beta_fast", r.beta_fast, r.beta_slow, 1e6);
  }
  if (r.scaling == S::longrope && r.factor > 1) c.size("the rope's original context", r.original, 2, kContext);
}

void check_mixer(const Checker& c, const AttentionSpec& a, const ModelSpec& spec) {
  c.size("the number of attention heads", a.heads, 1, kWidth);
  c.size("the number of key/value heads", a.kv_heads, 1, a.heads);
  c.size("the size of a head", a.head_dim, 1, kHeadDim);
  c.size("heads times their size", int64_t(a.heads) * a.head_dim, 1, kInner);
  c.require(a.heads % a.kv_heads == 0, "{} query heads cannot share {} key/value heads", a.heads, a.kv_heads);
  c.number("the scale of attention", a.scale, 1e-6, 1e6);
  c.size("the attention window", a.window, 0, kContext);
  c.number("the cap of attention's logits", a.softcap, 0, 1e6);
  c.size("the index of a rope", a.rope, -1, int64_t(spec.ropes.size()) - 1);
  if (a.rope >= 0) c.size("the number of rotated dimensions", spec.ropes[size_t(a.rope)].dim, 2, a.head_dim);
}

// Shared keys and values must belong to an earlier layer, have the same shape, and cover all that this layer sees.
void check_owner(const Checker& c, const ModelSpec& spec, size_t layer) {
  const AttentionSpec* a = std::get_if<AttentionSpec>(&spec.layers[layer].mixer);
  if (!a || a->kv_owner == -1) return;
  c.size("the layer whose keys and values are shared", a->kv_owner, 0, int64_t(layer) - 1);
  const AttentionSpec* owner = std::get_if<AttentionSpec>(&spec.layers[size_t(a->kv_owner)].mixer);
  c.require(owner && owner->kv_owner == -1, "layer {} reads the keys of layer {}, which has none of its own", layer, a->kv_owner);
  c.require(owner->kv_heads == a->kv_heads && owner->head_dim == a->head_dim,
            "layer {} reads {} keys of {} a token, but layer {} keeps {} of {}", layer, a->kv_heads, a->head_dim, a->kv_owner,
            owner->kv_heads, owner->head_dim);
  c.require(owner->window == 0 || (a->window > 0 && a->window <= owner->window),
            "layer {} sees more tokens than the window of {} that layer {} keeps", layer, owner->window, a->kv_owner);
}

void check_mixer(const Checker& c, const MlaSpec& m, const ModelSpec&) {
  c.size("the number of attention heads", m.heads, 1, kWidth);
  c.size("q_lora_rank", m.q_rank, 0, kWidth);
  c.size("kv_lora_rank", m.kv_rank, 1, kWidth);
  for (int dim : {m.nope_dim, m.rope_dim, m.v_dim}) c.size("a part of a head", dim, 1, kHeadDim);
  c.size("heads times their size", int64_t(m.heads) * (m.nope_dim + m.rope_dim + m.v_dim), 1, kInner);
}

void check_mixer(const Checker& c, const MambaSpec& m, const ModelSpec&) {
  c.size("the inner width of Mamba", m.inner, 1, kInner);
  c.size("the state size of Mamba", m.n_state, 1, kWidth);
  c.size("the values of Mamba's state", int64_t(m.inner) * m.n_state, 1, kStateCells);
  c.size("the width of the convolution", m.conv, 1, kConv);
  c.size("the rank of Mamba's time step", m.dt_rank, 1, kWidth);
  if (m.norms != MambaSpec::Norms::none) c.number("the epsilon of Mamba's norms", m.norm_eps, 1e-20, 1);
}

void check_mixer(const Checker& c, const Mamba2Spec& m, const ModelSpec&) {
  c.size("the number of Mamba-2's heads", m.heads, 1, kWidth);
  c.size("the size of a head", m.head_dim, 1, kHeadDim);
  c.size("the state size of Mamba-2", m.n_state, 1, kWidth);
  c.size("the number of Mamba-2's groups", m.groups, 1, m.heads);
  c.require(m.heads % m.groups == 0, "{} heads cannot share {} groups", m.heads, m.groups);
  c.size("the width of the convolution", m.conv, 1, kConv);
  c.size("heads times their size", int64_t(m.heads) * m.head_dim, 1, kInner);
  c.size("groups times the state size", int64_t(m.groups) * m.n_state, 1, kInner);
  c.size("the values of Mamba-2's state", int64_t(m.heads) * m.head_dim * m.n_state, 1, kStateCells);
  c.number("the least time step", m.dt_min, 0, 1e6);
  c.number("the largest time step", m.dt_max, m.dt_min, std::numeric_limits<double>::infinity());
}

void check_mixer(const Checker& c, const GatedConvSpec& m, const ModelSpec&) {
  c.size("the channels of the convolution", m.dim, 1, kWidth);
  c.size("the width of the convolution", m.conv, 2, kConv);  // of one it keeps no state, and a model of such layers none at all
}

void check_ffn(const Checker&, std::monostate) {}

void check_ffn(const Checker& c, const MlpSpec& m) {
  c.size("the width of the feed-forward", m.hidden, 1, kInner);
  c.number("the sparsity of the feed-forward", m.sparsity, 0, 0.9999);
}

void check_ffn(const Checker& c, const MoeSpec& m) {
  c.size("the number of experts", m.experts, 1, kWidth);
  c.size("the experts that a token uses", m.used, 1, m.experts);
  c.size("the width of an expert", m.hidden, 1, kInner);
  c.size("experts times their width", int64_t(m.experts) * m.hidden, 1, kExpertCells);
  c.size("the width of the shared experts", m.shared, 0, kInner);
}

}  // namespace

void validate(const ModelSpec& spec, const std::string& where) {
  Checker c(where);
  c.size("the number of layers", int64_t(spec.layers.size()), 1, kLayers);
  c.size("the hidden size", spec.dim, 1, kWidth);
  c.size("the vocabulary", spec.vocab, 1, kVocab);
  c.size("the context", spec.max_context, 1, kContext);
  c.size("the size of a layer's own input", spec.per_layer, 0, kWidth);
  c.size("all layers' own inputs", int64_t(spec.per_layer) * int64_t(spec.layers.size()), 0, kInner);
  c.size("the vocabulary of layers' own inputs", spec.per_layer_vocab, spec.per_layer ? 1 : 0, kVocab);
  c.size("the number of AltUp's streams", spec.altup.streams, 0, kStreams);
  if (spec.altup.streams) c.size("AltUp's active stream", spec.altup.active, 0, spec.altup.streams - 1);
  c.number("the epsilon of norms", spec.norm.eps, 1e-20, 1);
  c.number("the scale of embeddings", spec.embedding_scale, 1e-6, 1e6);
  c.number("the scale of residuals", spec.residual_scale, 1e-6, 1e6);
  c.number("the scale of logits", spec.logit_scale, 1e-6, 1e6);
  c.number("the cap of logits", spec.logit_softcap, 0, 1e6);
  for (const RopeSpec& rope : spec.ropes) check_rope(c, rope);
  int64_t n_experts = 0;
  for (size_t i = 0; i < spec.layers.size(); i++) {
    const LayerSpec& layer = spec.layers[i];
    std::visit([&](const auto& mixer) { check_mixer(c, mixer, spec); }, layer.mixer);
    std::visit([&](const auto& ffn) { check_ffn(c, ffn); }, layer.ffn);
    if (const auto* moe = std::get_if<MoeSpec>(&layer.ffn)) n_experts += moe->experts;
    c.size("the rank of Laurel", layer.laurel, 0, kWidth);
    check_owner(c, spec, i);
  }
  c.size("the number of experts of all layers", n_experts, 0, kExperts);
  c.size("the number of parameters", parameters(spec), 1, kParameters);
  StateLayout layout = layout_of(spec, {DType::f32});
  c.size("the state of a token, in bytes,", layout.bytes_per_token(), 0, kTokenBytes);
  c.size("the state of a sequence, in bytes,", layout.bytes_per_sequence(), 0, kSequenceBytes);
}

}  // namespace mr
