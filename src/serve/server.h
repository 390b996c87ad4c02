// The server: routes, who may ask, how many may wait, and how it all ends. HTTP threads parse, tokenize and format, large bodies
// on workers of their own; the engine has one thread, whose sinks only hand events over.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "engine/engine.h"
#include "serve/answer.h"
#include "serve/http.h"
#include "serve/metrics.h"

namespace mr {

struct ServeOptions {
  HttpOptions http;
  std::string model_name;
  std::string chat_template;  // empty: the model's own
  std::string api_key;        // empty: everyone may ask
  std::vector<std::string> allow_origins;
  int max_queue = 256;                // requests without a first token
  int64_t max_queue_tokens = 262144;  // and their prompts' tokens
  int drain_seconds = 30;
  std::function<LimitStats()> limits;  // for /metrics, on any thread; empty: nobody knows them
  int stall_seconds = 30;              // an engine that has work and takes no step for so long is not ready
};

class Server {
 public:
  explicit Server(ServeOptions);  // listens from here on: the process lives, and the API answers 503
  ~Server();

  using Progress = std::function<void(int64_t done, int64_t total)>;
  using Load = std::function<std::unique_ptr<Engine>(Progress)>;
  // Runs `load` on a thread of its own and throws what it throws. False: a signal or stop() came first; then that thread is left
  // to itself, and the process is expected to end.
  bool load(Load load);
  // Once there is an engine: serves until SIGINT, SIGTERM or stop(). Then nothing new is taken, what runs is finished or, after
  // the deadline, cancelled. A second signal ends the wait.
  void run();
  void stop();  // any thread
  int port() const { return http_->port(); }
  std::string plan() const { return engine_->memory().text(); }  // of memory; when it is loaded

 private:
  class Call;
  using Clock = std::chrono::steady_clock;
  using Reply = std::variant<HttpResponse, Asked>;  // a whole answer, or what the engine is to be asked
  struct Route {
    const char *method, *path;
    Reply (Server::*answer)(const HttpRequest&);
  };
  struct Loading {
    std::atomic<int64_t> done{0}, total{0};  // bytes
  };

  void handle(HttpRequest, std::shared_ptr<Responder>);
  Reply answer(const HttpRequest&);
  Reply route(const HttpRequest&);
  void give(Reply, const HttpRequest&, const std::shared_ptr<Responder>&);
  void send(Responder&, HttpResponse);
  void authorize(const HttpRequest&) const;
  Headers cors_headers(const HttpRequest&) const;

  Reply chat_completion(const HttpRequest&);
  Reply completion(const HttpRequest&);
  Reply models(const HttpRequest&);
  Reply model(const HttpRequest&);
  Reply tokenize(const HttpRequest&);
  Reply detokenize(const HttpRequest&);
  Reply health(const HttpRequest&);
  Reply ready(const HttpRequest&);
  Reply metrics(const HttpRequest&);

  void adopt(std::unique_ptr<Engine>);
  void join_queue(int n_requests, int64_t n_tokens);  // throws 429
  void leave_queue(int64_t n_tokens);
  void note_begin(int64_t id);
  void note_end(int64_t id);
  double step_age() const;  // seconds; 0: there is no work
  void drain();

  ServeOptions options_;
  const std::shared_ptr<Loading> loading_ = std::make_shared<Loading>();
  std::atomic<bool> loaded_{false};  // whoever has seen it true may use these three
  std::unique_ptr<Engine> engine_;
  std::optional<ChatFormat> chat_;
  ServedModel model_;
  ServeMetrics metrics_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int n_signals_ = 0;
  int n_queued_ = 0;
  int64_t n_queued_tokens_ = 0;
  std::set<int64_t> live_;        // ids of the engine's requests that have not ended
  Clock::time_point work_since_;  // when live_ was last empty
  std::atomic<bool> draining_{false};

  std::unique_ptr<HttpServer> http_;  // last: its threads use the rest
};

bool equal_in_constant_time(std::string_view given, std::string_view secret);

}  // namespace mr
