// The pipeline: added tokens are cut out, the rest is normalized, cut into pieces and merged.
#include "text/tokenizer.h"

#include <unordered_map>

#include "core/error.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/detokenizer.h"
#include "text/pretokenize.h"
#include "text/unicode.h"

namespace mr {

namespace {

// Names of tokens that end a turn, across model families.
constexpr std::string_view stop_names[] = {
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>",   "<end_of_turn>",
    "<|end|>",    "<|return|>", "<|call|>",   "<|eot|>",         "<|EOT|>",         "<EOT>",
    "</s>",       "<|user|>",   "<eos>",      "<turn|>",         "<|end_of_turn|>", "<｜end▁of▁sentence｜>"};

// The byte that "<0xNN>" stands for, or -1.
int fallback_byte(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return -1;
  int byte = 0;
  for (char c : piece.substr(3, 2)) {
    int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return -1;
    byte = byte * 16 + digit;
  }
  return byte;
}

}  // namespace

struct Tokenizer::State {
  explicit State(TokenizerData source);
  void add_tokens();
  void find_stop_tokens();
  void encode_plain(std::string_view text, bool first, bool parse_special, std::vector<int32_t>& ids) const;

  TokenizerData data;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  AddedTokenMatcher raw, normalized;
  std::unordered_map<std::string, int32_t> added_id;
  std::vector<std::string> bytes;  // by id: what a token adds to a text
  std::vector<bool> special;       // by id
  std::vector<int32_t> stop;
};

Tokenizer::State::State(TokenizerData source)
    : data(std::move(source)), normalizer(data.normalizer), pre_tokenizer(data.pre_tokenizer), bpe(data) {
  add_tokens();
  for (size_t id = 0; id < bytes.size(); ++id) {
    if (int byte = data.byte_fallback ? fallback_byte(bytes[id]) : -1; byte >= 0) {
      bytes[id].assign(1, static_cast<char>(byte));
    } else {
      for (const auto& [from, to] : data.decoder.replace) replace_all(bytes[id], from, to);
    }
  }
  find_stop_tokens();
}

void Tokenizer::State::add_tokens() {
  bytes = data.pieces;
  for (const auto& [id, text] : data.decode_only) bytes[id] = text;
  for (const AddedToken& token : data.added) {
    check(token.id >= 0 && token.id < (1 << 24), "the added token '{}' has the impossible id {}", token.content, token.id);
    if (bytes.size() <= static_cast<size_t>(token.id)) bytes.resize(token.id + 1);
  }
  special.resize(bytes.size());
  for (const AddedToken& token : data.added) {
    std::string text = token.normalized ? normalizer.apply(token.content) : token.content;
    (token.normalized ? normalized : raw).add(text, token);
    bytes[token.id] = std::move(text);
    special[token.id] = token.special;
    added_id.emplace(token.content, token.id);
  }
  auto known = [&](int32_t id) { return id >= -1 && id < static_cast<int64_t>(bytes.size()); };
  check(known(data.bos) && known(data.eos), "the tokenizer's bos {} or eos {} lies outside its {} tokens", data.bos, data.eos,
        bytes.size());
  for (const auto* ids : {&data.prefix, &data.suffix, &data.stop}) {
    for (int32_t id : *ids) check(id >= 0 && known(id), "the tokenizer names the token {} but has only {}", id, bytes.size());
  }
}

void Tokenizer::State::find_stop_tokens() {
  auto add = [&](int32_t id) {
    if (id >= 0 && std::find(stop.begin(), stop.end(), id) == stop.end()) stop.push_back(id);
  };
  add(data.eos);
  for (int32_t id : data.stop) add(id);
  bool harmony = added_id.contains("<|return|>") && added_id.contains("<|call|>");  // there <|end|> ends a message only
  for (std::string_view name : stop_names) {
    if (name == "<|end|>" && harmony) continue;
    if (auto found = added_id.find(std::string(name)); found != added_id.end()) add(found->second);
  }
}

void Tokenizer::State::encode_plain(std::string_view text, bool first, bool parse_special, std::vector<int32_t>& ids) const {
  std::string normal = normalizer.apply(text);
  for (const auto& segment : normalized.split(normal, parse_special)) {
    if (segment.id >= 0) {
      ids.push_back(segment.id);
    } else {
      bpe.encode(pre_tokenizer.apply(std::string(segment.text), first && segment.text.data() == normal.data()), ids);
    }
  }
}

Tokenizer::Tokenizer(TokenizerData data) : state_(std::make_shared<const State>(std::move(data))) {}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special, bool parse_special) const {
  check(text.size() < (size_t{1} << 31), "a text of {} bytes is too long to encode", text.size());
  std::string mended;
  if (valid_utf8_prefix(text) < text.size()) text = mended = to_valid_utf8(text);
  std::vector<int32_t> ids;
  if (add_special) ids = state_->data.prefix;
  for (const auto& segment : state_->raw.split(text, parse_special)) {
    if (segment.id >= 0) {
      ids.push_back(segment.id);
    } else {
      state_->encode_plain(segment.text, segment.text.data() == text.data(), parse_special, ids);
    }
  }
  if (add_special) ids.insert(ids.end(), state_->data.suffix.begin(), state_->data.suffix.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  Detokenizer detokenizer(*this, skip_special);
  std::string text;
  for (int32_t id : ids) text += detokenizer.push(id);
  return text += detokenizer.finish();
}

std::string Tokenizer::decoded_bytes(int32_t id, bool first) const {
  const DecoderRules& rules = state_->data.decoder;
  if (first && rules.drop_in_first_token) {
    std::string text = state_->bytes[id];
    replace_all(text, rules.replace.at(0).second, "");
    return text;
  }
  return first ? state_->bytes[id] : rules.separator + state_->bytes[id];
}

const DecoderRules& Tokenizer::decoder() const { return state_->data.decoder; }

std::string Tokenizer::piece(int32_t id) const { return id >= 0 && id < vocab_size() ? state_->bytes[id] : std::string(); }

std::optional<int32_t> Tokenizer::find(std::string_view content) const {
  if (auto found = state_->added_id.find(std::string(content)); found != state_->added_id.end()) return found->second;
  int32_t id = state_->bpe.find(content);
  return id >= 0 ? std::optional(id) : std::nullopt;
}

int Tokenizer::vocab_size() const { return static_cast<int>(state_->bytes.size()); }
int32_t Tokenizer::bos() const { return state_->data.bos; }
int32_t Tokenizer::eos() const { return state_->data.eos; }
bool Tokenizer::is_special(int32_t id) const { return id >= 0 && id < vocab_size() && state_->special[id]; }
std::span<const int32_t> Tokenizer::stop_tokens() const { return state_->stop; }
const std::string& Tokenizer::chat_template() const { return state_->data.chat_template; }

}  // namespace mr
