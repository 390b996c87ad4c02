// safetensors: eight bytes of header length, a JSON header, then the tensors without gaps.
#pragma once

#include <vector>

#include "core/json.h"
#include "core/tensor.h"
#include "io/mmap.h"
#include "io/stored_tensor.h"

namespace mr {

struct SafetensorsFile {
  explicit SafetensorsFile(MappedFile mapped);  // parses the header; throws Error if it is invalid

  static bool recognizes(std::span<const std::byte> bytes);

  MappedFile file;
  Json metadata = Json::object();     // "__metadata__": names to strings
  std::vector<StoredTensor> tensors;  // in the order of their data

  // Files from before 2023 may have misaligned tensors. Only those are copied, into these buffers.
  std::vector<Buffer> realigned;
};

}  // namespace mr
