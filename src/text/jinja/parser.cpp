#include "text/jinja/parser.h"

#include <algorithm>
#include <initializer_list>

#include "core/error.h"
#include "text/jinja/expression_parser.h"

namespace mr::jinja {

namespace {

using Kind = Token::Kind;
using SKind = Statement::Kind;

constexpr size_t max_source = size_t{1} << 20;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)), expressions_(tokens_) {}

  Body run() {
    Body body = statements({});
    check(tokens_.here().kind == Kind::end, "chat template, line {}: unexpected '{}'", tokens_.here().line, tokens_.here().text);
    return body;
  }

 private:
  // Up to a block whose first word is one of `ends`; the cursor stays at that word.
  Body statements(std::initializer_list<std::string_view> ends) {
    TokenStream::Nested nested(tokens_);
    Body body;
    while (tokens_.here().kind != Kind::end) {
      if (tokens_.here().kind == Kind::data) {
        auto text = make(SKind::data);
        text->text = tokens_.take().text;
        body.push_back(std::move(text));
      } else if (tokens_.here().kind == Kind::output_begin) {
        auto output = make(SKind::output);
        tokens_.take();
        output->expression = expressions_.tuple_or_expression();
        tokens_.expect(Kind::output_end, "'}}'");
        body.push_back(std::move(output));
      } else {
        tokens_.expect(Kind::block_begin, "a block");
        if (tokens_.here().kind == Kind::name && std::find(ends.begin(), ends.end(), tokens_.here().text) != ends.end()) return body;
        body.push_back(statement());
      }
    }
    if (ends.size() > 0) tokens_.unexpected("'" + std::string(*(ends.end() - 1)) + "'");
    return body;
  }

  std::unique_ptr<Statement> make(SKind kind) {
    auto made = std::make_unique<Statement>();
    made->kind = kind;
    made->line = tokens_.here().line;
    return made;
  }

  void end_block() { tokens_.expect(Kind::block_end, "'%}'"); }

  Body body_until(std::string_view end) {
    end_block();
    Body body = statements({end});
    tokens_.take();
    end_block();
    return body;
  }

  std::unique_ptr<Statement> statement() {
    int line = tokens_.here().line;
    std::string word = tokens_.expect_name("a statement");
    if (word == "for") return for_loop();
    if (word == "if") return if_chain();
    if (word == "set") return set();
    if (word == "macro") return macro();
    if (word == "call") return call_block();
    if (word == "with") return with_block();
    if (word == "filter") return filter_block();
    if (word == "generation") {  // transformers' marker of the assistant's text: nothing to render
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
    bool bracket = tokens_.accept_symbol("(");
    names.push_back(tokens_.expect_name("a name"));
    unpack = false;
    while (tokens_.accept_symbol(",")) {
      unpack = true;
      if (tokens_.here().kind != Kind::name || tokens_.here().text == "in") break;
      names.push_back(tokens_.expect_name("a name"));
    }
    if (bracket) tokens_.expect_symbol(")");
    return names;
  }

  std::unique_ptr<Statement> for_loop() {
    auto loop = make(SKind::loop);
    loop->targets = target_list(loop->unpack);
    if (!tokens_.accept_name("in")) tokens_.unexpected("'in'");
    loop->expression = expressions_.tuple_or_expression(false);
    if (tokens_.accept_name("if")) loop->condition = expressions_.expression();
    check(!tokens_.here().name("recursive"), "chat template, line {}: recursive loops are not supported", tokens_.here().line);
    end_block();
    ++loops_;
    loop->body = statements({"else", "endfor"});
    --loops_;
    if (tokens_.accept_name("else")) {
      end_block();
      loop->other = statements({"endfor"});
    }
    tokens_.take();
    end_block();
    return loop;
  }

  std::unique_ptr<Statement> if_chain() {
    auto chain = make(SKind::conditional);
    while (true) {
      ExpressionPtr condition = expressions_.tuple_or_expression();
      end_block();
      chain->branches.emplace_back(std::move(condition), statements({"elif", "else", "endif"}));
      if (!tokens_.accept_name("elif")) break;
    }
    if (tokens_.accept_name("else")) {
      end_block();
      chain->other = statements({"endif"});
    }
    tokens_.take();
    end_block();
    return chain;
  }

  std::unique_ptr<Statement> set() {
    auto set = make(SKind::set);
    if (tokens_.here().kind == Kind::name && tokens_.ahead().symbol(".")) {
      set->text = tokens_.take().text;
      tokens_.take();
      set->attribute = tokens_.expect_name("an attribute");
    } else {
      set->targets = target_list(set->unpack);
    }
    if (tokens_.accept_symbol("=")) {
      set->expression = expressions_.tuple_or_expression();
      end_block();
      return set;
    }
    check(!set->unpack, "chat template, line {}: a block sets one name only", set->line);
    set->kind = SKind::set_block;
    if (tokens_.here().symbol("|")) set->expression = expressions_.filters(nullptr);
    set->body = body_until("endset");
    return set;
  }

  void parameters(Statement& macro) {
    tokens_.expect_symbol("(");
    while (!tokens_.accept_symbol(")")) {
      macro.targets.push_back(tokens_.expect_name("a parameter"));
      if (tokens_.accept_symbol("=")) {
        macro.defaults.push_back(expressions_.expression());
      } else {
        check(macro.defaults.empty(), "chat template, line {}: the parameter '{}' needs a default", tokens_.here().line,
              macro.targets.back());
      }
      if (!tokens_.here().symbol(")")) tokens_.expect_symbol(",");
    }
    check(macro.targets.size() <= max_arguments, "chat template, line {}: more than {} parameters", tokens_.here().line, max_arguments);
  }

  std::unique_ptr<Statement> macro() {
    auto macro = make(SKind::macro);
    macro->text = tokens_.expect_name("a macro's name");
    parameters(*macro);
    int loops = std::exchange(loops_, 0);
    macro->body = body_until("endmacro");
    loops_ = loops;
    return macro;
  }

  std::unique_ptr<Statement> call_block() {
    auto call = make(SKind::call_block);
    call->text = "caller";
    if (tokens_.here().symbol("(")) parameters(*call);
    call->expression = expressions_.expression();
    check(call->expression->kind == Expression::Kind::call, "chat template, line {}: a call block needs a call", call->line);
    int loops = std::exchange(loops_, 0);
    call->body = body_until("endcall");
    loops_ = loops;
    return call;
  }

  std::unique_ptr<Statement> with_block() {
    auto with = make(SKind::with_block);
    while (tokens_.here().kind == Kind::name) {
      std::string name = tokens_.take().text;
      tokens_.expect_symbol("=");
      with->named.emplace_back(std::move(name), expressions_.expression());
      if (!tokens_.accept_symbol(",")) break;
    }
    with->body = body_until("endwith");
    return with;
  }

  std::unique_ptr<Statement> filter_block() {
    auto block = make(SKind::filter_block);
    block->expression = expressions_.filters(nullptr, true);
    block->body = body_until("endfilter");
    return block;
  }

  TokenStream tokens_;
  ExpressionParser expressions_;
  int loops_ = 0;
};

}  // namespace

Body parse(const std::string& source) {
  check(source.size() <= max_source, "the chat template is longer than {} bytes", max_source);
  return Parser(tokenize(source)).run();
}

}  // namespace mr::jinja
