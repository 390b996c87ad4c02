#include "model/spec.h"

#include <fmt/format.h>

namespace mr {

int ModelSpec::add_rope(const RopeSpec& rope) {
  for (size_t i = 0; i < ropes.size(); i++)
    if (ropes[i] == rope) return int(i);
  ropes.push_back(rope);
  return int(ropes.size()) - 1;
}

int64_t norm_parameters(const ModelSpec& spec) {
  int64_t norm = spec.norm.kind == Norm::Kind::layer ? 2 * spec.dim : spec.dim, n = norm;
  for (const LayerSpec& layer : spec.layers) {
    bool has_ffn = !std::holds_alternative<std::monostate>(layer.ffn);
    n += norm * (has_ffn ? 2 : 1) * (layer.post_norms ? 2 : 1) + (spec.per_layer ? norm : 0);
    n += (spec.altup.streams ? norm : 0) + (layer.laurel ? norm : 0);
  }
  return n + spec.per_layer;
}

int64_t table_parameters(const ModelSpec& spec) {
  return int64_t(spec.vocab) * spec.dim * (spec.tied ? 1 : 2) +
         int64_t(spec.per_layer_vocab) * int64_t(spec.layers.size()) * spec.per_layer;
}

static int64_t count(const ModelSpec& spec, bool all_experts) {
  int64_t n = table_parameters(spec) + norm_parameters(spec);
  n += int64_t(spec.layers.size()) * 3 * spec.per_layer * spec.dim;
  if (spec.altup.streams) n += int64_t(spec.altup.streams - 1) * 2 * spec.dim * spec.dim;
  for (const LayerSpec& layer : spec.layers) {
    n += std::visit([&](const auto& mixer) { return mixer.parameters(spec.dim); }, layer.mixer) + layer.scaled;
    n += int64_t(layer.laurel) * 2 * spec.dim + spec.altup.parameters(spec.dim);
    if_ffn(layer.ffn, [&](const auto& ffn) { n += ffn.parameters(spec.dim, all_experts); });
  }
  return n;
}

int64_t parameters(const ModelSpec& spec) { return count(spec, true); }
int64_t active_parameters(const ModelSpec& spec) { return count(spec, false); }

ModelFacts facts_of(const ModelSpec& spec, DType kv_dtype) {
  ModelFacts facts{.n_layers = int(spec.layers.size()), .parameters = parameters(spec), .plain_blocks = true, .kv_dtype = kv_dtype};
  for (const LayerSpec& layer : spec.layers) {
    const auto* a = std::get_if<AttentionSpec>(&layer.mixer);
    if (a) facts.attention.push_back({a->heads, a->kv_heads, a->head_dim, a->window});
    facts.plain_blocks &= a && std::holds_alternative<MlpSpec>(layer.ffn);
  }
  return facts;
}

int64_t conv_slot_bytes(int64_t width, int64_t channels) { return ((width - 1) * channels * 4 + 63) / 64 * 64; }

StateLayout layout_of(const ModelSpec& spec, const StateTypes& types) {
  StateLayout layout;
  for (const LayerSpec& layer : spec.layers) {
    const StateSpec state = std::visit([&](const auto& mixer) { return mixer.state(types); }, layer.mixer);
    if (state.bytes) layout.add(state);
  }
  return layout;
}

std::string text_of(const LayerSpec& layer, const ModelSpec& spec) {
  std::string text = std::visit([&](const auto& mixer) { return mixer.text(spec); }, layer.mixer);
  if_ffn(layer.ffn, [&](const auto& ffn) { text += "; " + ffn.text(); });
  if (layer.laurel) text += fmt::format("; Laurel of rank {}", layer.laurel);
  if (spec.altup.streams) text += fmt::format("; AltUp over {} streams", spec.altup.streams);
  return text;
}

}  // namespace mr
