// Chat templates: the Jinja that model files carry, rendered as transformers renders it (trim_blocks, lstrip_blocks,
// loop controls, tojson as json.dumps writes). A template is untrusted: depth, steps and output are bounded.
#pragma once

#include <memory>
#include <string>

#include "core/json.h"

namespace mr {

class ChatTemplate {
 public:
  explicit ChatTemplate(const std::string& source);  // throws an Error with the line that it cannot read
  // The context's members are the template's variables: messages, tools, add_generation_prompt, bos_token, …
  // Plain Json has its keys sorted; parse tools and messages into OrderedJson where their order should show.
  std::string render(const OrderedJson& context) const;
  std::string render(const Json& context) const;

 private:
  struct Program;
  std::shared_ptr<const Program> program_;
};

// One rendering: `extra` holds everything besides the messages.
std::string render_chat(const std::string& source, const OrderedJson& messages, const OrderedJson& extra);
std::string render_chat(const std::string& source, const Json& messages, const Json& extra);

}  // namespace mr
