#include "io/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <unordered_set>

#include "core/error.h"

namespace mr {

static_assert(std::endian::native == std::endian::little, "GGUF numbers are read as they lie in memory");

namespace {

constexpr int kMaxArrayDepth = 8;
constexpr size_t kMaxName = 65535;      // bytes of a key, by the specification, or of a tensor's name
constexpr size_t kMaxEntries = 1 << 20;  // metadata entries, and tensors
// Memory of the whole metadata. A vocabulary of 262,144 tokens with its merges takes 70 MB; sparse files can be larger than any memory.
constexpr size_t kMaxMemory = size_t(256) << 20;
constexpr size_t kHeapBytes = 48;  // of a string or list on the heap, with malloc's overhead

enum class ValueType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

// A cursor over the header. Every length in the file is checked against the remaining bytes before it is used.
class Reader {
 public:
  explicit Reader(const MappedFile& file) : bytes_(file.bytes()), name_(file.path().native()) {}

  size_t position() const { return at_; }
  const std::string& file() const { return name_; }

  template <class T>
  T number(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof(T), what), sizeof(T));
    return value;
  }

  std::string string(std::string_view what) {
    uint64_t length = number<uint64_t>(what);
    const std::byte* begin = take(length, what);
    charge(kHeapBytes + length);
    return std::string(reinterpret_cast<const char*>(begin), length);
  }

  std::string name(std::string_view what) {
    std::string text = string(what);
    check(text.size() <= kMaxName, "'{}' has a {} of {} bytes: at most {} are possible", name_, what, text.size(), kMaxName);
    return text;
  }

  // A count of items that take at least `least` bytes each.
  size_t count(std::string_view what, size_t least) {
    uint64_t n = number<uint64_t>(what);
    check(n <= (bytes_.size() - at_) / least, "'{}' is broken or cut short: its {} is {}, but only {} bytes follow", name_, what, n,
          bytes_.size() - at_);
    return size_t(n);
  }

  size_t entries(std::string_view what, size_t least) {
    size_t n = count(what, least);
    check(n <= kMaxEntries, "the {} of '{}' is {}: at most {} are possible", what, name_, n, kMaxEntries);
    return n;
  }

  Json value(ValueType type, const std::string& key, int depth = 0) {
    switch (type) {
      case ValueType::u8:
        return number<uint8_t>(key);
      case ValueType::i8:
        return number<int8_t>(key);
      case ValueType::u16:
        return number<uint16_t>(key);
      case ValueType::i16:
        return number<int16_t>(key);
      case ValueType::u32:
        return number<uint32_t>(key);
      case ValueType::i32:
        return number<int32_t>(key);
      case ValueType::f32:
        return number<float>(key);
      case ValueType::boolean:
        return number<uint8_t>(key) != 0;
      case ValueType::string:
        return string(key);
      case ValueType::array:
        return array(key, depth);
      case ValueType::u64:
        return number<uint64_t>(key);
      case ValueType::i64:
        return number<int64_t>(key);
      case ValueType::f64:
        return number<double>(key);
    }
    fail("metadata '{}' of '{}' has the unknown value type {}", key, name_, uint32_t(type));
  }

 private:
  // Before it is allocated.
  void charge(size_t bytes) {
    check(bytes <= kMaxMemory - memory_, "the header of '{}' takes more than {} bytes of memory", name_, kMaxMemory);
    memory_ += bytes;
  }

  const std::byte* take(uint64_t n, std::string_view what) {
    check(n <= bytes_.size() - at_, "'{}' is broken or cut short: {} at byte {} needs {} bytes, but the file ends at {}", name_, what, at_,
          n, bytes_.size());
    const std::byte* begin = bytes_.data() + at_;
    at_ += size_t(n);
    return begin;
  }

  static size_t least_bytes(ValueType type) {
    switch (type) {
      case ValueType::u16:
      case ValueType::i16:
        return 2;
      case ValueType::u32:
      case ValueType::i32:
      case ValueType::f32:
        return 4;
      case ValueType::string:
      case ValueType::u64:
      case ValueType::i64:
      case ValueType::f64:
        return 8;
      case ValueType::array:
        return 12;
      default:
        return 1;
    }
  }

  Json array(const std::string& key, int depth) {
    check(depth < kMaxArrayDepth, "metadata '{}' of '{}' nests arrays more than {} deep", key, name_, kMaxArrayDepth);
    auto type = ValueType(number<uint32_t>(key));
    size_t n = count(key, least_bytes(type));
    check(n <= kMaxMemory / sizeof(Json), "metadata '{}' of '{}' has {} entries, more than any model has", key, name_, n);
    charge(kHeapBytes + n * sizeof(Json));
    Json::array_t values;
    values.reserve(n);
    for (size_t i = 0; i < n; i++) values.push_back(value(type, key, depth + 1));
    return values;
  }

  std::span<const std::byte> bytes_;
  std::string name_;
  size_t at_ = 0, memory_ = 0;
};

