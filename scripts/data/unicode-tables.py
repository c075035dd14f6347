#!/usr/bin/env python3
"""Write lib/tokenizer/unicode_tables.c: which code points HF tokenizers takes for \\p{L}, \\p{N} and \\s.

Run by hand; the result is committed. The classes are asked of the library itself, one code point at a
time, because its regex engine has a Unicode version of its own and our ids must be its ids.
    python scripts/data/unicode-tables.py > lib/tokenizer/unicode_tables.c      (tokenizers 0.23.3)
"""
import tokenizers
from tokenizers.pre_tokenizers import ByteLevel

OTHER, LETTER, NUMBER, SPACE = range(4)
BLOCK = 256


def classify(split, code):
    if 0xD800 <= code < 0xE000:
        return OTHER  # surrogates are in no UTF-8
    c = chr(code)
    if len(split("a" + c + "a")) == 1:
        return LETTER
    if len(split("1" + c + "1")) == 1:
        return NUMBER
    if len(split("!" + c + "!")) == 1:
        return OTHER
    return SPACE


def rows(numbers):
    line = "   "
    for number in numbers:
        text = f" {number},"
        if len(line) + len(text) > 100:
            yield line
            line = "   "
        line += text
    yield line


def main():
    pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=True)
    classes = [classify(pre_tokenizer.pre_tokenize_str, code) for code in range(0x110000)]
    while classes[-BLOCK:] == [OTHER] * BLOCK:
        del classes[-BLOCK:]
    blocks, index = [], []
    for start in range(0, len(classes), BLOCK):
        part = classes[start : start + BLOCK]
        packed = [part[i] | part[i + 1] << 2 | part[i + 2] << 4 | part[i + 3] << 6 for i in range(0, BLOCK, 4)]
        if packed not in blocks:
            blocks.append(packed)
        index.append(blocks.index(packed))
    print(
        f"""/*
 * unicode_tables.c - letters, numbers and spaces, as tokenizers {tokenizers.__version__} sees them
 *
 * Written by scripts/data/unicode-tables.py: do not edit. {classes.count(LETTER)} letters, \
{classes.count(NUMBER)} numbers, {classes.count(SPACE)} spaces.
 */
#include "tokenizer/unicode.h"

/* clang-format off */
const uint8_t unicode_block_index[UNICODE_N_BLOCKS] = {{"""
    )
    assert len(index) == 804 and len(blocks) <= 256, (len(index), len(blocks))
    print("\n".join(rows(index)))
    print("};\n")
    print(f"const uint8_t unicode_blocks[][{BLOCK // 4}] = {{")
    for block in blocks:
        print("    {")
        print("\n".join(rows(block)))
        print("    },")
    print("};\n/* clang-format on */")


if __name__ == "__main__":
    main()
