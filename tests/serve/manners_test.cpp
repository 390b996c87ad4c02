// Names of fields, the description of the API, and what is logged of a request.
#include <gtest/gtest.h>

#include <set>

#include "serve/api_error.h"
#include "serve/known_fields.h"
#include "serve/log.h"
#include "serve/openai.h"
#include "serve/server.h"

namespace mr {
namespace {

std::string refusal(const std::string& body, FieldNames known = completion_fields()) {
  try {
    check_fields(OrderedJson::parse(body), known);
    return "";
  } catch (const ApiError& e) {
    EXPECT_EQ(e.status, 400);
    EXPECT_FALSE(e.param.empty());
    return e.what();
  }
}

TEST(FieldNames, AreThoseOfTheDescription) {
  const OrderedJson schemas = OrderedJson::parse(openapi_json)["components"]["schemas"];
  for (auto [schema, known] : {std::pair("ChatCompletionRequest", chat_fields()),
                               {"CompletionRequest", completion_fields()},
                               {"TokenizeRequest", tokenize_fields()},
                               {"DetokenizeRequest", detokenize_fields()}}) {
    std::set<std::string> described;
    for (const auto& [name, value] : schemas[schema]["properties"].items()) described.insert(name);
    EXPECT_EQ(described, std::set<std::string>(known.begin(), known.end())) << schema;
    EXPECT_EQ(schemas[schema]["additionalProperties"], false);
  }
}

TEST(FieldNames, AMisspeltOneNamesTheNearest) {
  EXPECT_EQ(refusal(R"({"temprature":1})"), "there is no field 'temprature': did you mean 'temperature'?");
  EXPECT_EQ(refusal(R"({"max_token":1})"), "there is no field 'max_token': did you mean 'max_tokens'?");
  EXPECT_EQ(refusal(R"({"topP":1})"), "there is no field 'topP': did you mean 'top_p'?");
  EXPECT_EQ(refusal(R"({"xyzzy_plugh":1})"), "there is no field 'xyzzy_plugh'");
  EXPECT_TRUE(refusal(R"({"messages":[]})").starts_with("there is no field 'messages'"));
  EXPECT_LT(refusal(R"({")" + std::string(100000, 'x') + R"(":1})").size(), 200u);
  EXPECT_EQ(refusal(R"({"prompt":1,"user":{"a":1},"metadata":7})"), "");
}

TEST(FieldNames, ThoseOfOtherServersSaySo) {
  EXPECT_EQ(refusal(R"({"guided_json":{}})"), "guided_json is not supported here");
  EXPECT_EQ(refusal(R"({"n_predict":5})"), "n_predict is not supported here: use max_tokens");
  EXPECT_EQ(refusal(R"({"min_tokens":5})"), "min_tokens is not supported here");
  EXPECT_EQ(refusal(R"({"min_tokens":0,"use_beam_search":false,"guided_json":null,"stop_token_ids":[],"repeat_penalty":1})"), "");
}

TEST(FieldNames, MayBeTakenLightly) {
  std::vector<std::string> told;
  check_fields(OrderedJson::parse(R"({"temprature":1,"guided_json":{},"n":1})"), chat_fields(),
               [&](const std::string& s) { told.push_back(s); });
  EXPECT_EQ(told.size(), 2u);
}

TEST(Aliases, AnswerToTheirNames) {
  ServedModel model{.name = "tiny", .aliases = {"gpt-4"}, .vocab = 100, .max_context = 32, .max_state = 64, .max_choices = 8};
  for (const char* name : {"tiny", "gpt-4", ""})
    EXPECT_NO_THROW(read_completion(OrderedJson{{"prompt", {1}}, {"model", name}}, model)) << name;
  EXPECT_THROW(read_completion(OrderedJson{{"prompt", {1}}, {"model", "gpt-5"}}, model), ApiError);
}

TEST(RequestLog, OneLineWithoutWhatTerminalsObey) {
  RequestLine line{.id = "req-1", .method = "POST", .path = "/v1/\x1b[2J\n\"x", .status = 400, .seconds = 0.25, .error = "no\n\x1b]0;x"};
  for (const std::string& text : {text_of(line), json_of(line)})
    for (char c : text) EXPECT_GE(c, ' ') << text;
  OrderedJson j = OrderedJson::parse("{" + json_of(line) + "}");
  EXPECT_EQ(j["status"], 400);
  EXPECT_FALSE(j.contains("prompt_tokens"));
  line = {.id = "req-2", .method = "POST", .path = "/v1/completions", .status = 200, .seconds = 1.5, .is_completion = true, .stream = true};
  line.n_prompt = 5;
  line.n_generated = 7;
  line.n_cached = 3;
  line.ttft_s = 0.125;
  line.tokens_per_s = 40;
  EXPECT_EQ(text_of(line), "req-2 POST /v1/completions 200 1.500 s, 5 + 7 tokens, 3 cached, first after 0.125 s, 40.0 tokens/s, streamed");
  j = OrderedJson::parse("{" + json_of(line) + "}");
  EXPECT_EQ(j["cached_tokens"], 3);
  EXPECT_EQ(j["tokens_per_s"], 40.0);
}

}  // namespace
}  // namespace mr
