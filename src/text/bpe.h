// Byte-pair encoding of one piece of text (Sennrich et al. 2016): n log n in the piece's length, so that a megabyte
// without spaces costs no more than a megabyte of words.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/pretokenize.h"
#include "text/tokenizer_data.h"

namespace mr {

// Pair of ids -> (rank, id of the union). Open addressing, at most half full.
class MergeTable {
 public:
  struct Entry {
    uint64_t key;
    int32_t rank, result;
  };
  explicit MergeTable(const std::vector<Merge>& merges);
  const Entry* find(int32_t left, int32_t right) const;  // null: the pair does not merge

 private:
  size_t slot(uint64_t key) const;
  std::vector<Entry> entries_;
  int shift_ = 0;
};

class Bpe {
 public:
  // Keeps a reference to `data`.
  explicit Bpe(const TokenizerData& data);
  // Appends to `ids`. `longest`: bytes of the longest piece granted so far; calls that share an allowance share it.
  void encode(const TextPieces& pieces, std::vector<int32_t>& ids, const Allowance&, size_t& longest) const;
  int32_t find(std::string_view piece) const;  // -1: not in the vocabulary

 private:
  struct Symbol;
  struct Candidate;
  void encode_piece(std::string_view piece, std::vector<Symbol>& symbols, TimedLoop&, std::vector<int32_t>& ids) const;
  void start_symbols(std::string_view piece, std::vector<Symbol>& symbols, TimedLoop&) const;
  void add_character(std::string_view piece, size_t begin, size_t length, std::vector<Symbol>& symbols) const;
  bool candidate(std::string_view piece, const std::vector<Symbol>& symbols, int32_t left, Candidate& out) const;
  void merge_short(std::string_view piece, std::vector<Symbol>& symbols) const;
  void merge_long(std::string_view piece, std::vector<Symbol>& symbols, TimedLoop&) const;

  const TokenizerData& data_;
  MergeTable merges_;
  std::unordered_map<std::string_view, int32_t> vocabulary_;
  std::array<int32_t, 256> byte_id_;      // the piece that is this byte; -1: none
  std::array<int32_t, 256> fallback_id_;  // the piece <0xNN>
};

}  // namespace mr
