// Translates \s and \w to their Unicode definitions, because PCRE2's differ from Oniguruma's in a few characters.
#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "core/error.h"

namespace mr {

namespace {

constexpr size_t max_pattern = 65536;     // bytes
constexpr uint32_t max_heap = 64 << 10;   // KiB of the interpreter's backtracking stack
constexpr uint32_t quick_steps = 16'384;  // backtracking steps of one attempt
constexpr size_t quick_starts = 256;      // start positions of one call: 4 million steps at worst, some tens of milliseconds

constexpr std::string_view space_class =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view word_class = R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200c}\x{200d})";

// Whether a group or \g begins a call of a group: (?R), (?1), (?-1), (?&name), (?P>name), \g<name>, \g'name'.
bool begins_call(std::string_view text) {
  if (text.starts_with("\\g<") || text.starts_with("\\g'") || text.starts_with("(?P>") || text.starts_with("(?&")) return true;
  if (!text.starts_with("(?") || text.size() < 4) return false;
  const bool is_signed = text[2] == '+' || text[2] == '-';
  const char c = text[is_signed ? 3 : 2];
  return (c >= '0' && c <= '9') || (c == 'R' && !is_signed);
}

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
    // The interpreter walks through all frames at each call, in a single step that no limit ends.
    check(in_class || !begins_call(std::string_view(pattern).substr(i)), "the split pattern '{}' calls a group, which is not supported",
          pattern);
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

static constexpr size_t calls_between_looks = 16;

MatchBudget::MatchBudget(size_t text_bytes, const Allowance& allowance)
    : allowance_(allowance), end_(std::chrono::steady_clock::now() + std::chrono::seconds(1) + std::chrono::microseconds(4 * text_bytes)) {}

bool MatchBudget::allows_a_call() {
  if (calls_++ % calls_between_looks != 0) return true;
  allowance_.check_time("splitting the text");
  return std::chrono::steady_clock::now() < end_;
}

void MatchBudget::look_next() { calls_ = 0; }

struct Regex::Code {
  std::string pattern;
  pcre2_code* code = nullptr;
  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(const std::string& pattern) {
  check(pattern.size() <= max_pattern, "a split pattern has {} bytes: at most {} are allowed", pattern.size(), max_pattern);
  auto made = std::make_shared<Code>();
  made->pattern = pattern;
  std::string source = translate(pattern);
  int error = 0;
  size_t offset = 0;
  constexpr uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_USE_OFFSET_LIMIT | PCRE2_NEVER_BACKSLASH_C;
  made->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(), options, &error, &offset, nullptr);
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

// An attempt may take few steps at first, so that one call can try many start positions before the clock is checked. Where they do
// not suffice, as in a long run of spaces that is matched from its end, the limit of the next attempt grows with the text's length.
void Regex::each_match(std::string_view text, MatchBudget& budget, const Visit& visit) const {
  std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> match(pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  std::unique_ptr<pcre2_match_context, void (*)(pcre2_match_context*)> context(pcre2_match_context_create(nullptr),
                                                                               pcre2_match_context_free);
  check(match && context, "no memory to match a split pattern");
  pcre2_set_heap_limit(context.get(), max_heap);
  auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  auto attempt = [&](size_t pos, uint32_t options) {
    options |= PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
    return pcre2_match(code_->code, subject, text.size(), pos, options, match.get(), context.get());
  };
  bool patient = false;
  for (size_t pos = 0; pos < text.size();) {
    check(budget.allows_a_call(), "the split pattern '{}' takes too long on a text of {} bytes", code_->pattern, text.size());
    size_t last = std::min(pos + (patient ? 0 : quick_starts), text.size());
    pcre2_set_offset_limit(context.get(), last);
    pcre2_set_match_limit(context.get(), static_cast<uint32_t>(patient ? std::min<size_t>(8 * text.size(), UINT32_MAX) : quick_steps));
    int found = attempt(pos, 0);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = attempt(pos, PCRE2_NO_JIT);  // the interpreter's stack is on the heap
    if (found == PCRE2_ERROR_MATCHLIMIT && !patient && 8 * text.size() > quick_steps) {
      patient = true;
      budget.look_next();
      continue;
    }
    patient = false;
    if (found == PCRE2_ERROR_NOMATCH) {
      for (pos = last + 1; pos < text.size() && (text[pos] & 0xC0) == 0x80;) ++pos;
      continue;
    }
    check(found >= 0, "the split pattern '{}' gave up on a text of {} bytes (PCRE2 error {})", code_->pattern, text.size(), found);
    const size_t* range = pcre2_get_ovector_pointer(match.get());
    check(range[0] >= pos && range[0] < range[1], "the split pattern '{}' moves a match's start past its end", code_->pattern);
    visit(range[0], range[1]);
    pos = range[1];
  }
}

}  // namespace mr
