#include "engine/load.h"

#include <fstream>

#include "core/error.h"

namespace mr {

namespace fs = std::filesystem;

// A pipe would wait for its writer.
static std::string read_template(const fs::path& path) {
  constexpr size_t most = size_t(16) << 20;
  check(fs::is_regular_file(path), "'{}' is not a regular file", path.native());
  std::ifstream in(path, std::ios::binary);
  std::string text(most + 1, '\0');
  in.read(text.data(), std::streamsize(text.size()));
  check(in.eof() || in.good(), "'{}' cannot be read", path.native());
  text.resize(size_t(in.gcount()));
  check(text.size() <= most, "'{}' has more than {} bytes, the most that a template may have", path.native(), most);
  return text;
}

// tokenizer.json; tokenizer_config.json and chat_template.jinja beside it are optional.
static std::optional<Tokenizer> tokenizer_in(const fs::path& directory) {
  if (!fs::exists(directory / "tokenizer.json")) return std::nullopt;
  Json config = Json::object();
  if (fs::exists(directory / "tokenizer_config.json")) config = read_json_object(directory / "tokenizer_config.json");
  fs::path chat_template = directory / "chat_template.jinja";
  if (fs::exists(chat_template))
    if (std::string text = read_template(chat_template); !text.empty()) config["chat_template"] = std::move(text);
  return Tokenizer::from_json(read_json(directory / "tokenizer.json"), &config);
}

// A number or a list of numbers.
static void add_eos(const Json& config, const std::string& where, std::vector<int32_t>& stop_tokens) {
  auto eos = config.find("eos_token_id");
  if (eos == config.end() || eos->is_null()) return;
  Json list = eos->is_array() ? *eos : Json::array({*eos});
  for (const Json& id : list) {
    bool ok = id.is_number_integer() && id >= 0 && id <= INT32_MAX;
    check(ok, "eos_token_id in {} is not a token's number or a list of them", where);
    stop_tokens.push_back(id.get<int32_t>());
  }
}

static void read_generation_config(const fs::path& path, ModelFiles& files) {
  if (!fs::exists(path)) return;
  const Json config = read_json_object(path);
  add_eos(config, path.string(), files.stop_tokens);
  files.sampling = defaults_of_config(config, path.string());
}

ModelFiles open_model(const fs::path& path, Checkpoint::Want want) {
  ModelFiles files;
  files.checkpoint = Checkpoint::open(path, want);
  if (files.checkpoint->is_gguf()) {
    if (files.checkpoint->config().contains("tokenizer.ggml.tokens")) files.tokenizer = Tokenizer::from_gguf(files.checkpoint->config());
    files.sampling = defaults_of_gguf(files.checkpoint->config(), path.string());
  } else {
    fs::path directory = fs::is_directory(path) ? path : path.parent_path();
    files.tokenizer = tokenizer_in(directory);
    read_generation_config(directory / "generation_config.json", files);
  }
  if (files.tokenizer)
    for (int32_t id : files.tokenizer->stop_tokens()) files.stop_tokens.push_back(id);
  return files;
}

}  // namespace mr
