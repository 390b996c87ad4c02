#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "text/unicode.h"

namespace mr::jinja {

namespace {

using Kind = Token::Kind;

constexpr size_t max_tokens = 100'000;
constexpr size_t max_name = 200;  // names are compared at every step

bool blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\v' || c == '\f'; }
bool digit(char c) { return c >= '0' && c <= '9'; }
bool letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80) != 0; }

// Line ends become \n; one at the very end is dropped.
std::string normal_lines(const std::string& source) {
  std::string out = to_valid_utf8(source);
  replace_all(out, "\r\n", "\n");
  replace_all(out, "\r", "\n");
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(const std::string& source) : source_(normal_lines(source)) {}

  std::vector<Token> run() {
    while (pos_ < source_.size()) {
      size_t tag = find_tag(pos_);
      if (tag == std::string::npos) {
        add_data(source_.substr(pos_));
        pos_ = source_.size();
        break;
      }
      take_text(tag);
      switch (source_[pos_ + 1]) {
        case '#':
          comment();
          break;
        case '{':
          inside("}}", Kind::output_begin, Kind::output_end);
          break;
        default:
          block();
          break;
      }
    }
    put({Kind::end, "", line_});
    return std::move(tokens_);
  }

 private:
  void put(Token token) {
    check(tokens_.size() < max_tokens, "chat template, line {}: more than {} words and signs", line_, max_tokens);
    tokens_.push_back(std::move(token));
  }

  size_t find_tag(size_t from) const {
    for (size_t at = source_.find('{', from); at != std::string::npos && at + 1 < source_.size(); at = source_.find('{', at + 1)) {
      char next = source_[at + 1];
      if (next == '{' || next == '%' || next == '#') return at;
    }
    return std::string::npos;
  }

  void add_data(std::string text) {
    if (!text.empty()) put({Kind::data, std::move(text), line_});
  }

  // The text before the tag at `tag`, stripped as the tag's sign or lstrip_blocks says.
  void take_text(size_t tag) {
    std::string text = source_.substr(pos_, tag - pos_);
    bool starts_line = pos_ == 0 || source_[pos_ - 1] == '\n';
    char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    int lines = static_cast<int>(std::count(text.begin(), text.end(), '\n'));
    if (sign == '-') {
      text.erase(text.size() - trailing_space(text));
    } else if (sign != '+' && source_[tag + 1] != '{') {
      size_t line = text.rfind('\n') + 1;
      if ((line > 0 || starts_line) && std::all_of(text.begin() + static_cast<long>(line), text.end(), blank)) text.erase(line);
    }
    add_data(std::move(text));
    line_ += lines;
    pos_ = tag;
  }

  void move_to(size_t pos) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<long>(pos_), source_.begin() + static_cast<long>(pos), '\n'));
    pos_ = pos;
  }

  // Advances past the end of a tag at pos_; `sign`, before it, decides whether the text that follows is stripped.
  void finish_tag(char sign, bool trim_newline) {
    if (sign == '-') {
      move_to(pos_ + leading_space(std::string_view(source_).substr(pos_)));
    } else if (trim_newline && sign != '+' && pos_ < source_.size() && source_[pos_] == '\n') {
      move_to(pos_ + 1);
    }
  }

  void comment() {
    size_t end = source_.find("#}", pos_ + 2);
    check(end != std::string::npos, "chat template, line {}: a comment is not closed", line_);
    char sign = end > pos_ + 2 ? source_[end - 1] : ' ';
    move_to(end + 2);
    finish_tag(sign, true);
  }

  void block() {
    size_t at = pos_ + 2;
    if (at < source_.size() && (source_[at] == '-' || source_[at] == '+')) ++at;
    while (at < source_.size() && blank(source_[at])) ++at;
    if (source_.compare(at, 3, "raw") == 0 && raw(at + 3)) return;
    inside("%}", Kind::block_begin, Kind::block_end);
  }

  // {% raw %} … {% endraw %}; `at` is after the word raw.
  bool raw(size_t at) {
    while (at < source_.size() && blank(source_[at])) ++at;
    char sign = at < source_.size() ? source_[at] : ' ';
    if (sign == '-' || sign == '+') ++at;
    if (source_.compare(at, 2, "%}") != 0) return false;
    move_to(at + 2);
    finish_tag(sign, true);
    for (size_t tag = source_.find("{%", pos_); tag != std::string::npos; tag = source_.find("{%", tag + 2)) {
      size_t word = tag + 2;
      if (word < source_.size() && (source_[word] == '-' || source_[word] == '+')) ++word;
      while (word < source_.size() && blank(source_[word])) ++word;
      if (source_.compare(word, 6, "endraw") != 0) continue;
      word += 6;
      while (word < source_.size() && blank(source_[word])) ++word;
      char closing = word < source_.size() ? source_[word] : ' ';
      if (closing == '-' || closing == '+') ++word;
      if (source_.compare(word, 2, "%}") != 0) continue;
      take_text(tag);
      move_to(word + 2);
      finish_tag(closing, true);
      return true;
    }
    fail("chat template, line {}: raw is not closed", line_);
  }

  void inside(std::string_view closing, Kind begin, Kind end) {
    put({begin, "", line_});
    pos_ += 2;
    if (pos_ < source_.size() && (source_[pos_] == '-' || source_[pos_] == '+')) ++pos_;
    int brackets = 0;
    while (true) {
      while (pos_ < source_.size() && blank(source_[pos_])) move_to(pos_ + 1);
      check(pos_ < source_.size(), "chat template, line {}: a tag is not closed", line_);
      char sign = source_[pos_];
      bool signed_end = (sign == '-' || (sign == '+' && closing == "%}")) && source_.compare(pos_ + 1, 2, closing) == 0;
      if (brackets == 0 && (signed_end || source_.compare(pos_, 2, closing) == 0)) {
        put({end, "", line_});
        pos_ += signed_end ? 3 : 2;
        finish_tag(signed_end ? sign : ' ', closing == "%}");
        return;
      }
      token();
      const Token& last = tokens_.back();
      if (last.kind != Kind::symbol) continue;
      if (last.text == "(" || last.text == "[" || last.text == "{") ++brackets;
      if (last.text == ")" || last.text == "]" || last.text == "}") --brackets;
      check(brackets >= 0, "chat template, line {}: unexpected '{}'", line_, last.text);
    }
  }

  void token() {
    char c = source_[pos_];
    if (c == '"' || c == '\'') return string(c);
    if (digit(c)) return number();
    if (letter(c)) {
      size_t end = pos_;
      while (end < source_.size() && (letter(source_[end]) || digit(source_[end]))) ++end;
      check(end - pos_ <= max_name, "chat template, line {}: a name is longer than {} bytes", line_, max_name);
      put({Kind::name, source_.substr(pos_, end - pos_), line_});
      pos_ = end;
      return;
    }
    static constexpr std::array<std::string_view, 27> symbols = {"**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<", ">",
                                                                 "=",  "(",  ")",  "[",  "]",  "{",  "}", ",", ":", ".", "|", ";", "!"};
    for (std::string_view symbol : symbols) {
      if (source_.compare(pos_, symbol.size(), symbol) == 0) {
        put({Kind::symbol, std::string(symbol), line_});
        pos_ += symbol.size();
        return;
      }
    }
    fail("chat template, line {}: unexpected character '{}'", line_,
         source_.substr(pos_, code_point_length(static_cast<unsigned char>(c))));
  }

  void number() {
    size_t end = pos_;
    auto digits = [&] {
      while (end < source_.size() && (digit(source_[end]) || source_[end] == '_')) ++end;
    };
    digits();
    bool real = false;
    if (end + 1 < source_.size() && source_[end] == '.' && digit(source_[end + 1])) {
      real = true;
      ++end;
      digits();
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      size_t exponent = end + 1;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
      if (exponent < source_.size() && digit(source_[exponent])) {
        real = true;
        end = exponent;
        digits();
      }
    }
    std::string text = source_.substr(pos_, end - pos_);
    std::erase(text, '_');
    put({real ? Kind::real : Kind::integer, std::move(text), line_});
    pos_ = end;
  }

  uint32_t hex(size_t at, size_t n) const {
    uint32_t value = 0;
    for (size_t i = at; i < at + n; ++i) {
      char c = i < source_.size() ? source_[i] : ' ';
      int d = digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
      check(d >= 0, "chat template, line {}: a broken escape in a string", line_);
      value = value * 16 + static_cast<uint32_t>(d);
    }
    return value;
  }

  void escape(std::string& text) {
    char kind = source_[pos_++];
    static constexpr std::string_view from = "nrtbfav0\\'\"", to("\n\r\t\b\f\a\v\0\\'\"", 11);
    if (size_t simple = from.find(kind); simple != std::string_view::npos) {
      text += to[simple];
    } else if (kind == 'x' || kind == 'u' || kind == 'U') {
      size_t n = kind == 'x' ? 2 : kind == 'u' ? 4 : 8;
      uint32_t c = hex(pos_, n);
      check(c < 0x110000 && (c < 0xD800 || c > 0xDFFF), "chat template, line {}: an escape that is no character", line_);
      append_utf8(text, c);
      pos_ += n;
    } else if (kind == '\n') {
      ++line_;
    } else {
      text += '\\';
      text += kind;
    }
  }

  void string(char quote) {
    int line = line_;
    std::string text;
    ++pos_;
    while (true) {
      check(pos_ < source_.size(), "chat template, line {}: a string is not closed", line);
      char c = source_[pos_++];
      if (c == quote) break;
      if (c == '\n') ++line_;
      if (c == '\\' && pos_ < source_.size()) {
        escape(text);
      } else {
        text += c;
      }
    }
    put({Kind::string, std::move(text), line});
  }

  std::string source_;
  size_t pos_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(const std::string& source) { return Lexer(source).run(); }

}  // namespace mr::jinja
