// Normalizes text and splits it into pieces; no merge crosses the border of a piece.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/regex.h"
#include "text/tokenizer_data.h"

namespace mr {

class Normalizer {
 public:
  explicit Normalizer(const std::vector<NormalizerStep>& steps);
  std::string apply(std::string_view text, const Allowance& = {}) const;
  bool empty() const { return steps_.empty(); }

 private:
  struct Step {
    NormalizerStep rule;
    std::optional<Regex> regex;
  };
  std::vector<Step> steps_;
};

struct TextRange {
  size_t begin, end;
};

// A text and its pieces, in order; removed text lies between them.
struct TextPieces {
  std::string text;
  std::vector<TextRange> ranges;
};

class PreTokenizer {
 public:
  explicit PreTokenizer(const std::vector<PreTokenizerStep>& steps);
  // `first`: this text begins the whole input (some rules prefix only that).
  TextPieces apply(std::string text, bool first, const Allowance& = {}) const;

 private:
  struct Step {
    PreTokenizerStep rule;
    std::optional<Regex> regex;
  };
  std::vector<Step> steps_;
};

// The GPT-2 split rule, part of the ByteLevel pre-tokenizer.
inline constexpr const char* gpt2_split = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace mr
