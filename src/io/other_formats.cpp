#include "io/other_formats.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "core/error.h"
#include "io/checkpoint.h"
#include "io/file_names.h"

namespace mr {

namespace fs = std::filesystem;

namespace {

constexpr const char* kPickle =
    "holds PyTorch's pickled weights, which can run any code when they are read, so they are not: take the model's safetensors, or have "
    "transformers write them (save_pretrained)";

struct Known {
  std::string_view ending, what;
};
constexpr Known kFiles[] = {
    {".bin", kPickle},
    {".pth", kPickle},
    {".pt", kPickle},
    {".ckpt", kPickle},
    {".h5", "holds weights of TensorFlow: take the model's safetensors or a GGUF file"},
    {".msgpack", "holds weights of Flax: take the model's safetensors or a GGUF file"},
    {".onnx", "is a graph of ONNX: take the model's safetensors or a GGUF file"},
    {".npz", "holds arrays of NumPy: take the model's safetensors or a GGUF file"},
    {".ggml", "is of GGML, the format before GGUF: take a GGUF file"},
};

constexpr Known kBeginnings[] = {
    {"version https://git-lfs", "is a pointer of Git LFS, not the file itself: run 'git lfs pull' where it was cloned"},
    {"PK\x03\x04", kPickle},
    {"\x80\x02", kPickle},
    {"tjgg", "is of GGML, the format before GGUF: take a GGUF file"},
    {"lmgg", "is of GGML, the format before GGUF: take a GGUF file"},
    {"\x89HDF", "holds weights of TensorFlow: take the model's safetensors or a GGUF file"},
    {"<!DOCTYPE", "is a web page: the download went wrong"},
    {"<html", "is a web page: the download went wrong"},
};

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) names.push_back(entry.path().filename().native());
  std::ranges::sort(names);
  return names;
}

std::string adapter(const fs::path& directory) {
  std::string base = "another model";
  try {
    const Json config = read_json_object(directory / "adapter_config.json");
    if (auto name = config.find("base_model_name_or_path"); name != config.end() && name->is_string())
      base = sentence("'{}'", name->get<std::string>());
  } catch (const Error&) {  // its name suffices
  }
  return fmt::format("is an adapter (LoRA) of {}, which does not run by itself: merge both (merge_and_unload of peft) and take the result",
                     base);
}

std::string field(const Json& config, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (auto found = config.find(name); found != config.end() && found->is_number_integer()) return found->dump();
  return "";
}

}  // namespace

std::string other_format(std::span<const std::byte> beginning, const fs::path& name) {
  const std::string_view bytes(reinterpret_cast<const char*>(beginning.data()), beginning.size());
  for (const Known& known : kBeginnings)
    if (bytes.starts_with(known.ending)) return std::string(known.what);
  for (const Known& known : kFiles)
    if (name.native().ends_with(known.ending)) return std::string(known.what);
  return "";
}

std::string other_format_in(const fs::path& directory) {
  if (is_there(directory / "adapter_config.json")) return adapter(directory);
  if (is_there(directory / "model_index.json")) return "is a pipeline of diffusers, which makes pictures: only language models run here";
  const auto names = names_in(directory);
  if (names.empty()) return "is empty";
  for (const Known& known : kFiles)
    for (const std::string& name : names)
      if (name.ends_with(known.ending) && name != "training_args.bin") return std::string(known.what);
  for (const std::string& name : names)
    if (is_there(directory / name / "config.json")) return sentence("is no model, but '{}' in it may be one", name);
  return "";
}

Json quantization_in(const Json& config, const fs::path& directory) {
  auto object = [&](const char* name) {
    auto found = config.find(name);
    return found != config.end() && found->is_object() ? *found : Json();
  };
  auto with_method = [](Json q, const char* method) {
    if (auto named = q.find("quant_method"); named == q.end() || !named->is_string()) q["quant_method"] = method;
    return q;
  };
  if (Json q = object("quantization"); q.is_object()) return with_method(std::move(q), "mlx");  // also in its quantization_config
  if (Json q = object("quantization_config"); q.is_object()) return with_method(std::move(q), "");
  if (Json q = object("compression_config"); q.is_object()) return with_method(std::move(q), "compressed-tensors");
  for (auto [file, method] :
       {std::pair{"quantize_config.json", "gptq"}, {"quant_config.json", "awq"}, {"hf_quant_config.json", "modelopt"}})
    if (is_there(directory / file)) return with_method(read_json_object(directory / file), method);
  return Json::object();
}

std::string quantization_text(const Json& q) {
  if (q.empty()) return "";
  const auto method = q.value("quant_method", "");
  std::string text = method.empty() ? "a quantization" : sentence("{}", method);
  if (method.size() <= 4) std::ranges::transform(text, text.begin(), [](char c) { return char(std::toupper(c)); });
  if (std::string bits = field(q, {"bits", "w_bit"}); !bits.empty()) text += fmt::format(", {} bits", bits);
  if (std::string group = field(q, {"group_size", "q_group_size"}); !group.empty() && group != "-1")
    text += fmt::format(", groups of {}", group);
  if (auto format = q.find("format"); format != q.end() && format->is_string()) text += sentence(", {}", format->get<std::string>());
  return text;
}

std::optional<fs::path> gguf_in(const fs::path& directory) {
  std::set<std::string> sets;
  std::vector<std::string> files;
  for (const std::string& name : names_in(directory)) {
    if (!is_language_gguf(name)) continue;
    files.push_back(name);
    sets.insert(part_name(fs::path(name).stem().native()).whole);
  }
  if (sets.empty()) return std::nullopt;
  check(sets.size() == 1, "the directory '{}' has {} GGUF files, name one of them: {}", directory.native(), sets.size(),
        fmt::join(files, ", "));
  return directory / files[0];  // sorted: the first part
}

}  // namespace mr
