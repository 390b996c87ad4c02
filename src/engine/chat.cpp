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

std::vector<int32_t> ChatFormat::encode(const OrderedJson& messages, const OrderedJson& extra, const Allowance& allowance) const {
  OrderedJson context = extra;
  context["messages"] = messages;
  context["add_generation_prompt"] = true;
  if (tokenizer_.bos() >= 0) context["bos_token"] = tokenizer_.piece(tokenizer_.bos());
  if (tokenizer_.eos() >= 0) context["eos_token"] = tokenizer_.piece(tokenizer_.eos());
  const std::string text = template_.render(context, {.allowance = allowance});
  return tokenizer_.encode(text, false, true, allowance);  // the template writes the special tokens itself
}

}  // namespace mr
