// A weight as a backend keeps it, and the memory of all of them.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/tensor.h"
#include "quant/activations.h"
#include "quant/codec.h"

namespace mr {

struct Weight;

// How a weight lies in memory. Decodes itself: rows [row, row + n) as f32 [n, in], equal to the codec's to the bit.
struct Layout {
  std::string_view name;
  void (*decode)(const Weight&, int64_t row, int64_t n, float* out);  // null: memory that the host cannot read
};

// A view; WeightStore owns the bytes. Parts that a layout does not use are empty.
struct Weight {
  const Codec* codec = nullptr;
  int64_t out = 0, in = 0;
  const Layout* layout = nullptr;  // null in outlines of no backend
  Tensor packed, scale;
  const StoredWeight* stored = nullptr;  // of the layout `stored`: its tensors lie in `packed`
  Tensor order;                          // i32 [in], where inputs are sorted: which one lies at each place; empty: as they come
  ActivationRounding activations;        // of its products

  int64_t bytes() const { return packed.bytes() + scale.bytes() + order.bytes(); }
  void decode(int64_t row, int64_t n, float* to) const { layout->decode(*this, row, n, to); }
  explicit operator bool() const { return codec != nullptr; }
};

// Owns the memory behind a model's weights: one allocation if their sum is known, else large chunks, so that huge pages hold them and
// reading runs on from one weight into the next. The unused end of a chunk costs nothing in the host's memory, but all of a device's.
class WeightStore {
 public:
  enum class Mode : uint8_t { holds, counts };     // counts: adds up what would be taken, and gives null
  using Allocate = std::function<Buffer(size_t)>;  // the host's memory, unless another is given
  explicit WeightStore(Mode mode = Mode::holds, Allocate allocate = {}) : mode_(mode), allocate_(std::move(allocate)) {}
  Mode mode() const { return mode_; }
  void expect(size_t bytes) { expected_ = bytes; }  // the sum of what will be taken, from a store that counts
  std::byte* take(size_t bytes);                    // zeroed, 256-byte aligned
  const StoredWeight* keep(StoredWeight);
  std::vector<std::span<const std::byte>> parts() const;  // all that was taken of the host's memory, chunk by chunk
  size_t bytes() const;                                   // that were taken

 private:
  Mode mode_;
  Allocate allocate_;
  size_t counted_ = 0, expected_ = 0;
  struct Chunk {
    Buffer buffer;
    size_t used = 0;
  };
  std::vector<Chunk> chunks_;
  std::vector<std::unique_ptr<const StoredWeight>> stored_;
};

// The layout of every codec that has no other: its stored rows, one after the other; or its tensors, as they lie.
class ThreadPool;
extern const Layout kStoredLayout;
Weight place_stored(const StoredWeight&, WeightStore&, ThreadPool&);

}  // namespace mr
