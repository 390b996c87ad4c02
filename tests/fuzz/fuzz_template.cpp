// Chat templates: the text up to the first zero byte is the template, what follows is the JSON of its variables. Whatever
// it is, it renders or ends with an Error, and what it took is given back.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "fuzz/mutate.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/parser.h"

namespace {

constexpr const char* conversation =
    R"({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße, 世界 <b>"},
  {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1.5, "y": [1, "a", false]}}}]},
  {"role": "tool", "content": "</think> 12 "}], "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
  "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>"})";

mr::OrderedJson variables(const std::string& text) {
  auto given = mr::OrderedJson::parse(text, nullptr, false);
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

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  static const std::vector<std::string_view> all = mr::fuzz::words(vocabulary, "@");
  mr::fuzz::Random random(seed);
  return mr::fuzz::insert_word(data, size, max_size, all, random);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string input(reinterpret_cast<const char*>(data), size);
  size_t end = input.find('\0');
  static const mr::OrderedJson usual = variables(conversation);
  const mr::OrderedJson given = end == std::string::npos ? mr::OrderedJson() : variables(input.substr(end + 1));
  const mr::OrderedJson& json = end == std::string::npos ? usual : given;
  mr::jinja::Meter meter({.work = 200'000, .bytes = size_t{1} << 20});
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
