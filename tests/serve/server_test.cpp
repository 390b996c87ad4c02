// The server and its engine: while the model loads, while the engine is blocked, and at shutdown.
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "serve/server.h"
#include "serve/socket_client.h"

namespace mr {
namespace {

using namespace std::chrono_literals;

ServeOptions tiny_options() {
  ServeOptions o;
  o.http.port = 0;
  o.model_name = "tiny";
  o.log.level = "off";
  o.drain_seconds = 5;
  o.stall_seconds = 1;
  return o;
}

std::unique_ptr<Engine> tiny_engine() {
  EngineOptions o;
  o.threads = 1;
  return Engine::create(MR_FIXTURES "/models/llama_gqa", o);
}

std::string ask(const Server& server, const std::string& method, const std::string& path, const std::string& body = "") {
  SocketClient client(server.port());
  client.say(fmt::format("{} {} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{}", method, path, body.size(), body));
  return client.hear("(everything)");
}

bool is(const std::string& heard, int status) { return heard.starts_with(fmt::format("HTTP/1.1 {} ", status)); }

const std::string two_tokens = R"({"prompt":[1,2,3],"max_tokens":2,"ignore_eos":true})";

TEST(Server, AnswersWhileItsModelIsLoaded) {
  Server server(tiny_options());
  std::promise<void> release;
  auto loaded = std::async(std::launch::async, [&] {
    return server.load([&](Server::Progress progress) {
      progress(3, 7);
      release.get_future().wait();
      return tiny_engine();
    });
  });
  EXPECT_TRUE(is(ask(server, "GET", "/health"), 200));
  while (ask(server, "GET", "/ready").find("42 %") == std::string::npos) std::this_thread::sleep_for(10ms);
  for (auto [method, path] : {std::pair("GET", "/ready"),
                              {"GET", "/v1/models"},
                              {"POST", "/v1/completions"},
                              {"POST", "/v1/chat/completions"},
                              {"POST", "/tokenize"},
                              {"GET", "/metrics"}}) {
    std::string heard = ask(server, method, path, *method == 'P' ? two_tokens : "");
    EXPECT_TRUE(is(heard, 503)) << path << heard;
    EXPECT_NE(heard.find("\r\nRetry-After: 1\r\n"), std::string::npos) << heard;
    OrderedJson error = OrderedJson::parse(heard.substr(heard.find("\r\n\r\n")))["error"];
    EXPECT_EQ(error["code"], "loading");
    EXPECT_EQ(error.size(), 4u);
  }
  EXPECT_TRUE(is(ask(server, "GET", "/nowhere"), 404));
  release.set_value();
  ASSERT_TRUE(loaded.get());
  EXPECT_TRUE(is(ask(server, "GET", "/ready"), 200));
  std::jthread running([&] { server.run(); });
  EXPECT_TRUE(is(ask(server, "POST", "/v1/completions", two_tokens), 200));
  server.stop();
}

TEST(Server, AStopEndsTheWaitForTheModel) {
  std::promise<void> release, over;
  std::future<void> released = release.get_future();
  {
    Server server(tiny_options());
    server.stop();
    EXPECT_FALSE(server.load([&](Server::Progress progress) {
      released.wait();
      progress(1, 1);  // the server has stopped already
      over.set_value();
      return std::unique_ptr<Engine>();
    }));
  }
  release.set_value();
  EXPECT_EQ(over.get_future().wait_for(20s), std::future_status::ready);
}

TEST(Server, GoesWithRequestsThatNobodyAnswers) {
  std::unique_ptr<SocketClient> client;
  {
    Server server(tiny_options());
    ASSERT_TRUE(server.load([](Server::Progress) { return tiny_engine(); }));
    client = std::make_unique<SocketClient>(server.port());
    client->say(fmt::format("POST /v1/completions HTTP/1.1\r\nContent-Length: {}\r\n\r\n{}", two_tokens.size(), two_tokens));
    while (ask(server, "GET", "/metrics").find("millrace_num_requests_queued 1\n") == std::string::npos) std::this_thread::sleep_for(10ms);
  }
  EXPECT_EQ(client->hear("}"), "");
}

// A waiting request is counted until its first token, and not at all once the engine has refused it.
TEST(Server, WhoIsRefusedOrAnsweredWaitsNoLonger) {
  auto queued = [](const Server& server) {
    const std::string name = "\nmillrace_num_requests_queued ", heard = ask(server, "GET", "/metrics");
    return std::stoi(heard.substr(heard.find(name) + name.size()));
  };
  ServeOptions options = tiny_options();
  options.max_queue = 2;
  Server server(options);
  Engine* engine = nullptr;
  ASSERT_TRUE(server.load([&](Server::Progress) {
    auto made = tiny_engine();
    engine = made.get();
    return made;
  }));
  for (int i = 0; i < 3; i++) {
    std::string heard = ask(server, "POST", "/v1/completions", R"({"prompt":[[1,2],[3]],"priority":1001})");
    ASSERT_TRUE(is(heard, 400)) << heard;
    ASSERT_EQ(queued(server), 0);
  }
  SocketClient client(server.port());
  const std::string three = R"({"prompt":[1,2,3],"max_tokens":3,"ignore_eos":true})";
  client.say(fmt::format("POST /v1/completions HTTP/1.1\r\nContent-Length: {}\r\n\r\n{}", three.size(), three));
  while (queued(server) == 0) std::this_thread::sleep_for(10ms);
  while (engine->stats().generated_tokens == 0) engine->step();
  engine->step();  // what was sampled is told at the latest now
  EXPECT_EQ(engine->stats().finished, 0);
  EXPECT_EQ(queued(server), 0);
  while (engine->step()) {
  }
  EXPECT_TRUE(is(client.hear("}]"), 200));
}

TEST(Server, AModelThatCannotBeLoadedIsSaid) {
  Server server(tiny_options());
  EXPECT_THROW(server.load([](Server::Progress) -> std::unique_ptr<Engine> { fail("no such model"); }), Error);
}

TEST(Server, AnEngineThatStandsStillIsNotReady) {
  Server server(tiny_options());
  Engine* engine = nullptr;
  ASSERT_TRUE(server.load([&](Server::Progress) {
    auto made = tiny_engine();
    engine = made.get();
    return made;
  }));
  std::jthread running([&] { server.run(); });
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  Request holding{.prompt = {1}};
  holding.sampling.max_tokens = 1;
  engine->submit(holding, [released](const TokenEvent&) { released.wait_for(30s); });  // on the engine's thread
  auto answer = std::async(std::launch::async, [&] { return ask(server, "POST", "/v1/completions", two_tokens); });
  std::string heard;
  for (int i = 0; i < 100 && !is(heard, 503); i++) {
    std::this_thread::sleep_for(100ms);
    heard = ask(server, "GET", "/ready");
  }
  EXPECT_TRUE(is(heard, 503)) << heard;
  OrderedJson body = OrderedJson::parse(heard.substr(heard.find("\r\n\r\n")));
  EXPECT_EQ(body["status"], "stalled");
  EXPECT_GT(body["step_age_s"].get<double>(), 1.0);
  EXPECT_TRUE(is(ask(server, "GET", "/health"), 200));
  release.set_value();
  EXPECT_TRUE(is(answer.get(), 200));
  EXPECT_TRUE(is(ask(server, "GET", "/ready"), 200));
  server.stop();
}

TEST(Server, SaysOnceAfterWorkThatItRests) {
  std::atomic<int> n_rests{0};
  ServeOptions options = tiny_options();
  options.at_rest = [&] { n_rests++; };
  Server server(options);
  ASSERT_TRUE(server.load([](Server::Progress) { return tiny_engine(); }));
  std::jthread running([&] { server.run(); });
  for (int round = 1; round <= 2; round++) {
    EXPECT_TRUE(is(ask(server, "POST", "/v1/completions", two_tokens), 200));
    for (int i = 0; i < 3000 && n_rests < round; i++) std::this_thread::sleep_for(10ms);
    EXPECT_EQ(n_rests, round);
  }
  server.stop();
}

// Bodies that are small enough for the share that large ones leave, and never end.
TEST(Server, WorkersGetTheMemoryOfThoseWhoKeepThemWaiting) {
  ServeOptions options = tiny_options();
  options.http.memory = 24 << 20;
  options.http.max_connections = 128;
  options.http.patience_ms = 100;
  Server server(options);
  ASSERT_TRUE(server.load([](Server::Progress) { return tiny_engine(); }));
  std::jthread running([&] { server.run(); });
  auto metric = [&](const std::string& name) {
    const std::string heard = ask(server, "GET", "/metrics"), line = "\nmillrace_" + name + " ";
    return std::stod(heard.substr(heard.find(line) + line.size()));
  };
  const size_t n = Charge::little - 4096;
  std::vector<std::unique_ptr<SocketClient>> crowd;
  for (int i = 0; i < 80; i++) {  // these wait longest, but hold nothing
    crowd.push_back(std::make_unique<SocketClient>(server.port()));
    crowd.back()->say("POST /v1/completions HTTP/1.1\r\nContent-Length: 9\r\n\r\n{");
  }
  auto fill = [&] {
    for (int i = 0; i < 16 && metric("http_memory_bytes") + 2 * double(n) < metric("http_memory_limit_bytes"); i++) {
      crowd.push_back(std::make_unique<SocketClient>(server.port()));
      crowd.back()->try_say(fmt::format("POST /v1/completions HTTP/1.1\r\nContent-Length: {}\r\n\r\n", n + 1) + std::string(n, ' '));
    }
  };
  std::string long_prompt = R"({"max_tokens":1,"prompt":[1)";
  for (int i = 0; i < 60'000; i++) long_prompt += ",1";  // megabytes as JSON; then too long for the model
  long_prompt += "]}";
  for (int round = 0; round < 3; round++) {
    fill();
    std::this_thread::sleep_for(200ms);
    const std::string heard = ask(server, "POST", "/v1/completions", long_prompt);
    EXPECT_TRUE(is(heard, 400)) << heard;
    EXPECT_NE(heard.find("context_length_exceeded"), std::string::npos) << heard;
    EXPECT_TRUE(is(ask(server, "POST", "/v1/completions", two_tokens), 200));
  }
  EXPECT_GT(metric("http_connections_cut_total"), 0);
  server.stop();
}

}  // namespace
}  // namespace mr
