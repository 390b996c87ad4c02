// Finds added tokens in text: at the earliest position the longest one, from left to right, never overlapping.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "core/allowance.h"
#include "text/tokenizer_data.h"

namespace mr {

// A trie. Searching costs the text's length times the longest token at worst.
class AddedTokenMatcher {
 public:
  struct Segment {
    std::string_view text;
    int32_t id;  // -1: plain text
  };
  AddedTokenMatcher() : nodes_(1) {}
  // `text` is what to search for (the token's content, normalized where the token says so).
  void add(std::string_view text, const AddedToken& token);
  // Cuts `text` into tokens and the text between them. Without parse_special, special tokens stay plain text.
  std::vector<Segment> split(std::string_view text, bool parse_special, const Allowance& = {}) const;

 private:
  struct Node {
    std::vector<std::pair<char, int32_t>> next;
    int32_t token = -1;  // index into tokens_
  };
  struct Match {
    size_t begin, end;
    int32_t token;
  };
  int32_t child(int32_t node, char c) const;
  bool find(std::string_view text, size_t from, TimedLoop&, Match& match) const;
  std::vector<Node> nodes_;
  std::vector<AddedToken> tokens_;
};

}  // namespace mr
