// A small HTTP/1.1 server: whole answers and streams. Boost is known to http.cpp and its session.h alone.
// Each connection has a strand: its handler and whatever is posted to it run one at a time, on one of a few threads. Whatever is
// thrown there ends that connection and is logged.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/allowance.h"
#include "serve/memory_budget.h"

namespace mr {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string id;            // of its own, for the log and the client (X-Request-Id)
  std::string method, path;  // the path without its query
  Headers headers;           // names in lower case
  std::string body;
  Charge charge;                               // for the body, and for what its owner makes of it
  std::chrono::steady_clock::time_point came;  // when it was whole
  Allowance allowance;                         // of whoever waits for it to be read

  std::string_view header(std::string_view name) const;  // the first of that name; empty: not there
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string type = "application/json";
  Headers headers;
  std::string error;  // for the log
};

// Two pools of workers: what a small request costs shall not wait for large ones.
enum class Lane { small, large };

// The way back to one client, for one request. Any thread may post(), work() and make_room(); the rest is called on the connection's
// strand: in the handler, or in what was posted. After the client is gone every call is harmless and does nothing.
class Responder {
 public:
  virtual ~Responder() = default;
  virtual void post(std::function<void()>) = 0;
  virtual void work(Lane, std::function<void()>) = 0;  // on a worker, beside the strand: for what would hold up other connections
  // Cuts the connection that holds memory and has waited longest for its client; its bytes are free a moment later. False: there is none.
  virtual bool make_room() = 0;
  virtual void alarm(std::chrono::milliseconds, std::function<void()>) = 0;  // on the strand, if no answer has begun by then; one
  virtual void send(HttpResponse) = 0;                                       // whole, and the last word
  virtual void begin_stream(HttpResponse) = 0;                               // its body is ignored: push() and end_stream() follow
  // False: the client is gone, or so slow that more bytes than allowed are waiting for it; then it is dropped.
  virtual bool push(std::string bytes) = 0;
  virtual void end_stream() = 0;
  virtual void on_hang_up(std::function<void()>) = 0;  // called once, on the strand, if the client leaves before the last word
};

using Handler = std::function<void(HttpRequest, std::shared_ptr<Responder>)>;
// Sees a request without its body as soon as its headers are there. An answer: the request is refused, its body is not read.
using HeadCheck = std::function<std::optional<HttpResponse>(const HttpRequest&)>;

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8000;  // 0: any free one
  int threads = 2;  // that move bytes; and as many workers in each lane
  size_t max_body = 8 << 20;
  size_t max_header = 16 << 10;
  size_t max_headers = 100;
  size_t max_pending = 4 << 20;       // bytes that may wait for a slow reader of a stream
  size_t memory = size_t(256) << 20;  // bytes that all connections may hold together
  int max_connections = 4096;
  int request_seconds = 60;                   // for the next request to come, whole
  int flush_seconds = 30;                     // for the next bytes of an answer to go
  int patience_ms = 2000;                     // a client that is waited for longer may be cut when memory or connections run out
  std::function<void(std::string_view)> log;  // of what went wrong; any thread; empty: nobody wants to know
};

struct HttpStats {
  int n_connections = 0;
  int64_t n_cut = 0;                                     // connections that had to make room for others
  int64_t n_failed = 0;                                  // connections that ended with an exception
  double longest_turn_s = 0;                             // of processor time, of one thread that moves bytes for one connection
  size_t memory = 0, memory_peak = 0, memory_limit = 0;  // without the fixed sums of connections
};

class HttpServer {
 public:
  // Listens and answers from here on; throws Error if the address cannot be had.
  HttpServer(const HttpOptions&, Handler, HeadCheck = {});
  ~HttpServer();  // drops every connection

  void stop();  // its threads end; connections stay as they are
  int port() const;
  int n_busy() const;                               // connections with a request that is not answered to its last byte
  HttpStats stats() const;                          // any thread
  void on_signal(std::function<void(int)> action);  // SIGINT or SIGTERM came; on one of the server's threads

 private:
  struct World;
  std::unique_ptr<World> world_;
};

std::string_view reason_phrase(int status);
std::string lower_case(std::string_view);  // of ASCII

}  // namespace mr
