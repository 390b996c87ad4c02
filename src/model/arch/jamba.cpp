// Jamba (AI21 2024): mostly Mamba, every few layers attention, which has no positions; every few layers experts.
#include <algorithm>

#include "model/arch/arch.h"

namespace mr {

NameMap mamba_gguf_names();

static MambaSpec mamba_from(const Config& config, const ModelSpec& spec) {
  MambaSpec m;
  m.inner = config.narrow(double(config.integer("mamba_expand", 2)) * spec.dim, "'mamba_expand' times 'hidden_size'");
  m.n_state = int(config.positive("mamba_d_state"));
  m.conv = int(config.positive("mamba_d_conv"));
  m.dt_rank = int(config.integer("mamba_dt_rank", (int64_t(spec.dim) + 15) / 16));
  m.conv_bias = config.boolean("mamba_conv_bias", true);
  m.proj_bias = config.boolean("mamba_proj_bias", false);
  m.norms = MambaSpec::Norms::weighted;
  m.norm_eps = spec.norm.eps;
  return m;
}

// Is layer i one of those that attend ("attn_layer"), or that have experts ("expert_layer")? A period and an offset say it, or a list.
static bool has(const Config& config, const std::string& kind, int layer) {
  const std::string period = kind + "_period", offset = kind + "_offset", list = kind + "s";
  if (!config.has(list.c_str())) return layer % config.positive(period.c_str()) == config.integer(offset.c_str(), 0);
  const std::vector<int32_t> those = config.integers(list.c_str());
  return std::ranges::count(those, layer) > 0;
}

ModelSpec jamba_spec(const Config& config) {
  ModelSpec spec = decoder_spec(config, {});
  spec.ropes.clear();
  const MambaSpec mamba = mamba_from(config, spec);
  for (int i = 0; i < int(spec.layers.size()); i++) {
    LayerSpec& layer = spec.layers[size_t(i)];
    if (has(config, "attn_layer", i)) {
      std::get<AttentionSpec>(layer.mixer).rope = -1;
    } else {
      layer.mixer = mamba;
    }
    if (config.integer("num_experts") > 1 && has(config, "expert_layer", i)) layer.ffn = moe_from(config, "num_experts", false);
  }
  return spec;
}

NameMap jamba_names() {
  return {{{"embedding", "model.embed_tokens"},
           {"final_norm", "model.final_layernorm"},
           {"output", "lm_head"},
           {"mixer_norm", "model.layers.{}.input_layernorm"},
           {"ffn_norm", "model.layers.{}.pre_ff_layernorm"},
           {"q", "model.layers.{}.self_attn.q_proj"},
           {"k", "model.layers.{}.self_attn.k_proj"},
           {"v", "model.layers.{}.self_attn.v_proj"},
           {"o", "model.layers.{}.self_attn.o_proj"},
           {"in", "model.layers.{}.mamba.in_proj"},
           {"conv", "model.layers.{}.mamba.conv1d"},
           {"x", "model.layers.{}.mamba.x_proj"},
           {"dt", "model.layers.{}.mamba.dt_proj"},
           {"dt_norm", "model.layers.{}.mamba.dt_layernorm"},
           {"b_norm", "model.layers.{}.mamba.b_layernorm"},
           {"c_norm", "model.layers.{}.mamba.c_layernorm"},
           {"a_log", "model.layers.{}.mamba.A_log"},
           {"d", "model.layers.{}.mamba.D"},
           {"out", "model.layers.{}.mamba.out_proj"},
           {"gate", "model.layers.{}.feed_forward.gate_proj"},
           {"up", "model.layers.{}.feed_forward.up_proj"},
           {"down", "model.layers.{}.feed_forward.down_proj"},
           {"router", "model.layers.{}.feed_forward.router"},
           {"expert_gate", "model.layers.{}.feed_forward.experts.{}.gate_proj"},
           {"expert_up", "model.layers.{}.feed_forward.experts.{}.up_proj"},
           {"expert_down", "model.layers.{}.feed_forward.experts.{}.down_proj"}}};
}

NameMap jamba_gguf_names() {
  NameMap names = with_gguf_experts(decoder_gguf_names());
  const NameMap mamba = mamba_gguf_names();
  names.entries.insert(names.entries.end(), mamba.entries.begin(), mamba.entries.end());
  names.entries.insert(names.entries.end(),
                       {{"dt_norm", "blk.{}.ssm_dt_norm"}, {"b_norm", "blk.{}.ssm_b_norm"}, {"c_norm", "blk.{}.ssm_c_norm"}});
  return names;
}

void jamba_from_gguf(const Checkpoint& files, Json& json) {
  const Config config(json, files.path().filename().string());
  const int64_t inner = config.positive("ssm_inner_size"), dim = config.positive("hidden_size");
  config.require(inner % dim == 0, "an inner size of {} is no multiple of {}", inner, dim);
  json["mamba_expand"] = inner / dim;
  Json attend = Json::array(), experts = Json::array();
  int layer = 0;
  for (bool attends : attending_layers(json)) {
    if (attends) attend.push_back(layer);
    if (files.find(fmt::format("blk.{}.ffn_gate_inp.weight", layer))) experts.push_back(layer);
    layer++;
  }
  json["attn_layers"] = attend;
  json["expert_layers"] = experts;
}

}  // namespace mr
