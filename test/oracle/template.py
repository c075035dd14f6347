#!/usr/bin/env python3
"""Chat templates rendered by lmtrain and by transformers: the same text for every conversation, or both refuse.

The templates are small ones that use what published ones do (scripts/golden/template.py has more, as goldens), and,
where $LMTRAIN_TEMPLATES names a folder of *.jinja, all of those. `lmtrain generate --print-prompt` renders.
Prints, last, `N passed, N failed`.
"""
import copy
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LMTRAIN = os.environ.get("LMTRAIN", os.path.join(ROOT, "build", "lmtrain"))
FOLDER = os.environ.get("LMTRAIN_TEMPLATES", "")
TOKENS = {"bos_token": "<s>", "eos_token": "<|endoftext|>", "unk_token": "<unk>"}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **fields):
    return {"role": "assistant", "content": text} | fields


def system(text):
    return {"role": "system", "content": text}


CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "get", "arguments": {"city": "Paris", "n": 3}}}
CONVERSATIONS = [
    [user("Hello")],
    [user("Hi"), assistant("Hey"), user(" \u4f60\u597d  \n")],
    [system("Be nice."), user("Hi")],
    [system("Be nice.\n"), user("Hi"), assistant(" Sure \n thing"), user("and \"this\" <b> & \\ \u00e9?"), assistant("ok")],
    [assistant("first"), user("x")],
    [user("a"), user("b")],
    [user("q"), assistant("<think>\nhmm\n</think>\n\nfour"), user("again"), assistant("<think>\nso\n</think>\n\nfive")],
    [user("weather?"), assistant(None, tool_calls=[CALL]), {"role": "tool", "content": "{\"t\": 20}", "name": "get"},
     assistant("20 degrees")],
    [user("q"), assistant("r", reasoning_content="because"), user("s")],
    [user("x" * 3000), assistant(""), user("\u2028\u00a0tab\tend")],
]

TURN = "{{ '<|' ~ m.role ~ '|>' ~ (m.content or '') ~ '<|end|>' }}\n"
TEMPLATES = {
    "plain": "{% for m in messages %}" + TURN + "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "alternating": "{{ bos_token }}{% for m in messages %}\n{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}\n"
                   "{{ raise_exception('roles must alternate') }}\n{% endif %}\n"
                   "{% if m['role'] == 'user' %}{{ '[Q] ' + m['content'].strip() + ' [/Q]' }}"
                   "{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'] + ' ' + eos_token }}{% endif %}\n{% endfor %}\n",
    "system first": "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set s = messages[0]['content'] %}"
                    "{% else %}{% set rest = messages %}{% set s = false %}{% endif %}{% for m in rest %}"
                    "{% if loop.index0 == 0 and s != false %}{% set c = '<<' + s + '>>' + m['content'] %}"
                    "{% else %}{% set c = m['content'] %}{% endif %}{{ c }}{% endfor %}",
    "last question": "{%- set ns = namespace(multi=true, last=messages|length - 1) %}\n{%- for m in messages[::-1] %}\n"
                     "    {%- set index = (messages|length - 1) - loop.index0 %}\n"
                     "    {%- if ns.multi and m.role == 'user' and m.content is string and not(m.content.startswith('<t>')) %}\n"
                     "        {%- set ns.multi = false %}\n        {%- set ns.last = index %}\n    {%- endif %}\n{%- endfor %}\n"
                     "{%- for m in messages %}\n    {%- set c = m.content if m.content is string else '' %}\n"
                     "    {%- set think = '' %}\n    {%- if m.reasoning_content is string %}{%- set think = m.reasoning_content %}\n"
                     "    {%- elif '</think>' in c %}\n"
                     "        {%- set think = c.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}\n"
                     "        {%- set c = c.split('</think>')[-1].lstrip('\\n') %}\n    {%- endif %}\n"
                     "    {%- if loop.index0 > ns.last %}{{- '(' + think.strip('\\n') + ')' }}{%- endif %}\n"
                     "    {{- '[' + m.role + ']' + c + '\\n' }}\n{%- endfor %}",
    "tools": "{%- if tools %}{{ tools | tojson(indent=2) }}{% endif %}{%- for m in messages %}\n{%- if m.tool_calls %}\n"
             "{%- for t in m.tool_calls %}{%- if t.function is defined %}{%- set t = t.function %}{%- endif %}\n"
             "{{- '{\"name\": \"' + t.name + '\", \"arguments\": ' + t.arguments | tojson + '}' }}"
             "{%- if not loop.last %},{% endif %}{%- endfor %}\n"
             "{%- elif loop.first or messages[loop.index0 - 1].role != m.role %}{{- '\\n' ~ m.role ~ ': ' ~ m.content }}\n"
             "{%- else %}{{- m.content }}{%- endif %}{%- endfor %}",
    "macros": "{%- macro text(c, n=1) -%}{%- if c is none -%}none{%- else -%}{{ c | trim | upper }}{{ n }}{%- endif -%}{%- endmacro -%}\n"
              "{%- for m in messages if m.role != 'system' -%}{{ text(m.content, n=loop.index) }};{%- else -%}empty{%- endfor -%}",
    "fields": "{% for m in messages %}{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}\n{% endfor %}",
    "blocks": "{% for m in messages %}\n  {% set line | trim %}\n    {{ loop.index }}. {{ m.role | capitalize }}\n  {% endset %}\n"
              "{{ line }}{% if m.role == 'tool' %}{% break %}{% endif %}\n{% endfor %}\n",
}

results = []


def check(name, passed, *why):
    results.append(bool(passed))
    if not passed:
        print("FAIL", name, *(str(part)[-600:] for part in why))


def rendered(template, conversation):
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        return render_jinja_template([copy.deepcopy(conversation)], chat_template=template, add_generation_prompt=True,
                                     **TOKENS)[0][0]
    except Exception:  # whatever a template does wrong
        return None


def ours(template, folder, conversation):
    with open(os.path.join(folder, "one.jinja"), "w", encoding="utf-8", newline="") as file:
        file.write(template)
    with open(os.path.join(folder, "one.jsonl"), "w", encoding="utf-8") as file:
        file.write(json.dumps(conversation) + "\n")
    done = subprocess.run([LMTRAIN, "generate", "--print-prompt", "--json", "--chat", "--tokenizer", folder, "--template",
                           os.path.join(folder, "one.jinja"), "--prompts", os.path.join(folder, "one.jsonl")],
                          capture_output=True, text=True)
    if done.returncode not in (0, 3):
        return f"status {done.returncode}: {done.stderr}"
    return json.loads(done.stdout)["prompt"] if done.returncode == 0 else None


def main():
    templates = dict(TEMPLATES)
    for path in sorted(glob.glob(os.path.join(FOLDER, "*.jinja"))) if FOLDER else []:
        with open(path, encoding="utf-8", newline="") as file:
            templates[os.path.basename(path)] = file.read()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(os.path.join(ROOT, "data", "kjv-tokenizer", "tokenizer.json"), folder)
        with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
            json.dump(TOKENS, file)
        for name, template in templates.items():
            for i, conversation in enumerate(CONVERSATIONS):
                wanted, got = rendered(template, conversation), ours(template, folder, conversation)
                check(f"{name}, conversation {i}", got == wanted, repr(got), repr(wanted))
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
