// One completion in flight. Everything runs on its connection's strand; the sinks, on the engine's thread, only post to it. The sinks
// own the call, the call owns its connection: if the engine drops a sink without a last event, the destructor answers with an error.
#pragma once

#include <memory>
#include <vector>

#include "serve/server.h"

namespace mr {

class Server::Call : public std::enable_shared_from_this<Call> {
 public:
  Call(Server&, Asked, Charge, std::shared_ptr<Responder>, Headers, RequestLine);
  ~Call();

  void begin();  // throws what the client is to be told; then nothing of it is left in the queue or the engine

 private:
  struct Part {
    int64_t id = 0;
    int n_open = 0;
  };

  void submit(int prompt, Queue::Place);
  void open_stream();
  void take(int prompt, const TokenEvent&);
  bool hold();  // charges what is collected so far
  void finish();
  void send_whole(std::string body);
  void fail(const ApiError&);
  void abandon();
  void close_part(Part&);
  void note(int status, const std::string& error);  // logs it, once

  Server& server_;
  const Asked asked_;
  Charge charge_;
  const size_t n_asked_bytes_;
  std::shared_ptr<Responder> out_;
  Headers headers_;
  RequestLine line_;
  AnswerWriter writer_;
  std::vector<Part> parts_;  // by prompt
  bool over_ = true;         // no more is sent; true until all prompts are submitted, so that begin() reports errors
  bool noted_ = false;       // its line is in the log
  double last_token_s_ = 0;  // since the request arrived
  Clock::time_point came_ = Clock::now();
};

}  // namespace mr
