#include "model/weight_formats.h"

#include <algorithm>

#include "core/error.h"
#include "model/spec.h"
#include "quant/encode.h"

namespace mr {

static constexpr std::string_view kMixes[] = {"q4_k_m", "q5_k_m"};

// For rows that are no multiple of 256; other names: none.
static constexpr std::pair<std::string_view, std::string_view> kSmallerBlocks[] = {
    {"q2_k", "q4_0"}, {"q3_k", "q4_0"}, {"q4_k", "q5_0"}, {"q5_k", "q5_1"}, {"q6_k", "q8_0"}, {"iq4_xs", "iq4_nl"}};

static constexpr std::string_view kKept[] = {"router",        "altup_in",    "altup_out",    "altup_router",         "altup_predict",
                                             "altup_correct", "laurel_left", "laurel_right", "per_layer_projection", "conv"};

static bool is_mix(std::string_view name) { return std::ranges::count(kMixes, name) > 0; }

std::string WeightFormats::names() {
  std::string names = encodable_names();
  for (std::string_view mix : kMixes) names.append(", ").append(mix);
  return names;
}

void WeightFormats::check_name(std::string_view name) {
  const Codec* codec = find_codec(name);
  check(is_mix(name) || (codec && codec->encode), "weights cannot be written as '{}', but as {}", name, names());
}

WeightFormats::WeightFormats(std::string_view name, const ModelSpec& spec)
    : name_(name), mix_(is_mix(name)), layers_(int(spec.layers.size())), tied_(spec.tied) {
  check_name(name);
  codec_ = find_codec(mix_ ? name.substr(0, name.size() - 2) : name);
}

// Whether errors in this layer cost most, as llama.cpp's mixes have it.
static bool needs_more_bits(int layer, int layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

static const Codec* with_blocks_for(const Codec* codec, int64_t in) {
  for (auto [large, small] : kSmallerBlocks)
    if (in % codec->block != 0 && codec->name == large) codec = find_codec(small);
  return in % codec->block == 0 ? codec : nullptr;
}

const Codec& WeightFormats::choose(std::string_view role, int layer, int64_t in, const Codec& stored) const {
  if (codec_->block == 1) return *codec_;
  if (std::ranges::count(kKept, role)) return stored;
  const Codec* codec = codec_;
  const bool output = role == "output" || (role == "embedding" && tied_);
  const bool sensitive = role == "v" || role == "down" || role == "expert_down";
  if (output || (mix_ && sensitive && needs_more_bits(layer, layers_)))
    if (const Codec* more = find_codec("q6_k"); codec->bytes_per_weight() < more->bytes_per_weight()) codec = more;
  codec = with_blocks_for(codec, in);
  return codec ? *codec : stored;
}

}  // namespace mr
