#include "analyze/presets.h"

#include <fmt/ranges.h>

#include <map>

#include "model/arch/arch.h"

namespace mr {

static constexpr Preset kPresets[] = {
    {"smollm2-135m", R"({"model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
      "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "max_position_embeddings": 8192, "rope_theta": 100000,
      "tie_word_embeddings": true})"},
    {"llama-2-7b", R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
      "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096})"},
    {"llama-2-13b", R"({"model_type": "llama", "hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40,
      "num_attention_heads": 40, "vocab_size": 32000, "max_position_embeddings": 4096})"},
    {"llama-2-70b", R"({"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
      "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 4096})"},
    {"llama-3.1-8b", R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
      "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
      "rope_theta": 500000, "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
      "original_max_position_embeddings": 8192}})"},
    {"llama-3.1-70b", R"({"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
      "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
      "rope_theta": 500000, "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
      "original_max_position_embeddings": 8192}})"},
    {"llama-3.1-405b", R"({"model_type": "llama", "hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126,
      "num_attention_heads": 128, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
      "rope_theta": 500000, "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
      "original_max_position_embeddings": 8192}})"},
    {"mistral-7b", R"({"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
      "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 32768,
      "sliding_window": 4096})"},
    {"mixtral-8x7b", R"({"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
      "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 32768,
      "rope_theta": 1000000, "num_local_experts": 8, "num_experts_per_tok": 2})"},
    {"qwen2.5-7b", R"({"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
      "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 32768,
      "rope_theta": 1000000})"},
    {"qwen3-8b", R"({"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
      "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960,
      "rope_theta": 1000000})"},
    {"gemma-2-9b", R"({"model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 42,
      "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "vocab_size": 256000, "max_position_embeddings": 8192,
      "sliding_window": 4096, "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50, "final_logit_softcapping": 30})"},
    {"gemma-3-27b", R"({"model_type": "gemma3_text", "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 62,
      "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "vocab_size": 262208,
      "max_position_embeddings": 131072, "sliding_window": 1024, "query_pre_attn_scalar": 168})"},
    {"deepseek-v2", R"({"model_type": "deepseek_v2", "hidden_size": 5120, "intermediate_size": 12288, "num_hidden_layers": 60,
      "num_attention_heads": 128, "vocab_size": 102400, "max_position_embeddings": 163840, "q_lora_rank": 1536,
      "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 1,
      "n_routed_experts": 160, "n_shared_experts": 2, "num_experts_per_tok": 6, "moe_intermediate_size": 1536})"},
    // Shaped like what Character.AI described in 2024, at 13B's width: global attention in every sixth layer, one key/value head,
    // neighbouring layers of one kind share keys and values in pairs.
    {"character-hybrid",
     R"({"model_type": "llama", "hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 48,
      "num_attention_heads": 40, "vocab_size": 32000, "max_position_embeddings": 32768})",
     {.kv_heads = 1, .window = 1024, .global_every = 6, .kv_share = 2}},
    {"mamba-2.8b", R"({"model_type": "mamba", "hidden_size": 2560, "num_hidden_layers": 64, "state_size": 16, "conv_kernel": 4,
      "time_step_rank": 160, "vocab_size": 50280})"},
    {"mamba2-2.7b", R"({"model_type": "mamba2", "hidden_size": 2560, "num_hidden_layers": 64, "num_heads": 80, "head_dim": 64,
      "state_size": 128, "n_groups": 1, "conv_kernel": 4, "vocab_size": 50288, "tie_word_embeddings": true})"},
    {"jamba", R"({"model_type": "jamba", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
      "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 65536, "max_position_embeddings": 262144,
      "num_experts": 16, "num_experts_per_tok": 2, "expert_layer_period": 2, "expert_layer_offset": 1, "attn_layer_period": 8,
      "attn_layer_offset": 4, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 256})"},
};

std::span<const Preset> presets() { return kPresets; }

const Preset* find_preset(std::string_view name) {
  for (const Preset& p : kPresets)
    if (p.name == name) return &p;
  return nullptr;
}

std::string preset_names() {
  std::vector<std::string_view> names;
  for (const Preset& p : kPresets) names.push_back(p.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

ModelSpec spec_of(const Preset& p) { return apply(p.what_if, spec_from(Json::parse(p.config), fmt::format("preset {}", p.name))); }

// Groups of n successive layers of one kind use the keys and values of the first.
static void share(ModelSpec& spec, int n) {
  struct Kind {
    int owner = -1, users = 0;
  };
  std::map<std::pair<int, int>, Kind> kinds;  // by window and head size
  std::map<std::pair<int, int>, int> of_kind;
  int most = 0;
  for (int i = 0; i < int(spec.layers.size()); i++) {
    auto* a = std::get_if<AttentionSpec>(&spec.layers[size_t(i)].mixer);
    if (!a) continue;
    Kind& kind = kinds[{a->window, a->head_dim}];
    if (kind.owner < 0 || kind.users == n) kind = {i, 0};
    kind.users++;
    a->kv_owner = kind.owner == i ? -1 : kind.owner;
    most = std::max(most, ++of_kind[{a->window, a->head_dim}]);
  }
  check(n <= most, "{} layers of one kind cannot share keys and values: the model has at most {} of a kind", n, most);
}

ModelSpec apply(const WhatIf& w, ModelSpec spec) {
  int n_attention = 0, n_feed_forward = 0;
  check(w.global_every <= int(spec.layers.size()), "every {}th layer cannot see everything: the model has {} layers", w.global_every,
        spec.layers.size());
  for (int i = 0; i < int(spec.layers.size()); i++) {
    LayerSpec& layer = spec.layers[size_t(i)];
    if (auto* a = std::get_if<AttentionSpec>(&layer.mixer)) {
      n_attention++;
      check(!w.kv_heads || a->heads % w.kv_heads == 0, "{} query heads cannot share {} key/value heads", a->heads, w.kv_heads);
      if (w.kv_heads) a->kv_heads = w.kv_heads;
      if (w.window) a->window = w.global_every && (i + 1) % w.global_every == 0 ? 0 : w.window;
    }
    if (w.experts) {
      check(w.experts_used > 0 && w.experts_used <= w.experts, "a token cannot use {} of {} experts", w.experts_used, w.experts);
      auto* mlp = std::get_if<MlpSpec>(&layer.ffn);
      auto* moe = std::get_if<MoeSpec>(&layer.ffn);
      MoeSpec made = moe ? *moe : MoeSpec{.hidden = mlp ? mlp->hidden : 0};
      made.experts = w.experts;
      made.used = w.experts_used;
      if (made.hidden) {
        layer.ffn = made;
        n_feed_forward++;
      }
    }
  }
  check(n_attention || !(w.kv_heads || w.window || w.kv_share), "the model has no layers with keys and values of heads to change");
  check(n_feed_forward || !w.experts, "{} experts cannot take the place of feed-forwards: none of the model's {} layers has one", w.experts,
        spec.layers.size());
  if (w.kv_share > 1) share(spec, w.kv_share);
  return spec;
}

}  // namespace mr
