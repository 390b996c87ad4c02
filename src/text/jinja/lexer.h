// Cuts a template into tokens, with Jinja's white-space rules under trim_blocks and lstrip_blocks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mr::jinja {

struct Token {
  enum class Kind : unsigned char { data, output_begin, output_end, block_begin, block_end, name, string, integer, real, symbol, end } kind;
  std::string text;  // data and strings: the content; others: as written
  int line;

  bool is(Kind k, std::string_view t) const { return kind == k && text == t; }
  bool symbol(std::string_view t) const { return is(Kind::symbol, t); }
  bool name(std::string_view t) const { return is(Kind::name, t); }
};

std::vector<Token> tokenize(const std::string& source);

}  // namespace mr::jinja
