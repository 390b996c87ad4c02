// tokenizer.json: loaded, and texts pass through it both ways, or a sentence.
#include "core/bounded_json.h"
#include "fuzz/input.h"
#include "fuzz/mutate.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

using namespace mr;

static constexpr std::string_view kTexts[] = {"Hello wörld, a ab  abc \n\n 12 345!",
                                              "ﷺ e\xCC\x81 <s>[x] aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"};

static void use(const Tokenizer& tokenizer) {
  for (std::string_view text : kTexts) {
    std::vector<int32_t> ids = tokenizer.encode(text, true);
    for (int32_t id : ids)
      if (id < 0 || id >= tokenizer.vocab_size()) std::abort();
    std::string back = tokenizer.decode(ids, false);
    if (valid_utf8_prefix(back) != back.size()) std::abort();
  }
  if (tokenizer.vocab_size() > 1 << 18) std::abort();  // of an input of a few kilobytes
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    use(Tokenizer::from_json(parse_json<Json>(fuzz::as_text(data, size), "the input"), nullptr));
  } catch (const Error& e) {
    fuzz::check_message(e);
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  static const std::vector<std::string_view> words = fuzz::words(
      R"(type Sequence NFC NFKD Lowercase StripAccents Strip Prepend Replace normalizers pretokenizers processors decoders ByteLevel
ByteFallback Fuse Metaspace Split Digits Punctuation Whitespace WhitespaceSplit CharDelimiterSplit TemplateProcessing
RobertaProcessing pattern String Regex content behavior Removed Isolated MergedWithPrevious MergedWithNext Contiguous invert
individual_digits delimiter replacement prepend_scheme always first never split prepend strip_left strip_right start stop
special_tokens single SpecialToken id ids cls sep model vocab merges BPE byte_fallback ignore_merges fuse_unk unk_token
added_tokens special lstrip rstrip single_word normalized normalizer pre_tokenizer post_processor decoder add_prefix_space
use_regex a ab abc ▁ <0x61> (a+)+b \\\\p{L}+ a*b (?=a) \\\\s+ [^a] (?<=a)b \\\\K a b)");
  fuzz::Random random(seed);
  return fuzz::write_back(fuzz::mutate_json({reinterpret_cast<char*>(data), size}, words, random, max_size), data, max_size);
}
