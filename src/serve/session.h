// One connection of the HTTP server. Included by http.cpp only: Beast takes long to compile.
#pragma once

#include <fmt/format.h>

#include <array>
#include <boost/asio.hpp>
#include <boost/beast/http.hpp>
#include <deque>
#include <random>
#include <tuple>

#include "serve/api_error.h"
#include "serve/body_reader.h"
#include "serve/connections.h"
#include "serve/http.h"

namespace mr {

namespace http = boost::beast::http;
using tcp = asio::ip::tcp;
using boost::system::error_code;

// Lines up to the first empty one, without the first of a request: what of them is there, for a head that is read in parts.
inline size_t n_header_lines(std::string_view input) {
  size_t n = 0;
  for (size_t at = input.find('\n'), last = 0; at != input.npos; last = at + 1, at = input.find('\n', last)) {
    const bool is_empty = input.substr(last, at - last).find_first_not_of('\r') == input.npos;
    if (is_empty && n > 0) break;
    n += !is_empty;
  }
  return n > 0 ? n - 1 : 0;
}

// Obsolete line folding (RFC 9112, 5.2): a proxy may see another header there.
inline bool has_folded_line(std::string_view head) {
  for (size_t at = head.find('\n'); at != head.npos && at + 1 < head.size(); at = head.find('\n', at + 1))
    if (head[at + 1] == ' ' || head[at + 1] == '\t') return true;
  return false;
}

// A read is always pending, so that a disconnect is noticed at once, whatever else goes on. A client that only closes its sending
// side looks the same and is treated as disconnected.
class Session : public Responder, public std::enable_shared_from_this<Session> {
 public:
  Session(tcp::socket socket, Connections& all)
      : all_(all),
        socket_(std::move(socket)),
        timer_(socket_.get_executor()),
        pause_(socket_.get_executor()),
        alarm_(socket_.get_executor()),
        unread_(all.budget) {
    all_.add(this);
  }
  ~Session() override {
    be_busy(false);
    body_.reset();
    (void)unread_.set(0);
    note_held();
    doom(false);  // after its memory is free: see make_room()
    if (closed_) all_.n_closed--;
    all_.remove(this);
  }

  void start() {
    asio::dispatch(socket_.get_executor(), [self = shared_from_this()] {
      self->turn([&] {
        error_code ignored;
        self->socket_.set_option(tcp::no_delay(true), ignored);
        self->next_request();
      });
    });
  }

  // ---- for the connection table; any thread
  Phase phase() const { return phase_; }
  int64_t since_ms() const { return since_; }
  bool doomed() const { return doomed_; }
  bool pausing() const { return pausing_; }  // the client has sent more, for which there is no memory
  size_t n_held() const { return n_held_; }  // bytes of the incoming body and the outgoing output
  // Does nothing if the connection has made progress since it was chosen. A request that has come may still be in the socket, or read
  // with its handler queued: hence the look at the socket, and a second turn, which comes after that handler.
  void cut() {
    doom(true);
    asio::post(socket_.get_executor(), [self = shared_from_this(), since = int64_t(since_)] {
      error_code ignored;
      if (self->phase_ == Phase::idle && self->state_ == State::reading && self->socket_.available(ignored) > 0) return self->doom(false);
      self->post([self = self.get(), since] {
        if (self->phase_ == Phase::working || self->since_ != since || self->state_ == State::dead) return self->doom(false);
        self->all_.n_cut++;
        self->lose();  // stays doomed until it is destroyed: only then is all its memory free
      });
    });
  }

  // ---- Responder
  void post(std::function<void()> work) override {
    asio::post(socket_.get_executor(), [self = shared_from_this(), work = std::move(work)] { self->turn(work); });
  }

  void work(Lane lane, std::function<void()> work) override {
    asio::post(*all_.workers[size_t(lane)], [self = shared_from_this(), work = std::move(work)] {
      try {
        work();
      } catch (const std::exception& e) {
        self->all_.note_failure(e.what());
        insist([&] { self->post([self] { self->lose(); }); });
      }
    });
  }

  bool make_room(size_t n_missing) override { return all_.make_room(Connections::For::memory, n_missing); }

