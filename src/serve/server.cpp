#include "serve/server.h"

#include <ctime>
#include <future>
#include <thread>

#include "core/error.h"
#include "serve/page.h"

namespace mr {

bool equal_in_constant_time(std::string_view given, std::string_view secret) {
  volatile unsigned char differ = given.size() != secret.size();
  for (size_t i = 0; i < given.size(); i++) differ = differ | (given[i] ^ secret[secret.empty() ? 0 : i % secret.size()]);
  return differ == 0;
}

// One completion on its way. Everything here happens on its connection's strand, except the sinks, which hand over to it.
class Server::Call : public std::enable_shared_from_this<Call> {
 public:
  Call(Server& server, Asked asked, std::shared_ptr<Responder> out, Headers headers)
      : server_(server), asked_(std::move(asked)), out_(std::move(out)), headers_(std::move(headers)), writer_(asked_, server.model_) {}

  void begin() {
    const int n_prompts = int(asked_.prompts.size());
    server_.join_queue(n_prompts, asked_.n_prompt_tokens());
    int submitted = 0;
    try {
      for (; submitted < n_prompts; submitted++) submit(submitted);
    } catch (const Error& e) {
      for (int p = submitted; p < n_prompts; p++) server_.leave_queue(int64_t(asked_.prompts[size_t(p)].size()));
      abandon();
      refuse(asked_.chat ? "messages" : "prompt", "{}", e.what());
    }
    out_->on_hang_up([weak = weak_from_this()] {  // the sinks own the call, the call owns its connection
      if (auto self = weak.lock()) self->abandon();
    });
    if (!asked_.stream) return;
    Headers headers = headers_;
    headers.emplace_back("Cache-Control", "no-cache");
    server_.metrics_.responded(200);
    out_->begin_stream({.type = "text/event-stream", .headers = std::move(headers)});
  }

 private:
  struct Part {
    int64_t id = 0;
    int n_open = 0;
  };

  void submit(int prompt) {
    const int64_t n_tokens = int64_t(asked_.prompts[size_t(prompt)].size());
    // On the engine's thread: nothing but handing over.
    auto sink = [self = shared_from_this(), prompt, n_tokens, queued = true](const TokenEvent& event) mutable {
      if (queued) self->server_.leave_queue(n_tokens);
      queued = false;
      self->out_->post([self, prompt, event] { self->take(prompt, event); });
    };
    int64_t id = server_.engine_->submit(asked_.request_of(size_t(prompt)), std::move(sink));
    parts_.push_back({id, asked_.n});
    server_.note_begin(id);
  }

  void take(int prompt, const TokenEvent& event) {
    Part& part = parts_[size_t(prompt)];
    if (event.finish != Finish::none) {
      if (--part.n_open == 0) server_.note_end(part.id);
      server_.metrics_.answered(event, std::chrono::duration<double>(Clock::now() - came_).count());
    }
    if (over_) return;
    if (event.finish == Finish::error) return fail({500, event.error});
    if (event.finish == Finish::cancelled) return fail({503, "the server is shutting down"});
    std::string bytes = writer_.add(prompt, event);
    if (asked_.stream && !bytes.empty() && !out_->push(std::move(bytes))) return abandon();
    if (writer_.complete()) finish();
  }

  void finish() {
    over_ = true;
    if (!asked_.stream) return server_.send(*out_, {.body = writer_.whole(), .headers = headers_});
    out_->push(writer_.stream_end());
    out_->end_stream();
  }

  void fail(const ApiError& error) {
    abandon();
    if (!asked_.stream) return server_.send(*out_, {.status = error.status, .body = error_body(error), .headers = headers_});
    out_->push("data: " + error_body(error) + "\n\n");
    out_->end_stream();
  }

  void abandon() {
    over_ = true;
    for (const Part& part : parts_)
      if (part.n_open > 0) server_.engine_->cancel(part.id);
  }

