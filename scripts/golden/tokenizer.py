#!/usr/bin/env python3
"""Write test/tokenizer/golden/: probe texts with the ids that HF tokenizers and sentencepiece give them.

Run by hand from the repository's root; the results are committed. Made with tokenizers 0.23.3, sentencepiece 0.2.3.
    python scripts/golden/tokenizer.py [NAME...]
A line of NAME.txt is a probe as hex bytes of UTF-8, a tab, and its ids. small.json is a tokenizer of its own with
what the KJV one does not have: a prefix space, merges as "a b", ignore_merges, added tokens of both passes that are
prefixes of each other. qwen.json splits and normalizes as Qwen2 does and has added tokens with every flag, deepseek.json
splits as DeepSeek-V3 does; llama.json is of characters, with bytes for what it lacks and a template; bpe.model and
unigram.model are SentencePiece models, trained here.
"""
import json
import lzma
import os
import random
import sys

import sentencepiece
from tokenizers import Tokenizer, models, trainers

FOLDER = "test/tokenizer/golden"
PIECES = [
    "a", "the", "The", " LORD", "God", "Ab", "zz", "'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'", "''", "'lo",
    "1", "42", "1611", "\u00bd", "\u00b2", "\u2167", "\u0664", "\u4e00\u4e8c", "\u00e9", "e\u0301", "\u00df", "\u03a9", "\u0416",
    "\u05d0", "\u0639\u0631", "\u0e01\u0e34", "\uac00", "\U0001f600", "\U0001f468\u200d\U0001f469", "\U00020000", "\U0010ffff", "\ufeff",
    " ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u2028", "\u0085", "\u200b", "\u001c", "\u0000", "\v",
    ".", "...", "!?", "-", "--", "_", "#", "$", "\u2014", "\u201c", "<", "<|", "|>", "\\", "/", "{}", "<|endoftext|>",
    "<|endoftext|", "<a>", "<a><b>", "<ab>", "ADDED", "ADD", "added",
]  # fmt: skip


# What the tokenizers beside those of GPT-2's kind look at.
MORE_PIECES = PIECES + [
    "12345", "e\u0301\u0323", "\u1e69", "s\u0323\u0307", "\u212b", "\u212a", "\u017f", "'\u017f", "'S", "'LL", "\u1100\u1161\u11a8",
    "\uac01", "\u0344", "\ufb2c", "\u4e00\u4e8c\u4e09", "\u3042\u30ab", "!word", "$x", "?\n", "  \n", "LEFT", " LEFT", "RIGHT ", "WORD",
    " WORD ", "AWORD", "\u2581", "\u2581\u2581", "    ", "<s>", "</s>", "<unk>", "<0x41>", "\ufb01", "\uff13", "\u2460", "\u00bd", "A\u030a",
]  # fmt: skip


def more_probes():
    rng = random.Random(4)
    yield from MORE_PIECES
    for _ in range(150):
        yield "".join(rng.choice(MORE_PIECES) for _ in range(rng.randrange(2, 12)))
    for n in (1, 31, 257):
        yield "a" * n
        yield " " * n + "x" + " " * n


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


LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)  # fmt: skip
DEEPSEEK3 = [
    r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^" + "\r\n" + r"\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+["
    + "\r\n" + r"]*|\s*[" + "\r\n" + r"]+|\s+(?!\S)|\s+",
]  # fmt: skip


def byte_level(*patterns):
    splits = [{"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in patterns]
    last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": splits + [last]}


def flagged_tokens(first_id):
    base = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    rows = [("<|endoftext|>", {}), ("LEFT", {"lstrip": True}), ("RIGHT", {"rstrip": True}), ("WORD", {"single_word": True}),
            ("A\u030aDD", {"normalized": True, "special": False})]  # fmt: skip
    return [{**base, "content": text, "id": first_id + i, **flags} for i, (text, flags) in enumerate(rows)]


def save(name, spec):
    path = f"{FOLDER}/{name}.json"
    with open(path, "w") as file:
        json.dump(spec, file, ensure_ascii=False)
        file.write("\n")
    return path


def like_small(name, normalizer, pre_tokenizer):
    with open(small_tokenizer()) as file:
        spec = json.load(file)
    spec.update(normalizer=normalizer, pre_tokenizer=pre_tokenizer)
    spec["model"]["ignore_merges"] = False
    spec["added_tokens"] = flagged_tokens(len(spec["model"]["vocab"]))
    return save(name, spec)


def qwen_tokenizer():
    return like_small("qwen", {"type": "NFC"}, byte_level(LLAMA3.replace("{1,3}", "")))


def deepseek_tokenizer():
    return like_small("deepseek", {"type": "Sequence", "normalizers": []}, byte_level(*DEEPSEEK3))


def text_lines():
    with lzma.open("data/kjv/heldout.txt.xz", "rt", newline="") as file:
        return file.read().split("\n")[:600]


def llama_tokenizer():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    words = ("▁" + word for line in text_lines() for word in line.split())
    tokenizer.train_from_iterator(words, trainers.BpeTrainer(vocab_size=600, special_tokens=special, show_progress=False))
    spec = json.loads(tokenizer.to_str())
    vocab, merges = spec["model"]["vocab"], spec["model"]["merges"]
    vocab["▁▁"] = len(vocab)
    merges.append(["▁", "▁"])
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    spec["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace]}
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    spec["decoder"] = {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, strip]}
    spec["added_tokens"] = [token for token in spec["added_tokens"] if token["id"] < 3] + flagged_tokens(len(vocab))
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    spec["post_processor"] = {
        "type": "TemplateProcessing", "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [bos, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }  # fmt: skip
    return save("llama", spec)


def train(name, vocab_size, **options):
    text = f"{FOLDER}/{name}.txt"  # written over by the probes
    with open(text, "w") as file:
        file.write("\n".join(line for line in text_lines() if line) + "\n")
    sentencepiece.SentencePieceTrainer.train(
        input=text, model_prefix=f"{FOLDER}/{name}", vocab_size=vocab_size, minloglevel=2, num_threads=1, **options
    )
    os.remove(f"{FOLDER}/{name}.vocab")
    return f"{FOLDER}/{name}.model"


def bpe_model():
    return train("bpe", 700, model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
                 remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, split_digits=True,
                 user_defined_symbols=["▁▁▁▁", "WORD", "<a>", "<a><b>"], control_symbols=["<mask>"])  # fmt: skip


def unigram_model():
    rules = f"{FOLDER}/rules.tsv"  # a few of NFKC's, which as a whole takes 240 kB
    with open(rules, "w") as file:
        pairs = [("\u212b", "\u00c5"), ("\ufb01", "fi"), ("\uff13", "3"), ("\u2460", "1"), ("\u00bd", "1\u20442"), ("\u3000", " "),
                 ("\t", " "), ("\n", " "), ("A\u030a", "\u00c5"), ("\u00a0", " "), ("\u2028", " "), ("\u017f", "s")]  # fmt: skip
        for source, target in pairs:
            file.write(" ".join(f"{ord(c):X}" for c in source) + "\t" + " ".join(f"{ord(c):X}" for c in target) + "\n")
    path = train("unigram", 500, model_type="unigram", normalization_rule_tsv=rules, user_defined_symbols=["ADD", "the"])
    os.remove(rules)
    return path


def write(name, path, texts):
    if path.endswith(".json"):
        tokenizer = Tokenizer.from_file(path)
    else:
        processor = sentencepiece.SentencePieceProcessor(model_file=path)
    with open(f"{FOLDER}/{name}.txt", "w") as file:
        for probe in dict.fromkeys(texts):
            if path.endswith(".json"):
                ids = tokenizer.encode(probe, add_special_tokens=False).ids
            else:
                ids = processor.encode(probe)
            file.write(probe.encode().hex() + "\t" + " ".join(map(str, ids)) + "\n")


def main():
    makers = {
        "kjv": (lambda: "data/kjv-tokenizer/tokenizer.json", probes), "small": (small_tokenizer, probes),
        "qwen": (qwen_tokenizer, more_probes), "deepseek": (deepseek_tokenizer, more_probes),
        "llama": (llama_tokenizer, more_probes), "bpe": (bpe_model, more_probes), "unigram": (unigram_model, more_probes),
    }  # fmt: skip
    for name in sys.argv[1:] or makers:
        make, texts = makers[name]
        write(name, make(), texts())


if __name__ == "__main__":
    main()