  void alarm(std::chrono::milliseconds delay, std::function<void()> action) override {
    if (state_ != State::answering) return;
    alarm_.expires_after(delay);
    alarm_.async_wait([self = shared_from_this(), action = std::move(action)](error_code ec) {
      if (!ec && self->state_ == State::answering && self->alarm_.expiry() <= asio::steady_timer::clock_type::now()) self->turn(action);
    });
  }

  void send(HttpResponse r) override {
    if (state_ != State::answering) return;
    std::string head = head_of(r, fmt::format("Content-Length: {}\r\n", r.body.size()));
    if (head_only_) r.body.clear();
    if (!hold_unread(head.size() + r.body.size())) {
      make_room(unread_.n_missing());
      return send(error_response({503, "there is no memory for the answer now: clients hold too much", "", "no_memory"}));
    }
    write(std::move(head));
    if (!r.body.empty()) write(std::move(r.body));
    end_answer();
  }

  void begin_stream(HttpResponse r) override {
    if (state_ != State::answering) return;
    if (!chunked_) keep_alive_ = false;  // HTTP/1.0: closing the connection ends the stream
    std::string head = head_of(r, chunked_ ? "Transfer-Encoding: chunked\r\n" : "");
    alarm_.cancel();
    state_ = State::streaming;
    write(std::move(head));
  }

  bool push(std::string bytes) override {
    if (state_ != State::streaming) return false;
    if (bytes.empty()) return true;
    const bool too_many = n_unread_ + bytes.size() > all_.options.max_pending;
    if (too_many || !hold_unread(bytes.size())) {
      if (!too_many) make_room(unread_.n_missing());  // for the next request
      lose();
      return false;
    }
    write(chunked_ ? fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes) : std::move(bytes));
    return state_ != State::dead;
  }

  void end_stream() override {
    if (state_ != State::streaming) return;
    if (chunked_) write("0\r\n\r\n");
    end_answer();
  }

  void on_hang_up(std::function<void()> action) override {
    if (state_ == State::dead) return action();
    hang_up_ = std::move(action);
  }

 private:
  enum class State { reading, answering, streaming, flushing, lingering, dead };
  static constexpr size_t max_ahead = 16 << 10;    // bytes of pipelined requests that are read while one is answered
  static constexpr size_t max_linger = 16 << 20;   // bytes of a refused body that are read and discarded
  static constexpr size_t free_output = 24 << 10;  // bytes of output covered by the fixed charge
  static constexpr int linger_seconds = 2;
  static constexpr int max_pauses = 50, pause_ms = 20;  // while there is no memory for a body

  // An exception ends this connection and nothing else.
  template <class F>
  void guard(F&& f) noexcept {
    try {
      f();
    } catch (const std::exception& e) {
      all_.note_failure(e.what());
      lose();
    } catch (...) {
      all_.note_failure("an unknown exception");
      lose();
    }
  }

  // One handler on an I/O thread; its CPU time is recorded.
  template <class F>
  void turn(F&& f) noexcept {
    const int64_t begin = thread_cpu_ns();
    guard(f);
    all_.note_turn(thread_cpu_ns() - begin);
  }

  void doom(bool doomed) {
    if (doomed_.exchange(doomed) != doomed) all_.n_doomed += doomed ? 1 : -1;
  }

  // Random, so that one id tells nothing about others.
  std::string fresh_id() {
    thread_local std::mt19937_64 chance(std::random_device{}());
    return fmt::format("req-{:016x}", chance());
  }

  void be_busy(bool busy) {
    if (busy != busy_) all_.n_busy += busy ? 1 : -1;
    busy_ = busy;
  }

  void enter(Phase phase) {
    since_ = now_ms();
    phase_ = phase;
  }

  void deadline(int seconds) {  // 0: none
    if (seconds == 0) {         // the expiry disarms a handler that is already queued
      timer_.expires_at(asio::steady_timer::time_point::max());
      return;
    }
    timer_.expires_after(std::chrono::seconds(seconds));
    timer_.async_wait([self = shared_from_this()](error_code ec) {
      if (!ec && self->timer_.expiry() <= asio::steady_timer::clock_type::now()) self->lose();
    });
  }

  // ---- reading a request

