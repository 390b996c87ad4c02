// The load generator against a fake server that sends scripted bytes at known times: what it measures, and what it says of
// servers that misbehave.
#include "bench/client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "core/error.h"
#include "core/json.h"

namespace mr {
namespace {

using namespace std::chrono_literals;

// A piece of an answer, and how long the server waits before it sends it.
struct Piece {
  std::chrono::milliseconds wait;
  std::string bytes;
};

// Answers each connection with the same pieces and closes it.
class FakeServer {
 public:
  explicit FakeServer(std::vector<Piece> script) : script_(std::move(script)), listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in where{.sin_family = AF_INET};
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof where;
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&where), size), 0);
    EXPECT_EQ(listen(listener_, 128), 0);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&where), &size);
    port_ = ntohs(where.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ~FakeServer() {
    shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    for (std::thread& t : sessions_) t.join();
    close(listener_);
  }

  Target target() const { return {.host = "127.0.0.1", .port = port_}; }
  int most_open() const { return most_open_; }
  std::vector<std::string> requests() {
    std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  void accept_all() {
    for (int fd; (fd = accept(listener_, nullptr, nullptr)) >= 0;) sessions_.emplace_back([this, fd] { answer(fd); });
  }

  void answer(int fd) {
    int open = ++n_open_;
    for (int most = most_open_; open > most && !most_open_.compare_exchange_weak(most, open);) {
    }
    std::string request = read_request(fd);
    {
      std::lock_guard lock(mutex_);
      requests_.push_back(request);
    }
    for (const Piece& piece : script_) {
      std::this_thread::sleep_for(piece.wait);
      send(fd, piece.bytes.data(), piece.bytes.size(), MSG_NOSIGNAL);
    }
    n_open_--;
    close(fd);
  }

  static std::string read_request(int fd) {
    std::string all;
    char part[4096];
    for (size_t end = 0;;) {
      size_t head = all.find("\r\n\r\n");
      if (head != all.npos) {
        size_t length = all.find("Content-Length: ");
        end = head + 4 + (length < head ? std::stoul(all.substr(length + 16)) : 0);
        if (all.size() >= end) return all;
      }
      ssize_t n = recv(fd, part, sizeof part, 0);
      if (n <= 0) return all;
      all.append(part, size_t(n));
    }
  }

  std::vector<Piece> script_;
  int listener_, port_ = 0;
  std::thread acceptor_;
  std::vector<std::thread> sessions_;
  std::atomic<int> n_open_{0}, most_open_{0};
  std::mutex mutex_;
  std::vector<std::string> requests_;
};

const std::string head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

std::string chunk(const std::string& bytes) { return fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes); }
std::string text_event(const std::string& text) {
  return "data: " + Json{{"choices", Json::array({{{"index", 0}, {"text", text}}})}}.dump() + "\n\n";
}
const std::string usage_event = R"(data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5}})"
                                "\n\n";
const std::string done_event = "data: [DONE]\n\n";
const std::string end = "0\r\n\r\n";

std::vector<Outcome> ask(const FakeServer& server, int n = 1, int streams = 1, double timeout = 20) {
  Load load{.path = "/v1/completions", .bodies = std::vector<std::string>(size_t(n), "{}"), .streams = streams, .timeout = timeout};
  return drive(server.target(), load);
}

std::string error_of(std::vector<Piece> script) { return ask(FakeServer(std::move(script)))[0].error; }

TEST(Client, TimesTheFirstTextAndTheLast) {
  FakeServer server({{50ms, head + chunk(text_event(""))},
                     {100ms, chunk(text_event("a"))},
                     {100ms, chunk(text_event("b")) + chunk(text_event("c"))},
                     {100ms, chunk(text_event("de"))},
                     {3000ms, chunk(usage_event + done_event) + end}});
  Outcome o = ask(server)[0];
  EXPECT_EQ(o.error, "");
  EXPECT_EQ(o.n_tokens, 5);
  EXPECT_EQ(o.prompt_tokens, 7);
  // A sleep is never shorter than asked; a busy machine may make it longer.
  EXPECT_GE(o.ttft(), 0.150);
  EXPECT_GE(o.done - o.first, 0.195);
  EXPECT_LT(o.done - o.first, 3.0);  // the usage came later, and is no token
  EXPECT_DOUBLE_EQ(o.tpot(), (o.done - o.first) / 4);
  EXPECT_DOUBLE_EQ(o.e2e(), o.ttft() + (o.done - o.first));
}

