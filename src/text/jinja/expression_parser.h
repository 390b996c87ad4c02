// Expressions by recursive descent, loosest operator first.
#pragma once

#include <initializer_list>

#include "text/jinja/ast.h"
#include "text/jinja/token_stream.h"

namespace mr::jinja {

inline constexpr size_t max_arguments = 255;  // names are searched linearly

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  ExpressionPtr expression();
  // a, b without brackets is a tuple.
  ExpressionPtr tuple_or_expression(bool with_condition = true);
  // | filter, is test and ( call ) in any order. Without a value: the filters of a block, the first with or without its bar.
  ExpressionPtr filters(ExpressionPtr value, bool start = false);

 private:
  ExpressionPtr node(Expression::Kind kind, std::string text, int line);
  void deepen(Expression& parent, const Expression& child);
  void adopt(Expression& parent, ExpressionPtr child);
  ExpressionPtr binary(std::string text, int line, ExpressionPtr left, ExpressionPtr right);
  ExpressionPtr disjunction();
  ExpressionPtr conjunction();
  ExpressionPtr negation();
  std::string comparison_operator();
  ExpressionPtr comparison();
  template <class Next>
  ExpressionPtr left_chain(std::initializer_list<std::string_view> symbols, Next next);
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filter);
  ExpressionPtr primary();
  ExpressionPtr named_primary(const Token& token, ExpressionPtr made);
  ExpressionPtr bracketed(int line);
  ExpressionPtr list(int line);
  ExpressionPtr dict(int line);
  ExpressionPtr postfix(ExpressionPtr value);
  ExpressionPtr subscript(ExpressionPtr value, int line);
  void arguments(Expression& call);
  ExpressionPtr test(ExpressionPtr value, int line);

  TokenStream& tokens_;
};

}  // namespace mr::jinja
