// What the name of a weight file tells.
#pragma once

#include <string>
#include <string_view>

namespace mr {

// "model-00002-of-00003" is part 2 of 3 of "model".
struct PartName {
  std::string whole;
  int part = 1, parts = 1;
};
PartName part_name(std::string_view stem);

// The quantization that a GGUF file's name ends in, in capitals: Q4_K_M, UD-Q4_K_XL, BF16; empty: none.
std::string quantization_of(std::string_view file);
// Whether a GGUF file holds a language model: an image encoder (mmproj) or an importance matrix does not.
bool is_language_gguf(std::string_view file);

}  // namespace mr