  void next_request() {
    state_ = State::reading;
    enter(Phase::idle);
    be_busy(false);
    request_id_.clear();
    head_.emplace();
    head_->header_limit(std::uint32_t(all_.options.max_header));
    head_->body_limit(boost::none);  // Beast parses the headers only; BodyReader reads the body
    body_.reset();
    n_pauses_ = 0;
    deadline(all_.options.request_seconds);
    parse();
  }

  void read_more() {
    if (reading_ || state_ == State::dead) return;
    reading_ = true;
    socket_.async_read_some(asio::buffer(chunk_),
                            [self = shared_from_this()](error_code ec, size_t n) { self->turn([&] { self->on_read(ec, n); }); });
  }

  void on_read(error_code ec, size_t n) {
    reading_ = false;
    if (ec) return lose();
    if (state_ == State::lingering) {
      n_lingered_ += n;
      return n_lingered_ > max_linger ? lose() : read_more();
    }
    input_.append(chunk_.data(), n);
    if (state_ == State::reading) return parse();
    if (input_.size() < max_ahead) read_more();
  }

  void parse() {
    pausing_ = false;
    if (!body_ && !parse_head()) return;
    const size_t n = body_->feed(input_);
    note_held();
    input_.erase(0, n);
    switch (body_->status()) {
      case BodyReader::Status::more:
        return read_more();
      case BodyReader::Status::done:
        return dispatch();
      case BodyReader::Status::broken:
        return refuse({400, "the body's chunks are not valid HTTP"});
      case BodyReader::Status::too_large:
        return refuse({413, fmt::format("the body is larger than the limit of {} bytes", all_.options.max_body)});
      case BodyReader::Status::too_much_framing:
        return refuse({431, fmt::format("chunk extensions and trailers are larger than the limit of {} bytes", all_.options.max_header)});
      case BodyReader::Status::no_memory:
        return wait_for_memory();
    }
  }

  // Another request may end soon; the slowest client that holds memory is cut.
  void wait_for_memory() {
    make_room(body_->charge.n_missing());
    if (++n_pauses_ > max_pauses) return refuse({503, "there is no memory for the request now: clients hold too much", "", "no_memory"});
    pausing_ = true;
    pause_.expires_after(std::chrono::milliseconds(pause_ms));
    pause_.async_wait([self = shared_from_this()](error_code ec) {
      if (!ec && self->state_ == State::reading) self->turn([&] { self->parse(); });
    });
  }

  // False: more input is needed, or the request was refused. Lines are counted first: Beast takes a hundred bytes for a header of four.
  bool parse_head() {
    error_code ec;
    if (n_header_lines(input_) > all_.options.max_headers)
      return reject({431, fmt::format("the request has more than {} headers", all_.options.max_headers)});
    const size_t n = input_.empty() ? 0 : head_->put(asio::buffer(input_), ec);
    if (has_folded_line(std::string_view(input_).substr(0, n)))
      return reject({400, "a header goes on in the next line, which is obsolete"});
    input_.erase(0, n);
    if (ec == http::error::header_limit)
      return reject({431, fmt::format("the headers are larger than the limit of {} bytes", all_.options.max_header)});
    if (ec && ec != http::error::need_more) return reject({400, "this is not a valid HTTP request"});
    if (head_->is_header_done()) return accept_head();
    read_more();
    return false;
  }

