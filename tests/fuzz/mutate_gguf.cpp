// GGUF changed part by part, so that what follows is still read.
#include <algorithm>

#include "fuzz/gguf_layout.h"
#include "fuzz/mutate.h"

namespace mr::fuzz {

using Kind = GgufLayout::Part::Kind;

namespace {

const std::vector<std::string_view>& strings() {
  static const std::vector<std::string_view> strings = [] {
    std::vector<std::string_view> list = words(
        R"(general.architecture general.alignment llama qwen2 qwen3 mamba llama.block_count llama.embedding_length
llama.feed_forward_length llama.context_length llama.attention.head_count llama.attention.head_count_kv
llama.attention.key_length llama.attention.layer_norm_rms_epsilon llama.rope.freq_base llama.rope.dimension_count
llama.rope.scaling.type llama.rope.scaling.factor llama.rope.scaling.original_context_length yarn linear mamba.ssm.conv_kernel
mamba.ssm.inner_size mamba.ssm.state_size mamba.ssm.time_step_rank token_embd.weight output.weight rope_freqs.weight split.count
split.no tokenizer.ggml.model tokenizer.ggml.pre tokenizer.ggml.tokens tokenizer.ggml.merges tokenizer.ggml.scores
tokenizer.ggml.token_type tokenizer.ggml.eos_token_id gpt2 smollm a mixtral qwen3moe gemma gemma2 gemma3 gemma3n granite nemotron
starcoder2 phi3 smollm3 lfm2 mamba2 jamba tokenizer.ggml.add_bos_token tokenizer.chat_template blk.0.attn_q.bias blk.0.ffn_up.bias
rope_factors_short.weight rope_factors_long.weight blk.0.laurel_l.weight per_layer_token_embd.weight)");
    // Every family's keys under every family's name.
    static const std::vector<std::string> keys = [] {
      std::vector<std::string> made;
      for (const char* arch : {"llama", "qwen3moe", "gemma3", "gemma3n", "granite", "nemotron", "phi3", "lfm2", "mamba2", "jamba"})
        for (const char* key :
             {"expert_count", "expert_used_count", "expert_feed_forward_length", "attention.sliding_window", "attention.sliding_window_pattern",
              "attention.shared_kv_layers", "attention.scale", "attention.layer_norm_epsilon", "attn_logit_softcapping", "embedding_scale",
              "residual_scale", "logit_scale", "rope.freq_base_swa", "rope.scaling.attn_factor", "embedding_length_per_layer_input",
              "activation_sparsity_scale", "altup.active_idx", "altup.num_inputs", "shortconv.l_cache", "ssm.group_count", "ssm.inner_size",
              "ssm.state_size", "attention.head_count_kv", "feed_forward_length", "block_count"})
          made.push_back(std::string(arch) + "." + key);
      return made;
    }();
    list.insert(list.end(), keys.begin(), keys.end());
    list.insert(list.end(), {"", "a b", "\xff\xfe", "\x1b[2J"});
    return list;
  }();
  return strings;
}

void put(std::string& file, size_t at, uint64_t n, size_t bytes) {
  if (at + bytes <= file.size()) std::memcpy(file.data() + at, &n, bytes);
}

std::string with_length(std::string_view text) {
  uint64_t n = text.size();
  return std::string(reinterpret_cast<const char*>(&n), 8) + std::string(text);
}

void change_part(std::string& file, const GgufLayout& layout, Random& random) {
  const GgufLayout::Part& part = layout.parts[random.pick(layout.parts.size())];
  size_t bytes = part.end - part.begin;
  uint64_t old = layout.peek(part.begin, std::min<size_t>(bytes, 8));
  switch (part.kind) {
    case Kind::key:
    case Kind::name:
    case Kind::text:
      if (random.chance(4))
        put(file, part.begin, absurd_number(random, old), 8);  // a length that is wrong
      else
        file.replace(part.begin, bytes, with_length(strings()[random.pick(strings().size())]));
      return;
    case Kind::version:
    case Kind::type:
    case Kind::element_type:
      return put(file, part.begin, random.chance(4) ? absurd_number(random, old) : random.pick(14), 4);
    case Kind::tensor_type:
      return put(file, part.begin, random.chance(4) ? absurd_number(random, old) : random.pick(43), 4);
    case Kind::rank:
      return put(file, part.begin, random.pick(6), 4);
    default:
      return put(file, part.begin, random.chance(3) ? random.next() : absurd_number(random, old), bytes);
  }
}

// A record twice, dropped or moved, with the count that belongs to it.
void change_records(std::string& file, const GgufLayout& layout, Random& random) {
  bool tensors = random.chance(2);
  const auto& records = tensors ? layout.tensors : layout.metadata;
  size_t count_at = tensors ? GgufLayout::n_tensors_at : GgufLayout::n_metadata_at;
  if (records.empty()) return;
  auto [begin, end] = records[random.pick(records.size())];
  std::string record = file.substr(begin, end - begin);
  uint64_t n = layout.peek(count_at, 8);
  if (random.chance(2)) {
    file.erase(begin, end - begin);
    put(file, count_at, n - 1, 8);
  } else {
    size_t to = records[random.pick(records.size())].begin;
    file.insert(to, record);
    put(file, count_at, n + 1, 8);
  }
}

}  // namespace

std::string mutate_gguf(std::string file, Random& random, size_t max_size) {
  for (size_t n = 1 + random.pick(3); n > 0; n--) {
    GgufLayout layout(file);
    if (layout.parts.empty() || random.chance(8)) return mutate_bytes(std::move(file), max_size);
    if (random.chance(3))
      change_records(file, layout, random);
    else
      change_part(file, layout, random);
  }
  return file;
}

}  // namespace mr::fuzz
