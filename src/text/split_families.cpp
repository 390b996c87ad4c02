#include "text/split_families.h"

#include <algorithm>

#include "core/error.h"
#include "text/pretokenize.h"

namespace mr {

static constexpr const char* cl100k_tail = R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
static constexpr const char* contraction = R"((?i:'s|'t|'re|'ve|'m|'ll|'d))";

static std::string cl100k(const char* numbers) {
  return std::string(contraction) + R"(|[^\r\n\p{L}\p{N}]?\p{L}+|)" + numbers + "|" + cl100k_tail;
}

// Words by case, as GPT-4o cuts them; `suffix` follows a word.
static std::string o200k(const std::string& suffix, const char* numbers) {
  return fmt::format(
      R"([^\r\n\p{{L}}\p{{N}}]?{0}*{1}+{2}|[^\r\n\p{{L}}\p{{N}}]?{0}+{1}*{2}|{3}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])", R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])", suffix, numbers);
}

std::vector<SplitFamily> split_families() {
  return {
      {{"gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais", "gigachat", "mellum", "exaone4", "trillion", "granite-docling", "a.x-4.0",
        "modern-bert"},
       {gpt2_split}},
      {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"}, {R"(\p{N})", gpt2_split}},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"}, {cl100k(R"(\p{N}{1,3})")}, true, true},
      {{"dbrx", "smaug-bpe", "chatglm-bpe"}, {cl100k(R"(\p{N}{1,3})")}},
      {{"glm4", "glm5"}, {cl100k(R"(\p{N}{1,3})")}, true},
      {{"qwen2", "deepseek-r1-qwen", "megrez"}, {cl100k(R"(\p{N})")}, false, false, true},
      {{"stablelm2", "hunyuan", "solar-open", "grok-2"}, {cl100k(R"(\p{N})")}},
      {{"qwen35"},
       {std::string(contraction) + R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}},
      {{"tekken"}, {o200k("", R"(\p{N})")}, true, true},
      {{"gpt-4o", "llama4", "kanana2", "minimax-m2"}, {o200k(std::string(contraction) + "?", R"(\p{N}{1,3})")}},
      {{"deepseek-coder"}, {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", R"([一-龥ࠀ-一가-퟿]+)", R"(\p{N})"}},
      {{"deepseek-v3", "hunyuan-dense"},
       {R"(\p{N}{1,3})", R"([一-龥぀-ゟ゠-ヿ]+)",
        R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}},
      {{"falcon"}, {R"([\p{P}\$\+<=>\^~\|`]+)", gpt2_split, "[0-9][0-9][0-9]"}},
      {{"bailingmoe", "bailingmoe2", "llada-moe"},
       {R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)"}},
      {{"seed-coder"}, {std::string(contraction) + R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)"}},
      {{"", "default"}, {R"([\p{P}\$\+<=>\^~\|]+)", gpt2_split, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
  };
}

SplitFamily split_family(const std::string& name) {
  for (SplitFamily& family : split_families()) {
    if (std::find(family.names.begin(), family.names.end(), name) != family.names.end()) return family;
  }
  fail("the GGUF pre-tokenizer '{}' is not supported", name);
}

}  // namespace mr
