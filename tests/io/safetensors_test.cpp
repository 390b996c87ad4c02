#include "io/safetensors.h"

#include "core/dtype.h"
#include "io/checkpoint.h"
#include "io/files.h"

namespace mr::test {

namespace {

struct Safetensors : RefusedFile {
  Safetensors() : RefusedFile("x.safetensors") {}
};

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets, size_t data) {
  return safetensors(fmt::format(R"({{"w":{{"dtype":{},"shape":{},"data_offsets":{}}}}})", dtype, shape, offsets), data);
}

}  // namespace

TEST_F(Safetensors, SmallestFilesWork) {
  EXPECT_EQ(error(safetensors("{}", 0)), "");
  EXPECT_EQ(error(one("\"F32\"", "[2, 3]", "[0, 24]", 24)), "");
  EXPECT_EQ(error(one("\"BF16\"", "[]", "[0, 2]", 2)), "");
  EXPECT_EQ(error(one("\"F32\"", "[0, 3]", "[0, 0]", 0)), "");
}

TEST_F(Safetensors, RefusesOtherFiles) {
  expect_error("1234567", {"not a safetensors file", "7 bytes"});
  expect_error(Bytes().num(uint64_t(1) << 60) + "{}", {"1152921504606846976 bytes", "at most 100000000"});
  expect_error(Bytes().num(uint64_t(3)) + "{}", {"cut short", "header has 3 bytes", "only 2 follow"});
  expect_error(safetensors("{\"w\":", 0), {"not valid JSON", "at byte"});
  expect_error(safetensors("[]", 0), {"not a JSON object"});
  expect_error(safetensors("{\"\xff\":{}}", 0), {"not valid JSON", "at byte"});
}

TEST_F(Safetensors, RefusesBadTensors) {
  expect_error(one("\"F33\"", "[1]", "[0, 4]", 4), {"'w'", "unknown dtype 'F33'"});
  std::string long_name(100, 'n');
  expect_error(safetensors("{\"" + long_name + "\":{\"dtype\":\"Q\",\"shape\":[],\"data_offsets\":[0,0]}}", 0),
               {long_name, "unknown dtype 'Q'"});
  expect_error(one("\"\"", "[1]", "[0, 4]", 4), {"'w'", "unknown dtype ''"});
  expect_error(one("7", "[1]", "[0, 4]", 4), {"'w'", "no dtype"});
  for (const char* shape : {"[-1]", "[1.5]", "7", "null", "[\"1\"]", "[9223372036854775808]", "[1e30]"})
    expect_error(one("\"F32\"", shape, "[0, 4]", 4), {"shape of tensor 'w'", "not a list of whole numbers"});
  expect_error(one("\"F32\"", "[1099511627776, 1099511627776]", "[0, 4]", 4), {"'w'", "impossible shape [1099511627776, 1099511627776]"});
  expect_error(one("\"F32\"", "[1]", "[0]", 4), {"data_offsets of tensor 'w'", "not a begin and an end"});
  expect_error(one("\"F32\"", "[1]", "[4, 0]", 4), {"data_offsets of tensor 'w'", "not a begin and an end"});
  expect_error(one("\"F32\"", "[2, 3]", "[0, 20]", 20), {"'w'", "20 bytes", "[2, 3] in f32 needs 24"});
  expect_error(one("\"F32\"", "[2, 3]", "[0, 28]", 28), {"'w'", "28 bytes", "[2, 3] in f32 needs 24"});
  expect_error(one("\"F32\"", "[2, 3]", "[0, 24]", 23), {"'w'", "ends at data byte 24", "only 23"});
  expect_error(one("\"F32\"", "[2, 3]", "[0, 24]", 25), {"25 bytes of data", "take 24"});
  expect_error(one("\"F32\"", "[1]", "[4, 8]", 8), {"'w'", "begins at data byte 4", "ends at 0"});
  expect_error(safetensors(R"({"w":[]})", 0), {"'w'", "not a JSON object"});
  expect_error(safetensors(R"({"__metadata__":[]})", 0), {"__metadata__", "not a JSON object"});
  std::string w = R"("w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})", v = R"("v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})";
  expect_error(safetensors("{" + w + "," + w + "}", 1), {"key 'w' twice"});
  expect_error(safetensors("{" + w + "," + v + "}", 2), {"'v'", "begins at data byte 0", "ends at 1"});
}

TEST_F(Safetensors, KeepsTheFilesMetadata) {
  path_ = write_file(dir_ / "x", safetensors(R"({"__metadata__":{"format":"pt"}})", 0));
  EXPECT_EQ(SafetensorsFile(MappedFile(path_)).metadata, Json::parse(R"({"format":"pt"})"));
}

TEST_F(Safetensors, MisalignedTensorsAreReadThroughACopy) {
  std::string header = R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"F32","shape":[2],"data_offsets":[3,11]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  path_ = write_file(dir_ / "x", Bytes().num(uint64_t(header.size())) + header + "abc" + Bytes().num(1.5f).num(-2.0f));
  auto c = Checkpoint::open(path_);
  const StoredTensor& b = c->get("b");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b.bytes.data()) % 4, 0u);
  c->drop(b);
  EXPECT_EQ(element<float>(b, 0), 1.5f);
  EXPECT_EQ(element<float>(b, 1), -2.0f);
  EXPECT_EQ(element<char>(c->get("a"), 2), 'c');
}

TEST_F(Safetensors, ReadsShardsThatTheSafetensorsPackageWrote) {
  auto c = Checkpoint::open(fixture("sharded"));
  EXPECT_FALSE(c->is_gguf());
  EXPECT_EQ(c->path(), fixture("sharded"));
  EXPECT_EQ(c->config(), Json::parse(R"({"model_type":"llama","hidden_size":8})"));
  EXPECT_EQ(c->tensors().size(), 6u);
  auto expect_tensor = [&](const char* name, const char* format, std::vector<int64_t> shape, int file, auto value) {
    const StoredTensor& t = c->get(name);
    EXPECT_EQ(t.format, format);
    EXPECT_EQ(t.shape, shape);
    EXPECT_EQ(c->file_of(t).filename(), fmt::format("model-{:05}-of-00002.safetensors", file));
    size_t n = 1;
    for (int64_t d : shape) n *= size_t(d);
    for (size_t i = 0; i < n; i++) EXPECT_EQ(value(t, i), ramp(i)) << name << " " << i;
  };
  expect_tensor("a.weight", "f32", {3, 5}, 1, element<float>);
  expect_tensor("b.scalar", "f32", {}, 1, element<float>);
  expect_tensor("b.weight", "f16", {4, 8}, 1, [](auto& t, size_t i) { return f32_from_f16(element<uint16_t>(t, i)); });
  expect_tensor("c.weight", "bf16", {2, 3, 4}, 2, [](auto& t, size_t i) { return f32_from_bf16(element<uint16_t>(t, i)); });
  expect_tensor("c.codes", "i8", {7}, 2, [](auto& t, size_t i) { return float(element<int8_t>(t, i)) / 8; });
  expect_tensor("c.ids", "i64", {3}, 2, [](auto& t, size_t i) { return float(element<int64_t>(t, i)) / 8; });
}

}  // namespace mr::test
