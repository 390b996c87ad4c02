#include "text/jinja/parser.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <initializer_list>

#include "core/error.h"
#include "text/jinja/lexer.h"

namespace mr::jinja {

namespace {

using Kind = Token::Kind;
using EKind = Expression::Kind;
using SKind = Statement::Kind;

constexpr int max_nesting = 100;  // of brackets and blocks
constexpr int max_tree = 400;     // operations in one chain
constexpr size_t max_source = size_t{1} << 20;
constexpr size_t max_arguments = 255;  // they are found by name one after another

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Body run() {
    Body body = statements({});
    check(here().kind == Kind::end, "chat template, line {}: unexpected '{}'", here().line, here().text);
    return body;
  }

 private:
  struct Nested {
    explicit Nested(Parser& parser) : parser_(parser) {
      check(++parser_.nesting_ <= max_nesting, "chat template, line {}: nested deeper than {}", parser_.here().line, max_nesting);
    }
    ~Nested() { --parser_.nesting_; }
    Parser& parser_;
  };

  const Token& here() const { return tokens_[pos_]; }
  const Token& ahead() const { return tokens_[std::min(pos_ + 1, tokens_.size() - 1)]; }
  const Token& take() { return tokens_[pos_ + 1 < tokens_.size() ? pos_++ : pos_]; }
  bool accept_symbol(std::string_view text) { return here().symbol(text) && (take(), true); }
  bool accept_name(std::string_view text) { return here().name(text) && (take(), true); }

