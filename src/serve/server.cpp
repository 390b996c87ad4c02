#include "serve/server.h"

#include <ctime>
#include <future>
#include <thread>

#include "core/error.h"
#include "serve/call.h"
#include "serve/page.h"

namespace mr {

static RequestLine line_of(const HttpRequest& r) {
  RequestLine line{.id = r.id, .method = r.method, .path = r.path};
  if (r.came != std::chrono::steady_clock::time_point())
    line.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - r.came).count();
  return line;
}

static GateOptions completed(GateOptions gate, const std::string& host) {
  gate.listens_on = host;
  gate.open_paths = {"/health", "/ready", "/openapi.json"};
  for (const PageFile& file : page_files()) gate.open_paths.emplace_back(file.path);
  return gate;
}

Server::Server(ServeOptions options)
    : options_(std::move(options)),
      log_(options_.log),
      gate_(completed(options_.gate, options_.http.host)),
      queue_(options_.max_queue, options_.max_queue_tokens),
      work_since_(Clock::now()) {
  HttpOptions http = options_.http;
  http.log = [this](std::string_view what) { log_.error(what); };
  http_ = std::make_unique<HttpServer>(
      http, [this](HttpRequest request, std::shared_ptr<Responder> out) { handle(std::move(request), std::move(out)); },
      [this](const HttpRequest& head) {
        auto refused = gate_.check(head);
        if (refused) note_answer(line_of(head), *refused);
        return refused;
      });
  http_->on_signal([this](int) { stop(); });
}

// Order: the threads, then the engine, whose sinks own connections, then the HTTP server that the connections refer to.
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
    return load([loading](int64_t done, int64_t total) {
      loading->done = done;
      loading->total = total;
    });
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
  model_.aliases = options_.aliases;
  model_.tokenizer = tokenizer;
  model_.chat = chat_ ? &*chat_ : nullptr;
  model_.vocab = engine_->model().spec().vocab;
  model_.max_context = int(std::min<int64_t>(engine_->max_context(), engine_->memory_plan().n_tokens));
  model_.max_state = engine_->memory_plan().n_tokens;
  model_.max_choices = std::min(128, engine_->max_seqs());
  model_.created = std::time(nullptr);
  model_.sampling = engine_->generation_defaults();
  model_.tools_in_system_prompt = options_.tools_in_system_prompt;
  if (options_.tools_in_system_prompt && chat_ && !chat_->shows_tools())
    log_.info("the chat template has no place for tools: those of requests go into the system prompt");
  loaded_ = true;
}

void Server::run() {
  std::jthread engine_thread([this](std::stop_token stop) { engine_->run(stop); });
  wait_for_signal();
  drain();
  engine_thread.request_stop();
  engine_thread.join();
  while (engine_->step()) {  // cancelled requests notify their sinks, which release the connections
  }
}

void Server::wait_for_signal() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, std::chrono::seconds(1), [&] { return n_signals_ > 0; })) {
    if (!live_.empty() || http_->n_busy() > 0 || !worked_.exchange(false) || !options_.at_rest) continue;
    lock.unlock();
    options_.at_rest();
    lock.lock();
  }
}

// No new requests are accepted from here on.
void Server::drain() {
  draining_ = true;
  stop_reading_.request_stop();
  {
    std::lock_guard lock(mutex_);
    log_.info(fmt::format("draining: {} requests are under way, {} s are left to them", live_.size(), options_.drain_seconds));
  }
  engine_->close();
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(options_.drain_seconds);
  std::unique_lock lock(mutex_);
  auto finished = [&] { return live_.empty() && http_->n_busy() == 0; };
  while (!finished() && n_signals_ < 2 && Clock::now() < deadline) changed_.wait_for(lock, std::chrono::milliseconds(20));
  for (int64_t id : live_) engine_->cancel(id);
  for (int i = 0; i < 100 && !finished(); i++) changed_.wait_for(lock, std::chrono::milliseconds(20));
}

// ---- requests in flight

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

// ---- a new request

void Server::send(Responder& out, RequestLine line, HttpResponse response) {
  note_answer(std::move(line), response);
  out.send(std::move(response));
}

// Successful probes, every few seconds, are not logged.
void Server::note_answer(RequestLine line, const HttpResponse& response) {
  metrics_.responded(response.status);
  line.status = response.status;
  line.error = response.error;
  const bool probe = line.path == "/health" || line.path == "/ready" || line.path == "/metrics";
  if (!probe || line.status >= 400) log_.request(line);
}

