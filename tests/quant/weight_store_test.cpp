// The memory of weights: what a store that counts adds up is what the real one then allocates, if it is told.
#include <gtest/gtest.h>

#include <numeric>

#include "quant/weight.h"

namespace mr {
namespace {

// Takes what Llama 3.1 8B has of bf16: an embedding, and of each layer four matrices and two norms.
void take_llama_8b(WeightStore& store) {
  constexpr size_t dim = 4096, hidden = 14336, kv = 1024, vocab = 128256;
  store.take(vocab * dim * 2);
  for (int layer = 0; layer < 32; layer++) {
    store.take(dim * 4);
    for (size_t rows : {dim + 2 * kv, dim}) store.take(rows * dim * 2);
    store.take(dim * 4);
    for (size_t rows : {2 * hidden, hidden}) store.take(rows * dim * 2);
  }
  store.take(dim * 4);
  store.take(vocab * dim * 2);
}

// Addresses of no memory, which nobody touches: the sizes are what counts.
class Addresses {
 public:
  Buffer allocate(size_t bytes) {
    allocated_.push_back(bytes);
    return {reinterpret_cast<std::byte*>(uintptr_t(1) << 40), bytes, [](std::byte*, size_t) {}};
  }
  size_t sum() const { return std::accumulate(allocated_.begin(), allocated_.end(), size_t(0)); }
  size_t n() const { return allocated_.size(); }

 private:
  std::vector<size_t> allocated_;
};

TEST(WeightStore, AllocatesWhatItWasToldAndNoMore) {
  WeightStore counts(WeightStore::Mode::counts);
  take_llama_8b(counts);
  Addresses memory;
  WeightStore holds(WeightStore::Mode::holds, [&](size_t bytes) { return memory.allocate(bytes); });
  holds.expect(counts.bytes());
  take_llama_8b(holds);
  EXPECT_EQ(holds.bytes(), counts.bytes());
  EXPECT_EQ(memory.n(), 1u);
  EXPECT_EQ(memory.sum(), counts.bytes());
}

// Untold, the ends of its chunks are more than a gigabyte, which a device would really spend.
TEST(WeightStore, UntoldItTakesChunks) {
  Addresses memory;
  WeightStore store(WeightStore::Mode::holds, [&](size_t bytes) { return memory.allocate(bytes); });
  take_llama_8b(store);
  EXPECT_GT(memory.sum(), store.bytes() + (size_t(1) << 30));
}

TEST(WeightStore, WhatWasNotExpectedGetsAChunkOfItsOwn) {
  WeightStore store;
  store.expect(1024);
  std::byte *a = store.take(1000), *b = store.take(300), *c = store.take(1);
  store.take(1000);
  EXPECT_EQ(store.bytes(), 1024u + 512 + 256 + 1024);
  EXPECT_EQ(c, b + 512);
  EXPECT_EQ(store.parts().size(), 2u);
  a[999] = b[299] = c[0] = std::byte(1);
}

}  // namespace
}  // namespace mr
