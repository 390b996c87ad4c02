// docs/formats.md is what the program writes.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "cli/inspect_formats.h"
#include "quant/codec.h"

namespace mr {
namespace {

TEST(Formats, ThePageIsUpToDate) {
  const auto page = std::filesystem::path(MR_FIXTURES).parent_path().parent_path() / "docs" / "formats.md";
  if (!std::filesystem::exists(page)) GTEST_SKIP() << "the sources are elsewhere";
  std::ifstream file(page);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(text, formats_page()) << "millrace inspect --formats > docs/formats.md writes it";
}

TEST(Formats, EveryCodecHasItsRow) {
  for (const Codec* codec : codecs())
    EXPECT_NE(formats_page().find("| " + std::string(codec->name) + " |"), std::string::npos) << codec->name;
}

}  // namespace
}  // namespace mr