static ApiError too_slow() { return {503, "reading the request takes too long: it is too large, or the server too busy", "", "too_slow"}; }

static ApiError shutting_down() { return {503, "the server is shutting down"}; }

// On a worker. Connections that hold memory and wait for their client are cut first, which takes a moment.
bool Server::grant(Job& job, Responder& out, size_t more) {
  constexpr int max_pauses = 50, pause_ms = 10;
  Charge& charge = job.request.charge;
  if (!charge.can_ever_be(charge.size() + more))
    throw ApiError(400, "the request and what is made of it take more memory than --http-memory leaves for one request", "", "too_large");
  while (!charge.set(charge.size() + more)) {
    if (!out.make_room(charge.n_missing()) || ++job.n_pauses > max_pauses) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
    job.request.allowance.check_time("waiting for memory");
  }
  return true;
}

// On the connection's strand, which must not block: a worker parses the body, within a deadline.
void Server::handle(HttpRequest request, std::shared_ptr<Responder> out) {
  constexpr size_t small = 16 << 10;  // bytes; takes milliseconds at worst
  if (request.method != "POST" || request.body.empty()) return give(answer(request), request, out);
  worked_ = true;
  const Lane lane = request.body.size() <= small ? Lane::small : Lane::large;
  auto job = std::make_shared<Job>();
  job->request = std::move(request);
  job->request.allowance = {.stop = job->stop.get_token(),
                            .deadline = job->request.came + std::chrono::milliseconds(options_.read_ms),
                            .grant = [&job = *job, &out = *out](size_t more) { return grant(job, out, more); }};
  out->on_hang_up([job] {
    job->over = true;
    job->stop.request_stop();
  });
  out->alarm(std::chrono::milliseconds(options_.read_ms), [this, job, out] {
    job->stop.request_stop();
    if (!job->over.exchange(true)) give(error_response(too_slow()), job->request, out);
  });
  out->work(lane, [this, job, out] {
    if (job->over) return;
    std::stop_callback with_all(stop_reading_.get_token(), [&] { job->stop.request_stop(); });
    auto reply = std::make_shared<Reply>(answer(job->request));
    out->post([this, job, out, reply] {
      if (!job->over.exchange(true)) give(std::move(*reply), job->request, out);
    });
  });
}

Server::Reply Server::answer(HttpRequest& request) {
  try {
    return route(request);
  } catch (const Stopped&) {
    return error_response(draining_ ? shutting_down() : too_slow());
  } catch (const std::exception& e) {
    return error_response(api_error_of(e));
  }
}

void Server::give(Reply reply, HttpRequest& request, const std::shared_ptr<Responder>& out) {
  Headers cors = gate_.cors_headers(request);
  try {
    if (auto* asked = std::get_if<Asked>(&reply)) {
      if (draining_) throw shutting_down();
      request.body = {};
      return std::make_shared<Call>(*this, std::move(*asked), std::move(request.charge), out, cors, line_of(request))->begin();
    }
  } catch (const std::exception& e) {
    const ApiError error = api_error_of(e);
    if (error.status == 429) metrics_.refused();
    reply = error_response(error);
  }
  HttpResponse& whole = std::get<HttpResponse>(reply);
  whole.headers.insert(whole.headers.end(), cors.begin(), cors.end());
  send(*out, line_of(request), std::move(whole));
}

Server::Reply Server::route(HttpRequest& request) {
  static constexpr Route routes[] = {
      {"POST", "/v1/chat/completions", &Server::chat_completion},
      {"POST", "/v1/completions", &Server::completion},
      {"GET", "/v1/models", &Server::models},
      {"GET", "/v1/models/", &Server::model},  // a name follows
      {"POST", "/tokenize", &Server::tokenize},
      {"POST", "/detokenize", &Server::detokenize},
      {"GET", "/health", &Server::health},
      {"GET", "/ready", &Server::ready},
      {"GET", "/metrics", &Server::metrics},
      {"GET", "/openapi.json", &Server::openapi},
  };
  if (auto page = page_response(request)) return std::move(*page);
  const std::string_view method = request.method == "HEAD" ? "GET" : std::string_view(request.method);  // the body is omitted
  for (const Route& r : routes) {
    std::string_view path = r.path;
    bool here = request.path == path || (path.ends_with('/') && request.path.starts_with(path));
    if (!here) continue;
    if (method != r.method)
      throw ApiError(405, sentence("{} takes {}, not {}", r.path, r.method, request.method), r.method, "method_not_allowed");
    if (!loaded_ && path != "/health" && path != "/openapi.json") {
      const int64_t total = loading_->total, percent = total > 0 ? loading_->done * 100 / total : 0;
      throw ApiError(503, fmt::format("the model is being loaded: {} % of it is there", percent), "", "loading");
    }
    return (this->*r.answer)(request);
  }
  throw ApiError(404, sentence("there is no {}", request.path));
}