  [[noreturn]] void unexpected(std::string_view wanted) {
    static constexpr const char* kinds[] = {"text", "'{{'", "'}}'", "'{%'", "'%}'", "", "a string", "", "", "", "the end of the template"};
    const char* kind = kinds[static_cast<int>(here().kind)];
    if (*kind == 0) fail("chat template, line {}: expected {} but found '{}'", here().line, wanted, here().text);
    fail("chat template, line {}: expected {} but found {}", here().line, wanted, kind);
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

  // --- statements ---

  // Until a block whose first word is one of `ends`, which is left standing at that word.
  Body statements(std::initializer_list<std::string_view> ends) {
    Nested nested(*this);
    Body body;
    while (here().kind != Kind::end) {
      if (here().kind == Kind::data) {
        auto text = make(SKind::data);
        text->text = take().text;
        body.push_back(std::move(text));
      } else if (here().kind == Kind::output_begin) {
        auto output = make(SKind::output);
        take();
        output->expression = tuple_or_expression();
        expect(Kind::output_end, "'}}'");
        body.push_back(std::move(output));
      } else {
        expect(Kind::block_begin, "a block");
        if (here().kind == Kind::name && std::find(ends.begin(), ends.end(), here().text) != ends.end()) return body;
        body.push_back(statement());
      }
    }
    if (ends.size() > 0) unexpected("'" + std::string(*(ends.end() - 1)) + "'");
    return body;
  }

  std::unique_ptr<Statement> make(SKind kind) {
    auto made = std::make_unique<Statement>();
    made->kind = kind;
    made->line = here().line;
    return made;
  }

  void end_block() { expect(Kind::block_end, "'%}'"); }

  Body body_until(std::string_view end) {
    end_block();
    Body body = statements({end});
    take();
    end_block();
    return body;
  }

  std::unique_ptr<Statement> statement() {
    int line = here().line;
    std::string word = expect_name("a statement");
    if (word == "for") return for_loop();
    if (word == "if") return if_chain();
    if (word == "set") return set();
    if (word == "macro") return macro();
    if (word == "call") return call_block();
    if (word == "with") return with_block();
    if (word == "filter") return filter_block();
    if (word == "generation") {  // transformers' mark of what the assistant said: nothing to render
      auto group = make(SKind::group);
      group->body = body_until("endgeneration");
      return group;
    }
    if (word == "break" || word == "continue") {
      check(loops_ > 0, "chat template, line {}: '{}' outside a loop", line, word);
      auto jump = make(word == "break" ? SKind::leave : SKind::next);
      end_block();
      return jump;
    }
    fail("chat template, line {}: the statement '{}' is not supported", line, word);
  }

  std::vector<std::string> target_list(bool& unpack) {
    std::vector<std::string> names;
    bool bracket = accept_symbol("(");
    names.push_back(expect_name("a name"));
    unpack = false;
    while (accept_symbol(",")) {
      unpack = true;
      if (here().kind != Kind::name || here().text == "in") break;
      names.push_back(expect_name("a name"));
    }
    if (bracket) expect_symbol(")");
    return names;
  }

  std::unique_ptr<Statement> for_loop() {
    auto loop = make(SKind::loop);
    loop->targets = target_list(loop->unpack);
    if (!accept_name("in")) unexpected("'in'");
    loop->expression = tuple_or_expression(false);
    if (accept_name("if")) loop->condition = expression();
    check(!here().name("recursive"), "chat template, line {}: recursive loops are not supported", here().line);
    end_block();
    ++loops_;
    loop->body = statements({"else", "endfor"});
    --loops_;
    if (accept_name("else")) {
      end_block();
      loop->other = statements({"endfor"});
    }
    take();
    end_block();
    return loop;
  }

  std::unique_ptr<Statement> if_chain() {
    auto chain = make(SKind::conditional);
    while (true) {
      ExpressionPtr condition = tuple_or_expression();
      end_block();
      chain->branches.emplace_back(std::move(condition), statements({"elif", "else", "endif"}));
      if (!accept_name("elif")) break;
    }
    if (accept_name("else")) {
      end_block();
      chain->other = statements({"endif"});
    }
    take();
    end_block();
    return chain;
  }

  std::unique_ptr<Statement> set() {
    auto set = make(SKind::set);
    if (here().kind == Kind::name && ahead().symbol(".")) {
      set->text = take().text;
      take();
      set->attribute = expect_name("an attribute");
    } else {
      set->targets = target_list(set->unpack);
    }
    if (accept_symbol("=")) {
      set->expression = tuple_or_expression();
      end_block();
      return set;
    }
    check(!set->unpack, "chat template, line {}: a block sets one name only", set->line);
    set->kind = SKind::set_block;
    if (here().symbol("|")) set->expression = filters(nullptr);
    set->body = body_until("endset");
    return set;
  }

  void parameters(Statement& macro) {
    expect_symbol("(");
    while (!accept_symbol(")")) {
      macro.targets.push_back(expect_name("a parameter"));
      if (accept_symbol("=")) {
        macro.defaults.push_back(expression());
      } else {
        check(macro.defaults.empty(), "chat template, line {}: the parameter '{}' needs a default", here().line, macro.targets.back());
      }
      if (!here().symbol(")")) expect_symbol(",");
    }
    check(macro.targets.size() <= max_arguments, "chat template, line {}: more than {} parameters", here().line, max_arguments);
  }

  std::unique_ptr<Statement> macro() {
    auto macro = make(SKind::macro);
    macro->text = expect_name("a macro's name");
    parameters(*macro);
    int loops = std::exchange(loops_, 0);
    macro->body = body_until("endmacro");
    loops_ = loops;
    return macro;
  }

  std::unique_ptr<Statement> call_block() {
    auto call = make(SKind::call_block);
    call->text = "caller";
    if (here().symbol("(")) parameters(*call);
    call->expression = expression();
    check(call->expression->kind == EKind::call, "chat template, line {}: a call block needs a call", call->line);
    int loops = std::exchange(loops_, 0);
    call->body = body_until("endcall");
    loops_ = loops;
    return call;
  }

  std::unique_ptr<Statement> with_block() {
    auto with = make(SKind::with_block);
    while (here().kind == Kind::name) {
      std::string name = take().text;
      expect_symbol("=");
      with->named.emplace_back(std::move(name), expression());
      if (!accept_symbol(",")) break;
    }
    with->body = body_until("endwith");
    return with;
  }

  std::unique_ptr<Statement> filter_block() {
    auto block = make(SKind::filter_block);
    block->expression = filters(nullptr, true);
    block->body = body_until("endfilter");
    return block;
  }

  // --- expressions, loosest first ---

  ExpressionPtr node(EKind kind, std::string text, int line) {
    auto made = std::make_unique<Expression>();
    made->kind = kind;
    made->text = std::move(text);
    made->line = line;
    return made;
  }

  void deepen(Expression& parent, const Expression& child) {
    parent.depth = std::max(parent.depth, child.depth + 1);
    check(parent.depth <= max_tree, "chat template, line {}: an expression of more than {} nested operations", parent.line, max_tree);
  }

  void adopt(Expression& parent, ExpressionPtr child) {
    if (child != nullptr) deepen(parent, *child);
    parent.children.push_back(std::move(child));
  }

  ExpressionPtr binary(std::string text, int line, ExpressionPtr left, ExpressionPtr right) {
    ExpressionPtr made = node(EKind::binary, std::move(text), line);
    adopt(*made, std::move(left));
    adopt(*made, std::move(right));
    return made;
  }

  // a, b without brackets is a tuple.
  ExpressionPtr tuple_or_expression(bool with_condition = true) {
    ExpressionPtr first = with_condition ? expression() : disjunction();
    if (!here().symbol(",")) return first;
    ExpressionPtr tuple = node(EKind::tuple, "", first->line);
    adopt(*tuple, std::move(first));
    while (accept_symbol(",")) {
      if (here().kind == Kind::block_end || here().kind == Kind::output_end) break;
      adopt(*tuple, with_condition ? expression() : disjunction());
    }
    return tuple;
  }

  ExpressionPtr expression() {
    Nested nested(*this);
    ExpressionPtr value = disjunction();
    while (here().name("if")) {
      ExpressionPtr made = node(EKind::conditional, "", take().line);
      adopt(*made, disjunction());
      adopt(*made, std::move(value));
      adopt(*made, accept_name("else") ? expression() : nullptr);
      value = std::move(made);
    }
    return value;
  }

  ExpressionPtr disjunction() {
    ExpressionPtr left = conjunction();
    while (here().name("or")) {
      int line = take().line;
      left = binary("or", line, std::move(left), conjunction());
    }
    return left;
  }

  ExpressionPtr conjunction() {
    ExpressionPtr left = negation();
    while (here().name("and")) {
      int line = take().line;
      left = binary("and", line, std::move(left), negation());
    }
    return left;
  }

  ExpressionPtr negation() {
    if (!here().name("not")) return comparison();
    Nested nested(*this);
    ExpressionPtr made = node(EKind::unary, "not", take().line);
    adopt(*made, negation());
    return made;
  }

  std::string comparison_operator() {
    static constexpr std::string_view symbols[] = {"==", "!=", "<", ">", "<=", ">="};
    if (here().kind == Kind::symbol && std::find(std::begin(symbols), std::end(symbols), here().text) != std::end(symbols))
      return take().text;
    if (accept_name("in")) return "in";
    if (here().name("not") && ahead().name("in")) {
      take();
      take();
      return "not in";
    }
    return {};
  }

  ExpressionPtr comparison() {
    ExpressionPtr left = sum();
    int line = here().line;
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
  ExpressionPtr left_chain(std::initializer_list<std::string_view> symbols, Next next) {
    ExpressionPtr left = next();
    while (here().kind == Kind::symbol && std::find(symbols.begin(), symbols.end(), here().text) != symbols.end()) {
      const Token& op = take();
      left = binary(op.text, op.line, std::move(left), next());
    }
    return left;
  }

  ExpressionPtr sum() {
    return left_chain({"+", "-"}, [&] { return concatenation(); });
  }
  ExpressionPtr concatenation() {
    return left_chain({"~"}, [&] { return product(); });
  }
  ExpressionPtr product() {
    return left_chain({"*", "/", "//", "%"}, [&] { return power(); });
  }
  ExpressionPtr power() {
    return left_chain({"**"}, [&] { return unary(true); });
  }

  ExpressionPtr unary(bool with_filter) {
    ExpressionPtr made;
    if (here().symbol("-") || here().symbol("+")) {
      Nested nested(*this);
      const Token& sign = take();
      made = node(EKind::unary, sign.text, sign.line);
      adopt(*made, unary(false));
    } else {
      made = primary();
    }
    made = postfix(std::move(made));
    return with_filter ? filters(std::move(made)) : std::move(made);
  }

  ExpressionPtr primary() {
    size_t at = pos_;
    const Token& token = take();
    ExpressionPtr made = node(EKind::constant, "", token.line);
    switch (token.kind) {
      case Kind::string: {
        std::string text = token.text;
        while (here().kind == Kind::string) text += take().text;
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
        pos_ = at;
        unexpected("an expression");
    }
    if (token.text == "(") return bracketed(token.line);
    if (token.text == "[") return list(token.line);
    if (token.text == "{") return dict(token.line);
    pos_ = at;
    unexpected("an expression");
  }

  ExpressionPtr named_primary(const Token& token, ExpressionPtr made) {
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

  ExpressionPtr bracketed(int line) {
    ExpressionPtr tuple = node(EKind::tuple, "", line);
    bool comma = false;
    while (!here().symbol(")")) {
      adopt(*tuple, expression());
      if (!accept_symbol(",")) break;
      comma = true;
    }
    expect_symbol(")");
    if (comma || tuple->children.empty()) return tuple;
    return std::move(tuple->children[0]);
  }

  ExpressionPtr list(int line) {
    ExpressionPtr made = node(EKind::list, "", line);
    while (!here().symbol("]")) {
      adopt(*made, expression());
      if (!accept_symbol(",")) break;
    }
    expect_symbol("]");
    return made;
  }

  ExpressionPtr dict(int line) {
    ExpressionPtr made = node(EKind::dict, "", line);
    while (!here().symbol("}")) {
      adopt(*made, expression());
      expect_symbol(":");
      adopt(*made, expression());
      if (!accept_symbol(",")) break;
    }
    expect_symbol("}");
    return made;
  }

  ExpressionPtr postfix(ExpressionPtr value) {
    while (true) {
      int line = here().line;
      if (accept_symbol(".")) {
        if (here().kind == Kind::integer) {
          ExpressionPtr made = node(EKind::item, "", line);
          adopt(*made, std::move(value));
          adopt(*made, primary());
          value = std::move(made);
          continue;
        }
        ExpressionPtr made = node(EKind::attribute, expect_name("an attribute"), line);
        adopt(*made, std::move(value));
        value = std::move(made);
      } else if (accept_symbol("[")) {
        value = subscript(std::move(value), line);
      } else if (here().symbol("(")) {
        ExpressionPtr made = node(EKind::call, "", line);
        adopt(*made, std::move(value));
        arguments(*made);
        value = std::move(made);
      } else {
        return value;
      }
    }
  }

  ExpressionPtr subscript(ExpressionPtr value, int line) {
    ExpressionPtr made = node(EKind::item, "", line);
    adopt(*made, std::move(value));
    if (!here().symbol(":")) {
      adopt(*made, tuple_or_expression());
      if (accept_symbol("]")) return made;
    } else {
      adopt(*made, nullptr);
    }
    made->kind = EKind::slice;
    for (int part = 0; part < 2; ++part) {
      bool given = accept_symbol(":") && !here().symbol(":") && !here().symbol("]");
      adopt(*made, given ? expression() : nullptr);
    }
    expect_symbol("]");
    return made;
  }

  void arguments(Expression& call) {
    expect_symbol("(");
    while (!accept_symbol(")")) {
      check(!here().symbol("*") && !here().symbol("**"), "chat template, line {}: unpacked arguments are not supported", here().line);
      if (here().kind == Kind::name && ahead().symbol("=")) {
        std::string name = take().text;
        take();
        call.named.emplace_back(std::move(name), expression());
        deepen(call, *call.named.back().second);
      } else {
        adopt(call, expression());
      }
      if (!here().symbol(")")) expect_symbol(",");
    }
    check(call.children.size() + call.named.size() <= max_arguments + 1, "chat template, line {}: more than {} arguments", here().line,
          max_arguments);
  }

  // | filter, is test and ( call ) in any order. Without a value: the filters of a block, the first perhaps without its bar.
  ExpressionPtr filters(ExpressionPtr value, bool start = false) {
    while (true) {
      int line = here().line;
      if (start || accept_symbol("|")) {
        start = false;
        std::string name = expect_name("a filter");
        while (accept_symbol(".")) name.append(1, '.').append(expect_name("a filter"));
        ExpressionPtr made = node(EKind::filter, std::move(name), line);
        adopt(*made, std::move(value));
        if (here().symbol("(")) arguments(*made);
        value = std::move(made);
      } else if (value != nullptr && accept_name("is")) {
        value = test(std::move(value), line);
      } else if (value != nullptr && here().symbol("(")) {
        value = postfix(std::move(value));
      } else {
        return value;
      }
    }
  }

  ExpressionPtr test(ExpressionPtr value, int line) {
    bool negated = accept_name("not");
    ExpressionPtr made = node(EKind::test, expect_name("a test"), line);
    adopt(*made, std::move(value));
    const Token& next = here();
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

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  int nesting_ = 0, loops_ = 0;
};

}  // namespace

Body parse(const std::string& source) {
  check(source.size() <= max_source, "the chat template is longer than {} bytes", max_source);
  return Parser(tokenize(source)).run();
}

}  // namespace mr::jinja
