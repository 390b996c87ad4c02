// Translates \s and \w to their Unicode definitions, because PCRE2's differ from Oniguruma's in a few characters.
#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "core/error.h"

namespace mr {

namespace {

constexpr std::string_view space_class =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view word_class = R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200c}\x{200d})";

std::string translate(const std::string& pattern) {
  std::string out;
  bool in_class = false;
  auto emit = [&](std::string_view characters, bool negated, std::string_view negated_in_class) {
    if (in_class) {
      out += negated ? negated_in_class : characters;
    } else {
      out += negated ? "[^" : "[";
      out += characters;
      out += ']';
    }
  };
  for (size_t i = 0; i < pattern.size(); ++i) {
    char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      char kind = pattern[++i];
      if (kind == 's' || kind == 'S') {
        emit(space_class, kind == 'S', R"(\P{Xsp})");
      } else if (kind == 'w' || kind == 'W') {
        emit(word_class, kind == 'W', R"(\W)");
      } else {
        out += c;
        out += kind;
      }
      continue;
    }
    check(!(in_class && pattern.compare(i, 2, "&&") == 0), "the split pattern '{}' intersects character classes, which is not supported",
          pattern);
    if (c == '[' && !in_class) {
      in_class = true;
      out += c;
      for (char opening : {'^', ']'}) {
        if (i + 1 < pattern.size() && pattern[i + 1] == opening) out += pattern[++i];
      }
      continue;
    }
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

}  // namespace

struct Regex::Code {
  std::string pattern;
  pcre2_code* code = nullptr;
  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(const std::string& pattern) {
  auto made = std::make_shared<Code>();
  made->pattern = pattern;
  std::string source = translate(pattern);
  int error = 0;
  size_t offset = 0;
  made->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(), PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK, &error,
                             &offset, nullptr);
  if (made->code == nullptr) {
    PCRE2_UCHAR text[256] = {};
    pcre2_get_error_message(error, text, sizeof text);
    fail("the split pattern '{}' does not compile: {} at byte {}", pattern, reinterpret_cast<const char*>(text), offset);
  }
  pcre2_jit_compile(made->code, PCRE2_JIT_COMPLETE);  // without a JIT for this processor pcre2_match interprets
  code_ = std::move(made);
}

std::string Regex::escape(std::string_view literal) {
  std::string out;
  for (char c : literal) {
    if (std::string_view(R"(\^$.|?*+()[]{}-&#)").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

void Regex::each_match(std::string_view text, const std::function<void(size_t begin, size_t end)>& visit) const {
  std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> match(pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  for (size_t pos = 0; pos < text.size();) {
    int found = pcre2_match(code_->code, subject, text.size(), pos, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, match.get(), nullptr);
    // The JIT's stack is small; the interpreter keeps its own on the heap.
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      found = pcre2_match(code_->code, subject, text.size(), pos, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY | PCRE2_NO_JIT, match.get(), nullptr);
    }
    if (found == PCRE2_ERROR_NOMATCH) return;
    check(found >= 0, "the split pattern '{}' gave up on a text of {} bytes (PCRE2 error {})", code_->pattern, text.size(), found);
    const size_t* range = pcre2_get_ovector_pointer(match.get());
    visit(range[0], range[1]);
    pos = range[1];
  }
}

}  // namespace mr
