#include "model/quantization.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cfloat>
#include <chrono>
#include <limits>
#include <map>
#include <optional>
#include <span>

#include "model/config.h"
#include "text/regex.h"

namespace mr {

using Format = WeightScheme::Format;

namespace {

constexpr std::string_view kKnown =
    "GPTQ, AWQ (gemm), AutoRound, compressed-tensors, FP8, ModelOpt (FP8, NVFP4), bitsandbytes, MLX and MXFP4 do";

struct Refused {
  std::string_view method, name;
};
constexpr Refused kRefused[] = {
    {"exl2", "EXL2"},   {"exl3", "EXL3"},     {"torchao", "torchao"},   {"quark", "Quark"}, {"aqlm", "AQLM"},
    {"hqq", "HQQ"},     {"eetq", "EETQ"},     {"quanto", "Quanto"},     {"vptq", "VPTQ"},   {"spqr", "SpQR"},
    {"higgs", "HIGGS"}, {"bitnet", "BitNet"}, {"fp_quant", "FP-Quant"}, {"quip", "QuIP#"},  {"sinq", "SINQ"},
};

// Patterns are a stranger's: each is tried on every module, which may be tens of thousands.
constexpr size_t kMostPatterns = 256, kLongestPattern = 1024;
constexpr std::chrono::seconds kMatching{10};  // in all; sane ones take milliseconds

constexpr int64_t kLargestGroup = 1 << 24;

constexpr int kGptqBits[] = {2, 3, 4, 8}, kAwqBits[] = {4}, kMlxBits[] = {2, 3, 4, 5, 6, 8};

[[noreturn]] void refuse(const std::string& path, std::string_view what) {
  fail("'{}' is quantized ({}), which does not run here: {}. Take the model's BF16 safetensors, or a GGUF file in Q8_0, Q6_K or Q4_K_M",
       path, what, kKnown);
}

std::vector<std::string> texts(const Config& config, const char* name) {
  std::vector<std::string> list;
  if (!config.has(name)) return list;
  const Json& json = config.json().at(name);
  config.require(json.is_array(), "'{}' is not a list", name);
  for (const Json& entry : json) {
    config.require(entry.is_string(), "'{}' has an entry that is not text", name);
    list.push_back(entry.get<std::string>());
  }
  return list;
}

int64_t group_of(const Config& c, const char* name, int64_t otherwise) {  // -1 and null: the row
  if (!c.has(name)) return otherwise;
  const Json& json = c.json().at(name);
  c.require(json.is_number_integer(), "'{}' is not a whole number", name);
  const auto group = json.get<int64_t>();
  c.require(group == -1 || (group > 0 && group <= kLargestGroup), "'{}' is {}: groups of 1 and more inputs are possible, or -1 for the row",
            name, group);
  return group == -1 ? 0 : group;
}

void set_block(WeightScheme& s, const Config& c, const char* name) {
  const auto shape = c.integers(name);
  auto possible = [](int64_t size) { return size > 0 && size <= kLargestGroup; };
  c.require(shape.size() == 2 && possible(shape[0]) && possible(shape[1]), "'{}' is not two sizes", name);
  s.block_rows = shape[0];
  s.group = shape[1];
}

int bits_of(const Config& c, const char* name, std::span<const int> possible) {
  const int64_t bits = c.positive(name);
  c.require(std::ranges::count(possible, bits) > 0, "'{}' is {}, of which no kernel is known: {} are", name, bits,
            fmt::format("{}", fmt::join(possible, ", ")));
  return int(bits);
}

}  // namespace

struct Quantization::Rules {
  // The first that names a module holds; then the first that names its class, or every module.
  std::vector<WeightScheme> schemes;
  std::map<std::string, size_t, std::less<>> by_name;
  std::vector<std::pair<Regex, size_t>> patterns;  // for the beginning of a name; of ascending schemes
  std::optional<size_t> general;
  mutable std::chrono::steady_clock::duration matching{};