  Server& server_;
  const Asked asked_;
  std::shared_ptr<Responder> out_;
  Headers headers_;
  AnswerWriter writer_;
  std::vector<Part> parts_;  // by prompt
  bool over_ = false;        // nobody waits for more
  Clock::time_point came_ = Clock::now();
};

Server::Server(ServeOptions options) : options_(std::move(options)), work_since_(Clock::now()) {
  http_ = std::make_unique<HttpServer>(
      options_.http, [this](HttpRequest request, std::shared_ptr<Responder> out) { handle(std::move(request), std::move(out)); });
  http_->on_signal([this](int) { stop(); });
}

// First the threads, then the engine with its sinks, which hold connections, then the world in which connections live.
Server::~Server() {
  http_->stop();
  engine_.reset();
}

void Server::stop() {
  std::lock_guard lock(mutex_);
  n_signals_++;
  changed_.notify_all();
}

bool Server::load(Load load) {
  std::packaged_task<std::unique_ptr<Engine>()> task([load = std::move(load), loading = loading_] {
    return load([loading](int64_t done, int64_t total) { loading->done = done, loading->total = total; });
  });
  auto engine = task.get_future();
  std::thread(std::move(task)).detach();
  while (engine.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) {
    std::lock_guard lock(mutex_);
    if (n_signals_ > 0) return false;
  }
  adopt(engine.get());
  return true;
}

void Server::adopt(std::unique_ptr<Engine> engine) {
  engine_ = std::move(engine);
  const Tokenizer* tokenizer = engine_->tokenizer();
  if (tokenizer && (!options_.chat_template.empty() || !tokenizer->chat_template().empty()))
    chat_.emplace(*tokenizer, options_.chat_template);
  model_.name = options_.model_name;
  model_.tokenizer = tokenizer;
  model_.chat = chat_ ? &*chat_ : nullptr;
  model_.vocab = engine_->model().spec().vocab;
  model_.max_context = int(std::min<int64_t>(engine_->max_context(), engine_->memory_plan().n_tokens));
  model_.max_state = engine_->memory_plan().n_tokens;
  model_.max_choices = std::min(128, engine_->max_seqs());
  model_.created = std::time(nullptr);
  loaded_ = true;
}

void Server::run() {
  std::jthread engine_thread([this](std::stop_token stop) { engine_->run(stop); });
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return n_signals_ > 0; });
  }
  drain();
  engine_thread.request_stop();
  engine_thread.join();
  while (engine_->step()) {  // what was cancelled tells its sinks, and lets go of the connections
  }
}

// Nothing new is taken from here on.
void Server::drain() {
  draining_ = true;
  engine_->close();
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(options_.drain_seconds);
  std::unique_lock lock(mutex_);
  auto finished = [&] { return live_.empty() && http_->n_busy() == 0; };
  while (!finished() && n_signals_ < 2 && Clock::now() < deadline) changed_.wait_for(lock, std::chrono::milliseconds(20));
  for (int64_t id : live_) engine_->cancel(id);
  for (int i = 0; i < 100 && !finished(); i++) changed_.wait_for(lock, std::chrono::milliseconds(20));
}

// ---- who may wait

void Server::join_queue(int n_requests, int64_t n_tokens) {
  std::lock_guard lock(mutex_);
  bool full = n_queued_ + n_requests > options_.max_queue || n_queued_tokens_ + n_tokens > options_.max_queue_tokens;
  if (full && n_queued_ > 0) {  // to an empty queue anyone may come, however large
    metrics_.refused();
    throw ApiError(429, fmt::format("the queue is full: {} requests with {} tokens are waiting", n_queued_, n_queued_tokens_), "",
                   "queue_full");
  }
  n_queued_ += n_requests;
  n_queued_tokens_ += n_tokens;
}

void Server::leave_queue(int64_t n_tokens) {
  std::lock_guard lock(mutex_);
  n_queued_--;
  n_queued_tokens_ -= n_tokens;
}

void Server::note_begin(int64_t id) {
  std::lock_guard lock(mutex_);
  if (live_.empty()) work_since_ = Clock::now();
  live_.insert(id);
}

