#include <fmt/format.h>

#include <tuple>

#include "model/arch/arch.h"
#include "model/validate.h"

namespace mr {

ModelSpec llama_spec(const Config&);
NameMap llama_gguf_names();
void smollm3_from_gguf(const Checkpoint&, Json&);
ModelSpec qwen2_spec(const Config&);
ModelSpec qwen3_spec(const Config&);
ModelSpec qwen3_moe_spec(const Config&);
NameMap qwen3_moe_names();
NameMap qwen3_moe_gguf_names();
void qwen3_moe_from_gguf(const Checkpoint&, Json&);
ModelSpec granite_spec(const Config&);
ModelSpec nemotron_spec(const Config&);
NameMap phi3_names();
NameMap phi3_gguf_names();
ModelSpec starcoder2_spec(const Config&);
NameMap starcoder2_names();
ModelSpec mamba_spec(const Config&);
ModelSpec falcon_mamba_spec(const Config&);
ModelSpec mamba2_spec(const Config&);
NameMap mamba_names();
NameMap mamba2_names();
NameMap mamba_gguf_names();
NameMap mamba2_gguf_names();
void mamba_from_gguf(const Checkpoint&, Json&);
void mamba2_from_gguf(const Checkpoint&, Json&);
ModelSpec mixtral_spec(const Config&);
NameMap mixtral_names();
NameMap mixtral_gguf_names();
ModelSpec gemma1_spec(const Config&);
ModelSpec gemma2_spec(const Config&);
ModelSpec gemma3_spec(const Config&);
ModelSpec gemma3n_spec(const Config&);
ModelSpec gemma4_spec(const Config&);
NameMap gemma_names();
NameMap gemma3n_names();
NameMap gemma_gguf_names();
NameMap gemma3n_gguf_names();
void gemma2_from_gguf(const Checkpoint&, Json&);
void gemma3_from_gguf(const Checkpoint&, Json&);
void gemma3n_from_gguf(const Checkpoint&, Json&);
ModelSpec deepseek_v2_spec(const Config&);
ModelSpec jamba_spec(const Config&);
NameMap jamba_names();
NameMap jamba_gguf_names();
void jamba_from_gguf(const Checkpoint&, Json&);
ModelSpec lfm2_spec(const Config&);
NameMap lfm2_names();
NameMap lfm2_gguf_names();
void lfm2_from_gguf(const Checkpoint&, Json&);

static const Arch kArchs[] = {
    {"llama", llama_spec, decoder_names, {"llama", llama_gguf_names}},
    {"mistral", llama_spec, decoder_names, {}},  // "llama" in GGUF files
    {"smollm3", llama_spec, decoder_names, {"smollm3", llama_gguf_names, smollm3_from_gguf}},
    {"qwen2", qwen2_spec, decoder_names, {"qwen2", decoder_gguf_names}},
    {"qwen3", qwen3_spec, decoder_names, {"qwen3", decoder_gguf_names}},
    {"qwen3_moe", qwen3_moe_spec, qwen3_moe_names, {"qwen3moe", qwen3_moe_gguf_names, qwen3_moe_from_gguf}},
    {"phi3", llama_spec, phi3_names, {"phi3", phi3_gguf_names}},
    {"granite", granite_spec, decoder_names, {"granite", llama_gguf_names}},
    {"nemotron", nemotron_spec, decoder_names, {"nemotron", decoder_gguf_names}},
    {"starcoder2", starcoder2_spec, starcoder2_names, {"starcoder2", decoder_gguf_names}},
    {"mamba", mamba_spec, mamba_names, {"mamba", mamba_gguf_names, mamba_from_gguf}},
    {"mamba2", mamba2_spec, mamba2_names, {"mamba2", mamba2_gguf_names, mamba2_from_gguf}},
    {"falcon_mamba", falcon_mamba_spec, mamba_names, {}},                       // "mamba" in GGUF files
    {"mixtral", mixtral_spec, mixtral_names, {"mixtral", mixtral_gguf_names}},  // "llama" with experts
    {"gemma", gemma1_spec, decoder_names, {"gemma", decoder_gguf_names}},
    {"gemma2", gemma2_spec, gemma_names, {"gemma2", gemma_gguf_names, gemma2_from_gguf}},
    {"gemma3_text", gemma3_spec, gemma_names, {"gemma3", gemma_gguf_names, gemma3_from_gguf}},
    {"gemma3n_text", gemma3n_spec, gemma3n_names, {"gemma3n", gemma3n_gguf_names, gemma3n_from_gguf}},
    {"gemma4_text", gemma4_spec, gemma_names, {}},
    {"jamba", jamba_spec, jamba_names, {"jamba", jamba_gguf_names, jamba_from_gguf}},
    {"lfm2", lfm2_spec, lfm2_names, {"lfm2", lfm2_gguf_names, lfm2_from_gguf}},
    {"deepseek_v2", deepseek_v2_spec, decoder_names, {}},
};

std::vector<std::string_view> arch_names() {
  std::vector<std::string_view> names;
  for (const Arch& a : kArchs) names.push_back(a.name);
  return names;
}

const Arch& arch_named(std::string_view name) {
  for (const Arch& a : kArchs)
    if (a.name == name) return a;
  fail("model architecture '{}' is not known; known are: {}", name, fmt::join(arch_names(), ", "));
}

const NameMap::Entry* NameMap::find(std::string_view role) const {
  for (const Entry& e : entries)
    if (e.role == role) return &e;
  return nullptr;
}

std::string NameMap::name(std::string_view role, Place at) const {
  const Entry* e = find(role);
  check(e, "this family of models has no tensor for '{}'", role);
  const std::string name = fmt::format(fmt::runtime(e->pattern), at.layer, at.expert);
  return name.starts_with("model.") ? std::string(model_prefix) + name.substr(6) : std::string(other_prefix) + name;
}

static DType scan_state(const Config& config) {
  const std::string name = config.text("mamba_ssm_cache_dtype", "auto");
  if (name == "auto" || name == "float32") return DType::f32;
  config.require(name == "bfloat16" || name == "float16", "mamba_ssm_cache_dtype is '{}': float32, bfloat16 and float16 are known", name);
  return name == "bfloat16" ? DType::bf16 : DType::f16;
}

static ModelSpec checked_spec(const Arch& arch, const Config& config) {
  ModelSpec spec = arch.spec(config);
  spec.arch = arch.name;
  spec.scan_state = scan_state(config);
  validate(spec, config.where());
  return spec;
}

// Models that see or hear too have the configuration of their language model as a part of theirs, and its tensors below a name.
static const Json& of_language(const Json& json) {
  return json.contains("text_config") && json["text_config"].is_object() ? json["text_config"] : json;
}

static void find_prefix(NameMap& names, const Checkpoint& files) {
  constexpr std::pair<std::string_view, std::string_view> kPrefixes[] = {
      {"model.", ""}, {"model.language_model.", ""}, {"language_model.model.", "language_model."}};
  for (auto [model, other] : kPrefixes) {
    names.model_prefix = model;
    names.other_prefix = other;
    if (files.find(names.name("embedding", {}) + ".weight")) return;
  }
  std::tie(names.model_prefix, names.other_prefix) = kPrefixes[0];  // who needs a tensor will say that it is not there
}

// By general.architecture; a Llama with experts is a Mixtral.
const Arch& arch_of_gguf(const Checkpoint& files) {
  const Json& meta = files.config();
  check(meta.contains("general.architecture") && meta["general.architecture"].is_string(), "{}: the metadata lacks general.architecture",
        files.path().string());
  std::string name = meta["general.architecture"];
  const Json experts = meta.value("llama.expert_count", Json(0));
  if (name == "llama" && experts.is_number() && experts > 0) name = "mixtral";
  std::vector<std::string_view> known;
  for (const Arch& a : kArchs) {
    if (!a.gguf.name.empty() && a.gguf.name == name) return a;
    if (!a.gguf.name.empty()) known.push_back(a.gguf.name);
  }
  fail("GGUF files of architecture '{}' are not known; known are: {}", name, fmt::join(known, ", "));
}

Json whole_config_of_gguf(const Checkpoint& files) {
  Json json = config_from_gguf(files);
  if (auto complete = arch_of_gguf(files).gguf.complete) complete(files, json);
  return json;
}

static Described describe_gguf(const Checkpoint& files) {
  const Arch& arch = arch_of_gguf(files);
  const Json json = whole_config_of_gguf(files);
  Described described{checked_spec(arch, Config(json, files.path().filename().string())), arch.gguf.names()};
  described.spec.norm.offset = 0;  // norms that multiply by 1 + weight are stored with their 1
  return described;
}

Described describe(const Checkpoint& files) {
  if (files.is_gguf()) return describe_gguf(files);
  const Json& raw = files.config();
  ModelSpec spec = spec_from(raw, (files.path() / "config.json").string());
  NameMap names = arch_named(spec.arch).names();
  find_prefix(names, files);
  return {std::move(spec), std::move(names)};
}

ModelSpec spec_from(const Json& json, const std::string& where) {
  Config config(of_language(json), where);
  return checked_spec(arch_named(config.text("model_type", "(none given)")), config);
}

}  // namespace mr
