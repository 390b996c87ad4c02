// The server's log: one line a request, and all errors. A separate thread writes the lines, so that a full disk or an unread pipe
// blocks no request; the oldest lines are lost then. Prompts and answers are never logged, nor a template's messages, which may quote
// them.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace mr {

struct LogOptions {
  std::string level = "info";  // debug, info, warn, error, off
  bool json = false;           // an object a line
};

// The line of one finished request.
struct RequestLine {
  std::string id, method, path;
  int status = 0;
  double seconds = 0;
  std::string error;  // empty: none
  // Completions only:
  bool is_completion = false, stream = false;
  int64_t n_prompt = 0, n_generated = 0, n_cached = 0;
  double ttft_s = 0, tokens_per_s = 0;  // 0: unknown
};

// Any thread.
class Log {
 public:
  explicit Log(const LogOptions&);
  ~Log();

  void request(const RequestLine&);  // at info; at warn where the server failed
  void info(std::string_view);
  void warn(std::string_view);
  void error(std::string_view);
  void settle();  // waits briefly for lines that are not written yet

 private:
  struct Writer;
  std::unique_ptr<Writer> writer_;
};

std::string text_of(const RequestLine&);  // for people
std::string json_of(const RequestLine&);  // its members, without braces

}  // namespace mr