  // The headers alone decide whether the body is read at all.
  bool accept_head() {
    const auto& message = head_->get();
    request_ = {.id = fresh_id(),
                .method = std::string(message.method_string()),
                .path = std::string(message.target()),
                .charge = Charge(all_.budget)};
    request_.path = request_.path.substr(0, request_.path.find('?'));
    for (const auto& field : message)
      request_.headers.emplace_back(lower_case(std::string(field.name_string())), std::string(field.value()));
    request_id_ = request_.id;
    chunked_ = message.version() >= 11;
    head_only_ = message.method() == http::verb::head;
    if (request_.headers.size() > all_.options.max_headers)
      return reject({431, fmt::format("the request has more than {} headers", all_.options.max_headers)});
    if (message.count(http::field::host) > 1) return reject({400, "the request has more than one Host"});
    const std::string coding = lower_case(std::string(message[http::field::transfer_encoding]));
    const size_t n_codings = message.count(http::field::transfer_encoding);
    if (n_codings > 1 || (n_codings == 1 && (coding != "chunked" || !chunked_)))
      return reject({400, "the only transfer coding that is understood is chunked, in HTTP/1.1"});

    std::optional<uint64_t> length;
    if (coding.empty()) length = head_->content_length().value_or(0);
    body_.emplace(length, BodyReader::Limits{all_.options.max_body, all_.options.max_header}, Charge(all_.budget));
    if (body_->status() == BodyReader::Status::too_large) return true;  // parse() reports it
    const bool has_body = body_->status() != BodyReader::Status::done;
    if (has_body) enter(Phase::receiving);
    keep_alive_ = message.keep_alive();
    if (auto refused = all_.check ? all_.check(request_) : std::nullopt) {
      begin_answer();
      keep_alive_ = keep_alive_ && !has_body;  // the unread body would be parsed as the next request
      send(std::move(*refused));
      return false;
    }
    if (has_body && lower_case(std::string(message[http::field::expect])) == "100-continue") write("HTTP/1.1 100 Continue\r\n\r\n");
    return true;
  }

  void dispatch() {
    request_.body = std::move(body_->body);
    request_.charge = std::move(body_->charge);
    request_.came = std::chrono::steady_clock::now();
    begin_answer();
    read_more();
    try {
      all_.handler(std::move(request_), shared_from_this());
    } catch (const std::exception& e) {
      all_.note_failure(e.what());
      if (state_ == State::streaming) return lose();
      send(error_response({dynamic_cast<const std::bad_alloc*>(&e) ? 503 : 500, "internal error"}));
    }
  }

  void begin_answer() {
    head_.reset();
    body_.reset();
    note_held();
    state_ = State::answering;
    enter(Phase::working);
    be_busy(true);
    deadline(0);
    hang_up_ = {};
  }

  // For invalid or oversized HTTP. The framing after it cannot be trusted: the connection closes. `error` must not refer to the request.
  void refuse(const ApiError& error) {
    begin_answer();
    request_ = {};
    input_ = {};  // what was not read is not interpreted
    keep_alive_ = false;
    all_.say(fmt::format("refused: {} {}", error.status, error.what()));
    send(error_response(error));
  }

  bool reject(const ApiError& error) {
    refuse(error);
    return false;
  }

  // ---- writing the response

