// What a hub says of its repositories: sizes that nothing has, names that lead elsewhere, JSON that is none.
#include "hub/listing.h"

#include <gtest/gtest.h>

namespace mr {
namespace {

const std::string sha(40, 'a');

std::string listing(const std::string& siblings) { return R"({"sha": ")" + sha + R"(", "siblings": [)" + siblings + "]}"; }

std::string file(const std::string& name, const std::string& size, const std::string& blob = sha) {
  return R"({"rfilename": ")" + name + R"(", "blobId": ")" + blob + R"(", "size": )" + size + "}";
}

Repository read(const std::string& siblings) { return read_listing(listing(siblings), {.repo = "a/b"}); }

TEST(Listing, NamesFilesWithSizesAndHashes) {
  const std::string large(64, 'b');
  const Repository r =
      read(file("config.json", "12") + R"(, {"rfilename": "m.gguf", "size": 134, "lfs": {"sha256": ")" + large + R"(", "size": 99}})");
  EXPECT_EQ(r.name, "a/b");
  EXPECT_EQ(r.commit, sha);
  ASSERT_EQ(r.files.size(), 2u);
  EXPECT_EQ(r.files[0].size, 12);
  EXPECT_EQ(r.files[0].hash, sha);
  EXPECT_EQ(r.files[1].size, 99);
  EXPECT_EQ(r.files[1].hash, large);
}

TEST(Listing, DoesNotBelieveEverySize) {
  for (const char* absurd :
       {"-1", "1.5", "\"9\"", "null", "1125899906842625", "9223372036854775807", "9223372036854775808", "18446744073709551615", "1e300"})
    EXPECT_EQ(read(file("m.gguf", absurd)).files[0].size, -1) << absurd;
  EXPECT_EQ(read(file("m.gguf", "1125899906842624")).files[0].size, max_repository);
}

TEST(Listing, GivesOneHashOneSize) {
  const std::string hash(64, 'a');
  const HubFile file{.name = "a", .size = 10, .hash = hash}, same{.name = "b", .size = 10, .hash = hash},
      other{.name = "c", .size = 11, .hash = hash};
  EXPECT_NO_THROW(check_sizes(std::vector{file, same}, "owner/name"));
  EXPECT_THROW(check_sizes(std::vector{file, other}, "owner/name"), Error);
}

TEST(Listing, HasASumThatDoesNotOverflow) {
  std::string many = file("0", "1");
  for (int i = 1; i < 9000; i++) many += ", " + file(std::to_string(i), "1125899906842624");
  EXPECT_THROW(read(many), Error);
  EXPECT_NO_THROW(read(file("a", "562949953421312") + "," + file("b", "562949953421312") + "," + file("c", "-7")));
  EXPECT_THROW(read(file("a", "562949953421312") + "," + file("b", "562949953421313", std::string(40, 'b'))), Error);
}

TEST(Listing, OfUnknownSizesStillHasAChoice) {
  const Repository r = read(file("x-Q4_0.gguf", "9223372036854775808") + "," + file("x-Q8_0.gguf", "9223372036854775808"));
  try {
    choose_files(r, "");
    FAIL() << "two models, and one was chosen";
  } catch (const SeveralModels& e) {
    ASSERT_EQ(e.options.size(), 2u);
    for (const SeveralModels::Option& option : e.options) EXPECT_EQ(option.bytes, 0);
  }
}

TEST(Listing, IsRefusedWhereItIsNone) {
  for (const std::string& bad : {std::string("[1"), std::string("{}"), std::string(R"({"sha": "../../x", "siblings": []})"),
                                 std::string(100000, '['), R"({"sha": ")" + sha + R"("})", listing("7"), listing(file("../x", "1")),
                                 listing(file("a\\u202eb", "1")), listing(file("a\\u009bb", "1"))})
    EXPECT_THROW(read_listing(bad, {.repo = "a/b"}), Error) << bad.substr(0, 80);
}

TEST(Search, GivesNamesThatCanBePulled) {
  EXPECT_EQ(read_search(R"([{"id": "a/b"}, {"id": "../x"}, 7, {"name": "c/d"}, {"id": "c/d"}])"), (std::vector<std::string>{"a/b", "c/d"}));
  EXPECT_THROW(read_search("<html>"), Error);
}

TEST(Refusal, SaysWhatItsBodySays) {
  EXPECT_EQ(read_error(R"({"error": "no such thing"})"), "no such thing");
  for (const std::string& none : {std::string("<html>"), std::string("[]"), std::string(R"({"error": 7})"), std::string(60000, '['),
                                  R"({"error": ")" + std::string(70000, 'x') + "\"}"})
    EXPECT_EQ(read_error(none), "") << none.substr(0, 40);
}

}  // namespace
}  // namespace mr
