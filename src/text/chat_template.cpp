#include "text/chat_template.h"

#include "core/error.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/parser.h"

namespace mr {

struct ChatTemplate::Program {
  jinja::Body body;
};

namespace {

// Never copies the JSON: it may come from a client and nest too deeply for the stack.
template <class J>
jinja::Variables variables_of(jinja::Meter& meter, const J& context) {
  jinja::Variables variables;
  if (context.is_null()) return variables;
  check(context.is_object(), "a chat template's variables must be a JSON object");
  for (const auto& [name, value] : context.items()) variables.emplace_back(name, jinja::from_json(meter, value));
  return variables;
}

template <class J>
std::string render_with(const jinja::Body& body, const J& context, const TemplateLimits& limits) {
  jinja::Meter meter(limits);
  return jinja::Evaluator(meter, variables_of(meter, context)).render(body);
}

template <class J>
std::string render_once(const std::string& source, const J& messages, const J& extra) {
  jinja::Body body = jinja::parse(source);
  jinja::Meter meter;
  jinja::Variables variables = variables_of(meter, extra);
  variables.emplace_back("messages", jinja::from_json(meter, messages));
  return jinja::Evaluator(meter, std::move(variables)).render(body);
}

}  // namespace

ChatTemplate::ChatTemplate(const std::string& source) : program_(std::make_shared<const Program>(Program{jinja::parse(source)})) {}

std::string ChatTemplate::render(const OrderedJson& context, const TemplateLimits& limits) const {
  return render_with(program_->body, context, limits);
}

std::string ChatTemplate::render(const Json& context, const TemplateLimits& limits) const {
  return render_with(program_->body, context, limits);
}

std::string render_chat(const std::string& source, const OrderedJson& messages, const OrderedJson& extra) {
  return render_once(source, messages, extra);
}

std::string render_chat(const std::string& source, const Json& messages, const Json& extra) { return render_once(source, messages, extra); }

}  // namespace mr
