#include "io/checkpoint.h"

#include <map>
#include <set>

#include "core/bounded_json.h"
#include "core/error.h"
#include "io/gguf.h"
#include "io/other_formats.h"
#include "io/safetensors.h"

namespace mr {

namespace fs = std::filesystem;

// Python writes bare Infinity and NaN, which are not JSON; newer writers use {"__float__": "Infinity"}.
static std::string with_named_floats(std::string_view text) {
  std::string out;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); i++) {
    if (text[i] == '"') quoted = !quoted;
    if (quoted && text[i] == '\\' && i + 1 < text.size()) out += text[i++];
    std::string_view word;
    if (!quoted)
      for (std::string_view w : {"-Infinity", "Infinity", "NaN"})
        if (text.substr(i).starts_with(w)) word = w;
    if (word.empty()) {
      out += text[i];
    } else {
      out += fmt::format(R"({{"__float__": "{}"}})", word);
      i += word.size() - 1;
    }
  }
  return out;
}

// A tokenizer of 262,144 tokens has 35 MB and a million and a half values.
constexpr size_t kMaxJsonFile = size_t(256) << 20;
constexpr JsonLimits kFileLimits{.depth = 64, .keys = 1 << 22, .values = 1 << 24, .bytes = size_t(1) << 30};
// Configurations are copied while they are read; the largest name the added tokens of a tokenizer, in a megabyte.
constexpr JsonLimits kConfigLimits{.depth = 64, .keys = 1 << 18, .values = 1 << 20, .bytes = size_t(64) << 20};

static Json read_within(const fs::path& path, const JsonLimits& limits) {
  MappedFile file(path);
  std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  check(text.size() <= kMaxJsonFile, "'{}' has {} bytes, but JSON files of at most {} are read", path.native(), text.size(), kMaxJsonFile);
  std::string what = sentence("'{}'", path.native());
  try {
    return parse_json<Json>(text, what, limits);
  } catch (const Error&) {
    std::string named = with_named_floats(text);
    if (named.size() == text.size()) throw;
    return parse_json<Json>(named, what, limits);
  }
}

Json read_json(const fs::path& path) { return read_within(path, kFileLimits); }

Json read_json_object(const fs::path& path) {
  Json config = read_within(path, kConfigLimits);
  check(config.is_object(), "'{}' is not a JSON object", path.native());
  return config;
}

std::unique_ptr<Checkpoint> Checkpoint::open(const fs::path& path, Want want) {
  std::unique_ptr<Checkpoint> c(new Checkpoint(path));
  std::error_code ignored;
  if (fs::is_directory(path, ignored))
    c->open_directory(want);
  else
    c->open_file();
  c->index_names();
  return c;
}

void Checkpoint::open_file() {
  MappedFile file(path_);
  if (GgufFile::recognizes(file.bytes())) return open_gguf(std::move(file));
  const bool known = SafetensorsFile::recognizes(file.bytes());
  if (std::string what = known ? "" : other_format(file.bytes(), path_); !what.empty())
    throw Error(sentence("'{}' ", path_.native()) + what);
  if (path_.extension() == ".gguf") return open_gguf(std::move(file));  // throws with the reason
  check(known || path_.extension() == ".safetensors", "'{}' is neither a GGUF nor a safetensors file", path_.native());
  open_safetensors(std::move(file));
  std::error_code ignored;
  fs::path config = path_.parent_path() / "config.json";
  if (fs::exists(config, ignored)) config_ = read_json_object(config);
  quantization_ = quantization_in(config_, path_.parent_path());
}

void Checkpoint::open_directory(Want want) {
  std::error_code ignored;
  const bool has_config = fs::exists(path_ / "config.json", ignored);
  fs::path single = path_ / "model.safetensors", index = path_ / "model.safetensors.index.json";
  const bool has_tensors = fs::exists(single, ignored) || fs::exists(index, ignored);
  if (!has_config || (want == Want::tensors && !has_tensors)) {
    if (std::optional<fs::path> gguf = gguf_in(path_)) {
      path_ = *gguf;
      return open_file();
    }
    if (std::string what = other_format_in(path_); !what.empty()) throw Error(sentence("the directory '{}' ", path_.native()) + what);
  }
  check(has_config, "the directory '{}' has no config.json", path_.native());
  config_ = read_json_object(path_ / "config.json");
  quantization_ = quantization_in(config_, path_);
  if (want == Want::configuration) return;
  check(has_tensors, "the directory '{}' has neither model.safetensors nor model.safetensors.index.json", path_.native());
  if (fs::exists(single, ignored)) return open_safetensors(MappedFile(single));
  open_shards(index);
}

// A shard must lie inside the directory: an untrusted index must not open other files.
static void check_shard_name(const std::string& name, const fs::path& index) {
  fs::path path(name);
  bool inside = !name.empty() && path.is_relative() && name.find('\0') == std::string::npos;
  for (const fs::path& part : path) inside = inside && part != "..";
  check(inside, "'{}' names the shard '{}', which does not lie in its directory", index.native(), name);
}

