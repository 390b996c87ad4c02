// A cursor over a template's tokens, with the errors for unexpected ones.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "text/jinja/lexer.h"

namespace mr::jinja {

class TokenStream {
 public:
  using Kind = Token::Kind;
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& here() const { return tokens_[pos_]; }
  const Token& ahead() const { return tokens_[std::min(pos_ + 1, tokens_.size() - 1)]; }
  const Token& take() { return tokens_[pos_ + 1 < tokens_.size() ? pos_++ : pos_]; }  // the last one stays

  bool accept_symbol(std::string_view text) {
    if (!here().symbol(text)) return false;
    take();
    return true;
  }
  bool accept_name(std::string_view text) {
    if (!here().name(text)) return false;
    take();
    return true;
  }
  void expect_symbol(std::string_view text) {
    if (!accept_symbol(text)) unexpected("'" + std::string(text) + "'");
  }
  void expect(Kind kind, std::string_view what) {
    if (here().kind != kind) unexpected(what);
    take();
  }
  std::string expect_name(std::string_view what) {
    if (here().kind != Kind::name) unexpected(what);
    return take().text;
  }
  [[noreturn]] void unexpected(std::string_view wanted) const { unexpected(wanted, here()); }
  [[noreturn]] static void unexpected(std::string_view wanted, const Token& found) {
    static constexpr const char* kinds[] = {"text", "'{{'", "'}}'", "'{%'", "'%}'", "", "a string", "", "", "", "the end of the template"};
    const char* kind = kinds[static_cast<int>(found.kind)];
    if (*kind == 0) fail("chat template, line {}: expected {} but found '{}'", found.line, wanted, found.text);
    fail("chat template, line {}: expected {} but found {}", found.line, wanted, kind);
  }

  // RAII: one more bracket or block is open.
  class Nested {
   public:
    explicit Nested(TokenStream& stream) : stream_(stream) {
      check(++stream_.nesting_ <= max_nesting, "chat template, line {}: nested deeper than {}", stream_.here().line, max_nesting);
    }
    ~Nested() { --stream_.nesting_; }
    Nested(const Nested&) = delete;

   private:
    TokenStream& stream_;
  };

 private:
  static constexpr int max_nesting = 100;

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  int nesting_ = 0;
};

}  // namespace mr::jinja
