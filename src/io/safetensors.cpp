#include "io/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/bounded_json.h"
#include "core/error.h"

namespace mr {

namespace {

constexpr uint64_t kMaxHeader = 100'000'000;  // as the reference implementation
constexpr JsonLimits kHeaderLimits{.depth = 8, .keys = 1 << 21, .values = 1 << 24, .bytes = size_t(1) << 30};
constexpr size_t kMaxRank = 64;

uint64_t header_length(std::span<const std::byte> bytes) {
  uint64_t length;
  std::memcpy(&length, bytes.data(), 8);
  return length;
}

Json read_header(std::span<const std::byte> bytes, const std::string& file) {
  check(bytes.size() >= 8, "'{}' is not a safetensors file: it has only {} bytes", file, bytes.size());
  uint64_t length = header_length(bytes);
  check(length <= kMaxHeader, "'{}' is not a safetensors file: its header would have {} bytes, at most {} are allowed", file, length,
        kMaxHeader);
  check(length <= bytes.size() - 8, "'{}' is broken or cut short: its header has {} bytes, but only {} follow", file, length,
        bytes.size() - 8);
  std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, length);
  Json header = parse_json<Json>(text, sentence("the header of '{}'", file), kHeaderLimits);
  check(header.is_object(), "the header of '{}' is not a JSON object", file);
  return header;
}

const StoredFormat& format_of(const Json& dtype, const std::string& tensor, const std::string& file) {
  check(dtype.is_string(), "tensor '{}' of '{}' has no dtype", tensor, file);
  const std::string& name = dtype.get_ref<const std::string&>();
  for (const StoredFormat& format : stored_formats())
    if (!name.empty() && format.safetensors == name) return format;
  fail("tensor '{}' of '{}' has the unknown dtype '{}'", tensor, file, name);
}

// A list of whole numbers that fit int64.
std::vector<int64_t> numbers(const Json& list, std::string_view what, const std::string& tensor, const std::string& file) {
  bool ok = list.is_array();
  check(!ok || list.size() <= kMaxRank, "the {} of tensor '{}' of '{}' has {} entries: at most {} are possible", what, tensor, file,
        list.size(), kMaxRank);
  std::vector<int64_t> values;
  for (size_t i = 0; ok && i < list.size(); i++) {
    ok = list[i].is_number_unsigned() && list[i].get<uint64_t>() <= uint64_t(std::numeric_limits<int64_t>::max());
    if (ok) values.push_back(list[i].get<int64_t>());
  }
  check(ok, "the {} of tensor '{}' of '{}' is not a list of whole numbers", what, tensor, file);
  return values;
}

const Json& member(const Json& object, const char* key) {
  static const Json none;
  auto found = object.find(key);
  return found == object.end() ? none : *found;
}

struct Entry {
  StoredTensor tensor;
  const StoredFormat* format;
  int64_t begin, end;  // from the end of the header
};

Entry read_entry(const std::string& name, const Json& info, const std::filesystem::path& path) {
  const std::string& file = path.native();
  check(info.is_object(), "the entry of tensor '{}' in '{}' is not a JSON object", name, file);
  Entry e;
  e.tensor.name = name;
  e.format = &format_of(member(info, "dtype"), name, file);
  e.tensor.format = e.format->name;
  e.tensor.shape = numbers(member(info, "shape"), "shape", name, file);
  auto offsets = numbers(member(info, "data_offsets"), "data_offsets", name, file);
  check(offsets.size() == 2 && offsets[0] <= offsets[1], "the data_offsets of tensor '{}' of '{}' are not a begin and an end", name, file);
  e.begin = offsets[0];
  e.end = offsets[1];
  size_t bytes = stored_bytes(*e.format, e.tensor, path);
  check(bytes == size_t(e.end - e.begin), "tensor '{}' of '{}' has {} bytes, but its shape {} in {} needs {}", name, file, e.end - e.begin,
        shape_string(e.tensor.shape), e.format->name, bytes);
  return e;
}

}  // namespace

bool SafetensorsFile::recognizes(std::span<const std::byte> bytes) {
  return bytes.size() > 8 && header_length(bytes) <= kMaxHeader && bytes[8] == std::byte('{');
}

SafetensorsFile::SafetensorsFile(MappedFile mapped) : file(std::move(mapped)) {
  const std::string& name = file.path().native();
  Json header = read_header(file.bytes(), name);
  std::vector<Entry> entries;
  for (auto& [key, info] : header.items()) {
    if (key == "__metadata__") {
      check(info.is_object(), "the __metadata__ of '{}' is not a JSON object", name);
      metadata = info;
    } else {
      entries.push_back(read_entry(key, info, file.path()));
    }
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });

  auto data = file.bytes().subspan(8 + header_length(file.bytes()));
  int64_t at = 0;
  for (Entry& e : entries) {
    StoredTensor& t = e.tensor;
    check(size_t(e.end) <= data.size(), "tensor '{}' of '{}' ends at data byte {}, but the file has only {}: it is broken or cut short",
          t.name, name, e.end, data.size());
    check(e.begin == at, "tensor '{}' of '{}' begins at data byte {}, but the one before it ends at {}", t.name, name, e.begin, at);
    at = e.end;
    t.bytes = data.subspan(size_t(e.begin), size_t(e.end - e.begin));
    if (reinterpret_cast<uintptr_t>(t.bytes.data()) % size_t(e.format->align) != 0 && !t.bytes.empty()) {
      Buffer& copy = realigned.emplace_back(t.bytes.size());
      std::memcpy(copy.data(), t.bytes.data(), t.bytes.size());
      t.bytes = {copy.data(), copy.size()};
    }
    tensors.push_back(std::move(t));
  }
  check(size_t(at) == data.size(), "'{}' has {} bytes of data, but its tensors take {}", name, data.size(), at);
}

}  // namespace mr
