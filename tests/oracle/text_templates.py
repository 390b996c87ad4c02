"""Renders chat templates and snippets with jinja2, set up as transformers sets it up.

Writes tests/fixtures/text/templates.jsonl, one line a rendering: template, context, and either output or error (true).
Needs: pip install jinja2==3.1.6
"""

import json
import pathlib

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

OUT = pathlib.Path(__file__).parent.parent / "fixtures" / "text" / "templates.jsonl"


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


CHATML = """\
{% for message in messages %}
    {%- if loop.first and messages[0]['role'] != 'system' -%}
        {{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{%- endif %}
"""

LLAMA3 = """\
{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{#- The system message is taken out of the list. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

QWEN = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning_content)) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\\n{"name": "' }}{{ tool_call.name }}{{ '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

MISTRAL = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
        {%- if message == user_messages[-1] %}(last){% endif %}
    {%- else %}
        {% generation %}{{- " " + message["content"]|trim + eos_token}}{% endgeneration %}
    {%- endif %}
{%- endfor %}
"""

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Says \"how\" it is <now> & später", "parameters": {
        "type": "object", "properties": {"place": {"type": "string"}, "days": {"type": ["integer", "null"], "default": 3},
                                         "flags": {"type": "array", "items": {"enum": [1.5, True, None, "é\n"]}}}, "required": ["place"]}}},
    {"type": "function", "function": {"name": "a_tool", "parameters": {}}},
]
CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "get_weather", "arguments": {"place": "Paris", "days": 2}}}]}
ANSWER = {"role": "tool", "content": "21 degrees"}
CONVERSATIONS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": " Be brief.\n"}, {"role": "user", "content": " Hi\nthere "}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"}, {"role": "user", "content": "c"}],
    [{"role": "user", "content": "weather?"}, CALL, ANSWER],
    [{"role": "system", "content": "S"}, {"role": "user", "content": "weather?"}, CALL, ANSWER, ANSWER, {"role": "assistant", "content": "21", "reasoning_content": "easy"}],
    [{"role": "assistant", "content": "first"}],
]
EXTRAS = [{"add_generation_prompt": True}, {"add_generation_prompt": False, "tools": TOOLS}, {"add_generation_prompt": True, "enable_thinking": False}]

DATA = {
    "n": 7, "f": 2.5, "t": True, "z": None, "s": "Hello, wörld", "e": "", "l": [3, 1, 2], "w": ["b", "A", "c", "a"],
    "d": {"b": 1, "a": {"x": [1, "two", None]}, "items": "shadow"},
    "p": [{"name": "Ann", "age": 30, "tags": ["x"]}, {"name": "bob", "age": 25, "tags": []}, {"name": "Cid", "age": 30}],
}

