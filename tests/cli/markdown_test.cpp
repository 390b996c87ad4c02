// Markdown as it streams: whatever the text is cut into, the screen shows the same.
#include <gtest/gtest.h>

#include <algorithm>

#include "cli/chat/reasoning.h"
#include "cli/terminal/markdown_stream.h"
#include "text/unicode.h"

namespace mr {
namespace {

std::string rendered(std::string_view text, int columns = 60, size_t piece = 1) {
  MarkdownStream stream(columns);
  std::string out;
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(at + piece, text.size());
    while (end < text.size() && (text[end] & 0xC0) == 0x80) end++;
    out += stream.write(text.substr(at, end - at));
    at = end;
  }
  return out + stream.finish();
}

std::string plain(std::string text) {  // without styles
  for (size_t at; (at = text.find('\x1b')) != std::string::npos;) text.erase(at, text.find('m', at) - at + 1);
  return text;
}

TEST(Markdown, marks_become_styles) {
  EXPECT_EQ(rendered("a **bold** word"), "a \x1b[1mbold\x1b[22m word");
  EXPECT_EQ(rendered("an *italic* word"), "an \x1b[3mitalic\x1b[23m word");
  EXPECT_EQ(rendered("run `ls -l` now"), "run \x1b[36mls -l\x1b[39m now");
  EXPECT_EQ(rendered("# Title\ntext"), "\x1b[1mTitle\x1b[0m\ntext");
  EXPECT_EQ(plain(rendered("- one\n* two\n1. three\n> four")), "• one\n• two\n1. three\n│ four");
}

TEST(Markdown, what_is_no_mark_stays) {
  for (const char* text : {"2 * 3 * 4 = 24", "snake_case_name", "a ** b", "#hashtag", "1.5 is a number", "-5 degrees", "5*3*2", "a*",
                           "C:\\dir", "<b>x</b>", "f(x) = x_1 + x_2", "2024. A year", "the price is 3*"})
    EXPECT_EQ(plain(rendered(text)), text);
}

TEST(Markdown, a_mark_that_never_ends_ends_with_its_paragraph) {
  const std::string out = rendered("an **open mark\nstill\n\nplain");
  EXPECT_NE(out.find("\x1b[0m\n"), std::string::npos);
  EXPECT_TRUE(out.ends_with("plain"));
  EXPECT_LT(out.rfind('\x1b'), out.find("plain"));
}

TEST(Markdown, code_passes_as_it_is) {
  const std::string code =
      "def f(x):\n    return x ** 2  # *not* _bold_ and far longer than the thirty columns that there are\n\n    - no list";
  const std::string out = plain(rendered("Look:\n```python\n" + code + "\n```\nDone.", 30));
  EXPECT_EQ(out, "Look:\n```python\n" + code + "\n```\nDone.");
}

TEST(Markdown, words_wrap_and_items_hang) {
  EXPECT_EQ(plain(rendered("- alpha beta gamma delta", 14)), "• alpha beta\n  gamma delta");
  EXPECT_EQ(plain(rendered("aaaaaaaaaaaaaaaaaaaaaaa", 10)), "aaaaaaaaaa\naaaaaaaaaa\naaa");
  EXPECT_EQ(plain(rendered("東京東京東京", 5)), "東京\n東京\n東京");
  EXPECT_EQ(plain(rendered("one two", 7)), "one two");
  EXPECT_EQ(plain(rendered("one two three", 7)), "one two\nthree");
}

TEST(Markdown, pieces_make_no_difference) {
  const std::string text =
      "# A *title*\n\nSome **bold, _nested_ text** and `co*de`, 東京は**大きい**です。\n\n1. first item that is long enough to be "
      "wrapped\n2. second\n"
      "   - nested `x`\n\n```c\nint *p = *q;\n```\n> quote\n---\n| a | b |\n***both***\nend \\*escaped\\*";
  const std::string whole = rendered(text, 30, text.size());
  for (size_t piece : {1, 2, 3, 5, 8}) EXPECT_EQ(rendered(text, 30, piece), whole) << piece;
}

TEST(Markdown, nothing_is_lost) {
  const std::string marks = "*_`#->+ 1.)|~\\\n a東";
  uint32_t state = 1;
  for (int run = 0; run < 2000; run++) {
    std::string text;
    for (int i = 0; i < 40; i++) {
      state = state * 1664525 + 1013904223;
      const size_t at = (state >> 16) % 18;
      text += at == 17 ? "東" : std::string(1, marks[at]);
    }
    const std::string out = plain(rendered(text, 12, 3));
    EXPECT_EQ(std::ranges::count(out, 'a'), std::ranges::count(text, 'a')) << text;
    size_t wide = 0, shown = 0;
    for (size_t at = 0; (at = text.find("東", at)) != std::string::npos; at++) wide++;
    for (size_t at = 0; (at = out.find("東", at)) != std::string::npos; at++) shown++;
    EXPECT_EQ(wide, shown) << text;
  }
}

TEST(Harmless, control_sequences_are_shown) {
  EXPECT_EQ(harmless("a\x1b]0;title\x07 b\r\nc\td"), "a\\x1b]0;title\\x07 b\nc\td");
  EXPECT_EQ(harmless("\u009b31m \u202e"), "\\x9b31m \\u202e");
}

TEST(Reasoning, is_told_from_the_answer) {
  const std::string text = "\n<think>\nHm, 2 < 3.\n</think>\n\nYes: <b>2</b> < 3.";
  for (size_t piece = 1; piece < text.size(); piece++) {
    ReasoningSplitter splitter;
    ReasoningSplitter::Parts all;
    auto add = [&](const ReasoningSplitter::Parts& p) {
      all.reasoning += p.reasoning;
      all.answer += p.answer;
    };
    for (size_t at = 0; at < text.size(); at += piece) add(splitter.split(std::string_view(text).substr(at, piece)));
    add(splitter.finish());
    EXPECT_EQ(all.reasoning, "\nHm, 2 < 3.\n") << piece;
    EXPECT_EQ(all.answer, "Yes: <b>2</b> < 3.") << piece;
  }
}

TEST(Reasoning, may_begin_in_the_prompt) {
  ReasoningSplitter splitter("<|assistant|>\n<think>\n");
  EXPECT_EQ(splitter.split("so</think>it is").reasoning, "so");
  ReasoningSplitter open("<think>");
  open.split("cut off </th");
  EXPECT_TRUE(open.in_reasoning());
  EXPECT_EQ(open.finish().reasoning, "</th");
}

TEST(Reasoning, a_tag_inside_of_an_answer_is_text) {
  ReasoningSplitter splitter;
  EXPECT_EQ(splitter.split("The tag <think> opens it.").answer, "The tag <think> opens it.");
}

}  // namespace
}  // namespace mr
