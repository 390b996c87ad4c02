#include "convert/convert.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "convert/gguf_metadata.h"
#include "convert/tensors.h"
#include "convert/tokenizer.h"
#include "core/amounts.h"
#include "core/error.h"
#include "io/file_writer.h"
#include "io/gguf.h"

namespace mr {

namespace fs = std::filesystem;

namespace {

// A folder beside the target, where everything is written first; gone at the end, however that comes.
class Workshop {
 public:
  explicit Workshop(const fs::path& target) {
    fs::path parent = fs::absolute(target).parent_path();
    path = parent / fmt::format(".{}.partial-{}", target.filename().native(), ::getpid());
    std::error_code failed;
    fs::create_directory(path, failed);
    check(!failed, "cannot write in '{}': {}", parent.native(), failed.message());
  }
  ~Workshop() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  Workshop(const Workshop&) = delete;
  fs::path path;
};

void move_there(const fs::path& from, const fs::path& to) {
  std::error_code failed;
  fs::rename(from, to, failed);
  check(!failed, "cannot write '{}': {}", to.native(), failed.message());
}

void write_text(const fs::path& path, const std::string& text) {
  FileWriter out(path);
  out.write(text);
  out.close();
}

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

const Json& language_config(const Json& config) {
  return config.contains("text_config") && config["text_config"].is_object() ? config["text_config"] : config;
}

class Converter {
 public:
  Converter(const fs::path& from, const fs::path& to, const ConvertOptions& options)
      : to_(to),
        options_(options),
        files_(Checkpoint::open(from)),
        source_(describe(*files_)),
        to_gguf_(to.extension() == ".gguf"),
        pool_(std::max(options.threads, 1)) {
    check(files_->quantization().empty(), "'{}' is quantized ({}): only float models and GGUF files are converted", from.native(),
          files_->quantization().value("quant_method", "by its configuration"));
    if (options.format.empty()) return;
    formats_.emplace(options.format, source_.spec);
    const Codec* codec = find_codec(options.format);
    check(to_gguf_ || (codec && codec->block == 1),
          "safetensors hold f32, f16 or bf16, not {}: give the output a name that ends in .gguf, or another --format", options.format);
  }

  void run() {
    check_target(to_);
    Workshop workshop(to_);
    const Side from{source_.names, source_.spec, files_->is_gguf()};
    if (to_gguf_)
      write_gguf_file(workshop.path, from);
    else
      write_directory(workshop.path, from);
  }

 private:
  // That a file or directory of this name may be written: it is not of the source, and replaces only what it may replace.
  void check_target(const fs::path& to) const {
    std::error_code ignored;
    const fs::file_status status = fs::status(to, ignored);
    if (!fs::exists(status)) return;
    for (const StoredTensor& t : files_->tensors())
      check(!fs::equivalent(files_->file_of(t), to, ignored) && !fs::equivalent(files_->file_of(t).parent_path(), to, ignored),
            "'{}' is the model itself: give the output another name", to.native());
    check(options_.force, "'{}' exists: --force replaces it", to.native());
    const bool model = to_gguf_ ? fs::is_regular_file(status)
                                : fs::is_directory(status) && (fs::is_empty(to, ignored) || fs::exists(to / "config.json", ignored));
    check(model, "'{}' exists and is no {}: it is not replaced", to.native(), to_gguf_ ? "file" : "directory of a model");
  }

  TensorData data_of(const std::vector<TensorJob>& jobs) {
    int64_t total = 0;
    for (const TensorJob& job : jobs) total += job.head.bytes;
    std::error_code ignored;
    const fs::space_info space = fs::space(fs::absolute(to_).parent_path(), ignored);
    check(ignored || int64_t(space.available) > total, "'{}' needs {}, but its disk has only {} left", to_.native(), bytes_text(total),
          bytes_text(int64_t(space.available)));
    return [this, &jobs, total, done = std::make_shared<int64_t>(0)](size_t i, const auto& write) {
      write_tensor(jobs[i], *files_, pool_, [&](std::span<const std::byte> bytes) {
        write(bytes);
        *done += int64_t(bytes.size());
        if (options_.progress) options_.progress(*done, total);
      });
    };
  }

