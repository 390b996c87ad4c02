#include "io/gguf.h"

#include "io/checkpoint.h"
#include "io/files.h"

namespace mr::test {

namespace {

enum : uint32_t { kU8 = 0, kU32 = 4, kBool = 7, kString = 8, kArray = 9, kF32 = 0, kQ4_1 = 3, kQ6K = 14 };

struct Gguf : RefusedFile {
  Gguf() : RefusedFile("x.gguf") {}
};

// One tensor 'w' of 2 x 3 floats.
Bytes valid() {
  Bytes b;
  b.head(1, 1).key("general.architecture", kString).str("llama").info("w", {3, 2}, kF32, 0).pad(32).append(24, '\1');
  return b;
}

std::string hex(std::span<const std::byte> bytes) {
  std::string s;
  for (std::byte b : bytes) s += fmt::format("{:02x}", int(b));
  return s;
}

}  // namespace

TEST_F(Gguf, ReadsWhatTheGgufPackageWrote) {
  auto c = Checkpoint::open(fixture("types.gguf"));
  Json expected = read_json(fixture("types.json"));
  EXPECT_TRUE(c->is_gguf());
  EXPECT_EQ(c->config(), expected["metadata"]);
  EXPECT_EQ(c->tensors().size(), expected["tensors"].size());
  for (auto& [name, want] : expected["tensors"].items()) {
    const StoredTensor& t = c->get(name);
    EXPECT_EQ(t.name, name);
    EXPECT_EQ(t.format, want["format"].get<std::string>());
    EXPECT_EQ(t.shape, want["shape"].get<std::vector<int64_t>>());
    EXPECT_EQ(hex(t.bytes), want["bytes"].get<std::string>());
  }
  const StoredTensor& t = c->get("f32.2d.weight");
  for (size_t i = 0; i < 15; i++) EXPECT_EQ(element<float>(t, i), ramp(i));
}

TEST_F(Gguf, Version2HasTheSameLayout) {
  std::string bytes = read_file(fixture("types.gguf"));
  bytes[4] = 2;
  write_file(dir_ / "x.gguf", bytes);
  EXPECT_EQ(Checkpoint::open(dir_ / "x.gguf")->config(), Checkpoint::open(fixture("types.gguf"))->config());
  EXPECT_EQ(GgufFile(MappedFile(dir_ / "x.gguf")).version, 2);
}

TEST_F(Gguf, ReadsAFileOfSeveralParts) {
  auto c = Checkpoint::open(fixture("split/tiny-00001-of-00002.gguf"));
  ASSERT_EQ(c->tensors().size(), 3u);
  for (const char* name : {"a", "b", "c"})
    for (size_t i = 0; i < 6; i++) EXPECT_EQ(element<float>(c->get(name), i), ramp(i));
  EXPECT_EQ(c->file_of(c->get("b")), fixture("split/tiny-00001-of-00002.gguf"));
  EXPECT_EQ(c->file_of(c->get("c")), fixture("split/tiny-00002-of-00002.gguf"));
}

TEST_F(Gguf, AnyPartAndTheirDirectoryFindTheFirst) {
  for (const char* name : {"split/tiny-00002-of-00002.gguf", "split"}) {
    auto c = Checkpoint::open(fixture(name));
    EXPECT_EQ(c->path(), fixture("split/tiny-00001-of-00002.gguf"));
    EXPECT_EQ(c->file_of(c->get("c")), fixture("split/tiny-00002-of-00002.gguf"));
  }
}

TEST_F(Gguf, SaysWhichPartIsWrong) {
  std::string first = read_file(fixture("split/tiny-00001-of-00002.gguf"));
  write_file(dir_ / "tiny-00001-of-00002.gguf", first);
  expect_says(error_of([&] { Checkpoint::open(dir_ / "tiny-00001-of-00002.gguf"); }), {"cannot open", "tiny-00002-of-00002.gguf"});
  expect_error(first, {"part 1 of 2", "-00001-of-00002.gguf"});
}

TEST_F(Gguf, SmallestFilesWork) {
  EXPECT_EQ(error(valid()), "");
  EXPECT_EQ(error(Bytes().head(0, 0)), "");                                          // no tensors: no data section either
  EXPECT_EQ(error(Bytes().head(1, 0).info("w", {}, kF32, 0).pad(32) + "1234"), "");  // a scalar
}

TEST_F(Gguf, RefusesOtherFiles) {
  expect_error("GGML" + valid().substr(4), {"not a GGUF file"});
  expect_error("GG", {"not a GGUF file"});
  expect_error("GGUF", {"cut short", "version at byte 4"});
  expect_error(Bytes().head(0, 0, 1), {"version 1", "only versions 2 and 3"});
  expect_error(Bytes().head(0, 0, 4), {"version 4"});
  expect_says(error_of([] { Checkpoint::open(fixture("big_endian.gguf")); }), {"big_endian.gguf", "big-endian"});
}

TEST_F(Gguf, HostileCountsAllocateNothing) {
  for (uint64_t huge : {uint64_t(1) << 60, uint64_t(1) << 63, ~uint64_t(0), uint64_t(1000)}) {
    std::string number = fmt::format("{}", huge);
    expect_error(Bytes().head(huge, 0).append(64, '\0'), {"number of tensors is " + number});
    expect_error(Bytes().head(0, huge).append(64, '\0'), {"number of metadata entries is " + number});
    expect_error(Bytes().head(0, 1).num(huge).append(64, '\0'), {"metadata key", number});
    expect_error(Bytes().head(0, 1).key("k", kString).num(huge).append(64, '\0'), {"k at byte", number});
    expect_error(Bytes().head(0, 1).key("k", kArray).num(kU8).num(huge).append(64, '\0'), {"its k is " + number});
    expect_error(Bytes().head(0, 1).key("k", kArray).num(kString).num(huge).append(64, '\0'), {"its k is " + number});
    expect_error(Bytes().head(0, 1).key("k", kArray).num(kArray).num(huge).append(64, '\0'), {"its k is " + number});
    expect_error(Bytes().head(1, 0).num(huge).append(64, '\0'), {"tensor name", number});
  }
}

TEST_F(Gguf, LimitsTheMemoryThatMetadataTakes) {
  path_ = write_file(dir_ / "x.gguf", Bytes().head(0, 1).key("k", kArray).num(kU8).num(uint64_t(1) << 25));
  fs::resize_file(path_, (1 << 25) + 1000);  // sparse
  expect_says(error_of([&] { Checkpoint::open(path_); }), {"'k'", "33554432 entries"});
  // Empty strings, eight bytes each in the file, take as much memory as others; so do lists.
  for (uint32_t type : {kString, kArray}) {
    path_ = write_file(dir_ / "x.gguf", Bytes().head(0, 1).key("k", kArray).num(type).num(uint64_t(6) << 20));
    fs::resize_file(path_, (6 << 20) * 12 + 1000);
    expect_says(error_of([&] { Checkpoint::open(path_); }), {"bytes of memory"});
  }
}

TEST_F(Gguf, RefusesBadMetadata) {
  expect_error(Bytes().head(0, 1).key("k", 13).append(64, '\0'), {"'k'", "unknown value type 13"});
  expect_error(Bytes().head(0, 1).key("k", kArray).num(uint32_t(77)).num(uint64_t(1)).append(64, '\0'), {"'k'", "unknown value type 77"});
  expect_error(Bytes().head(0, 2).key("k", kU8).num('\1').key("k", kU8).num('\1'), {"metadata key 'k' twice"});
  expect_error(Bytes().head(0, 1).key("k", kU32).num('\1'), {"cut short", "k at byte", "needs 4 bytes"});
  Bytes deep;
  deep.head(0, 1).key("k", kArray);
  for (int i = 0; i < 1000; i++) deep.num(kArray).num(uint64_t(1));
  expect_error(deep, {"'k'", "nests arrays more than 8 deep"});
  for (uint32_t alignment : {0u, 4u, 33u, 48u})
    expect_error(Bytes().head(0, 1).key("general.alignment", kU32).num(alignment), {"general.alignment", fmt::format("is {}", alignment)});
  expect_error(Bytes().head(0, 1).key("general.alignment", kString).str("32"), {"general.alignment", "not an unsigned number"});
}

TEST_F(Gguf, RefusesBadTensors) {
  auto one = [](std::vector<uint64_t> dims, uint32_t type, uint64_t offset, size_t data) {
    Bytes b;
    b.head(1, 0).info("blk.0.w", dims, type, offset).pad(32).append(data, '\1');
    return b;
  };
  expect_error(one({4}, 99, 0, 64), {"'blk.0.w'", "unknown type number 99"});
  expect_error(one({4}, 4, 0, 64), {"'blk.0.w'", "unknown type number 4"});  // a type that ggml removed
  expect_error(one({1, 1, 1, 1, 1}, kF32, 0, 64), {"'blk.0.w'", "5 dimensions"});
  expect_error(one({uint64_t(1) << 63}, kF32, 0, 64), {"'blk.0.w'", "dimension of 9223372036854775808"});
  expect_error(one({uint64_t(1) << 40, uint64_t(1) << 40}, kF32, 0, 64), {"'blk.0.w'", "impossible shape [1099511627776, 1099511627776]"});
  expect_error(one({uint64_t(1) << 62}, kF32, 0, 64), {"'blk.0.w'", "impossible shape"});
  expect_error(one({48, 2}, kQ4_1, 0, 64), {"'blk.0.w'", "rows of 48", "q4_1", "blocks of 32"});
  expect_error(one({256}, kQ6K, 0, 209), {"'blk.0.w'", "210 bytes", "only 209 bytes of data"});
  EXPECT_EQ(error(one({256}, kQ6K, 0, 210)), "");
  expect_error(one({16}, kF32, 4, 68), {"'blk.0.w'", "data byte 4", "multiple of 32"});
  expect_error(one({16}, kF32, 32, 64), {"'blk.0.w'", "64 bytes from data byte 32", "only 64 bytes"});
  expect_error(one({16}, kF32, ~uint64_t(31), 64), {"'blk.0.w'", "64 bytes from data byte 18446744073709551584"});
  expect_error(one({16}, kF32, 0, 63), {"'blk.0.w'", "cut short"});
  Bytes twice;
  twice.head(2, 0).info("w", {1}, kF32, 0).info("w", {1}, kF32, 0).pad(32).append(32, '\1');
  expect_error(twice, {"tensor 'w' twice"});
}

TEST_F(Gguf, OpeningReadsNoTensorData) {
  Bytes b;
  b.head(1, 0).info("w", {1 << 14, 1 << 18}, kF32, 0).pad(32);
  path_ = write_file(dir_ / "x.gguf", b);
  fs::resize_file(path_, b.size() + (uint64_t(1) << 34));  // 16 GiB, sparse: reading it would take seconds
  auto begin = std::chrono::steady_clock::now();
  auto c = Checkpoint::open(path_);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
  EXPECT_EQ(c->get("w").bytes.size(), uint64_t(1) << 34);
  EXPECT_EQ(c->get("w").bytes.back(), std::byte(0));
}

// Block sizes by the definition of each format: bits of the codes, plus the scales.
TEST(StoredFormats, BlockSizesFollowFromTheFormats) {
  auto bytes = [](std::string_view name) {
    for (const StoredFormat& f : stored_formats())
      if (f.name == name) return std::pair(f.elements, f.bytes);
    return std::pair(0, 0);
  };
  EXPECT_EQ(bytes("q4_0"), std::pair(32, 2 + 16));
  EXPECT_EQ(bytes("q4_1"), std::pair(32, 2 + 2 + 16));
  EXPECT_EQ(bytes("q5_0"), std::pair(32, 2 + 4 + 16));
  EXPECT_EQ(bytes("q5_1"), std::pair(32, 2 + 2 + 4 + 16));
  EXPECT_EQ(bytes("q8_0"), std::pair(32, 2 + 32));
  EXPECT_EQ(bytes("q4_k"), std::pair(256, 2 + 2 + 12 + 128));
  EXPECT_EQ(bytes("q5_k"), std::pair(256, 2 + 2 + 12 + 32 + 128));
  EXPECT_EQ(bytes("q6_k"), std::pair(256, 128 + 64 + 16 + 2));
  EXPECT_EQ(bytes("mxfp4"), std::pair(32, 1 + 16));
  for (const StoredFormat& a : stored_formats())
    for (const StoredFormat& b : stored_formats()) {
      if (&a == &b) continue;
      EXPECT_NE(a.name, b.name);
      EXPECT_TRUE(a.gguf < 0 || a.gguf != b.gguf) << a.name;
      EXPECT_TRUE(a.safetensors.empty() || a.safetensors != b.safetensors) << a.name;
    }
}

}  // namespace mr::test
