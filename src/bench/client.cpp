#include "bench/client.h"

#include <boost/asio.hpp>
#include <boost/beast/http/status.hpp>
#include <chrono>
#include <memory>
#include <optional>

#include "core/error.h"
#include "core/json.h"
#include "net/response_reader.h"

namespace mr {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

Target parse_url(std::string_view url) {
  constexpr std::string_view scheme = "http://";
  check(url.starts_with(scheme), "'{}' is not an address of the form http://host:port (https is not supported)", url);
  std::string_view rest = url.substr(scheme.size());
  size_t slash = std::min(rest.find('/'), rest.size());
  Target t{.host = std::string(rest.substr(0, slash)), .prefix = std::string(rest.substr(slash))};
  while (t.prefix.ends_with('/')) t.prefix.pop_back();
  if (t.prefix.ends_with("/v1")) t.prefix.resize(t.prefix.size() - 3);
  size_t colon = t.host.rfind(':');
  if (colon != std::string::npos && t.host.find(']', colon) == std::string::npos) {
    std::string port = t.host.substr(colon + 1);
    check(!port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == std::string::npos && std::stoi(port) <= 65535,
          "'{}' has the port '{}', but ports are 0 to 65535", url, port);
    t.port = std::stoi(port);
    t.host.resize(colon);
  }
  if (t.host.starts_with('[') && t.host.ends_with(']')) t.host = t.host.substr(1, t.host.size() - 2);  // IPv6
  check(!t.host.empty(), "'{}' names no host", url);
  return t;
}

namespace {

std::string request_text(const Target& t, std::string_view method, const std::string& path, std::string_view body) {
  std::string key = t.api_key.empty() ? "" : fmt::format("Authorization: Bearer {}\r\n", t.api_key);
  std::string length = method == "GET" ? "" : fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
  std::string host = t.host.find(':') == t.host.npos ? t.host : "[" + t.host + "]";
  return fmt::format("{} {}{} HTTP/1.1\r\nHost: {}:{}\r\nAccept: */*\r\nConnection: close\r\n{}{}\r\n{}", method, t.prefix, path, host,
                     t.port, key, length, body);
}

// One request on a connection of its own. on_body gets the answer's bytes as they arrive; on_end is called once, with a short
// name of the error, or empty.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  using Endpoints = tcp::resolver::results_type;
  std::function<void(int status, std::string_view)> on_body;
  std::function<void(int status, std::string error)> on_end;

  Exchange(asio::io_context& io, std::string request)
      : socket_(io),
        timer_(io),
        request_(std::move(request)),
        answer_([this](int status, std::string_view bytes) { on_body(status, bytes); }) {}

  void start(const Endpoints& where, double timeout) {
    timer_.expires_after(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout)));
    timer_.async_wait([self = shared_from_this()](error_code ec) {
      if (!ec) self->end("timeout");
    });
    asio::async_connect(socket_, where, [self = shared_from_this()](error_code ec, const tcp::endpoint&) {
      if (ec) return self->end(ec == asio::error::connection_refused ? "connection refused" : "no connection: " + ec.message());
      error_code ignored;
      self->socket_.set_option(tcp::no_delay(true), ignored);
      // Reads while it writes: a server may refuse a request before it has read all of it.
      asio::async_write(self->socket_, asio::buffer(self->request_), [self](error_code, size_t) {});
      self->read();
    });
  }

 private:
  void read() {
    socket_.async_read_some(asio::buffer(chunk_), [self = shared_from_this()](error_code ec, size_t n) {
      if (!self->ended_) self->on_read(ec, n);
    });
  }

  void on_read(error_code ec, size_t n) {
    if (ec == asio::error::eof) return end(answer_.finish() ? "" : answer_.status() ? "broken stream" : "closed without an answer");
    if (ec) return end("connection lost: " + ec.message());
    const ResponseReader::State state = answer_.feed({chunk_.data(), n});
    if (state == ResponseReader::State::invalid) return end("no valid HTTP");
    state == ResponseReader::State::done ? end("") : read();
  }

  void end(std::string error) {
    if (std::exchange(ended_, true)) return;
    timer_.cancel();
    error_code ignored;
    socket_.close(ignored);
    on_end(answer_.status(), std::move(error));
  }

  tcp::socket socket_;
  asio::steady_timer timer_;
  std::string request_;
  ResponseReader answer_;
  std::array<char, 16384> chunk_;
  bool ended_ = false;
};

