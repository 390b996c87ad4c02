// Which format each weight gets when a model is quantized while it is loaded or converted. A name is that of a codec, or of a mix:
//   q4_k_m, q5_k_m   as the codec, with q6_k for v and down in the layers where errors cost most (the first and last eighth, and every
//                    third between)
// Whatever the name, as in llama.cpp's files:
//   - the output layer, or the embedding table that serves as one, gets q6_k (q8_0 where its rows do not divide into blocks of 256), unless
//     the format is larger;
//   - where rows do not divide into a format's blocks, the next larger format with blocks of 32 takes its place; without one the weight
//   stays;
//   - routers, convolutions, norms, biases and the small projections between Gemma 3n's streams stay as they are.
#pragma once

#include <string>
#include <string_view>

#include "quant/codec.h"

namespace mr {

struct ModelSpec;

class WeightFormats {
 public:
  WeightFormats(std::string_view name, const ModelSpec&);  // throws Error for an unknown name, with those that are known
  // in: inputs of the weight, stored: its format now
  const Codec& choose(std::string_view role, int layer, int64_t in, const Codec& stored) const;
  const std::string& name() const { return name_; }

  static void check_name(std::string_view);
  static std::string names();  // "f32, …, q4_k_m, q5_k_m"

 private:
  std::string name_;
  const Codec* codec_;
  bool mix_;
  int layers_;
  bool tied_;
};

}  // namespace mr
