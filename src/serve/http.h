// A small HTTP/1.1 server: whole responses and streams. Only http.cpp and its session.h include Boost.
// Each connection has a strand: its handler and everything posted to it run one at a time, on one of a few threads. An exception
// there ends that connection and is logged.
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
  std::string id;            // unique, for the log and the client (X-Request-Id)
  std::string method, path;  // the path without its query
  Headers headers;           // names in lower case
  std::string body;
  Charge charge;                               // for the body and everything derived from it
  std::chrono::steady_clock::time_point came;  // when it was complete
  Allowance allowance;                         // for parsing, rendering and tokenizing it

  std::string_view header(std::string_view name) const;  // the first of that name; empty: absent
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string type = "application/json";
  Headers headers;
  std::string error;  // for the log
};

// Two pools of workers: small requests must not wait for large ones.
enum class Lane { small, large };

// Answers one request of one client. Any thread may call post(), work() and make_room(); the rest is called on the connection's
// strand: in the handler, or in a posted function. After the client has disconnected every call does nothing.
class Responder {
 public:
  virtual ~Responder() = default;
  virtual void post(std::function<void()>) = 0;
  virtual void work(Lane, std::function<void()>) = 0;  // on a worker, off the strand: for work that would block other connections
  // For the bytes that a charge was denied: unless as many are free or about to be, cuts the connection that holds memory and has
  // waited longest for its client; its bytes are free a moment later. False: no candidate.
  virtual bool make_room(size_t n_missing) = 0;
  virtual void alarm(std::chrono::milliseconds, std::function<void()>) = 0;  // on the strand, if no answer has begun by then; only one
  virtual void send(HttpResponse) = 0;                                       // a whole response; the last call
  virtual void begin_stream(HttpResponse) = 0;                               // ignores the body; push() and end_stream() follow
  // Backpressure: false if the client has disconnected, or is dropped because more bytes than allowed wait for it.
  virtual bool push(std::string bytes) = 0;
  virtual void end_stream() = 0;
  virtual void on_hang_up(std::function<void()>) = 0;  // called once, on the strand, if the client disconnects before the end
};

using Handler = std::function<void(HttpRequest, std::shared_ptr<Responder>)>;
// Called with the headers alone, as soon as they are complete. A response refuses the request; its body is not read.
using HeadCheck = std::function<std::optional<HttpResponse>(const HttpRequest&)>;

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8000;  // 0: any free one
  int threads = 2;  // I/O threads; as many workers in each lane
  size_t max_body = 8 << 20;
  size_t max_header = 16 << 10;
  size_t max_headers = 100;
  size_t max_pending = 4 << 20;       // bytes that may wait for a slow reader of a stream
  size_t memory = size_t(256) << 20;  // bytes that all connections may hold together
  int max_connections = 4096;
  int request_seconds = 60;                   // until the next request is complete
  int flush_seconds = 30;                     // until the client takes the next bytes of an answer
  int patience_ms = 2000;                     // a client that is slower than this may be cut when memory or connections run out
  std::function<void(std::string_view)> log;  // for errors, on any thread; empty: none
};

struct HttpStats {
  int n_connections = 0;
  int64_t n_cut = 0;                                     // connections cut to make room for others
  int64_t n_failed = 0;                                  // connections that ended with an exception
  double longest_turn_s = 0;                             // CPU time of an I/O thread in one turn for one connection
  size_t memory = 0, memory_peak = 0, memory_limit = 0;  // without the fixed charges of connections
};

class HttpServer {
 public:
  // Listens and answers from here on; throws Error if the address is not available.
  HttpServer(const HttpOptions&, Handler, HeadCheck = {});
  ~HttpServer();  // drops every connection

  void stop();  // ends its threads; connections stay open
  int port() const;
  int n_busy() const;                               // connections whose request is not answered to the last byte
  HttpStats stats() const;                          // any thread
  void on_signal(std::function<void(int)> action);  // for SIGINT and SIGTERM; on one of the server's threads

 private:
  struct World;
  std::unique_ptr<World> world_;
};

std::string_view reason_phrase(int status);
std::string lower_case(std::string_view);  // ASCII only

}  // namespace mr
