#!/usr/bin/env python3
"""Samples of `lmtrain data preview` against transformers' apply_chat_template with its mask of assistant tokens.

Conversations in every format that comes to messages, and three tokenizers (bytes, NFC and bytes, Llama's with its prefix).
Templates with {% generation %} blocks, given to lmtrain as they are or as the built-in of the same text: ids and learned
tokens must be transformers'. Templates without: ids must be transformers', and learned what the rule of chat.h says, which is
written again here upon transformers' renderings and offsets. Prints, last, `N passed, N failed`.
"""
import json
import os
import random
import subprocess
import sys
import tempfile

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LMTRAIN = os.environ.get("LMTRAIN", os.path.join(ROOT, "build", "lmtrain"))
GOLDEN = os.path.join(ROOT, "test", "tokenizer", "golden")
TEMPLATES = {
    "chatml": "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['role'] == 'assistant' %}{% generation %}"
              "{{ m['content'] }}<|im_end|>{% endgeneration %}{% else %}{{ m['content'] }}<|im_end|>{% endif %}{{ '\\n' }}"
              "{% endfor %}",
    "llama3": "{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
              "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}<|eot_id|>{% endgeneration %}"
              "{% else %}{{ m['content'] }}<|eot_id|>{% endif %}{% endfor %}",
}
BLOCKS = {
    # Headers that end in a space, and no token of their own.
    "vicuna": "{% for m in messages %}{% if m.role == 'user' %}{{ 'USER: ' + m.content + ' ' }}{% elif m.role == 'assistant' %}"
              "ASSISTANT: {% generation %}{{ m.content }}</s>{% endgeneration %}{{ '\n' }}{% else %}{{ m.content + ' ' }}"
              "{% endif %}{% endfor %}",
    # Blocks that end with what was said, without an end token, and one that is often empty.
    "bare": "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
            "{% generation %}{% if loop.last %} end{% endif %}{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
            "{{ '\n\n' }}{% endfor %}",
    # transformers counts from where the macro's text begins.
    "macro": "{% macro say(m) %}[{{ m.role }}] {% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% endmacro %}"
             "{% for m in messages %}{% if m.role == 'assistant' %}{{ say(m) }}{% else %}{{ m.content }}\n{% endif %}{% endfor %}",
}
PREFIXES = {
    "no prompt": "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}",
    "no prompt, space": "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}",
    "prompt, space": "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
                     "{% if add_generation_prompt %}assistant: {% endif %}",
    "forgets thinking": "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if loop.last and m.role == 'assistant' %}"
                        "{{ '<think>\n\n</think>\n\n' }}{% endif %}{{ m.content + '<|im_end|>\n' }}{% endfor %}"
                        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
}
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
rng = random.Random(3)
N = 60


def text():
    words = "In the beginning God created heaven earth 1611 \u4e2d\u6587 \u00e9t\u00e9 don't, light: day;\nnight x=1 e\u0301t \U0001f600\u200d\U0001f525 1".split(" ")
    return " ".join(rng.choice(words) for _ in range(rng.randrange(1, 30)))


def conversation():
    system = [{"role": "system", "content": text()}] if rng.random() < 0.5 else []
    turns = [[{"role": "user", "content": text()}, {"role": "assistant", "content": text()}]
             for _ in range(rng.randrange(1, 4))]
    return system + sum(turns, [])


def as_row(messages):
    """The messages in one of the formats."""
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    system = [m["content"] for m in messages if m["role"] == "system"]
    turns = [m["content"] for m in messages if m["role"] != "system"]
    kind = rng.randrange(3)
    if kind == 0:
        return {"messages": messages}
    if kind == 1:
        return {"conversations": [{"from": names[m["role"]], "value": m["content"]} for m in messages]}
    row = {"instruction": turns[-2], "output": turns[-1], "history": [turns[i:i + 2] for i in range(0, len(turns) - 2, 2)]}
    return dict(row, system=system[0]) if system else row


