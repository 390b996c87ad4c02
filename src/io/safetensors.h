// safetensors: eight bytes of header length, a JSON header, then the tensors without gaps.
#pragma once

#include <vector>

#include "core/json.h"
#include "core/tensor.h"
#include "io/mmap.h"
#include "io/stored_tensor.h"

namespace mr {

struct SafetensorsFile {
  explicit SafetensorsFile(MappedFile mapped);  // reads the header; throws Error when anything in it is wrong

  static bool recognizes(std::span<const std::byte> bytes);

  MappedFile file;
  Json metadata = Json::object();     // "__metadata__": names to strings
  std::vector<StoredTensor> tensors;  // in the order of their data

  // Files of before 2023 may place a tensor off its natural alignment. Those tensors alone are copied, here.
  std::vector<Buffer> realigned;
};

}  // namespace mr
