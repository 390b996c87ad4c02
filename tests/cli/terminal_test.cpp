// The line editor's parts: bytes to keys, text to rows, clusters, history.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "cli/terminal/cells.h"
#include "cli/terminal/edit_buffer.h"
#include "cli/terminal/edit_view.h"
#include "cli/terminal/history.h"
#include "cli/terminal/keys.h"

namespace mr {
namespace {

std::vector<Key> keys_of(std::string_view bytes, size_t piece) {
  KeyDecoder decoder;
  std::vector<Key> keys;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    decoder.feed(bytes.substr(at, piece));
    while (auto key = decoder.next()) keys.push_back(*key);
  }
  return keys;
}

std::string text_of(const std::vector<Key>& keys) {
  std::string text;
  for (const Key& k : keys)
    if (k.kind == Key::text) text += k.text_of;
  return text;
}

TEST(Keys, come_cut_anywhere) {
  const std::string bytes =
      "añ東\x1b[D\x1bOA\x1b[1;5C\x1b[3~\x1b"
      "b\r\x03";
  const std::vector<Key::Kind> expected = {Key::left, Key::up, Key::word_right, Key::erase, Key::word_left, Key::enter, Key::interrupt};
  for (size_t piece = 1; piece <= bytes.size(); piece++) {
    const auto keys = keys_of(bytes, piece);
    EXPECT_EQ(text_of(keys), "añ東") << piece;
    std::vector<Key::Kind> kinds;
    for (const Key& k : keys)
      if (k.kind != Key::text) kinds.push_back(k.kind);
    EXPECT_EQ(kinds, expected) << piece;
  }
}

TEST(Keys, a_paste_is_one_key) {
  const std::string inside = "one\rtwo\r\nthree \x03\x1b[A\t";
  for (size_t piece : {1, 3, 7, 100}) {
    const auto keys = keys_of("\x1b[200~" + inside + "\x1b[201~x", piece);
    ASSERT_EQ(keys.size(), 2u) << piece;
    EXPECT_EQ(keys[0].kind, Key::paste);
    EXPECT_EQ(keys[0].text_of, "one\ntwo\nthree \x03\x1b[A\t");
    EXPECT_EQ(keys[1].text_of, "x");
  }
}

TEST(Keys, an_escape_of_its_own_ends_with_a_pause) {
  KeyDecoder decoder;
  decoder.feed("\x1b");
  EXPECT_FALSE(decoder.next());
  EXPECT_EQ(decoder.give_up()->kind, Key::escape);
  EXPECT_FALSE(decoder.is_partial());
}

TEST(Keys, broken_bytes_are_replaced) {
  EXPECT_EQ(text_of(keys_of("a\xff"
                            "b",
                            3)),
            "a\xEF\xBF\xBD"
            "b");
}

TEST(Cells, of_wide_combining_and_control_characters) {
  EXPECT_EQ(cells_of("abc"), 3);
  EXPECT_EQ(cells_of("東京"), 4);
  EXPECT_EQ(cells_of("e\u0301"), 1);
  EXPECT_EQ(cells_of("🙂"), 2);
}

TEST(Cells, clusters_are_what_a_reader_counts) {
  const std::string text = "e\u0301👍🏽🇩🇪x";
  std::vector<size_t> borders;
  for (size_t at = 0; at < text.size(); at = next_cluster(text, at)) borders.push_back(at);
  EXPECT_EQ(borders.size(), 4u);
  size_t at = text.size();
  for (size_t i = borders.size(); i-- > 0;) {
    at = previous_cluster(text, at);
    EXPECT_EQ(at, borders[i]);
  }
}

TEST(EditBuffer, deletes_whole_clusters) {
  EditBuffer b;
  b.set("a👍🏽");
  b.backspace();
  EXPECT_EQ(b.text(), "a");
  b.insert("\nlong line");
  b.line_begin();
  b.kill_to_end();
  EXPECT_EQ(b.text(), "a\n");
  b.yank();
  b.yank();
  EXPECT_EQ(b.text(), "a\nlong linelong line");
}

TEST(EditView, rows_never_reach_the_last_column) {
  const std::string text = "東京東京東京abc\n\nx";
  const int columns = 5;
  const auto rows = lay_out(text, columns);
  std::vector<std::string> shown;
  for (const EditRow& r : rows) {
    shown.push_back(text.substr(r.begin, r.end - r.begin));
    EXPECT_LE(cells_of(shown.back()), columns);
  }
  EXPECT_EQ(shown, (std::vector<std::string>{"東京", "東京", "東京a", "bc", "", "x"}));
  EXPECT_EQ(row_of(rows, text.size()), 5u);
  EXPECT_EQ(row_of(rows, 6), 1u);  // between two rows the cursor is at the beginning of the next
}

TEST(EditView, of_a_tall_text_the_part_around_the_cursor_is_drawn) {
  std::string text;
  for (int i = 0; i < 100; i++) text += "row " + std::to_string(i) + "\n";
  EditView view;
  const std::string drawn = view.draw({"> ", text, text.size()}, {80, 10});
  EXPECT_EQ(std::ranges::count(drawn, '\n'), 9);
  EXPECT_NE(drawn.find("row 99"), std::string::npos);
  EXPECT_EQ(drawn.find("row 50"), std::string::npos);
  EXPECT_NE(view.finish({"> ", text, text.size()}, {80, 10}).find("row 50"), std::string::npos);
}

TEST(EditView, control_characters_are_shown) { EXPECT_EQ(shown("a\x1b[2Jb\tc"), "a^[[2Jb    c"); }

TEST(History, lines_and_backslashes_come_back) {
  const auto folder = std::filesystem::temp_directory_path() / ("mr_history_" + std::to_string(getpid()));
  const auto file = folder / "deep" / "history";
  const std::vector<std::string> entries = {"two\nlines", "C:\\new\\n", "plain", "東京"};
  {
    History h(file);
    for (const std::string& e : entries) h.add(e);
    h.add("東京");       // twice
    h.add(" a secret");  // begins with a space
    h.add("");
  }
  EXPECT_EQ(History(file).entries(), entries);
  struct stat info {};
  ASSERT_EQ(stat(file.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  {
    std::ofstream out(file, std::ios::app);
    for (int i = 0; i < 3000; i++) out << "entry " << i << "\n";
  }
  const History shortened(file);
  EXPECT_EQ(shortened.entries().size(), 1000u);
  EXPECT_EQ(shortened.entries().back(), "entry 2999");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace mr
