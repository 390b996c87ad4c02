// A conversation: its turns, and how many of them the model still sees. Saved as OpenAI's list of messages.
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

  OrderedJson messages(const std::string& question) const;  // as the model sees them, ending with the question

  OrderedJson to_json(const std::string& model) const;
  static Conversation from_json(const OrderedJson&, const std::string& where);  // throws, naming `where`
};

// Overwrites only a saved conversation.
void save_conversation(const Conversation&, const std::string& model, const std::filesystem::path&);
Conversation load_conversation(const std::filesystem::path&);

}  // namespace mr