  bool begins(const Regex&, std::string_view module) const;
  void read(const Checkpoint&, const Config&);
  void read_gptq(const Config&);
  void read_awq(const Config&);
  void read_auto_round(const Config&);
  void read_compressed(const Config&, const std::string& path);
  void read_fp8(const Config&);
  void read_modelopt(const Config&, const std::string& path);
  void read_bitsandbytes(const Config&);
  void read_mlx(const Config&, const std::string& path);
  // Targets: names, classes of modules, or after "re:" patterns; none: every module.
  void add(const WeightScheme&, std::span<const std::string> targets = {});
};

void Quantization::Rules::add(const WeightScheme& scheme, std::span<const std::string> targets) {
  const size_t own = schemes.size();
  schemes.push_back(scheme);
  bool every = targets.empty();
  for (const std::string& target : targets) {
    every |= target == "Linear" || target == "Embedding";
    if (!target.starts_with("re:")) {
      by_name.emplace(target, own);
      continue;
    }
    check(target.size() <= kLongestPattern, "a pattern for quantized modules has {} bytes: at most {} are allowed", target.size(),
          kLongestPattern);
    check(patterns.size() < kMostPatterns, "more than {} patterns choose quantized modules", kMostPatterns);
    patterns.emplace_back(Regex("\\A(?:" + target.substr(3) + ")"), own);
  }
  if (every && !general) general = own;
}

bool Quantization::Rules::begins(const Regex& pattern, std::string_view module) const {
  bool found = false;
  const auto start = std::chrono::steady_clock::now();
  const Allowance unlimited;  // beyond the budget of a pattern
  MatchBudget budget(module.size(), unlimited);
  pattern.each_match(module, budget, [&](size_t begin, size_t) { found |= begin == 0; });
  matching += std::chrono::steady_clock::now() - start;
  check(matching < kMatching, "the patterns that choose quantized modules take too long: more than {} s", kMatching.count());
  return found;
}

void Quantization::Rules::read_gptq(const Config& c) {
  WeightScheme s;
  s.bits = bits_of(c, "bits", kGptqBits);
  s.group = group_of(c, "group_size", 128);
  s.zeros = true;
  s.symmetric = c.boolean("sym", false);
  s.zeros_as_they_are = c.text("checkpoint_format", "gptq") == "gptq_v2";
  if (c.has("dynamic")) {  // GPTQModel: {"+:pattern": {"bits": 8}, "-:pattern": {}}
    const Config dynamic = c.object("dynamic");
    for (const auto& [key, value] : dynamic.json().items()) {
      if (key.starts_with("-:")) continue;  // not quantized, as its tensors show
      dynamic.require(value.is_object(), "'{}' is not an object", key);
      const Config own(value, dynamic.where() + ", " + key);
      WeightScheme other = s;
      if (own.has("bits")) other.bits = bits_of(own, "bits", kGptqBits);
      other.group = group_of(own, "group_size", s.group);
      other.symmetric = own.boolean("sym", s.symmetric);
      add(other, std::array{"re:" + (key.starts_with("+:") ? key.substr(2) : key)});
    }
  }
  add(s);
}

void Quantization::Rules::read_awq(const Config& c) {
  WeightScheme s{.format = Format::awq};
  s.bits = bits_of(c, c.has("bits") ? "bits" : "w_bit", kAwqBits);
  s.group = group_of(c, c.has("group_size") ? "group_size" : "q_group_size", 128);
  s.zeros = c.boolean("zero_point", true);
  std::string version = c.text("version", "gemm");
  std::ranges::transform(version, version.begin(), [](unsigned char ch) { return char(std::tolower(ch)); });
  c.require(version == "gemm", "AWQ's packing '{}' does not run here: 'gemm' does", version);
  add(s);
}

void Quantization::Rules::read_auto_round(const Config& c) {
  const std::string packing = c.text("packing_format", "auto_round:auto_gptq");
  WeightScheme s;
  const bool awq = packing.ends_with("awq");
  c.require(awq || packing.ends_with("gptq"), "AutoRound's packing '{}' does not run here: auto_round:auto_gptq and auto_round:auto_awq do",
            packing);
  const std::span<const int> possible = awq ? std::span<const int>(kAwqBits) : kGptqBits;
  s.format = awq ? Format::awq : Format::gptq;
  s.bits = bits_of(c, "bits", possible);
  s.group = group_of(c, "group_size", 128);
  s.symmetric = c.boolean("sym", true);
  s.zeros = true;
  if (c.has("extra_config")) {  // by the name of a module; bits of 16 and more: not quantized, as its tensors show
    const Config extra = c.object("extra_config");
    for (const auto& [key, value] : extra.json().items()) {
      extra.require(value.is_object(), "'{}' is not an object", key);
      const Config own(value, extra.where() + ", " + key);
      if (own.integer("bits", s.bits) >= 16) continue;
      WeightScheme other = s;
      if (own.has("bits")) other.bits = bits_of(own, "bits", possible);
      other.group = group_of(own, "group_size", s.group);
      other.symmetric = own.boolean("sym", s.symmetric);
      add(other, std::array{key});
    }
  }
  add(s);
}

// Of compressed-tensors' `input_activations`.
static ActivationRounding activations_of(const Config& c) {
  ActivationRounding a;
  const std::string type = c.text("type", "int"), strategy = c.text("strategy", "tensor");
  const int64_t bits = c.integer("num_bits", 8);
  c.require(c.boolean("symmetric", true), "activations with a zero point do not run here");
  const bool dynamic = c.has("dynamic") && (!c.json().at("dynamic").is_boolean() || c.json().at("dynamic").get<bool>());
  if (type == "float" && bits == 4) return a;  // FP4 arithmetic: weights alone are rounded here
  c.require((type == "int" && (bits == 8 || bits == 4)) || (type == "float" && bits == 8),
            "activations of {} bits ({}) do not run here: integers of 8 or 4 and floats of 8 do", bits, type);
  a.to = type == "int" ? ActivationRounding::To::integer : ActivationRounding::To::e4m3;
  a.bits = int(bits);
  if (strategy == "group") a.group = group_of(c, "group_size", 128);
  c.require(strategy == "token" || strategy == "group" || strategy == "tensor", "activations rounded by '{}' do not run here", strategy);
  c.require(dynamic == (strategy != "tensor"), "activations rounded by '{}' with {} scales do not run here", strategy,
            dynamic ? "dynamic" : "static");
  return a;
}

void Quantization::Rules::read_compressed(const Config& c, const std::string& path) {
  const std::string all = c.text("format", "dense");
  if (c.has("sparsity_config") && c.object("sparsity_config").text("format", "dense") != "dense")
    refuse(path, "compressed-tensors, sparse");
  if (c.has("transform_config") && !c.json().at("transform_config").empty() && c.object("transform_config").has("config_groups") &&
      !c.object("transform_config").json().at("config_groups").empty())
    refuse(path, "compressed-tensors with transforms");
  const Config groups = c.object("config_groups");
  for (const auto& [name, value] : groups.json().items()) {
    groups.require(value.is_object(), "'{}' is not an object", name);
    const Config group(value, groups.where() + ", " + name);
    if (!group.has("weights")) continue;
    const Config w = group.object("weights");
    const std::string format = group.text("format", all), type = w.text("type", "int"), strategy = w.text("strategy", "tensor");
    WeightScheme s;
    s.bits = int(w.integer("num_bits", 8));
    s.symmetric = w.boolean("symmetric", true);
    s.zeros = !s.symmetric;
    if (strategy == "group" || strategy == "tensor_group") s.group = group_of(w, "group_size", 128);
    if (strategy == "tensor") s.block_rows = 0;
    if (strategy == "block") {
      set_block(s, w, "block_structure");
    }
    w.require(strategy == "group" || strategy == "tensor_group" || strategy == "tensor" || strategy == "channel" || strategy == "block",
              "weights rounded by '{}' do not run here", strategy);
    if (type == "int" && format == "pack-quantized" && s.bits >= 2 && s.bits <= 8)
      s.format = Format::packed;
    else if (type == "int" && s.bits == 8)
      s.format = Format::integers;
    else if (type == "int" && s.bits >= 2 && s.bits < 8 && (format == "int-quantized" || format == "naive-quantized"))
      s.format = Format::integers;
    else if (type == "float" && s.bits == 8)
      s.format = format == "mxfp8-quantized" ? Format::mxfp8 : Format::floats;
    else if (type == "float" && s.bits == 4)
      s.format = format == "mxfp4-pack-quantized" ? Format::mxfp4 : Format::nvfp4;
    else
      refuse(path, fmt::format("compressed-tensors, {} of {} bits as {}", type, s.bits, format));
    s.outer_divides = true;
    if (group.has("input_activations")) {
      s.activations = activations_of(group.object("input_activations"));
      s.stored_input_scale = group.object("input_activations").text("strategy", "tensor") == "tensor";
    }
    add(s, texts(group, "targets"));
  }
  c.require(!schemes.empty(), "'config_groups' names no weights");
}

void Quantization::Rules::read_fp8(const Config& c) {
  const std::string fmt_name = c.text("fmt", "e4m3");
  c.require(fmt_name == "e4m3" || fmt_name == "float8_e4m3fn" || fmt_name == "e5m2", "FP8's '{}' does not run here: e4m3 and e5m2 do",
            fmt_name);
  WeightScheme s{.format = Format::floats, .bits = 8, .block_rows = 0};
  if (!c.integers("weight_block_size").empty()) set_block(s, c, "weight_block_size");
  s.activations = {.to = ActivationRounding::To::e4m3, .group = s.group};
  const std::string scheme = c.text("activation_scheme", "dynamic");
  c.require(scheme == "dynamic" || scheme == "static", "'activation_scheme' is '{}': dynamic and static are known", scheme);
  s.stored_input_scale = scheme == "static";
  add(s);
}

void Quantization::Rules::read_modelopt(const Config& c, const std::string& path) {
  const Config q = c.has("quantization") ? c.object("quantization") : c;
  const std::string algorithm = q.text("quant_algo", "");
  if (algorithm == "FP8") {
    add({.format = Format::floats,
         .bits = 8,
         .block_rows = 0,
         .activations = {.to = ActivationRounding::To::e4m3},
         .stored_input_scale = true});
  } else if (algorithm == "NVFP4") {
    add({.format = Format::nvfp4, .bits = 4, .group = group_of(q, "group_size", 16), .symmetric = true});
  } else {
    refuse(path, "ModelOpt, " + (algorithm.empty() ? std::string("no algorithm named") : algorithm));
  }
}

// A threshold of 0 means that nothing is an outlier.
static float outliers_of(const Config& c) {
  const double threshold = c.number("llm_int8_threshold", 6.0);
  c.require(threshold == 0 || (threshold >= FLT_MIN && threshold <= FLT_MAX), "'llm_int8_threshold' is {}, which is no magnitude",
            threshold);
  return threshold == 0 ? std::numeric_limits<float>::infinity() : float(threshold);
}

void Quantization::Rules::read_bitsandbytes(const Config& c) {
  if (c.boolean("load_in_8bit", false))
    return add({.format = Format::bnb_int8,
                .bits = 8,
                .symmetric = true,
                .activations = {.to = ActivationRounding::To::integer, .outliers = outliers_of(c)}});
  c.require(c.boolean("load_in_4bit", false), "neither 'load_in_8bit' nor 'load_in_4bit' is set");
  const std::string type = c.text("bnb_4bit_quant_type", "fp4");
  c.require(type == "nf4" || type == "fp4", "'bnb_4bit_quant_type' is '{}': nf4 and fp4 are known", type);
  add({.format = Format::bnb_4bit, .bits = 4, .symmetric = true});
}

void Quantization::Rules::read_mlx(const Config& c, const std::string& path) {
  if (c.text("mode", "affine") != "affine") refuse(path, "MLX, " + c.text("mode", ""));
  auto scheme = [](const Config& own, const WeightScheme* general) {
    WeightScheme s{.format = Format::mlx};
    s.bits = own.has("bits") || !general ? bits_of(own, "bits", kMlxBits) : general->bits;
    s.group = group_of(own, "group_size", general ? general->group : 64);
    return s;
  };
  const WeightScheme all = scheme(c, nullptr);
  for (const auto& [key, value] : c.json().items())  // a module's own, by its name
    if (value.is_object()) add(scheme(Config(value, c.where() + ", " + key), &all), std::array{key});
  add(all);
}

void Quantization::Rules::read(const Checkpoint& files, const Config& c) {
  const std::string path = files.path().native(), method = c.text("quant_method", "");
  for (const Refused& r : kRefused)
    if (r.method == method) refuse(path, r.name);
  if (method == "gptq" || method == "gptqmodel") return read_gptq(c);
  if (method == "awq") return read_awq(c);
  if (method == "auto-round" || method == "intel/auto-round") return read_auto_round(c);
  if (method == "compressed-tensors") return read_compressed(c, path);
  if (method == "fp8") return read_fp8(c);
  if (method == "fbgemm_fp8") return add({.format = Format::floats, .bits = 8, .activations = {.to = ActivationRounding::To::e4m3}});
  if (method == "modelopt") return read_modelopt(c, path);
  if (method == "bitsandbytes") return read_bitsandbytes(c);
  if (method == "mlx") return read_mlx(c, path);
  if (method == "mxfp4") return add({.format = Format::mxfp4, .bits = 4, .group = 32, .symmetric = true});
  refuse(path, method.empty() ? "by a method without a name" : method);
}

Quantization::Quantization(const Checkpoint& files) {
  if (files.quantization().empty()) return;
  rules_ = std::make_unique<Rules>();
  rules_->read(files, Config(files.quantization(), sentence("the quantization of '{}'", files.path().native())));
}
Quantization::Quantization() = default;
Quantization::~Quantization() = default;
Quantization& Quantization::operator=(Quantization&&) noexcept = default;
Quantization::Quantization(Quantization&&) noexcept = default;

WeightScheme Quantization::of(std::string_view module) const {
  const auto named = rules_->by_name.find(module);
  const size_t most = named == rules_->by_name.end() ? rules_->schemes.size() : named->second;
  for (const auto& [pattern, scheme] : rules_->patterns)
    if (scheme < most && rules_->begins(pattern, module)) return rules_->schemes[scheme];
  if (most < rules_->schemes.size()) return rules_->schemes[most];
  check(rules_->general.has_value(), "the module '{}' is quantized, but no group of the configuration names it", module);
  return rules_->schemes[*rules_->general];
}

}  // namespace mr
