#!/usr/bin/env python3
"""scripts/data/needles.py FOLDER WHAT [--name NAME] [--n N] [--tokens T] [--needles K] [--questions Q] [--seed S]
    [--pairs] [--lmtrain BINARY]

Needles in a haystack of verses of the King James Bible (data/kjv). A haystack is a text of verses, at random, into which
sentences are inserted at random depths: "The secret number of Moses is 7." Behind it stand questions, in the same
words up to the number, which is the answer and has the loss.

WHAT: tokenizer   FOLDER/tokenizer/tokenizer.json: the first 512 merges of data/kjv-tokenizer, and the tokens of needles:
                  each word, each name and each digit is one token (with the space before it); and a chat template
                  that is the text itself
      train       FOLDER/NAME.jsonl: N conversations of about T tokens (never more), K needles and Q questions, a
                  needle's more than once if Q is above K. --pairs: nothing but names and digits, to learn to copy from:
                  "Moses is 7 Aaron is 1 ... Aaron is", whatever T is
      test        FOLDER/needle/depth-D.jsonl for D = 0, 25, 50, 75, 100: N records {haystack, question, answer} for
                  configs/tasks/needle.yaml, each about one of the K needles, that at D % of the haystack; the others
                  are at random depths. Verses are those held out.

The same seed writes the same files.
"""
import argparse
import json
import lzma
import os
import random
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
N_MERGES = 512
NAMES = ["Moses", "Aaron", "David", "Saul", "Jacob", "Joseph", "Joshua", "Abraham", "Isaac", "Solomon", "Samuel", "Daniel",
         "Peter", "Paul", "John", "Jonathan", "Benjamin", "Jeremiah", "Hezekiah", "Joab", "Reuben", "Esau", "Ahab", "Manasseh"]
DEPTHS = [0, 25, 50, 75, 100]
PAIR = " {} is"
NEEDLE, QUESTION = "The secret number of {} is {}.", "\nThe secret number of {} is"
NEEDLE_TOKENS, QUESTION_TOKENS = 9, 8  # with the line break; with the answer
TEMPLATE = "{%- for message in messages -%}{{- message.content -}}{%- endfor -%}"


