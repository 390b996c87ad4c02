// Mamba (Gu & Dao 2023): blocks of one selective state-space mixer, no feed-forward. Falcon-Mamba adds norms inside the mixer.
#include "model/arch/arch.h"

namespace mr {

ModelSpec mamba_spec(const Config& config) {
  ModelSpec spec;
  spec.dim = int(config.positive("hidden_size"));
  spec.vocab = int(config.positive("vocab_size"));
  spec.max_context = int(config.integer("max_position_embeddings", 1 << 20));  // nothing in it grows with the context
  spec.norm = {Norm::Kind::rms, float(config.number("layer_norm_epsilon", 1e-5))};
  spec.tied = config.boolean("tie_word_embeddings", true);
  spec.eos = config.integers("eos_token_id");
  MambaSpec m;
  m.inner =
      config.narrow(double(config.integer("intermediate_size", config.integer("expand", 2) * spec.dim)), "'expand' times 'hidden_size'");
  m.n_state = int(config.positive("state_size"));
  m.conv = int(config.positive("conv_kernel"));
  m.dt_rank = int(config.integer("time_step_rank", (int64_t(spec.dim) + 15) / 16));
  m.conv_bias = config.boolean("use_conv_bias", true);
  m.proj_bias = config.boolean("use_bias", false);
  if (config.boolean("dt_b_c_rms", false)) m.norms = MambaSpec::Norms::plain;  // a GGUF file of Falcon-Mamba
  m.norm_eps = float(config.number("mixer_rms_eps", 1e-6));
  for (int i = 0; i < config.layers(); i++) spec.layers.push_back({m, {}});
  return spec;
}

ModelSpec falcon_mamba_spec(const Config& config) {
  ModelSpec spec = mamba_spec(config);
  for (LayerSpec& layer : spec.layers) std::get<MambaSpec>(layer.mixer).norms = MambaSpec::Norms::plain;
  return spec;
}

NameMap mamba_names() {
  return {{{"embedding", "backbone.embeddings"},
           {"final_norm", "backbone.norm_f"},
           {"output", "lm_head"},
           {"mixer_norm", "backbone.layers.{}.norm"},
           {"in", "backbone.layers.{}.mixer.in_proj"},
           {"conv", "backbone.layers.{}.mixer.conv1d"},
           {"x", "backbone.layers.{}.mixer.x_proj"},
           {"dt", "backbone.layers.{}.mixer.dt_proj"},
           {"a_log", "backbone.layers.{}.mixer.A_log"},
           {"d", "backbone.layers.{}.mixer.D"},
           {"out", "backbone.layers.{}.mixer.out_proj"}}};
}

NameMap mamba_gguf_names() {
  return {{{"embedding", "token_embd"},
           {"final_norm", "output_norm"},
           {"output", "output"},
           {"mixer_norm", "blk.{}.attn_norm"},
           {"in", "blk.{}.ssm_in"},
           {"conv", "blk.{}.ssm_conv1d"},
           {"x", "blk.{}.ssm_x"},
           {"dt", "blk.{}.ssm_dt"},
           {"a", "blk.{}.ssm_a"},
           {"d", "blk.{}.ssm_d"},
           {"out", "blk.{}.ssm_out"}}};
}

void mamba_from_gguf(const Checkpoint& files, Json& config) {
  config["intermediate_size"] = Config(config, files.path().filename().string()).positive("ssm_inner_size");
  config["use_conv_bias"] = files.find("blk.0.ssm_conv1d.bias") != nullptr;
}

}  // namespace mr
