#include "quant/weight.h"

#include <algorithm>
#include <cstring>

#include "core/thread_pool.h"

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
  for (const Chunk& c : chunks_)
    if (c.buffer.on_host()) parts.emplace_back(c.buffer.data(), c.used);
  return parts;
}

size_t WeightStore::bytes() const {
  size_t n = counted_;
  for (const Chunk& c : chunks_) n += c.used;
  return n;
}

static void decode_stored(const Weight& w, int64_t row, int64_t n, float* out) {
  const int64_t bytes = w.codec->row_bytes(w.in);
  for (int64_t r = row; r < row + n; r++, out += w.in) w.codec->decode(w.packed.as<std::byte>() + r * bytes, w.in, out);
}

const Layout kStoredLayout{"stored", decode_stored};

Weight place_stored(const StoredWeight& stored, WeightStore& store, ThreadPool& pool) {
  stored.check_shape();
  const int64_t bytes = stored.codec->row_bytes(stored.in);
  Weight w{stored.codec, stored.out(), stored.in, &kStoredLayout};
  w.packed = view(store.take(size_t(w.out * bytes)), DType::u8, {w.out * bytes});
  if (!w.packed) return w;
  pool.parallel(w.out, std::max<int64_t>(1, (256 << 10) / bytes), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; r++) std::memcpy(w.packed.as<std::byte>() + r * bytes, stored.row(r), size_t(bytes));
  });
  return w;
}

}  // namespace mr
