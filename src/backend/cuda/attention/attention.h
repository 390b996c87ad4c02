// Paged attention, rotary embeddings, and storing keys and values.
#pragma once

#include "backend/cuda/device/device.h"

namespace mr::cuda {

// Pages of one attention layer: K [kv_head][page_tokens][k_dim], then V [kv_head][page_tokens][v_dim].
struct Pages {
  std::byte* base = nullptr;  // of unit 0 of this layer
  int64_t unit_bytes = 0;
  int page_tokens = 0, page_shift = -1;  // page_shift: log2(page_tokens), -1: not a power of two
  DType dtype = DType::bf16;
  int kv_heads = 0, k_dim = 0, v_dim = 0;
  const int32_t *unit = nullptr, *begin = nullptr;  // block tables, see GroupTable
  int group = 0;
};

// The arrays of a Batch that attention reads.
struct Spots {
  int n_seqs = 0, n_tokens = 0;
  const int32_t *row_begin = nullptr, *context = nullptr, *position = nullptr;
  const Corner* corner = nullptr;
  const uint64_t* ancestors = nullptr;
};

// A piece of a decode: keys [begin, end) of a sequence, the index-th of its `count` partial results; count 0: padding.
struct DecodeItem {
  int32_t seq, row, context, begin, end, index, count;
  int32_t slot;      // of its partial result; those of a sequence are consecutive
  int32_t shared;    // the first `shared` of the `count` are computed by attend_shared()
  int32_t table[5];  // offset of the sequence's block table in each of the first groups
};
// Keys [begin, end) of the common prefix of n sequences of one row: partial result `part` of each.
struct SharedTile {
  int32_t first, n;  // in the list of SharedRows; n is at most kPrefillRows / query heads per K/V head
  int32_t seq;       // whose block table is read
  int32_t begin, end, part;
};
struct SharedRow {
  int32_t row, slot;  // row of q; slot of the sequence's first partial result
};
// One tile of a prefill: rows [row, row + kPrefillRows) of a sequence of n_rows, whose first is row `first` of the batch.
struct PrefillTile {
  int32_t seq, row, first, n_rows, context, causal;
};
inline constexpr int kPrefillRows = 128;
// Deterministic attention of heads of up to 128 dimensions: an online softmax over tiles of kSpanTile keys inside spans of kSpan, both at
// absolute positions; spans are merged first to last.
inline constexpr int kSpan = 256, kSpanTile = 64;
inline constexpr int kDecodeBlocks = 2;  // resident blocks of a decode per multiprocessor
inline constexpr int kGroup = 8;         // most query heads per block of a decode, all of one K/V head
// Number of groups of query heads in a decode; each reads its K/V head.
inline int decode_shares(int heads, int kv_heads) { return kv_heads * ((heads / kv_heads + kGroup - 1) / kGroup); }
inline constexpr int kPartExtra = 4;  // floats of a partial result beside the values: max, sum, padding

struct Rope {
  const float* angles = nullptr;  // [T, dim]: cos, then sin; null: no rotation
  int64_t stride = 0;
  int dim = 0;
};

struct AttendCall {
  Heads q, out;
  Heads k, v;  // decode only: this step's keys and values, to be stored; empty: already stored
  Rope rope;   // decode only: rotates q and k
  Pages pages;
  Spots spots;
  int heads = 0;
  float scale = 1;
  int window = 0;
  float softcap = 0;
  const float* sinks = nullptr;
};

struct DecodePlan {
  const DecodeItem* item = nullptr;
  int grid = 0;                // items, including padding
  float* partial = nullptr;    // [slots * decode_shares() * kGroup * (v_dim + kPartExtra)]
  int32_t* arrived = nullptr;  // [n_seqs * decode_shares()] zero before and after
  const SharedTile* shared = nullptr;
  const SharedRow* shared_row = nullptr;
  const int32_t* n_shared = nullptr;  // tiles, at most shared_room
  int shared_room = 0;                // 0: no shared prefixes
};

// rope.cu
struct Frequencies {
  RopeTable::Length length;
  int dim;
  float scale;
  const float *inv_freq, *long_inv_freq;
  int original;
  float theta, factor;
};
void angles(const Launch&, Matrix out, const Frequencies&, const Spots&, const int32_t* prompt_len);
void rope(const Launch&, Heads x, Matrix angles, bool interleaved);
void store_kv(const Launch&, const Pages&, Heads k, Heads v, const Spots&);
// Rotates q in place, stores rotated k and plain v in their pages. bf16, rotation of whole heads, pairs (i, i + dim / 2).
bool can_rope_store(const AttendCall&);
void rope_store(const Launch&, const AttendCall&);

// decode.cu, prefill.cu, any.cu
bool can_decode(const AttendCall&);  // bf16, heads of 64, 128 or 256; the caller ensures one row per sequence
void attend_decode(const Launch&, const AttendCall&, const DecodePlan&);
bool can_prefill(const AttendCall&);  // bf16, heads of 64, 128 or 256
// singles: every tile is a sequence of one row, with all query heads of a K/V head in one tile. The bits are the same either way.
void attend_prefill(const Launch&, const AttendCall&, const PrefillTile* tiles, int n_tiles, bool singles = false);
// Before attend_decode(): the partial results of shared prefixes. q must be rotated, and keys and values stored.
void attend_shared(const Launch&, const AttendCall&, const DecodePlan&);
void attend_any(const Launch&, const AttendCall&);

}  // namespace mr::cuda
