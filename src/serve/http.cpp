#include "serve/http.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <array>
#include <boost/asio.hpp>
#include <boost/beast/http.hpp>
#include <csignal>
#include <deque>
#include <optional>
#include <thread>

#include "core/error.h"

namespace mr {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;
using boost::system::error_code;

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (key == name) return value;
  return {};
}

std::string_view reason_phrase(int status) {
  auto phrase = http::obsolete_reason(http::status(status));
  return {phrase.data(), phrase.size()};
}

static std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  return out;
}

namespace {

constexpr size_t max_ahead = 64 << 10;   // bytes of later requests that are taken while one is answered
constexpr size_t max_linger = 16 << 20;  // bytes of a refused body that are read and forgotten
constexpr int linger_seconds = 2;

// One connection. A read is always under way, so that a client's leaving is seen at once, whatever else goes on. A client that
// only closes its sending side looks the same and is treated so: it has left.
class Session : public Responder, public std::enable_shared_from_this<Session> {
 public:
  struct Shared {
    HttpOptions options;
    Handler handler;
    asio::thread_pool* workers = nullptr;
    std::atomic<int> n_sessions{0}, n_busy{0};
  };

  Session(tcp::socket socket, Shared& shared) : shared_(shared), socket_(std::move(socket)), timer_(socket_.get_executor()) {
    shared_.n_sessions++;
  }
  ~Session() override {
    be_busy(false);
    shared_.n_sessions--;
  }

  void start() {
    asio::dispatch(socket_.get_executor(), [self = shared_from_this()] {
      error_code ignored;
      self->socket_.set_option(tcp::no_delay(true), ignored);
      self->next_request();
    });
  }

  void post(std::function<void()> work) override {
    asio::post(socket_.get_executor(), [self = shared_from_this(), work = std::move(work)] {
      try {
        work();
      } catch (const std::exception&) {  // an answer that cannot be written: its client is dropped
        self->lose();
      }
    });
  }

  void work(std::function<void()> work) override {
    asio::post(*shared_.workers, [self = shared_from_this(), work = std::move(work)] {
      try {
        work();
      } catch (const std::exception&) {
        self->post([self] { self->lose(); });
      }
    });
  }

  void send(HttpResponse r) override {
    if (state_ != State::answering) return;
    std::string head = head_of(r, fmt::format("Content-Length: {}\r\n", r.body.size()));
    if (head_only_) r.body.clear();
    write(head + r.body);
    end_answer();
  }

  void begin_stream(HttpResponse r) override {
    if (state_ != State::answering) return;
    if (!chunked_) keep_alive_ = false;  // HTTP/1.0: the end of the stream is the end of the connection
    state_ = State::streaming;
    write(head_of(r, chunked_ ? "Transfer-Encoding: chunked\r\n" : ""));
  }

  bool push(std::string bytes) override {
    if (state_ != State::streaming) return false;
    if (bytes.empty()) return true;
    if (n_pending_ + bytes.size() > shared_.options.max_pending) {
      lose();
      return false;
    }
    write(chunked_ ? fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes) : std::move(bytes));
    return true;
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

  void be_busy(bool busy) {
    if (busy != busy_) shared_.n_busy += busy ? 1 : -1;
    busy_ = busy;
  }

  void deadline(int seconds) {  // 0: none
    if (seconds == 0) {
      timer_.cancel();
      return;
    }
    timer_.expires_after(std::chrono::seconds(seconds));
    timer_.async_wait([self = shared_from_this()](error_code ec) {
      if (!ec && self->timer_.expiry() <= asio::steady_timer::clock_type::now()) self->lose();
    });
  }

  void next_request() {
    state_ = State::reading;
    be_busy(false);
    parser_.emplace();
    parser_->header_limit(std::uint32_t(shared_.options.max_header));
    parser_->body_limit(shared_.options.max_body);
    parser_->eager(true);
    continued_ = false;
    deadline(shared_.options.request_seconds);
    parse();
  }

