#include "hub/select.h"

#include <algorithm>
#include <map>

#include "core/words.h"
#include "hub/reference.h"
#include "io/file_names.h"

namespace mr {

namespace {

struct GgufChoice {
  std::string name, label;  // name without the part number; label from the name
  std::vector<HubFile> parts;
  int64_t bytes = 0;
};

std::vector<GgufChoice> gguf_choices(const Repository& r) {
  std::map<std::string, GgufChoice> choices;
  for (const HubFile& f : r.files) {
    if (!is_language_gguf(f.name)) continue;
    const std::string stem = f.name.substr(0, f.name.size() - 5);
    GgufChoice& c = choices[part_name(stem).whole];
    if (c.parts.empty()) c.name = f.name;
    c.label = quantization_of(f.name);
    c.parts.push_back(f);
    c.bytes += std::max<int64_t>(f.size, 0);
  }
  std::vector<GgufChoice> out;
  for (auto& [whole, c] : choices) out.push_back(std::move(c));
  std::ranges::stable_sort(out, {}, &GgufChoice::bytes);
  return out;
}

bool is_meant(const GgufChoice& c, const std::string& select) {
  const std::string wanted = ascii_lower(select), name = ascii_lower(c.name), short_name = name.substr(name.rfind('/') + 1);
  if (ascii_lower(c.label) == wanted || name == wanted || short_name == wanted) return true;
  return std::ranges::any_of(c.parts, [&](const HubFile& f) { return ascii_lower(f.name) == wanted; });
}

[[noreturn]] void refuse(const std::string& text, const std::vector<GgufChoice>& choices) {
  std::vector<SeveralModels::Option> options;
  for (const GgufChoice& c : choices) {
    const auto same = std::ranges::count(choices, c.label, &GgufChoice::label);
    options.push_back({c.label.empty() || same > 1 ? c.name : c.label, c.bytes});
  }
  throw SeveralModels(text, std::move(options));
}

bool is_top(const std::string& name) { return name.find('/') == name.npos; }

bool has(const Repository& r, std::string_view name) { return std::ranges::find(r.files, name, &HubFile::name) != r.files.end(); }

// model.safetensors or its parts. A repository may contain the same weights again under other names.
std::vector<HubFile> weights(const Repository& r) {
  std::vector<HubFile> all, usual;
  for (const HubFile& f : r.files) {
    if (!is_top(f.name) || !f.name.ends_with(".safetensors") || f.name.starts_with("adapter_")) continue;
    all.push_back(f);
    if (part_name(f.name.substr(0, f.name.size() - 12)).whole == "model") usual.push_back(f);
  }
  return usual.empty() ? all : usual;
}

bool goes_with_weights(const HubFile& f) {
  const std::string& name = f.name;
  if (!is_top(name)) return false;
  for (const char* ending : {".json", ".jinja", ".model", ".txt"})
    if (name.ends_with(ending)) return true;
  return name == "README.md" || name.starts_with("LICENSE") || name.starts_with("NOTICE") || name.starts_with("USE_POLICY");
}

[[noreturn]] void refuse_repository(const Repository& r) {
  if (has(r, "adapter_config.json"))
    fail("{} is an adapter (LoRA), not a model of its own: pull a merged one, or merge it in Python with PEFT's merge_and_unload()",
         r.name);
  if (has(r, "model_index.json")) fail("{} is a pipeline of the diffusers library, not a language model", r.name);
  for (const HubFile& f : r.files)
    if (f.name.ends_with(".bin") || f.name.ends_with(".pt") || f.name.ends_with(".pth"))
      fail(
          "{} has its weights only as {}, a pickle, which may run any code and is never opened: look for a repository with safetensors "
          "or GGUF files, or write safetensors in Python with from_pretrained() and save_pretrained()",
          r.name, f.name);
  fail("{} holds neither safetensors nor GGUF files", r.name);
}

}  // namespace

std::vector<HubFile> choose_files(const Repository& r, const std::string& select) {
  std::vector<GgufChoice> choices = gguf_choices(r);
  std::vector<HubFile> files = weights(r);
  if (select.empty() && !files.empty() && has(r, "config.json")) {
    for (const HubFile& f : r.files)
      if (goes_with_weights(f)) files.push_back(f);
    return files;
  }
  if (choices.empty() && files.empty()) refuse_repository(r);
  if (choices.empty() && select.empty()) fail("{} has safetensors, but no config.json that says what they are", r.name);
  if (choices.empty()) fail("{} has no GGUF files that ':{}' could choose from: pull {} whole", r.name, select, r.name);
  std::vector<GgufChoice> meant = choices;
  if (!select.empty()) std::erase_if(meant, [&](const GgufChoice& c) { return !is_meant(c, select); });
  if (meant.empty()) refuse(sentence("{} has no GGUF file '{}'; it has these:", r.name, select), choices);
  if (meant.size() > 1)
    refuse(sentence("{} has {} GGUF files{}, choose one:", r.name, meant.size(), select.empty() ? "" : " of that name"), meant);
  const GgufChoice& one = meant.front();
  const int parts = part_name(one.name.substr(0, one.name.size() - 5)).parts;
  check(int(one.parts.size()) == parts || parts == 1, "{} has {} of the {} parts of {}", r.name, one.parts.size(), parts, one.name);
  return one.parts;
}

}  // namespace mr
