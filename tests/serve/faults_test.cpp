// The server when something fails on purpose: memory that runs out at any allocation, on any thread; a clock that
// jumps. One request may fail, with a sentence; the next one is right, and nothing of it is left in the counters.
#include "engine/faults.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "serve/server.h"
#include "serve/socket_client.h"

namespace mr {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// A model with a tokenizer and a chat template, of made-up weights.
std::filesystem::path model_folder() {
  static const std::filesystem::path folder = [] {
    const std::filesystem::path fixtures = MR_FIXTURES,
                                made = std::filesystem::path(testing::TempDir()) / fmt::format("faults-{}", getpid());
    std::filesystem::create_directories(made);
    auto read = [&](const char* path) { return Json::parse(std::ifstream(fixtures / path)); };
    const Json tokenizer = read("text/smollm2.tokenizer.json");
    Json config = read("models/llama_gqa/config.json");
    config["vocab_size"] = tokenizer["model"]["vocab"].size();
    const Json more{
        {"chat_template", "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content|trim }} {{ m.tool_calls|tojson }}{% endfor %}"}};
    std::ofstream(made / "config.json") << config;
    std::ofstream(made / "tokenizer.json") << tokenizer;
    std::ofstream(made / "tokenizer_config.json") << more;
    return made;
  }();
  return folder;
}

class Faults : public testing::Test {
 protected:
  Faults() : server_(options()) {
    EXPECT_TRUE(server_.load([](Server::Progress) {
      EngineOptions o;
      o.threads = 1;
      o.random_weights = 1;
      return Engine::create(model_folder(), o);
    }));
    running_ = std::jthread([this] { server_.run(); });
  }
  ~Faults() override { server_.stop(); }
  static void TearDownTestSuite() { std::filesystem::remove_all(model_folder()); }

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
  // What an answer says besides its id and time; of a stream all events, in order.
  static std::string essence(const std::string& heard) {
    std::string all;
    for (size_t at = 0; (at = heard.find("\"choices\":", at)) != std::string::npos; at++)
      all += heard.substr(at, heard.find("\n", at) - at) + "\n";
    return all.empty() ? heard.substr(std::min(heard.find("\r\n\r\n"), heard.size())) : all;
  }
  bool is_at_rest() {
    const std::string metrics = ask("GET", "/metrics");
    return metrics.find("millrace_num_requests_queued 0\n") != std::string::npos &&
           metrics.find("millrace_num_requests_running 0\n") != std::string::npos &&
           metrics.find("millrace_http_memory_bytes 0\n") != std::string::npos;
  }
  void expect_at_rest(const std::string& where) {
    bool quiet = is_at_rest();
    for (int i = 0; i < 3000 && !quiet; i++) {
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

struct Asking {
  const char *what, *path;
  std::string body;
  bool streams = false;
};

const Asking askings[] = {
    {"a whole answer", "/v1/completions", whole},
    {"a stream", "/v1/completions", R"({"prompt":"Once upon","max_tokens":4,"temperature":0,"ignore_eos":true,"stream":true})", true},
    {"a conversation", "/v1/chat/completions",
     R"({"messages":[{"role":"user","content":[{"type":"text","text":"What?"}]},{"role":"assistant","content":null,"tool_calls":[
         {"function":{"name":"f","arguments":"{\"a\":[1,[2]],\"b\":{}}"}}]}],"tools":[{"type":"function","function":{"name":"f"}}],
         "max_tokens":4,"temperature":0,"ignore_eos":true,"logprobs":true,"stop":["zzz"],"chat_template_kwargs":{"x":[1,2]}})"},
    {"tokens of a text", "/tokenize", R"({"prompt":"Once upon a time, there was <|im_start|> a naïve child."})"},
    {"tokens of a conversation", "/tokenize", R"({"messages":[{"role":"user","content":"What is the capital of France?"}]})"},
    {"a text of tokens", "/detokenize", R"({"tokens":[5,6,7,300,301]})"},
    {"a refusal", "/v1/completions", R"({"prompt":[[{"a":[1,2,{}]},3],{}],"temprature":{"b":[]}})"},
    {"a list", "/v1/chat/completions", R"([[{"a":1},{"b":[[]]}],2])"},
};