const StoredFormat& format_of(uint32_t type, const std::string& tensor, const std::string& file) {
  for (const StoredFormat& format : stored_formats())
    if (format.gguf >= 0 && uint32_t(format.gguf) == type) return format;
  fail("tensor '{}' of '{}' has the unknown type number {}", tensor, file, type);
}

int read_version(Reader& in) {
  in.number<uint32_t>("magic");
  uint32_t version = in.number<uint32_t>("version");
  check((version & 0xffff) != 0, "'{}' is a big-endian GGUF file: only little-endian ones can be read", in.file());
  check(version == 2 || version == 3, "'{}' is a GGUF file of version {}: only versions 2 and 3 can be read", in.file(), version);
  return int(version);
}

void read_metadata(Reader& in, size_t n, GgufFile& to) {
  for (size_t i = 0; i < n; i++) {
    std::string key = in.name("metadata key");
    const size_t begin = in.position();
    auto type = ValueType(in.number<uint32_t>(key));
    bool fresh = to.metadata.emplace(key, in.value(type, key)).second;
    to.entries.emplace_back(key, to.file.bytes().subspan(begin, in.position() - begin));
    check(fresh, "'{}' has the metadata key '{}' twice", in.file(), key);
  }
}

uint64_t alignment_of(const Json& metadata, const std::string& file) {
  auto found = metadata.find("general.alignment");
  if (found == metadata.end()) return 32;
  check(found->is_number_unsigned(), "general.alignment of '{}' is not an unsigned number", file);
  uint64_t alignment = found->get<uint64_t>();
  bool ok = std::has_single_bit(alignment) && alignment >= 8 && alignment <= std::numeric_limits<uint32_t>::max();
  check(ok, "general.alignment of '{}' is {}, not a power of two of at least 8", file, alignment);
  return alignment;
}

struct TensorInfo {
  StoredTensor tensor;
  const StoredFormat* format;
  uint64_t offset;  // from the start of the tensor data
};

TensorInfo read_tensor_info(Reader& in) {
  TensorInfo info;
  StoredTensor& t = info.tensor;
  t.name = in.name("tensor name");
  uint32_t rank = in.number<uint32_t>(t.name);
  check(rank <= 4, "tensor '{}' of '{}' has {} dimensions: at most 4 are possible", t.name, in.file(), rank);
  for (uint32_t i = 0; i < rank; i++) {
    uint64_t size = in.number<uint64_t>(t.name);
    check(size <= uint64_t(std::numeric_limits<int64_t>::max()), "tensor '{}' of '{}' has a dimension of {}", t.name, in.file(), size);
    t.shape.push_back(int64_t(size));
  }
  std::reverse(t.shape.begin(), t.shape.end());
  info.format = &format_of(in.number<uint32_t>(t.name), t.name, in.file());
  t.format = info.format->name;
  info.offset = in.number<uint64_t>(t.name);
  return info;
}

}  // namespace

bool GgufFile::recognizes(std::span<const std::byte> bytes) { return bytes.size() >= 4 && !std::memcmp(bytes.data(), "GGUF", 4); }

GgufFile::GgufFile(MappedFile mapped) : file(std::move(mapped)) {
  Reader in(file);
  check(recognizes(file.bytes()), "'{}' is not a GGUF file: it does not begin with the letters GGUF", in.file());
  version = read_version(in);
  size_t n_tensors = in.entries("number of tensors", 24);
  size_t n_metadata = in.entries("number of metadata entries", 13);
  read_metadata(in, n_metadata, *this);
  uint64_t alignment = alignment_of(metadata, in.file());

  std::vector<TensorInfo> infos;
  infos.reserve(n_tensors);
  std::unordered_set<std::string_view> names;
  for (size_t i = 0; i < n_tensors; i++) {
    infos.push_back(read_tensor_info(in));
    const std::string& name = infos.back().tensor.name;
    check(names.insert(name).second, "'{}' has the tensor '{}' twice", in.file(), name);
  }

  uint64_t data = (in.position() + alignment - 1) / alignment * alignment;
  for (TensorInfo& info : infos) {
    StoredTensor& t = info.tensor;
    check(info.offset % alignment == 0, "tensor '{}' of '{}' begins at data byte {}, not at a multiple of {}", t.name, in.file(),
          info.offset, alignment);
    size_t bytes = stored_bytes(*info.format, t, file.path()), size = file.bytes().size();
    bool inside = data <= size && info.offset <= size - data && bytes <= size - data - info.offset;
    check(inside, "tensor '{}' of '{}' has {} bytes from data byte {}, but the file has only {} bytes of data: it is broken or cut short",
          t.name, in.file(), bytes, info.offset, data <= size ? size - data : 0);
    t.bytes = file.bytes().subspan(data + info.offset, bytes);
    tensors.push_back(std::move(t));
  }
}

}  // namespace mr
