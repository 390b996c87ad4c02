#include "convert/tokenizer.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "core/error.h"
#include "text/pretokenize.h"
#include "text/split_families.h"
#include "text/tokenizer_data.h"
#include "text/unicode.h"

namespace mr {

namespace {

enum TokenType : int32_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };  // of llama.cpp
constexpr std::string_view space_mark = "▁";

bool is_byte_piece(std::string_view piece) { return piece.size() == 6 && piece.starts_with("<0x") && piece.ends_with('>'); }

struct TokenList {
  std::vector<std::string> text;
  std::vector<int32_t> type;
};

// All ids, those without a token as unused ones.
TokenList tokens_of(const Json& vocab, const TokenizerData& data, int n) {
  TokenList out{std::vector<std::string>(size_t(n)), std::vector<int32_t>(size_t(n), unused)};
  auto set = [&](int64_t id, const std::string& text, TokenType type) {
    check(id >= 0 && id < n, "the tokenizer has the token {}, but the model only {}", id, n);
    out.text[size_t(id)] = text;
    out.type[size_t(id)] = type;
  };
  for (auto& [piece, id] : vocab.items()) set(id.get<int64_t>(), piece, data.byte_fallback && is_byte_piece(piece) ? byte : normal);
  for (const AddedToken& token : data.added) set(token.id, token.content, token.special ? control : user_defined);
  if (data.unknown >= 0 && !data.byte_level) out.type[size_t(data.unknown)] = unknown;
  for (int id = 0; id < n; id++)
    if (out.type[size_t(id)] == unused) out.text[size_t(id)] = fmt::format("[PAD{}]", id);
  return out;
}

// The name under which GGUF's readers know these split rules; throws if there is none.
std::string split_name(const TokenizerData& data) {
  std::vector<std::string> patterns;
  for (const PreTokenizerStep& step : data.pre_tokenizer) {
    if (step.kind == PreTokenizerStep::Kind::prefix_space) continue;
    const bool plain = step.kind == PreTokenizerStep::Kind::split && step.behavior == PreTokenizerStep::Behavior::isolated && !step.invert;
    patterns.push_back(plain ? step.pattern : "");
  }
  const bool nfc = data.normalizer.size() == 1 && data.normalizer[0].kind == NormalizerStep::Kind::nfc;
  const bool known = data.normalizer.empty() || nfc;
  for (const SplitFamily& family : split_families())
    if (known && family.patterns == patterns && family.nfc == nfc && family.ignore_merges == data.ignore_merges && !family.names[0].empty())
      return std::string(family.names[0]);
  fail("GGUF has no name for how this tokenizer cuts a text; --no-tokenizer leaves it out");
}

// Merges by rank as scores of their results. A piece that several merges make must have them all at one rank's place.
std::vector<float> scores_of(const TokenizerData& data, int n) {
  constexpr float never = -1e6f;
  std::vector<float> scores(size_t(n), never);
  std::vector<bool> added(static_cast<size_t>(n));  // found in the text as they are
  for (const AddedToken& token : data.added) added[size_t(token.id)] = true;
  int32_t last = -1;
  for (size_t rank = 0; rank < data.merges.size(); rank++) {
    const int32_t result = data.merges[rank].result;
    if (added[size_t(result)]) continue;
    float& score = scores[size_t(result)];
    check(score == never || result == last, "the tokenizer's merges cannot be said as scores; --no-tokenizer leaves it out");
    if (score == never) score = -float(rank);
    last = result;
  }
  return scores;
}

bool has_prefix_space(const TokenizerData& data) {
  for (const NormalizerStep& step : data.normalizer)
    if (step.kind == NormalizerStep::Kind::prepend) return true;
  for (const PreTokenizerStep& step : data.pre_tokenizer)
    if (step.kind == PreTokenizerStep::Kind::prefix_space || (step.kind == PreTokenizerStep::Kind::metaspace && step.prefix)) return true;
  return false;
}

const Json& member(const Json& object, const char* key) {
  static const Json none;
  auto found = object.is_object() ? object.find(key) : object.end();
  return found == object.end() ? none : *found;
}

}  // namespace

