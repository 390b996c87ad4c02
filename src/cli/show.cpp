// millrace show: one model at a glance, even one that cannot run here. `inspect` has the details.
#include <fstream>
#include <map>

#include "backend/backend.h"
#include "cli/cli.h"
#include "core/amounts.h"
#include "core/error.h"
#include "core/words.h"
#include "engine/load.h"
#include "hub/models.h"
#include "model/arch/arch.h"
#include "model/model.h"

namespace mr {

namespace {

namespace fs = std::filesystem;

struct ShowFlags {
  std::string model;
  bool json = false;
};

// The value of `key:` in the front matter of a model card, between the two "---".
std::string from_card(const fs::path& card, const std::string& key) {
  std::ifstream in(card);
  std::string line;
  if (!std::getline(in, line) || !line.starts_with("---")) return "";
  while (std::getline(in, line) && !line.starts_with("---")) {
    if (!line.starts_with(key + ":")) continue;
    const size_t begin = line.find_first_not_of(" \t\"'", key.size() + 1), end = line.find_last_not_of(" \t\r\"'");
    return begin == line.npos || end < begin ? "" : line.substr(begin, end - begin + 1);
  }
  return "";
}

std::string license_of(const Checkpoint& files) {
  if (files.is_gguf()) {
    const Json& meta = files.config();
    for (const char* key : {"general.license", "general.license.name"})
      if (auto found = meta.find(key); found != meta.end() && found->is_string()) return found->get<std::string>();
    return "";
  }
  const fs::path folder = fs::is_directory(files.path()) ? files.path() : files.path().parent_path();
  const std::string license = from_card(folder / "README.md", "license");
  const std::string name = license == "other" ? from_card(folder / "README.md", "license_name") : "";
  return name.empty() ? license : name;
}

// Formats of the weights, by bytes.
std::vector<std::string> formats_of(const Checkpoint& files) {
  std::map<std::string, size_t> bytes;
  for (const StoredTensor& t : files.tensors()) bytes[std::string(t.format)] += t.bytes.size();
  std::vector<std::string> names;
  for (const auto& [name, n] : bytes) names.push_back(name);
  std::ranges::stable_sort(names, std::greater{}, [&](const std::string& name) { return bytes[name]; });
  return names;
}

int64_t stored_values(const Checkpoint& files) {
  int64_t n = 0;
  for (const StoredTensor& t : files.tensors()) {
    int64_t product = 1;
    for (const int64_t d : t.shape) product *= d;
    n += product;
  }
  return n;
}

std::string architecture_in(const Checkpoint& files) {
  const Json& config = files.config();
  for (const char* key : {"model_type", "general.architecture"})
    if (auto found = config.find(key); found != config.end() && found->is_string()) return found->get<std::string>();
  return "";
}

// What needs the architecture's code; or why this model cannot run.
void describe_model(const Checkpoint& files, OrderedJson& out) {
  try {
    const ModelSpec spec = describe(files).spec;
    out["architecture"] = spec.arch;
    out["parameters"] = parameters(spec);
    out["context"] = spec.max_context;
    Model::outline(files, *make_ref_backend(), {});  // throws if it cannot run
  } catch (const Error& e) {
    out["problem"] = e.what();
  }
}

void describe_tokenizer(const fs::path& path, OrderedJson& out) {
  try {
    const ModelFiles files = open_model(path);
    out["tokenizer"] = files.tokenizer.has_value();
    out["chat_template"] = files.tokenizer && !files.tokenizer->chat_template().empty();
  } catch (const Error& e) {
    if (out["problem"].is_null()) out["problem"] = e.what();
  }
}

OrderedJson facts_of(const fs::path& path) {
  const auto files = Checkpoint::open(path);
  int64_t bytes = 0;
  for (const StoredTensor& t : files->tensors()) bytes += int64_t(t.bytes.size());
  const std::string license = license_of(*files);
  OrderedJson out{{"name", model_name_at(path)},
                  {"path", path.string()},
                  {"architecture", architecture_in(*files)},
                  {"parameters", stored_values(*files)},
                  {"context", nullptr},
                  {"formats", formats_of(*files)},
                  {"bytes", bytes},
                  {"license", license.empty() ? OrderedJson() : OrderedJson(license)},
                  {"tokenizer", nullptr},
                  {"chat_template", nullptr},
                  {"problem", nullptr}};
  describe_model(*files, out);
  describe_tokenizer(path, out);
  return out;
}

std::string parameters_text(int64_t n) {
  return n >= 1'000'000'000 ? fmt::format("{:.2f} billion", double(n) / 1e9) : fmt::format("{:.1f} million", double(n) / 1e6);
}

std::string yes_or_no(const OrderedJson& j) { return j.is_null() ? "unknown" : j.get<bool>() ? "yes" : "no"; }

void print_facts(const OrderedJson& f) {
  auto line = [](const char* what, const std::string& value) { fmt::print("  {:<14}{}\n", what, printable(value)); };
  std::string formats;
  for (const OrderedJson& name : f["formats"]) formats += (formats.empty() ? "" : ", ") + name.get<std::string>();
  fmt::print("{}\n", printable(f["name"].get<std::string>()));
  line("architecture", f["architecture"].get<std::string>());
  line("parameters", parameters_text(f["parameters"].get<int64_t>()));
  line("context", f["context"].is_null() ? "unknown" : counted(f["context"].get<int64_t>(), "token"));
  line("weights", fmt::format("{}, {}", bytes_text(f["bytes"].get<int64_t>()), formats));
  line("chat template", yes_or_no(f["chat_template"]));
  line("license", f["license"].is_null() ? "not stated in its files" : f["license"].get<std::string>());
  line("path", f["path"].get<std::string>());
  if (!f["problem"].is_null()) line("does not run", f["problem"].get<std::string>());
}

int show_model(ShowFlags& f) {
  const OrderedJson facts = facts_of(find_model(f.model));
  if (f.json)
    fmt::print("{}\n", facts.dump(-1, ' ', false, Json::error_handler_t::replace));
  else
    print_facts(facts);
  return 0;
}

}  // namespace

void add_show(CLI::App& program, Action& chosen) {
  add_command<ShowFlags>(
      program, chosen, "show", "one model: architecture, size, formats, license, location",
      [](CLI::App& app, ShowFlags& f) {
        app.add_option("MODEL", f.model, "a path or a name; the default model if omitted");
        app.add_flag("--json", f.json, "one JSON object");
      },
      show_model);
}

}  // namespace mr
