#include "quant/weight.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/thread_pool.h"

namespace mr {

static constexpr size_t kChunk = size_t(64) << 20;

std::byte* WeightStore::take(size_t bytes) {
  bytes = (bytes + 255) / 256 * 256;
  if (mode_ == Mode::counts) {
    counted_ += bytes;
    return nullptr;
  }
  if (chunks_.empty() || chunks_.back().used + bytes > chunks_.back().buffer.size()) {
    const size_t size = std::max(expected_ ? std::exchange(expected_, 0) : kChunk, bytes);
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

const StoredWeight* WeightStore::keep(StoredWeight stored) {
  return stored_.emplace_back(std::make_unique<const StoredWeight>(std::move(stored))).get();
}

static void decode_stored(const Weight& w, int64_t row, int64_t n, float* out) {
  for (int64_t r = row; r < row + n; r++, out += w.in) w.stored->decode(r, 0, w.in, out);
}

const Layout kStoredLayout{"stored", decode_stored};

static constexpr size_t kApart = 64;  // tensors begin at multiples of it

static size_t bytes_of(const StoredWeight& stored) {
  if (!stored.codec->grouped) return size_t(stored.out() * stored.codec->row_bytes(stored.in));
  size_t bytes = 0;
  for (const StoredWeight::Part& part : stored.parts)
    for (const auto& tensor : part.beside.tensors()) bytes += (tensor->size() + kApart - 1) / kApart * kApart;
  return bytes;
}

// Rows in the order of the outputs; each part keeps its factor.
static StoredWeight copy_rows(const StoredWeight& stored, std::byte* to, ThreadPool& pool) {
  const int64_t bytes = stored.codec->row_bytes(stored.in);
  pool.parallel(stored.out(), std::max<int64_t>(1, (256 << 10) / bytes), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; r++) std::memcpy(to + r * bytes, stored.row(r), size_t(bytes));
  });
  StoredWeight copy = stored;
  for (StoredWeight::Part& part : copy.parts) {
    part.data = to;
    part.order.clear();
    to += part.n * bytes;
  }
  return copy;
}

static StoredWeight copy_tensors(const StoredWeight& stored, std::byte* to, ThreadPool& pool) {
  StoredWeight copy = stored;
  for (StoredWeight::Part& part : copy.parts)
    for (std::span<const std::byte>* tensor : part.beside.tensors()) {
      pool.parallel(int64_t(tensor->size()), 256 << 10,
                    [&](int64_t begin, int64_t end, int) { std::memcpy(to + begin, tensor->data() + begin, size_t(end - begin)); });
      *tensor = {to, tensor->size()};
      to += (tensor->size() + kApart - 1) / kApart * kApart;
    }
  return copy;
}

Weight place_stored(const StoredWeight& stored, WeightStore& store, ThreadPool& pool) {
  stored.check_shape();
  Weight w{stored.codec, stored.out(), stored.in, &kStoredLayout};
  const size_t bytes = bytes_of(stored);
  w.packed = view(store.take(bytes), DType::u8, {int64_t(bytes)});
  if (!w.packed) return w;
  std::byte* to = w.packed.as<std::byte>();
  w.stored = store.keep(stored.codec->grouped ? copy_tensors(stored, to, pool) : copy_rows(stored, to, pool));
  return w;
}

}  // namespace mr
