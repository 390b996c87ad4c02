#include "text/jinja/expression_parser.h"

#include <charconv>
#include <cstdlib>

namespace mr::jinja {

using Kind = Token::Kind;
using EKind = Expression::Kind;

static constexpr int max_tree = 400;  // operations in one chain

ExpressionPtr ExpressionParser::node(Expression::Kind kind, std::string text, int line) {
  auto made = std::make_unique<Expression>();
  made->kind = kind;
  made->text = std::move(text);
  made->line = line;
  return made;
}

void ExpressionParser::deepen(Expression& parent, const Expression& child) {
  parent.depth = std::max(parent.depth, child.depth + 1);
  check(parent.depth <= max_tree, "chat template, line {}: an expression of more than {} nested operations", parent.line, max_tree);
}

void ExpressionParser::adopt(Expression& parent, ExpressionPtr child) {
  if (child != nullptr) deepen(parent, *child);
  parent.children.push_back(std::move(child));
}

ExpressionPtr ExpressionParser::binary(std::string text, int line, ExpressionPtr left, ExpressionPtr right) {
  ExpressionPtr made = node(EKind::binary, std::move(text), line);
  adopt(*made, std::move(left));
  adopt(*made, std::move(right));
  return made;
}

ExpressionPtr ExpressionParser::tuple_or_expression(bool with_condition) {
  ExpressionPtr first = with_condition ? expression() : disjunction();
  if (!tokens_.here().symbol(",")) return first;
  ExpressionPtr tuple = node(EKind::tuple, "", first->line);
  adopt(*tuple, std::move(first));
  while (tokens_.accept_symbol(",")) {
    if (tokens_.here().kind == Kind::block_end || tokens_.here().kind == Kind::output_end) break;
    adopt(*tuple, with_condition ? expression() : disjunction());
  }
  return tuple;
}

ExpressionPtr ExpressionParser::expression() {
  TokenStream::Nested nested(tokens_);
  ExpressionPtr value = disjunction();
  while (tokens_.here().name("if")) {
    ExpressionPtr made = node(EKind::conditional, "", tokens_.take().line);
    adopt(*made, disjunction());
    adopt(*made, std::move(value));
    adopt(*made, tokens_.accept_name("else") ? expression() : nullptr);
    value = std::move(made);
  }
  return value;
}

ExpressionPtr ExpressionParser::disjunction() {
  ExpressionPtr left = conjunction();
  while (tokens_.here().name("or")) {
    int line = tokens_.take().line;
    left = binary("or", line, std::move(left), conjunction());
  }
  return left;
}

ExpressionPtr ExpressionParser::conjunction() {
  ExpressionPtr left = negation();
  while (tokens_.here().name("and")) {
    int line = tokens_.take().line;
    left = binary("and", line, std::move(left), negation());
  }
  return left;
}

ExpressionPtr ExpressionParser::negation() {
  if (!tokens_.here().name("not")) return comparison();
  TokenStream::Nested nested(tokens_);
  ExpressionPtr made = node(EKind::unary, "not", tokens_.take().line);
  adopt(*made, negation());
  return made;
}

std::string ExpressionParser::comparison_operator() {
  static constexpr std::string_view symbols[] = {"==", "!=", "<", ">", "<=", ">="};
  if (tokens_.here().kind == Kind::symbol && std::find(std::begin(symbols), std::end(symbols), tokens_.here().text) != std::end(symbols))
    return tokens_.take().text;
  if (tokens_.accept_name("in")) return "in";
  if (tokens_.here().name("not") && tokens_.ahead().name("in")) {
    tokens_.take();
    tokens_.take();
    return "not in";
  }
  return {};
}

ExpressionPtr ExpressionParser::comparison() {
  ExpressionPtr left = sum();
  int line = tokens_.here().line;
  std::string op = comparison_operator();
  if (op.empty()) return left;
  ExpressionPtr made = node(EKind::compare, "", line);
  adopt(*made, std::move(left));
  for (; !op.empty(); op = comparison_operator()) {
    made->operators.push_back(op);
    adopt(*made, sum());
  }
  return made;
}

template <class Next>
ExpressionPtr ExpressionParser::left_chain(std::initializer_list<std::string_view> symbols, Next next) {
  ExpressionPtr left = next();
  while (tokens_.here().kind == Kind::symbol && std::find(symbols.begin(), symbols.end(), tokens_.here().text) != symbols.end()) {
    const Token& op = tokens_.take();
    left = binary(op.text, op.line, std::move(left), next());
  }
  return left;
}

ExpressionPtr ExpressionParser::sum() {
  return left_chain({"+", "-"}, [&] { return concatenation(); });
}

ExpressionPtr ExpressionParser::concatenation() {
  return left_chain({"~"}, [&] { return product(); });
}

ExpressionPtr ExpressionParser::product() {
  return left_chain({"*", "/", "//", "%"}, [&] { return power(); });
}

ExpressionPtr ExpressionParser::power() {
  return left_chain({"**"}, [&] { return unary(true); });
}

ExpressionPtr ExpressionParser::unary(bool with_filter) {
  ExpressionPtr made;
  if (tokens_.here().symbol("-") || tokens_.here().symbol("+")) {
    TokenStream::Nested nested(tokens_);
    const Token& sign = tokens_.take();
    made = node(EKind::unary, sign.text, sign.line);
    adopt(*made, unary(false));
  } else {
    made = primary();
  }
  made = postfix(std::move(made));
  return with_filter ? filters(std::move(made)) : std::move(made);
}

ExpressionPtr ExpressionParser::primary() {
  const Token& token = tokens_.take();
  ExpressionPtr made = node(EKind::constant, "", token.line);
  switch (token.kind) {
    case Kind::string: {
      std::string text = token.text;
      while (tokens_.here().kind == Kind::string) text += tokens_.take().text;
      made->value = Value::text(Counted<char>(nullptr), text);
      return made;
    }
    case Kind::integer: {
      int64_t number = 0;
      auto [end, error] = std::from_chars(token.text.data(), token.text.data() + token.text.size(), number);
      check(error == std::errc() && end == token.text.data() + token.text.size(), "chat template, line {}: the number {} is too large",
            token.line, token.text);
      made->value = Value(number);
      return made;
    }
    case Kind::real:
      made->value = Value(std::strtod(token.text.c_str(), nullptr));  // as in Python: infinite if too large, 0 if too small
      return made;
    case Kind::name:
      return named_primary(token, std::move(made));
    case Kind::symbol:
      break;
    default:
      TokenStream::unexpected("an expression", token);
  }
  if (token.text == "(") return bracketed(token.line);
  if (token.text == "[") return list(token.line);
  if (token.text == "{") return dict(token.line);
  TokenStream::unexpected("an expression", token);
}

ExpressionPtr ExpressionParser::named_primary(const Token& token, ExpressionPtr made) {
  if (token.text == "true" || token.text == "True") {
    made->value = Value(true);
  } else if (token.text == "false" || token.text == "False") {
    made->value = Value(false);
  } else if (token.text != "none" && token.text != "None") {
    made->kind = EKind::name;
    made->text = token.text;
  }
  return made;
}

ExpressionPtr ExpressionParser::bracketed(int line) {
  ExpressionPtr tuple = node(EKind::tuple, "", line);
  bool comma = false;
  while (!tokens_.here().symbol(")")) {
    adopt(*tuple, expression());
    if (!tokens_.accept_symbol(",")) break;
    comma = true;
  }
  tokens_.expect_symbol(")");
  if (comma || tuple->children.empty()) return tuple;
  return std::move(tuple->children[0]);
}

ExpressionPtr ExpressionParser::list(int line) {
  ExpressionPtr made = node(EKind::list, "", line);
  while (!tokens_.here().symbol("]")) {
    adopt(*made, expression());
    if (!tokens_.accept_symbol(",")) break;
  }
  tokens_.expect_symbol("]");
  return made;
}

ExpressionPtr ExpressionParser::dict(int line) {
  ExpressionPtr made = node(EKind::dict, "", line);
  while (!tokens_.here().symbol("}")) {
    adopt(*made, expression());
    tokens_.expect_symbol(":");
    adopt(*made, expression());
    if (!tokens_.accept_symbol(",")) break;
  }
  tokens_.expect_symbol("}");
  return made;
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr value) {
  while (true) {
    int line = tokens_.here().line;
    if (tokens_.accept_symbol(".")) {
      if (tokens_.here().kind == Kind::integer) {
        ExpressionPtr made = node(EKind::item, "", line);
        adopt(*made, std::move(value));
        adopt(*made, primary());
        value = std::move(made);
        continue;
      }
      ExpressionPtr made = node(EKind::attribute, tokens_.expect_name("an attribute"), line);
      adopt(*made, std::move(value));
      value = std::move(made);
    } else if (tokens_.accept_symbol("[")) {
      value = subscript(std::move(value), line);
    } else if (tokens_.here().symbol("(")) {
      ExpressionPtr made = node(EKind::call, "", line);
      adopt(*made, std::move(value));
      arguments(*made);
      value = std::move(made);
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr value, int line) {
  ExpressionPtr made = node(EKind::item, "", line);
  adopt(*made, std::move(value));
  if (!tokens_.here().symbol(":")) {
    adopt(*made, tuple_or_expression());
    if (tokens_.accept_symbol("]")) return made;
  } else {
    adopt(*made, nullptr);
  }
  made->kind = EKind::slice;
  for (int part = 0; part < 2; ++part) {
    bool given = tokens_.accept_symbol(":") && !tokens_.here().symbol(":") && !tokens_.here().symbol("]");
    adopt(*made, given ? expression() : nullptr);
  }
  tokens_.expect_symbol("]");
  return made;
}

void ExpressionParser::arguments(Expression& call) {
  tokens_.expect_symbol("(");
  while (!tokens_.accept_symbol(")")) {
    check(!tokens_.here().symbol("*") && !tokens_.here().symbol("**"), "chat template, line {}: unpacked arguments are not supported",
          tokens_.here().line);
    if (tokens_.here().kind == Kind::name && tokens_.ahead().symbol("=")) {
      std::string name = tokens_.take().text;
      tokens_.take();
      call.named.emplace_back(std::move(name), expression());
      deepen(call, *call.named.back().second);
    } else {
      adopt(call, expression());
    }
    if (!tokens_.here().symbol(")")) tokens_.expect_symbol(",");
  }
  check(call.children.size() + call.named.size() <= max_arguments + 1, "chat template, line {}: more than {} arguments",
        tokens_.here().line, max_arguments);
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr value, bool start) {
  while (true) {
    int line = tokens_.here().line;
    if (start || tokens_.accept_symbol("|")) {
      start = false;
      std::string name = tokens_.expect_name("a filter");
      while (tokens_.accept_symbol(".")) name.append(1, '.').append(tokens_.expect_name("a filter"));
      ExpressionPtr made = node(EKind::filter, std::move(name), line);
      adopt(*made, std::move(value));
      if (tokens_.here().symbol("(")) arguments(*made);
      value = std::move(made);
    } else if (value != nullptr && tokens_.accept_name("is")) {
      value = test(std::move(value), line);
    } else if (value != nullptr && tokens_.here().symbol("(")) {
      value = postfix(std::move(value));
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::test(ExpressionPtr value, int line) {
  bool negated = tokens_.accept_name("not");
  ExpressionPtr made = node(EKind::test, tokens_.expect_name("a test"), line);
  adopt(*made, std::move(value));
  const Token& next = tokens_.here();
  bool operand = next.kind == Kind::string || next.kind == Kind::integer || next.kind == Kind::real || next.symbol("[") ||
                 next.symbol("{") ||
                 (next.kind == Kind::name && !next.name("else") && !next.name("or") && !next.name("and") && !next.name("if") &&
                  !next.name("is") && !next.name("in") && !next.name("not"));
  if (next.symbol("(")) {
    arguments(*made);
  } else if (operand) {
    adopt(*made, postfix(primary()));
  }
  if (!negated) return made;
  ExpressionPtr inverse = node(EKind::unary, "not", line);
  adopt(*inverse, std::move(made));
  return inverse;
}

}  // namespace mr::jinja
