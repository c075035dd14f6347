#!/usr/bin/env python3
"""Write test/tokenizer/golden/: probe texts with the ids that HF tokenizers gives them.

Run by hand from the repository's root; the results are committed. Made with tokenizers 0.23.3.
    python scripts/golden/tokenizer.py
A line of NAME.txt is a probe as hex bytes of UTF-8, a tab, and its ids. small.json is a tokenizer of its own with
what the KJV one does not have: a prefix space, merges as "a b", ignore_merges, added tokens of both passes that are
prefixes of each other.
"""
import json
import random

from tokenizers import Tokenizer

FOLDER = "test/tokenizer/golden"
PIECES = [
    "a", "the", "The", " LORD", "God", "Ab", "zz", "'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'", "''", "'lo",
    "1", "42", "1611", "\u00bd", "\u00b2", "\u2167", "\u0664", "\u4e00\u4e8c", "\u00e9", "e\u0301", "\u00df", "\u03a9", "\u0416",
    "\u05d0", "\u0639\u0631", "\u0e01\u0e34", "\uac00", "\U0001f600", "\U0001f468\u200d\U0001f469", "\U00020000", "\U0010ffff", "\ufeff",
    " ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u2028", "\u0085", "\u200b", "\u001c", "\u0000", "\v",
    ".", "...", "!?", "-", "--", "_", "#", "$", "\u2014", "\u201c", "<", "<|", "|>", "\\", "/", "{}", "<|endoftext|>",
    "<|endoftext|", "<a>", "<a><b>", "<ab>", "ADDED", "ADD", "added",
]  # fmt: skip


def probes():
    rng = random.Random(1)
    yield ""
    yield from PIECES
    for first in (" ", "\n", "\t", "\u00a0", "x", "'", "1", "."):
        for second in (" ", "\n", "'s", "y", "7", "!", "\u3000", "<|endoftext|>"):
            yield first + second
            yield "q" + first + second + "q"
    for _ in range(200):
        yield "".join(rng.choice(PIECES) for _ in range(rng.randrange(2, 12)))
    for n in (1, 2, 31, 32, 257):
        yield "a" * n
        yield "in the beginning".replace(" ", "") * n
        yield " " * n + "x" + " " * n


def small_tokenizer():
    with open("data/kjv-tokenizer/tokenizer.json") as file:
        spec = json.load(file)
    model = spec["model"]
    merges = [" ".join(pair) for pair in model["merges"][:300]]
    joined = ["".join(pair) for pair in model["merges"][:300]]
    alphabet = [token for token in model["vocab"] if len(token) == 1]
    # Tokens that no merge makes: only ignore_merges can give them.
    whole = ["\u0120beginning", "zz", "thethe"]
    tokens = list(dict.fromkeys(alphabet + joined + whole))
    model.update(vocab={token: id for id, token in enumerate(tokens)}, merges=merges, ignore_merges=True)
    spec["pre_tokenizer"]["add_prefix_space"] = True
    base = {"single_word": False, "lstrip": False, "rstrip": False}
    names = [("<|endoftext|>", 1), ("<a>", 1), ("<a><b>", 1), ("ADD", 0), ("ADDED", 0), ("D<|endo", 0)]
    spec["added_tokens"] = [
        {"id": len(tokens) + i, "content": name, **base, "normalized": not special, "special": bool(special)}
        for i, (name, special) in enumerate(names)
    ]
    path = f"{FOLDER}/small.json"
    with open(path, "w") as file:
        json.dump(spec, file, ensure_ascii=False)
        file.write("\n")
    return path


def write(name, path):
    tokenizer = Tokenizer.from_file(path)
    with open(f"{FOLDER}/{name}.txt", "w") as file:
        for probe in dict.fromkeys(probes()):
            ids = tokenizer.encode(probe, add_special_tokens=False).ids
            file.write(probe.encode().hex() + "\t" + " ".join(map(str, ids)) + "\n")


def main():
    write("kjv", "data/kjv-tokenizer/tokenizer.json")
    write("small", small_tokenizer())


if __name__ == "__main__":
    main()
