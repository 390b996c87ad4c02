// Regular expressions with Unicode classes: PCRE2, compiled just in time. Safe to share between threads.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace mr {

class Regex {
 public:
  // `pattern` is in the dialect that tokenizer.json files use (Oniguruma); what PCRE2 reads differently is translated.
  explicit Regex(const std::string& pattern);
  static std::string escape(std::string_view literal);

  // Calls visit(begin, end) for each non-empty, non-overlapping match from left to right. `text` is valid UTF-8.
  void each_match(std::string_view text, const std::function<void(size_t begin, size_t end)>& visit) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace mr
