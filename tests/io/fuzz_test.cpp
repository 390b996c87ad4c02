// Broken files: whatever the bytes are, opening either works and every tensor lies inside its file, or throws mr::Error.
// Seeds are fixed, so a failure repeats.
#include <sys/mman.h>

#include <random>

#include "io/files.h"
#include "io/gguf.h"
#include "io/safetensors.h"

namespace mr::test {

namespace {

// One file in memory that holds one input after the other.
class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("fuzz", MFD_CLOEXEC)), path_(fmt::format("/proc/self/fd/{}", fd_)) { EXPECT_GE(fd_, 0); }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;

  // True when the bytes were accepted.
  template <class File>
  bool opens(const std::string& bytes) {
    EXPECT_EQ(ftruncate(fd_, 0), 0);
    EXPECT_EQ(pwrite(fd_, bytes.data(), bytes.size(), 0), ssize_t(bytes.size()));
    try {
      File file{MappedFile(path_)};
      for (const StoredTensor& t : file.tensors) EXPECT_TRUE(lies_inside(file, t)) << t.name;
      return true;
    } catch (const Error& e) {
      EXPECT_STRNE(e.what(), "");
      return false;
    }
  }

 private:
  template <class File>
  static bool lies_inside(const File& file, const StoredTensor& t) {
    auto all = file.file.bytes();
    if constexpr (requires { file.realigned; })
      for (const Buffer& copy : file.realigned)
        if (t.bytes.data() == copy.data() && t.bytes.size() == copy.size()) return true;
    return t.bytes.empty() || (t.bytes.data() >= all.data() && t.bytes.data() + t.bytes.size() <= all.data() + all.size());
  }

  int fd_;
  fs::path path_;
};

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  std::string operator()(std::string s) {
    for (size_t n = 1 + pick(3); n > 0 && !s.empty(); n--) mutate(s);
    return s;
  }

 private:
  size_t pick(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }

  void mutate(std::string& s) {
    size_t at = pick(s.size()), length = std::min(s.size() - at, 1 + pick(24));
    switch (pick(6)) {
      case 0:
        s[at] = char(s[at] ^ (1 << pick(8)));
        break;
      case 1:
        s.erase(at, length);
        break;
      case 2:
        s.insert(pick(s.size()), s.substr(at, length));
        break;  // duplicate a piece elsewhere
      case 3:
        overwrite(s, at, uint32_t(number(s.size())));
        break;
      case 4:
        overwrite(s, at, number(s.size()));
        break;
      case 5:
        word(s, at);
        break;
    }
  }

  template <class T>
  void overwrite(std::string& s, size_t at, T value) {
    if (at + sizeof(T) <= s.size()) std::memcpy(s.data() + at, &value, sizeof(T));
  }

  uint64_t number(uint64_t size) {
    const uint64_t numbers[] = {0,        1,        2,   9,          13,         255,        size,       size - 1,
                                size + 1, 1u << 31, ~0u, 1ull << 32, 1ull << 60, 1ull << 61, 1ull << 63, ~0ull};
    return numbers[pick(std::size(numbers))];
  }

  // Replaces a number or a name of a JSON header.
  void word(std::string& s, size_t at) {
    const char* words[] = {
        "-1", "0",  "1e9",     "1.5",    "18446744073709551615", "9223372036854775807", "99999999999999999999999", "null", "true", "[]",
        "{}", "[[", "\"F16\"", "\"U8\"", "\"__metadata__\"",     "\"\\u0000\""};
    size_t begin = s.find_first_of("0123456789\"", at);
    if (begin == std::string::npos) return;
    size_t end = s[begin] == '"' ? s.find('"', begin + 1) : s.find_first_not_of("0123456789", begin) - 1;
    if (end >= s.size()) return;
    std::string with = words[pick(std::size(words))];
    s.replace(begin, end + 1 - begin, with);
    if (pick(2) && s.size() >= 8) overwrite(s, 0, uint64_t(s.rfind('}') - 7));  // mend the header's length
  }

  std::mt19937_64 random_;
};

template <class File>
void fuzz(const std::string& name, int rounds) {
  MemoryFile file;
  std::string good = read_file(fixture(name));
  ASSERT_TRUE(file.template opens<File>(good));
  int accepted = 0;
  for (int seed = 0; seed < rounds; seed++) {
    SCOPED_TRACE(fmt::format("{} seed {}", name, seed));
    accepted += file.template opens<File>(Mutator(uint64_t(seed))(good));
  }
  EXPECT_GT(accepted, 0);  // else the mutations never get past the first checks
  EXPECT_LT(accepted, rounds);
}

constexpr int kRounds = 10000;

}  // namespace

TEST(Fuzz, EveryTruncationOfAGgufFileIsRefused) {
  MemoryFile file;
  std::string good = read_file(fixture("types.gguf"));
  size_t padding = 64 - 28;  // after the last tensor, 7 floats
  for (size_t n = 1; n < good.size(); n++) EXPECT_EQ(file.opens<GgufFile>(good.substr(0, n)), n >= good.size() - padding) << n;
}

TEST(Fuzz, EveryTruncationOfASafetensorsFileIsRefused) {
  MemoryFile file;
  for (std::string shard : {"sharded/model-00001-of-00002.safetensors", "sharded/model-00002-of-00002.safetensors"}) {
    std::string good = read_file(fixture(shard));
    for (size_t n = 1; n < good.size(); n++) EXPECT_FALSE(file.opens<SafetensorsFile>(good.substr(0, n))) << n;
  }
}

TEST(Fuzz, InflatedNumbersAnywhereInAGgufHeader) {
  MemoryFile file;
  std::string good = read_file(fixture("types.gguf"));
  for (uint64_t value : {uint64_t(1) << 60, ~uint64_t(0), uint64_t(1) << 31})
    for (size_t at = 0; at + 8 <= good.size(); at++) {
      std::string bad = good;
      std::memcpy(bad.data() + at, &value, 8);
      file.opens<GgufFile>(bad);
    }
}

TEST(Fuzz, EveryBitOfASafetensorsHeader) {
  MemoryFile file;
  std::string good = read_file(fixture("sharded/model-00002-of-00002.safetensors"));
  for (size_t bit = 0; bit < 8 * good.size(); bit++) {
    std::string bad = good;
    bad[bit / 8] = char(bad[bit / 8] ^ (1 << bit % 8));
    file.opens<SafetensorsFile>(bad);
  }
}

TEST(Fuzz, MutatedGguf) { fuzz<GgufFile>("types.gguf", kRounds); }
TEST(Fuzz, MutatedSafetensors) { fuzz<SafetensorsFile>("sharded/model-00001-of-00002.safetensors", kRounds); }
TEST(Fuzz, MutatedMixedSafetensors) { fuzz<SafetensorsFile>("sharded/model-00002-of-00002.safetensors", kRounds); }

}  // namespace mr::test
