#!/usr/bin/env python3
"""Write lib/tokenizer/unicode/cluster_tables.c: where HF's Precompiled normalizer sees short grapheme clusters end.

Run by hand; the result is committed. Asked of the library itself by charsmaps that sentencepiece makes of rules: a
cluster of fewer than six bytes that begins with a key becomes the key's value, whatever follows in it.
    python scripts/data/cluster-tables.py > lib/tokenizer/unicode/cluster_tables.c      (tokenizers 0.23.3)
"""
import os
import tempfile
import unicodedata

import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import normalizers

CODES = [code for code in range(1, 0x110000) if not 0xD800 <= code < 0xE000]
NAMES = ["other", "attaches", "controls", "prepends"]


def charsmap(rules):
    """The normalizer of rules {key: value}."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rules.tsv")
        with open(path, "w") as file:
            for key, value in sorted(rules.items()):
                file.write(f"{' '.join(f'{ord(c):X}' for c in key)}\t{' '.join(f'{ord(c):X}' for c in value)}\n")
        text = os.path.join(folder, "text")
        with open(text, "w") as file:
            file.write("\n".join(["some words to train with", "and some more of them"] * 20))
        prefix = os.path.join(folder, "m")
        sentencepiece.SentencePieceTrainer.train(
            input=text, model_prefix=prefix, vocab_size=30, hard_vocab_limit=False, minloglevel=2,
            normalization_rule_tsv=path,
        )  # fmt: skip
        model = sentencepiece_model_pb2.ModelProto()
        with open(prefix + ".model", "rb") as file:
            model.ParseFromString(file.read())
    return normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap).normalize_str


def kinds():
    of = [0] * 0x110000
    a = charsmap({"a": "X"})
    for code in CODES:
        c = chr(code)
        if code in (10, 13):
            of[code] = 2
        elif a("a" + c) == "X":
            of[code] = 1
        elif "\u0301" in a(c + "a\u0301"):
            of[code] = 3
    candidates = [c for c in CODES if of[c] == 0 and unicodedata.category(chr(c)) in ("Cc", "Cf", "Zl", "Zp", "Cn")]
    # Of the unassigned only the default ignorable ones: these blocks.
    candidates = [c for c in candidates if unicodedata.category(chr(c)) != "Cn" or c == 0x2065 or 0xFFF0 <= c < 0xFFF9
                  or 0xE0000 <= c < 0xE1000]  # fmt: skip
    for start in range(0, len(candidates), 500):
        part = candidates[start : start + 500]
        z = charsmap({chr(c): "Z" for c in part})
        for code in part:
            if len(chr(code).encode()) < 4 and "\u0301" in z(chr(code) + "\u0301"):
                of[code] = 2
            elif len(chr(code).encode()) == 4:  # with a mark of two bytes it has six: no cluster to tell by
                of[code] = 2
    return of


def main():
    of = kinds()
    runs = [(c, of[c]) for c in range(0x110000) if c == 0 or of[c] != of[c - 1]]
    print(
        f"""/*
 * cluster_tables.c - what grapheme clusters are made of, as tokenizers {tokenizers.__version__} sees them
 *
 * Written by scripts/data/cluster-tables.py: do not edit.
 */
#include "tokenizer/unicode/unicode.h"

/* clang-format off */
const int unicode_n_cluster_runs = {len(runs)};

const uint32_t unicode_cluster_runs[] = {{"""
    )
    line = "   "
    for code, kind in runs:
        cell = f" {code << 8 | kind:#x},"
        if len(line) + len(cell) > 100:
            print(line)
            line = "   "
        line += cell
    print(line)
    print("};")


if __name__ == "__main__":
    main()
