// One ragged batch without modes: prefill, decode, draft verification and diffusion blocks are the same arrays with different row
// counts. Rows of one sequence are consecutive. All arrays are parts of one contiguous StepBuffer; Batch only points into it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace mr {

// Attention mask among the rows of one step; the committed context before them is always visible.
enum class Corner : uint8_t { causal, full, bits };

// What an output row returns.
enum class Out : uint8_t { token, logits, hidden };

// Bias and penalty counts for one token's logit.
struct LogitEdit {
  int32_t token;
  int32_t n_generated;  // times in this answer (frequency, presence)
  int32_t seen;         // 1: in prompt or answer (repetition)
  float bias;
};

// How the token of one output row is chosen. The draw is keyed by (seed, choice, position), never by the batch.
struct SampleRow {
  uint64_t seed;
  int32_t choice, position;
  float temperature;                                              // 0: greedy, ties to the lower id
  int32_t top_k;                                                  // 0: all
  float top_p, min_p;                                             // 1 and 0: all
  float repetition_penalty, frequency_penalty, presence_penalty;  // 1, 0, 0: none
  int32_t n_logprobs;                                             // top alternatives to report
  int32_t edit_begin, n_edits;                                    // into Batch::edit
};

// Block tables of one state group. Pages: unit[begin[s] + p] holds tokens [p * page_tokens, ...) of sequence s; -1: dropped, outside
// the sliding window. Slots: sequence s starts from unit src[s]; row r stores its state in unit dst[r] (-1: not stored).
struct GroupTable {
  const int32_t* unit = nullptr;   // [begin[n_seqs]]
  const int32_t* begin = nullptr;  // [n_seqs + 1]
  const int32_t* src = nullptr;    // [n_seqs]
  const int32_t* dst = nullptr;    // [n_tokens]
};

struct Batch {
  int n_tokens = 0, n_seqs = 0, n_out = 0;
  const int32_t* token = nullptr;       // [n_tokens]; -1-i: the token that output row i of the previous step sampled
  const int32_t* position = nullptr;    // [n_tokens]
  const int32_t* row_begin = nullptr;   // [n_seqs + 1]
  const int32_t* context = nullptr;     // [n_seqs] committed tokens before this step
  const int32_t* prompt_len = nullptr;  // [n_seqs] length-dependent ropes scale by max(prompt_len, position + 1)
  const Corner* corner = nullptr;       // [n_seqs]
  const int32_t* parent = nullptr;      // [n_tokens] bits only: batch row whose recurrent state it continues, -1: the context's
  const uint64_t* ancestors = nullptr;  // [n_tokens] bits only: bit i = sees row i of its sequence
  const int32_t* out_row = nullptr;     // [n_out] ascending
  const Out* out = nullptr;             // [n_out]
  const SampleRow* sample = nullptr;    // [n_out]
  const LogitEdit* edit = nullptr;
  const int32_t* mask_row = nullptr;  // [n_out] row of `mask`, -1: all tokens allowed; null: no masks in this batch
  const uint32_t* mask = nullptr;     // [rows, (vocab + 31) / 32] bit set: allowed
  std::span<const GroupTable> group;  // one per group of the layout

  int rows(int seq) const { return row_begin[seq + 1] - row_begin[seq]; }
};

struct TopToken {
  int32_t token;
  float logprob;
};

// Result of sampling one output row.
struct Sampled {
  int32_t token = -1;
  float logprob = 0;          // of `token` under the unchanged logits (temperature 1, no penalties)
  std::vector<TopToken> top;  // n_logprobs of them, descending; ties to the lower id
};

}  // namespace mr