  void read_more() {
    if (reading_ || state_ == State::dead) return;
    reading_ = true;
    socket_.async_read_some(asio::buffer(chunk_), [self = shared_from_this()](error_code ec, size_t n) { self->on_read(ec, n); });
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
    while (!parser_->is_done() && !input_.empty()) {
      error_code ec;
      size_t n = parser_->put(asio::buffer(input_), ec);
      input_.erase(0, n);
      if (ec == http::error::need_more) break;
      if (ec) return refuse(ec);
    }
    if (parser_->is_done()) return dispatch();
    if (parser_->is_header_done() && !continued_ && lower(std::string(parser_->get()[http::field::expect])) == "100-continue") {
      continued_ = true;
      write("HTTP/1.1 100 Continue\r\n\r\n");
    }
    read_more();
  }

  void dispatch() {
    auto message = parser_->release();
    HttpRequest request{.method = std::string(message.method_string()), .path = std::string(message.target())};
    request.path = request.path.substr(0, request.path.find('?'));
    for (const auto& field : message) request.headers.emplace_back(lower(std::string(field.name_string())), std::string(field.value()));
    request.body = std::move(message.body());
    keep_alive_ = message.keep_alive();
    chunked_ = message.version() >= 11;
    head_only_ = message.method() == http::verb::head;
    begin_answer();
    read_more();
    try {
      shared_.handler(std::move(request), shared_from_this());
    } catch (const std::exception&) {
      send({.status = 500, .body = R"({"error":{"message":"internal error","type":"server_error","param":null,"code":null}})"});
      if (state_ == State::streaming) lose();
    }
  }

  void begin_answer() {
    state_ = State::answering;
    be_busy(true);
    deadline(0);
    hang_up_ = {};
  }

  // What is no HTTP, or too much of it. Nothing after it can be trusted: the connection closes.
  void refuse(error_code ec) {
    begin_answer();
    keep_alive_ = false;
    int status = ec == http::error::body_limit ? 413 : ec == http::error::header_limit ? 431 : 400;
    std::string what = status == 413   ? fmt::format("the body is larger than the limit of {} bytes", shared_.options.max_body)
                       : status == 431 ? fmt::format("the headers are larger than the limit of {} bytes", shared_.options.max_header)
                                       : "this is not a valid HTTP request";
    send({.status = status,
          .body = fmt::format(R"({{"error":{{"message":"{}","type":"invalid_request_error","param":null,"code":null}}}})", what)});
  }

  std::string head_of(const HttpResponse& r, std::string_view framing) {
    std::string head = fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\n{}Connection: {}\r\n", r.status, reason_phrase(r.status), r.type,
                                   framing, keep_alive_ ? "keep-alive" : "close");
    for (const auto& [name, value] : r.headers) head += fmt::format("{}: {}\r\n", name, value);
    return head + "\r\n";
  }

  void end_answer() {
    state_ = State::flushing;
    hang_up_ = {};
    deadline(shared_.options.flush_seconds);
    if (output_.empty()) after_answer();
  }

  void after_answer() {
    if (keep_alive_) return next_request();
    be_busy(false);
    // A close with unread bytes would reset the connection under the answer: say that nothing follows, then read to the end.
    state_ = State::lingering;
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    deadline(linger_seconds);
    read_more();
  }

  void write(std::string bytes) {
    n_pending_ += bytes.size();
    output_.push_back(std::move(bytes));
    if (output_.size() == 1) flush();
  }

  void flush() {
    asio::async_write(socket_, asio::buffer(output_.front()), [self = shared_from_this()](error_code ec, size_t) {
      if (ec || self->state_ == State::dead) return self->lose();
      self->n_pending_ -= self->output_.front().size();
      self->output_.pop_front();
      if (!self->output_.empty()) return self->flush();
      if (self->state_ == State::flushing) self->after_answer();
    });
  }

