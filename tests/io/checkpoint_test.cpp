#include "io/checkpoint.h"

#include "io/files.h"

namespace mr::test {

namespace {

// A directory with two shards that hold the byte tensors "a" and "b".
class Directory : public testing::Test {
 protected:
  void SetUp() override {
    write_file(dir_ / "config.json", "{\"model_type\":\"llama\"}");
    write_file(dir_ / "1.safetensors", bytes_tensor("a"));
    write_file(dir_ / "2.safetensors", bytes_tensor("b"));
    index(R"({"a":"1.safetensors","b":"2.safetensors"})");
  }
  static std::string bytes_tensor(const std::string& name) {
    return safetensors("{\"" + name + "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1);
  }
  void index(const std::string& weight_map) { write_file(dir_ / "model.safetensors.index.json", "{\"weight_map\":" + weight_map + "}"); }
  std::string error() {
    return error_of([&] { Checkpoint::open(dir_.path()); });
  }
  TempDir dir_;
};

}  // namespace

TEST_F(Directory, FindsTensorsAndNamesMissingOnes) {
  auto c = Checkpoint::open(dir_.path());
  EXPECT_EQ(c->find("a"), &c->get("a"));
  EXPECT_EQ(c->find("z"), nullptr);
  expect_says(error_of([&] { c->get("model.norm.weight"); }), {dir_.path().native(), "no tensor 'model.norm.weight'"});
  c->drop(c->get("b"));
  EXPECT_EQ(element<char>(c->get("b"), 0), '\1');
}

TEST_F(Directory, OneFileIsPreferredToShards) {
  write_file(dir_ / "model.safetensors", bytes_tensor("whole"));
  auto c = Checkpoint::open(dir_.path());
  EXPECT_EQ(c->tensors().size(), 1u);
  EXPECT_NE(c->find("whole"), nullptr);
}

TEST_F(Directory, ALoneFileTakesTheConfigBesideIt) {
  EXPECT_EQ(Checkpoint::open(dir_ / "1.safetensors")->config()["model_type"], "llama");
  fs::remove(dir_ / "config.json");
  EXPECT_EQ(Checkpoint::open(dir_ / "1.safetensors")->config(), Json::object());
}

TEST_F(Directory, PythonsInfinityIsRead) {
  write_file(dir_ / "config.json", R"({"limit": [0.0, Infinity, -Infinity], "text": "Infinity \" NaN", "none": NaN})");
  Json config = Checkpoint::open(dir_.path())->config();
  EXPECT_EQ(config["limit"], Json::parse(R"([0.0, {"__float__": "Infinity"}, {"__float__": "-Infinity"}])"));
  EXPECT_EQ(config["text"], "Infinity \" NaN");
  EXPECT_EQ(config["none"]["__float__"], "NaN");
}

TEST_F(Directory, ContentsDecideNotNames) {
  fs::copy_file(dir_ / "1.safetensors", dir_ / "weights.bin");
  EXPECT_FALSE(Checkpoint::open(dir_ / "weights.bin")->is_gguf());
  fs::copy_file(fixture("types.gguf"), dir_ / "gguf.bin");
  EXPECT_TRUE(Checkpoint::open(dir_ / "gguf.bin")->is_gguf());
  write_file(dir_ / "text.txt", "hello, this is not a model");
  expect_says(error_of([&] { Checkpoint::open(dir_ / "text.txt"); }), {"text.txt", "neither a GGUF nor a safetensors file"});
}

TEST_F(Directory, SaysWhatIsMissing) {
  expect_says(error_of([&] { Checkpoint::open(dir_ / "none"); }), {"cannot open", (dir_ / "none").native(), "No such file"});
  fs::remove(dir_ / "2.safetensors");
  expect_says(error(), {"shard '2.safetensors'", "model.safetensors.index.json", "missing"});
  fs::remove(dir_ / "model.safetensors.index.json");
  expect_says(error(), {dir_.path().native(), "neither model.safetensors nor model.safetensors.index.json"});
  write_file(dir_ / "config.json", "{\"a\": }");
  expect_says(error(), {"config.json", "not valid JSON", "at byte 7"});
  write_file(dir_ / "config.json", "[]");
  expect_says(error(), {"config.json", "not a JSON object"});
  fs::remove(dir_ / "config.json");
  expect_says(error(), {dir_.path().native(), "no config.json"});
}

TEST_F(Directory, RefusesAWrongIndex) {
  for (std::string name : {"../1.safetensors", "x/../../1.safetensors", "/etc/passwd", "", ".."}) {
    index("{\"a\":\"" + name + "\"}");
    expect_says(error(), {"'" + name + "'", "does not lie in its directory"});
  }
  index(R"({"a":7})");
  expect_says(error(), {"no file for the tensor 'a'"});
  index("[]");
  expect_says(error(), {"has no weight_map"});
  write_file(dir_ / "model.safetensors.index.json", "[]");
  expect_says(error(), {"has no weight_map"});
  index(R"({"a":"1.safetensors","c":"2.safetensors"})");
  expect_says(error(), {"2.safetensors", "no tensor 'c'"});
  write_file(dir_ / "2.safetensors", bytes_tensor("a"));
  index(R"({"a":"1.safetensors","b":"2.safetensors"})");
  expect_says(error(), {"2.safetensors", "no tensor 'b'"});
}

TEST_F(Directory, RefusesATensorInTwoShards) {
  write_file(
      dir_ / "2.safetensors",
      safetensors(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}})", 1));
  expect_says(error(), {"tensor 'a'", "1.safetensors", "2.safetensors"});
}

TEST_F(Directory, NamesTheBrokenShard) {
  std::string shard = bytes_tensor("b");
  write_file(dir_ / "2.safetensors", shard.substr(0, shard.size() - 1));
  expect_says(error(), {"2.safetensors", "cut short"});
  write_file(dir_ / "2.safetensors", "");
  expect_says(error(), {"2.safetensors", "is empty"});
}

}  // namespace mr::test
