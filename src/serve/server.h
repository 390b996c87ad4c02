// The server: routes, queue limits, shutdown. I/O threads move bytes and format events; workers parse, render templates and tokenize,
// with a pool each for small and large bodies; the engine has one thread, whose sinks only post events.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <set>
#include <stop_token>
#include <string>
#include <variant>
#include <vector>

#include "engine/engine.h"
#include "serve/answer.h"
#include "serve/gate.h"
#include "serve/http.h"
#include "serve/log.h"
#include "serve/metrics.h"
#include "serve/queue.h"

namespace mr {

struct ServeOptions {
  HttpOptions http;
  std::string model_name;
  std::vector<std::string> aliases;  // other names that clients may call it
  std::string chat_template;         // empty: the model's own
  LogOptions log;
  bool lenient_fields = false;          // unknown fields of a request are logged, not refused
  bool tools_in_system_prompt = false;  // where the template does not show them
  GateOptions gate;                     // its address is that of `http`
  int max_queue = 1024;                 // answers without a first token
  int64_t max_queue_tokens = 262144;    // and their prompts' tokens
  int read_ms = 10000;                  // to parse, render and tokenize a request, waiting for a worker included
  int drain_seconds = 30;
  std::function<LimitStats()> limits;  // for /metrics, on any thread; empty: unknown
  int stall_seconds = 30;              // an engine that has work and takes no step for this long is not ready
  std::function<void()> at_rest;       // called within seconds after the last request has finished: memory can be trimmed
};

class Server {
 public:
  explicit Server(ServeOptions);  // listens from here on: /health answers, the API is a 503
  ~Server();

  using Progress = std::function<void(int64_t done, int64_t total)>;
  using Load = std::function<std::unique_ptr<Engine>(Progress)>;
  // Runs `load` on its own thread and throws what it throws. False: a signal or stop() came first; that thread is abandoned and the
  // process is expected to exit.
  bool load(Load load);
  // After load(): serves until SIGINT, SIGTERM or stop(). Then drains: no new requests, running ones finish or, after the deadline,
  // are cancelled. A second signal ends the wait.
  void run();
  void stop();  // any thread
  int port() const { return http_->port(); }
  Log& log() { return log_; }
  std::string plan() const { return engine_->memory().text(); }  // of memory; after load()

 private:
  class Call;
  using Clock = std::chrono::steady_clock;
  using Reply = std::variant<HttpResponse, Asked>;  // a whole response, or a request for the engine
  struct Route {
    const char *method, *path;
    Reply (Server::*answer)(HttpRequest&);
  };
  struct Job {  // a request on a worker
    HttpRequest request;
    std::stop_source stop;          // ends parsing
    std::atomic<bool> over{false};  // it is answered, or the client has disconnected
    int n_pauses = 0;               // waiting for memory
  };
  struct Loading {
    std::atomic<int64_t> done{0}, total{0};  // bytes
  };

  void handle(HttpRequest, std::shared_ptr<Responder>);
  static bool grant(Job&, Responder&, size_t more);
  Reply answer(HttpRequest&);
  Reply route(HttpRequest&);
  void give(Reply, HttpRequest&, const std::shared_ptr<Responder>&);
  void send(Responder&, RequestLine, HttpResponse);
  void note_answer(RequestLine, const HttpResponse&);
  OrderedJson json_of(HttpRequest&) const;
  RequestLimits limits_of(const HttpRequest&);

  Reply chat_completion(HttpRequest&);
  Reply completion(HttpRequest&);
  Reply models(HttpRequest&);
  Reply model(HttpRequest&);
  Reply tokenize(HttpRequest&);
  Reply detokenize(HttpRequest&);
  Reply health(HttpRequest&);
  Reply ready(HttpRequest&);
  Reply metrics(HttpRequest&);
  Reply openapi(HttpRequest&);

  void adopt(std::unique_ptr<Engine>);
  void note_begin(int64_t id);
  void note_end(int64_t id);
  double step_age() const;  // seconds; 0: no work
  void wait_for_signal();
  void drain();

  ServeOptions options_;
  Log log_;
  const std::shared_ptr<Loading> loading_ = std::make_shared<Loading>();
  std::atomic<bool> loaded_{false};  // set after the next three, which are constant from then on
  std::unique_ptr<Engine> engine_;
  std::optional<ChatFormat> chat_;
  ServedModel model_;
  ServeMetrics metrics_;
  const Gate gate_;
  Queue queue_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int n_signals_ = 0;
  std::set<int64_t> live_;        // ids of unfinished requests in the engine
  Clock::time_point work_since_;  // when live_ was last empty
  std::atomic<bool> draining_{false};
  std::atomic<bool> worked_{false};  // since at_rest was last called
  std::stop_source stop_reading_;    // ends parsing of requests not yet submitted

  std::unique_ptr<HttpServer> http_;  // last: its threads use the rest
};

extern const std::string_view openapi_json;  // src/serve/openapi.json

}  // namespace mr
