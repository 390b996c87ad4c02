// HTTP as strangers speak it: the server's own connection over a pair of sockets, with its gate, pipelined requests, answers and streams.
// However the bytes arrive, the same requests are seen and the same answers go back; nothing is thrown, and all memory is given back.
// Asio waits with select() here: a connection of a few system calls would spend most of its time in epoll's lists and timers.
#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>

#include "fuzz/input.h"
#include "fuzz/mutate.h"
#include "serve/gate.h"
#include "serve/session.h"

using namespace mr;

namespace {

HttpOptions small_limits() {
  HttpOptions o;
  o.max_body = 256;
  o.max_header = 512;
  o.max_headers = 12;
  o.max_pending = 4096;
  o.max_connections = 4;
  o.memory = size_t(o.max_connections) * Connections::base_bytes + (1 << 20);
  o.log = [](std::string_view) {};
  return o;
}

class Host {
 public:
  Host() : gate_({.listens_on = "127.0.0.1", .api_key = "k", .open_paths = {"/", "/s"}, .allow_origins = {"http://a.b"}}) {
    all_.workers = {&workers_, &workers_};
    all_.check = [this](const HttpRequest& head) { return gate_.check(head); };
    all_.handler = [this](HttpRequest request, std::shared_ptr<Responder> responder) { answer(std::move(request), *responder); };
  }

  // Requests as they were seen, then what was sent back, for a stream that comes in pieces that end at `cuts`. Nothing: the headers
  // were too long, which is found out a few bytes earlier or later by how they are cut.
  std::optional<std::string> converse(std::string_view bytes, std::initializer_list<size_t> cuts) {
    seen_.clear();
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    std::make_shared<Session>(tcp::socket(io_, tcp::v4(), ends[0]), all_)->start();
    const std::string stream = std::string(bytes) + "\r\n\r\n";  // the parser may look at broken headers only when they have an end
    size_t at = 0;
    auto send_until = [&](size_t cut) {
      if (cut <= at || cut > stream.size()) return;
      (void)!send(ends[1], stream.data() + at, cut - at, MSG_NOSIGNAL);  // a connection that was refused may be closed
      io_.poll();
      at = cut;
    };
    for (size_t cut : cuts) send_until(cut);
    send_until(stream.size());
    std::string answers = read_all(ends[1]);
    close(ends[1]);
    while (all_.size() > 0) io_.run_one();
    io_.restart();
    if (all_.n_failed > 0 || all_.n_busy != 0 || all_.budget.used() != 0) std::abort();
    if (answers.find("HTTP/1.1 431") != answers.npos) return std::nullopt;
    return seen_ + "=>\n" + answers;
  }

 private:
  void answer(HttpRequest request, Responder& responder) {
    check_framing(request);
    seen_ += request.method + " " + request.path + "\n";
    for (const auto& [name, value] : request.headers) seen_ += name + ": " + value + "\n";
    seen_ += request.body + "\n";
    if (request.path == "/s") {
      responder.begin_stream({.type = "text/event-stream"});
      responder.push("data: a\n\n");
      responder.push(std::move(request.body));
      responder.end_stream();
    } else {
      responder.send({.body = std::move(request.body), .headers = gate_.cors_headers(request)});
    }
  }

  // What another server on the way could understand differently must not come through (RFC 9112, 6.3 and 3.2).
  void check_framing(const HttpRequest& request) const {
    if (request.body.size() > all_.options.max_body || request.headers.size() > all_.options.max_headers) std::abort();
    auto count = [&](std::string_view name) {
      return std::ranges::count_if(request.headers, [&](const auto& header) { return header.first == name; });
    };
    const auto n_codings = count("transfer-encoding"), n_lengths = count("content-length");
    if (count("host") > 1 || n_codings > 1 || (n_codings > 0 && n_lengths > 0)) std::abort();
    if (n_codings > 0 && lower_case(request.header("transfer-encoding")) != "chunked") std::abort();
    if (n_codings + n_lengths == 0 && !request.body.empty()) std::abort();
    if (n_lengths > 0 && std::strtoull(std::string(request.header("content-length")).c_str(), nullptr, 10) != request.body.size())
      std::abort();
    for (const auto& [name, value] : request.headers)
      if (value.find_first_of(std::string_view("\r\n\0", 3)) != value.npos) std::abort();
  }

  // Without the ids, which are made by chance.
  static std::string read_all(int socket) {
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = recv(socket, buffer, sizeof buffer, 0)) > 0;) text.append(buffer, size_t(n));
    constexpr std::string_view id = "X-Request-Id: req-";
    for (size_t at = 0; (at = text.find(id, at)) != text.npos;) text.erase(at, id.size() + 16);
    return text;
  }

  asio::io_context io_{1};
  asio::thread_pool workers_{1};
  Connections all_{small_limits()};
  Gate gate_;
  std::string seen_;
};

}  // namespace

// The first two bytes say where the stream is cut. It is compared with the whole for a share of the inputs: that takes as long again.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Host host;
  if (size < 3) return 0;
  const std::string_view bytes = fuzz::as_text(data + 2, size - 2);
  const size_t first = data[0], second = first + data[1];
  const auto cut = host.converse(bytes, {first, second, bytes.size()});
  if (size % 4 != 0) return 0;
  const auto whole = host.converse(bytes, {});
  if (whole && cut && *whole != *cut) {
    std::fprintf(stderr, "-- whole:\n%s\n-- cut:\n%s\n", whole->c_str(), cut->c_str());
    std::abort();
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  static const std::vector<std::string_view> words = fuzz::words(
      "GET / HTTP/1.1\r\n@POST /s HTTP/1.1\r\n@HEAD / HTTP/1.0\r\n@OPTIONS / HTTP/1.1\r\n@\r\n@\r\n\r\n@\n@\r@ @\t@:@"
      ",@;a=\"b\"@Host: localhost\r\n@Host: @Content-Length: 5\r\n@Content-Length: @Transfer-Encoding: chunked\r\n@"
      "Transfer-Encoding: @chunked@identity@gzip, chunked@Connection: close\r\n@Connection: keep-alive\r\n@"
      "Connection: Transfer-Encoding\r\n@Expect: 100-continue\r\n@Authorization: Bearer k\r\n@Origin: http://a.b\r\n@"
      "Content-Type: application/json\r\n@Access-Control-Request-Headers: x-stainless-os, authorization\r\n@"
      "Upgrade: h2c\r\n@Sec-Fetch-Site: cross-site\r\n@0\r\n@0\r\n\r\n@5\r\nhello\r\n@5;x=y\r\nhello\r\n@"
      "0\r\nX: y\r\n\r\n@00000005\r\n@fffffffffffffffff@ffffffffffffffff@18446744073709551616@-1@+5@0x5@[::1]:80@"
      "127.0.0.1:99999",
      "@");
  fuzz::Random random(seed);
  return fuzz::insert_word(data, size, max_size, words, random);
}
