// How the CPU lays weights out: in panels of 16 output rows, so that one vector holds the same input of 16 outputs and a product
// needs no horizontal sum. Rows beyond `out` are zero. A layout is chosen by what a codec's values are, not by its name:
//   floats     [pair of panels][vector][2], a vector being 64 bytes: an input of 16 outputs, or two inputs of 16 bits (of which the last
//              may be missing). A product of one row takes two panels at once: so it reads one stream of memory.
//   integers   [panel][in / codec's block]: scales of the block [16], minima [16] if there are any; then for every 32 inputs the
//              groups' scales, if there are two levels, [groups][16] bytes, their minima alike (or both in one byte, scale low), and the
//              codes. Codes are planes of 8, 4, 2 or 1 bits: 8; 4; 2; 3 = 2 + 1; 5 = 4 + 1; 6 = 4 + 2, low bits first. A plane of p bits is
//              p vectors of 64 bytes; byte [row * 4 + i] of vector v holds, from its low bits up, inputs 4 g + i of the row for g = v, v +
//              p, v + 2 p …
//   in groups  [panel][in / 32] codes as above; then [panel][group]: scales [16] as stored, and zeros [16], a byte each, minus 128, or
//              minima [16]. A group is any number of 32 inputs. Where inputs name their groups (g_idx), they are sorted by them.
//   stored     a codec with no grid, or one that has no kernel: its stored rows.
#pragma once

#include <optional>

#include "quant/weight.h"

namespace mr {

inline constexpr int kPanel = 16;  // output rows a panel
inline constexpr int kPair = 2;    // panels of floats whose vectors alternate
inline constexpr int kBlock = 32;  // inputs that share one scale in rounded activations

struct PanelLayout : Layout {
  int64_t (*bytes)(const Codec&, int64_t out, int64_t in);
  // Packs rows [16 panel, 16 panel + 16) into zeroed memory. Called from many threads, a panel each.
  void (*pack)(std::byte* packed, int64_t panel, const StoredWeight&);
};

// Null: `stored`.
const PanelLayout* panel_layout(const Codec&);
const PanelLayout* float_panels(DType);           // null for u8
const PanelLayout* integer_panels(const Codec&);  // null where no kernel reads them

// Where the scales of a weight in groups are.
struct GroupHeads {
  int64_t offset, panel_bytes, bytes, blocks;  // in `packed`; of a panel; of a group; of 32 inputs in a group
  Grid::Scale scale;
  bool minima;
};
std::optional<GroupHeads> group_heads(const Weight&);

inline int64_t panels_of(const Weight& w) { return (w.out + kPanel - 1) / kPanel; }

// Places a weight in the CPU's layout. Into a store that only counts, nothing is read or written: the weight has its shape and no data.
Weight pack(const StoredWeight&, WeightStore&, ThreadPool&);

}  // namespace mr
