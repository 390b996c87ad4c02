#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace mr {

static RopeSpec::Scaling scaling_from(const Config& config, const std::string& type) {
  using S = RopeSpec::Scaling;
  if (type == "default" || type == "none") return S::none;
  if (type == "linear") return S::linear;
  if (type == "dynamic") return S::dynamic;
  if (type == "llama3") return S::llama3;
  if (type == "yarn") return S::yarn;
  if (type == "longrope" || type == "su") return S::longrope;
  if (type == "factors") return S::factors;
  if (type == "proportional") return S::proportional;
  config.require(false, "rope scaling '{}' is not known", type);
  return S::none;
}

RopeSpec rope_from(const Config& config, int head_dim, const char* layer_type) {
  const char* key = config.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  static const Json nothing = Json::object();
  Config all = config.has(key) ? config.object(key) : Config(nothing, key);
  Config p = layer_type && all.has(layer_type) ? all.object(layer_type) : all;

  RopeSpec r;
  r.theta = float(p.number("rope_theta", config.number("rope_theta", 10000)));
  r.dim = config.narrow(head_dim * p.number("partial_rotary_factor", config.number("partial_rotary_factor", 1)), "the rope's size");
  config.require(r.dim > 0 && r.dim <= head_dim && r.dim % 2 == 0, "a rope of {} dimensions does not fit heads of {}", r.dim, head_dim);
  r.scaling = scaling_from(p, p.text("rope_type", p.text("type", "default")));
  if (r.scaling == RopeSpec::Scaling::proportional) {
    r.pairs = r.dim / 2;
    r.dim = head_dim;
  }
  int max_context = int(config.integer("max_position_embeddings", 0));
  r.original = int(p.integer("original_max_position_embeddings", config.integer("original_max_position_embeddings", max_context)));
  if (r.scaling == RopeSpec::Scaling::dynamic) r.original = max_context;
  r.factor = float(p.number("factor", r.original ? double(max_context) / r.original : 1));
  r.low_freq_factor = float(p.number("low_freq_factor", 1));
  r.high_freq_factor = float(p.number("high_freq_factor", 4));
  r.beta_fast = float(p.number("beta_fast", 32));
  r.beta_slow = float(p.number("beta_slow", 1));
  r.truncate = p.boolean("truncate", true);
  r.attention_factor = float(p.number("attention_factor", 0));
  r.mscale = float(p.number("mscale", 0));
  r.mscale_all_dim = float(p.number("mscale_all_dim", 0));
  r.short_factor = p.numbers("short_factor");
  r.long_factor = p.numbers("long_factor");
  bool per_pair = r.scaling == RopeSpec::Scaling::longrope || r.scaling == RopeSpec::Scaling::factors;
  size_t pairs = size_t(r.dim / 2);
  p.require(!per_pair || (r.short_factor.size() == pairs && r.long_factor.size() == pairs),
            "short_factor and long_factor have {} and {} entries, but the rope has {} pairs", r.short_factor.size(), r.long_factor.size(),
            pairs);
  p.require(r.scaling == RopeSpec::Scaling::none || per_pair || r.original > 0, "rope scaling needs max_position_embeddings");
  return r;
}

static std::vector<float> plain_frequencies(const RopeSpec& r) {
  std::vector<float> f(size_t(r.dim / 2));
  for (size_t i = 0; i < f.size(); i++) f[i] = 1.0f / std::pow(r.theta, float(2 * i) / float(r.dim));
  return f;
}

// Long wavelengths are divided by the factor, short ones kept, with a ramp between (Llama 3.1).
static void scale_llama3(const RopeSpec& r, std::vector<float>& freq) {
  float low = r.original / r.low_freq_factor, high = r.original / r.high_freq_factor;
  for (float& f : freq) {
    float wavelength = 2 * std::numbers::pi_v<float> / f;
    if (wavelength < high) continue;
    if (wavelength > low) {
      f /= r.factor;
    } else {
      float smooth = (r.original / wavelength - r.low_freq_factor) / (r.high_freq_factor - r.low_freq_factor);
      f = (1 - smooth) * f / r.factor + smooth * f;
    }
  }
}

// YaRN (Peng et al. 2023): interpolate the slow dimensions, keep the fast ones, ramp between two correction dimensions.
static void scale_yarn(const RopeSpec& r, std::vector<float>& freq) {
  auto correction = [&](double rotations) {
    return r.dim * std::log(r.original / (rotations * 2 * std::numbers::pi)) / (2 * std::log(double(r.theta)));
  };
  double low = correction(r.beta_fast), high = correction(r.beta_slow);
  if (r.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, double(r.dim - 1));
  if (low == high) high += 0.001;
  for (size_t i = 0; i < freq.size(); i++) {
    float ramp = std::clamp((float(i) - float(low)) / float(high - low), 0.0f, 1.0f);
    freq[i] = freq[i] / r.factor * ramp + freq[i] * (1 - ramp);
  }
}

static float yarn_mscale(float factor, float mscale) { return factor <= 1 ? 1 : 0.1f * mscale * std::log(factor) + 1; }

static float attention_factor(const RopeSpec& r) {
  if (r.attention_factor > 0) return r.attention_factor;
  if (r.scaling == RopeSpec::Scaling::yarn)
    return r.mscale && r.mscale_all_dim ? yarn_mscale(r.factor, r.mscale) / yarn_mscale(r.factor, r.mscale_all_dim)
                                        : yarn_mscale(r.factor, 1);
  if (r.scaling == RopeSpec::Scaling::longrope && r.factor > 1) return std::sqrt(1 + std::log(r.factor) / std::log(float(r.original)));
  return 1;
}

static std::vector<float> divided(std::vector<float> freq, const std::vector<float>& by) {
  for (size_t i = 0; i < freq.size(); i++) freq[i] /= by[i];
  return freq;
}

RopeTable make_rope(const RopeSpec& r) {
  using S = RopeSpec::Scaling;
  RopeTable t;
  t.dim = r.dim;
  t.interleaved = r.interleaved;
  t.theta = r.theta;
  t.factor = r.factor;
  t.original = r.original;
  t.inv_freq = plain_frequencies(r);
  t.scale = attention_factor(r);
  switch (r.scaling) {
    case S::none:
      break;
    case S::linear:
      for (float& f : t.inv_freq) f /= r.factor;
      break;
    case S::dynamic:
      t.length = RopeTable::Length::dynamic;
      break;
    case S::llama3:
      scale_llama3(r, t.inv_freq);
      break;
    case S::yarn:
      scale_yarn(r, t.inv_freq);
      break;
    case S::longrope:
      t.length = RopeTable::Length::longrope;
      t.long_inv_freq = divided(t.inv_freq, r.long_factor);
      t.inv_freq = divided(t.inv_freq, r.short_factor);
      break;
    case S::proportional:
      for (size_t i = 0; i < t.inv_freq.size(); i++) t.inv_freq[i] = i < size_t(r.pairs) ? t.inv_freq[i] / r.factor : 0;
      break;
    case S::factors:
      t.inv_freq = divided(t.inv_freq, r.short_factor);
      break;
  }
  return t;
}

}  // namespace mr
