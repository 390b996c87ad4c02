#include "core/printable.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace mr {
namespace {

std::string message_of(const std::string& text) {
  try {
    fail("the file says '{}' of {} and '{}'", text, 7, std::string_view("x\ny"));
  } catch (const Error& e) {
    return e.what();
  }
}

TEST(Printable, KeepsTextAsItIs) {
  for (const char* text : {"", "plain", "naïve café", "日本語", "emoji 🙂", "quote ' and \\ backslash"}) EXPECT_EQ(printable(text), text);
}

TEST(Printable, EscapesWhatATerminalWouldObey) {
  EXPECT_EQ(printable("a\nb\r\tc"), "a\\nb\\r\\tc");
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(printable("\x1b[2J\x7f"), "\\x1b[2J\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"), "\\x9b");  // CSI in one character
  EXPECT_EQ(printable("\xe2\x80\xae evil"), "\\u202e evil");
  EXPECT_EQ(printable("\xe2\x80\xa8"), "\\u2028");
}

TEST(Printable, EscapesBytesThatAreNoUtf8) {
  EXPECT_EQ(printable("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(printable("\xc3"), "\\xc3");                    // cut short
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf");           // overlong
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
}

TEST(Printable, CutsBetweenCharacters) {
  EXPECT_EQ(printable("abcdef", 3), "abc… (6 bytes)");
  EXPECT_EQ(printable("abc", 3), "abc");
  EXPECT_EQ(printable("éé", 1), "é… (4 bytes)");
  EXPECT_LT(printable(std::string(2'000'000, '\n')).size(), max_printable + 40);
}

TEST(Printable, IsWhatErrorsDoToText) {
  EXPECT_EQ(message_of("\x1b]0;owned\x07"), "the file says '\\x1b]0;owned\\x07' of 7 and 'x\\ny'");
  EXPECT_LT(message_of(std::string(1 << 20, 'a')).size(), 600u);
}

}  // namespace
}  // namespace mr