SNIPPETS = """
{{ 1 + 2 * 3 }} {{ (1 + 2) * 3 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 1e3 }} {{ 4 / 2 }}
{{ -n }} {{ +n }} {{ -f }} {{ - 3 | abs }} {{ -2 ** 2 }} {{ 1 - -1 }} {{ 10 - 2 - 3 }}
{{ 1.0 }} {{ 0.1 + 0.2 }} {{ 1e20 }} {{ 1.5e-7 }} {{ 123456789.125 }} {{ f * 2 }} {{ 1_000 }}
{{ n ~ s ~ z ~ t }} {{ 'a' ~ 1 * 2 + 'b' }} {{ 'ab' * 3 }} {{ [1] * 2 + [3] }} {{ 'a' 'b' }}
{{ n > 3 and n < 10 }} {{ 1 < n < 10 }} {{ 1 < n > 10 }} {{ not t or z }} {{ z or 'x' }} {{ e and 1 }} {{ not n == 7 }} {{ n == 7.0 }} {{ t == 1 }}
{{ 'ell' in s }} {{ 3 in l }} {{ 'b' in d }} {{ 4 not in l }} {{ not 3 in l }} {{ 'x' in missing }}
{{ l[0] }} {{ l[-1] }} {{ l[9] }} {{ l[9] is defined }} {{ l[1:] }} {{ l[::-1] }} {{ l[-2:] }} {{ s[0] }} {{ s[-5:] }} {{ s[::2] }} {{ s[7:9] }} {{ s[100:] }} {{ l[5:1] }}
{{ d.b }} {{ d['a'].x[1] }} {{ d.a['x'] }} {{ d.nope }} {{ d['items'] }} {{ d.items() | list }} {{ d.get('q') }} {{ d.get('q', 5) }} {{ d.keys() | list }} {{ d }}
{{ p[0].name }} {{ p.0.name }} {{ p[0]['tags'][0] }} {{ p[-1].tags }}
{{ 'yes' if n > 3 else 'no' }} {{ 'yes' if n > 30 }}| {{ 1 if e else 2 if z else 3 }}
{{ s | upper }} {{ s | lower }} {{ s | title }} {{ s | capitalize }} {{ s | length }} {{ s | reverse }} {{ s | first }} {{ s | last }} {{ s | list }}
{{ '  x ' | trim }}| {{ 'xxaxx' | trim('x') }} {{ s | replace('l', 'L') }} {{ s | replace('l', 'L', 1) }} {{ 'abc' | replace('', '-') }}
{{ l | sort }} {{ l | sort(reverse=true) }} {{ w | sort }} {{ w | sort(case_sensitive=true) }} {{ p | sort(attribute='age') | map(attribute='name') | list }} {{ l | sum }} {{ l | min }} {{ l | max }} {{ w | max }}
{{ w | join(', ') }} {{ l | join }} {{ p | join('|', attribute='name') }} {{ w | unique | list }} {{ [1, 1, 2] | unique | list }}
{{ l | map('string') | join('-') }} {{ w | map('upper') | list }} {{ p | map(attribute='tags', default='none') | list }} {{ p[:1] | map(attribute='tags.0') | list }}
{{ p | selectattr('age', 'equalto', 30) | map(attribute='name') | list }} {{ p | rejectattr('tags') | list }} {{ l | select('odd') | list }} {{ l | reject('gt', 1) | list }} {{ [0, 1, '', 'a'] | select | list }}
{{ p | groupby('age') | list | length }} {% for age, people in p | groupby('age') %}{{ age }}:{{ people | length }} {% endfor %}
{{ missing | default('d') }} {{ e | default('d') }} {{ e | default('d', true) }} {{ z | default('d') }} {{ missing | d }}|{{ n | default(1) }}
{{ '12' | int }} {{ 'x' | int }} {{ 'x' | int(5) }} {{ '3.7' | int }} {{ 3.7 | int }} {{ '2.5' | float }} {{ n | float }} {{ 2.567 | round(1) }} {{ 2.5 | round }} {{ 3.2 | round(method='ceil') }} {{ -3 | abs }}
{{ d | tojson }} {{ p | tojson }} {{ 'é\\n"q"\\\\/<>&' | tojson }} {{ f | tojson }} {{ z | tojson }} {{ t | tojson }} {{ [] | tojson }} {{ {} | tojson }} {{ 1e20 | tojson }}
{{ d | tojson(indent=2) }} {{ [] | tojson(indent=2) }} {{ [[]] | tojson(indent=1) }}
{{ d | tojson(sort_keys=true) }} {{ d | tojson(separators=(',', ':')) }} {{ 'é😀' | tojson(ensure_ascii=true) }}
{{ d | dictsort }} {{ {'b': 1, 'A': 2} | dictsort }} {{ {'b': 1, 'A': 2} | dictsort(by='value') }} {{ d | items | list | length }} {{ {'x': 1} | items | list }}
{{ 'a\\nb\\n\\nc' | indent }}| {{ 'a\\nb' | indent(2, true) }} {{ 'a\\n\\nb' | indent(2, false, true) }} {{ 'a\\nb' | indent('> ') }}
{{ 'a b  c' | wordcount }} {{ 'x' | safe }} {{ '<a & "b">' | e }} {{ [1, 2, 3, 4, 5] | batch(2) | list }} {{ 'hello world foo' | truncate(9) }}
{{ s.upper() }} {{ s.lower().title() }} {{ s.strip('Hd') }} {{ s.split(', ') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ s.startswith('He') }} {{ s.endswith(('x', 'ld')) }}
{{ s.find('w') }} {{ s.find('q') }} {{ s.rfind('l') }} {{ s.count('l') }} {{ 'a-b'.replace('-', '+') }} {{ 'aaa'.replace('a', 'b', 2) }} {{ "they're bill's".title() }} {{ 'a\\nb\\r\\nc'.splitlines() }} {{ '-'.join(w) }}
{{ 'xay'.lstrip('x') }} {{ 'xay'.rstrip('y') }} {{ ' x '.strip() }}| {{ '{} and {0}'.format(1) if false else '{0}-{1}-{k}'.format(1, 'b', k=z) }} {{ 'abc'.removeprefix('a').removesuffix('c') }} {{ '12'.isdigit() }} {{ 'ab1'.isalpha() }}
{{ '%s is %d and %.2f%%' % ('a', 3, 1.5) }} {{ '%05d|%r' % (42, 'q') }} {{ '%s' % n }}
{{ s is string }} {{ n is number }} {{ n is integer }} {{ f is float }} {{ t is boolean }} {{ t is true }} {{ t is false }} {{ z is none }} {{ l is iterable }} {{ d is mapping }} {{ l is sequence }} {{ s is sequence }} {{ n is iterable }} {{ t is number }} {{ t is integer }}
{{ missing is defined }} {{ missing is undefined }} {{ n is not none }} {{ n is odd }} {{ n is even }} {{ n is divisibleby 7 }} {{ n is eq 7 }} {{ n is equalto(8) }} {{ 3 is in l }} {{ 'a' is lower }} {{ 'A' is upper }} {{ n is gt 3 and n is lt 8 }} {{ range is callable }}
{{ range(5) | list }} {{ range(1, 10, 3) | list }} {{ range(3, 0, -1) | list }} {{ dict(a=1, b='x') }} {{ [1, 'a', none, true, 2.0] }} {{ (1, 2) }} {{ (1,) }} {{ {'a': [1, {'b': none}]} }} {{ "it's" }} {{ ["it's", 'a"b', "b'\\"c", 'new\\nline'] }}
{% for x in l %}{{ loop.index }}/{{ loop.length }} {{ loop.index0 }} {{ loop.revindex }} {{ loop.first }} {{ loop.last }} {{ loop.previtem }} {{ loop.nextitem }}; {% endfor %}
{% for x in [] %}x{% else %}none{% endfor %} {% for x in l if x > 1 %}{{ loop.index }}:{{ x }} {% endfor %} {% for k, v in d.items() %}{{ k }}={{ v }} {% endfor %} {% for k in d %}{{ k }} {% endfor %} {% for c in 'héy' %}[{{ c }}]{% endfor %}
{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% if x == 2 %}{% break %}{% endif %}{% endfor %} {% for a in l %}{% for b in l %}{{ loop.index }}{{ loop.depth }}{% if b == 1 %}{% break %}{% endif %}{% endfor %};{% endfor %}
{% for x in l %}{{ loop.cycle('odd', 'even') }} {{ loop.changed(x > 2) }} {% endfor %}
{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }} {% set ns = namespace(c=0, q='a') %}{% for i in l %}{% set ns.c = ns.c + i %}{% endfor %}{{ ns.c }} {{ ns.q }} {{ ns.nope }}|
{% set a, b = 1, 'two' %}{{ a }}{{ b }} {% set block %}in {{ n }}{% endset %}[{{ block }}] {% set up | upper %}abc{% endset %}{{ up }} {% with q = 3, r = 4 %}{{ q * r }}{% endwith %}{{ q }}
{% macro m(a, b=2, c='x') %}({{ a }},{{ b }},{{ c }}){% endmacro %}{{ m(1) }} {{ m(1, c=3) }} {{ m(1, 2, 3) }} {{ m() }} {% macro fact(k) %}{{ 1 if k < 2 else k * fact(k - 1) | int }}{% endmacro %}{{ fact(6) }} {% set glob = 5 %}{% macro g() %}{{ glob }}{{ n }}{% endmacro %}{{ g() }}
{% macro box() %}[{{ caller() }}]{% endmacro %}{% call box() %}in{{ n }}{% endcall %} {% macro each(l) %}{% for x in l %}{{ caller(x) }}{% endfor %}{% endmacro %}{% call(v) each(l) %}<{{ v }}>{% endcall %} {% filter upper %}shout {{ s }}{% endfilter %}
{% if e %}a{% elif z %}b{% elif n == 7 %}c{% else %}d{% endif %} {% if missing %}x{% endif %} {% if not missing %}y{% endif %} {% if d and l and s %}z{% endif %}
{% raw %}{{ not }} {% this %}{% endraw %} {# comment {{ x }} #}after {{ '{{ }}' }} {{ '%}' }} {{ "{% if %}" }} {{ {'a': {'b': 1}} }} {{ {'a': {'b': {}}}['a'] }}
{{ none }} {{ None }} {{ True }} {{ false }} {{ 'tab\\there' }} {{ '\\u00e9\\x41' }} {{ "a\\\\b" }} {{ missing }}|{{ [missing] | length }}
{{ l | first }} {{ [] | first }}|{{ l | last }} {{ l | length }} {{ d | length }} {{ d | list }} {{ w | reverse | list }} {{ l | count }} {{ 'a' | string }} {{ 5 | string | length }}
{{ missing | list }} {{ missing | length }} {{ missing | join(',') }}|{% for x in missing %}x{% endfor %} {{ z | selectattr('a') | list }}
{{ 'xäöäx'.strip('äx') }} {{ 'abcab'.strip('ba') }} {{ 'aaa'.strip('a') }}| {{ 'ab'.strip('') }} {{ '\u3000x\u2003'.strip() }}| {{ ' é '|trim }}|
{{ 'aXbXc'.rsplit('X', 1) }} {{ 'aXbXc'.rsplit('X', 0) }} {{ 'aXbXc'.rsplit('X', 5) }} {{ 'aXXbX'.split('XX', 9) }} {{ 'aXb'.split('X', 0) }} {{ ''.split(',') }} {{ ''.split() }} {{ ' a b c '.split(none, 1) }}
{{ 'abcabc'.find('c', 3) }} {{ 'aaaa'.count('aa') }} {{ 'abababa'.rfind('aba') }} {{ 'héllo'.find('l') }} {{ 'aabaaab'.find('aaab') }} {{ ''.find('') }} {{ 'ab'.count('') }} {{ 'aabaabaaab'.replace('aab', 'é') }}
{{ [1, 1.0, true, 'a', 'A', none, none] | unique | list }} {{ [(1, 2), (1, 2), (2, 1)] | unique | list }} {{ p | min(attribute='age') | tojson }} {{ p | max(attribute='age') | tojson }} {{ p | unique(attribute='age') | map(attribute='name') | list }}
{{ 1e400 }} {{ -1e400 }} {{ 1e-400 }} {{ 'héy' | reverse }} {{ 'héllö'[::-2] }} {{ 'héllö'[3:0:-1] }} {{ 'héllö'[-1] }} {{ [1, 2, 3][9223372036854775807:] }} {{ [1, 2, 3][::-9223372036854775807] }} {{ 'ab'[-9223372036854775807:9223372036854775807] }}
{{ {1: 'a', 1.0: 'b', true: 'c'} }} {{ {(1, 2): 3}[(1, 2)] }} {{ {none: 1}[none] }} {{ {'a': 1} == {'a': 1.0} }} {{ [1, [2]] == [1, [2]] }} {{ (1, 2) == [1, 2] }} {{ [1, 2] < [1, 3] }} {{ ['b', 1] > ['a', 2] }}
{{ '%d' % 3.7 }} {{ '%x' % 255 }} {{ 'a' % [1] }} {{ 'a' % {'b': 1} }} {{ '%s %s' % ([1], {'a': 1}) }} {{ 'ÀÉß' | lower }} {{ 'straße' | upper }} {{ 'ÄB' is upper }} {{ 'a1' is lower }} {{ '1' is lower }} {{ 'x' * 0 }}| {{ [1] * -1 }}
{% for x in [1, 2] %}{% for y in [loop] %}{{ y.index }}{{ loop.index }} {% endfor %}{% endfor %}{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }} {% set q = namespace() %}{% for x in l %}{% set q.l = loop %}{% endfor %}{{ q.l.index }} {{ q.l.length }}
""".strip().split("\n")

