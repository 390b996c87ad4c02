#include "core/words.h"

#include <gtest/gtest.h>

namespace mr {

TEST(Words, CountsAgreeWithTheirNoun) {
  EXPECT_EQ(counted(1, "token"), "1 token");
  EXPECT_EQ(counted(0, "token"), "0 tokens");
  EXPECT_EQ(counted(21, "token"), "21 tokens");
}

TEST(Words, TheNearestIsNearEnough) {
  const std::string_view known[] = {"/help", "/clear", "/retry"};
  EXPECT_EQ(nearest_word("/hlep", known), "/help");
  EXPECT_EQ(nearest_word("/rety", known), "/retry");
  EXPECT_EQ(nearest_word("/elephant", known), "");
  EXPECT_EQ(nearest_word(std::string(100, 'x'), known), "");
}

}  // namespace mr
