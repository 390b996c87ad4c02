#include "engine/chat.h"

#include "core/error.h"

namespace mr {

static const std::string& source_of(const Tokenizer& tokenizer, const std::string& override_source) {
  const std::string& source = override_source.empty() ? tokenizer.chat_template() : override_source;
  check(!source.empty(), "this model comes without a chat template: give one with --chat-template, or a plain prompt");
  return source;
}

ChatFormat::ChatFormat(const Tokenizer& tokenizer, const std::string& override_source)
    : tokenizer_(tokenizer), template_(source_of(tokenizer, override_source)) {}

std::string ChatFormat::render(const OrderedJson& messages, const OrderedJson& extra, const Allowance& allowance) const {
  OrderedJson context = extra;
  context["messages"] = messages;
  context["add_generation_prompt"] = true;
  if (tokenizer_.bos() >= 0) context["bos_token"] = tokenizer_.piece(tokenizer_.bos());
  if (tokenizer_.eos() >= 0) context["eos_token"] = tokenizer_.piece(tokenizer_.eos());
  return template_.render(context, {.allowance = allowance});
}

std::vector<int32_t> ChatFormat::encode(const OrderedJson& messages, const OrderedJson& extra, const Allowance& allowance) const {
  return tokenizer_.encode(render(messages, extra, allowance), false, true, allowance);  // the template writes the special tokens itself
}

bool ChatFormat::shows_tools(const Allowance& allowance) const {
  const std::string name = "name_to_look_for";
  const OrderedJson parameters{{"type", "object"}, {"properties", OrderedJson::object()}, {"required", OrderedJson::array()}};
  const OrderedJson function{{"name", name}, {"description", "none"}, {"parameters", parameters}};
  const OrderedJson tools = OrderedJson::array({{{"type", "function"}, {"function", function}}});
  const OrderedJson messages = OrderedJson::array({{{"role", "user"}, {"content", "Hi"}}});
  try {
    return render(messages, {{"tools", tools}}, allowance).find(name) != std::string::npos;
  } catch (const Stopped&) {
    throw;
  } catch (const Error&) {  // whoever uses it is told what it refuses
    return true;
  }
}

}  // namespace mr
