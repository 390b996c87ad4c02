#include "convert/gguf_metadata.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "model/rope.h"

namespace mr {

namespace {

// The mixer of that kind of the first layer that has one; null: none has.
template <class T>
const T* first_mixer(const ModelSpec& spec) {
  for (const LayerSpec& layer : spec.layers)
    if (const T* m = std::get_if<T>(&layer.mixer)) return m;
  return nullptr;
}

// A number for each layer, or one if all are equal.
GgufValue each_or_one(const std::vector<int32_t>& each) {
  if (std::ranges::count(each, each[0]) == int64_t(each.size())) return {uint32_t(each[0])};
  return {GgufValue::List(each)};
}

// The size that readers of Gemma's files scale scores by: of a head, in the largest model the width for each head.
float read_scale(const ModelSpec& spec, const AttentionSpec& a) {
  const size_t largest = spec.arch == "gemma2" ? 46 : 62;
  return 1 / std::sqrt(float(spec.layers.size() == largest ? spec.dim / a.heads : a.head_dim));
}

class Writer {
 public:
  Writer(const ModelSpec& spec, const Config& config, const GgufTarget& target) : spec_(spec), config_(config), arch_(target.name) {}

  GgufMetadata write() {
    general("architecture", {arch_});
    general("type", {std::string("model")});
    general("quantization_version", {uint32_t(2)});
    put("vocab_size", {uint32_t(spec_.vocab)});
    put("context_length", {uint32_t(spec_.max_context)});
    put("embedding_length", {uint32_t(spec_.dim)});
    put("block_count", {uint32_t(spec_.layers.size())});
    put(spec_.norm.kind == Norm::Kind::rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon", {spec_.norm.eps});
    feed_forward();
    const AttentionSpec* a = first_mixer<AttentionSpec>(spec_);
    if (a)
      attention(*a);
    else
      put("attention.head_count", {uint32_t(0)});
    if (const auto* m = first_mixer<MambaSpec>(spec_)) state_space(m->conv, m->inner, m->n_state, m->dt_rank);
    if (const auto* m = first_mixer<Mamba2Spec>(spec_)) {
      state_space(m->conv, m->inner(), m->n_state, m->heads);
      put("ssm.group_count", {uint32_t(m->groups)});
    }
    if (const auto* m = first_mixer<MambaSpec>(spec_); m && arch_ == "mamba") put("ssm.dt_b_c_rms", {m->norms == MambaSpec::Norms::plain});
    if (const auto* m = first_mixer<GatedConvSpec>(spec_)) put("shortconv.l_cache", {uint32_t(m->conv)});
    scales();
    if (spec_.altup.streams) streams();
    return std::move(out_);
  }

 private:
  void general(const std::string& key, GgufValue value) { out_.push_back({"general." + key, std::move(value)}); }
  void put(const std::string& key, GgufValue value) { out_.push_back({arch_ + "." + key, std::move(value)}); }

  void feed_forward() {
    std::vector<int32_t> widths;
    const MoeSpec* moe = nullptr;
    for (const LayerSpec& layer : spec_.layers) {
      const auto* mlp = std::get_if<MlpSpec>(&layer.ffn);
      const auto* experts = std::get_if<MoeSpec>(&layer.ffn);
      if (experts) moe = experts;
      widths.push_back(mlp ? mlp->hidden : experts ? experts->hidden : 0);
    }
    if (arch_ == "qwen3moe") widths.assign(1, int32_t(config_.integer("intermediate_size", widths[0])));
    put("feed_forward_length", each_or_one(widths));
    if (!moe) return;
    put("expert_count", {uint32_t(moe->experts)});
    put("expert_used_count", {uint32_t(moe->used)});
    if (arch_ == "qwen3moe") put("expert_feed_forward_length", {uint32_t(moe->hidden)});
  }

  void attention(const AttentionSpec& a) {
    std::vector<int32_t> kv_heads;
    std::vector<bool> windows;
    int window = 0;
    for (const LayerSpec& layer : spec_.layers) {
      const auto* own = std::get_if<AttentionSpec>(&layer.mixer);
      kv_heads.push_back(own ? own->kv_heads : 0);
      windows.push_back(own && own->window);
      if (own && own->window) window = own->window;
    }
    put("attention.head_count", {uint32_t(a.heads)});
    put("attention.head_count_kv", each_or_one(kv_heads));
    put("attention.key_length", {uint32_t(a.head_dim)});
    put("attention.value_length", {uint32_t(a.head_dim)});
    if (window) put("attention.sliding_window", {uint32_t(window)});
    if (window && std::ranges::count(windows, false) && spec_.arch != "gemma2")
      put("attention.sliding_window_pattern", {GgufValue::List(windows)});
    if (a.softcap) put("attn_logit_softcapping", {a.softcap});
    rope(windows);
  }

  void rope(const std::vector<bool>& windows) {
    const AttentionSpec* global = nullptr;
    const AttentionSpec* local = nullptr;
    for (size_t i = 0; i < spec_.layers.size(); i++)
      if (const auto* a = std::get_if<AttentionSpec>(&spec_.layers[i].mixer); a && a->rope >= 0) (windows[i] ? local : global) = a;
    if (!global) global = local;
    if (!global) return;
    const RopeSpec& r = spec_.ropes[size_t(global->rope)];
    put("rope.freq_base", {r.theta});
    put("rope.dimension_count", {uint32_t(r.dim)});
    if (local && local->rope != global->rope) put("rope.freq_base_swa", {spec_.ropes[size_t(local->rope)].theta});
    using S = RopeSpec::Scaling;
    if (r.scaling == S::linear || r.scaling == S::yarn) {
      put("rope.scaling.type", {std::string(r.scaling == S::linear ? "linear" : "yarn")});
      put("rope.scaling.factor", {r.factor});
    }
    if (r.scaling == S::yarn || r.scaling == S::longrope) put("rope.scaling.original_context_length", {uint32_t(r.original)});
    if (r.scaling == S::longrope) put("rope.scaling.attn_factor", {make_rope(r).scale});
    if (r.scaling == S::yarn && r.attention_factor) put("rope.scaling.attn_factor", {r.attention_factor});
  }

  void state_space(int conv, int inner, int n_state, int rank) {
    put("ssm.conv_kernel", {uint32_t(conv)});
    put("ssm.inner_size", {uint32_t(inner)});
    put("ssm.state_size", {uint32_t(n_state)});
    put("ssm.time_step_rank", {uint32_t(rank)});
  }

  void scales() {
    if (spec_.logit_softcap) put("final_logit_softcapping", {spec_.logit_softcap});
    if (spec_.arch != "granite") return;
    put("attention.scale", {float(config_.number("attention_multiplier", 1))});
    put("embedding_scale", {float(config_.number("embedding_multiplier", 1))});
    put("residual_scale", {float(config_.number("residual_multiplier", 1))});
    put("logit_scale", {float(config_.number("logits_scaling", 1))});
  }

  // Gemma 3n. The sparsity is stored as the quantile of the normal distribution that it stands for.
  void streams() {
    put("altup.active_idx", {uint32_t(spec_.altup.active)});
    put("altup.num_inputs", {uint32_t(spec_.altup.streams)});
    put("embedding_length_per_layer_input", {uint32_t(spec_.per_layer)});
    int shared = 0;
    std::vector<float> quantiles;
    for (const LayerSpec& layer : spec_.layers) {
      shared += std::get<AttentionSpec>(layer.mixer).kv_owner >= 0;
      quantiles.push_back(quantile(std::get<MlpSpec>(layer.ffn).sparsity));
    }
    put("attention.shared_kv_layers", {uint32_t(shared)});
    put("activation_sparsity_scale", {GgufValue::List(quantiles)});
  }

  static float quantile(double share) {
    if (share <= 0) return -std::numeric_limits<float>::infinity();
    double low = -40, high = 40;
    for (int i = 0; i < 100; i++) {
      const double middle = (low + high) / 2;
      (std::erfc(-middle / std::sqrt(2.0)) / 2 < share ? low : high) = middle;
    }
    return float(low);
  }

  const ModelSpec& spec_;
  const Config& config_;
  std::string arch_;
  GgufMetadata out_;
};

}  // namespace

GgufTarget gguf_target(const ModelSpec& spec) {
  const std::string_view family = spec.arch == "mistral" ? "llama" : spec.arch == "falcon_mamba" ? "mamba" : std::string_view(spec.arch);
  const Arch& arch = arch_named(family);
  check(!arch.gguf.name.empty(), "models of family '{}' cannot be written as GGUF", spec.arch);
  return {&arch, arch.gguf.name == "mixtral" ? "llama" : std::string(arch.gguf.name)};
}

ModelSpec as_read_from_gguf(ModelSpec spec) {
  spec.norm.offset = 0;
  if (spec.arch == "gemma2" || spec.arch == "gemma3_text")
    for (LayerSpec& layer : spec.layers) {
      auto& a = std::get<AttentionSpec>(layer.mixer);
      a.scale = read_scale(spec, a);
    }
  return spec;
}

GgufMetadata gguf_metadata(const ModelSpec& spec, const Config& config, const GgufTarget& target) {
  return Writer(spec, config, target).write();
}

std::vector<std::pair<std::string, std::vector<float>>> rope_tensors(const ModelSpec& spec) {
  for (const RopeSpec& r : spec.ropes) {
    if (r.scaling == RopeSpec::Scaling::longrope)
      return {{"rope_factors_long.weight", r.long_factor}, {"rope_factors_short.weight", r.short_factor}};
    if (r.scaling == RopeSpec::Scaling::factors) return {{"rope_freqs.weight", r.short_factor}};
    if (r.scaling != RopeSpec::Scaling::llama3) continue;
    RopeSpec plain = r;
    plain.scaling = RopeSpec::Scaling::none;
    const std::vector<float> scaled = make_rope(r).inv_freq;
    std::vector<float> divisors = make_rope(plain).inv_freq;
    for (size_t i = 0; i < divisors.size(); i++) divisors[i] /= scaled[i];
    return {{"rope_freqs.weight", divisors}};
  }
  return {};
}

// The frequencies decide, not how they are said.
static bool alike(const RopeSpec& a, const RopeSpec& b) {
  const RopeTable x = make_rope(a), y = make_rope(b);
  auto near = [](float p, float q) { return std::abs(p - q) <= 1e-5f * std::abs(p); };
  return x.length == y.length && x.dim == y.dim && near(x.scale, y.scale) && std::ranges::equal(x.inv_freq, y.inv_freq, near) &&
         std::ranges::equal(x.long_inv_freq, y.long_inv_freq, near);
}

// Without what containers say each in their own way.
static ModelSpec essence(ModelSpec spec) {
  spec.arch.clear();
  spec.eos.clear();
  spec.norm.offset = 0;
  for (LayerSpec& layer : spec.layers) {
    if (auto* a = std::get_if<AttentionSpec>(&layer.mixer)) a->scale = std::round(a->scale * 1e6f) / 1e6f;
    if (auto* mlp = std::get_if<MlpSpec>(&layer.ffn)) mlp->sparsity = std::round(mlp->sparsity * 1e4f) / 1e4f;
  }
  return spec;
}

// In words: which part of two models differs first.
static std::string difference(const ModelSpec& wanted, const ModelSpec& written) {
  const ModelSpec a = essence(wanted), b = essence(written);
  if (a.layers.size() != b.layers.size()) return "the number of layers";
  for (size_t i = 0; i < a.layers.size(); i++)
    if (!(a.layers[i] == b.layers[i]))
      return fmt::format("layer {} ('{}', not '{}')", i, text_of(written.layers[i], written), text_of(wanted.layers[i], wanted));
  if (a.max_context != b.max_context) return "the longest context";
  if (!(a.norm == b.norm)) return "the norms";
  return "a size or a scale";
}

void check_same_model(const ModelSpec& wanted, const ModelSpec& written, const std::string& what) {
  ModelSpec a = essence(wanted), b = essence(written);
  bool ropes = a.ropes.size() == b.ropes.size();
  for (size_t i = 0; ropes && i < a.ropes.size(); i++) ropes = alike(a.ropes[i], b.ropes[i]);
  check(ropes, "{} cannot say how this model's positions are scaled", what);
  a.ropes.clear();
  b.ropes.clear();
  check(a == b, "{} cannot say all of this model: {} would differ", what, difference(wanted, written));
}

}  // namespace mr