void Checkpoint::open_shards(const fs::path& index) {
  Json root = read_json(index);
  auto map = root.is_object() ? root.find("weight_map") : root.end();
  check(map != root.end() && map->is_object(), "'{}' has no weight_map", index.native());
  std::map<std::string, std::vector<std::string>> shards;  // shard -> its tensors
  for (auto& [tensor, shard] : map->items()) {
    check(shard.is_string(), "the weight_map of '{}' names no file for the tensor '{}'", index.native(), tensor);
    shards[shard.get<std::string>()].push_back(tensor);
  }
  for (auto& [shard, expected] : shards) {
    check_shard_name(shard, index);
    std::error_code ignored;
    check(fs::exists(path_ / shard, ignored), "the shard '{}' that '{}' names is missing", shard, index.native());
    size_t before = tensors_.size();
    open_safetensors(MappedFile(path_ / shard));
    std::set<std::string_view> held;
    for (size_t i = before; i < tensors_.size(); i++) held.insert(tensors_[i].name);
    for (const std::string& name : expected)
      check(held.contains(name), "the shard '{}' has no tensor '{}', though '{}' says so", (path_ / shard).native(), name, index.native());
  }
}

void Checkpoint::open_safetensors(MappedFile file) {
  if (std::string what = SafetensorsFile::recognizes(file.bytes()) ? "" : other_format(file.bytes(), file.path()); !what.empty())
    throw Error(sentence("'{}' ", file.path().native()) + what);
  SafetensorsFile s(std::move(file));
  for (Buffer& copy : s.realigned) copies_.push_back(std::move(copy));
  add(std::move(s.file), std::move(s.tensors));
}

// From "x-00002-of-00005.gguf" to "x-00003-of-00005.gguf".
static fs::path gguf_part(const fs::path& one, size_t its_number, size_t part, size_t parts) {
  std::string name = one.filename().native(), tail = fmt::format("-{:05}-of-{:05}.gguf", its_number, parts);
  check(name.ends_with(tail), "'{}' is part {} of {}, so its name must end in '{}'", one.native(), its_number, parts, tail);
  name.resize(name.size() - tail.size());
  return one.parent_path() / (name + fmt::format("-{:05}-of-{:05}.gguf", part, parts));
}

void Checkpoint::open_gguf(MappedFile file) {
  GgufFile first(std::move(file));
  auto number = [&](const char* key, uint64_t missing) {
    auto found = first.metadata.find(key);
    return found != first.metadata.end() && found->is_number_unsigned() ? found->get<uint64_t>() : missing;
  };
  const uint64_t parts = number("split.count", 1), part = number("split.no", 0);
  check(parts <= 99999 && part < std::max<uint64_t>(parts, 1), "'{}' says that it is part {} of {}", path_.native(), part + 1, parts);
  if (part > 0) {  // the first has the metadata
    path_ = gguf_part(path_, part + 1, 1, parts);
    GgufFile named(MappedFile{path_});
    first = std::move(named);
    check(number("split.no", 0) == 0, "'{}' is not the first part, though its name says so", path_.native());
  }
  is_gguf_ = true;
  config_ = std::move(first.metadata);
  add(std::move(first.file), std::move(first.tensors));
  for (size_t i = 2; i <= parts; i++) {
    GgufFile next(MappedFile(gguf_part(path_, 1, i, parts)));
    add(std::move(next.file), std::move(next.tensors));
  }
}

void Checkpoint::add(MappedFile file, std::vector<StoredTensor> tensors) {
  for (StoredTensor& t : tensors) {
    t.file = int(files_.size());
    tensors_.push_back(std::move(t));
  }
  files_.push_back(std::move(file));
}

void Checkpoint::index_names() {
  for (const StoredTensor& t : tensors_) {
    auto [other, fresh] = by_name_.emplace(t.name, &t);
    check(fresh, "the tensor '{}' is both in '{}' and in '{}'", t.name, file_of(*other->second).native(), file_of(t).native());
  }
}

const StoredTensor* Checkpoint::find(std::string_view name) const {
  auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

const StoredTensor& Checkpoint::get(std::string_view name) const {
  const StoredTensor* t = find(name);
  check(t, "'{}' has no tensor '{}'", path_.native(), name);
  return *t;
}

void Checkpoint::drop(const StoredTensor& tensor) const {
  const MappedFile& file = files_[size_t(tensor.file)];
  const std::byte *begin = file.bytes().data(), *end = begin + file.bytes().size();
  std::less<> before;
  if (before(tensor.bytes.data(), begin) || !before(tensor.bytes.data(), end)) return;  // a copy
  file.drop(size_t(tensor.bytes.data() - begin), tensor.bytes.size());
}

}  // namespace mr
