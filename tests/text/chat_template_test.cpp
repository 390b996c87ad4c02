// The template interpreter against jinja2 with transformers' settings, and its bounds against hostile templates.
#include "text/chat_template.h"

#include <fstream>
#include <random>

#include "core/error.h"
#include "fixtures.h"

namespace mr {
namespace {

std::vector<OrderedJson> cases() {
  std::ifstream file(MR_FIXTURES "/text/templates.jsonl");
  std::vector<OrderedJson> out;
  for (std::string line; std::getline(file, line);) out.push_back(OrderedJson::parse(line));
  return out;
}

TEST(ChatTemplate, agrees_with_jinja2) {
  auto all = cases();
  ASSERT_GT(all.size(), 100u);
  for (const OrderedJson& c : all) {
    std::string source = c["template"];
    try {
      std::string output = ChatTemplate(source).render(c["context"]);
      if (c.contains("error")) {
        ADD_FAILURE() << "accepted: " << source << "\ngiving: " << output;
      } else {
        EXPECT_EQ(output, c["output"].get<std::string>()) << source;
      }
    } catch (const Error& error) {
      EXPECT_TRUE(c.contains("error")) << source << "\n" << error.what();
      EXPECT_NE(std::string(error.what()).find("line 1"), std::string::npos) << error.what();
    }
  }
}

TEST(ChatTemplate, errors_name_their_line) {
  for (auto [source, line] :
       {std::pair{"a\nb\n{{ 1 + }}", "line 3"}, {"\n\n{{ x.y }}", "line 3"}, {"{% if 1 %}\n{{ 'a\nb' }}\n{% oops %}", "line 4"}}) {
    try {
      ChatTemplate(source).render(OrderedJson::object());
      ADD_FAILURE() << source;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(line), std::string::npos) << error.what();
    }
  }
}

TEST(ChatTemplate, render_chat_adds_the_messages) {
  Json messages = {{{"role", "user"}, {"content", "hi"}}};
  EXPECT_EQ(render_chat("{{ bos_token }}{{ messages[0].content }}", messages, Json{{"bos_token", "<s>"}}), "<s>hi");
  EXPECT_EQ(render_chat("{{ messages[0].content }}", messages, Json()), "hi");
}

TEST(ChatTemplate, dates_follow_strftime) {
  std::string year = ChatTemplate("{{ strftime_now('%Y') }}").render(OrderedJson::object());
  EXPECT_EQ(year.size(), 4u);
  EXPECT_GE(std::stoi(year), 2024);
}

// Hostile templates are jinja_meter_test.cpp's.
TEST(ChatTemplate, hostile_variables_end_with_an_error) {
  auto parsed = [](const std::string& value) { return OrderedJson::parse("{\"d\": " + value + "}"); };
  OrderedJson deep = parsed(std::string(10000, '[') + std::string(10000, ']'));
  EXPECT_THROW(ChatTemplate("{{ d }}").render(deep), Error);
  EXPECT_THROW(render_chat("{{ d }}", deep, deep), Error);
  std::string many = "[";
  for (int i = 0; i < 2'000'000; ++i) many += "[],";
  EXPECT_THROW(ChatTemplate("{{ d }}").render(parsed(many + "0]")), Error);
}

TEST(ChatTemplate, what_is_no_number_is_not_divided) {
  for (const char* source : {"{{ 'a' is odd }}", "{{ '%s' is divisibleby 3 }}", "{{ [1] is even }}", "{{ 3 is divisibleby 'a' }}",
                             "{{ {'a': 1} | select('odd') | list }}", "{{ 3 is divisibleby 0 }}"})
    EXPECT_THROW(ChatTemplate(source).render(OrderedJson::object()), Error) << source;
}

TEST(ChatTemplate, output_is_bounded) {
  ChatTemplate wide("{{ 'x' * 20000000 }}");
  EXPECT_THROW(wide.render(OrderedJson::object()), Error);
  EXPECT_EQ(wide.render(OrderedJson::object(), {.output = 20'000'000}).size(), 20'000'000u);
}

// Circles through namespaces and long chains of them must neither leak nor overflow the stack when they go.
TEST(ChatTemplate, namespaces_may_form_circles_and_chains) {
  ChatTemplate circle("{% set a = namespace() %}{% set a.me = a %}{{ a.me.me.me is defined }}");
  EXPECT_EQ(circle.render(OrderedJson::object()), "True");
  ChatTemplate chain(
      "{% set top = namespace() %}{% set ns = namespace(cur=top) %}{% for i in range(40000) %}{% set x = ns.cur %}"
      "{% set x.next = namespace() %}{% set ns.cur = x.next %}{% endfor %}done");
  EXPECT_EQ(chain.render(OrderedJson::object()), "done");
}

TEST(ChatTemplate, mutated_templates_never_crash) {
  auto all = cases();
  std::mt19937 random(3);
  const std::string alphabet = "{}%#-+|.,:()[]'\"\n xij019=~*/\\";
  int rendered = 0;
  for (int round = 0; round < 4000; ++round) {
    const OrderedJson& c = all[random() % all.size()];
    std::string source = c["template"];
    for (int n = 1 + static_cast<int>(random() % 4); n > 0; --n) {
      size_t at = source.empty() ? 0 : random() % source.size();
      switch (random() % 4) {
        case 0:
          source.insert(at, 1, alphabet[random() % alphabet.size()]);
          break;
        case 1:
          source.erase(at, random() % 5);
          break;
        case 2:
          source.insert(at, source.substr(random() % (source.size() + 1), random() % 20));
          break;
        default:
          if (!source.empty()) source[at] = static_cast<char>(random() % 256);
      }
    }
    try {
      ChatTemplate(source).render(all[random() % all.size()]["context"]);
      ++rendered;
    } catch (const Error&) {
    }
  }
  EXPECT_GT(rendered, 100);
}

}  // namespace
}  // namespace mr
