// Incremental decoding: text from tokens as they arrive, always in whole characters.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"

namespace mr {

// The concatenated results of push() and finish() equal Tokenizer::decode() of all ids. Bytes that may still become a
// character are held back; finish() turns the rest of them into U+FFFD, as decode() does.
class Detokenizer {
 public:
  // `continues`: the tokens follow other text, so a leading space that decode() would strip is kept.
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = true, bool continues = false);
  std::string push(int32_t id);
  std::string finish();

 private:
  std::string emit(std::string text);
  Tokenizer tokenizer_;
  std::string pending_;  // the beginning of a character, at most 3 bytes
  int strip_left_;       // how many leading characters may still be stripped
  bool skip_special_, first_;
};

}  // namespace mr