void Server::note_end(int64_t id) {
  std::lock_guard lock(mutex_);
  live_.erase(id);
  changed_.notify_all();
}

double Server::step_age() const {
  std::lock_guard lock(mutex_);
  if (live_.empty()) return 0;
  Clock::time_point last{std::chrono::nanoseconds(engine_->stats().last_step_ns)};
  return std::max(0.0, std::chrono::duration<double>(Clock::now() - std::max(last, work_since_)).count());
}

// ---- who may ask, and what

void Server::authorize(const HttpRequest& request) const {
  if (options_.api_key.empty() || request.path == "/health" || request.path == "/ready") return;
  std::string_view given = request.header("authorization");
  const std::string_view scheme = "Bearer ";
  if (given.starts_with(scheme) && equal_in_constant_time(given.substr(scheme.size()), options_.api_key)) return;
  throw ApiError(401, given.empty() ? "an API key is needed: Authorization: Bearer KEY" : "the API key is wrong", "", "invalid_api_key");
}

Headers Server::cors_headers(const HttpRequest& request) const {
  std::string_view origin = request.header("origin");
  for (const std::string& allowed : options_.allow_origins) {
    if (origin.empty() || (allowed != "*" && allowed != origin)) continue;
    return {{"Access-Control-Allow-Origin", std::string(origin)}, {"Vary", "Origin"}};
  }
  return {};
}

void Server::send(Responder& out, HttpResponse response) {
  metrics_.responded(response.status);
  out.send(std::move(response));
}

static HttpResponse error_response(const ApiError& e) {
  HttpResponse r{.status = e.status, .body = error_body(e)};
  if (e.status == 429 || e.status == 503) r.headers.emplace_back("Retry-After", "1");
  if (e.status == 401) r.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (e.status == 405) r.headers.emplace_back("Allow", e.param);
  return r;
}

// On the connection's strand. A large body is read by a worker: huge prompts must hold up nobody but each other.
void Server::handle(HttpRequest request, std::shared_ptr<Responder> out) {
  constexpr size_t small = 16 << 10;  // bytes: milliseconds at worst
  if (request.body.size() <= small) return give(answer(request), request, out);
  auto asked = std::make_shared<HttpRequest>(std::move(request));
  out->work([this, asked, out] {
    auto reply = std::make_shared<Reply>(answer(*asked));
    out->post([this, asked, out, reply] { give(std::move(*reply), *asked, out); });
  });
}

Server::Reply Server::answer(const HttpRequest& request) {
  try {
    return route(request);
  } catch (const ApiError& e) {
    return error_response(e);
  } catch (const std::exception& e) {
    return error_response({500, e.what()});
  }
}

void Server::give(Reply reply, const HttpRequest& request, const std::shared_ptr<Responder>& out) {
  Headers cors = cors_headers(request);
  try {
    if (auto* asked = std::get_if<Asked>(&reply)) {
      if (draining_) throw ApiError(503, "the server is shutting down");
      return std::make_shared<Call>(*this, std::move(*asked), out, cors)->begin();
    }
  } catch (const ApiError& e) {
    reply = error_response(e);
  }
  HttpResponse& whole = std::get<HttpResponse>(reply);
  whole.headers.insert(whole.headers.end(), cors.begin(), cors.end());
  send(*out, std::move(whole));
}

