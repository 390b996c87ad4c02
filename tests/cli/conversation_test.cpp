// What is said and kept: conversations as files, settings, flags of other programs.
#include "cli/chat/conversation.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>

#include "cli/chat/settings.h"
#include "cli/familiar_flags.h"
#include "core/error.h"

namespace mr {
namespace {

Conversation from(const char* text) { return Conversation::from_json(OrderedJson::parse(text), "'x'"); }

TEST(Conversation, survives_a_file) {
  Conversation c{"Be kind.", {{"Hi", "", "Hello!"}, {"Why?", "Hm.", "Because."}}};
  const Conversation back = Conversation::from_json(c.to_json("m"), "'x'");
  EXPECT_EQ(back.system, c.system);
  ASSERT_EQ(back.turns.size(), 2u);
  EXPECT_EQ(back.turns[1].reasoning, "Hm.");
  EXPECT_EQ(back.turns[1].answer, "Because.");
}

TEST(Conversation, the_model_sees_no_forgotten_turns_and_no_reasoning) {
  Conversation c{"S", {{"a", "", "b"}, {"c", "thought", "d"}}};
  c.n_forgotten = 1;
  EXPECT_EQ(
      c.messages("e").dump(),
      R"([{"role":"system","content":"S"},{"role":"user","content":"c"},{"role":"assistant","content":"d"},{"role":"user","content":"e"}])");
}

TEST(Conversation, what_is_none_is_said) {
  for (const char* text :
       {"{}", "3", R"([{"role":"user","content":"x"}])", R"([{"role":"assistant","content":"x"}])", R"([{"role":"user"}])",
        R"([{"role":"user","content":"x"},{"role":"user","content":"y"}])", R"([{"role":"user","content":[1]}])"})
    EXPECT_THROW(from(text), Error) << text;
  EXPECT_EQ(from(R"([{"role":"user","content":"x"},{"role":"assistant","content":"y"}])").turns.size(), 1u);
}

TEST(Conversation, is_not_read_from_where_one_types) { EXPECT_THROW(load_conversation("-"), Error); }

TEST(Settings, change_whole_or_not_at_all) {
  ChatSettings s;
  change_setting(s, "temp", "0.25", 100);
  EXPECT_EQ(s.sampling.temperature, 0.25f);
  change_setting(s, "top-k", "5", 100);
  EXPECT_EQ(s.sampling.top_k, 5);
  change_setting(s, "max_tokens", "7", 100);
  EXPECT_EQ(s.sampling.max_tokens, 7);
  change_setting(s, "think", "off", 100);
  EXPECT_EQ(s.think, false);
  for (auto [name, value] : {std::pair{"temperature", "hot"},
                             {"temperature", "-1"},
                             {"top_p", "2"},
                             {"temperature", "0.5x"},
                             {"verbose", "maybe"},
                             {"nothing", "1"}})
    EXPECT_THROW(change_setting(s, name, value, 100), Error) << name;
  EXPECT_EQ(s.sampling.temperature, 0.25f);
}

std::vector<std::string> own(std::vector<std::string> words) {
  CLI::App program;
  for (const char* name : {"generate", "chat"}) {
    CLI::App* command = program.add_subcommand(name);
    for (const char* flag : {"-m,--model", "--temperature", "--max-context", "--max-tokens", "--top-k", "-n"}) command->add_option(flag);
  }
  for (const char* flag : {"-p,--prompt", "--system"}) program.get_subcommand("generate")->add_option(flag);
  program.add_subcommand("list")->add_option("-c");
  return with_own_flags(std::move(words), program);
}

TEST(FamiliarFlags, are_taken_for_ours) {
  const std::vector<std::string> words = {"generate", "--temp", "0.5", "-c", "100", "--n-predict=9", "--top_k", "3", "-p", "--temp"};
  const std::vector<std::string> ours = {"generate", "--temperature", "0.5", "--max-context", "100", "--max-tokens=9", "--top-k", "3",
                                         "-p",       "--temp"};
  EXPECT_EQ(own(words), ours);
}

TEST(FamiliarFlags, without_a_meaning_here_are_refused_with_the_right_word) {
  auto why = [](std::vector<std::string> words) -> std::string {
    try {
      own(std::move(words));
    } catch (const CLI::ParseError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(why({"chat", "-ngl", "99"}).find("--device cuda"), std::string::npos);
  EXPECT_NE(why({"chat", "-n", "99"}).find("--max-tokens"), std::string::npos);
  EXPECT_EQ(why({"generate", "-n", "2"}), "");
  EXPECT_NE(why({"chat", "-p", "Hi"}).find("millrace run"), std::string::npos);
  EXPECT_EQ(own({"list", "-c", "2"}), (std::vector<std::string>{"list", "-c", "2"}));  // its own
  EXPECT_EQ(own({"chat", "-hf", "owner/name"}), (std::vector<std::string>{"chat", "--model", "owner/name"}));
  EXPECT_EQ(own({"generate", "-sys", "--top_k"}), (std::vector<std::string>{"generate", "--system", "--top_k"}));  // a text as it is
}

}  // namespace
}  // namespace mr