// An announced length is no reason to reserve it.
TEST(Client, BelievesNoLength) {
  for (const char* length : {"9000000000000000000", "99999999999999"}) {
    const std::string announced = fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", length);
    EXPECT_EQ(error_of({{0ms, announced + text_event("a")}}), "broken stream") << length;
    EXPECT_THROW(http_get(FakeServer({{0ms, announced + "{}"}}).target(), "/v1/models"), Error) << length;
  }
}

TEST(Client, CountsPiecesWhenTheServerDoesNot) {
  FakeServer server({{0ms, head + chunk(text_event("a") + text_event("b") + text_event("c") + done_event) + end}});
  EXPECT_EQ(ask(server)[0].n_tokens, 3);
}

TEST(Client, ReadsChatDeltas) {
  std::string role = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
  std::string word = "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n";
  FakeServer server({{0ms, head + chunk(role)}, {100ms, chunk(word)}, {0ms, chunk(done_event) + end}});
  Outcome o = ask(server)[0];
  EXPECT_EQ(o.error, "");
  EXPECT_EQ(o.n_tokens, 1);
  EXPECT_GE(o.ttft(), 0.100);  // the role is no token
}

TEST(Client, TakesAnAnswerInAnyPieces) {
  std::string whole = head + chunk(text_event("x")) + chunk(text_event("y") + usage_event) + chunk(done_event) + end;
  std::vector<Piece> bytes;
  for (char c : whole) bytes.push_back({0ms, std::string(1, c)});
  FakeServer server(bytes);
  Outcome o = ask(server)[0];
  EXPECT_EQ(o.error, "");
  EXPECT_EQ(o.n_tokens, 5);
}

TEST(Client, AStreamWithoutChunksEndsWithItsConnection) {
  std::string plain = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
  EXPECT_EQ(error_of({{0ms, plain + text_event("x") + done_event}}), "");
  EXPECT_EQ(error_of({{0ms, plain + text_event("x")}}), "broken stream");
}

