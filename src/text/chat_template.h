// Chat templates: the Jinja that model files carry, rendered as transformers renders it (trim_blocks, lstrip_blocks,
// loop controls, tojson as json.dumps writes). A template is untrusted: its size and nesting are bounded when it is parsed,
// its work and memory when it runs.
#pragma once

#include <memory>
#include <string>

#include "core/allowance.h"
#include "core/json.h"

namespace mr {

// What one rendering may cost. Beyond it the rendering ends with an Error.
struct TemplateLimits {
  size_t work = 100'000'000;         // units of about a nanosecond: the same template stops at the same point on every machine
  size_t bytes = size_t{64} << 20;   // of live values, the variables and the output included
  size_t output = size_t{16} << 20;  // bytes; the output is tokenized next
  Allowance allowance = {};          // the clock is checked about once a millisecond
};

class ChatTemplate {
 public:
  explicit ChatTemplate(const std::string& source);  // throws an Error that names the line
  // The context's members are the template's variables: messages, tools, add_generation_prompt, bos_token, …
  // Plain Json sorts its keys; parse tools and messages into OrderedJson to keep their order.
  std::string render(const OrderedJson& context, const TemplateLimits& limits = {}) const;
  std::string render(const Json& context, const TemplateLimits& limits = {}) const;

 private:
  struct Program;
  std::shared_ptr<const Program> program_;
};

// One rendering: `extra` holds everything besides the messages.
std::string render_chat(const std::string& source, const OrderedJson& messages, const OrderedJson& extra);
std::string render_chat(const std::string& source, const Json& messages, const Json& extra);

}  // namespace mr
