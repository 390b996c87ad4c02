// The transport alone, against raw sockets: odd, slow and broken clients.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "serve/http.h"
#include "serve/socket_client.h"

namespace mr {
namespace {

using namespace std::chrono_literals;

const std::string get = "GET /x?y=z HTTP/1.1\r\nHost: h\r\nX-Word: W\r\n\r\n";

HttpOptions anywhere() { return {.port = 0, .max_body = 1000, .max_pending = 1 << 20}; }

TEST(Http, WholeAnswersOnOneConnection) {
  HttpServer server(anywhere(), [](HttpRequest r, std::shared_ptr<Responder> out) {
    out->send(
        {.status = 201, .body = r.method + " " + r.path + " " + std::string(r.header("x-word")) + " " + r.body, .headers = {{"A", "b"}}});
  });
  SocketClient client(server.port());
  for (int i = 0; i < 3; i++) {
    client.say(get);
    std::string heard = client.hear("GET /x W ");
    EXPECT_TRUE(heard.starts_with("HTTP/1.1 201 Created\r\n")) << heard;
    EXPECT_NE(heard.find("\r\nA: b\r\n"), std::string::npos);
  }
  for (char c : std::string("POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello")) client.say(std::string(1, c));  // byte by byte
  EXPECT_NE(client.hear("hello").find("POST /  hello"), std::string::npos);
  client.say("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_NE(client.hear("abcde").find("POST /  abcde"), std::string::npos);
  client.say("POST / HTTP/1.1\r\nContent-Length: 1001\r\n\r\n");
  EXPECT_TRUE(client.hear("1000 bytes").starts_with("HTTP/1.1 413 "));
}

TEST(Http, StreamsFromAnotherThread) {
  std::thread writer;
  HttpServer server(anywhere(), [&](HttpRequest, std::shared_ptr<Responder> out) {
    out->begin_stream({.type = "text/event-stream"});
    writer = std::thread([out] {
      for (int i = 0; i < 100; i++) out->post([out, i] { out->push(std::to_string(i) + ";"); });
      out->post([out] { out->end_stream(); });
    });
  });
  SocketClient client(server.port());
  client.say(get);
  std::string heard = client.hear("\r\n0\r\n\r\n"), all;
  writer.join();
  size_t at = heard.find("\r\n\r\n") + 4;
  while (size_t n = std::stoul(heard.substr(at), nullptr, 16)) {
    at = heard.find("\r\n", at) + 2;
    all += heard.substr(at, n);
    at += n + 2;
  }
  std::string expected;
  for (int i = 0; i < 100; i++) expected += std::to_string(i) + ";";
  EXPECT_EQ(all, expected);
}

TEST(Http, ALeavingClientIsNoticedWhileItWaits) {
  std::promise<void> asked, left;
  std::shared_ptr<Responder> kept;
  HttpServer server(anywhere(), [&](HttpRequest, std::shared_ptr<Responder> out) {
    out->on_hang_up([&] { left.set_value(); });
    kept = out;
    asked.set_value();
  });
  SocketClient client(server.port());
  client.say(get);
  ASSERT_EQ(asked.get_future().wait_for(20s), std::future_status::ready);
  EXPECT_EQ(server.n_busy(), 1);
  auto gone = left.get_future();
  EXPECT_EQ(gone.wait_for(50ms), std::future_status::timeout);
  client.leave();
  EXPECT_EQ(gone.wait_for(20s), std::future_status::ready);
  std::promise<bool> pushed;
  kept->post([&] {
    kept->send({.body = "too late"});
    pushed.set_value(kept->push("x"));
  });
  EXPECT_FALSE(pushed.get_future().get());
  EXPECT_EQ(server.n_busy(), 0);
  kept.reset();
}

TEST(Http, AReaderThatDoesNotReadIsDropped) {
  std::promise<int> dropped;
  std::atomic<bool> left{false};
  HttpServer server(anywhere(), [&](HttpRequest r, std::shared_ptr<Responder> out) {
    if (r.path != "/x") return out->send({});
    out->on_hang_up([&] { left = true; });
    out->begin_stream({});
    int n = 0;
    while (n < 10 && out->push(std::string(300000, 'x'))) n++;  // nothing is written while this handler runs: all of it waits
    dropped.set_value(n);
  });
  SocketClient client(server.port());
  client.say(get);
  auto n = dropped.get_future();
  ASSERT_EQ(n.wait_for(20s), std::future_status::ready);
  EXPECT_EQ(n.get(), 3);  // 4 * 300000 > 1 MiB
  EXPECT_TRUE(left);
  SocketClient other(server.port());
  other.say("GET /y HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(other.hear("\r\n\r\n").starts_with("HTTP/1.1 200 "));
}

TEST(Http, LongWorkHoldsUpNobody) {
  HttpOptions options = anywhere();
  options.threads = 1;
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  HttpServer server(options, [&](HttpRequest r, std::shared_ptr<Responder> out) {
    if (r.path != "/x") return out->send({});
    out->work(Lane::large, [out, released] {
      EXPECT_EQ(released.wait_for(20s), std::future_status::ready);
      out->post([out] { out->send({.status = 201}); });
    });
  });
  SocketClient client(server.port()), other(server.port());
  client.say(get);
  other.say("GET /y HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(other.hear("\r\n\r\n").starts_with("HTTP/1.1 200 "));  // while the other's work goes on
  release.set_value();
  EXPECT_TRUE(client.hear("\r\n\r\n").starts_with("HTTP/1.1 201 "));
}

TEST(Http, WorkThatThrowsDropsItsClient) {
  HttpServer server(anywhere(), [&](HttpRequest, std::shared_ptr<Responder> out) {
    out->work(Lane::small, [] { throw std::runtime_error("no memory, say"); });
  });
  SocketClient client(server.port());
  client.say(get);
  EXPECT_EQ(client.hear("\r\n\r\n"), "");
}

TEST(Http, GarbageIsAnswered) {
  HttpServer server(anywhere(), [](HttpRequest, std::shared_ptr<Responder> out) { out->send({}); });
  for (const char* words : {"\x01\x02\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n"}) {
    SocketClient client(server.port());
    client.say(words);
    EXPECT_TRUE(client.hear("}}").starts_with("HTTP/1.1 400 ")) << words;
  }
  SocketClient client(server.port());
  client.say(get);
  EXPECT_TRUE(client.hear("\r\n\r\n").starts_with("HTTP/1.1 200 "));
}

}  // namespace
}  // namespace mr
