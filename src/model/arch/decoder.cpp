// The decoder that Llama made usual: RMS norms, rotary grouped-query attention, gated feed-forward. Families that follow it
// state their differences only.
#include <cmath>

#include "model/arch/arch.h"
#include "model/rope.h"

namespace mr {

Activation activation_from(const Config& config, const std::string& name) {
  if (name == "silu" || name == "swish") return Activation::silu;
  if (name == "gelu") return Activation::gelu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::gelu_tanh;
  if (name == "relu") return Activation::relu;
  if (name == "relu2") return Activation::relu2;
  config.require(false, "activation '{}' is not known", name);
  return Activation::silu;
}

MoeSpec moe_from(const Config& config, const char* count, bool renormalize) {
  MoeSpec moe;
  moe.experts = int(config.positive(count));
  moe.used = int(config.positive("num_experts_per_tok"));
  moe.hidden = int(config.positive("intermediate_size"));
  moe.activation = activation_from(config, config.text("hidden_act", "silu"));
  moe.renormalize = renormalize;
  config.require(moe.used <= moe.experts, "a token cannot use {} of {} experts", moe.used, moe.experts);
  return moe;
}

// The window of one layer: layer_types names it, else every layer has it unless the family switches it off.
static int window_of(const Config& config, int layer) {
  if (!config.has("sliding_window") || !config.boolean("use_sliding_window", true)) return 0;
  if (config.has("layer_types")) {
    const Json& types = config.json().at("layer_types");
    config.require(types.is_array() && int(types.size()) > layer && types[size_t(layer)].is_string(),
                   "'layer_types' does not name layer {}", layer);
    return types[size_t(layer)] == "sliding_attention" ? int(config.integer("sliding_window")) : 0;
  }
  if (config.has("max_window_layers") && layer < config.integer("max_window_layers")) return 0;
  return int(config.integer("sliding_window"));
}

// The width of each layer's feed-forward: one for all, or a list.
static std::vector<int32_t> widths(const Config& config) {
  const size_t layers = size_t(config.layers());
  if (!config.json().value("intermediate_size", Json()).is_array())
    return std::vector<int32_t>(layers, int32_t(config.positive("intermediate_size")));
  std::vector<int32_t> each = config.integers("intermediate_size");
  config.require(each.size() == layers, "'intermediate_size' has {} entries for {} layers", each.size(), layers);
  return each;
}

ModelSpec decoder_spec(const Config& config, const DecoderTraits& traits) {
  ModelSpec spec;
  spec.dim = int(config.positive("hidden_size"));
  spec.vocab = int(config.positive("vocab_size"));
  spec.max_context = int(config.positive("max_position_embeddings"));
  spec.norm = {Norm::Kind::rms, float(config.number("rms_norm_eps", 1e-6))};
  spec.tied = config.boolean("tie_word_embeddings", false);
  spec.eos = config.integers("eos_token_id");

  AttentionSpec a;
  a.heads = int(config.positive("num_attention_heads"));
  a.kv_heads = int(config.integer("num_key_value_heads", a.heads));
  a.head_dim = int(config.integer("head_dim", spec.dim / a.heads));
  config.require(a.head_dim > 0, "'head_dim' must not be 0");
  a.scale = 1 / std::sqrt(float(a.head_dim));
  a.qkv_bias = traits.qkv_bias;
  a.out_bias = traits.out_bias;
  a.qk_norm = traits.qk_norm;
  RopeSpec rope = rope_from(config, a.head_dim);
  if (rope.scaling == RopeSpec::Scaling::dynamic)
    spec.max_context = config.narrow(double(spec.max_context) * rope.factor, "the context times the rope's factor");
  int rope_index = spec.add_rope(rope);

  std::string activation = config.text("hidden_activation", config.text("hidden_act", traits.activation));
  const std::vector<int32_t> hidden = widths(config);
  MlpSpec mlp{0, activation_from(config, activation), true, traits.mlp_bias};
  std::vector<int32_t> with_rope = config.integers("no_rope_layers");  // 1: this layer has rope
  for (int i = 0; i < config.layers(); i++) {
    bool positions = size_t(i) >= with_rope.size() || with_rope[size_t(i)];
    a.rope = positions ? rope_index : -1;
    a.window = window_of(config, i);
    mlp.hidden = hidden[size_t(i)];
    spec.layers.push_back({a, mlp});
  }
  return spec;
}

NameMap decoder_names() {
  return {{{"embedding", "model.embed_tokens"},
           {"final_norm", "model.norm"},
           {"output", "lm_head"},
           {"mixer_norm", "model.layers.{}.input_layernorm"},
           {"ffn_norm", "model.layers.{}.post_attention_layernorm"},
           {"q", "model.layers.{}.self_attn.q_proj"},
           {"k", "model.layers.{}.self_attn.k_proj"},
           {"v", "model.layers.{}.self_attn.v_proj"},
           {"o", "model.layers.{}.self_attn.o_proj"},
           {"q_norm", "model.layers.{}.self_attn.q_norm"},
           {"k_norm", "model.layers.{}.self_attn.k_norm"},
           {"gate", "model.layers.{}.mlp.gate_proj"},
           {"up", "model.layers.{}.mlp.up_proj"},
           {"down", "model.layers.{}.mlp.down_proj"}}};
}

NameMap decoder_gguf_names() {
  return {{{"embedding", "token_embd"},
           {"final_norm", "output_norm"},
           {"output", "output"},
           {"mixer_norm", "blk.{}.attn_norm"},
           {"ffn_norm", "blk.{}.ffn_norm"},
           {"q", "blk.{}.attn_q"},
           {"k", "blk.{}.attn_k"},
           {"v", "blk.{}.attn_v"},
           {"o", "blk.{}.attn_output"},
           {"q_norm", "blk.{}.attn_q_norm"},
           {"k_norm", "blk.{}.attn_k_norm"},
           {"gate", "blk.{}.ffn_gate"},
           {"up", "blk.{}.ffn_up"},
           {"down", "blk.{}.ffn_down"}}};
}

NameMap with_gguf_experts(NameMap names) {
  names.entries.insert(names.entries.end(), {{"router", "blk.{}.ffn_gate_inp"},
                                             {"expert_gate", "blk.{}.ffn_gate_exps"},
                                             {"expert_up", "blk.{}.ffn_up_exps"},
                                             {"expert_down", "blk.{}.ffn_down_exps"}});
  return names;
}

}  // namespace mr
