// Validation of requests and its error messages. There is no tokenizer: prompts are token ids.
#include <gtest/gtest.h>

#include "serve/answer.h"
#include "serve/metrics.h"
#include "serve/openai.h"
#include "serve/server.h"

namespace mr {
namespace {

ServedModel tiny_model() { return {.name = "tiny", .vocab = 100, .max_context = 32, .max_state = 64, .max_choices = 8}; }

Asked completion(const std::string& body) { return read_completion(parse_body(body), tiny_model()); }

void expect_refused(const std::string& body, const std::string& param, const std::string& word, int status = 400) {
  try {
    completion(body);
    ADD_FAILURE() << "accepted: " << body;
  } catch (const ApiError& e) {
    EXPECT_EQ(e.status, status) << body;
    EXPECT_EQ(e.param, param) << body << ": " << e.what();
    EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << body << ": " << e.what();
  }
}

std::string with(const std::string& fields) { return R"({"prompt":[1,2,3],)" + fields + "}"; }

TEST(Body, IsBoundedWhileItIsRead) {
  auto nested = [](int depth) { return R"({"a":)" + std::string(size_t(depth - 1), '[') + std::string(size_t(depth - 1), ']') + "}"; };
  EXPECT_NO_THROW(parse_body(nested(64)));
  EXPECT_THROW(parse_body(nested(65)), ApiError);
  EXPECT_THROW(parse_body(nested(3000000)), ApiError);
  EXPECT_NO_THROW(parse_body(R"({"a":")" + std::string(1000, '[') + R"(\"[["})"));  // in a string they are text
}

TEST(Body, BrokenJsonIsA400) {
  for (const char* body : {"", "{", "nope", "[]", "3", "\"x\"", "{\"a\":}", "{\"a\":1e999}", "{\"a\":\"\xff\"}", "{\"a\":\"\\ud800\"}",
                           "{}{}", "{\"a\":1,\"a\":1}"})
    EXPECT_THROW(parse_body(body), ApiError) << body;
}

TEST(Completion, Defaults) {
  Asked a = completion(R"({"prompt":[1,2,3]})");
  EXPECT_EQ(a.prompts, (std::vector<std::vector<int32_t>>{{1, 2, 3}}));
  EXPECT_EQ(a.n, 1);
  EXPECT_EQ(a.request.sampling.temperature, 1);
  EXPECT_EQ(a.request.sampling.max_tokens, 16);
  EXPECT_FALSE(a.stream || a.echo || a.logprobs || a.request.sampling.seed);
}

TEST(Completion, EveryFieldArrives) {
  Asked a = completion(with(
      R"("model":"tiny","n":3,"stream":true,"stream_options":{"include_usage":true},"temperature":0.5,"top_p":0.25,"top_k":7,"min_p":0.125,
              "frequency_penalty":-1,"presence_penalty":2,"repetition_penalty":1.5,"logit_bias":{"5":-100,"99":1.5},"seed":-1,"max_tokens":9,
              "ignore_eos":true,"logprobs":4,"priority":-3,"cache_salt":"me","user":"someone","stop":null)"));
  const SamplingParams& p = a.request.sampling;
  EXPECT_TRUE(a.stream && a.include_usage && a.logprobs && p.ignore_eos);
  EXPECT_EQ(a.n, 3);
  EXPECT_EQ(a.request.n, 3);
  EXPECT_EQ(p.temperature, 0.5f);
  EXPECT_EQ(p.top_p, 0.25f);
  EXPECT_EQ(p.top_k, 7);
  EXPECT_EQ(p.min_p, 0.125f);
  EXPECT_EQ(p.frequency_penalty, -1);
  EXPECT_EQ(p.presence_penalty, 2);
  EXPECT_EQ(p.repetition_penalty, 1.5f);
  EXPECT_EQ(p.logit_bias, (std::map<int32_t, float>{{5, -100.f}, {99, 1.5f}}));
  EXPECT_EQ(p.seed, ~uint64_t(0));
  EXPECT_EQ(p.max_tokens, 9);
  EXPECT_EQ(p.logprobs, 4);
  EXPECT_EQ(a.request.priority, -3);
  EXPECT_EQ(a.request.cache_salt, "me");
}

TEST(Completion, SomeFieldsMeanWhatTheySayOnlyTogether) {
  EXPECT_EQ(completion(with(R"("top_k":-1)")).request.sampling.top_k, 0);  // all, as some clients say it
  EXPECT_TRUE(completion(with(R"("echo":true,"logprobs":0)")).request.score_prompt);
  EXPECT_FALSE(completion(with(R"("echo":true)")).request.score_prompt);
  EXPECT_FALSE(completion(with(R"("logprobs":0)")).request.score_prompt);
}

TEST(Completion, ListsOfPrompts) {
  Asked a = completion(R"({"prompt":[[1,2],[3]],"n":2})");
  EXPECT_EQ(a.prompts, (std::vector<std::vector<int32_t>>{{1, 2}, {3}}));
  EXPECT_EQ(a.n_choices(), 4);
  EXPECT_EQ(a.n_prompt_tokens(), 3);
  EXPECT_EQ(a.request_of(1).prompt, (std::vector<int32_t>{3}));
}

TEST(Completion, WrongFieldsAreNamed) {
  expect_refused("{}", "prompt", "missing");
  expect_refused(R"({"prompt":[]})", "prompt", "empty");
  expect_refused(R"({"prompt":{}})", "prompt", "object");
  expect_refused(R"({"prompt":"text"})", "prompt", "tokenizer");
  expect_refused(R"({"prompt":[1,100]})", "prompt", "99");
  expect_refused(R"({"prompt":[1,-1]})", "prompt", "-1");
  expect_refused(R"({"prompt":[1,18446744073709551615]})", "prompt", "18446744073709551615");
  expect_refused(R"({"prompt":[1,2.5]})", "prompt", "token ids");
  expect_refused(R"({"prompt":[[1],[]]})", "prompt", "empty");
  expect_refused(R"({"prompt":[[1],"x"]})", "prompt[1]", "tokenizer");
  std::string many = "[[1]";
  for (int i = 0; i < 256; i++) many += ",[1]";
  expect_refused(R"({"prompt":)" + many + "]}", "prompt", "257");
  std::string answers = "[[1]";
  for (int i = 0; i < 128; i++) answers += ",[1]";
  expect_refused(R"({"n":8,"prompt":)" + answers + "]}", "n", "1032");
  std::string longest = "[1";
  for (int i = 1; i < 32; i++) longest += ",1";
  expect_refused(R"({"prompt":)" + longest + "]}", "prompt", "32");
  EXPECT_NO_THROW(completion(R"({"max_tokens":0,"prompt":)" + longest + "]}"));

  expect_refused(with(R"("temperature":-0.1)"), "temperature", "-0.1");
  expect_refused(with(R"("temperature":101)"), "temperature", "101");
  expect_refused(with(R"("temperature":"hot")"), "temperature", "string");
  expect_refused(with(R"("top_p":0)"), "top_p", "0");
  expect_refused(with(R"("top_p":1.01)"), "top_p", "1.01");
  expect_refused(with(R"("min_p":2)"), "min_p", "2");
  expect_refused(with(R"("top_k":-2)"), "top_k", "-2");
  expect_refused(with(R"("top_k":1.5)"), "top_k", "integer");
  expect_refused(with(R"("n":0)"), "n", "0");
  expect_refused(with(R"("n":9)"), "n", "8");
  expect_refused(with(R"("best_of":2)"), "best_of", "best_of");
  expect_refused(with(R"("max_tokens":-1)"), "max_tokens", "-1");
  expect_refused(with(R"("max_tokens":99999999999)"), "max_tokens", "99999999999");
  expect_refused(with(R"("logprobs":21)"), "logprobs", "20");
  expect_refused(with(R"("logprobs":true)"), "logprobs", "integer");
  expect_refused(with(R"("frequency_penalty":3)"), "frequency_penalty", "3");
  expect_refused(with(R"("presence_penalty":-3)"), "presence_penalty", "-3");
  expect_refused(with(R"("repetition_penalty":0)"), "repetition_penalty", "0");
  expect_refused(with(R"("seed":1.5)"), "seed", "integer");
  expect_refused(with(R"("seed":"x")"), "seed", "string");
  expect_refused(with(R"("stop":"x")"), "stop", "tokenizer");
  expect_refused(with(R"("stop":[1])"), "stop", "strings");
  expect_refused(with(R"("stop":{})"), "stop", "list");
  expect_refused(with(R"("logit_bias":[])"), "logit_bias", "object");
  expect_refused(with(R"("logit_bias":{"x":1})"), "logit_bias", "x");
  expect_refused(with(R"("logit_bias":{"100":1})"), "logit_bias", "99");
  expect_refused(with(R"("logit_bias":{"1":101})"), "logit_bias.1", "101");
  expect_refused(with(R"("stream":1)"), "stream", "true or false");
  expect_refused(with(R"("stream_options":{"include_usage":true})"), "stream_options", "stream");
  expect_refused(with(R"("stream":true,"stream_options":7)"), "stream_options", "object");
  expect_refused(with(R"("priority":"high")"), "priority", "string");
  expect_refused(with(R"("priority":18446744073709551615)"), "priority", "18446744073709551615");
  expect_refused(with(R"("cache_salt":7)"), "cache_salt", "string");
  expect_refused(with(R"("suffix":"x")"), "suffix", "not supported");
  expect_refused(with(R"("response_format":{"type":"json_object"})"), "response_format", "json_object");
  expect_refused(with(R"("echo":true,"logprobs":1,"stream":true,"n":2)"), "echo", "n");
  expect_refused(with(R"("model":"other")"), "model", "other", 404);
}

TEST(Chat, MessagesAreChecked) {
  auto refused = [](const std::string& body, const std::string& param) {
    try {
      read_chat_completion(parse_body(body), tiny_model());
      ADD_FAILURE() << "accepted: " << body;
    } catch (const ApiError& e) {
      EXPECT_EQ(e.param, param) << body << ": " << e.what();
    }
  };
  refused("{}", "messages");
  refused(R"({"messages":[]})", "messages");
  refused(R"({"messages":"hi"})", "messages");
  refused(R"({"messages":["hi"]})", "messages[0]");
  refused(R"({"messages":[{"content":"hi"}]})", "messages[0].role");
  refused(R"({"messages":[{"role":7,"content":"hi"}]})", "messages[0].role");
  refused(R"({"messages":[{"role":"user"}]})", "messages[0].content");
  refused(R"({"messages":[{"role":"user","content":7}]})", "messages[0].content");
  refused(R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})", "messages[0].content");
  refused(R"({"messages":[{"role":"user","content":"hi"}]})", "messages");  // no template
  refused(R"({"messages":[{"role":"assistant","tool_calls":{}}]})", "messages[0].tool_calls");
  refused(R"({"messages":[{"role":"assistant","tool_calls":[7]}]})", "messages[0].tool_calls");
  refused(R"({"messages":[{"role":"assistant","tool_calls":[{"function":7}]}]})", "messages[0].tool_calls");
  refused(R"({"messages":[{"role":"user","content":"hi"}],"top_logprobs":2})", "top_logprobs");
  refused(R"({"messages":[{"role":"user","content":"hi"}],"max_completion_tokens":0})", "max_completion_tokens");
}

TEST(Error, HasOpenAisShape) {
  OrderedJson j = OrderedJson::parse(error_body({404, "no \"such\" \xff model", "model", "model_not_found"}));
  EXPECT_EQ(j["error"]["param"], "model");
  EXPECT_EQ(j["error"]["code"], "model_not_found");
  EXPECT_EQ(j["error"].size(), 4u);
  EXPECT_TRUE(OrderedJson::parse(error_body({400, "x"}))["error"]["param"].is_null());
}

TEST(Answer, ChoicesOfSeveralPromptsAreNumberedThrough) {
  Asked asked = completion(R"({"prompt":[[1,2],[3]],"n":2,"logprobs":1})");
  ServedModel model = tiny_model();
  AnswerWriter writer(asked, model);
  for (int prompt : {1, 0})
    for (int choice : {1, 0}) {
      EXPECT_FALSE(writer.complete());
      TokenEvent event{
          .choice = choice, .tokens = {7}, .sampled = {{7, -0.5f, {{8, -0.25f}}}}, .text = fmt::format("{}{}", prompt, choice)};
      event.finish = Finish::length;
      event.timing.n_cached = 1;
      EXPECT_EQ(writer.add(prompt, event), "");
    }
  ASSERT_TRUE(writer.complete());
  OrderedJson j = OrderedJson::parse(writer.whole());
  ASSERT_EQ(j["choices"].size(), 4u);
  const char* texts[] = {"00", "01", "10", "11"};
  for (size_t i = 0; i < 4; i++) {
    EXPECT_EQ(j["choices"][i]["index"], i);
    EXPECT_EQ(j["choices"][i]["text"], texts[i]);
    EXPECT_EQ(j["choices"][i]["finish_reason"], "length");
    EXPECT_EQ(j["choices"][i]["logprobs"]["token_logprobs"], OrderedJson::parse("[-0.5]"));
    EXPECT_EQ(j["choices"][i]["logprobs"]["top_logprobs"][0].size(), 2u);  // the likeliest, and the one that was taken
  }
  EXPECT_EQ(j["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(j["usage"]["completion_tokens"], 4);
  EXPECT_EQ(j["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
}

// What connections hold is bounded by it: the prompt is written into every choice.
TEST(Answer, IsAsLargeAsItWasCounted) {
  Asked asked = completion(R"({"prompt":[1,2,3],"n":8,"echo":true,"logprobs":5})");
  ServedModel model = tiny_model();
  AnswerWriter writer(asked, model);
  const Sampled token{7, -0.5f, {{8, -0.25f}, {9, -0.5f}, {10, -1.5f}, {11, -2.5f}, {12, -3.5f}}};
  for (int choice = 0; choice < 8; choice++) {
    TokenEvent event{.choice = choice, .tokens = {7}, .sampled = {token}, .text = "x", .finish = Finish::length};
    if (choice == 0) event.prompt.assign(500, token);
    writer.add(0, event);
  }
  const size_t counted = writer.bytes(), written = writer.whole().size();
  EXPECT_GT(written, size_t(8) * 500 * 5);
  EXPECT_GE(double(counted), 0.95 * double(written));
}

TEST(Metrics, BucketsAreCumulative) {
  Histogram h({1, 2, 4});
  for (double x : {0.5, 1.0, 1.5, 4.0, 100.0}) h.observe(x);
  std::string out;
  h.write(out, "x", "y");
  EXPECT_NE(out.find("millrace_x_bucket{le=\"1\"} 2\n"), std::string::npos) << out;
  EXPECT_NE(out.find("millrace_x_bucket{le=\"2\"} 3\n"), std::string::npos) << out;
  EXPECT_NE(out.find("millrace_x_bucket{le=\"4\"} 4\n"), std::string::npos) << out;
  EXPECT_NE(out.find("millrace_x_bucket{le=\"+Inf\"} 5\n"), std::string::npos) << out;
  EXPECT_NE(out.find("millrace_x_sum 107\nmillrace_x_count 5\n"), std::string::npos) << out;
}

TEST(Metrics, WhoWaitsIsCountedUnderOneReason) {
  MemoryPlan plan;
  plan.group = {{StateSpec::Kind::paged, 0, 1024, 9}, {StateSpec::Kind::slot, 0, 64, 5}};
  for (auto [waits, reason] : {std::pair(Waits::memory, "memory"),
                               {Waits::sequences, "sequences"},
                               {Waits::tokens, "tokens"},
                               {Waits::batch, "batch"},
                               {Waits::none, "tokens"}}) {
    std::string text = ServeMetrics().text({.waiting = 3, .waits_for = waits}, plan, {.n_answers = 4, .n_tokens = 40}, {}, nullptr);
    for (const char* other : {"memory", "sequences", "tokens", "batch"}) {
      std::string line =
          fmt::format("millrace_num_requests_waiting{{reason=\"{}\"}} {}\n", other, std::string_view(other) == reason ? 3 : 0);
      EXPECT_NE(text.find(line), std::string::npos) << line << text;
    }
    EXPECT_NE(text.find("millrace_num_requests_queued 4\n"), std::string::npos);
    EXPECT_NE(text.find("millrace_state_units{group=\"1\",kind=\"slot\",window=\"0\"} 4\n"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace mr
