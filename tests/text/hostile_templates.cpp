#include "hostile_templates.h"

#include <string_view>

namespace mr {
namespace {

std::string times(std::string_view part, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += part;
  return out;
}

// A template that sets `ns.v` to `first`, replaces it `n` times by `next`, and then runs `use`.
std::string grown(const std::string& first, const std::string& next, int n, const std::string& use = "") {
  return "{% set ns = namespace(v=" + first + ") %}{% for i in range(" + std::to_string(n) + ") %}{% set ns.v = " + next +
         " %}{% endfor %}" + use;
}

// Runs `body` 10^10 times, if it is let.
std::string for_ever(const std::string& body) {
  return "{% for i in range(100000) %}{% for j in range(100000) %}" + body + "{% endfor %}{% endfor %}";
}

// A string of about a million bytes in s, then `body` for ever.
std::string with_text(const std::string& body, const std::string& unit = "'a'") {
  return "{% set s = " + unit + " * 1000000 %}" + for_ever(body);
}

using List = std::vector<HostileTemplate>;

void add_deep(List& out) {
  out.push_back({"list in list", grown("[]", "[ns.v]", 100000)});
  out.push_back({"dict in dict", grown("{}", "{'a': ns.v}", 100000)});
  out.push_back({"tuple in tuple", grown("()", "(ns.v,)", 100000)});
  out.push_back({"tuple as a key", grown("()", "({(ns.v,): 1}|list)[0]", 100000)});
  out.push_back({"method of a list of a method", grown("[]", "[ns.v].index", 100000)});
  out.push_back({"method of a dict of a method", grown("{}", "{'m': ns.v}.get", 100000)});
  out.push_back({"methods and tuples", grown("[]", "([ns.v].copy, 1)", 100000)});
  out.push_back({"groups of groups", grown("[{'k': 1}]", "[{'k': 1, 'g': ns.v}]|groupby('k')|list", 100000)});
  out.push_back({"batches of batches", grown("[1]", "ns.v|batch(1)|list", 100000)});
  out.push_back({"items of items", grown("{'a': 1}", "{'a': ns.v}.items()", 100000)});
  out.push_back(
      {"loops in lists",
       "{% set ns = namespace(v=[1]) %}{% for i in range(100000) %}{% for x in ns.v %}{% set ns.v = [loop] %}{% endfor %}{% endfor %}"});
  out.push_back({"loop.changed of loops", for_ever("{{ loop.changed(loop, [loop.changed]) }}")});
  out.push_back({"namespaces in a ring", for_ever("{% set a = namespace() %}{% set a.a = [a, namespace(b=a)] %}")});
  out.push_back({"macros in namespaces", for_ever("{% macro m() %}{{ m }}{% endmacro %}{% set n = namespace(m=m) %}{{ m() }}")});
  out.push_back({"a macro that calls itself", "{% macro r(n) %}{{ r(n + 1) }}{% endmacro %}{{ r(0) }}"});
  out.push_back(
      {"a macro that calls itself twice", "{% macro r(n) %}{{ r(n + 1) if n < 40 }}{{ r(n + 1) if n < 40 }}{% endmacro %}{{ r(0) }}"});
  out.push_back({"callers of callers", "{% macro r() %}{% call r() %}{{ caller() }}{% endcall %}{% endmacro %}{{ r() }}"});
  out.push_back({"a default that calls its macro", "{% macro r(n=r()) %}{% endmacro %}{{ r() }}"});
  out.push_back({"map of map of map", "{% set f = 'map' %}{{ 'x'|map(" + times("f,", 250) + "'upper')|list }}{{ 'x' * 10000000000 }}"});
  out.push_back(
      {"maps over a list of a list", grown("['x']", "[ns.v, ns.v]", 30, "{{ ns.v|map(" + times("'map',", 30) + "'upper')|list }}")});
}

void add_parser(List& out) {
  constexpr int n = 15000;
  out.push_back({"open parentheses", "{{ " + times("(", n) + "1" + times(")", n) + " }}"});
  out.push_back({"open brackets", "{{ " + times("[", n)});
  out.push_back({"open braces", "{{ " + times("{1:", n)});
  out.push_back({"minus signs", "{{ " + times("-", n) + "1 }}"});
  out.push_back({"not not", "{{ " + times("not ", n) + "1 }}"});
  out.push_back({"a long sum", "{{ 1" + times("+1", n) + " }}"});
  out.push_back({"a long concatenation", "{{ 1" + times("~1", n) + " }}"});
  out.push_back({"a long power", "{{ 1" + times("**1", n) + " }}"});
  out.push_back({"a long comparison", "{{ 1" + times("<2", n) + " }}{{ x.y }}"});
  out.push_back({"a long or", "{{ 0" + times(" or 0", n) + " }}"});
  out.push_back({"attributes", "{{ a" + times(".a", n) + " }}"});
  out.push_back({"calls of calls", "{{ a" + times("()", n) + " }}"});
  out.push_back({"subscripts", "{{ a" + times("[0]", n) + " }}"});
  out.push_back({"subscripts in subscripts", "{{ a" + times("[a", n) + " }}"});
  out.push_back({"filters", "{{ a" + times("|string", n) + " }}"});
  out.push_back({"tests", "{{ a" + times(" is string", n) + " }}"});
  out.push_back({"conditions", "{{ 1" + times(" if 1 else 1", n) + " }}"});
  out.push_back({"conditions to the left", "{{ 1" + times(" if 1", n) + " }}"});
  out.push_back({"named arguments in chains", "{{ " + times("x(n=", 90) + "1" + times(")" + times(".a", 300), 90) + " }}"});
  out.push_back({"ifs in ifs", times("{% if 1 %}", n)});
  out.push_back({"loops in loops", times("{% for a in b %}", n)});
  out.push_back({"blocks of filters", times("{% filter upper %}", n)});
  out.push_back({"with in with", times("{% with a=1 %}", n)});
  out.push_back({"macros in macros", times("{% macro a() %}", n)});
  out.push_back({"elifs", "{% if 0 %}" + times("{% elif 0 %}", n) + "{% endif %}{{ x.y }}"});
  out.push_back({"many arguments", "{{ f(" + times("a=1,", n) + ") }}"});
  out.push_back({"many parameters", "{% macro f(" + times("a,", n) + ") %}{% endmacro %}"});
  out.push_back({"a long name", "{{ " + times("a", 1000000) + " }}"});
  out.push_back({"a long number", "{{ " + times("9", 1000000) + " }}"});
  out.push_back({"many strings", "{{ " + times("'a'", 300000) + " }}"});
  out.push_back({"many outputs", times("{{1}}", 200000)});
  out.push_back({"many comments", times("a{##}", 200000) + "{{"});
  out.push_back({"raw without end", times("{% raw %}{% endraw", 50000)});
  out.push_back({"a long template", std::string(size_t{2} << 20, 'x')});
  out.push_back({"carriage returns", times("\r\n", 500000) + "{{"});
  out.push_back({"blanks before tags", times(times(" ", 100) + "{% ", 9000)});
}

void add_growth(List& out) {
  out.push_back({"doubled string by +", grown("'x'", "ns.v + ns.v", 100)});
  out.push_back({"doubled string by ~", grown("'x'", "ns.v ~ ns.v", 100)});
  out.push_back({"doubled string by replace", grown("'xx'", "ns.v|replace('x', ns.v)", 100)});
  out.push_back({"doubled string by join", grown("'x'", "[ns.v, ns.v]|join(ns.v)", 100)});
  out.push_back({"doubled string by format", grown("'x'", "'%s%s' % (ns.v, ns.v)", 100)});
  out.push_back({"doubled string by format()", grown("'x'", "'{0}{0}'.format(ns.v)", 100)});
  out.push_back({"doubled string by indent", grown("'\\n'", "ns.v|indent(ns.v, true, true)", 100)});
  out.push_back({"doubled string by str.join", grown("'xy'", "ns.v.join(ns.v)", 100)});
  out.push_back({"doubled string by a block",
                 grown("'x'", "ns.v", 0) +
                     "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% else %}xxxxxxxx{% endif %}{% endmacro %}{{ m(30) }}"});
  out.push_back({"doubled string by set block",
                 "{% set ns = namespace(v='x') %}{% for i in range(100) %}{% set t %}{{ ns.v }}{{ ns.v }}{% endset %}{% set ns.v = t %}{% "
                 "endfor %}"});
  out.push_back({"quoted quotes", grown("'\\'\"'", "[ns.v]|string", 100)});
  out.push_back({"JSON in JSON", grown("'\"'", "ns.v|tojson", 100)});
  out.push_back({"escaped escapes", grown("'&'", "ns.v|escape|replace(';', '&&&')", 100)});
  out.push_back({"doubled list", grown("[1]", "ns.v + ns.v", 100)});
  out.push_back({"doubled list by *", grown("[1]", "ns.v * 2", 100)});
  out.push_back({"doubled tuple", grown("(1,)", "ns.v + ns.v", 100)});
  out.push_back({"sum of lists", "{{ ([[1] * 1000] * 100000)|sum(start=[])|length }}"});
  out.push_back({"characters of a string", "{{ ('x' * 30000000)|list|length }}"});
  out.push_back({"parts of a string", "{{ ('x,' * 10000000).split(',')|length }}"});
  out.push_back({"lines of a string", "{{ ('\\n' * 10000000).splitlines()|length }}"});
  out.push_back({"words of a string", "{{ ('a ' * 10000000).split()|length }}"});
  out.push_back({"batches of one", "{{ (range(100000)|list * 20)|batch(1)|list|length }}"});
  out.push_back({"a batch with a fill", "{{ [1]|batch(4000000000, 'x')|list|length }}"});
  out.push_back({"a growing dict", grown("{}", "dict(ns.v, a=ns.v|length)", 100000,
                                         "{% set d = namespace(v={}) %}" + for_ever("{% set d.v = {i: d.v.get(j), j: [i] * 1000} %}"))});
  out.push_back({"many namespaces", "{% set ns = namespace(v=[]) %}" + for_ever("{% set ns.v = namespace(a='x' * 1000) %}")});
  out.push_back({"many scopes", for_ever("{% macro m() %}{% endmacro %}{% set t = 'x' * 1000 %}")});
  out.push_back({"a huge product of strings", "{{ 'x' * 1000000000000 }}"});
  out.push_back({"a huge product of lists", "{{ [1, 2] * 9223372036854775807 }}"});
  out.push_back({"output without end", for_ever("xxxxxxxxxxxxxxxx")});
  out.push_back({"a wide format", "{{ '%999999999d' % 1 }}"});
  out.push_back({"many formats", for_ever("{{ '%999d%%%999d' % (i, j) }}")});
}

void add_shared(List& out) {
  const std::string list = "[1]", twice = "[ns.v, ns.v]", dicts = "{'a': ns.v, 'b': ns.v}";
  out.push_back({"a DAG printed", grown(list, twice, 60, "{{ ns.v }}")});
  out.push_back({"a DAG of dicts printed", grown("{}", dicts, 60, "{{ ns.v }}")});
  out.push_back({"a DAG as JSON", grown(list, twice, 60, "{{ ns.v|tojson }}")});
  out.push_back({"a DAG of dicts as JSON", grown("{}", dicts, 60, "{{ ns.v|tojson(sort_keys=true, indent=100) }}")});
  out.push_back({"a DAG compared", grown(list, twice, 60, "{% set a = ns.v %}") + grown(list, twice, 60, "{{ a == ns.v }}")});
  out.push_back(
      {"a DAG of empty lists compared", grown("[]", twice, 60, "{% set a = ns.v %}") + grown("[]", twice, 60, "{{ a != ns.v }}")});
  out.push_back({"a DAG of dicts compared", grown("{}", dicts, 60, "{% set a = ns.v %}") + grown("{}", dicts, 60, "{{ a == ns.v }}")});
  out.push_back({"a DAG ordered", grown(list, twice, 60, "{% set a = ns.v %}") + grown(list, twice, 60, "{{ a < ns.v }}")});
  out.push_back({"a DAG in a list", grown(list, twice, 60, "{% set a = ns.v %}") + grown(list, twice, 60, "{{ a in [0, 1, ns.v] }}")});
  out.push_back({"a DAG sorted", grown(list, twice, 60, "{% set a = ns.v %}") + grown(list, twice, 60, "{{ [a, ns.v, a]|sort }}")});
  out.push_back({"a DAG as a key", grown("(1,)", "(ns.v, ns.v)", 60, "{{ {ns.v: 1} }}")});
  out.push_back({"a DAG as a string", grown(list, twice, 60, "{{ ns.v|string|length }}")});
  out.push_back({"a DAG joined", grown(list, twice, 60, "{{ ns.v|join }}")});
  out.push_back({"a DAG concatenated", grown(list, twice, 60, "{{ 'a' ~ ns.v }}")});
  out.push_back({"a DAG formatted", grown(list, twice, 60, "{{ '%s' % (ns.v,) }}")});
  out.push_back({"a DAG by format()", grown(list, twice, 60, "{{ '{}'.format(ns.v) }}")});
  out.push_back({"a DAG raised", grown(list, twice, 60, "{{ raise_exception(ns.v) }}")});
  out.push_back({"a DAG upper", grown(list, twice, 60, "{{ ns.v|upper }}")});
  out.push_back({"a DAG as a subscript", grown(list, twice, 60, "{{ [1][ns.v] }}")});
  out.push_back({"a DAG unique", grown("(1,)", "(ns.v, ns.v)", 60, "{{ [ns.v, 1]|unique|list }}")});
  out.push_back({"a DAG in loop.changed", grown(list, twice, 60, "{% set a = ns.v %}") +
                                              grown(list, twice, 60, "{% for x in [a, ns.v] %}{{ loop.changed(x) }}{% endfor %}")});
  out.push_back({"a DAG counted", grown(list, twice, 60, "{% set a = ns.v %}") + grown(list, twice, 60, "{{ [a].count(ns.v) }}")});
  out.push_back(
      {"a DAG by test", grown(list, twice, 60, "{% set a = ns.v %}") + grown(list, twice, 60, "{{ [a]|select('eq', ns.v)|list }}")});
}

void add_quadratic(List& out) {
  const std::string long_text = "{% set s = 'a' * 4000000 %}";
  out.push_back({"substring", long_text + for_ever("{{ ('a' * 2000000 + 'b') in s }}")});
  out.push_back({"substring of 100 bytes", with_text("{{ ('a' * 99 + 'b') in s }}")});
  out.push_back({"substring that begins otherwise", with_text("{{ ('b' + 'a' * 999) in s }}")});
  out.push_back({"substring that differs in the middle", with_text("{{ ('a' * 500 + 'b' + 'a' * 500) in s }}")});
  out.push_back({"periodic substring", with_text("{{ ('ab' * 500 + 'b') in s }}", "'ab'")});
  out.push_back({"find", with_text("{{ s.find('a' * 300 + 'b') }}")});
  out.push_back({"rfind", with_text("{{ s.rfind('b' + 'a' * 300) }}")});
  out.push_back({"find from the end", with_text("{{ s.find('b', 999999) }}")});
  out.push_back({"count", with_text("{{ s.count('a' * 300 + 'b') }}")});
  out.push_back({"count of letters", with_text("{{ s.count('a') }}")});
  out.push_back({"replace", with_text("{{ s.replace('a' * 300 + 'b', 'x')|length }}")});
  out.push_back({"replace of nothing", with_text("{{ s.replace('', 'x')|length }}")});
  out.push_back({"split", with_text("{{ s.split('a' * 300 + 'b')|length }}")});
  out.push_back({"rsplit", with_text("{{ s.rsplit('a' * 300 + 'b', 2)|length }}")});
  out.push_back({"strip of a set", "{% set c = 'bcdefghijklmnop' * 20000 ~ 'a' %}" + with_text("{{ s.strip(c) }}")});
  out.push_back({"strip of everything", with_text("{{ s.strip('a') }}")});
  out.push_back({"strip of blanks", with_text("{{ s.strip()|length }}", "' '")});
  out.push_back({"upper", with_text("{{ s|upper|length }}")});
  out.push_back({"title", with_text("{{ s.title()|length }}")});
  out.push_back({"title of words", with_text("{{ s|title|length }}", "'a '")});
  out.push_back({"capitalize", with_text("{{ s|capitalize|length }}")});
  out.push_back({"is lower", with_text("{{ s is lower }}")});
  out.push_back({"isalnum", with_text("{{ s.isalnum() }}")});
  out.push_back({"length", with_text("{{ s|length }}")});
  out.push_back({"last character", with_text("{{ s[-1] }}")});
  out.push_back({"slices", with_text("{{ s[1:-1]|length }}")});
  out.push_back({"slices backwards", with_text("{{ s[::-1]|length }}")});
  out.push_back({"equal strings", with_text("{{ s == s ~ '' }}")});
  out.push_back({"ordered strings", with_text("{{ s < s }}")});
  out.push_back({"startswith", with_text("{{ s.startswith(s) }}")});
  out.push_back({"startswith of many", "{% set t = ['b'] * 100000 %}" + with_text("{{ s.startswith(t) }}")});
  out.push_back({"truncate", with_text("{{ s|truncate(999000)|length }}")});
  out.push_back({"wordcount", with_text("{{ s|wordcount }}", "'a '")});
  out.push_back({"int", with_text("{{ s|int }}", "'1'")});
  out.push_back({"float", with_text("{{ s|float }}", "'1'")});
  out.push_back({"a filter by a long name", with_text("{{ [1, 2]|map(s)|list }}") + "{{ 1|nothing }}"});
  out.push_back({"a test by a long name", with_text("{{ [1, 2]|select(s)|list if i < 0 }}{{ s is string }}")});
  out.push_back({"an attribute by a long name", with_text("{{ {}[s] is defined }}")});
  out.push_back({"a path by a long name", with_text("{{ [{}]|map(attribute=s)|list|length }}")});
  out.push_back({"an unknown item", with_text("{{ [][s] is defined }}")});
}

void add_walks(List& out) {
  const std::string list = "{% set l = range(100000)|list %}", nested = "{% set l = [range(1000)|list] * 100000 %}";
  out.push_back({"sort", list + for_ever("{{ (l|sort(reverse=true))[0] }}")});
  out.push_back(
      {"sort of long strings",
       "{% set s = 'a' * 100000 %}{% set ns = namespace(l=[]) %}{% for i in range(200) %}{% set ns.l = ns.l + [s ~ i] %}{% endfor %}" +
           for_ever("{{ (ns.l|sort)[0]|length }}")});
  out.push_back({"sort of nested lists", nested + "{{ (l|sort)[0]|length }}"});
  out.push_back({"sort by a path", "{% set l = [{'a': {'b': 1}}] * 100000 %}" + for_ever("{{ (l|sort(attribute='a.b'))[0] }}")});
  out.push_back({"dictsort", "{% set d = {'a': [1] * 100000, 'b': [1] * 100000} %}" + for_ever("{{ d|dictsort(by='value')|length }}")});
  out.push_back(
      {"unique of nested tuples",
       "{% set ns = namespace(l=[]) %}{% for i in range(1000) %}{% set ns.l = ns.l + [(range(1000)|list|string, i)] %}{% endfor %}" +
           for_ever("{{ ns.l|unique|list|length }}")});
  out.push_back({"unique of numbers", list + for_ever("{{ l|unique|list|length }}")});
  out.push_back({"groupby of nested lists", "{% set l = [{'k': range(1000)|list}] * 10000 %}" + for_ever("{{ l|groupby('k')|length }}")});
  out.push_back({"min of nested lists", nested + for_ever("{{ l|min|length }}")});
  out.push_back({"max of strings", "{% set l = ['a' * 10000] * 10000 %}" + for_ever("{{ l|max|length }}")});
  out.push_back({"in a list", list + for_ever("{{ -1 in l }}")});
  out.push_back({"in a list of lists", nested + "{% set x = range(1000)|list + [1] %}{% set y = range(999)|list + [0] %}" +
                                           for_ever("{{ y in l }}{{ x in l }}")});
  out.push_back({"index", list + for_ever("{{ l.index(99999) }}")});
  out.push_back({"count in a list", list + for_ever("{{ l.count(1) }}")});
  out.push_back({"equal lists", list + for_ever("{{ l == range(100000)|list }}")});
  out.push_back({"ordered lists", list + for_ever("{{ l < l }}")});
  out.push_back({"sum", list + for_ever("{{ l|sum }}")});
  out.push_back({"join", list + for_ever("{{ l|join(',')|length }}")});
  out.push_back({"reverse", list + for_ever("{{ l|reverse|list|length }}")});
  out.push_back({"map", list + for_ever("{{ l|map('string')|list|length }}")});
  out.push_back({"select", list + for_ever("{{ l|select('in', l)|list|length }}")});
  out.push_back({"selectattr", "{% set l = [{'a': 1}] * 100000 %}" + for_ever("{{ l|selectattr('a', 'eq', 1)|list|length }}")});
  out.push_back({"nested filters", nested + for_ever("{{ l|map('map', 'string')|map('join')|join|length }}")});
  out.push_back({"slices of a list", list + for_ever("{{ l[::2]|length }}")});
  out.push_back({"concatenated lists", list + for_ever("{{ (l + l)|length }}")});
  out.push_back({"unpacked lists", list + for_ever("{% for a, b in [l] %}{% endfor %}")});
  out.push_back({"loops over a list", list + for_ever("{% for x in l %}{% endfor %}")});
  out.push_back({"filtered loops", for_ever("{% for x in range(100000) if x < 0 %}{% endfor %}")});
  out.push_back({"printed list", list + for_ever("{{ l|string|length }}")});
  out.push_back({"JSON of a list", list + for_ever("{{ l|tojson|length }}")});
  out.push_back({"many ranges", for_ever("{{ range(100000)|length }}")});
  out.push_back({"a dict of many keys", for_ever("{{ {i: 1, j: 2, 'a': 3}.items()|list|length }}")});
  out.push_back({"first of a dict", "{% set ns = namespace(d={}) %}" + for_ever("{{ dict({'a': 1}, b=2)|list|first }}")});
  out.push_back({"empty loops", for_ever("")});
  out.push_back({"arithmetic", for_ever("{{ i * j // 7 % 5 ** 2 }}")});
  out.push_back({"calls", "{% macro m(a, b=2) %}{{ a }}{% endmacro %}" + for_ever("{{ m(1) }}")});
  out.push_back({"calls with many names", "{% macro m(" + [] {
                   std::string names;
                   for (int i = 0; i < 200; ++i) names += "a" + std::to_string(i) + "=1,";
                   return names;
                 }() + ") %}{% endmacro %}" + for_ever("{{ m(a199=1, a198=2) }}")});
  out.push_back({"call blocks", "{% macro m() %}{{ caller() }}{% endmacro %}" + for_ever("{% call m() %}x{% endcall %}")});
  out.push_back({"dates", for_ever("{{ strftime_now('%c') }}")});
  out.push_back({"formats", for_ever("{{ '%.9f' % 1.5 }}")});
  out.push_back({"undefined names", for_ever("{{ x }}{{ x is defined }}")});
  out.push_back({"namespaces", for_ever("{% set n = namespace(a=i) %}{% set n.b = n.a %}")});
  out.push_back({"with blocks", for_ever("{% with a=i, b=j %}{{ a }}{% endwith %}")});
  out.push_back({"filter blocks", for_ever("{% filter upper %}abc{% endfilter %}")});
  out.push_back({"set blocks", for_ever("{% set a | trim %} abc {% endset %}")});
}

void add_numbers(List& out) {
  const char* most = "9223372036854775807";
  out.push_back({"overflow of +", "{{ 9223372036854775807 + 1 }}"});
  out.push_back({"overflow of **", "{{ 10 ** 1000 }}"});
  out.push_back({"overflow of a sum", "{{ [9223372036854775807, 1]|sum }}"});
  out.push_back({"overflow of abs", "{{ (-9223372036854775807 - 1)|abs }}"});
  out.push_back({"a long range", std::string("{{ range(") + most + ") }}"});
  out.push_back({"a long range down", std::string("{{ range(0, -") + most + ", -1) }}"});
  out.push_back({"a batch of all", std::string("{{ [1]|batch(") + most + ", 1) }}"});
  out.push_back({"division by zero", "{{ 1 // 0 }}"});
  out.push_back({"format of infinity", "{{ '%d' % 1e400 }}"});
  out.push_back({"format of no number", "{{ '%d' % (1e400 - 1e400) }}"});
  out.push_back({"negative repeats for ever", for_ever(std::string("{{ 'x' * -") + most + " }}")});
  out.push_back({"slices at the edge", for_ever(std::string("{{ [1][-") + most + ":" + most + ":" + most + "] }}")});
}

}  // namespace

std::vector<HostileTemplate> hostile_templates() {
  List out;
  add_deep(out);
  add_parser(out);
  add_growth(out);
  add_shared(out);
  add_quadratic(out);
  add_walks(out);
  add_numbers(out);
  return out;
}

}  // namespace mr
