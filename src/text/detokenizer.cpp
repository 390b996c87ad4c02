#include "text/detokenizer.h"

#include "text/unicode.h"

namespace mr {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special, bool continues)
    : tokenizer_(tokenizer),
      strip_left_(continues ? 0 : tokenizer.decoder().strip_first_count),
      skip_special_(skip_special),
      first_(!continues) {}

std::string Detokenizer::emit(std::string text) {
  const std::string& strip = tokenizer_.decoder().strip_first;
  while (strip_left_ > 0 && !text.empty()) {
    if (!text.starts_with(strip)) {
      strip_left_ = 0;
    } else {
      text.erase(0, strip.size());
      --strip_left_;
    }
  }
  return text;
}

std::string Detokenizer::push(int32_t id) {
  if (id < 0 || id >= tokenizer_.vocab_size() || (skip_special_ && tokenizer_.is_special(id))) return {};
  pending_ += tokenizer_.decoded_bytes(id, first_);
  first_ = false;
  size_t tail = incomplete_utf8_tail(pending_);
  std::string whole = to_valid_utf8(std::string_view(pending_).substr(0, pending_.size() - tail));
  pending_.erase(0, pending_.size() - tail);
  return emit(std::move(whole));
}

std::string Detokenizer::finish() {
  std::string rest = to_valid_utf8(pending_);
  pending_.clear();
  return emit(std::move(rest));
}

}  // namespace mr
