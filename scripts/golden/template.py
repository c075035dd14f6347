#!/usr/bin/env python3
"""What Jinja makes of small templates: test/template/golden/jinja.jsonl.

    build/venv/bin/python scripts/golden/template.py >test/template/golden/jinja.jsonl

Each line has a template, variables, and the text that jinja2 gives in the environment that transformers has for chat
templates, or "error" where it refuses. CASES are also what test/oracle/template.py renders live.
"""
import json
import sys

VARIABLES = {
    "messages": [{"role": "system", "content": " Be kind.\n"}, {"role": "user", "content": "Hello \u4e2d\u6587 'x' \"y\" <&>"},
                 {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "arguments": {"b": 1, "a": [1.5, True]}}]},
                 {"role": "tool", "content": "20"}, {"role": "user", "content": "Bye"}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}, "required": []}}}],
    "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True, "n": 7, "f": 2.5, "s": "a,b,,c", "l": [3, 1, 2],
    "words": ["b", "A", "c", "a"], "d": {"k": "v", "items": 3}, "none": None, "empty": [], "yes": True}  # fmt: skip

WHITE = [
    "a\n{% if yes %}\nb\n{% endif %}\nc\n", "a\n  {% if yes %}  \n  b\n  {%- endif %}\n c", "  {{ n }}  \n  {{- n -}}  \n x",
    "{% if yes -%}  x  {%- endif %}", "  {%+ if yes %}x{% endif %}", "{% if yes +%}\nx{% endif %}", "{# c #}\nx\n", "  {#- c -#}  x",
    "x {# a\nb #} y", "{{ '{{' }} {{ '%}' }}", "{% raw %}\n{{ x }} {% if %}{% endraw %}\ny", "{%- raw -%} {{ x }} {%- endraw -%} y",
    "\n\nx\n\n", "a\r\nb\rc", "{{ {'a': {'b': 1}}['a']['b'] }}", "\t{% set x = 1 %}\n{{ x }}", "x  {% set y = 2 %}\n  z",
    "{{ n }}\n{% for i in l %}\n{{ i }}\n{% endfor %}\nend", "a{%- if yes %} b {% endif -%} c", "{% if yes %}{% endif %}\n\n x",
]  # fmt: skip
EXPRESSIONS = [
    "n + 1", "n - 10", "n * f", "n / 2", "n // 2", "-n // 2", "n % 4", "-n % 4", "n ** 2", "2 ** -1", "-2 ** 2", "f // 1", "7.5 % 2", "1 / 3",
    "1e20", "1e-7", "100000.0", "1.0", "0.1 + 0.2", "123456789012345678.0", "1_000", "'a' 'b'", "'a' ~ 1 ~ none ~ 2.0", "'a' + 'b'", "'ab' * 3",
    "[1] + [2]", "(1, 2) + (3,)", "[1, 'a', None, True, 2.0, {'x': 'it\\'s'}]", "(1,)", "()", "{}", "{'a': 1, 2: [3]}", "'\\n\\t\\u00e9\\x41\\\\'",
    "1 < 2 < 3", "1 < 2 > 3", "1 == 1.0", "'a' < 'b'", "[1, 2] < [1, 3]", "1 in l", "9 not in l", "'ell' in 'hello'", "'k' in d", "'x' in undefined_thing",
    "not yes", "not not yes", "none or 'x'", "'' or 0", "1 and 2", "0 and 1", "'y' if yes else 'n'", "'y' if not yes", "1 if yes else 2 if yes else 3",
    "l[0]", "l[-1]", "l[9]", "l[1:]", "l[:-1]", "l[::-1]", "l[::2]", "s[1:3]", "s[::-1]", "s[-1]", "messages[1:][0].role", "l[5:]", "l[-9:2]", "l[2:0:-1]",
    "d.k", "d['k']", "d['items']", "d.missing", "d.get('k')", "d.get('z', 5)", "d.get('z')", "d.keys() | list", "d.values() | list", "d['nope'] is defined",
    "messages[0]['content']", "messages[2].content", "messages[2].tool_calls[0].arguments", "undefined_thing", "undefined_thing.x", "undefined_thing + 1", "none.x",
    "none + 1", "'a' + 1", "1 < 'a'", "[] < 1", "l.x", "l | length", "undefined_thing | length", "5 | length", "messages | length", "s | length",
    "messages[1].content | length", "messages[1].content[6]", "' x ' | trim", "'xxaxx' | trim('x')", "'aBc' | upper", "'aBc' | lower", "'hello world-foo' | title",
    "'hELLO' | capitalize", "'\u00e4\u00d6\u03b1\u042f' | upper", "'\u00c4\u00d6\u0391\u042f' | lower", "l | join", "l | join('-')", "words | join(', ')",
    "messages | map(attribute='role') | join('|')", "messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list | length",
    "messages | rejectattr('role', '==', 'user') | map(attribute='role') | list", "messages | selectattr('tool_calls') | list | length",
    "messages | selectattr('tool_calls', 'defined') | map(attribute='role') | first", "l | select('odd') | list", "l | reject('odd') | list", "l | map('string') | list",
    "words | map('upper') | join", "l | sort", "words | sort", "words | sort(case_sensitive=true)", "l | sort(reverse=true)", "words | unique | list", "l | first", "l | last",
    "empty | first", "l | min", "l | max", "l | sum", "l | reverse | list", "s | reverse", "d | items | list", "d.items() | list", "d | dictsort", "'a' | default('b')",
    "undefined_thing | default('b')", "none | default('b')", "none | default('b', true)", "'' | d('b', boolean=True)", "n | string", "'12' | int", "'x' | int", "'x' | int(5)",
    "'1.5' | float", "3.7 | int", "f | round", "2.567 | round(2)", "2.1 | round(0, 'ceil')", "-3 | abs", "'a b a' | replace('a', 'x')", "'aaa' | replace('a', 'b', 2)",
    "'a\nb\n\nc' | indent", "'a\nb' | indent(2, true)", "'a\n\nb' | indent(2, blank=true)", "tools | tojson", "tools | tojson(indent=2)", "messages[1] | tojson",
    "messages[1] | tojson(ensure_ascii=true)", "{'b': 1, 'a': [], 'c': {}} | tojson(indent=4)", "{'b': 1, 'a': 2} | tojson(sort_keys=true)", "l | tojson(separators=(',', ':'))",
    "[none, true, 1.0, 1e100, 'a/b'] | tojson", "undefined_thing | tojson", "{1: 2, none: 3} | tojson", "s.split(',')", "s.split(',', 1)", "' a  b '.split()", "s.rsplit(',', 1)",
    "s.split(',')[-1]", "' ab '.strip()", "'xabx'.strip('x')", "'\\n\\na\\n'.lstrip('\\n')", "' a '.rstrip()", "'ab'.startswith('a')", "'ab'.endswith(('x', 'b'))", "'ab'.replace('a', '')",
    "'ab'.replace('', '-')", "'a b'.title()", "'AB'.lower()", "'-'.join(words)", "'abc'.find('c')", "'banana'.count('an')", "'12'.isdigit()", "'a\\nb\\r\\nc'.splitlines()",
    "'abc'.removeprefix('a')", "l.index(2)", "l.count(3)", "l.append(4)", "range(3) | list", "range(1, 10, 4) | list", "range(3, 0, -1) | list", "dict(a=1, b=2)", "dict(d, k=2)",
    "none is none", "undefined_thing is defined", "undefined_thing is undefined", "'a' is string", "d is mapping", "l is iterable", "'a' is iterable", "n is iterable", "l is sequence",
    "d is sequence", "n is number", "n is integer", "f is float", "yes is boolean", "yes is true", "1 is true", "false is false", "4 is divisibleby 2", "n is odd", "n is even",
    "n is eq 7", "n is not none", "n is gt(6)", "2 is in l", "'abc' is lower", "raise_exception is callable", "yes is sameas true", "strftime_now('%%')", "(n, f)",
    "n is defined and f is defined", "'x' is string or false", "messages[-1].role == 'user' and messages | length > 2", "(messages | last).role", "messages[0].content.strip() | length",
    "loop", "1 if", "n +", "(1", "[1, 2", "'abc", "n n", "{'a' 1}", "x | nothing_known", "x is nothing_known", "n()", "7()", "'a'.nothing()", "1 / 0", 
    "'%s' | upper", "words[0] ~ words[1]", "not n is none", "-n | abs", "(-n) | abs", "1 + 2 | string", "none | string", "[1,2,3][1:] == [2,3]", "'a' in ['a']", "('a', 'b')[1]",
]  # fmt: skip
STATEMENTS = [
    "{% for x in l %}{{ loop.index }}/{{ loop.length }}:{{ x }}{{ ',' if not loop.last }}{% endfor %}",
    "{% for x in l %}{{ loop.first }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }};{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}", "{% for c in 'a\u4e2d' %}{{ c }}-{% endfor %}",
    "{% for x in empty %}x{% else %}none{% endfor %}", "{% for x in undefined_thing %}x{% else %}none{% endfor %}", "{% for x in none %}x{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}{{ x }}{% endfor %}", "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{% for y in l %}{{ loop.depth }}{{ x * y }} {% endfor %}{% endfor %}",
    "{% for x in l %}{% for y in l %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}",
    "{% set x = 1 %}{% for i in l %}{{ x }}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}", "{% set x = 1 %}{% if yes %}{% set x = 2 %}{% endif %}{{ x }}",
    "{% set ns = namespace(n=0, s='') %}{% for i in l %}{% set ns.n = ns.n + i %}{% set ns.s = ns.s ~ i %}{% endfor %}{{ ns.n }}{{ ns.s }}{{ ns.x }}",
    "{% set a, b = 1, 2 %}{{ b }}{{ a }}", "{% set a, b = 1, 2, 3 %}{{ b }}", "{% set x = 1, 2 %}{{ x }}", "{% set x %}a{{ n }}b{% endset %}[{{ x }}]",
    "{% set x | upper | trim %} ab {% endset %}[{{ x }}]", "{% set d.k = 1 %}", "{% if n > 5 %}a{% elif n > 3 %}b{% else %}c{% endif %}", "{% if n > 8 %}a{% elif n > 3 %}b{% else %}c{% endif %}",
    "{% if n > 8 %}a{% elif n > 9 %}b{% else %}c{% endif %}", "{% if n > 8 %}a{% else %}{% if n > 9 %}b{% endif %}d{% endif %}", "{% if n > 8 %}{% else %}{% if yes %}b{% endif %}{% endif %}",
    "{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{{ n }}{% endmacro %}{{ m(1) }}|{{ m(1, c=3) }}|{{ m(b=5, a=0) }}|{{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(x=2) }}", "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% set x = 1 %}{% macro m() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}", "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}a{{ n }}{% endcall %}",
    "{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b) m() %}{{ a + b }}{% endcall %}", "{% filter upper %}a{{ n }}b{% endfilter %}", "{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a }}",
    "{% generation %}x{{ n }}{% endgeneration %}y", "{{ raise_exception('no ' ~ n) }}", "{% if false %}{{ raise_exception('x') }}{% endif %}ok", "{{ undefined_thing() }}", "{% for x in %}{% endfor %}",
    "{% if yes %}", "{% endif %}", "{% for x in l %}{% endif %}", "{% break %}", "{% nothing_known %}", "{{ n }", "{{ n", "{% if n", "{# x", "{% set %}", "{% for x in 5 %}{% endfor %}",
    "{% for a, b in [(1, 2), (3, 4)] %}{{ a }}{{ b }};{% endfor %}", "{% for a, b in l %}{% endfor %}", "{{ n, f }}", "{% for m in messages[1:] | reverse %}{{ m.role }} {% endfor %}",
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\\n' + (m['content'] or '') | trim + eos_token }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% else %}{% set loop_messages = messages %}{% endif %}{% for m in loop_messages %}{{ m.role[0] }}{% endfor %}",
    "{%- for m in messages %}{%- set i = (messages | length) - 1 - loop.index0 %}{{ i }}{%- endfor %}", "{% set x = [] %}{% for i in l %}{% set x = x + [i] %}{% endfor %}{{ x }}",
    "{% for t in tools %}{{ t.function.name }}({% for k, v in t.function.parameters.properties | items %}{{ k }}: {{ v.type }}{% endfor %}){% endfor %}",
]  # fmt: skip


def cases():
    for template in WHITE + ["{{ " + text + " }}" for text in EXPRESSIONS] + STATEMENTS:
        yield template


def render(template, variables):
    """The text, or None where Jinja refuses."""
    import copy

    from transformers.utils.chat_template_utils import _compile_jinja_template

    try:
        return _compile_jinja_template(template).render(**copy.deepcopy(variables))
    except Exception:
        return None


def main():
    print(json.dumps({"variables": VARIABLES}, ensure_ascii=False))
    for template in cases():
        text = render(template, VARIABLES)
        print(json.dumps([template] if text is None else [template, text], ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
