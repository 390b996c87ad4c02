// config.json for a model that was read from a GGUF file: the names are config.json's already (arch/gguf.cpp); what is missing is what
// transformers needs beside them, and what our reader alone understands is said in transformers' words.
#include <algorithm>
#include <cmath>

#include "convert/gguf_metadata.h"
#include "core/error.h"
#include "model/rope.h"

namespace mr {

namespace {

struct Family {
  std::string_view model_type, architecture;
  std::vector<const char*> keys;  // beside the common ones
};

const std::vector<const char*> kCommon = {"hidden_size", "num_hidden_layers", "vocab_size", "tie_word_embeddings", "eos_token_id"};
const std::vector<const char*> kDecoder = {
    "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps",
    "rope_theta",        "rope_parameters",     "attention_bias",      "mlp_bias", "sliding_window",          "layer_types"};

std::vector<const char*> decoder(std::vector<const char*> more = {}) {
  more.insert(more.end(), kDecoder.begin(), kDecoder.end());
  return more;
}

const std::vector<Family>& families() {
  static const std::vector<Family> all = {
      {"llama", "LlamaForCausalLM", decoder()},
      {"mistral", "MistralForCausalLM", decoder()},
      {"smollm3", "SmolLM3ForCausalLM", decoder({"no_rope_layers"})},
      {"qwen2", "Qwen2ForCausalLM", decoder({"use_sliding_window", "max_window_layers"})},
      {"qwen3", "Qwen3ForCausalLM", decoder({"use_sliding_window", "max_window_layers"})},
      {"qwen3_moe", "Qwen3MoeForCausalLM", decoder({"num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"})},
      {"phi3", "Phi3ForCausalLM", decoder({"original_max_position_embeddings"})},
      {"granite", "GraniteForCausalLM", decoder({"attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"})},
      {"nemotron", "NemotronForCausalLM", decoder({"norm_eps"})},
      {"starcoder2", "Starcoder2ForCausalLM", decoder({"norm_epsilon", "use_bias"})},
      {"mixtral", "MixtralForCausalLM", decoder({"num_local_experts", "num_experts_per_tok"})},
      {"gemma", "GemmaForCausalLM", decoder()},
      {"gemma2", "Gemma2ForCausalLM", decoder({"query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"})},
      {"gemma3_text", "Gemma3ForCausalLM", decoder({"query_pre_attn_scalar", "final_logit_softcapping"})},
      {"gemma3n_text", "Gemma3nForCausalLM",
       decoder({"final_logit_softcapping", "altup_active_idx", "altup_num_inputs", "hidden_size_per_layer_input", "num_kv_shared_layers",
                "laurel_rank", "vocab_size_per_layer_input", "activation_sparsity_pattern"})},
      {"mamba",
       "MambaForCausalLM",
       {"state_size", "conv_kernel", "expand", "intermediate_size", "time_step_rank", "use_conv_bias", "use_bias", "layer_norm_epsilon"}},
      {"falcon_mamba",
       "FalconMambaForCausalLM",
       {"state_size", "conv_kernel", "expand", "intermediate_size", "time_step_rank", "use_conv_bias", "use_bias", "layer_norm_epsilon"}},
      {"mamba2",
       "Mamba2ForCausalLM",
       {"state_size", "conv_kernel", "expand", "num_heads", "head_dim", "n_groups", "use_conv_bias", "use_bias", "layer_norm_epsilon"}},
      {"jamba",
       "JambaForCausalLM",
       {"intermediate_size", "num_attention_heads", "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "mamba_d_conv",
        "mamba_d_state", "mamba_dt_rank", "mamba_expand", "num_experts", "num_experts_per_tok", "attn_layer_period", "attn_layer_offset",
        "expert_layer_period", "expert_layer_offset"}},
      {"lfm2",
       "Lfm2ForCausalLM",
       {"intermediate_size", "num_attention_heads", "num_key_value_heads", "max_position_embeddings", "norm_eps", "rope_theta",
        "rope_parameters", "layer_types", "conv_L_cache", "conv_bias", "block_auto_adjust_ff_dim"}},
  };
  return all;
}

// Llama 3's scaling, of which the file has the divisors: the largest is the factor, and a power of two the original length.
void name_llama3(Json& rope, int head_dim, float theta) {
  const auto divisors = rope["short_factor"].get<std::vector<float>>();
  RopeSpec r{.scaling = RopeSpec::Scaling::llama3, .dim = int(2 * divisors.size()), .theta = theta};
  r.factor = *std::ranges::max_element(divisors);
  const std::vector<float> plain = make_rope({.dim = r.dim, .theta = theta}).inv_freq;
  auto close = [](float a, float b) { return std::abs(a - b) <= 1e-4f * b; };
  for (r.original = 1; r.original < 1 << 24; r.original *= 2) {
    std::vector<float> got = make_rope(r).inv_freq;
    for (size_t i = 0; i < got.size(); i++) got[i] = plain[i] / got[i];
    if (!std::ranges::equal(got, divisors, close)) continue;
    rope = {{"rope_type", "llama3"},
            {"factor", r.factor},
            {"low_freq_factor", r.low_freq_factor},
            {"high_freq_factor", r.high_freq_factor},
            {"original_max_position_embeddings", r.original},
            {"rope_theta", theta}};
    if (r.dim != head_dim) rope["partial_rotary_factor"] = double(r.dim) / head_dim;
    return;
  }
  fail("the rope's divisors (rope_freqs.weight) are not those of Llama 3's scaling, and config.json knows no other");
}

// A list of layers as transformers has it: every period-th from an offset on.
void add_period(Json& config, const std::string& kind) {
  const auto those = config.value(kind + "s", std::vector<int>{});
  const int period = those.size() > 1 ? those[1] - those[0] : int(config["num_hidden_layers"]);
  const int offset = those.empty() ? period : those[0];
  config[kind + "_period"] = std::max(period, 1);
  config[kind + "_offset"] = offset;
}

void complete(Json& config, const ModelSpec& spec, std::string_view family) {
  const Config read(config, "the GGUF metadata");
  if (family == "jamba") {
    add_period(config, "attn_layer");
    add_period(config, "expert_layer");
    if (!config.contains("num_experts")) config["num_experts"] = config["num_experts_per_tok"] = 1;
  }
  if (family == "mamba" || family == "falcon_mamba") config["expand"] = read.positive("intermediate_size") / spec.dim;
  if (!spec.layers.empty())
    if (const auto* a = std::get_if<AttentionSpec>(&spec.layers[0].mixer)) {
      const bool windows = std::ranges::any_of(spec.layers, [](const LayerSpec& l) {
        const auto* own = std::get_if<AttentionSpec>(&l.mixer);
        return own && own->window;
      });
      if (family == "qwen2" || family == "qwen3") {
        config["use_sliding_window"] = windows;
        config["max_window_layers"] = 0;
      }
      Json& rope = config["rope_parameters"];
      if (rope.is_object() && rope.value("rope_type", "") == "factors") name_llama3(rope, a->head_dim, read.number("rope_theta", 10000));
      if (rope.is_null()) rope = {{"rope_type", "default"}, {"rope_theta", read.number("rope_theta", 10000)}};
      if (rope.contains("original_max_position_embeddings") && family == "phi3")
        config["original_max_position_embeddings"] = rope["original_max_position_embeddings"];
    }
}

std::string_view family_of(const ModelSpec& spec) {
  const auto* mamba = spec.layers.empty() ? nullptr : std::get_if<MambaSpec>(&spec.layers[0].mixer);
  if (spec.arch == "mamba" && mamba && mamba->norms == MambaSpec::Norms::plain) return "falcon_mamba";
  const auto* a = spec.layers.empty() ? nullptr : std::get_if<AttentionSpec>(&spec.layers[0].mixer);
  if (spec.arch == "llama" && a && a->window) return "mistral";
  return spec.arch;
}

}  // namespace

OrderedJson config_json(const Checkpoint& gguf, const std::string& dtype) {
  const ModelSpec spec = describe(gguf).spec;
  Json config = whole_config_of_gguf(gguf);
  const std::string_view name = family_of(spec);
  const auto family = std::ranges::find(families(), name, &Family::model_type);
  check(family != families().end(), "models of family '{}' cannot be written as a Hugging Face directory", name);
  complete(config, spec, name);
  OrderedJson out{{"architectures", {family->architecture}}, {"model_type", family->model_type}, {"dtype", dtype}};
  for (const auto* keys : {&kCommon, &family->keys})
    for (const char* key : *keys)
      if (auto it = config.find(key); it != config.end() && !it->is_null()) out[key] = OrderedJson::parse(it->dump());
  for (auto [key, stored] : {std::pair{"bos_token_id", "bos"}, {"eos_token_id", "eos"}, {"pad_token_id", "padding"}}) {
    const auto id = gguf.config().find(fmt::format("tokenizer.ggml.{}_token_id", stored));
    out[key] = OrderedJson();  // the family's own may lie outside the vocabulary
    if (id != gguf.config().end() && id->is_number_integer()) out[key] = id->get<int64_t>();
  }
  return out;
}

}  // namespace mr
