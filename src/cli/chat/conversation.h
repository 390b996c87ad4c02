// A conversation: what was said, and how much of it the model still sees. As a file it is OpenAI's list of messages.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/json.h"

namespace mr {

struct ChatTurn {
  std::string user, reasoning, answer;
};

struct Conversation {
  std::string system;  // empty: none
  std::vector<ChatTurn> turns;
  size_t n_forgotten = 0;  // oldest turns that no longer fit into the context

  OrderedJson messages(const std::string& question) const;  // what the model sees, ending with the question

  OrderedJson to_json(const std::string& model) const;
  static Conversation from_json(const OrderedJson&, const std::string& where);  // throws, naming `where`
};

// Writes over a saved conversation, and over nothing else.
void save_conversation(const Conversation&, const std::string& model, const std::filesystem::path&);
Conversation load_conversation(const std::filesystem::path&);

}  // namespace mr