// ---- the routes

// The request is charged for its body, its JSON, and the copies that templates make of that.
OrderedJson Server::json_of(HttpRequest& request) const {
  return parse_body(request.body, [&](size_t n) {
    request.allowance.check_time("reading the body");
    const size_t all = request.body.capacity() + 3 * n;
    if (all > request.charge.size()) request.allowance.hold(all - request.charge.size());
  });
}

RequestLimits Server::limits_of(const HttpRequest& request) {
  RequestLimits limits;
  if (options_.lenient_fields) limits.on_unknown = [this, id = request.id](const std::string& what) { log_.warn(id + ": " + what); };
  limits.allowance = request.allowance;
  return limits;
}

Server::Reply Server::chat_completion(HttpRequest& r) { return read_chat_completion(json_of(r), model_, limits_of(r)); }

Server::Reply Server::completion(HttpRequest& r) { return read_completion(json_of(r), model_, limits_of(r)); }

static OrderedJson model_json(const ServedModel& m, const std::string& name) {
  return {{"id", name}, {"object", "model"}, {"created", m.created}, {"owned_by", "millrace"}, {"max_model_len", m.max_context}};
}

Server::Reply Server::models(HttpRequest&) {
  OrderedJson body{{"object", "list"}};
  body["data"] = OrderedJson::array();
  body["data"].push_back(model_json(model_, model_.name));
  for (const std::string& alias : model_.aliases) body["data"].push_back(model_json(model_, alias));
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

Server::Reply Server::model(HttpRequest& request) {
  std::string name = percent_decoded(std::string_view(request.path).substr(std::string_view("/v1/models/").size()));
  if (!is_name_of(name, model_)) throw no_such_model(name, model_);
  return HttpResponse{.body = to_text(model_json(model_, name))};
}

Server::Reply Server::tokenize(HttpRequest& request) {
  std::vector<int32_t> tokens = read_tokenize(json_of(request), model_, limits_of(request));
  request.allowance.hold(tokens.size() * (sizeof(OrderedJson) + 2 * std::string_view("123456,").size()));
  OrderedJson body{{"count", tokens.size()}, {"max_model_len", model_.max_context}, {"tokens", tokens}};
  return HttpResponse{.body = to_text(body)};
}

Server::Reply Server::detokenize(HttpRequest& request) {
  OrderedJson body{{"prompt", read_detokenize(json_of(request), model_, limits_of(request))}};
  return HttpResponse{.body = to_text(body)};
}

Server::Reply Server::health(HttpRequest&) { return HttpResponse{.body = R"({"status":"ok"})"}; }

Server::Reply Server::ready(HttpRequest&) {
  double age = step_age();
  bool stalled = age > options_.stall_seconds;
  OrderedJson body{{"status", draining_ ? "draining" : stalled ? "stalled" : "ready"}, {"step_age_s", age}};
  return HttpResponse{.status = draining_ || stalled ? 503 : 200, .body = to_text(body)};
}

Server::Reply Server::openapi(HttpRequest&) { return HttpResponse{.body = std::string(openapi_json)}; }

Server::Reply Server::metrics(HttpRequest&) {
  const Queue::Length waiting = queue_.length();
  const QueueStats queue{.n_answers = waiting.answers, .n_tokens = waiting.tokens, .step_age_s = step_age()};
  std::optional<LimitStats> limits;
  if (options_.limits) limits = options_.limits();
  return HttpResponse{.body = metrics_.text(engine_->stats(), engine_->memory_plan(), queue, http_->stats(), limits ? &*limits : nullptr),
                      .type = "text/plain; version=0.0.4; charset=utf-8"};
}

}  // namespace mr