WHITESPACE = [
    "a\n{% if true %}\nb\n{% endif %}\nc\n", "a\n  {% if true %}  \n  b\n  {% endif %}\nc\n\n", "a {%- if true -%}  b  {%- endif -%} c", "  {%+ if true %}x{% endif +%}\ny",
    "{{ 1 }}\n{{ 2 }}\n", "  {{- 1 -}}  \n 2", "x{# c #}\ny\n  {# d #}\nz{#- e -#}  w", "\n\n{% set a = 1 %}\n\n{{ a }}\n\n\n", "\t {% for i in [1,2] %}\n\t{{ i }}\n\t{% endfor %}\nend",
    "a\r\n{% if true %}\r\nb\r\n{% endif %}\r\nc\r\n", "line {% if true %}\n  x{% endif %}\n y", "{% raw -%}  a {%- endraw %}\nb", "{%- for i in range(3) %}{{ i }}{%- if not loop.last %}, {% endif %}{%- endfor %}", "", "\n", "plain { text } %} }} #}",
]

ERRORS = [
    "{{ missing.x }}", "{{ 'a' + 1 }}", "{{ missing() }}", "{{ n() }}", "{{ 1 / 0 }}", "{{ l < 1 }}", "{% for x in n %}{% endfor %}", "{% if %}{% endif %}", "{% for x in l %}", "{{ 'open }}", "{{ 1 +", "{% endif %}",
    "{{ s | nofilter }}", "{{ s is notest }}", "{% nostatement %}", "{{ raise_exception('no') }}", "{% set l.x = 1 %}", "{{ (1 }}", "{{ {'a' 1} }}", "{{ l.append(4) }}", "{{ range(1000000000) }}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
    "{% macro r() %}{{ r() }}{% endmacro %}{{ r() }}", "{{ 1 2 }}", "{{ a b }}", "{% set %}", "{{ }}", "{# open", "{{ missing + 'a' }}", "{{ s.nomethod() }}", "{{ 'x' in n }}", "{{ missing[0] }}", "{% break %}",
    "{{ [[1], [1]] | unique | list }}", "{{ {(1, 2): 3} | tojson }}", "{{ '%d' % 'x' }}", "{{ 'a'.split('') }}", "{{ '%d' % 1e400 }}", "{{ [1, 'a'] | sort }}", "{{ [1][::0] }}", "{{ 'a' % 2 }}", "{{ ['a'] | select('odd') | list }}", "{{ 'a' is divisibleby 2 }}", "{{ 2 is divisibleby 'a' }}", "{{ z is even }}", "{{ {[]: 1} }}",
]


def main():
    env = environment()
    cases = [(template, {"messages": c, "bos_token": "<s>", "eos_token": "</s>", **x})
             for template in (CHATML, LLAMA3, QWEN, MISTRAL) for c in CONVERSATIONS for x in EXTRAS]
    cases += [(template, DATA) for template in SNIPPETS + WHITESPACE + ERRORS]
    lines = []
    for template, context in cases:
        try:
            result = {"output": env.from_string(template).render(**context)}
        except Exception as error:  # the kind of error is the library's own; that there is one is what counts
            assert template not in SNIPPETS + WHITESPACE, (template, error)
            result = {"error": True}
        assert template not in ERRORS or "error" in result, template
        lines.append(json.dumps({"template": template, "context": context, **result}, ensure_ascii=False, separators=(",", ":")))
    OUT.write_text("\n".join(lines) + "\n")
    print(len(lines), "cases,", OUT.stat().st_size, "bytes")


main()