TEST(Client, NamesWhatWentWrong) {
  std::string refused = "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 2\r\n\r\n{}";
  EXPECT_EQ(error_of({{0ms, refused}}), "429 Too Many Requests");
  EXPECT_EQ(error_of({{0ms, head + chunk(text_event("x"))}}), "broken stream");        // no last chunk
  EXPECT_EQ(error_of({{0ms, head + chunk(text_event("x")) + end}}), "broken stream");  // no [DONE]
  EXPECT_EQ(error_of({{0ms, ""}}), "closed without an answer");
  EXPECT_EQ(error_of({{0ms, "SSH-2.0-OpenSSH_9.2\r\n"}}), "no valid HTTP");
  EXPECT_EQ(error_of({{0ms, head + chunk("data: {\"error\":{\"message\":\"oh\"}}\n\n") + end}}), "error within the stream");
  EXPECT_EQ(error_of({{0ms, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"}}), "no event stream");
  FakeServer slow({{0ms, head}, {500ms, chunk(done_event) + end}});
  EXPECT_EQ(ask(slow, 1, 1, 0.1)[0].error, "timeout");
  Target nobody;
  {
    FakeServer gone({});
    nobody = gone.target();
  }
  Load load{.path = "/v1/completions", .bodies = {"{}"}};
  EXPECT_EQ(drive(nobody, load)[0].error, "connection refused");
  EXPECT_THROW(http_get(nobody, "/v1/models"), Error);
}

TEST(Client, ClosedLoopKeepsItsStreamsOpen) {
  FakeServer server({{60ms, head + chunk(text_event("x") + done_event) + end}});
  auto begin = std::chrono::steady_clock::now();
  auto outcomes = ask(server, 12, 4);
  std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  for (const Outcome& o : outcomes) EXPECT_EQ(o.error, "");
  EXPECT_EQ(outcomes.size(), 12u);
  EXPECT_LE(server.most_open(), 5);  // the server may see the next one before it forgets the last
  EXPECT_GE(server.most_open(), 4);
  EXPECT_GE(took.count(), 3 * 0.060);  // 12 requests on 4 streams are 3 rounds
}

TEST(Client, OpenLoopDoesNotWaitForAnswers) {
  FakeServer server({{1000ms, head + chunk(text_event("x") + done_event) + end}});
  Load load{.path = "/v1/completions", .bodies = std::vector<std::string>(5, "{}"), .arrivals = {0, 0.02, 0.04, 0.06, 0.08}};
  auto outcomes = drive(server.target(), load);
  for (size_t i = 0; i < 5; i++) {
    EXPECT_EQ(outcomes[i].error, "");
    EXPECT_GE(outcomes[i].sent, load.arrivals[i]);
    EXPECT_LT(outcomes[i].sent, 1.0);
  }
  EXPECT_EQ(server.most_open(), 5);
}

TEST(Client, SendsKeyBodyAndPath) {
  FakeServer server({{0ms, head + chunk(done_event) + end}});
  Target target = server.target();
  target.api_key = "secret";
  target.prefix = "/base";
  drive(target, {.path = "/v1/completions", .bodies = {R"({"prompt":[1]})"}});
  std::string request = server.requests().at(0);
  EXPECT_TRUE(request.starts_with("POST /base/v1/completions HTTP/1.1\r\n")) << request;
  EXPECT_NE(request.find("\r\nAuthorization: Bearer secret\r\n"), request.npos);
  EXPECT_TRUE(request.ends_with("\r\n\r\n{\"prompt\":[1]}"));
}

TEST(Client, NamesAnIpv6HostInBrackets) {
  FakeServer server({{0ms, head + chunk(done_event) + end}});
  Target target = server.target();
  target.host = "::ffff:127.0.0.1";
  try {
    drive(target, {.path = "/v1/completions", .bodies = {"{}"}});
  } catch (const Error&) {
  }
  if (server.requests().empty()) GTEST_SKIP() << "there is no IPv6 here";
  const std::string request = server.requests().at(0);
  EXPECT_NE(request.find(fmt::format("\r\nHost: [::ffff:127.0.0.1]:{}\r\n", target.port)), request.npos) << request;
}

TEST(Client, ReadsAddresses) {
  Target t = parse_url("http://localhost:8000");
  EXPECT_EQ(t.host, "localhost");
  EXPECT_EQ(t.port, 8000);
  EXPECT_EQ(t.prefix, "");
  EXPECT_EQ(parse_url("http://a/v1/").prefix, "");
  EXPECT_EQ(parse_url("http://a/x/v1").prefix, "/x");
  EXPECT_EQ(parse_url("http://a").port, 80);
  EXPECT_EQ(parse_url("http://[::1]:81").host, "::1");
  EXPECT_EQ(parse_url("http://[::1]:81").port, 81);
  for (const char* bad : {"", "localhost:1", "https://a", "http://", "http://:1", "http://a:x", "http://a:99999", "http://a:"})
    EXPECT_THROW(parse_url(bad), Error) << bad;
}

// The rules of the HTML standard's section on server-sent events.
TEST(Client, EventsByTheStandard) {
  std::string stream = "data: a\n\n: comment\n\nevent: x\ndata:b\r\ndata:  c\r\n\r\ndata\rdata\r\rid: 1\n\ndata: cut";
  std::vector<std::string> expected{"a", "b\n c", "\n"};
  for (size_t step : {size_t(1), size_t(2), size_t(3), size_t(7), stream.size()}) {
    EventParser parser;
    std::vector<std::string> got;
    for (size_t i = 0; i < stream.size(); i += step)
      parser.feed(std::string_view(stream).substr(i, step), [&](std::string_view data) { got.emplace_back(data); });
    EXPECT_EQ(got, expected) << step;
  }
}

}  // namespace
}  // namespace mr
