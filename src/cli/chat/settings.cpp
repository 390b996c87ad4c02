#include "cli/chat/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/error.h"
#include "core/words.h"

namespace mr {

namespace {

constexpr int kWholeContext = 1 << 30;

template <class Number>
Number number_of(const std::string& text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc() && end == text.data() + text.size(), "'{}' is not a number that fits here", text);
  return value;
}

bool truth_of(const std::string& text) {
  if (text == "on" || text == "true" || text == "1") return true;
  check(text == "off" || text == "false" || text == "0", "'{}' is neither on nor off", text);
  return false;
}

struct Setting {
  std::string_view name;
  void (*set)(ChatSettings&, const std::string&);
  std::string (*get)(const ChatSettings&);
};

template <auto Member>
constexpr Setting number_setting(std::string_view name) {
  using Number = std::remove_cvref_t<decltype(std::declval<SamplingParams>().*Member)>;
  return {name, [](ChatSettings& s, const std::string& text) { s.sampling.*Member = number_of<Number>(text); },
          [](const ChatSettings& s) { return fmt::format("{}", s.sampling.*Member); }};
}

constexpr Setting kSettings[] = {
    number_setting<&SamplingParams::temperature>("temperature"),
    number_setting<&SamplingParams::top_k>("top_k"),
    number_setting<&SamplingParams::top_p>("top_p"),
    number_setting<&SamplingParams::min_p>("min_p"),
    number_setting<&SamplingParams::repetition_penalty>("repetition_penalty"),
    number_setting<&SamplingParams::frequency_penalty>("frequency_penalty"),
    number_setting<&SamplingParams::presence_penalty>("presence_penalty"),
    {"max_tokens",
     [](ChatSettings& s, const std::string& text) {
       const int n = number_of<int>(text);
       s.sampling.max_tokens = n > 0 ? n : kWholeContext;
     },
     [](const ChatSettings& s) {
       return s.sampling.max_tokens >= kWholeContext ? "what the context holds" : std::to_string(s.sampling.max_tokens);
     }},
    {"seed",
     [](ChatSettings& s, const std::string& text) {
       if (text == "none")
         s.sampling.seed.reset();
       else
         s.sampling.seed = number_of<uint64_t>(text);
     },
     [](const ChatSettings& s) { return s.sampling.seed ? std::to_string(*s.sampling.seed) : "none"; }},
    {"stop",
     [](ChatSettings& s, const std::string& text) {
       if (text == "none")
         s.sampling.stop.clear();
       else
         s.sampling.stop.push_back(text);
     },
     [](const ChatSettings& s) {
       return s.sampling.stop.empty() ? "none" : printable(fmt::format("{}", fmt::join(s.sampling.stop, "  ")));
     }},
    {"think", [](ChatSettings& s, const std::string& text) { s.think = truth_of(text); },
     [](const ChatSettings& s) {
       return std::string(!s.think ? "the template's default" : *s.think ? "on" : "off");
     }},
    {"verbose", [](ChatSettings& s, const std::string& text) { s.verbose = truth_of(text); },
     [](const ChatSettings& s) { return std::string(s.verbose ? "on" : "off"); }},
};

}  // namespace

std::vector<std::string_view> setting_names() {
  std::vector<std::string_view> names;
  for (const Setting& s : kSettings) names.push_back(s.name);
  return names;
}

void change_setting(ChatSettings& settings, const std::string& name, const std::string& value, int vocab) {
  std::string known = name == "temp" ? "temperature" : name == "repeat_penalty" ? "repetition_penalty" : name;
  std::ranges::replace(known, '-', '_');
  auto found = std::ranges::find(kSettings, known, &Setting::name);
  if (found == std::end(kSettings)) {
    const auto names = setting_names();
    const std::string_view near = nearest_word(known, names);
    fail("there is nothing to set called '{}'{}", name,
         near.empty() ? "; /set lists what there is" : fmt::format(": did you mean '{}'?", near));
  }
  ChatSettings changed = settings;
  found->set(changed, value);
  changed.sampling.validate(vocab);
  settings = changed;
}

std::string settings_text(const ChatSettings& settings) {
  std::string out;
  for (const Setting& s : kSettings) out += fmt::format("  {:<20}{}\n", s.name, s.get(settings));
  return out;
}

}  // namespace mr
