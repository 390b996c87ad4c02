// Attention over pages of keys and values, rotations, and the storing of keys and values.
#pragma once

#include "backend/cuda/device/device.h"

namespace mr::cuda {

// Pages of one attention layer: K [kv_head][page_tokens][k_dim], then V [kv_head][page_tokens][v_dim], row after row.
struct Pages {
  std::byte* base = nullptr;  // of unit 0 of this layer
  int64_t unit_bytes = 0;
  int page_tokens = 0, page_shift = -1;  // shift: its logarithm, where it is a power of two
  DType dtype = DType::bf16;
  int kv_heads = 0, k_dim = 0, v_dim = 0;
  const int32_t *unit = nullptr, *begin = nullptr;  // the sequences' tables
  int group = 0;
};

// The arrays of a Batch that attention reads.
struct Spots {
  int n_seqs = 0, n_tokens = 0;
  const int32_t *row_begin = nullptr, *context = nullptr, *position = nullptr;
  const Corner* corner = nullptr;
  const uint64_t* ancestors = nullptr;
};

// A piece of a decode: tokens [begin, end) of a sequence's keys, the index-th of `count` that lie together; count 0: nothing.
struct DecodeItem {
  int32_t seq, row, context, begin, end, index, count;
  int32_t slot;      // of its result; those of a sequence follow each other
  int32_t shared;    // of the count, the first so many are attend_shared()'s
  int32_t table[5];  // where the sequence's page table begins in each of the first groups
};
// Keys [begin, end) that n sequences of one row begin with alike: the part-th item of each.
struct SharedTile {
  int32_t first, n;  // in the list of SharedRows; at most kPrefillRows / query heads of a K/V head
  int32_t seq;       // whose page table is read
  int32_t begin, end, part;
};
struct SharedRow {
  int32_t row, slot;  // of q; the first result of the sequence
};
// One block's share of a prefill: rows [row, row + kPrefillRows) of a sequence of n_rows, whose first is row `first` of the batch.
struct PrefillTile {
  int32_t seq, row, first, n_rows, context, causal;
};
inline constexpr int kPrefillRows = 128;
inline constexpr int kDecodeBlocks = 2;  // of a decode that a multiprocessor holds at a time
inline constexpr int kGroup = 8;         // query heads of one K/V head that a block of a decode holds at most
// In how many shares a decode takes the query heads: each reads its K/V head.
inline int decode_shares(int heads, int kv_heads) { return kv_heads * ((heads / kv_heads + kGroup - 1) / kGroup); }
inline constexpr int kPartExtra = 4;  // floats beside the sums in an item's result

struct Rope {
  const float* angles = nullptr;  // [T, dim]: cos, then sin; null: no rotation
  int64_t stride = 0;
  int dim = 0;
};

struct AttendCall {
  Heads q, out;
  Heads k, v;  // decode alone: this step's keys and values, stored first; empty: stored already
  Rope rope;   // decode alone: rotates q and k
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
  int grid = 0;                // items at most
  float* partial = nullptr;    // [slots * decode_shares() * kGroup * (v_dim + kPartExtra)]
  int32_t* arrived = nullptr;  // [n_seqs * decode_shares()] zero
  const SharedTile* shared = nullptr;
  const SharedRow* shared_row = nullptr;
  const int32_t* n_shared = nullptr;  // tiles, at most shared_room
  int shared_room = 0;                // 0: nothing is shared
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
// q rotated in place; k rotated and v as it is stored in their pages. bf16, whole heads, pairs (i, i + dim / 2).
bool can_rope_store(const AttendCall&);
void rope_store(const Launch&, const AttendCall&);

// decode.cu, prefill.cu, any.cu
bool can_decode(const AttendCall&);  // one row a sequence, bf16 pages, heads of 64, 128 or 256
void attend_decode(const Launch&, const AttendCall&, const DecodePlan&);
bool can_prefill(const AttendCall&);  // bf16, heads of 64, 128 or 256
// singles: every tile is the one row of its sequence, for all query heads of a K/V head at once. Bits are the same either way.
void attend_prefill(const Launch&, const AttendCall&, const PrefillTile* tiles, int n_tiles, bool singles = false);
// Before attend_decode(), whose q and keys must be rotated and stored already: the parts of its items that sequences share.
void attend_shared(const Launch&, const AttendCall&, const DecodePlan&);
void attend_any(const Launch&, const AttendCall&);

}  // namespace mr::cuda
