#include "io/model_writer.h"

#include <algorithm>

#include "core/error.h"
#include "io/file_writer.h"

namespace mr {

namespace fs = std::filesystem;

namespace {

const StoredFormat& format_named(std::string_view name) {
  for (const StoredFormat& format : stored_formats())
    if (format.name == name) return format;
  fail("there is no format '{}'", name);
}

// The numbers of the specification.
enum GgufType : uint32_t { kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8, kArray = 9, kU64 = 10 };
constexpr int64_t kAlignment = 32;

void put(FileWriter& out, const std::string& text) {
  out.number(uint64_t(text.size()));
  out.write(text);
}

template <class T>
void put_value(FileWriter& out, uint32_t type, T value) {
  out.number(type);
  out.number(value);
}

struct PutValue {
  FileWriter& out;
  void operator()(uint32_t x) const { put_value(out, kU32, x); }
  void operator()(int32_t x) const { put_value(out, kI32, x); }
  void operator()(float x) const { put_value(out, kF32, x); }
  void operator()(uint64_t x) const { put_value(out, kU64, x); }
  void operator()(bool x) const { put_value(out, kBool, uint8_t(x)); }
  void operator()(const std::string& text) const {
    out.number(uint32_t(kString));
    put(out, text);
  }
  void operator()(const GgufValue::List& list) const {
    out.number(uint32_t(kArray));
    std::visit(*this, list);
  }
  void operator()(const std::vector<std::byte>& stored) const { out.write(stored); }

  void operator()(const std::vector<std::string>& list) const {
    begin(kString, list.size());
    for (const std::string& text : list) put(out, text);
  }
  void operator()(const std::vector<int32_t>& list) const {
    begin(kI32, list.size());
    out.write(std::as_bytes(std::span(list)));
  }
  void operator()(const std::vector<float>& list) const {
    begin(kF32, list.size());
    out.write(std::as_bytes(std::span(list)));
  }
  void operator()(const std::vector<bool>& list) const {
    begin(kBool, list.size());
    for (bool x : list) out.number(uint8_t(x));
  }
  void begin(uint32_t type, size_t n) const {
    out.number(type);
    out.number(uint64_t(n));
  }
};

void write_gguf_part(const fs::path& file, const GgufMetadata& metadata, std::span<const TensorHead> all, const std::vector<size_t>& those,
                     const TensorData& data) {
  FileWriter out(file);
  out.write("GGUF");
  out.number(uint32_t(3));
  out.number(uint64_t(those.size()));
  out.number(uint64_t(metadata.size()));
  for (auto& [key, value] : metadata) {
    put(out, key);
    std::visit(PutValue{out}, value.value);
  }
  uint64_t offset = 0;
  for (size_t i : those) {
    const TensorHead& t = all[i];
    put(out, t.name);
    out.number(uint32_t(t.shape.size()));
    for (size_t d = t.shape.size(); d-- > 0;) out.number(uint64_t(t.shape[d]));
    out.number(uint32_t(format_named(t.format).gguf));
    out.number(offset);
    offset += uint64_t((t.bytes + kAlignment - 1) / kAlignment * kAlignment);
  }
  for (size_t i : those) {
    out.pad_to(kAlignment);
    const int64_t begin = out.position();
    data(i, [&](std::span<const std::byte> bytes) { out.write(bytes); });
    check(out.position() - begin == all[i].bytes, "tensor '{}' has {} bytes, not {}", all[i].name, out.position() - begin, all[i].bytes);
  }
  out.pad_to(kAlignment);
  out.close();
}

void write_safetensors_part(const fs::path& file, std::span<const TensorHead> all, const std::vector<size_t>& those,
                            const TensorData& data) {
  OrderedJson header{{"__metadata__", {{"format", "pt"}}}};
  int64_t offset = 0;
  for (size_t i : those) {
    const TensorHead& t = all[i];
    header[t.name] = {{"dtype", format_named(t.format).safetensors}, {"shape", t.shape}, {"data_offsets", {offset, offset + t.bytes}}};
    offset += t.bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  FileWriter out(file);
  out.number(uint64_t(text.size()));
  out.write(text);
  for (size_t i : those) {
    const int64_t begin = out.position();
    data(i, [&](std::span<const std::byte> bytes) { out.write(bytes); });
    check(out.position() - begin == all[i].bytes, "tensor '{}' has {} bytes, not {}", all[i].name, out.position() - begin, all[i].bytes);
  }
  out.close();
}

}  // namespace

TensorHead tensor_head(std::string name, std::string format, std::vector<int64_t> shape) {
  TensorHead head{std::move(name), std::move(format), std::move(shape)};
  head.bytes = int64_t(stored_bytes(format_named(head.format), {head.name, head.format, head.shape, {}}, "the output"));
  return head;
}

std::vector<std::vector<size_t>> shards_of(std::span<const TensorHead> tensors, int64_t most) {
  std::vector<std::vector<size_t>> shards(1);
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); i++) {
    if (most > 0 && !shards.back().empty() && bytes + tensors[i].bytes > most) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().push_back(i);
    bytes += tensors[i].bytes;
  }
  return shards;
}

std::vector<fs::path> gguf_parts(const fs::path& file, size_t shards) {
  if (shards == 1) return {file};
  std::vector<fs::path> parts;
  for (size_t s = 0; s < shards; s++)
    parts.push_back(file.parent_path() / fmt::format("{}-{:05}-of-{:05}.gguf", file.stem().native(), s + 1, shards));
  return parts;
}

std::vector<fs::path> write_gguf(const fs::path& file, const GgufMetadata& metadata, std::span<const TensorHead> tensors,
                                 int64_t shard_bytes, const TensorData& data) {
  for (const TensorHead& t : tensors) check(format_named(t.format).gguf >= 0, "tensor '{}': GGUF files have no {}", t.name, t.format);
  const auto shards = shards_of(tensors, shard_bytes);
  std::vector<fs::path> files = gguf_parts(file, shards.size());
  for (size_t s = 0; s < shards.size(); s++) {
    GgufMetadata own = s == 0 ? metadata : GgufMetadata{};
    if (shards.size() > 1) {
      // Types as llama.cpp reads them: 16 bits, 16 bits, a signed 32.
      auto u16 = [](size_t x) { return GgufValue{std::vector<std::byte>{std::byte(2), {}, {}, {}, std::byte(x), std::byte(x >> 8)}}; };
      own.push_back({"split.no", u16(s)});
      own.push_back({"split.count", u16(shards.size())});
      own.push_back({"split.tensors.count", {int32_t(tensors.size())}});
    }
    write_gguf_part(files[s], own, tensors, shards[s], data);
  }
  return files;
}

void write_safetensors(const fs::path& directory, std::span<const TensorHead> tensors, int64_t shard_bytes, const TensorData& data) {
  for (const TensorHead& t : tensors)
    check(!format_named(t.format).safetensors.empty(), "tensor '{}': safetensors files have no {}", t.name, t.format);
  const auto shards = shards_of(tensors, shard_bytes);
  if (shards.size() == 1) return write_safetensors_part(directory / "model.safetensors", tensors, shards[0], data);
  OrderedJson map = OrderedJson::object();
  int64_t total = 0;
  for (size_t s = 0; s < shards.size(); s++) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
    write_safetensors_part(directory / name, tensors, shards[s], data);
    for (size_t i : shards[s]) {
      map[tensors[i].name] = name;
      total += tensors[i].bytes;
    }
  }
  FileWriter index(directory / "model.safetensors.index.json");
  index.write(OrderedJson{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump(2) + "\n");
  index.close();
}

}  // namespace mr
