// Reads a streamed answer of an OpenAI server, ours or another: the events of the stream, and the outcome of the request.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace mr {

// Incremental parser of server-sent events: LF, CRLF or CR, several data lines, comments.
class EventParser {
 public:
  static constexpr size_t max_event = size_t(16) << 20;  // bytes
  using OnData = std::function<void(std::string_view data)>;
  bool feed(std::string_view bytes, const OnData&);  // false: an event is too long; parsing stops

 private:
  void line(const OnData&);
  std::string line_, data_;
  bool has_data_ = false, after_cr_ = false, too_long_ = false;
};

// The outcome of one request; times in seconds since the load began.
struct Outcome {
  double sent = 0, first = 0, done = 0;  // request sent (connecting included), first text, last token
  int prompt_tokens = 0, n_tokens = 0;   // as counted by the server; else the number of text events
  std::string error;                     // empty: complete. Else a short name of its kind: "429 Too Many Requests"
  std::string detail;                    // the server's message, if any
  double ttft() const { return first - sent; }
  double tpot() const { return n_tokens > 1 ? (done - first) / (n_tokens - 1) : 0; }  // time per output token after the first
  double e2e() const { return done - sent; }
};

// Reads the events of one streamed answer into an Outcome.
class StreamedAnswer {
 public:
  static constexpr size_t max_detail = 500;  // bytes

  StreamedAnswer(Outcome& outcome, std::function<double()> now) : out_(outcome), now_(std::move(now)) {}
  void body(int status, std::string_view bytes);
  void end(std::string error);  // empty: complete, with status 200

 private:
  void event(std::string_view data);
  void explain(std::string_view words);
  void refuse(std::string error, std::string_view words);

  Outcome& out_;
  std::function<double()> now_;
  EventParser events_;
  int n_pieces_ = 0;
  double last_ = 0;  // when the last text arrived
  bool done_ = false;
};

}  // namespace mr
