// A whole model: files that are opened, planned, loaded and asked for an answer on the reference backend, or a sentence.
// The input is the files one after the other: a letter for the name, three bytes of length, the bytes.
#include <array>

#include "engine/chat.h"
#include "engine/engine.h"
#include "fuzz/input.h"
#include "fuzz/mutate.h"

using namespace mr;

namespace {

struct File {
  char letter;
  std::string_view name;
};
constexpr std::array files{File{'c', "config.json"},
                           File{'s', "model.safetensors"},
                           File{'i', "model.safetensors.index.json"},
                           File{'t', "tokenizer.json"},
                           File{'T', "tokenizer_config.json"},
                           File{'j', "chat_template.jinja"},
                           File{'e', "generation_config.json"},
                           File{'g', "model.gguf"}};

struct Section {
  char letter = 0;
  std::string bytes;
};

std::vector<Section> sections_of(std::string_view input) {
  std::vector<Section> sections;
  while (input.size() >= 4) {
    const size_t n = size_t(uint8_t(input[1])) | size_t(uint8_t(input[2])) << 8 | size_t(uint8_t(input[3])) << 16;
    sections.push_back({input[0], std::string(input.substr(4, n))});
    input.remove_prefix(std::min(input.size(), 4 + n));
  }
  return sections;
}

std::string joined(const std::vector<Section>& sections) {
  std::string out;
  for (const Section& s : sections) {
    for (int c : {int(s.letter), int(s.bytes.size()), int(s.bytes.size() >> 8), int(s.bytes.size() >> 16)}) out += char(c);
    out += s.bytes;
  }
  return out;
}

void ask(const std::filesystem::path& path) {
  const EngineOptions options{
      .device = "ref", .threads = 1, .max_seqs = 2, .max_batch_tokens = 8, .state_bytes = 1 << 20, .overlap = false};
  const std::unique_ptr<Engine> engine = Engine::create(path, options);
  Request request{.prompt = {0, 1, 2, 1, 0}};
  if (const Tokenizer* tokenizer = engine->tokenizer()) {
    request.prompt = tokenizer->encode("Hello a ab  12\n", true);
    if (!tokenizer->chat_template().empty()) ChatFormat(*tokenizer).encode({{{"role", "user"}, {"content", "Hi"}}});
  }
  request.sampling.max_tokens = 3;
  request.sampling.seed = 1;
  bool over = false;
  engine->submit(std::move(request), [&](const TokenEvent& event) { over = over || event.finish != Finish::none; });
  while (engine->step()) {
  }
  if (!over) std::abort();
  engine->check_invariants();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::MemoryDirectory directory;
  for (const File& file : files) directory.remove(file.name);
  bool is_gguf = false;
  for (const Section& section : sections_of(fuzz::as_text(data, size)))
    for (const File& file : files)
      if (file.letter == section.letter) {
        directory.write(file.name, section.bytes);
        is_gguf = is_gguf || section.letter == 'g';
      }
  try {
    ask(is_gguf ? directory.path() / "model.gguf" : directory.path());
  } catch (const Error& e) {
    fuzz::check_message(e);
  }
  return 0;
}

// One file changes, by what it is. Numbers of configurations mostly, so that tensors still fit.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  static const std::vector<std::string_view> words = fuzz::words(
      "llama qwen2 mistral mamba gemma3n_text lfm2 granite nemotron eos_token_id rope_theta rope_scaling factor sliding_window tie_word_embeddings F32 F16 BF16 data_offsets");
  fuzz::Random random(seed);
  std::vector<Section> sections = sections_of({reinterpret_cast<char*>(data), size});
  if (sections.empty()) return LLVMFuzzerMutate(data, size, max_size);
  Section& section = sections[random.pick(sections.size())];
  switch (section.letter) {
    case 's':
      section.bytes = fuzz::mutate_safetensors(section.bytes, words, random, max_size);
      break;
    case 'g':
      section.bytes = fuzz::mutate_gguf(section.bytes, random, max_size);
      break;
    case 'j':
      section.bytes = fuzz::mutate_bytes(section.bytes, max_size);
      break;
    default:
      section.bytes = fuzz::mutate_json(section.bytes, words, random, max_size);
  }
  return fuzz::write_back(joined(sections), data, max_size);
}
