// A GGUF file, as far as a model is known from it: header, tensors, spec and tokenizer.
#include "fuzz/input.h"
#include "fuzz/mutate.h"
#include "io/gguf.h"
#include "model/arch/arch.h"
#include "text/tokenizer.h"

using namespace mr;

template <class Read>
static void or_sentence(Read read) {
  try {
    read();
  } catch (const Error& e) {
    fuzz::check_message(e);
  }
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::MemoryFile memory;
  if (size < 4 || !GgufFile::recognizes({reinterpret_cast<const std::byte*>(data), size})) return 0;
  or_sentence([&] {
    memory.map(data, size);
    auto files = Checkpoint::open(memory.path());
    for (const StoredTensor& t : files->tensors())
      if (t.bytes.size() > size) std::abort();
    or_sentence([&] { parameters(describe(*files).spec); });
    or_sentence([&] {
      Tokenizer tokenizer = Tokenizer::from_gguf(files->config());
      std::vector<int32_t> ids = tokenizer.encode("Hello a ab  12\n", true);
      tokenizer.decode(ids, false);
    });
  });
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  fuzz::Random random(seed);
  return fuzz::write_back(fuzz::mutate_gguf({reinterpret_cast<char*>(data), size}, random, max_size), data, max_size);
}
