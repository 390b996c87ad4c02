// A safetensors file: opened or refused, and every tensor lies inside its file.
#include "fuzz/input.h"
#include "fuzz/mutate.h"
#include "io/safetensors.h"

using namespace mr;

static void check_tensors(const SafetensorsFile& file) {
  size_t total = 0;
  unsigned sum = 0;
  for (const StoredTensor& t : file.tensors) {
    total += t.bytes.size();
    for (std::byte b : t.bytes) sum += unsigned(b);  // readable, under the address sanitizer
  }
  volatile unsigned used = sum;
  (void)used;
  if (total > file.file.bytes().size()) std::abort();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::MemoryFile memory;
  if (size == 0) return 0;
  try {
    check_tensors(SafetensorsFile(memory.map(data, size)));
  } catch (const Error& e) {
    fuzz::check_message(e);
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  static const std::vector<std::string_view> words =
      fuzz::words("dtype shape data_offsets __metadata__ F32 F16 BF16 I64 U8 F4 F8_E4M3 w x");
  fuzz::Random random(seed);
  return fuzz::write_back(fuzz::mutate_safetensors({reinterpret_cast<char*>(data), size}, words, random, max_size), data, max_size);
}
