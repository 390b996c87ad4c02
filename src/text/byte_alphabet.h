// GPT-2's printable alphabet: vocabularies of byte-level models write each byte as one visible character.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "text/unicode.h"

namespace mr {

class ByteAlphabet {
 public:
  ByteAlphabet() {
    byte_.fill(-1);
    int next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      bool visible = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      byte_[visible ? byte : next++] = byte;
    }
  }
  // The bytes that `text` spells; a text with any other character stands for itself.
  std::string bytes(const std::string& text) const {
    std::string out;
    for (size_t pos = 0; pos < text.size();) {
      char32_t c = next_code_point(text, pos);
      if (c >= byte_.size() || byte_[c] < 0) return text;
      out += static_cast<char>(byte_[c]);
    }
    return out;
  }

 private:
  std::array<int, 324> byte_;  // by code point; -1: not in the alphabet
};

}  // namespace mr