  static std::vector<TensorHead> heads_of(const std::vector<TensorJob>& jobs) {
    std::vector<TensorHead> heads;
    for (const TensorJob& job : jobs) heads.push_back(job.head);
    return heads;
  }

  void write_gguf_file(const fs::path& workshop, const Side& from) {
    GgufMetadata metadata;
    ModelSpec wanted = source_.spec;
    Side to{source_.names, source_.spec, true};
    if (files_->is_gguf()) {
      metadata = stored_metadata();
    } else {
      const GgufTarget target = gguf_target(source_.spec);
      wanted = as_read_from_gguf(source_.spec);
      to = {target.arch->gguf.names(), wanted, true};
      metadata = gguf_metadata(source_.spec, Config(language_config(files_->config()), "config.json"), target);
      add_names_and_tokens(metadata);
    }
    std::vector<TensorJob> jobs = plan_tensors(*files_, from, to, formats_ ? &*formats_ : nullptr, options_.requantize);
    if (!files_->is_gguf())
      for (auto& [name, values] : rope_tensors(source_.spec)) {
        TensorJob job;
        job.head = tensor_head(name, "f32", {int64_t(values.size())});
        job.values = values;
        jobs.push_back(std::move(job));
      }
    const std::vector<TensorHead> heads = heads_of(jobs);
    for (const fs::path& part : gguf_parts(to_, shards_of(heads, options_.shard_bytes).size())) check_target(part);
    const std::vector<fs::path> written =
        write_gguf(workshop / to_.filename(), metadata, heads, options_.shard_bytes, data_of(jobs));
    check_same_model(wanted, describe(*Checkpoint::open(written[0])).spec, "a GGUF file");
    const fs::path parent = fs::absolute(to_).parent_path();
    for (size_t i = written.size(); i-- > 0;) move_there(written[i], parent / written[i].filename());  // the first names the others
    sync_directory(parent);
  }

  // The file's own, but for what belongs to how it was written.
  GgufMetadata stored_metadata() {
    gguf_.emplace(MappedFile(files_->path()));
    GgufMetadata out;
    for (auto& [key, bytes] : gguf_->entries) {
      const bool own = key.starts_with("split.") || key == "general.alignment" || (formats_ && key == "general.file_type");
      const bool of_tokens = key.starts_with("tokenizer.") && !options_.tokenizer;
      if (!own && !of_tokens) out.push_back({key, {std::vector<std::byte>(bytes.begin(), bytes.end())}});
    }
    return out;
  }

  fs::path folder() const { return fs::is_directory(files_->path()) ? files_->path() : files_->path().parent_path(); }

  void add_names_and_tokens(GgufMetadata& metadata) const {
    std::string name = fs::absolute(folder()).filename().native();
    metadata.push_back({"general.name", {std::move(name)}});
    const fs::path file = folder() / "tokenizer.json";
    const Json& config = language_config(files_->config());
    if (!options_.tokenizer || !fs::exists(file)) {
      metadata.push_back({"tokenizer.ggml.model", {std::string("none")}});
      if (config.contains("eos_token_id") && config["eos_token_id"].is_number_unsigned())
        metadata.push_back({"tokenizer.ggml.eos_token_id", {config["eos_token_id"].get<uint32_t>()}});
      return;
    }
    Json own = fs::exists(folder() / "tokenizer_config.json") ? read_json_object(folder() / "tokenizer_config.json") : Json::object();
    if (fs::exists(folder() / "chat_template.jinja")) own["chat_template"] = read_text(folder() / "chat_template.jinja");
    GgufMetadata tokens = tokenizer_to_gguf(read_json(file), own, source_.spec.vocab);
    add_end_of_turn(tokens);
    metadata.insert(metadata.end(), std::make_move_iterator(tokens.begin()), std::make_move_iterator(tokens.end()));
  }

  // A second end token of generation_config.json.
  void add_end_of_turn(GgufMetadata& tokens) const {
    const fs::path file = folder() / "generation_config.json";
    const Json ends = fs::exists(file) ? read_json_object(file).value("eos_token_id", Json()) : Json();
    if (!ends.is_array()) return;
    const auto eos = std::ranges::find(tokens, "tokenizer.ggml.eos_token_id", [](auto& entry) { return entry.first; });
    for (const Json& id : ends)
      if (id.is_number_unsigned() && (eos == tokens.end() || std::get<uint32_t>(eos->second.value) != id.get<uint32_t>()))
        return tokens.push_back({"tokenizer.ggml.eot_token_id", {id.get<uint32_t>()}});
  }

