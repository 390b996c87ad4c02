#include "serve/http.h"

#include <sys/resource.h>

#include <csignal>

#include "serve/session.h"

namespace mr {

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (key == name) return value;
  return {};
}

std::string_view reason_phrase(int status) {
  auto phrase = http::obsolete_reason(http::status(status));
  return {phrase.data(), phrase.size()};
}

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  return out;
}

// A connection needs a file descriptor, and shells allow few: raises the soft limit. Returns how many connections are possible.
static int raise_descriptor_limit(int n_connections) {
  constexpr rlim_t others = 256;  // files of the model, the log, the engine
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return n_connections;
  limit.rlim_cur = std::min(limit.rlim_max, std::max(limit.rlim_cur, rlim_t(n_connections) + others));
  setrlimit(RLIMIT_NOFILE, &limit);
  return int(std::min<rlim_t>(rlim_t(n_connections), limit.rlim_cur > 2 * others ? limit.rlim_cur - others : limit.rlim_cur / 2));
}

// The fixed charges of connections may take half of the memory at most.
static HttpOptions within_limits(HttpOptions o) {
  o.max_connections = raise_descriptor_limit(std::min(o.max_connections, int(o.memory / 2 / Connections::base_bytes)));
  check(o.max_connections > 0, "{} bytes are too few for connections: one takes {}, and half of the memory is for bodies and answers",
        o.memory, Connections::base_bytes);
  return o;
}

struct HttpServer::World {
  explicit World(const HttpOptions& options)
      : all(within_limits(options)),
        io(options.threads),
        acceptor(asio::make_strand(io)),
        retry(acceptor.get_executor()),
        signals(io),
        small_workers(size_t(options.threads)),
        large_workers(size_t(options.threads)) {
    all.workers = {&small_workers, &large_workers};
    for (size_t i = 0; i < n_strands; i++) strands.push_back(asio::make_strand(io));
  }

  // On the acceptor's strand.
  void accept() {
    accepting = true;
    try {
      acceptor.async_accept(strands[next_strand++ % n_strands], [this](error_code ec, tcp::socket socket) {
        accepting = false;
        if (!acceptor.is_open()) return;
        if (!ec) admit(std::move(socket));
        if (ec) return wait_to_accept();  // most likely out of file descriptors: retry later
        accept();
      });
    } catch (...) {
      accepting = false;
      throw;  // caught by net(), which retries
    }
  }

  void wait_to_accept() {
    all.make_room(Connections::For::connection);
    retry.expires_after(std::chrono::milliseconds(20));
    retry.async_wait([this](error_code) { accept(); });
    accepting = true;
  }

  void admit(tcp::socket socket) {
    try {
      if (all.admit()) std::make_shared<Session>(std::move(socket), all)->start();
    } catch (const std::exception& e) {
      all.note_failure(e.what());
    }
  }

  // The loop of an I/O thread. Sessions catch their own exceptions; this is the safety net for all others.
  void net() {
    for (;;) {
      try {
        io.run();
        return;
      } catch (const std::exception& e) {
        all.note_failure(e.what());
      } catch (...) {
        all.note_failure("an unknown exception");
      }
      insist([&] {
        asio::post(acceptor.get_executor(), [this] {
          if (!accepting && acceptor.is_open()) accept();
        });
      });
    }
  }

  void wait_for_signal() {
    signals.async_wait([this](error_code ec, int number) {
      if (ec) return;
      on_signal(number);
      wait_for_signal();
    });
  }

  Connections all;  // outlives the sessions, some of which are destroyed with `io`
  asio::io_context io;
  tcp::acceptor acceptor;
  asio::steady_timer retry;
  asio::signal_set signals;
  // Allocated in advance: Asio (1.74 to 1.83) frees memory that it never allocated when make_strand() runs out of it. With so many,
  // connections that share a strand contend no more than they do for the few threads.
  static constexpr size_t n_strands = 1024;
  std::vector<asio::strand<asio::io_context::executor_type>> strands;
  size_t next_strand = 0;
  bool accepting = false;  // an accept or a retry is pending; used on the acceptor's strand only
  std::function<void(int)> on_signal;
  std::vector<std::thread> threads;
  asio::thread_pool small_workers, large_workers;  // destroyed first: their work posts to `io`
};

HttpServer::HttpServer(const HttpOptions& options, Handler handler, HeadCheck check) : world_(std::make_unique<World>(options)) {
  World& w = *world_;
  w.all.handler = std::move(handler);
  w.all.check = std::move(check);
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
  for (int i = 0; i < options.threads; i++) w.threads.emplace_back([&w] { w.net(); });
}

HttpServer::~HttpServer() { stop(); }

void HttpServer::stop() {
  for (asio::thread_pool* workers : world_->all.workers) {
    workers->stop();
    workers->join();
  }
  world_->io.stop();
  for (std::thread& t : std::exchange(world_->threads, {})) t.join();
}

int HttpServer::port() const { return world_->acceptor.local_endpoint().port(); }
int HttpServer::n_busy() const { return world_->all.n_busy; }

HttpStats HttpServer::stats() const {
  const Connections& all = world_->all;
  return {.n_connections = all.size(),
          .n_cut = all.n_cut,
          .n_failed = all.n_failed,
          .longest_turn_s = double(all.longest_turn_ns) * 1e-9,
          .memory = all.budget.used(),
          .memory_peak = all.budget.peak(),
          .memory_limit = all.budget.limit()};
}

void HttpServer::on_signal(std::function<void(int)> action) {
  world_->on_signal = std::move(action);
  world_->signals.add(SIGINT);
  world_->signals.add(SIGTERM);
  world_->wait_for_signal();
}

}  // namespace mr