  std::string head_of(const HttpResponse& r, std::string_view framing) {
    std::string head = fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\n{}Connection: {}\r\n", r.status, reason_phrase(r.status), r.type,
                                   r.status == 204 || r.status == 304 ? "" : framing, keep_alive_ ? "keep-alive" : "close");
    if (!request_id_.empty()) head += fmt::format("X-Request-Id: {}\r\n", request_id_);
    for (const auto& [name, value] : r.headers) head += fmt::format("{}: {}\r\n", name, value);
    return head + "\r\n";
  }

  void end_answer() {
    if (state_ == State::dead) return;
    state_ = State::flushing;
    alarm_.cancel();
    hang_up_ = {};
    deadline(all_.options.flush_seconds);
    if (output_.empty()) after_answer();
  }

  void after_answer() {
    if (keep_alive_) return next_request();
    be_busy(false);
    // Lingering close: closing with unread input would reset the connection before the client has read the response.
    state_ = State::lingering;
    enter(Phase::idle);
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    deadline(linger_seconds);
    read_more();
  }

  // Charges `more` bytes of output; false: denied.
  [[nodiscard]] bool hold_unread(size_t more) {
    const size_t n = n_unread_ + more;
    const bool granted = unread_.set(n > free_output ? n : 0);
    note_held();
    return granted;
  }

  void note_held() { n_held_ = (body_ ? body_->charge.size() : 0) + unread_.size(); }

  // A write that cannot start ends the connection here: the caller could mistake the exception for its own and answer again.
  void write(std::string bytes) noexcept {
    guard([&] {
      if (state_ == State::dead) return;
      if (n_unread_ == 0) enter(Phase::sending);
      n_unread_ += bytes.size();
      output_.push_back(std::move(bytes));
      if (output_.size() == 1) flush();
    });
  }

  void flush() {
    auto rest = asio::buffer(output_.front()) + n_written_;
    socket_.async_write_some(rest, [self = shared_from_this()](error_code ec, size_t n) { self->turn([&] { self->on_written(ec, n); }); });
  }

  void on_written(error_code ec, size_t n) {
    if (ec || state_ == State::dead) return drop_output();
    n_written_ += n;
    n_unread_ -= n;
    (void)hold_unread(0);  // lowering always succeeds
    if (state_ == State::flushing) deadline(all_.options.flush_seconds);
    if (n_written_ < output_.front().size()) return flush();
    output_.pop_front();
    n_written_ = 0;
    if (!output_.empty()) return flush();
    if (state_ == State::flushing) return after_answer();
    enter(state_ == State::reading ? Phase::receiving : Phase::working);
  }

  // Whoever still holds the responder must not hold the memory.
  void drop_output() {
    lose();
    output_.clear();
    n_unread_ = n_written_ = 0;
    (void)hold_unread(0);
  }

  void lose() noexcept {
    if (state_ == State::dead) return;
    state_ = State::dead;
    if (!doomed_) all_.n_closed++, closed_ = true;
    enter(Phase::working);  // not a candidate for cutting
    be_busy(false);
    try {
      timer_.cancel();
      pause_.cancel();
      alarm_.cancel();
    } catch (...) {  // the timers keep this session alive until they expire
    }
    error_code ignored;
    socket_.close(ignored);
    try {
      if (auto action = std::exchange(hang_up_, {})) action();
    } catch (const std::exception& e) {
      all_.note_failure(e.what());
    }
  }

  Connections& all_;
  tcp::socket socket_;
  asio::steady_timer timer_, pause_, alarm_;
  State state_ = State::reading;
  std::atomic<Phase> phase_{Phase::idle};
  std::atomic<int64_t> since_{now_ms()};
  std::atomic<bool> doomed_{false}, pausing_{false};
  std::atomic<size_t> n_held_{0};
  Charge unread_;
  std::array<char, 8192> chunk_;
  std::string input_;  // read, not yet parsed
  std::optional<http::request_parser<http::empty_body>> head_;
  std::optional<BodyReader> body_;  // none: the headers are incomplete
  std::string request_id_;
  HttpRequest request_;                                   // its body is being read
  std::deque<std::string> output_;                        // the front is being written
  size_t n_unread_ = 0, n_written_ = 0, n_lingered_ = 0;  // bytes of queued output; of the front already written; of skipped input
  int n_pauses_ = 0;
  bool reading_ = false, busy_ = false, closed_ = false;
  bool keep_alive_ = true, chunked_ = true, head_only_ = false;  // of the request being answered
  std::function<void()> hang_up_;
};

inline bool Connections::make_room(For what, size_t n_missing) {
  const int64_t now = now_ms();
  if (what == For::memory && now == nothing_to_cut_ms_) return n_doomed > 0;
  std::shared_ptr<Session> chosen;  // released after the lock, which its destructor takes
  {
    std::lock_guard lock(mutex_);
    Session* best = nullptr;
    size_t n_leaving = 0;  // bytes
    auto rank = [](const Session& s) { return std::tuple(s.phase() != Phase::idle, s.pausing(), s.since_ms()); };
    for (Session* s : sessions_) {
      if (s->doomed()) n_leaving += s->n_held();
      if (s->phase() == Phase::working || s->doomed()) continue;
      if (what == For::memory && s->n_held() < worth_cutting) continue;
      if (s->phase() != Phase::idle && now - s->since_ms() < options.patience_ms) continue;
      if (!best || rank(*s) < rank(*best)) best = s;
    }
    if (what == For::memory && n_leaving + budget.unused() >= n_missing) return true;
    if (best) chosen = best->weak_from_this().lock();
    if (best && !chosen) return true;  // it is being destroyed
  }
  if (!chosen) {
    if (what == For::memory) nothing_to_cut_ms_ = now;
    return what == For::memory && n_doomed > 0;  // their memory is free a moment later
  }
  chosen->cut();
  return true;
}

}  // namespace mr
