// Reads a GGUF file's tokenizer: model "gpt2" (byte-level BPE with a named split rule) or "llama" (SentencePiece
// BPE by scores). Names, defaults and token types are those of llama.cpp.
#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_map>

#include "core/error.h"
#include "text/byte_alphabet.h"
#include "text/split_families.h"
#include "text/tokenizer.h"

namespace mr {

namespace {

enum TokenType { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

class Metadata {
 public:
  explicit Metadata(const Json& json) : json_(json) {}

  const Json* find(const std::string& key) const {
    auto found = json_.is_object() ? json_.find(key) : json_.end();
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  std::string text(const std::string& key) const {
    const Json* value = find(key);
    return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
  }
  bool flag(const std::string& key, bool fallback) const {
    const Json* value = find(key);
    return value == nullptr ? fallback : value->is_boolean() ? value->get<bool>() : value->is_number() && value->get<double>() != 0;
  }
  int32_t id(const std::string& key) const {
    const Json* value = find(key);
    return value != nullptr && value->is_number_integer() ? value->get<int32_t>() : -1;
  }
  const Json& array(const std::string& key) const {
    const Json* value = find(key);
    check(value != nullptr && value->is_array(), "the GGUF metadata lacks the list {}", key);
    return *value;
  }

 private:
  const Json& json_;
};

// Fills pieces and added tokens. Tokens that are not text stay out of the pieces, so that no text merges into one.
void read_tokens(const Metadata& metadata, TokenizerData& data) {
  const Json& tokens = metadata.array("tokenizer.ggml.tokens");
  const Json* types = metadata.find("tokenizer.ggml.token_type");
  check(types == nullptr || (types->is_array() && types->size() == tokens.size()), "tokenizer.ggml.token_type does not match the {} tokens",
        tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    check(tokens[i].is_string(), "tokenizer.ggml.tokens[{}] is not a string", i);
    std::string piece = tokens[i];
    int type = types == nullptr || !(*types)[i].is_number_integer() ? static_cast<int>(normal) : (*types)[i].get<int>();
    if (type == control || type == unknown || type == user_defined) {
      data.added.push_back({piece, static_cast<int32_t>(i), type != user_defined});
      if (type == unknown && data.unknown < 0) data.unknown = static_cast<int32_t>(i);
      piece.clear();
    }
    data.pieces.push_back(std::move(piece));
  }
  if (data.byte_level) ByteAlphabet().convert(data);
}

void read_merges(const Metadata& metadata, TokenizerData& data) {
  std::unordered_map<std::string_view, int32_t> ids;
  for (size_t id = 0; id < data.pieces.size(); ++id) {
    if (!data.pieces[id].empty()) ids.emplace(data.pieces[id], static_cast<int32_t>(id));
  }
  ByteAlphabet alphabet;
  for (const Json& merge : metadata.array("tokenizer.ggml.merges")) {
    check(merge.is_string(), "tokenizer.ggml.merges holds something that is not a string");
    const auto& text = merge.get_ref<const std::string&>();
    size_t space = text.find(' ', 1);
    check(space != std::string::npos, "the merge '{}' in tokenizer.ggml.merges is not a pair", text);
    auto left = alphabet.bytes(std::string_view(text).substr(0, space)), right = alphabet.bytes(std::string_view(text).substr(space + 1));
    if (!left || !right) continue;
    auto a = ids.find(*left), b = ids.find(*right), both = ids.find(*left + *right);
    // Converters keep merges whose tokens they turned into control tokens; those never apply to text.
    if (a != ids.end() && b != ids.end() && both != ids.end()) data.merges.push_back({a->second, b->second, both->second});
  }
}

void read_gpt2(const Metadata& metadata, TokenizerData& data, bool& add_bos) {
  SplitFamily family = split_family(metadata.text("tokenizer.ggml.pre"));
  data.byte_level = true;
  data.ignore_merges = family.ignore_merges;
  add_bos = family.add_bos;
  if (family.nfc) data.normalizer.push_back({NormalizerStep::Kind::nfc, "", ""});
  if (metadata.flag("tokenizer.ggml.add_space_prefix", false)) {
    PreTokenizerStep step;
    step.kind = PreTokenizerStep::Kind::prefix_space;
    data.pre_tokenizer.push_back(step);
  }
  for (std::string& pattern : family.patterns) {
    PreTokenizerStep step;
    step.pattern = std::move(pattern);
    data.pre_tokenizer.push_back(step);
  }
  read_tokens(metadata, data);
  read_merges(metadata, data);
  data.unknown = -1;
}

constexpr std::string_view space_mark = "▁";

// How many spaces, marked or not, a text consists of; 0: there is something else in it.
size_t spaces_of(std::string_view text) {
  size_t n = 0;
  for (; !text.empty(); ++n) {
    if (!text.starts_with(' ') && !text.starts_with(space_mark)) return 0;
    text.remove_prefix(text.starts_with(' ') ? 1 : space_mark.size());
  }
  return n;
}

// Runs of spaces that are tokens by themselves (Gemma) merge before all else, the longest first.
void rank_runs_of_spaces(TokenizerData& data) {
  for (AddedToken& token : data.added) {
    const size_t n = token.special ? 0 : spaces_of(token.content);
    if (n == 0) continue;
    token.content.clear();
    for (size_t i = 0; i < n; ++i) token.content += space_mark;
    data.pieces[static_cast<size_t>(token.id)] = token.content;
    data.scores[static_cast<size_t>(token.id)] = static_cast<float>(n);
  }
}

void read_llama(const Metadata& metadata, TokenizerData& data) {
  data.byte_fallback = true;
  bool prefix = metadata.flag("tokenizer.ggml.add_space_prefix", true);
  if (prefix) data.normalizer.push_back({NormalizerStep::Kind::prepend, "", " "});
  data.normalizer.push_back({NormalizerStep::Kind::replace, " ", "▁"});
  data.decoder.replace.emplace_back("▁", " ");
  data.decoder.strip_first.push_back(' ');
  data.decoder.strip_first_count = prefix ? 1 : 0;
  read_tokens(metadata, data);
  const Json& scores = metadata.array("tokenizer.ggml.scores");
  check(scores.size() == data.pieces.size(), "tokenizer.ggml.scores has {} entries for {} tokens", scores.size(), data.pieces.size());
  for (const Json& score : scores) {
    bool ok = score.is_number() && std::abs(score.get<double>()) < 1e30;
    check(ok, "tokenizer.ggml.scores holds something that is not a number, or is a huge one");
    data.scores.push_back(score.get<float>());
  }
  rank_runs_of_spaces(data);
}

}  // namespace

TokenizerData read_tokenizer_gguf(const Json& json) {
  Metadata metadata(json);
  TokenizerData data;
  std::string model = metadata.text("tokenizer.ggml.model");
  bool add_bos = model == "llama";
  if (model == "gpt2") {
    read_gpt2(metadata, data, add_bos);
  } else if (model == "llama") {
    read_llama(metadata, data);
  } else {
    fail("the GGUF tokenizer model '{}' is not supported, only 'gpt2' and 'llama' are", model);
  }
  auto n_tokens = static_cast<int32_t>(data.pieces.size());
  auto id = [&](const char* name, int32_t fallback) {
    int32_t value = metadata.id(std::string("tokenizer.ggml.") + name + "_token_id");
    return value >= 0 && value < n_tokens ? value : fallback;
  };
  data.bos = id("bos", model == "llama" && n_tokens > 1 ? 1 : -1);
  data.eos = id("eos", model == "llama" && n_tokens > 2 ? 2 : -1);
  for (const char* name : {"eot", "eom"}) {
    if (int32_t stop = id(name, -1); stop >= 0) data.stop.push_back(stop);
  }
  if (metadata.flag("tokenizer.ggml.add_bos_token", add_bos) && data.bos >= 0) data.prefix.push_back(data.bos);
  if (metadata.flag("tokenizer.ggml.add_eos_token", false) && data.eos >= 0) data.suffix.push_back(data.eos);
  data.chat_template = metadata.text("tokenizer.chat_template");
  return data;
}

Tokenizer Tokenizer::from_gguf(const Json& json) { return Tokenizer(read_tokenizer_gguf(json)); }

}  // namespace mr