GgufMetadata tokenizer_to_gguf(const Json& tokenizer_json, const Json& config, int vocab) {
  const TokenizerData data = read_tokenizer_json(tokenizer_json, config.is_object() && !config.empty() ? &config : nullptr);
  TokenList tokens = tokens_of(tokenizer_json.at("model").at("vocab"), data, vocab);
  GgufMetadata out;
  auto put = [&](const char* key, GgufValue value) { out.push_back({std::string("tokenizer.") + key, std::move(value)}); };
  check(data.byte_level || data.byte_fallback, "GGUF has no tokenizer without bytes; --no-tokenizer leaves it out");
  put("ggml.model", {std::string(data.byte_level ? "gpt2" : "llama")});
  put("ggml.pre", {data.byte_level ? split_name(data) : std::string("default")});
  put("ggml.tokens", {GgufValue::List(std::move(tokens.text))});
  put("ggml.token_type", {GgufValue::List(std::move(tokens.type))});
  if (data.byte_level) {
    std::vector<std::string> merges;
    for (const Json& merge : tokenizer_json.at("model").at("merges"))
      merges.push_back(merge.is_string() ? merge.get<std::string>() : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
    put("ggml.merges", {GgufValue::List(std::move(merges))});
  } else {
    put("ggml.scores", {GgufValue::List(scores_of(data, vocab))});
  }
  if (!data.byte_level || has_prefix_space(data)) put("ggml.add_space_prefix", {has_prefix_space(data)});
  if (data.bos >= 0) put("ggml.bos_token_id", {uint32_t(data.bos)});
  if (data.eos >= 0) put("ggml.eos_token_id", {uint32_t(data.eos)});
  if (data.unknown >= 0 && !data.byte_level) put("ggml.unknown_token_id", {uint32_t(data.unknown)});
  for (const AddedToken& token : data.added)
    if (const Json& pad = member(config, "pad_token"); pad.is_string() && pad == token.content)
      put("ggml.padding_token_id", {uint32_t(token.id)});
  check(data.prefix.empty() || (data.prefix.size() == 1 && data.prefix[0] == data.bos), "GGUF cannot say which tokens come before a text");
  check(data.suffix.empty() || (data.suffix.size() == 1 && data.suffix[0] == data.eos), "GGUF cannot say which tokens come after a text");
  put("ggml.add_bos_token", {!data.prefix.empty()});
  put("ggml.add_eos_token", {!data.suffix.empty()});
  if (!data.chat_template.empty()) put("chat_template", {data.chat_template});
  return out;
}

namespace {

class Rebuilt {
 public:
  explicit Rebuilt(const Json& metadata)
      : metadata_(metadata), data_(read_tokenizer_gguf(metadata)), tokens_(metadata.at("tokenizer.ggml.tokens")) {}

  TokenizerFiles files() {
    model_["type"] = "BPE";
    model_["dropout"] = nullptr;
    model_["unk_token"] = data_.unknown >= 0 ? OrderedJson(text(data_.unknown)) : OrderedJson();
    model_["continuing_subword_prefix"] = nullptr;
    model_["end_of_word_suffix"] = nullptr;
    model_["fuse_unk"] = !data_.byte_level;
    model_["byte_fallback"] = data_.byte_fallback;
    model_["ignore_merges"] = data_.ignore_merges;
    add_vocabulary();
    OrderedJson json{{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}, {"added_tokens", added()}};
    if (data_.byte_level)
      add_byte_level(json);
    else
      add_sentencepiece(json);
    json["model"] = std::move(model_);
    return {std::move(json), config()};
  }

 private:
  std::string text(int32_t id) const { return tokens_.at(size_t(id)).get<std::string>(); }

  // The library's objects of many keys search linearly: the text is put together here.
  void add_vocabulary() {
    std::map<std::string, size_t> vocab;
    for (size_t id = 0; id < tokens_.size(); id++) vocab.emplace(piece(id), id);
    OrderedJson::object_t entries;
    for (auto& [token, id] : vocab) entries.push_back({token, id});
    model_["vocab"] = OrderedJson();
    model_["vocab"] = std::move(entries);
    model_["merges"] = data_.byte_level ? stored_merges() : merges_by_score(vocab);
  }

  // As read: runs of spaces are marked.
  std::string piece(size_t id) const {
    const bool merged = !data_.byte_level && !data_.pieces[id].empty();
    return merged ? data_.pieces[id] : text(int32_t(id));
  }

  OrderedJson stored_merges() const {
    OrderedJson merges = OrderedJson::array();
    for (const Json& merge : metadata_.at("tokenizer.ggml.merges")) {
      const auto& both = merge.get_ref<const std::string&>();
      const size_t space = both.find(' ', 1);
      if (space != both.npos) merges.push_back({both.substr(0, space), both.substr(space + 1)});
    }
    return merges;
  }

  // Every way to make a piece of two others is a merge, the best score first.
  OrderedJson merges_by_score(const std::map<std::string, size_t>& vocab) const {
    std::vector<size_t> order;
    for (size_t id = 0; id < data_.pieces.size(); id++)
      if (!data_.pieces[id].empty() && !is_byte_piece(data_.pieces[id])) order.push_back(id);
    std::ranges::stable_sort(order, [&](size_t a, size_t b) { return data_.scores[a] > data_.scores[b]; });
    OrderedJson merges = OrderedJson::array();
    for (size_t id : order) {
      const std::string& whole = data_.pieces[id];
      std::vector<std::pair<std::pair<size_t, size_t>, size_t>> ways;
      for (size_t at = 1; at < whole.size(); at++) {
        if ((uint8_t(whole[at]) & 0xC0) == 0x80) continue;  // inside a character
        const auto left = vocab.find(whole.substr(0, at)), right = vocab.find(whole.substr(at));
        if (left != vocab.end() && right != vocab.end()) ways.push_back({{left->second, right->second}, at});
      }
      std::ranges::sort(ways);
      for (auto& [ids, at] : ways) merges.push_back({whole.substr(0, at), whole.substr(at)});
    }
    return merges;
  }

  OrderedJson added() const {
    std::vector<AddedToken> tokens = data_.added;
    std::ranges::sort(tokens, {}, &AddedToken::id);
    OrderedJson list = OrderedJson::array();
    for (const AddedToken& t : tokens)
      list.push_back({{"id", t.id},
                      {"content", t.content},
                      {"single_word", false},
                      {"lstrip", false},
                      {"rstrip", false},
                      {"normalized", false},
                      {"special", t.special}});
    return list;
  }

  OrderedJson around() const {  // the tokens before and after a text
    OrderedJson single = OrderedJson::array(), special = OrderedJson::object();
    auto put = [&](int32_t id) {
      single.push_back({{"SpecialToken", {{"id", text(id)}, {"type_id", 0}}}});
      special[text(id)] = {{"id", text(id)}, {"ids", {id}}, {"tokens", {text(id)}}};
    };
    for (int32_t id : data_.prefix) put(id);
    single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
    for (int32_t id : data_.suffix) put(id);
    OrderedJson pair = single;
    pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
    return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", special}};
  }

  void add_byte_level(OrderedJson& json) const {
    json["normalizer"] = data_.normalizer.empty() ? OrderedJson() : OrderedJson{{"type", "NFC"}};
    OrderedJson steps = OrderedJson::array();
    for (const PreTokenizerStep& step : data_.pre_tokenizer) {
      check(step.kind == PreTokenizerStep::Kind::split,
            "tokenizer.json cannot say this tokenizer's space before a text; --no-tokenizer leaves it out");
      steps.push_back({{"type", "Split"}, {"pattern", {{"Regex", step.pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
    }
    steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}});
    json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
    json["post_processor"] = around();
    json["decoder"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
  }

  void add_sentencepiece(OrderedJson& json) const {
    const bool prefix = data_.decoder.strip_first_count > 0;
    OrderedJson steps = OrderedJson::array();
    if (prefix) steps.push_back({{"type", "Prepend"}, {"prepend", space_mark}});
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", space_mark}});
    json["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
    json["pre_tokenizer"] = nullptr;
    json["post_processor"] = around();
    OrderedJson undo = OrderedJson::array(
        {{{"type", "Replace"}, {"pattern", {{"String", space_mark}}}, {"content", " "}}, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
    if (prefix) undo.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    json["decoder"] = {{"type", "Sequence"}, {"decoders", undo}};
  }

  OrderedJson config() const {
    OrderedJson out{{"tokenizer_class", "PreTrainedTokenizerFast"}};
    if (data_.bos >= 0) out["bos_token"] = text(data_.bos);
    if (data_.eos >= 0) out["eos_token"] = text(data_.eos);
    if (data_.unknown >= 0) out["unk_token"] = text(data_.unknown);
    const auto pad = metadata_.find("tokenizer.ggml.padding_token_id");
    if (pad != metadata_.end() && pad->is_number_integer() && *pad >= 0 && *pad < tokens_.size())
      out["pad_token"] = text(pad->get<int32_t>());
    out["clean_up_tokenization_spaces"] = false;
    if (!data_.chat_template.empty()) out["chat_template"] = data_.chat_template;
    return out;
  }

  const Json& metadata_;
  TokenizerData data_;
  const Json& tokens_;
  OrderedJson model_ = OrderedJson::object();
};

}  // namespace

TokenizerFiles tokenizer_from_gguf(const Json& metadata) { return Rebuilt(metadata).files(); }

}  // namespace mr
