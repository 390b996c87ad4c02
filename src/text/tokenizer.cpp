// The pipeline: added tokens are cut out; the rest is normalized, split into pieces and merged.
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

constexpr size_t max_token_bytes = 4096;  // of a piece; real vocabularies stay below 600
constexpr size_t max_added_bytes = 1024;  // of an added token: searching costs the text's length times this, at worst
constexpr size_t max_added = 1 << 18;
constexpr size_t max_decoder_rules = 64;
constexpr size_t max_decoded = 65536;  // bytes that a token may add to a text
constexpr size_t max_around = 64;      // tokens added around a text

// Refuses sizes that would make encoding or decoding slow or large, whatever the text.
void check_sizes(const TokenizerData& data) {
  for (const std::string& piece : data.pieces)
    check(piece.size() <= max_token_bytes, "the token '{}' has {} bytes: at most {} are allowed", printable(piece, 40), piece.size(),
          max_token_bytes);
  check(data.added.size() <= max_added, "there are {} added tokens: at most {} are allowed", data.added.size(), max_added);
  for (const AddedToken& token : data.added)
    check(token.content.size() <= max_added_bytes, "the added token '{}' has {} bytes: at most {} are allowed",
          printable(token.content, 40), token.content.size(), max_added_bytes);
  check(data.decoder.replace.size() <= max_decoder_rules, "the tokenizer has {} decoders: at most {} are allowed",
        data.decoder.replace.size(), max_decoder_rules);
  for (const auto& [from, to] : data.decoder.replace)
    check(to.size() <= max_added_bytes, "a decoder replaces '{}' by {} bytes: at most {} are allowed", from, to.size(), max_added_bytes);
  for (const auto* ids : {&data.prefix, &data.suffix})
    check(ids->size() <= max_around, "the tokenizer puts {} tokens around a text: at most {} are allowed", ids->size(), max_around);
}

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
  void undo_rules();
  void find_stop_tokens();
  void encode_plain(std::string_view text, bool first, bool parse_special, const Allowance&, size_t& longest,
                    std::vector<int32_t>& ids) const;

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
  check_sizes(data);
  add_tokens();
  undo_rules();
  find_stop_tokens();
}

// What each token adds to a text.
void Tokenizer::State::undo_rules() {
  size_t before = 0, after = 0;
  for (const std::string& text : bytes) before += text.size();
  for (size_t id = 0; id < bytes.size(); ++id) {
    if (int byte = data.byte_fallback ? fallback_byte(bytes[id]) : -1; byte >= 0) {
      bytes[id].assign(1, static_cast<char>(byte));
    } else {
      for (const auto& [from, to] : data.decoder.replace) {
        replace_all(bytes[id], from, to);
        check(bytes[id].size() <= max_decoded, "the tokenizer's decoders make {} bytes of the token {}: at most {} are allowed",
              bytes[id].size(), id, max_decoded);
      }
    }
    after += bytes[id].size();
    check(after <= 16 * before + max_decoded, "the tokenizer's decoders make more than {} bytes of {} bytes of tokens", after, before);
  }
}

void Tokenizer::State::add_tokens() {
  bytes = data.pieces;
  for (const auto& [id, text] : data.decode_only) bytes[id] = text;
  for (const AddedToken& token : data.added) {
    bool possible = token.id >= 0 && size_t(token.id) < most_ids(data.pieces.size() + data.added.size());
    check(possible, "the added token '{}' has the impossible id {}", token.content, token.id);
    if (bytes.size() <= static_cast<size_t>(token.id)) bytes.resize(token.id + 1);
  }
  special.resize(bytes.size());
  const Allowance in_time{.deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30)};  // real ones take milliseconds
  size_t before = 0, after = 0;
  for (const AddedToken& token : data.added) {
    std::string text = token.normalized ? normalizer.apply(token.content, in_time) : token.content;
    before += token.content.size();
    after += text.size();
    check(after <= 16 * before + max_decoded, "the tokenizer's normalizer makes {} bytes of {} bytes of added tokens", after, before);
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

void Tokenizer::State::encode_plain(std::string_view text, bool first, bool parse_special, const Allowance& allowance, size_t& longest,
                                    std::vector<int32_t>& ids) const {
  std::string normal = normalizer.apply(text, allowance);
  for (const auto& segment : normalized.split(normal, parse_special, allowance)) {
    if (segment.id >= 0) {
      ids.push_back(segment.id);
    } else {
      const bool begins = first && segment.text.data() == normal.data();
      bpe.encode(pre_tokenizer.apply(std::string(segment.text), begins, allowance), ids, allowance, longest);
    }
  }
}

Tokenizer::Tokenizer(TokenizerData data) : state_(std::make_shared<const State>(std::move(data))) {}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special, bool parse_special, const Allowance& allowance) const {
  check(text.size() < (size_t{1} << 31), "a text of {} bytes is too long to encode", text.size());
  constexpr size_t bytes_a_byte = 8;  // for copies and ids; steps that need more call hold()
  allowance.hold(bytes_a_byte * text.size());
  std::string mended;
  if (valid_utf8_prefix(text) < text.size()) text = mended = to_valid_utf8(text);
  std::vector<int32_t> ids;
  size_t longest = 0;
  if (add_special) ids = state_->data.prefix;
  for (const auto& segment : state_->raw.split(text, parse_special, allowance)) {
    if (segment.id >= 0) {
      ids.push_back(segment.id);
    } else {
      state_->encode_plain(segment.text, segment.text.data() == text.data(), parse_special, allowance, longest, ids);
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
