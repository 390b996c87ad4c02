// Chat templates: the text up to the first zero byte is the template, what follows is the JSON of its variables. Whatever
// it is, it renders or ends with an Error, and what it took is given back.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/parser.h"

namespace {

constexpr const char* conversation =
    R"({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße, 世界 <b>"},
  {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1.5, "y": [1, "a", false]}}}]},
  {"role": "tool", "content": "</think> 12 "}], "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
  "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>"})";

mr::OrderedJson variables(const std::string& input, size_t end) {
  if (end == std::string::npos) return mr::OrderedJson::parse(conversation);
  auto given = mr::OrderedJson::parse(input.substr(end + 1), nullptr, false);
  return given.is_object() ? given : mr::OrderedJson::object();
}

// What templates are made of, between @: bytes alone rarely make a filter's name.
constexpr std::string_view vocabulary =
    R"({{ @ }}@{{- @ -}}@{% if @ %}@{% elif @{% else %}@{% endif %}@{% for x in @{% for k, v in @{% endfor %}@{% set x = @{% set ns.v = @
{% set ns = namespace(v=@{% set t %}@{% endset %}@{% macro m(a, b=2) %}@{% endmacro %}@{{ m(@{% call m() %}@{% endcall %}@
{{ caller() }}@{% filter upper %}@{% endfilter %}@{% with a=1 %}@{% endwith %}@{% break %}@{% continue %}@{% raw %}@{% endraw %}@{# @
 #}@messages@messages[0].content@tools@loop@loop.index@loop.changed(@loop.cycle(@range(@dict(@namespace(@raise_exception(@
strftime_now('%Y')@|abs@|attr('@|batch(2, 'f')@|capitalize@|default('d', true)@|dictsort(by='value')@|escape@|first@|float@
|groupby('role')@|indent(2, true)@|int@|items@|join(',')@|last@|length@|list@|lower@|map('upper')@|map(attribute='content')@|max@|min@
|reject('none')@|rejectattr('role', 'eq', 'user')@|replace('a', 'b')@|reverse@|round(2)@|select('odd')@|selectattr('role')@
|sort(reverse=true)@|string@|sum@|title@|tojson(indent=2)@|trim('x')@|truncate(9)@|unique@|upper@|wordcount@.strip('a')@.split(@
.rsplit(' ', 1)@.splitlines()@.startswith('a')@.find('a', 1)@.rfind('a')@.count('a')@.title()@.format(@.join(@.replace('', '-')@
.items()@.get('role')@.keys()@[::-1]@[1:]@[-1]@9223372036854775807@(-9223372036854775807 - 1)@1e400@ is defined@ is divisibleby 3@
 is in @ in @ not in @ and @ or @ not @ if 1 else @ ~ @ + @ * @ ** @ // @ % @ == @ < @'%s %05d' % (@'é😀'@[1, [2]]@(1, 2)@
{'a': 1, 2: 3}@none@true)";

std::vector<std::string_view> words() {
  std::vector<std::string_view> out;
  for (size_t pos = 0; pos < vocabulary.size();) {
    size_t end = std::min(vocabulary.find('@', pos), vocabulary.size());
    std::string_view word = vocabulary.substr(pos, end - pos);
    out.push_back(word.starts_with('\n') ? word.substr(1) : word);
    pos = end + 1;
  }
  return out;
}

}  // namespace

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  std::minstd_rand random(seed);
  static const std::vector<std::string_view> all = words();
  std::string_view word = all[random() % all.size()];
  if (random() % 3 == 0 || size + word.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  size_t at = random() % (size + 1);
  std::memmove(data + at + word.size(), data + at, size - at);
  std::memcpy(data + at, word.data(), word.size());
  return size + word.size();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string input(reinterpret_cast<const char*>(data), size);
  size_t end = input.find('\0');
  const mr::OrderedJson json = variables(input, end);
  mr::jinja::Meter meter({.work = 2'000'000, .bytes = size_t{4} << 20});
  try {
    mr::jinja::Body body = mr::jinja::parse(input.substr(0, end));
    mr::jinja::Variables names;
    for (const auto& [name, value] : json.items()) names.emplace_back(name, mr::jinja::from_json(meter, value));
    mr::jinja::Evaluator(meter, std::move(names)).render(body);
  } catch (const mr::Error&) {
  }
  if (meter.held() != 0) std::abort();
  return 0;
}