  void lose() {
    if (state_ == State::dead) return;
    state_ = State::dead;
    be_busy(false);
    timer_.cancel();
    error_code ignored;
    socket_.close(ignored);
    if (auto action = std::exchange(hang_up_, {})) action();
  }

  Shared& shared_;
  tcp::socket socket_;
  asio::steady_timer timer_;
  State state_ = State::reading;
  std::array<char, 8192> chunk_;
  std::string input_;  // read, not yet parsed
  std::optional<http::request_parser<http::string_body>> parser_;
  std::deque<std::string> output_;  // the first one is being written
  size_t n_pending_ = 0, n_lingered_ = 0;
  bool reading_ = false, busy_ = false, continued_ = false;
  bool keep_alive_ = true, chunked_ = true, head_only_ = false;  // of the request being answered
  std::function<void()> hang_up_;
};

}  // namespace

struct HttpServer::World {
  explicit World(const HttpOptions& options)
      : io(options.threads),
        acceptor(asio::make_strand(io)),
        retry(acceptor.get_executor()),
        signals(io),
        workers(size_t(options.threads)) {
    shared.options = options;
    shared.workers = &workers;
  }

  void accept() {
    acceptor.async_accept(asio::make_strand(io), [this](error_code ec, tcp::socket socket) {
      if (!acceptor.is_open()) return;
      if (ec) {  // out of file descriptors, most likely: a moment later there may be some
        retry.expires_after(std::chrono::milliseconds(50));
        retry.async_wait([this](error_code) { accept(); });
        return;
      }
      if (shared.n_sessions < shared.options.max_connections) std::make_shared<Session>(std::move(socket), shared)->start();
      accept();
    });
  }

  void wait_for_signal() {
    signals.async_wait([this](error_code ec, int number) {
      if (ec) return;
      on_signal(number);
      wait_for_signal();
    });
  }

  Session::Shared shared;  // outlives the sessions, some of which go only with `io`
  asio::io_context io;
  tcp::acceptor acceptor;
  asio::steady_timer retry;
  asio::signal_set signals;
  std::function<void(int)> on_signal;
  std::vector<std::thread> threads;
  asio::thread_pool workers;  // goes first: its work posts to `io`
};

// A connection is a file descriptor, and a shell grants few: ask for as many as may be had.
static void raise_descriptor_limit(int n_connections) {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = std::min(limit.rlim_max, std::max(limit.rlim_cur, rlim_t(n_connections) + 256));
  setrlimit(RLIMIT_NOFILE, &limit);
}

HttpServer::HttpServer(const HttpOptions& options, Handler handler) : world_(std::make_unique<World>(options)) {
  World& w = *world_;
  raise_descriptor_limit(options.max_connections);
  w.shared.handler = std::move(handler);
  try {
    auto found = tcp::resolver(w.io).resolve(options.host, std::to_string(options.port), tcp::resolver::passive);
    tcp::endpoint where = *found.begin();
    w.acceptor.open(where.protocol());
    w.acceptor.set_option(tcp::acceptor::reuse_address(true));
    w.acceptor.bind(where);
    w.acceptor.listen();
  } catch (const boost::system::system_error& e) {
    fail("cannot listen on {}:{}: {}", options.host, options.port, e.code().message());
  }
  w.accept();
  for (int i = 0; i < options.threads; i++) w.threads.emplace_back([&w] { w.io.run(); });
}

HttpServer::~HttpServer() { stop(); }

void HttpServer::stop() {
  world_->workers.stop();
  world_->workers.join();
  world_->io.stop();
  for (std::thread& t : std::exchange(world_->threads, {})) t.join();
}

int HttpServer::port() const { return world_->acceptor.local_endpoint().port(); }
int HttpServer::n_busy() const { return world_->shared.n_busy; }

void HttpServer::on_signal(std::function<void(int)> action) {
  world_->on_signal = std::move(action);
  world_->signals.add(SIGINT);
  world_->signals.add(SIGTERM);
  world_->wait_for_signal();
}

}  // namespace mr
