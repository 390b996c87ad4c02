#include "hub/folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/error.h"
#include "io/checkpoint.h"
#include "io/file_names.h"

namespace mr {

namespace fs = std::filesystem;

namespace {

struct Listing {
  std::vector<fs::path> gguf, safetensors, others;
};

void list(const fs::path& folder, int depth, bool is_top, Listing& out) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const fs::path& file = entry.path();
    const std::string name = file.filename().string();
    if (entry.is_directory(ignored)) {
      if (depth > 0 && !name.starts_with('.')) list(file, depth - 1, false, out);
    } else if (is_language_gguf(name)) {
      out.gguf.push_back(file);
    } else if (is_top && file.extension() == ".safetensors" && !name.starts_with("adapter_")) {
      out.safetensors.push_back(file);
    } else if (is_top) {
      out.others.push_back(file);
    }
  }
}

void add_file(LocalModel& m, const fs::path& file) {
  std::error_code missing;
  m.files.push_back(file);
  const auto bytes = fs::file_size(file, missing);  // follows a link of the hub's cache
  if (missing) {
    m.problem = fmt::format("{} is missing: its link leads nowhere", file.filename().string());
    return;
  }
  m.bytes += int64_t(bytes);
  m.when = std::max(m.when, fs::last_write_time(file, missing));
}

// All parts must be present of files whose names number them.
void check_parts(LocalModel& m, const std::vector<fs::path>& files) {
  std::map<std::string, std::pair<int, int>> sets;  // name without its number -> present, expected
  for (const fs::path& file : files) {
    const PartName name = part_name(file.stem().string());
    auto& [there, wanted] = sets[name.whole];
    there++;
    wanted = std::max(wanted, name.parts);
  }
  for (const auto& [name, set] : sets)
    if (set.first < set.second && m.problem.empty())
      m.problem =
          fmt::format("{} of its {} parts {} missing", set.second - set.first, set.second, set.second - set.first == 1 ? "is" : "are");
}

std::string stored_as(const fs::path& config_file) {
  try {
    const Json config = read_json_object(config_file);
    auto text = [](const Json& j, const char* key) { return j.contains(key) && j[key].is_string() ? j[key].get<std::string>() : ""; };
    if (config.contains("quantization_config")) return printable(text(config["quantization_config"], "quant_method"), 40);
    std::string type = text(config, "torch_dtype").empty() ? text(config, "dtype") : text(config, "torch_dtype");
    if (type.starts_with("torch.")) type.erase(0, 6);
    return type == "bfloat16" ? "BF16" : type == "float16" ? "F16" : type == "float32" ? "F32" : printable(type, 40);
  } catch (const Error&) {
    return "";
  }
}

LocalModel directory_model(const fs::path& folder, const Listing& found) {
  LocalModel m{.path = folder};
  for (const fs::path& file : found.safetensors) add_file(m, file);
  for (const fs::path& file : found.others) add_file(m, file);
  check_parts(m, found.safetensors);
  m.label = stored_as(folder / "config.json");
  return m;
}

}  // namespace

std::string LocalModel::format() const { return std::string(is_gguf ? "GGUF" : "safetensors") + (label.empty() ? "" : " " + label); }

std::vector<LocalModel> models_in(const fs::path& folder, int depth) {
  Listing found;
  list(folder, depth, true, found);
  std::vector<LocalModel> models;
  std::error_code ignored;
  if (!found.safetensors.empty() && fs::exists(folder / "config.json", ignored)) models.push_back(directory_model(folder, found));
  std::map<fs::path, std::vector<fs::path>> groups;  // a GGUF file, or one name for all of its parts
  for (const fs::path& file : found.gguf) groups[file.parent_path() / part_name(file.stem().string()).whole].push_back(file);
  for (auto& [name, files] : groups) {
    std::ranges::sort(files);
    LocalModel m{.path = files.front(), .is_gguf = true, .label = quantization_of(files.front().filename().string())};
    for (const fs::path& file : files) add_file(m, file);
    check_parts(m, files);
    models.push_back(std::move(m));
  }
  return models;
}

}  // namespace mr
