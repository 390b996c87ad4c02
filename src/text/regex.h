// Regular expressions with Unicode classes: PCRE2, compiled just in time. Safe to share between threads.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/allowance.h"

namespace mr {

// The time that the patterns of a file may take for one text. Sane ones need a thousandth of it; others could take years.
class MatchBudget {
 public:
  MatchBudget(size_t text_bytes, const Allowance&);
  bool allows_a_call();  // a call takes a bounded number of steps; throws Stopped
  void look_next();      // check the clock before the next call, which may take many steps

 private:
  const Allowance& allowance_;
  size_t calls_ = 0;
  std::chrono::steady_clock::time_point end_;
};

class Regex {
 public:
  // `pattern` is in the dialect that tokenizer.json files use (Oniguruma); what PCRE2 reads differently is translated.
  explicit Regex(const std::string& pattern);
  static std::string escape(std::string_view literal);

  // Calls visit(begin, end) for each non-empty, non-overlapping match from left to right. `text` is valid UTF-8.
  // Throws when the pattern backtracks too much or the budget is spent.
  using Visit = std::function<void(size_t begin, size_t end)>;
  void each_match(std::string_view text, MatchBudget& budget, const Visit& visit) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace mr