  void write_directory(const fs::path& workshop, const Side& from) {
    OrderedJson config;
    Side to{source_.names, source_.spec, false};
    if (files_->is_gguf()) {
      config = config_json(*files_, dtype());
      to.spec = spec_from(Json::parse(config.dump()), "config.json");
      to.names = arch_named(to.spec.arch).names();
      write_tokenizer(workshop);
    } else {
      config = OrderedJson::parse(files_->config().dump());
      if (formats_) set_dtype(config);
      copy_other_files(workshop);
    }
    write_text(workshop / "config.json", config.dump(2) + "\n");
    const std::vector<TensorJob> jobs = plan_tensors(*files_, from, to, formats_ ? &*formats_ : nullptr, options_.requantize);
    for (const TensorJob& job : jobs)
      check(find_codec(job.head.format) == nullptr || find_codec(job.head.format)->block == 1,
            "tensor '{}' is stored as {}, which safetensors cannot hold: --format bf16 (or f16, f32) decodes it", job.head.name,
            job.head.format);
    write_safetensors(workshop, heads_of(jobs), options_.shard_bytes, data_of(jobs));
    sync_directory(workshop);
    check_same_model(source_.spec, describe(*Checkpoint::open(workshop)).spec, "config.json");
    const fs::path old = workshop.native() + ".old";
    if (fs::exists(to_)) move_there(to_, old);
    std::error_code failed, ignored;
    fs::rename(workshop, to_, failed);
    if (failed) fs::rename(old, to_, ignored);
    check(!failed, "cannot write '{}': {}", to_.native(), failed.message());
    fs::remove_all(old, ignored);
    sync_directory(fs::absolute(to_).parent_path());
  }

  std::string dtype() const {
    const StoredTensor* embedding = files_->find("token_embd.weight");
    const std::string format = formats_ ? formats_->name() : embedding ? embedding->format : "f32";
    return format == "bf16" ? "bfloat16" : format == "f16" ? "float16" : "float32";
  }

  void set_dtype(OrderedJson& config) const {
    for (const char* key : {"dtype", "torch_dtype"})
      if (config.contains(key)) config[key] = dtype();
  }

  void write_tokenizer(const fs::path& workshop) const {
    const Json& metadata = files_->config();
    if (!options_.tokenizer || !metadata.contains("tokenizer.ggml.tokens")) return;
    const TokenizerFiles made = tokenizer_from_gguf(metadata);
    write_text(workshop / "tokenizer.json", made.tokenizer.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
    write_text(workshop / "tokenizer_config.json", made.config.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
  }

  // Tokenizer, template, generation defaults, licence: whatever is small and no weights.
  void copy_other_files(const fs::path& workshop) const {
    constexpr uintmax_t most = 256 << 20;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder())) {
      const std::string name = entry.path().filename().native(), ending = entry.path().extension().native();
      const bool of_weights = name == "config.json" || name.ends_with(".index.json");
      const bool known = ending == ".json" || ending == ".jinja" || ending == ".txt" || ending == ".md" || ending == ".model";
      if (!entry.is_regular_file() || of_weights || !known || entry.file_size() > most) continue;
      write_text(workshop / name, read_text(entry.path()));
    }
  }

  fs::path to_;
  ConvertOptions options_;
  std::unique_ptr<Checkpoint> files_;
  Described source_;
  bool to_gguf_;
  std::optional<WeightFormats> formats_;
  std::optional<GgufFile> gguf_;
  ThreadPool pool_;
};

}  // namespace

void convert_model(const fs::path& from, const fs::path& to, const ConvertOptions& options) {
  fs::path target = to;
  while (!target.empty() && target.filename().empty()) target = target.parent_path();  // "out/"
  check(!target.empty() && target.filename() != "." && target.filename() != "..", "'{}' is no name for a model", to.native());
  Converter(from, target, options).run();
}

}  // namespace mr