Server::Reply Server::route(const HttpRequest& request) {
  static constexpr Route routes[] = {
      {"POST", "/v1/chat/completions", &Server::chat_completion},
      {"POST", "/v1/completions", &Server::completion},
      {"GET", "/v1/models", &Server::models},
      {"GET", "/v1/models/", &Server::model},  // and the name
      {"POST", "/tokenize", &Server::tokenize},
      {"POST", "/detokenize", &Server::detokenize},
      {"GET", "/health", &Server::health},
      {"GET", "/ready", &Server::ready},
      {"GET", "/metrics", &Server::metrics},
  };
  if (request.method == "OPTIONS" && !cors_headers(request).empty())
    return HttpResponse{
        .status = 204,
        .headers = {{"Access-Control-Allow-Methods", "GET, POST"}, {"Access-Control-Allow-Headers", "Authorization, Content-Type"}}};
  if (auto page = page_response(request)) return *std::move(page);  // without a key: it asks for one itself
  authorize(request);
  for (const Route& r : routes) {
    std::string_view path = r.path;
    bool here = request.path == path || (path.ends_with('/') && request.path.starts_with(path));
    if (!here) continue;
    if (request.method != r.method)
      throw ApiError(405, fmt::format("{} takes {}, not {}", r.path, r.method, request.method), r.method, "method_not_allowed");
    if (!loaded_ && path != "/health") {
      const int64_t total = loading_->total, percent = total > 0 ? loading_->done * 100 / total : 0;
      throw ApiError(503, fmt::format("the model is being loaded: {} % of it is there", percent), "", "loading");
    }
    return (this->*r.answer)(request);
  }
  throw ApiError(404, fmt::format("there is no {}", request.path));
}

// ---- the routes

Server::Reply Server::chat_completion(const HttpRequest& request) { return read_chat_completion(parse_body(request.body), model_); }

Server::Reply Server::completion(const HttpRequest& request) { return read_completion(parse_body(request.body), model_); }

static OrderedJson model_json(const ServedModel& m) {
  return {{"id", m.name}, {"object", "model"}, {"created", m.created}, {"owned_by", "millrace"}, {"max_model_len", m.max_context}};
}

Server::Reply Server::models(const HttpRequest&) {
  OrderedJson body{{"object", "list"}};
  body["data"] = OrderedJson::array();
  body["data"].push_back(model_json(model_));
  return HttpResponse{.body = to_text(body)};
}

static std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); i++) {
    bool coded =
        text[i] == '%' && i + 2 < text.size() && std::isxdigit((unsigned char)text[i + 1]) && std::isxdigit((unsigned char)text[i + 2]);
    out += coded ? char(std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16)) : text[i];
    if (coded) i += 2;
  }
  return out;
}

Server::Reply Server::model(const HttpRequest& request) {
  std::string name = percent_decoded(std::string_view(request.path).substr(std::string_view("/v1/models/").size()));
  if (name != model_.name)
    throw ApiError(404, fmt::format("there is no model '{}' here: '{}' is served", name, model_.name), "model", "model_not_found");
  return HttpResponse{.body = to_text(model_json(model_))};
}

Server::Reply Server::tokenize(const HttpRequest& request) {
  std::vector<int32_t> tokens = read_tokenize(parse_body(request.body), model_);
  OrderedJson body{{"count", tokens.size()}, {"max_model_len", model_.max_context}, {"tokens", tokens}};
  return HttpResponse{.body = to_text(body)};
}

Server::Reply Server::detokenize(const HttpRequest& request) {
  OrderedJson body{{"prompt", read_detokenize(parse_body(request.body), model_)}};
  return HttpResponse{.body = to_text(body)};
}

Server::Reply Server::health(const HttpRequest&) { return HttpResponse{.body = R"({"status":"ok"})"}; }

Server::Reply Server::ready(const HttpRequest&) {
  double age = step_age();
  bool stalled = age > options_.stall_seconds;
  OrderedJson body{{"status", draining_ ? "draining" : stalled ? "stalled" : "ready"}, {"step_age_s", age}};
  return HttpResponse{.status = draining_ || stalled ? 503 : 200, .body = to_text(body)};
}

Server::Reply Server::metrics(const HttpRequest&) {
  QueueStats queue{.step_age_s = step_age()};
  {
    std::lock_guard lock(mutex_);
    queue.n_requests = n_queued_, queue.n_tokens = n_queued_tokens_;
  }
  std::optional<LimitStats> limits;
  if (options_.limits) limits = options_.limits();
  return HttpResponse{.body = metrics_.text(engine_->stats(), engine_->memory_plan(), queue, limits ? &*limits : nullptr),
                      .type = "text/plain; version=0.0.4; charset=utf-8"};
}

}  // namespace mr
