// The CPU's layouts against the codecs they were packed from: the same values to the bit.
#include "backend/cpu/panels.h"

#include <gtest/gtest.h>

#include <cstring>

#include "backend/random_blocks.h"
#include "core/thread_pool.h"

namespace mr {
namespace {

class PanelsTest : public testing::TestWithParam<const Codec*> {};

TEST_P(PanelsTest, DecodeToTheBitsOfTheirCodec) {
  const Codec& codec = *GetParam();
  ThreadPool pool(2);
  for (int64_t in : codec.block > 1 ? std::vector<int64_t>{codec.block, 3 * codec.block} : std::vector<int64_t>{1, 5, 96})
    for (int64_t out : {1, 15, 16, 17, 23, 40}) {
      WeightStore store;
      const auto stored = test::random_blocks(codec, 40 * in / codec.block, unsigned(in + out), 1e-6f, 1e6f);
      StoredWeight w(codec, in);
      std::vector<int64_t> order;
      for (int64_t r = 0; r < out; r++) order.push_back(r * 7 % 40);
      w.add(stored.data(), out, order);
      const Weight packed = pack(w, store, pool);
      ASSERT_EQ(packed.out, out);
      std::vector<float> want(static_cast<size_t>(in)), got(size_t(in * out));
      packed.decode(0, out, got.data());
      for (int64_t r = 0; r < out; r++) {
        codec.decode(w.row(r), in, want.data());
        ASSERT_EQ(std::memcmp(got.data() + r * in, want.data(), size_t(in) * 4), 0)
            << packed.layout->name << ", row " << r << " of " << out;
      }
    }
}

// A layout takes hardly more memory than the file: panels are whole, and scales of 6 bits become bytes.
TEST_P(PanelsTest, TakeTheBytesOfTheFile) {
  const Codec& codec = *GetParam();
  ThreadPool pool(1);
  WeightStore store(WeightStore::Mode::counts);
  const int64_t out = 64, in = 1024;
  pack(StoredWeight(codec, nullptr, out, in), store, pool);
  EXPECT_LE(double(store.bytes()), 1.05 * double(out * codec.row_bytes(in)));
}

INSTANTIATE_TEST_SUITE_P(All, PanelsTest, testing::ValuesIn(codecs().begin(), codecs().end()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace mr
