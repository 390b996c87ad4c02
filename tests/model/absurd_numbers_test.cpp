// Every number of every fixture's configuration, one at a time, made absurd: a model that everything may compute with, or one sentence.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <ctime>
#include <fstream>
#include <limits>

#include "core/error.h"
#include "fuzz/gguf_layout.h"
#include "io/files.h"
#include "model/arch/arch.h"
#include "model/fixtures.h"
#include "model/model.h"
#include "model/rope.h"

namespace mr {
namespace {

namespace fs = std::filesystem;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double most_seconds = 60;
#else
constexpr double most_seconds = 3;
#endif

double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

void compute_with(const ModelSpec& spec, const std::string& what) {
  EXPECT_GT(parameters(spec), 0) << what;
  EXPECT_GT(active_parameters(spec), 0) << what;
  for (const RopeSpec& rope : spec.ropes) {
    const RopeTable table = make_rope(rope);
    for (float f : table.inv_freq) EXPECT_TRUE(std::isfinite(f)) << what;
    EXPECT_TRUE(std::isfinite(table.scale) && table.scale > 0) << what;
  }
  const StateLayout layout = layout_of(spec, {DType::f32});
  EXPECT_GE(layout.bytes_per_token(), 0) << what;
  EXPECT_GE(layout.bytes_per_sequence(), 0) << what;
  EXPECT_GT(layout.bytes_per_token() + layout.bytes_per_sequence(), 0) << what;
  EXPECT_GT(spec.max_context, 0) << what;
}

// Whether it was refused.
template <class Read>
bool refused(Read read, const std::string& what) {
  const double begin = cpu_seconds();
  std::string said;
  try {
    read();
  } catch (const Error& e) {
    said = e.what();
    EXPECT_FALSE(said.empty()) << what;
    EXPECT_LT(said.size(), 2000u) << what;
    EXPECT_EQ(said.find_first_of("\n\r\x1b"), said.npos) << what << ": " << said;
  }
  EXPECT_LT(cpu_seconds() - begin, most_seconds) << what;
  return !said.empty();
}

std::vector<Json> absurd(const Json& old) {
  const double infinity = std::numeric_limits<double>::infinity();
  std::vector<Json> out = {0, -1, 1, 3, 4097, 1 << 20, (1 << 24) + 1, INT32_MAX - 1, INT32_MAX, int64_t(INT32_MAX) + 1, INT64_MAX, INT64_MIN};
  for (double x : {1e-30, 0.5, 1e10, 1e300, -1e300, std::nan(""), infinity, -infinity}) out.push_back(x);
  for (const Json& other : {Json(UINT64_MAX), Json("1"), Json(), Json(true), Json::array(), Json::array({1, -1}), Json::object()})
    out.push_back(other);
  if (old.is_number_integer()) {
    const int64_t n = old.get<int64_t>();
    for (int64_t near : {n + 1, n - 1, n * 2, n * 1024}) out.push_back(near);
  }
  return out;
}

// Pointers to all numbers; of a list the first ones.
void add_numbers(const Json& json, const Json::json_pointer& at, std::vector<Json::json_pointer>& out) {
  constexpr size_t of_a_list = 2;
  if (json.is_number()) out.push_back(at);
  if (json.is_object())
    for (const auto& [key, value] : json.items()) add_numbers(value, at / key, out);
  if (json.is_array())
    for (size_t i = 0; i < std::min(json.size(), of_a_list); i++) add_numbers(json[i], at / i, out);
}

TEST(AbsurdNumbers, InEveryConfiguration) {
  auto backend = make_ref_backend();
  if (fs::exists("/dev/shm")) setenv("TMPDIR", "/dev/shm", 0);  // thousands of files, one after the other
  test::TempDir dir;
  int n = 0, n_refused = 0, n_families = 0;
  for (const fs::directory_entry& folder : fs::directory_iterator(fs::path(MR_FIXTURES) / "models")) {
    if (!fs::exists(folder.path() / "config.json")) continue;
    const Json config = read_json_object(folder.path() / "config.json");
    std::vector<Json::json_pointer> places;
    add_numbers(config, Json::json_pointer(), places);
    ASSERT_GE(places.size(), 5u) << folder;
    n_families++;
    for (const auto& place : places)
      for (const Json& value : absurd(config[place])) {
        Json changed = config;
        changed[place] = value;
        const std::string what = folder.path().filename().string() + ": " + place.to_string() + " = " + value.dump();
        n++;
        n_refused += refused(
            [&] {
              const ModelSpec spec = spec_from(changed, "config.json");
              compute_with(spec, what);
              if (spec.layers.size() > 16) return;  // thousands of layers take milliseconds, and are all alike
              test::write_file(dir / "config.json", changed.dump(-1, ' ', false, Json::error_handler_t::replace));
              auto files = Checkpoint::open(dir.path(), Checkpoint::Want::configuration);
              auto model = Model::outline(*files, *backend, {});
              EXPECT_GT(model->weight_bytes(), 0) << what;
              EXPECT_GT(model->program().workspace(512, 16), 0) << what;
            },
            what);
      }
  }
  EXPECT_GE(n_families, 20);
  EXPECT_GT(n_refused, n / 2);
}

// A file in memory: there are thousands of changes, each of a few bytes.
class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("gguf", MFD_CLOEXEC)), path_("/proc/self/fd/" + std::to_string(fd_)) {}
  ~MemoryFile() { close(fd_); }
  void hold(std::string_view bytes) {
    ASSERT_EQ(ftruncate(fd_, 0), 0);
    put(0, bytes);
  }
  void put(size_t at, std::string_view bytes) { ASSERT_EQ(pwrite(fd_, bytes.data(), bytes.size(), off_t(at)), ssize_t(bytes.size())); }
  const fs::path& path() const { return path_; }

