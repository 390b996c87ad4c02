#include <algorithm>

#include "quant/format.h"

namespace mr {

static constexpr size_t kChunk = size_t(64) << 20;  // what is not taken of it is never touched, so it costs no memory

std::byte* WeightStore::take(size_t bytes) {
  bytes = (bytes + 255) / 256 * 256;
  if (mode_ == Mode::counts) {
    counted_ += bytes;
    return nullptr;
  }
  if (chunks_.empty() || chunks_.back().used + bytes > chunks_.back().buffer.size()) {
    const size_t size = std::max(kChunk, bytes);
    chunks_.push_back({allocate_ ? allocate_(size) : Buffer(size)});
  }
  Chunk& chunk = chunks_.back();
  std::byte* p = chunk.buffer.data() + chunk.used;
  chunk.used += bytes;
  return p;
}

std::vector<std::span<const std::byte>> WeightStore::parts() const {
  std::vector<std::span<const std::byte>> parts;
  for (const Chunk& c : chunks_) parts.emplace_back(c.buffer.data(), c.used);
  return parts;
}

size_t WeightStore::bytes() const {
  size_t n = counted_;
  for (const Chunk& c : chunks_) n += c.used;
  return n;
}

}  // namespace mr
