// Finds the stored tensors of a quantized weight, checks them, and says how they lie: one function per format, from a module's name to a
// codec and its tensors.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/quantization.h"
#include "quant/grouped.h"

namespace mr {

struct QuantizedTensors {
  const Codec* codec = nullptr;
  StoredWeight::Beside beside;
  float factor = 1;
  ActivationRounding activations;
  std::vector<const StoredTensor*> tensors;  // all that were read
};

// None: the module's weight is not quantized. Throws with file, tensor and numbers where a tensor is missing or cannot be. Values (scales,
// group numbers) are looked at if `check_values`.
std::optional<QuantizedTensors> find_quantized(const Checkpoint&, const Quantization&, const std::string& module, int64_t out, int64_t in,
                                               bool check_values);

// GGUF's NVFP4 has a factor for the whole tensor, or one for each part (expert): tensor NAME.scale. Throws unless it is a finite f32.
float factor_at(const StoredTensor& scale, const StoredTensor& weight, size_t part);

// Whether there is such a weight; files that are not there to be read have none.
bool has_quantized(const Checkpoint&, const Quantization&, const std::string& module);

}  // namespace mr