 private:
  int fd_;
  fs::path path_;
};

// Of the metadata, of tensors' shapes, types and offsets.
TEST(AbsurdNumbers, InEveryGgufFile) {
  using Kind = fuzz::GgufLayout::Part::Kind;
  auto backend = make_ref_backend();
  MemoryFile memory;
  int n_files = 0, n = 0, n_refused = 0;
  for (const fs::path& path : test::model_fixtures()) {
    if (path.extension() != ".gguf") continue;
    n_files++;
    const std::string file = test::read_file(path);
    memory.hold(file);
    const fuzz::GgufLayout layout(file);
    size_t n_near = 0;  // numbers one after the other: a list
    for (size_t i = 0; i < layout.parts.size(); i++) {
      const auto& part = layout.parts[i];
      const size_t bytes = part.end - part.begin;
      n_near = part.kind == Kind::number && i > 0 && layout.parts[i - 1].end == part.begin ? n_near + 1 : 0;
      const bool is_of_a_tensor = part.kind == Kind::dimension || part.kind == Kind::offset || part.kind == Kind::tensor_type;
      if (!(part.kind == Kind::number || part.kind == Kind::count || part.kind == Kind::length || is_of_a_tensor) || n_near > 2) continue;
      if (is_of_a_tensor && part.begin > layout.tensors[std::min<size_t>(4, layout.tensors.size() - 1)].end) continue;
      const uint64_t old = layout.peek(part.begin, bytes);
      const float infinity = std::numeric_limits<float>::infinity(), huge = 3e38f, tiny = 1e-40f;
      std::vector<uint64_t> values = {0,          1,          old + 1,    old - 1,      2 * old,           1024 * old,
                                      0x7fffffff, 0x80000000, 0xffffffff, ~uint64_t{0}, uint64_t{1} << 62, 1 << 20};
      for (float f : {infinity, -infinity, huge, -huge, tiny, std::nanf(""), -1.0f, 0.5f}) values.push_back(std::bit_cast<uint32_t>(f));
      for (uint64_t value : values) {
        memory.put(part.begin, {reinterpret_cast<const char*>(&value), bytes});
        const std::string what = fmt::format("{}: byte {} = {:#x}", path.string(), part.begin, value);
        n++;
        n_refused += refused(
            [&] {
              auto files = Checkpoint::open(memory.path());
              const ModelSpec spec = describe(*files).spec;
              compute_with(spec, what);
              if (spec.layers.size() <= 16) {
                EXPECT_GT(Model::outline(*files, *backend, {})->weight_bytes(), 0) << what;
              }
            },
            what);
      }
      memory.put(part.begin, std::string_view(file).substr(part.begin, bytes));
    }
  }
  EXPECT_GE(n_files, 20);
  EXPECT_GT(n_refused, n / 4);
}

}  // namespace
}  // namespace mr
