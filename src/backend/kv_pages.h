// Addresses of one layer's keys and values in their pages: the layout of PagedKv (program/ops.h), for all host backends.
// `place` is a token's index in its sequence, context + row number; for causal and full corners it equals the position.
#pragma once

#include "backend/backend.h"
#include "core/error.h"

namespace mr {

inline constexpr int kKeyTile = 16;  // tokens interleaved in K

struct KvPages {
  const PagedKv* kv;
  const GroupTable* table;
  const StateMemory::GroupMemory* memory;
  int64_t element;  // bytes

  KvPages(const PagedKv& kv, const Batch& batch, const StateMemory& state)
      : kv(&kv), table(&batch.group[kv.ref.group]), memory(&state.group[kv.ref.group]), element(size_of(kv.dtype)) {
    check(memory->page_tokens > 0 && memory->page_tokens % kKeyTile == 0, "a page of {} tokens is not a multiple of {}",
          memory->page_tokens, kKeyTile);
  }

  // The layer's block in the page of token `place` of a sequence.
  std::byte* block(int seq, int64_t place) const {
    int32_t unit = table->unit[table->begin[seq] + place / memory->page_tokens];
    return memory->unit(unit) + kv->ref.offset * memory->page_tokens;
  }
  // K of the tile of 16 tokens that contains `place`: [k_dim][16].
  std::byte* k_tile(int seq, int head, int64_t place) const {
    int64_t tiles = memory->page_tokens / kKeyTile, tile = place % memory->page_tokens / kKeyTile;
    return block(seq, place) + (head * tiles + tile) * kv->k_dim * kKeyTile * element;
  }
  // Addresses of the K and V tiles of tokens [begin, end) of a head; begin is a multiple of 16. Returns their number. v may be null.
  int tiles(int seq, int head, int64_t begin, int64_t end, const void** k, const void** v) const {
    const int64_t k_bytes = kKeyTile * kv->k_dim * element, v_bytes = kKeyTile * kv->v_dim * element;
    const int64_t in_page = memory->page_tokens / kKeyTile;
    int64_t page = begin / memory->page_tokens, tile = begin % memory->page_tokens / kKeyTile;
    int n = 0;
    for (; begin < end; page++, tile = 0) {
      const std::byte* block = memory->unit(table->unit[table->begin[seq] + page]) + kv->ref.offset * memory->page_tokens;
      for (; tile < in_page && begin < end; tile++, begin += kKeyTile, n++) {
        k[n] = block + (head * in_page + tile) * k_bytes;
        if (v) v[n] = block + kv->kv_heads * in_page * k_bytes + (head * in_page + tile) * v_bytes;
      }
    }
    return n;
  }
  // V of token `place`: [v_dim]; the next token of the page follows.
  std::byte* v_row(int seq, int head, int64_t place) const {
    int64_t k_bytes = int64_t(kv->kv_heads) * memory->page_tokens * kv->k_dim * element;
    return block(seq, place) + k_bytes + (int64_t(head) * memory->page_tokens + place % memory->page_tokens) * kv->v_dim * element;
  }
};

}  // namespace mr
