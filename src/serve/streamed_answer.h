// Reading a streamed answer of an OpenAI server, which may be anyone's: the events of the stream, and what became of the request.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace mr {

// The events of a server-sent stream, whatever the pieces it comes in: LF, CRLF or CR, several data lines, comments.
class EventParser {
 public:
  static constexpr size_t max_event = size_t(16) << 20;  // bytes
  using OnData = std::function<void(std::string_view data)>;
  bool feed(std::string_view bytes, const OnData&);  // false: an event is longer than that; nothing more is read

 private:
  void line(const OnData&);
  std::string line_, data_;
  bool has_data_ = false, after_cr_ = false, too_long_ = false;
};

// What became of one request; times in seconds since the load began.
struct Outcome {
  double sent = 0, first = 0, done = 0;  // asked (connecting included), first text, last token
  int prompt_tokens = 0, n_tokens = 0;   // as the server counted them; else the pieces of text that came
  std::string error;                     // empty: the whole answer came. Else a short name for its kind: "429 Too Many Requests"
  std::string detail;                    // what the server said about it, if anything
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
  void end(std::string error);  // empty: all of it came, with status 200

 private:
  void event(std::string_view data);
  void explain(std::string_view words);
  void refuse(std::string error, std::string_view words);

  Outcome& out_;
  std::function<double()> now_;
  EventParser events_;
  int n_pieces_ = 0;
  double last_ = 0;  // when the last text came
  bool done_ = false;
};

}  // namespace mr
