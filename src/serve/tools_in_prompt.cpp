#include "serve/tools_in_prompt.h"

namespace mr {

namespace {

std::string to_text(const OrderedJson& json) { return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace); }

std::string tools_text(const OrderedJson& tools) {
  std::string text = "You may call functions. These are there, one in each line:\n<tools>\n";
  for (const OrderedJson& tool : tools) text += to_text(tool) + "\n";
  return text +
         "</tools>\nTo call one, answer with its name and arguments as JSON between tags, and nothing else:\n"
         "<tool_call>\n{\"name\": \"NAME\", \"arguments\": {\"ARGUMENT\": \"VALUE\"}}\n</tool_call>";
}

std::string content_of(const OrderedJson& message) {
  auto content = message.find("content");
  return content != message.end() && content->is_string() ? content->get<std::string>() : "";
}

// A call, or a call's result, as text.
void write_out(OrderedJson& message) {
  if (message.value("role", "") == "tool") {
    message["content"] = "<tool_response>\n" + content_of(message) + "\n</tool_response>";
    message["role"] = "user";
  }
  auto calls = message.find("tool_calls");
  if (calls == message.end()) return;
  std::string text = content_of(message);
  for (const OrderedJson& call : *calls) {
    const OrderedJson& function = call["function"];
    const OrderedJson shown{{"name", function.value("name", OrderedJson())}, {"arguments", function.value("arguments", OrderedJson())}};
    text += (text.empty() ? "" : "\n") + ("<tool_call>\n" + to_text(shown) + "\n</tool_call>");
  }
  message.erase("tool_calls");
  message["content"] = text;
}

}  // namespace

void put_tools_into_prompt(OrderedJson& messages, const OrderedJson& tools) {
  for (OrderedJson& message : messages) write_out(message);
  const std::string role = messages.empty() ? "" : messages[0].value("role", "");
  if (role == "system" || role == "developer")
    messages[0]["content"] = content_of(messages[0]) + "\n\n" + tools_text(tools);
  else
    messages.insert(messages.begin(), OrderedJson{{"role", "system"}, {"content", tools_text(tools)}});
}

}  // namespace mr
