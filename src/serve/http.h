// A small HTTP/1.1 server: whole answers and streams. Boost is known to http.cpp alone.
// Each connection is a strand: its handler and whatever is posted to it run one at a time, on one of a few threads.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mr {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method, path;  // the path without its query
  Headers headers;           // names in lower case
  std::string body;

  std::string_view header(std::string_view name) const;  // empty: not there
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string type = "application/json";
  Headers headers;
};

// The way back to one client, for one request. Any thread may post() and work(); the rest is called on the connection's strand:
// in the handler, or in what was posted. After the client is gone every call is harmless and does nothing.
class Responder {
 public:
  virtual ~Responder() = default;
  virtual void post(std::function<void()>) = 0;
  virtual void work(std::function<void()>) = 0;  // on a worker, beside the strand: for what would hold up other connections
  virtual void send(HttpResponse) = 0;           // whole, and the last word
  virtual void begin_stream(HttpResponse) = 0;   // its body is ignored: push() and end_stream() follow
  // False: the client is gone, or so slow that more bytes than allowed are waiting for it; then it is dropped.
  virtual bool push(std::string bytes) = 0;
  virtual void end_stream() = 0;
  virtual void on_hang_up(std::function<void()>) = 0;  // called once, on the strand, if the client leaves before the last word
};

using Handler = std::function<void(HttpRequest, std::shared_ptr<Responder>)>;

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8000;  // 0: any free one
  int threads = 2;  // that move bytes; and as many workers
  size_t max_body = 8 << 20;
  size_t max_header = 16 << 10;
  size_t max_pending = 4 << 20;  // bytes that may wait for a slow reader of a stream
  int max_connections = 4096;
  int request_seconds = 60;  // for the next request to come, whole
  int flush_seconds = 30;    // for the last bytes of an answer to go
};

class HttpServer {
 public:
  HttpServer(const HttpOptions&, Handler);  // listens and answers from here on; throws Error if the address cannot be had
  ~HttpServer();                            // drops every connection

  void stop();  // its threads end; connections stay as they are
  int port() const;
  int n_busy() const;                               // connections with a request that is not answered to its last byte
  void on_signal(std::function<void(int)> action);  // SIGINT or SIGTERM came; on one of the server's threads

 private:
  struct World;
  std::unique_ptr<World> world_;
};

std::string_view reason_phrase(int status);

}  // namespace mr
