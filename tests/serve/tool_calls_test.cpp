// Calls of functions in the forms that templates teach. The texts are those of the formats' own documentation: Hermes function
// calling and Qwen (tags), SmolLM2's model card (a list between tags), Llama 3.1's and Mistral's guides (JSON).
#include <gtest/gtest.h>

#include <random>

#include "serve/answer.h"
#include "serve/tools_in_prompt.h"

namespace mr {
namespace {

const std::vector<std::string> names = {"get_current_weather", "get_current_temperature", "get_temperature_date", "get_stock_fundamentals",
                                        "retrieve_payment_status"};

struct Read {
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;
  bool operator==(const Read&) const = default;
};

Read read_in_pieces(const std::string& text, size_t size) {
  ToolCallReader reader(names);
  Read all;
  for (size_t at = 0; at < text.size() || at == 0; at += size) {
    auto news = reader.add(std::string_view(text).substr(at, size), at + size >= text.size());
    all.content += news.content;
    for (const ToolCall& call : news.calls) all.calls.emplace_back(call.name, call.arguments);
  }
  return all;
}

void expect_read(const std::string& text, const Read& expected) {
  for (size_t size = 1; size <= text.size() + 1; size++) {
    Read read = read_in_pieces(text, size);
    ASSERT_EQ(read.content, expected.content) << "in pieces of " << size << ": " << text;
    ASSERT_EQ(read.calls, expected.calls) << "in pieces of " << size << ": " << text;
  }
}

void expect_content(const std::string& text) { expect_read(text, {text, {}}); }

TEST(ToolCalls, BetweenTags) {
  expect_read("<tool_call>\n{\"arguments\": {\"symbol\": \"TSLA\"}, \"name\": \"get_stock_fundamentals\"}\n</tool_call>",
              {"", {{"get_stock_fundamentals", R"({"symbol":"TSLA"})"}}});
  expect_read(
      "<tool_call>\n{\"name\": \"get_current_temperature\", \"arguments\": {\"location\": \"San Francisco, CA, USA\"}}\n</tool_call>\n"
      "<tool_call>\n{\"name\": \"get_temperature_date\", \"arguments\": {\"location\": \"San Francisco, CA, USA\", \"date\": "
      "\"2024-10-01\"}}\n</tool_call>",
      {"",
       {{"get_current_temperature", R"({"location":"San Francisco, CA, USA"})"},
        {"get_temperature_date", R"({"location":"San Francisco, CA, USA","date":"2024-10-01"})"}}});
  expect_read("I shall look.\n\n<tool_call>{\"name\": \"get_current_weather\", \"arguments\": {}}</tool_call>\n Done. \n",
              {"I shall look.Done. \n", {{"get_current_weather", "{}"}}});
  expect_read(
      "<tool_call>[{\"name\": \"get_current_weather\", \"arguments\": {\"a\": 1}}, {\"name\": \"get_current_temperature\"}]</tool_call>",
      {"", {{"get_current_weather", R"({"a":1})"}, {"get_current_temperature", "{}"}}});
  expect_read("<tool_call>{\"name\": \"get_current_weather\", \"arguments\": \"{\\\"a\\\": 1}\"}",  // the end token came first
              {"", {{"get_current_weather", R"({"a": 1})"}}});
}

TEST(ToolCalls, BareJson) {
  expect_read(R"({"name": "get_current_weather", "parameters": {"location": "San Francisco, CA", "unit": "{\"}"}})",
              {"", {{"get_current_weather", R"({"location":"San Francisco, CA","unit":"{\"}"})"}}});
  expect_read(R"(<|python_tag|>{"name": "get_current_weather", "parameters": {}}; {"name": "get_current_temperature", "parameters": {}})",
              {"", {{"get_current_weather", "{}"}, {"get_current_temperature", "{}"}}});
  const std::string list = R"([{"name": "retrieve_payment_status", "arguments": {"transaction_id": "T1001"}, "id": "VvvODy9mT"}])";
  const Read expected{"", {{"retrieve_payment_status", R"({"transaction_id":"T1001"})"}}};
  for (const char* mark : {"[TOOL_CALLS] ", "[TOOL_CALLS]", " ", ""}) expect_read(mark + list, expected);
}

TEST(ToolCalls, WhatIsNoCallIsContent) {
  for (const char* text : {"",
                           " ",
                           "Hello.",
                           " Hello, \n\nworld. \n",
                           "a < b, <tool, <tool_cal",
                           "<",
                           "<tool_call",
                           "[TOOL_",
                           "[TOOL_CALLS]",
                           "[1, 2]",
                           "{\"answer\": 42} and more",
                           "{\"name\": \"unknown\", \"parameters\": {}}",
                           "{\"name\": 7}",
                           "{\"name\": \"get_current_weather\"",
                           "Here: {\"name\": \"get_current_weather\", \"parameters\": {}}",
                           "<tool_call>{\"name\": \"unknown\"}</tool_call>",
                           "<tool_call>nonsense</tool_call> after",
                           "<tool_call>{\"name\": \"get_current_wea",
                           "<tool_call></tool_call>",
                           "]]]",
                           "}{",
                           "\"{"})
    expect_content(text);
  expect_content("<tool_call>" + std::string(300000, '[').substr(0, 300) + "</tool_call>");
  ToolCallReader reader(names);
  std::string deep = R"({"name": "get_current_weather", "parameters": )" + std::string(300000, '[') + std::string(300000, ']') + "}";
  EXPECT_EQ(reader.add(deep, true).content, deep);
}

TEST(ToolCalls, PiecesMakeNoDifferenceAndNothingIsLost) {
  const char* parts[] = {"<tool_call>",
                         "</tool_call>",
                         R"({"name": "get_current_weather")",
                         R"(, "arguments": {})",
                         "[TOOL_CALLS]",
                         "<|python_tag|>",
                         "<tool",
                         "_call>",
                         "{",
                         "}",
                         "[",
                         "]",
                         " ",
                         "\n",
                         ";",
                         "x",
                         "<",
                         "\"",
                         "\\"};
  std::mt19937 chance(7);
  for (int i = 0; i < 20000; i++) {
    std::string text;
    for (size_t n = 1 + chance() % 12; n > 0; n--) text += parts[chance() % std::size(parts)];
    const Read whole = read_in_pieces(text, text.size());
    ASSERT_EQ(read_in_pieces(text, 1 + chance() % 5), whole) << text;
    ASSERT_TRUE(!whole.calls.empty() || whole.content == text) << text;
  }
}

Asked with_tools(bool stream) {
  Asked asked;
  asked.chat = true;
  asked.stream = stream;
  asked.tools = names;
  asked.prompts = {{1}};
  return asked;
}

TokenEvent event(const std::string& text, Finish finish = Finish::none) {
  TokenEvent e;
  e.text = text;
  e.finish = finish;
  return e;
}

// Quadratic work would take longer than any test may.
TEST(ToolCalls, WorkIsLinearInTheText) {
  for (const std::string part : {"<tool_call>", "<tool_call>{", "<tool_call>[\"", "{\"", "[", "[] ", "<"}) {
    std::string text;
    while (text.size() < 1'000'000) text += part;
    for (const std::string& end : {"", "</tool_call>"})
      for (size_t size : {text.size() + end.size(), size_t(8)}) EXPECT_EQ(read_in_pieces(text + end, size).content, text + end) << part;
  }
  std::string calls;
  for (int i = 0; i < 10'000; i++) calls += R"({"name": "get_current_weather", "parameters": {}};)";
  EXPECT_EQ(read_in_pieces(calls, calls.size()).calls.size(), 10'000);
}

TEST(ToolCalls, WhatIsHeldBackIsCounted) {
  const Asked asked = with_tools(false);
  const ServedModel model;
  AnswerWriter writer(asked, model);
  const size_t before = writer.bytes();
  writer.add(0, event("<tool_call>" + std::string(1000, ' ')));
  EXPECT_GE(writer.bytes(), before + 1000);
}

const std::string first_half = "Well. <tool_call>{\"name\": \"get_current_weather\",",
                  second_half = " \"arguments\": {\"a\": 1}}</tool_call>";

TEST(ToolCalls, InAWholeAnswer) {
  ServedModel model{.name = "tiny"};
  Asked asked = with_tools(false);
  AnswerWriter writer(asked, model);
  writer.add(0, event(first_half));
  writer.add(0, event(second_half, Finish::stop));
  OrderedJson choice = OrderedJson::parse(writer.whole())["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "Well.");
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u);
  const OrderedJson& call = choice["message"]["tool_calls"][0];
  EXPECT_EQ(call["type"], "function");
  EXPECT_TRUE(call["id"].get<std::string>().starts_with("call_"));
  EXPECT_EQ(call["function"], OrderedJson::parse(R"({"name":"get_current_weather","arguments":"{\"a\":1}"})"));
}

TEST(ToolCalls, OnlyOneWhereOneIsWanted) {
  ServedModel model{.name = "tiny"};
  Asked asked = with_tools(false);
  asked.parallel_tool_calls = false;
  AnswerWriter writer(asked, model);
  writer.add(0, event("<tool_call>[{\"name\": \"get_current_weather\"}, {\"name\": \"get_current_temperature\"}]</tool_call>"));
  writer.add(0, event("<tool_call>{\"name\": \"get_current_temperature\"}</tool_call>", Finish::length));
  OrderedJson choice = OrderedJson::parse(writer.whole())["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_TRUE(choice["message"]["content"].is_null());
  EXPECT_EQ(choice["message"]["tool_calls"].size(), 1u);
}

// The form of Hermes function calling.
TEST(ToolsInPrompt, StandInTheSystemPromptBesideWhatIsThere) {
  const OrderedJson tools = OrderedJson::parse(R"([{"type":"function","function":{"name":"get_current_weather"}}])");
  const std::string shown = "<tools>\n" + tools[0].dump() + "\n</tools>";
  for (const char* text :
       {R"([{"role":"user","content":"Hi"}])", R"([{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"}])"}) {
    OrderedJson messages = OrderedJson::parse(text);
    const bool had_system = messages.size() == 2;
    put_tools_into_prompt(messages, tools);
    ASSERT_EQ(messages.size(), 2u);
    EXPECT_EQ(messages[0]["role"], "system");
    const std::string system = messages[0]["content"];
    EXPECT_EQ(system.starts_with("Be brief.\n\n"), had_system);
    EXPECT_NE(system.find(shown), std::string::npos) << system;
    EXPECT_NE(system.find("<tool_call>"), std::string::npos);
    EXPECT_EQ(messages[1], OrderedJson::parse(R"({"role":"user","content":"Hi"})"));
  }
}

TEST(ToolCalls, InAStream) {
  ServedModel model{.name = "tiny"};
  Asked asked = with_tools(true);
  AnswerWriter writer(asked, model);
  auto delta = [](const std::string& sse) { return OrderedJson::parse(sse.substr(sse.rfind("data: ") + 6))["choices"][0]; };
  EXPECT_EQ(delta(writer.add(0, event(first_half)))["delta"]["content"], "Well.");
  OrderedJson second = delta(writer.add(0, event(second_half + second_half)));
  EXPECT_EQ(second["delta"]["tool_calls"][0]["index"], 0);
  EXPECT_EQ(second["delta"]["tool_calls"][0]["function"]["arguments"], R"({"a":1})");
  EXPECT_TRUE(second["finish_reason"].is_null());
  EXPECT_EQ(writer.add(0, event("<tool_call>[")), "");
  OrderedJson last = delta(writer.add(0, event("{\"name\": \"get_current_weather\"}]", Finish::stop)));
  EXPECT_EQ(last["delta"]["tool_calls"][0]["index"], 1);
  EXPECT_EQ(last["finish_reason"], "tool_calls");
}

}  // namespace
}  // namespace mr
