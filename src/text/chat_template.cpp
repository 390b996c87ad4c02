#include "text/chat_template.h"

#include "core/error.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/parser.h"

namespace mr {

struct ChatTemplate::Program {
  jinja::Body body;
};

namespace {

using Variables = std::vector<std::pair<std::string, jinja::Value>>;

// Never copies the JSON: it may come from a client and nest deeper than the stack bears.
template <class J>
Variables variables_of(const J& context) {
  Variables variables;
  if (context.is_null()) return variables;
  check(context.is_object(), "a chat template's variables must be a JSON object");
  for (const auto& [name, value] : context.items()) variables.emplace_back(name, jinja::from_json(value));
  return variables;
}

template <class J>
std::string render_with(const std::string& source, const J& messages, const J& extra) {
  Variables variables = variables_of(extra);
  variables.emplace_back("messages", jinja::from_json(messages));
  return jinja::Evaluator(std::move(variables)).render(jinja::parse(source));
}

}  // namespace

ChatTemplate::ChatTemplate(const std::string& source) : program_(std::make_shared<const Program>(Program{jinja::parse(source)})) {}

std::string ChatTemplate::render(const OrderedJson& context) const {
  return jinja::Evaluator(variables_of(context)).render(program_->body);
}

std::string ChatTemplate::render(const Json& context) const { return jinja::Evaluator(variables_of(context)).render(program_->body); }

std::string render_chat(const std::string& source, const OrderedJson& messages, const OrderedJson& extra) {
  return render_with(source, messages, extra);
}

std::string render_chat(const std::string& source, const Json& messages, const Json& extra) { return render_with(source, messages, extra); }

}  // namespace mr
