// A tokenizer as data: the common form of tokenizer.json and GGUF metadata.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"

namespace mr {

// Cut out of the text before any other step. `normalized`: searched for in the normalized text, not the raw one.
struct AddedToken {
  std::string content;
  int32_t id = -1;
  bool special = false, lstrip = false, rstrip = false, single_word = false, normalized = false;
};

struct NormalizerStep {
  enum class Kind : uint8_t {
    nfc,
    nfd,
    nfkc,
    nfkd,
    lowercase,
    strip_accents,
    strip_left,
    strip_right,
    prepend,
    replace,
    replace_regex
  } kind;
  std::string from, to;  // prepend uses `to`
};

struct PreTokenizerStep {
  enum class Kind : uint8_t { split, prefix_space, metaspace } kind = Kind::split;
  enum class Behavior : uint8_t { removed, isolated, merged_with_previous, merged_with_next, contiguous } behavior = Behavior::isolated;
  std::string pattern;      // split: a regular expression
  bool invert = false;      // split: what does not match is the separator
  bool only_first = false;  // metaspace: the prefix goes in front of the text's first piece only
  bool prefix = true;       // metaspace: prepend one at all
  std::string replacement;  // metaspace: stands for a space
};

struct Merge {
  int32_t left, right, result;
};

struct DecoderRules {
  std::vector<std::pair<std::string, std::string>> replace;  // within each token, in order
  std::string strip_first;                                   // removed from the start of the whole text, at most strip_first_count times
  int strip_first_count = 0;
  bool drop_in_first_token = false;  // a Metaspace decoder: in the first token the replacement is deleted, not turned into spaces
  std::string separator;             // between tokens
};

// Ids are nearly dense: the highest that a list of n tokens may use. One id of many millions would allocate memory for nothing.
inline size_t most_ids(size_t n) { return 2 * n + 65536; }

struct TokenizerData {
  // Pieces by id, as raw bytes where byte_level is set (GPT-2's printable alphabet is undone on reading).
  std::vector<std::string> pieces;
  std::vector<std::pair<int32_t, std::string>> decode_only;  // tokens with a text that the model never produces by merging
  std::vector<AddedToken> added;
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;

  // The model: merges by rank, or, with scores, the pair whose union is the piece of highest score.
  std::vector<Merge> merges;
  std::vector<float> scores;   // by id; empty: merges rule
  bool byte_level = false;     // symbols start as bytes; else as characters
  bool byte_fallback = false;  // a character without a piece becomes pieces <0x00> … <0xFF>
  bool ignore_merges = false;  // a text piece that is in the vocabulary is taken whole
  bool fuse_unknown = false;
  int32_t unknown = -1;

  int32_t bos = -1, eos = -1;
  std::vector<int32_t> prefix, suffix;  // added around the text with add_special
  std::vector<int32_t> stop;            // end a turn, besides eos
  DecoderRules decoder;
  std::string chat_template;
};

// tokenizer.json, with tokenizer_config.json (null: none); the keys "tokenizer.…" of GGUF metadata.
TokenizerData read_tokenizer_json(const Json& tokenizer_json, const Json* tokenizer_config);
TokenizerData read_tokenizer_gguf(const Json& metadata);

}  // namespace mr
