#!/usr/bin/env python3
"""Samples of `lmtrain data preview` against transformers' apply_chat_template with its mask of assistant tokens.

Conversations in every format that comes to messages, three tokenizers (bytes, Metaspace, Llama's with its prefix) and
two templates, whose {% generation %} blocks say what transformers takes for the answers: ids and learned tokens must be
equal. Prints, last, `N passed, N failed`.
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
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
rng = random.Random(3)


def text():
    words = "In the beginning God created heaven earth 1611 \u4e2d\u6587 \u00e9t\u00e9 don't, light: day;\nnight x=1".split(" ")
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


def check(name, template, folder):
    tokenizer = make_tokenizer(name, folder)
    conversations = [conversation() for _ in range(60)]
    path = os.path.join(folder, "rows.jsonl")
    with open(path, "w") as file:
        for messages in conversations:
            file.write(json.dumps(as_row(messages)) + "\n")
    done = subprocess.run([LMTRAIN, "data", "preview", path, "--tokenizer", folder, "--template", template, "--n", "60",
                           "--seq-len", "4096", "--json"], capture_output=True)
    if done.returncode:
        return done.stderr.decode()
    ours = json.loads(done.stdout)["first"]
    for i, (messages, mine) in enumerate(zip(conversations, ours, strict=True)):
        theirs = tokenizer.apply_chat_template(messages, chat_template=TEMPLATES[template], tokenize=True,
                                               return_dict=True, return_assistant_tokens_mask=True)
        if list(theirs["input_ids"]) != mine["ids"]:
            at = next((k for k, (a, b) in enumerate(zip(theirs["input_ids"], mine["ids"])) if a != b), -1)
            return (f"conversation {i + 1}: ids differ from {at} on: {mine['ids'][at - 2:at + 4]}, expected "
                    f"{theirs['input_ids'][at - 2:at + 4]} in {mine['text']!r}")
        if list(theirs["assistant_masks"]) != mine["learned"]:
            return f"conversation {i + 1}: what is learned differs"
    return None


def main():
    passed = failed = 0
    for name in ("kjv", "qwen", "llama"):
        for template in TEMPLATES:
            with tempfile.TemporaryDirectory() as folder:
                wrong = check(name, template, folder)
            passed, failed = passed + (not wrong), failed + bool(wrong)
            if wrong:
                print(f"  FAIL {name}, {template}: {wrong[:400]}")
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