def write_tokenizer(folder):
    """The first merges, and those that the words of needles are made of."""
    with open(os.path.join(ROOT, "data", "kjv-tokenizer", "tokenizer.json"), encoding="utf-8") as file:
        tokenizer = json.load(file)
    model = tokenizer["model"]
    vocabulary, merges = model["vocab"], [tuple(m) for m in model["merges"]]
    made_of = {a + b: (a, b) for a, b in merges}
    kept = set(merges[:N_MERGES])

    def keep(token):
        if token in made_of and made_of[token] not in kept:
            kept.add(made_of[token])
            for part in made_of[token]:
                keep(part)

    for word in ["The", "Ġsecret", "Ġnumber", "Ġof", "Ġis"] + ["Ġ" + name for name in NAMES]:
        if word not in vocabulary:
            sys.exit(f"needles.py: {word} is no token of data/kjv-tokenizer")
        keep(word)
    merges = [m for m in merges if m in kept]
    merges += [("Ġ", str(digit)) for digit in range(10)]
    single = [token for token, number in sorted(vocabulary.items(), key=lambda item: item[1]) if token not in made_of]
    model["vocab"] = {token: number for number, token in enumerate(single + [a + b for a, b in merges])}
    model["merges"] = [list(m) for m in merges]
    os.makedirs(os.path.join(folder, "tokenizer"), exist_ok=True)
    with open(os.path.join(folder, "tokenizer", "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(tokenizer, file, ensure_ascii=False)
    with open(os.path.join(folder, "tokenizer", "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"eos_token": "<|endoftext|>", "chat_template": TEMPLATE}, file)
    print(f"{folder}/tokenizer: {len(model['vocab'])} tokens")


def read_verses(folder, part, lmtrain):
    """Verses with their numbers of tokens, the line break counted: from the lengths in a token file's .idx."""
    with lzma.open(os.path.join(ROOT, "data", "kjv", part + ".txt.xz"), "rt", encoding="utf-8") as file:
        verses = [line.rstrip("\n") for line in file if line.strip()]
    with tempfile.TemporaryDirectory() as work:
        with open(os.path.join(work, "verses.jsonl"), "w", encoding="utf-8") as file:
            for verse in verses:
                file.write(json.dumps({"text": verse + "\n"}) + "\n")
        subprocess.run([lmtrain, "data", "tokenize", os.path.join(work, "verses.jsonl"), "--no-eod", "--tokenizer",
                        os.path.join(folder, "tokenizer"), "--out", os.path.join(work, "verses")], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(os.path.join(work, "verses.idx"), "rb") as file:
            head = file.read(9 + 8 + 1 + 8 + 8)  # magic, version, type, sequences, documents
            n, = struct.unpack_from("<Q", head, 18)
            lengths = struct.unpack(f"<{n}i", file.read(4 * n))
    if n != len(verses):
        sys.exit(f"needles.py: {n} documents of {len(verses)} verses")
    return list(zip(verses, lengths))


def haystack(rng, verses, n_tokens):
    """Verses in a row of the text, from a random one on, of at most so many tokens."""
    at, rows = rng.randrange(len(verses)), []
    while verses[at % len(verses)][1] <= n_tokens:
        n_tokens -= verses[at % len(verses)][1]
        rows.append(verses[at % len(verses)][0])
        at += 1
    return rows


def hide(rng, rows, needles, depth=None):
    """Insert needles [(name, number)] between verses; the first of them at a depth of 0 to 1."""
    places = [rng.randrange(len(rows) + 1) for _ in needles]
    if depth is not None:
        places[0] = round(depth * len(rows))
    order = sorted(range(len(needles)), key=lambda i: (places[i], rng.random()))
    if depth in (0, 1):  # the very first, or last
        order.sort(key=lambda i: (i == 0) == (depth == 1))
    text = []
    at = 0
    for i in order:
        text += rows[at:places[i]] + [NEEDLE.format(*needles[i])]
        at = places[i]
    return "\n".join(text + rows[at:])


def draw(rng, n):
    return [(name, rng.randrange(10)) for name in rng.sample(NAMES, n)]


def ask(rng, needles, n):
    """So many questions, each needle's once before any is asked again."""
    asked = []
    while len(asked) < n:
        asked += rng.sample(needles, len(needles))
    return asked[:n]


def write_train(options, verses, rng):
    question = PAIR if options.pairs else QUESTION
    n_text = options.tokens - NEEDLE_TOKENS * options.needles - QUESTION_TOKENS * options.questions - 1
    with open(os.path.join(options.folder, options.name + ".jsonl"), "w", encoding="utf-8") as file:
        for _ in range(options.n):
            needles = draw(rng, options.needles)
            if options.pairs:
                text = "".join(f"{PAIR.format(name)} {digit}" for name, digit in needles)
            else:
                text = hide(rng, haystack(rng, verses, n_text), needles)
            turns = []
            for name, digit in ask(rng, needles, options.questions):
                turns.append({"role": "user", "content": text + question.format(name)})
                turns.append({"role": "assistant", "content": f" {digit}"})
                text = ""
            file.write(json.dumps({"messages": turns}) + "\n")


def write_test(options, verses, rng):
    os.makedirs(os.path.join(options.folder, "needle"), exist_ok=True)
    for depth in DEPTHS:
        with open(os.path.join(options.folder, "needle", f"depth-{depth}.jsonl"), "w", encoding="utf-8") as file:
            for _ in range(options.n):
                needles = draw(rng, options.needles)
                rows = haystack(rng, verses, options.tokens - NEEDLE_TOKENS * options.needles - QUESTION_TOKENS - 1)
                record = {"haystack": hide(rng, rows, needles, depth / 100), "question": QUESTION.format(needles[0][0]),
                          "answer": str(needles[0][1])}
                file.write(json.dumps(record) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("what", choices=["tokenizer", "train", "test"])
    parser.add_argument("--name", default="train")
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--needles", type=int, default=4)
    parser.add_argument("--questions", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pairs", action="store_true")
    parser.add_argument("--lmtrain", default=os.environ.get("LMTRAIN", os.path.join(ROOT, "build", "lmtrain")))
    options = parser.parse_args()
    if options.what == "tokenizer":
        return write_tokenizer(options.folder)
    if not 1 <= options.needles <= len(NAMES):
        parser.error(f"--needles is {options.needles}, not from 1 to {len(NAMES)}")
    least = NEEDLE_TOKENS * options.needles + QUESTION_TOKENS * (options.questions if options.what == "train" else 1)
    if not options.pairs and options.tokens <= least:
        parser.error(f"--tokens is {options.tokens}, but needles and questions alone have {least}")
    part = "train" if options.what == "train" else "heldout"
    verses = [] if options.pairs else read_verses(options.folder, part, options.lmtrain)
    rng = random.Random(f"{options.what} {options.name} {options.seed}")
    (write_train if options.what == "train" else write_test)(options, verses, rng)


if __name__ == "__main__":
    main()
