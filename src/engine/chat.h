// Encodes a conversation with the model's chat template.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace mr {

class ChatFormat {
 public:
  // `override_source`: another template than the model's own. Throws when there is none at all.
  ChatFormat(const Tokenizer&, const std::string& override_source = "");

  // messages: [{"role", "content"}, ...]; extra: tools and whatever else the template asks for. The assistant's turn is opened.
  // Throws Stopped when the allowance is over.
  std::vector<int32_t> encode(const OrderedJson& messages, const OrderedJson& extra = OrderedJson::object(), const Allowance& = {}) const;

  // A template without a place for tools leaves them out without a word: this one is tried with a function.
  bool shows_tools(const Allowance& = {}) const;

 private:
  std::string render(const OrderedJson& messages, const OrderedJson& extra, const Allowance&) const;

  const Tokenizer& tokenizer_;
  ChatTemplate template_;
};

}  // namespace mr