// On its way out a document needs no memory, nor does half of a copy that could not be made.
TEST(JsonFaults, DocumentsGoWithoutMemory) {
  std::string text = "[";
  for (int i = 0; i < 1000; i++) text += R"({"a":[1,"a string that is longer than most",{"b":{}},[[[]]]],"c":null},)";
  text += "0]";
  for (int depth = 0; depth < 60; depth++) text = (depth % 2 ? "[1," : "{\"k\":") + text + (depth % 2 ? ",{\"x\":[]}]" : "}");
  auto json = std::make_unique<OrderedJson>(OrderedJson::parse(text));
  bool copied = false;
  for (int64_t n = 0; !copied; n += 1 + n / 4) {
    arm(n, 1);
    try {
      OrderedJson copy = *json;
      copied = true;
    } catch (const std::bad_alloc&) {
    }
    disarm();
  }
  arm(0, std::numeric_limits<int64_t>::max());
  json.reset();
  disarm();
  EXPECT_EQ(faults.seen, 0);
}

TEST(JsonFaults, DocumentsOfAnyDepthGo) {
  constexpr int depth = 500'000;
  std::string objects;
  for (int i = 0; i < depth; i++) objects += "{\"a\":";
  objects += "0";
  OrderedJson lists = OrderedJson::parse(std::string(depth, '[') + std::string(depth, ']'));
  OrderedJson nested = OrderedJson::parse(objects + std::string(depth, '}'));
  EXPECT_TRUE(lists.is_array() && nested.is_object());
}

TEST_F(Faults, MemoryThatRunsOutEndsOneRequestAtMost) {
  for (const Asking& asking : askings) {
    const bool is_refused = ask("POST", asking.path, asking.body).starts_with("HTTP/1.1 400 ");
    const std::string expected = essence(ask("POST", asking.path, asking.body)), status = is_refused ? "HTTP/1.1 400 " : "HTTP/1.1 200 ";
    ASSERT_EQ(expected.find("\"error\"") != std::string::npos, is_refused) << expected;
    int n_failed = 0, n_right = 0;
    bool hit = true;
    for (int64_t n = 0; hit; n++) {
      const std::string where = fmt::format("{}, allocation {}: ", asking.what, n);
      std::string heard;
      const auto begin = Clock::now();
      {
        Spared own;
        SocketClient client(server_.port());
        arm(n, 1);
        client.try_say(words_of("POST", asking.path, asking.body));
        heard = client.hear("(everything)");
        hit = disarm();
      }
      EXPECT_LT(Clock::now() - begin, 15s) << where << "neither an answer nor an end";
      const bool right = heard.starts_with(status) && essence(heard) == expected;
      const bool told = heard.starts_with("HTTP/1.1 5") || heard.find("\"error\"") != std::string::npos;
      EXPECT_TRUE(right || told || heard.empty() || asking.streams) << where << heard;
      (right ? n_right : n_failed)++;
      expect_at_rest(where);
      EXPECT_EQ(essence(ask("POST", asking.path, asking.body)), expected) << where << "the next request";
    }
    EXPECT_GT(n_failed, 5) << asking.what;
    EXPECT_GT(n_right, 0) << asking.what;
  }
}

TEST_F(Faults, AClockThatJumpsChangesNoAnswer) {
  const std::string expected = essence(ask("POST", "/v1/completions", whole));
  for (int64_t jump : {86400 * 400, -86400 * 400, 0}) {
    SocketClient early(server_.port());  // its deadlines began before the jump
    const std::string words = words_of("POST", "/v1/completions", whole);
    early.say(words.substr(0, words.size() / 2));
    faults.seconds_ahead = jump;
    early.say(words.substr(words.size() / 2));
    EXPECT_EQ(essence(early.hear("(everything)")), expected) << jump;
    EXPECT_EQ(essence(ask("POST", "/v1/completions", whole)), expected) << jump;
    EXPECT_TRUE(ask("GET", "/ready").starts_with("HTTP/1.1 200 "));
    expect_at_rest(fmt::format("jump by {}: ", jump));
  }
}

}  // namespace
}  // namespace mr