Exchange::Endpoints resolve(asio::io_context& io, const Target& t) {
  error_code error;
  Exchange::Endpoints found = tcp::resolver(io).resolve(t.host, std::to_string(t.port), error);
  check(!error, "cannot find {}:{}: {}", t.host, t.port, error.message());
  return found;
}

class Driver {
 public:
  Driver(const Target& target, const Load& load, const std::function<void(int)>& progress)
      : target_(target), load_(load), progress_(progress), where_(resolve(io_, target)), timer_(io_), outcomes_(load.bodies.size()) {}

  std::vector<Outcome> run() {
    begin_ = Clock::now();
    if (load_.arrivals.empty())
      for (int i = 0; i < load_.streams; i++) send_next();
    else
      wait_for_arrival();
    io_.run();
    return std::move(outcomes_);
  }

 private:
  double now() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  void wait_for_arrival() {
    if (n_sent_ == load_.bodies.size()) return;
    timer_.expires_at(begin_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(load_.arrivals[n_sent_])));
    timer_.async_wait([this](error_code) {
      send_next();
      wait_for_arrival();
    });
  }

  void send_next() {
    if (n_sent_ == load_.bodies.size()) return;
    size_t i = n_sent_++;
    auto exchange = std::make_shared<Exchange>(io_, request_text(target_, "POST", load_.path, load_.bodies[i]));
    auto answer = std::make_shared<StreamedAnswer>(outcomes_[i], [this] { return now(); });
    exchange->on_body = [answer](int status, std::string_view bytes) { answer->body(status, bytes); };
    exchange->on_end = [this, answer](int status, std::string error) {
      if (error.empty() && status != 200)
        error = fmt::format("{} {}", status, std::string_view(http::obsolete_reason(http::status(status))));
      answer->end(std::move(error));
      n_done_++;
      if (progress_) progress_(n_done_);
      if (load_.arrivals.empty()) send_next();
    };
    outcomes_[i].sent = now();
    exchange->start(where_, load_.timeout);
  }

  const Target& target_;
  const Load& load_;
  const std::function<void(int)>& progress_;
  asio::io_context io_{1};
  Exchange::Endpoints where_;
  asio::steady_timer timer_;
  std::vector<Outcome> outcomes_;
  Clock::time_point begin_;
  size_t n_sent_ = 0;
  int n_done_ = 0;
};

}  // namespace

std::vector<Outcome> drive(const Target& target, const Load& load, const std::function<void(int)>& progress) {
  check(load.arrivals.empty() || load.arrivals.size() == load.bodies.size(), "{} requests have {} arrival times", load.bodies.size(),
        load.arrivals.size());
  return Driver(target, load, progress).run();
}

Reply http_get(const Target& target, const std::string& path, double timeout) {
  asio::io_context io(1);
  auto exchange = std::make_shared<Exchange>(io, request_text(target, "GET", path, {}));
  Reply reply;
  std::string problem;
  constexpr size_t most = size_t(16) << 20;
  exchange->on_body = [&](int, std::string_view bytes) { reply.body += bytes.substr(0, most - std::min(most, reply.body.size())); };
  exchange->on_end = [&](int status, std::string error) {
    reply.status = status;
    problem = std::move(error);
  };
  exchange->start(resolve(io, target), timeout);
  io.run();
  check(problem.empty(), "http://{}:{}{}{} gives no answer: {}", target.host, target.port, target.prefix, path, problem);
  return reply;
}

}  // namespace mr
