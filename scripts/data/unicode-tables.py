#!/usr/bin/env python3
"""Write lib/tokenizer/unicode/unicode_tables.c: general categories, and what NFC needs, as HF tokenizers sees them.

Run by hand; the result is committed. Everything is asked of the library itself, because its regex engine and its
normalizer have Unicode versions of their own and our ids must be its ids.
    python scripts/data/unicode-tables.py > lib/tokenizer/unicode/unicode_tables.c      (tokenizers 0.23.3)
"""
import unicodedata

import tokenizers
from tokenizers import Regex, normalizers
from tokenizers.pre_tokenizers import Split

CATEGORIES = "Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cs".split()
BLOCK = 256
CODES = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
HANGUL = range(0xAC00, 0xAC00 + 11172)
NFC, NFD = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str


def members(pattern):
    """The code points that a pattern of one character matches."""
    split, found = Split(Regex(pattern), "removed"), []
    for start in range(0, len(CODES), 4096):
        part = CODES[start : start + 4096]
        left = set()
        for _, (first, end) in split.pre_tokenize_str("".join(map(chr, part))):
            left.update(range(first, end))
        found += [code for i, code in enumerate(part) if i not in left]
    return found


def categories():
    of = [CATEGORIES.index("Cn")] * 0x110000
    for code in range(0xD800, 0xE000):
        of[code] = CATEGORIES.index("Cs")
    for i, name in enumerate(CATEGORIES[:-1]):
        for code in members(rf"\p{{{name}}}"):
            of[code] = i
    return of


def combining_classes():
    """Of each code point, by how it is sorted among marks whose class is known."""

    def comes_behind(mark, code):  # whether class(mark) < class(code), both not 0
        return mark != chr(code) and NFD("a" + chr(code) + mark) == "a" + mark + chr(code)

    known = {1: "\u0334"}
    own = [c for c in CODES if NFD(chr(c)) == chr(c)]
    marks = [c for c in own if c == 0x345 or comes_behind("\u0334", c) or comes_behind(chr(c), 0x345)]
    for code in marks:
        known.setdefault(unicodedata.combining(chr(code)), chr(code))
    known.pop(0, None)
    order = sorted(known)
    of = {}
    for code in marks:
        behind = [k for k in order if comes_behind(known[k], code)]
        of[code] = order[len(behind)]  # the least class that does not come before it
        assert not comes_behind(chr(code), ord(known[of[code]])), hex(code)
        assert behind == order[: len(behind)], hex(code)
    return of


def decompositions():
    """(code, first, second, whether the two compose) by one step; second is 0 if there is one only."""
    result = []
    of_whole = {NFD(chr(code)): chr(code) for code in CODES if len(NFD(chr(code))) == 2}
    for code in CODES:
        whole = NFD(chr(code))
        if whole == chr(code) or code in HANGUL:
            continue
        if len(whole) == 1:
            result.append((code, ord(whole), 0, 0))
            continue
        composes = NFC(whole) == chr(code)
        head = NFC(whole[:-1])
        if composes and len(head) == 1:
            result.append((code, ord(head), ord(whole[-1]), 1))
        else:  # is excluded from composition: as two, of which the first may be one that decomposes
            first = whole[0] if len(whole) == 2 else head if len(head) == 1 else of_whole[whole[:-1]]
            result.append((code, ord(first), ord(whole[-1]), 0))
    return result


def inert(classes, pairs):
    """Code points that NFC leaves as they are and that nothing before them changes."""
    seconds = {second for _, _, second, composes in pairs if composes}
    hangul = set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    return [
        not (0xD800 <= code < 0xE000)
        and code not in classes
        and code not in seconds
        and code not in hangul
        and NFC(chr(code)) == chr(code)
        for code in range(0x110000)
    ]


def print_rows(cells):
    line = "   "
    for cell in cells:
        text = f" {cell},"
        if len(line) + len(text) > 100:
            print(line)
            line = "   "
        line += text
    print(line)


def print_table(head, cells):
    print(f"\n{head} = {{")
    print_rows(cells)
    print("};")


def runs(values):
    return [(code, value) for code, value in enumerate(values) if code == 0 or values[code - 1] != value]


def main():
    category, classes = categories(), combining_classes()
    pairs = decompositions()
    category_runs = runs(category)
    class_runs = runs([classes.get(code, 0) for code in range(0x110000)])
    flags, blocks, index = inert(classes, pairs), [], []
    for start in range(0, 0x110000, BLOCK):
        part = [sum(flags[start + i + bit] << bit for bit in range(8)) for i in range(0, BLOCK, 8)]
        if part not in blocks:
            blocks.append(part)
        index.append(blocks.index(part))
    assert len(blocks) <= 256
    print(
        f"""/*
 * unicode_tables.c - categories and canonical compositions, as tokenizers {tokenizers.__version__} sees them
 *
 * Written by scripts/data/unicode-tables.py: do not edit.
 */
#include "tokenizer/unicode/unicode.h"

/* clang-format off */"""
    )
    print(f"const int unicode_n_category_runs = {len(category_runs)};")
    print_table("const uint32_t unicode_category_runs[]", [hex(code << 8 | value) for code, value in category_runs])
    print(f"\nconst int unicode_n_class_runs = {len(class_runs)};")
    print_table("const uint32_t unicode_class_runs[]", [hex(code << 8 | value) for code, value in class_runs])
    print(f"\nconst int unicode_n_pairs = {len(pairs)};")
    print_table(
        "const struct unicode_pair unicode_pairs[]",
        [f"{{ {hex(code)}, {hex(first)}, {hex(second)}, {composes} }}" for code, first, second, composes in pairs],
    )
    composed = sorted((i for i, pair in enumerate(pairs) if pair[3]), key=lambda i: pairs[i][1:3])
    print(f"\nconst int unicode_n_composed = {len(composed)};")
    print_table("const uint16_t unicode_composed[]", composed)
    print_table("const uint8_t unicode_inert_index[UNICODE_N_BLOCKS]", index)
    print(f"\nconst uint8_t unicode_inert_blocks[][{BLOCK // 8}] = {{")
    for block in blocks:
        print("    {")
        print_rows(block)
        print("    },")
    print("};\n/* clang-format on */")


if __name__ == "__main__":
    main()