def make_tokenizer(name, folder):
    path = os.path.join(ROOT, "data", "kjv-tokenizer", "tokenizer.json") if name == "kjv" else \
        os.path.join(GOLDEN, name + ".json")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=path)
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL], special_tokens=True)
    tokenizer.save_pretrained(folder)
    return tokenizer


def preview(folder, conversations, template):
    path = os.path.join(folder, "rows.jsonl")
    with open(path, "w") as file:
        for messages in conversations:
            file.write(json.dumps(as_row(messages)) + "\n")
    done = subprocess.run([LMTRAIN, "data", "preview", path, "--tokenizer", folder, "--template", template, "--n", str(N),
                           "--seq-len", "4096", "--json"], capture_output=True)
    if done.returncode:
        raise RuntimeError(done.stderr.decode())
    return json.loads(done.stdout)["first"]


def write_template(folder, text):
    path = os.path.join(folder, "one.jinja")
    with open(path, "w") as file:
        file.write(text)
    return path


def common(a, b):
    return len(os.path.commonprefix([a, b]))


def spans_of(render, messages):
    """The rule of prefixes, of chat.h."""
    text, spans = render(messages, False), []
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        until, before, prompt = render(messages[:i + 1], False), render(messages[:i], False), render(messages[:i], True)
        if i + 1 < len(messages) and not text.startswith(until):
            continue
        begin = common(text, prompt)
        if prompt == before:
            others = [render(messages[:i] + [{"role": "assistant", "content": probe}], False) for probe in ("Zzz", "7")]
            end = min(common(text, other) for other in others)
            begin = end if text[begin:end].strip() else begin
        spans.append((begin, begin + len(text[begin:len(until)].rstrip())))
    return text, spans


def by_rule(tokenizer, template, messages):
    def render(turns, prompt):
        return tokenizer.apply_chat_template(turns, chat_template=template, tokenize=False, add_generation_prompt=prompt) \
            if turns else ""

    text, spans = spans_of(render, messages)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    learned = [int(any(begin < e and b < end for begin, end in spans)) for b, e in encoded["offset_mapping"]]
    return encoded["input_ids"], learned


def by_blocks(tokenizer, template, messages):
    out = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=True, return_dict=True,
                                        return_assistant_tokens_mask=True)
    return out["input_ids"], out["assistant_masks"]


def check(name, folder, given, template, expected):
    """given: a built-in's name, or None: the template itself."""
    tokenizer = make_tokenizer(name, folder)
    conversations = [conversation() for _ in range(N)]
    try:
        ours = preview(folder, conversations, given or write_template(folder, template))
    except RuntimeError as error:
        return str(error)
    for i, (messages, mine) in enumerate(zip(conversations, ours, strict=True)):
        ids, learned = expected(tokenizer, template, messages)
        if list(ids) != mine["ids"]:
            at = next((k for k, (a, b) in enumerate(zip(ids, mine["ids"])) if a != b), -1)
            return (f"conversation {i + 1}: ids differ from {at} on: {mine['ids'][at - 2:at + 4]}, expected "
                    f"{ids[at - 2:at + 4]} in {mine['text']!r}")
        if list(learned) != mine["learned"]:
            at = next(k for k, (a, b) in enumerate(zip(learned, mine["learned"])) if a != b)
            return f"conversation {i + 1}: what is learned differs from {at} on of {len(ids)}, {mine['text']!r}"
    return None


def main():
    passed = failed = 0
    cases = [(f"built-in {k}", k, t, by_blocks) for k, t in TEMPLATES.items()]
    cases += [(k, None, t, by_blocks) for k, t in (TEMPLATES | BLOCKS).items()]
    cases += [(k, None, t, by_rule) for k, t in PREFIXES.items()]
    for name in ("kjv", "qwen", "llama"):
        for what, given, template, expected in cases:
            with tempfile.TemporaryDirectory() as folder:
                wrong = check(name, folder, given, template, expected)
            passed, failed = passed + (not wrong), failed + bool(wrong)
            if wrong:
                print(f"  FAIL {name}, {what}: {wrong[:600]}")
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
