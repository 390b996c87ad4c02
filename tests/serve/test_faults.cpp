// The server when something fails on purpose: memory that runs out at any allocation, on any thread; a clock that
// jumps. One request may fail, with a sentence; the next one is right, and nothing of it is left in the counters.
#include <gtest/gtest.h>

#include <thread>

#include "engine/faults.h"
#include "serve/server.h"
#include "serve/socket_client.h"

namespace mr {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class Faults : public testing::Test {
 protected:
  Faults() : server_(options()) {
    EXPECT_TRUE(server_.load([](Server::Progress) {
      EngineOptions o;
      o.threads = 1;
      return Engine::create(MR_FIXTURES "/models/llama_gqa", o);
    }));
    running_ = std::jthread([this] { server_.run(); });
  }
  ~Faults() override { server_.stop(); }

  static ServeOptions options() {
    ServeOptions o;
    o.http.port = 0;
    o.model_name = "tiny";
    o.log.level = "off";
    o.max_queue = 4;
    return o;
  }

  static std::string words_of(const std::string& method, const std::string& path, const std::string& body) {
    return fmt::format("{} {} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{}", method, path, body.size(), body);
  }
  std::string ask(const std::string& method, const std::string& path, const std::string& body = "") {
    SocketClient client(server_.port());
    client.try_say(words_of(method, path, body));
    return client.hear("(everything)");
  }
  // What an answer says besides its id and time.
  static std::string choices_of(const std::string& heard) {
    const size_t at = heard.find("\"choices\":");
    return at == std::string::npos ? heard : heard.substr(at);
  }
  // All texts of a stream's events, in order.
  static std::string events_of(std::string_view heard) {
    std::string all;
    for (size_t at = 0; (at = heard.find("\"choices\":", at)) != std::string_view::npos; at++)
      all += std::string(heard.substr(at, heard.find("\n", at) - at)) + "\n";
    return all;
  }
  bool is_at_rest() {
    const std::string metrics = ask("GET", "/metrics");
    return metrics.find("millrace_num_requests_queued 0\n") != std::string::npos &&
           metrics.find("millrace_num_requests_running 0\n") != std::string::npos &&
           metrics.find("millrace_http_memory_bytes 0\n") != std::string::npos;
  }
  void expect_at_rest(const std::string& where) {
    bool quiet = is_at_rest();
    for (int i = 0; i < 200 && !quiet; i++) {
      std::this_thread::sleep_for(10ms);
      quiet = is_at_rest();
    }
    EXPECT_TRUE(quiet) << where << ask("GET", "/metrics");
  }

  Server server_;
  std::jthread running_;
};

const std::string whole =
    R"({"prompt":[[1,2,3],[4,5]],"max_tokens":4,"temperature":0,"ignore_eos":true,"n":2,"logprobs":2,"logit_bias":{"7":1}})";
const std::string stream = R"({"prompt":[1,2,3],"max_tokens":4,"temperature":0,"ignore_eos":true,"stream":true})";

// nlohmann's destructors allocate room for a value's children and end the process where there is none, so the smallest allocations
// are spared: lists and objects of these requests are smaller.
constexpr size_t smallest = 256;

TEST_F(Faults, MemoryThatRunsOutEndsOneRequestAtMost) {
  for (const std::string& body : {whole, stream}) {
    const bool streams = body == stream;
    auto essence = [&](const std::string& heard) { return streams ? events_of(heard) : choices_of(heard); };
    const std::string expected = essence(ask("POST", "/v1/completions", body));
    ASSERT_NE(expected.find("\"text\""), std::string::npos) << expected;
    int n_failed = 0, n_right = 0;
    bool hit = true;
    for (int64_t n = 0; hit; n += 1 + n / 40) {
      const std::string where = fmt::format("{}, allocation {}: ", streams ? "a stream" : "a whole answer", n);
      std::string heard;
      const auto begin = Clock::now();
      {
        Spared own;
        SocketClient client(server_.port());
        arm(n, 1, smallest);
        client.try_say(words_of("POST", "/v1/completions", body));
        heard = client.hear("(everything)");
        hit = disarm();
      }
      EXPECT_LT(Clock::now() - begin, 15s) << where << "neither an answer nor an end";
      const bool right = heard.starts_with("HTTP/1.1 200 ") && essence(heard) == expected;
      const bool told = heard.starts_with("HTTP/1.1 5") || heard.find("\"error\"") != std::string::npos;
      EXPECT_TRUE(right || told || heard.empty() || streams) << where << heard;
      (right ? n_right : n_failed)++;
      expect_at_rest(where);
      EXPECT_EQ(essence(ask("POST", "/v1/completions", body)), expected) << where << "the next request";
    }
    EXPECT_GT(n_failed, 5);
    EXPECT_GT(n_right, 0);
  }
}

TEST_F(Faults, AClockThatJumpsChangesNoAnswer) {
  const std::string expected = choices_of(ask("POST", "/v1/completions", whole));
  for (int64_t jump : {86400 * 400, -86400 * 400, 0}) {
    SocketClient early(server_.port());  // its deadlines began before the jump
    const std::string words = words_of("POST", "/v1/completions", whole);
    early.say(words.substr(0, words.size() / 2));
    faults.seconds_ahead = jump;
    early.say(words.substr(words.size() / 2));
    EXPECT_EQ(choices_of(early.hear("(everything)")), expected) << jump;
    EXPECT_EQ(choices_of(ask("POST", "/v1/completions", whole)), expected) << jump;
    EXPECT_TRUE(ask("GET", "/ready").starts_with("HTTP/1.1 200 "));
    expect_at_rest(fmt::format("jump by {}: ", jump));
  }
}

}  // namespace
}  // namespace mr
