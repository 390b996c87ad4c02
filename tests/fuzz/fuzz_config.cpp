// config.json: a spec that everything may compute with and a plan of its memory, or a sentence.
#include <cmath>

#include "core/bounded_json.h"
#include "engine/engine.h"
#include "fuzz/input.h"
#include "fuzz/mutate.h"
#include "model/arch/arch.h"
#include "model/rope.h"

using namespace mr;

static void check_spec(const ModelSpec& spec) {
  if (parameters(spec) <= 0 || active_parameters(spec) <= 0) std::abort();
  for (const RopeSpec& rope : spec.ropes) {
    RopeTable table = make_rope(rope);
    for (float f : table.inv_freq)
      if (!std::isfinite(f)) std::abort();
    if (!std::isfinite(table.scale) || table.scale <= 0) std::abort();
  }
  for (DType type : {DType::f16, DType::f32, DType::i8, DType::i4}) {
    StateLayout layout = layout_of(spec, {type});
    if (layout.bytes_per_token() < 0 || layout.bytes_per_sequence() < 0) std::abort();
    if (layout.bytes_per_token() + layout.bytes_per_sequence() <= 0) std::abort();
  }
}

// What an engine would allocate for such a model: counted in no time, or a sentence.
static void check_plan(std::string_view config) {
  static const fuzz::MemoryDirectory directory;
  static const std::unique_ptr<Backend> backend = make_ref_backend();
  static const EngineOptions options{.device = "ref", .max_seqs = 4, .max_batch_tokens = 64};
  constexpr int64_t machine = int64_t(1) << 40;
  directory.write("config.json", config);
  const auto files = Checkpoint::open(directory.path(), Checkpoint::Want::configuration);
  const auto model = Model::outline(*files, *backend, {});
  if (model->weight_bytes() <= 0) std::abort();
  const EngineMemory plan = plan_engine(*model, options, *backend, {machine});
  if (plan.bytes() <= 0 || plan.bytes() > machine || plan.workspace <= 0 || plan.max_context <= 0 || plan.state.n_tokens <= 0) std::abort();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fuzz::as_text(data, size);
  try {
    const ModelSpec spec = spec_from(parse_json<Json>(text, "the input"), "config.json");
    check_spec(spec);
    if (spec.layers.size() <= 8 || size % 16 == 0) check_plan(text);  // thousands of layers take milliseconds, and are all alike
  } catch (const Error& e) {
    fuzz::check_message(e);
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  static const std::vector<std::string_view> words = fuzz::words(
      R"(model_type llama mistral smollm3 qwen2 qwen3 mamba mamba2 falcon_mamba mixtral gemma2 gemma3_text gemma4_text jamba deepseek_v2
hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim vocab_size
max_position_embeddings rms_norm_eps rope_theta rope_scaling rope_parameters rope_type factor linear dynamic llama3 yarn
longrope proportional factors low_freq_factor high_freq_factor beta_fast beta_slow mscale mscale_all_dim attention_factor
short_factor long_factor original_max_position_embeddings partial_rotary_factor sliding_window layer_types sliding_attention
full_attention max_window_layers no_rope_layers tie_word_embeddings eos_token_id state_size conv_kernel expand time_step_rank
time_step_limit num_heads n_groups num_local_experts num_experts_per_tok num_experts query_pre_attn_scalar
attn_logit_softcapping final_logit_softcapping sliding_window_pattern rope_local_base_freq global_head_dim per_layer_config
hidden_size_per_layer_input num_kv_shared_layers use_double_wide_mlp kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim
v_head_dim n_routed_experts n_shared_experts moe_intermediate_size first_k_dense_replace moe_layer_freq mamba_expand
mamba_d_state mamba_d_conv mamba_dt_rank attn_layer_period attn_layer_offset expert_layer_period expert_layer_offset hidden_act
silu gelu __float__ Infinity lfm2 block_ff_dim block_ffn_dim_multiplier block_multiple_of block_auto_adjust_ff_dim conv_L_cache
conv_bias norm_eps full_attn_idxs conv use_bias attention_bias mlp_bias gemma3n_text gemma granite nemotron starcoder2 phi3 qwen3_moe
altup_num_inputs altup_active_idx altup_correct_scale laurel_rank activation_sparsity_pattern vocab_size_per_layer_input
embedding_multiplier residual_multiplier logits_scaling attention_multiplier hidden_activation relu2 norm_epsilon text_config
norm_topk_prob decoder_sparse_step mlp_only_layers)");
  fuzz::Random random(seed);
  return fuzz::write_back(fuzz::mutate_json({reinterpret_cast<char*>(data), size}, words, random, max_size), data, max_size);
}
