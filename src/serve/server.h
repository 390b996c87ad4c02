// The server: routes, who may ask, how many may wait, and how it all ends. HTTP threads parse, tokenize and format; the engine
// has one thread of its own, whose sinks only hand events over.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <set>
#include <string>
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
  int stall_seconds = 30;  // an engine that has work and takes no step for so long is not ready
};

class Server {
 public:
  Server(Engine&, ServeOptions);
  ~Server();

  int port() const { return http_->port(); }
  // Serves until SIGINT or SIGTERM, or stop(); then nothing new is taken, what runs is finished or, after the deadline, cancelled.
  // A second signal ends the wait.
  void run();
  void stop();  // any thread

 private:
  class Call;
  using Clock = std::chrono::steady_clock;
  struct Route {
    const char *method, *path;
    void (Server::*answer)(const HttpRequest&, const std::shared_ptr<Responder>&);
  };

  void handle(HttpRequest, const std::shared_ptr<Responder>&);
  void route(const HttpRequest&, const std::shared_ptr<Responder>&);
  void send(Responder&, HttpResponse);
  void authorize(const HttpRequest&) const;
  Headers cors_headers(const HttpRequest&) const;

  void chat_completion(const HttpRequest&, const std::shared_ptr<Responder>&);
  void completion(const HttpRequest&, const std::shared_ptr<Responder>&);
  void complete(Asked, const HttpRequest&, const std::shared_ptr<Responder>&);
  void models(const HttpRequest&, const std::shared_ptr<Responder>&);
  void model(const HttpRequest&, const std::shared_ptr<Responder>&);
  void tokenize(const HttpRequest&, const std::shared_ptr<Responder>&);
  void detokenize(const HttpRequest&, const std::shared_ptr<Responder>&);
  void health(const HttpRequest&, const std::shared_ptr<Responder>&);
  void ready(const HttpRequest&, const std::shared_ptr<Responder>&);
  void metrics(const HttpRequest&, const std::shared_ptr<Responder>&);

  void join_queue(int n_requests, int64_t n_tokens);  // throws 429
  void leave_queue(int64_t n_tokens);
  void note_begin(int64_t id);
  void note_end(int64_t id);
  double step_age() const;  // seconds; 0: there is no work
  void drain();

  Engine& engine_;
  ServeOptions options_;
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
