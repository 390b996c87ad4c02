// Addresses of one layer's keys and values in their pages: the layout of PagedKv (program/ops.h), for all host backends.
// `place` is a token's index in its sequence, context + row number; for causal and full corners it equals the position.
#pragma once

#include "backend/backend.h"
#include "core/error.h"

namespace mr {

inline constexpr int kKeyTile = 16;  // tokens interleaved in K

struct KvPages {
  const PagedKv* kv;
  const KvFormat* format;
  const GroupTable* table;
  const StateMemory::GroupMemory* memory;
  int64_t code;              // bytes of a code; of a pair of i4
  int64_t k_bytes, v_bytes;  // of a tile of 16 tokens of a head

  KvPages(const PagedKv& kv, const Batch& batch, const StateMemory& state)
      : kv(&kv), format(&kv.format()), table(&batch.group[kv.ref.group]), memory(&state.group[kv.ref.group]) {
    check(memory->page_tokens > 0 && memory->page_tokens % kKeyTile == 0, "a page of {} tokens is not a multiple of {}",
          memory->page_tokens, kKeyTile);
    code = std::max<int64_t>(1, size_of(kv.dtype));
    k_bytes = format->bytes(1, kv.k_dim, kKeyTile);
    v_bytes = format->bytes(1, kv.v_dim, kKeyTile);
  }

  // K of the tile of 16 tokens that contains `place`: [k_dim][16].
  std::byte* k_tile(int seq, int head, int64_t place) const { return block(seq, place) + tile_of(head, place) * k_bytes; }
  // V of that tile: [16][v_dim].
  std::byte* v_tile(int seq, int head, int64_t place) const {
    return block(seq, place) + kv->kv_heads * tiles_in_page() * k_bytes + tile_of(head, place) * v_bytes;
  }
  // Of token `place`: its first code in K, 16 codes before the next; its codes in V, one after the other.
  std::byte* k_row(int seq, int head, int64_t place) const { return k_tile(seq, head, place) + place % kKeyTile * code; }
  std::byte* v_row(int seq, int head, int64_t place) const {
    return v_tile(seq, head, place) + place % kKeyTile * format->row_bytes(kv->v_dim);
  }
  // bf16 scales of a tile's tokens, in a format that has them.
  uint16_t* k_scales(const void* tile) const { return scales(tile, kv->k_dim); }
  uint16_t* v_scales(const void* tile) const { return scales(tile, kv->v_dim); }

  // Addresses of the K and V tiles of tokens [begin, end) of a head; begin is a multiple of 16. Returns their number. v may be null.
  int tiles(int seq, int head, int64_t begin, int64_t end, const void** k, const void** v) const {
    const int64_t in_page = tiles_in_page();
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

 private:
  int64_t tiles_in_page() const { return memory->page_tokens / kKeyTile; }
  int64_t tile_of(int head, int64_t place) const { return head * tiles_in_page() + place % memory->page_tokens / kKeyTile; }
  // The layer's block in the page of token `place` of a sequence.
  std::byte* block(int seq, int64_t place) const {
    int32_t unit = table->unit[table->begin[seq] + place / memory->page_tokens];
    return memory->unit(unit) + kv->ref.offset * memory->page_tokens;
  }
  uint16_t* scales(const void* tile, int64_t dim) const {
    const auto codes = static_cast<const std::byte*>(tile);
    return reinterpret_cast<uint16_t*>(const_cast<std::byte*>(codes) + kKeyTile * format->row_bytes(dim));
  }
};

}  // namespace mr
