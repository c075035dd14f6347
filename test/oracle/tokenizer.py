#!/usr/bin/env python3
"""`lmtrain data tokenize` against HF tokenizers: ids of much text, and of every code point in several surroundings.

Also that the committed goldens are still what the library says. Prints, last, `N passed, N failed`.
"""
import array
import json
import lzma
import os
import random
import subprocess
import sys
import tempfile

from tokenizers import Tokenizer

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LMTRAIN = os.environ.get("LMTRAIN", os.path.join(ROOT, "build", "lmtrain"))
GOLDEN = os.path.join(ROOT, "test", "tokenizer", "golden")
TOKENIZERS = {
    "kjv": os.path.join(ROOT, "data", "kjv-tokenizer", "tokenizer.json"),
    "small": os.path.join(GOLDEN, "small.json"),
}


def bible(part):
    with lzma.open(os.path.join(ROOT, "data", "kjv", f"{part}.txt.xz"), "rt", newline="") as file:
        return [file.read()]


def all_code_points():
    """Each between letters, digits, marks, spaces and doubled; a document for every 256."""
    for start in range(0, 0x110000, 256):
        if 0xD800 <= start < 0xE000:
            continue
        characters = [chr(code) for code in range(start, start + 256)]
        yield "".join(f"a{c}a 1{c}1!{c}! {c}{c} {c}\n{c}'{c}s" for c in characters)


def noise():
    """Random code points, mostly from a few blocks, with the apostrophes and spaces that make splits hard."""
    rng = random.Random(3)
    blocks = [(0x20, 0x7F), (0x20, 0x7F), (0, 0x100), (0x300, 0x370), (0x600, 0x700), (0x2000, 0x2070), (0x4E00, 0x4F00),
              (0x1F600, 0x1F640), (0x10000, 0x10FFFF)]  # fmt: skip
    common = [" ", "  ", "\n", "\t", "'s", "'ll", "'", "the", "\u3000", "<|endoftext|>", "<a><b>", "ADDED", "0", "."]
    for _ in range(3000):
        yield "".join(
            rng.choice(common) if rng.random() < 0.5 else chr(rng.randrange(*rng.choice(blocks)))
            for _ in range(rng.randrange(1, 60))
        )


def long_words():
    rng = random.Random(5)
    for n in (1000, 20_000):
        yield "a" * n
        yield "".join(rng.choice("etaoinshrdlu") for _ in range(n))
        yield " " * n + "x"
        yield "!" * n


def our_ids(folder, tokenizer, texts):
    """Ids of each text by one run over a JSONL file."""
    lines, prefix = os.path.join(folder, "in.jsonl"), os.path.join(folder, "out")
    with open(lines, "w") as file:
        for text in texts:
            file.write(json.dumps({"text": text}) + "\n")
    command = [LMTRAIN, "data", "tokenize", lines, "--tokenizer", tokenizer, "--out", prefix, "--no-eod"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    tokens = array.array("H")
    with open(prefix + ".bin", "rb") as file:
        tokens.frombytes(file.read())
    with open(prefix + ".idx", "rb") as file:
        index = file.read()
    n = int.from_bytes(index[18:26], "little")
    lengths = array.array("i", index[34 : 34 + 4 * n])
    assert n == len(texts), f"{n} documents of {len(texts)}"
    start = 0
    for length in lengths:
        yield tokens[start : start + length].tolist()
        start += length


def check_texts(folder, path, make):
    texts = [text for text in make() if text]
    tokenizer = Tokenizer.from_file(path)
    expected = tokenizer.encode_batch(texts, add_special_tokens=False)
    for text, ours, theirs in zip(texts, our_ids(folder, path, texts), expected):
        if ours != theirs.ids:
            at = next((i for i, pair in enumerate(zip(ours, theirs.ids)) if pair[0] != pair[1]), -1)
            raise AssertionError(f"{text[:80]!r}: id {at} of {len(ours)} and {len(theirs.ids)}")


def check_golden(name):
    tokenizer = Tokenizer.from_file(TOKENIZERS[name])
    with open(os.path.join(GOLDEN, f"{name}.txt")) as file:
        for line in file:
            probe, ids = line.rstrip("\n").split("\t")
            text = bytes.fromhex(probe).decode()
            now = tokenizer.encode(text, add_special_tokens=False).ids
            assert now == [int(id) for id in ids.split()], f"{text!r} is now {now}"


def main():
    makers = (lambda: bible("train"), lambda: bible("heldout"), noise, long_words)
    failed = n = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, path in TOKENIZERS.items():
            checks = [(check_texts, folder, path, make) for make in makers] + [(check_golden, name)]
            if name == "kjv":  # classes of code points are the same for all, and HF takes a minute for them
                checks.append((check_texts, folder, path, all_code_points))
            for i, (check, *arguments) in enumerate(checks):
                n += 1
                try:
                    check(*arguments)
                except (AssertionError, subprocess.CalledProcessError) as error:
                    failed += 1
                    print(f"FAIL {name} {check.__name__} {i}: {error}")
    print(f"{n - failed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
