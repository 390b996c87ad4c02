// Text to token ids and back: byte-pair encoding from a tokenizer.json or from a GGUF file's metadata.
// Input is UTF-8; each invalid sequence counts as U+FFFD. Copies are cheap, and threads may share one object.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/allowance.h"
#include "core/json.h"
#include "text/tokenizer_data.h"

namespace mr {

class Tokenizer {
 public:
  explicit Tokenizer(TokenizerData data);
  // tokenizer.json, and tokenizer_config.json (null: none) for the bos and eos tokens and the chat template.
  static Tokenizer from_json(const Json& tokenizer_json, const Json* tokenizer_config);
  // A flat object of the metadata keys: {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": […], …}.
  static Tokenizer from_gguf(const Json& metadata);

  // add_special: add the tokens that the model expects around the text (bos, …). parse_special: special tokens written
  // in the text become those tokens; without it they are plain text. Added tokens that are not special are always found.
  // Throws Stopped when the allowance is used up.
  std::vector<int32_t> encode(std::string_view text, bool add_special, bool parse_special = true, const Allowance& = {}) const;
  // Always valid UTF-8: bytes that form no character become U+FFFD. Ids outside the vocabulary are skipped.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  std::string piece(int32_t id) const;                          // the bytes that a token adds to a text; may be half a character
  std::optional<int32_t> find(std::string_view content) const;  // an added token's content or a vocabulary entry
  int vocab_size() const;                                       // highest id + 1
  int32_t bos() const;                                          // -1: none
  int32_t eos() const;                                          // -1: none
  bool is_special(int32_t id) const;
  std::span<const int32_t> stop_tokens() const;  // end a turn: eos, <|im_end|>, <|eot_id|>, …
  const std::string& chat_template() const;      // empty: none

 private:
  friend class Detokenizer;
  struct State;
  // The bytes of one token, given whether anything came before it.
  std::string decoded_bytes(int32_t id, bool first) const;
  const DecoderRules& decoder() const;
  std::shared_ptr<const State> state_;
};

}  // namespace mr
