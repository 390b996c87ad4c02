#include "engine/generation_defaults.h"

#include "core/error.h"

namespace mr {

namespace {

struct Names {
  const char *temperature, *top_k, *top_p, *min_p, *repetition_penalty;
};

std::optional<float> number(const Json& json, const char* name, const std::string& where) {
  auto found = json.find(name);
  if (found == json.end() || found->is_null()) return std::nullopt;
  check(found->is_number(), "{}: '{}' is not a number", where, name);
  return found->get<float>();
}

GenerationDefaults read(const Json& json, const Names& names, const std::string& where) {
  GenerationDefaults d;
  d.temperature = number(json, names.temperature, where);
  d.top_p = number(json, names.top_p, where);
  d.min_p = number(json, names.min_p, where);
  d.repetition_penalty = number(json, names.repetition_penalty, where);
  if (auto k = number(json, names.top_k, where)) d.top_k = int(std::min(std::max(*k, 0.0f), 1e9f));  // -1: all, as some write it
  return d;
}

void check_ranges(const GenerationDefaults& d, const std::string& where) {
  try {
    d.over({}).validate(1);
  } catch (const Error& e) {
    throw Error(sentence("{}: ", where) + e.what());
  }
}

}  // namespace

SamplingParams GenerationDefaults::over(SamplingParams p) const {
  p.temperature = temperature.value_or(p.temperature);
  p.top_k = top_k.value_or(p.top_k);
  p.top_p = top_p.value_or(p.top_p);
  p.min_p = min_p.value_or(p.min_p);
  p.repetition_penalty = repetition_penalty.value_or(p.repetition_penalty);
  return p;
}

std::string GenerationDefaults::text() const {
  std::string out;
  auto add = [&out](const char* name, const auto& value) {
    if (value) out += fmt::format("{}{} {:g}", out.empty() ? "" : ", ", name, double(*value));
  };
  add("temperature", temperature);
  add("top_k", top_k);
  add("top_p", top_p);
  add("min_p", min_p);
  add("repetition_penalty", repetition_penalty);
  return out;
}

GenerationDefaults defaults_of_config(const Json& config, const std::string& where) {
  GenerationDefaults d = read(config, {"temperature", "top_k", "top_p", "min_p", "repetition_penalty"}, where);
  if (auto sample = config.find("do_sample"); sample != config.end() && *sample == false) d.temperature = 0;
  check_ranges(d, where);
  return d;
}

GenerationDefaults defaults_of_gguf(const Json& metadata, const std::string& where) {
  GenerationDefaults d = read(metadata,
                              {"general.sampling.temp", "general.sampling.top_k", "general.sampling.top_p", "general.sampling.min_p",
                               "general.sampling.penalty_repeat"},
                              where);
  check_ranges(d, where);
  return d;
}

}  // namespace mr
