// Files of an absurd structure: refused with one sentence, before they cost time or memory.
#include <unistd.h>

#include "io/files.h"
#include "io/gguf.h"
#include "io/safetensors.h"

namespace mr::test {

namespace {

std::string repeated(const std::string& text, int n) {
  std::string out;
  for (int i = 0; i < n; i++) out += text;
  return out;
}

class JsonFile : public testing::Test {
 protected:
  std::string error(const std::string& text) {
    write_file(dir_ / "x.json", text);
    return error_of([&] { read_json(dir_ / "x.json"); });
  }
  TempDir dir_;
};

TEST_F(JsonFile, NestsOnlySoDeep) {
  EXPECT_EQ(error(R"({"a": [[[[{"b": 1}]]]]})"), "");
  for (int depth : {100, 100'000, 2'000'000}) {
    expect_says(error(R"({"a": )" + std::string(size_t(depth), '[')), {"x.json", "levels deep"});
    expect_says(error(std::string(size_t(depth), '[') + std::string(size_t(depth), ']')), {"levels deep"});
    expect_says(error(repeated(R"({"a":)", depth) + "1" + std::string(size_t(depth), '}')), {"levels deep"});
  }
}

TEST_F(JsonFile, RefusesKeysTwice) { expect_says(error(R"({"hidden_size": 1, "hidden_size": 2})"), {"x.json", "'hidden_size' twice"}); }

TEST_F(JsonFile, TakesManyKeysInTime) {
  std::string text = "{";
  for (int i = 0; i < 200'000; i++) text += fmt::format("\"k{}\":{},", i, i);
  EXPECT_EQ(error(text + "\"end\":0}"), "");
}

TEST_F(JsonFile, RefusesNumbersOutOfEveryRange) {
  expect_says(error(R"({"a": 1e400})"), {"x.json", "not valid JSON"});
  expect_says(error(R"({"a": )" + std::string(100'000, '9') + "}"), {"x.json", "not valid JSON"});
}

TEST_F(JsonFile, ReadsPythonsInfinityStill) {
  write_file(dir_ / "x.json", R"({"a": Infinity, "b": "NaN", "c": -Infinity})");
  Json json = read_json(dir_ / "x.json");
  EXPECT_EQ(json["a"]["__float__"], "Infinity");
  EXPECT_EQ(json["b"], "NaN");
  EXPECT_EQ(json["c"]["__float__"], "-Infinity");
}

TEST_F(JsonFile, MustBeAnObjectWhereOneIsRead) {
  write_file(dir_ / "x.json", "[1]");
  expect_says(error_of([&] { read_json_object(dir_ / "x.json"); }), {"x.json", "not a JSON object"});
}

TEST_F(JsonFile, IsShownInOneLine) {
  std::string name = "a\nb\x1b[2J";
  expect_says(error("{\"" + std::string(5000, 'k') + "\":1,\"" + std::string(5000, 'k') + "\":1}"), {"x.json", "twice"});
  fs::create_directories(dir_ / name);
  std::string said = error_of([&] { Checkpoint::open(dir_ / name); });
  expect_says(said, {"a\\nb\\x1b[2J"});
}

class AbsurdSafetensors : public RefusedFile {
 protected:
  AbsurdSafetensors() : RefusedFile("model.safetensors") {}
};

TEST_F(AbsurdSafetensors, Headers) {
  expect_error(safetensors(R"({"w":)" + std::string(100'000, '['), 0), {"levels deep"});
  expect_error(safetensors(R"({"w":{"dtype":"F32","shape":[)" + repeated("1,", 100'000) + R"(1],"data_offsets":[0,4]}})", 4),
               {"shape", "100001 entries"});
  expect_error(safetensors(R"({"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", 4), {"impossible shape"});
  expect_error(safetensors(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,18446744073709551615]}})", 4),
               {"data_offsets"});
  expect_error(safetensors(R"({"w":{"dtype":"F32","shape":[1e0],"data_offsets":[0,4]}})", 4), {"shape"});
  expect_error(safetensors(R"({"a\nb\u001b[2J":{"dtype":"Q"}})", 4), {"a\\nb\\x1b[2J", "dtype 'Q'"});
}

TEST_F(AbsurdSafetensors, ShardsOutsideTheDirectory) {
  for (const char* shard : {"../x.safetensors", "/etc/passwd", "a/../../x", "", ".."}) {
    write_file(dir_ / "config.json", "{}");
    write_file(dir_ / "model.safetensors.index.json", Json{{"weight_map", {{"w", shard}}}}.dump());
    expect_says(error_of([&] { Checkpoint::open(dir_.path()); }), {"does not lie in its directory"});
  }
}

class AbsurdGguf : public RefusedFile {
 protected:
  AbsurdGguf() : RefusedFile("model.gguf") {}
  // A file that is mostly a hole: it states more than any memory holds, and has it.
  std::string sparse_error(const std::string& head, int64_t size) {
    write_file(path_, head);
    EXPECT_EQ(truncate(path_.c_str(), size), 0);
    return error_of([&] { Checkpoint::open(path_); });
  }
};

constexpr uint32_t kU8 = 0, kU32 = 4, kString = 8, kArray = 9;

TEST_F(AbsurdGguf, SparseFiles) {
  const int64_t huge = int64_t(1) << 38;
  expect_says(sparse_error(Bytes().head(0, 1).num(uint64_t(1) << 37), huge), {"bytes of memory"});
  expect_says(sparse_error(Bytes().head(0, 1).key("k", kString).num(uint64_t(1) << 37), huge), {"bytes of memory"});
  expect_says(sparse_error(Bytes().head(0, 1).key("k", kArray).num(kU8).num(uint64_t(1) << 37), huge), {"entries"});
  expect_says(sparse_error(Bytes().head(uint64_t(1) << 30, 0), huge), {"number of tensors", "at most"});
  expect_says(sparse_error(Bytes().head(0, uint64_t(1) << 30), huge), {"number of metadata entries", "at most"});
}

TEST_F(AbsurdGguf, NamesAndNesting) {
  expect_error(Bytes().head(0, 1).key(std::string(70'000, 'k'), kU8).num('\1'), {"metadata key", "70000 bytes"});
  auto nested = [](int depth) {
    Bytes deep;
    deep.head(0, 1).key("k", kArray);
    for (int i = 1; i < depth; i++) deep.num(kArray).num(uint64_t(1));
    return deep.num(kU8).num(uint64_t(0));
  };
  EXPECT_EQ(error(nested(8)), "");
  for (int depth : {9, 1000}) expect_error(nested(depth), {"nests arrays more than 8 deep"});
  expect_error(Bytes().head(0, 1).key("k", kArray).num(kU32).num(uint64_t(5)).num(uint32_t(1)), {"its k is 5", "only 4 bytes follow"});
  for (uint32_t alignment : {0u, 3u, 4u})
    expect_error(Bytes().head(0, 1).key("general.alignment", kU32).num(alignment).pad(32), {"general.alignment"});
  expect_error(Bytes().head(1, 0).info("w", {uint64_t(1) << 40, uint64_t(1) << 40}, 0, 0).pad(32), {"impossible shape"});
  expect_error(Bytes().head(1, 0).info("w\n\x1b", {32}, 0, ~uint64_t(0) - 31).pad(32), {"w\\n\\x1b"});
}

}  // namespace

}  // namespace mr::test
