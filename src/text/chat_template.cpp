#include "text/chat_template.h"

#include "core/error.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/parser.h"

namespace mr {

struct ChatTemplate::Program {
  jinja::Body body;
};

ChatTemplate::ChatTemplate(const std::string& source) : program_(std::make_shared<const Program>(Program{jinja::parse(source)})) {}

std::string ChatTemplate::render(const OrderedJson& context) const { return jinja::Evaluator(context).render(program_->body); }

std::string ChatTemplate::render(const Json& context) const { return render(OrderedJson(context)); }

std::string render_chat(const std::string& source, const OrderedJson& messages, const OrderedJson& extra) {
  OrderedJson context = extra.is_null() ? OrderedJson::object() : extra;
  check(context.is_object(), "a chat template's variables must be a JSON object");
  context["messages"] = messages;
  return ChatTemplate(source).render(context);
}

std::string render_chat(const std::string& source, const Json& messages, const Json& extra) {
  return render_chat(source, OrderedJson(messages), OrderedJson(extra));
}

}  // namespace mr
