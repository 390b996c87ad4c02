// GPT-2's printable alphabet: vocabularies of byte-level models write each byte as one visible character.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "text/tokenizer_data.h"
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
  // The bytes that `text` spells; none if it contains a character outside the alphabet.
  std::optional<std::string> bytes(std::string_view text) const {
    std::string out;
    for (size_t pos = 0; pos < text.size();) {
      char32_t c = next_code_point(text, pos);
      if (c >= byte_.size() || byte_[c] < 0) return std::nullopt;
      out += static_cast<char>(byte_[c]);
    }
    return out;
  }

  // Turns a vocabulary's pieces into bytes. A piece outside the alphabet can be decoded, as itself, but no text merges into it.
  void convert(TokenizerData& data) const {
    for (size_t id = 0; id < data.pieces.size(); ++id) {
      std::optional<std::string> spelled = bytes(data.pieces[id]);
      if (!spelled) data.decode_only.emplace_back(static_cast<int32_t>(id), data.pieces[id]);
      data.pieces[id] = spelled.value_or("");
    }
  }

 private:
  std::array<int, 324> byte_;  // by code point; -1: not in the alphabet
};

}  // namespace mr
