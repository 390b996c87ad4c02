#include "cli/chat/conversation.h"

#include "cli/options.h"
#include "core/bounded_json.h"
#include "core/error.h"

namespace mr {

namespace {

OrderedJson message(const char* role, const std::string& content) { return {{"role", role}, {"content", content}}; }

std::string text_of(const OrderedJson& message, const char* field, const std::string& where) {
  check(message.is_object() && message.contains(field) && message[field].is_string(), "{}: a message without a text as its {}", where,
        field);
  return message[field];
}

}  // namespace

OrderedJson Conversation::messages(const std::string& question) const {
  OrderedJson list = OrderedJson::array();
  if (!system.empty()) list.push_back(message("system", system));
  for (size_t i = n_forgotten; i < turns.size(); i++) {
    list.push_back(message("user", turns[i].user));
    list.push_back(message("assistant", turns[i].answer));
  }
  list.push_back(message("user", question));
  return list;
}

OrderedJson Conversation::to_json(const std::string& model) const {
  OrderedJson list = OrderedJson::array();
  if (!system.empty()) list.push_back(message("system", system));
  for (const ChatTurn& t : turns) {
    list.push_back(message("user", t.user));
    list.push_back(message("assistant", t.answer));
    if (!t.reasoning.empty()) list.back()["reasoning_content"] = t.reasoning;
  }
  return {{"model", model}, {"messages", list}};
}

Conversation Conversation::from_json(const OrderedJson& json, const std::string& where) {
  const OrderedJson* list = json.is_object() && json.contains("messages") ? &json["messages"] : &json;
  check(list->is_array(), "{} is not a conversation: it has no list of messages", where);
  Conversation c;
  bool answered = true;
  for (const OrderedJson& m : *list) {
    const std::string role = text_of(m, "role", where), content = text_of(m, "content", where);
    if ((role == "system" || role == "developer") && c.turns.empty() && answered) {
      c.system += (c.system.empty() ? "" : "\n\n") + content;
    } else if (role == "user" && answered) {
      c.turns.push_back({content, "", ""});
      answered = false;
    } else if (role == "assistant" && !answered) {
      c.turns.back().answer = content;
      if (m.contains("reasoning_content")) c.turns.back().reasoning = text_of(m, "reasoning_content", where);
      answered = true;
    } else {
      fail("{}: a message of role '{}' where none can be: users and assistants take turns", where, role);
    }
  }
  check(answered, "{}: the last question has no answer", where);
  return c;
}

void save_conversation(const Conversation& c, const std::string& model, const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) {
    try {
      load_conversation(path);
    } catch (const Error&) {
      fail("{} is there already, and it is no conversation: give another name", path.string());
    }
  }
  write_file(path, c.to_json(model).dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
}

Conversation load_conversation(const std::filesystem::path& path) {
  const std::string where = sentence("'{}'", path.string());
  check(path != "-", "a conversation comes from a file: standard input is what is typed here");
  return Conversation::from_json(parse_json<OrderedJson>(read_file(path.string()), where), where);
}

}  // namespace mr
