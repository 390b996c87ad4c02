// How GGUF's byte-level tokenizers cut a text: the file has a name, the rules are known by it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mr {

// A family's rules are applied one after the other.
struct SplitFamily {
  std::vector<std::string_view> names;
  std::vector<std::string> patterns;
  bool ignore_merges = false, add_bos = false, nfc = false;
};

std::vector<SplitFamily> split_families();
SplitFamily split_family(const std::string& name);  // tokenizer.ggml.pre; throws for one that is not known

}  // namespace mr
