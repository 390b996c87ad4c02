// How weights are stored. A format is a row in a table of functions; nobody switches over formats.
//
// On the CPU a weight [out, in] is packed into panels of 16 output rows, so that one vector holds the same input of 16
// outputs and a product needs no horizontal sum:
//   f32, f16, bf16   [pair of panels][vector][2], a vector being 64 bytes: an input of 16 outputs, or two inputs of 16 bits (of which
//                    the last may be missing). A product of one row takes two panels at once: so it reads one stream of memory.
//   q8_0 q4_0 q4_1   [panel][in / 32] blocks: 16 f16 scales, (q4_1: 16 f16 minima), then the quants, 4 inputs of 16 rows a
//                    64-byte vector: byte [row * 4 + i]. q8_0: 8 vectors, value + 128. 4 bits: 4 vectors; vector g holds inputs
//                    4g..4g+3 in its low nibbles and 16+4g..16+4g+3 in its high ones, value as stored (q4_0: real = value - 8).
// Rows beyond `out` are zero.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/tensor.h"

namespace mr {

inline constexpr int kPanel = 16;  // output rows a panel
inline constexpr int kPair = 2;    // panels of floats whose vectors alternate
inline constexpr int kBlock = 32;  // inputs that share one scale, in weights and in rounded activations

struct Format {
  std::string_view name;  // as in Checkpoint's StoredTensor::format
  DType storage;          // of `packed`: f32, f16, bf16, or u8 for block formats
  int bits;               // a weight, without scales
  int group;              // weights that share a scale; 1: none
  bool zero_point;        // a minimum or zero beside the scale
  int64_t block_bytes;    // stored bytes of one group in a file's row (group 1: of one element)
  double bytes_per_weight() const { return double(block_bytes) / group; }
};

struct FormatOps;

// A view of packed weights; WeightStore owns the bytes. Parts that a format does not use are empty.
struct Weight {
  const FormatOps* ops = nullptr;
  int64_t out = 0, in = 0;
  Tensor packed;  // format.h's head says how
  Tensor scale, zero, perm, input_scale, codebook, outlier_cols, outlier_values;

  const Format& format() const;
  int64_t panels() const { return (out + kPanel - 1) / kPanel; }
  int64_t bytes() const { return packed.bytes() + scale.bytes() + zero.bytes(); }
  explicit operator bool() const { return ops != nullptr; }
};

// Owns the memory behind a model's weights: large chunks, so that huge pages hold them and reading runs on from one weight
// into the next.
class WeightStore {
 public:
  enum class Mode : uint8_t { holds, counts };     // counts: adds up what would be taken, and gives null
  using Allocate = std::function<Buffer(size_t)>;  // the host's memory, unless another is given
  explicit WeightStore(Mode mode = Mode::holds, Allocate allocate = {}) : mode_(mode), allocate_(std::move(allocate)) {}
  Mode mode() const { return mode_; }
  std::byte* take(size_t bytes);                          // zeroed, 256-byte aligned
  std::vector<std::span<const std::byte>> parts() const;  // all that was taken of the host's memory, chunk by chunk
  size_t bytes() const;                                   // that were taken

 private:
  Mode mode_;
  Allocate allocate_;
  size_t counted_ = 0;
  struct Chunk {
    Buffer buffer;
    size_t used = 0;
  };
  std::vector<Chunk> chunks_;
};

struct FormatOps {
  Format format;
  // Bytes of the packed panels of an [out, in] weight.
  int64_t (*packed_bytes)(int64_t out, int64_t in);
  // Packs panel p from the stored rows; rows[i] is where output row p * 16 + i lies in its file (null: beyond the end, zeros).
  // Called from many threads, a panel each.
  void (*pack_panel)(std::byte* packed, int64_t panel, int64_t in, std::span<const std::byte* const, kPanel> rows);
  // The definition that kernels are tested against: rows [row, row + n) of a packed weight as f32 [n, in].
  void (*decode_rows)(const Weight&, int64_t row, int64_t n, float* out);
  // Rounds one f32 row of `in` values to the stored (file) form.
  void (*encode_row)(const float* row, int64_t in, std::byte* stored);
};

const FormatOps& format_ops(std::string_view name);   // throws Error naming a format that has no row in the table
const FormatOps* find_format(std::string_view name);  // null if unknown
std::span<const FormatOps* const> formats();

// Packs a whole weight whose output rows lie at `rows` (one pointer each: concatenation, permutation and slicing are the
// caller's choice of pointers). Into a store that only counts, nothing is read or written: the weight has its shape and no data.
class ThreadPool;
Weight pack(const FormatOps&, std::span<const std::byte* const> rows, int64_t in, WeightStore&, ThreadPool&);

inline const Format& Weight::format() const { return ops->format; }

}  // namespace mr
