// What a checkpoint's quantization_config says of its weights, read in one place for all libraries that write one. Formats that are not
// known are refused here, by name.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint.h"
#include "quant/activations.h"

namespace mr {

// How the weight of one module is stored. quantized.cpp says which tensors that takes.
struct WeightScheme {
  enum class Format : uint8_t {
    gptq,      // qweight [in bits / 32, out], qzeros, scales, g_idx
    awq,       // qweight [in, out bits / 32], qzeros, scales
    packed,    // compressed-tensors: weight_packed [out, in bits / 32], weight_scale, weight_zero_point
    integers,  // weight as bytes, weight_scale
    floats,    // weight in FP8, weight_scale or weight_scale_inv
    mxfp4,     // E2M1 under E8M0
    nvfp4,     // E2M1 under E4M3 under an f32
    mxfp8,     // E4M3 under E8M0
    mlx,       // weight [out, in bits / 32], scales, biases
    bnb_int8,  // bitsandbytes: weight as bytes, SCB
    bnb_4bit,  // weight [n / 2, 1], absmax, perhaps nested
  };
  Format format = Format::gptq;
  int bits = 0;
  int64_t group = 0;               // inputs of a scale; 0: the row
  int64_t block_rows = 1;          // outputs of a scale; 0: all
  bool zeros = false;              // a zero point of every group is stored
  bool zeros_as_they_are = false;  // GPTQ's second convention; the first stores them minus 1
  bool symmetric = false;
  bool outer_divides = false;  // NVFP4: by its global scale (compressed-tensors), else it multiplies (ModelOpt)
  ActivationRounding activations;
  bool stored_input_scale = false;  // of activations: one for all rows; else it is found in each
};

class Quantization {
 public:
  Quantization();                            // none
  explicit Quantization(const Checkpoint&);  // throws where the format is not known
  ~Quantization();
  Quantization(Quantization&&) noexcept;
  Quantization& operator=(Quantization&&) noexcept;

  bool none() const { return !rules_; }
  // By the name of a module, "model.layers.0.mlp.up_proj". Whether it is quantized at all, its tensors say.
  WeightScheme of(std::string_view module) const;

 private:
  struct Rules;
  std::unique_ptr<Rules> rules_;
};

}  // namespace mr
