#include "core/random.h"

#include <gtest/gtest.h>

namespace mr {

using Words = std::array<uint32_t, 4>;

// The known answers that Random123 publishes for philox4x32 with ten rounds.
TEST(Philox, gives_the_published_answers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, uniform_depends_on_every_part_of_its_name) {
  double u = uniform(1, 2, 3, 4);
  EXPECT_GE(u, 0);
  EXPECT_LT(u, 1);
  EXPECT_NE(u, uniform(2, 2, 3, 4));
  EXPECT_NE(u, uniform(1 | uint64_t(1) << 40, 2, 3, 4));
  EXPECT_NE(u, uniform(1, 3, 3, 4));
  EXPECT_NE(u, uniform(1, 2, 4, 4));
  EXPECT_NE(u, uniform(1, 2, 3, 5));
}

}  // namespace mr
