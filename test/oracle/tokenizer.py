#!/usr/bin/env python3
"""`lmtrain data tokenize` against HF tokenizers, sentencepiece and tiktoken: ids of much text, and of every code point.

The tokenizers are the committed ones, ones of every kind that is supported made here from them (the patterns and
normalizers of published models over a small vocabulary; tokenizer.json, ranks, vocab.json with merges.txt),
SentencePiece models trained here, those as Unigram in tokenizer.json, and every file in the folder $LMTRAIN_TOKENIZERS
(published tokenizer.json and .model files). Also that the committed goldens are still what the libraries say.
Texts are as long as the libraries are fast: HF 2 MB/s, sentencepiece 5. Arguments: checks, by the start of their names.
Prints, last, `N passed, N failed`.
"""
import array
import base64
import copy
import functools
import glob
import json
import lzma
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

from tokenizers import Tokenizer, models, trainers

try:
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2
except ImportError:
    sentencepiece = None
try:
    import tiktoken
except ImportError:
    tiktoken = None

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LMTRAIN = os.environ.get("LMTRAIN", os.path.join(ROOT, "build", "lmtrain"))
GOLDEN = os.path.join(ROOT, "test", "tokenizer", "golden")
KJV = os.path.join(ROOT, "data", "kjv-tokenizer", "tokenizer.json")

# ---- text ------------------------------------------------------------------------------------------


def bible(part, n_characters=None):
    with lzma.open(os.path.join(ROOT, "data", "kjv", f"{part}.txt.xz"), "rt", newline="") as file:
        return [file.read()[:n_characters]]


def source_code():
    """Every eighth header of the system's libraries: text that does not change with each commit."""
    for path in sorted(glob.glob("/usr/include/*.h"))[::8]:
        if os.path.isfile(path):
            with open(path) as file:
                yield file.read()


def is_usual(code):
    """One of the thousands of ideographs, syllables, private and unassigned ones that are all alike, but for a few."""
    character = chr(code)
    if 0xAC00 <= code < 0xD7A4:
        return code % 5 != 0  # prime to 28: with every consonant at the end
    return code % 32 != 0 and (
        unicodedata.category(character) in ("Cn", "Co") or unicodedata.name(character, "").startswith(
            ("CJK UNIFIED", "TANGUT IDEO", "EGYPTIAN HIEROGLYPH", "CUNEIFORM", "ANATOLIAN HIERO", "NUSHU", "BAMUM LETTER")))


def by_code_points(form, chosen=lambda code: True):
    """Documents of form for 256 code points each."""
    codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000 and chosen(code)]
    for start in range(0, len(codes), 256):
        yield "".join(form.replace("C", chr(code)) for code in codes[start : start + 256])


def all_code_points():
    return by_code_points("aC C1")


def code_points_at_length():
    """Nearly each between letters, digits, marks, spaces and doubled."""
    return by_code_points("aCa 1C1!C! CC C\nC'Cs", lambda code: not is_usual(code))


def code_points_briefly():
    """Nearly each after a letter, before a number, after a space, with a mark, and within a case-blind contraction."""
    return by_code_points("aC1 C\u0323'C.", lambda code: not is_usual(code))


def mixed_scripts():
    """Chinese, Japanese, Korean, Arabic, Hindi, Thai, accents composed and not, emoji, odd spaces."""
    rng = random.Random(11)
    words = (
        "天地玄黃 宇宙洪荒。日月盈昃，辰宿列张 人工智能 语言模型的训练 ひらがな カタカナ 日本語 한국어 학습 각 العربية لغة "
        "हिन्दी भाषा ภาษาไทย Ελληνικά русский язык עברית déjà déjà Ångström Å ệ ộ ñ 2024年12月31日 ３．１４ "
        "①②③ ½ ⅷ 🙂 👨‍👩‍👧 🇨🇳 ﬁne ſ 'ſ don't DON'T I'LL K \u212a \u1100\u1161\u11a8 … “quoted” — fast\u00a0space \u3000"
    ).split(" ")
    for _ in range(400):
        separators = (" ", " ", "", "", "\n", "  ", "\t", "\u3000", "，", "1", "12345", "\u00a0")
        yield "".join(rng.choice(words) + rng.choice(separators) for _ in range(rng.randrange(1, 80)))


def noise():
    """Random code points, mostly from a few blocks, with the apostrophes and spaces that make splits hard."""
    rng = random.Random(3)
    blocks = [(0x20, 0x7F), (0x20, 0x7F), (0, 0x100), (0x300, 0x370), (0x600, 0x700), (0x2000, 0x2070), (0x4E00, 0x4F00),
              (0x1F600, 0x1F640), (0x10000, 0x10FFFF)]  # fmt: skip
    common = [" ", "  ", "\n", "\t", "'s", "'ll", "'", "the", "\u3000", "<|endoftext|>", "<a><b>", "ADDED", "0", ".",
              "\u2581", "<s>", "<unk>", "<0x41>", "LEFT", "RIGHT", "WORD", "123456", "\r\n", "    "]  # fmt: skip
    for _ in range(1500):
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


# ---- tokenizers ------------------------------------------------------------------------------------

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)  # fmt: skip
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN35 = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)  # fmt: skip
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + CONTRACTIONS + "?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + CONTRACTIONS + "?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
])  # fmt: skip
DEEPSEEK3 = [
    r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^" + "\r\n" + r"\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+["
    + "\r\n" + r"]*|\s*[" + "\r\n" + r"]+|\s+(?!\S)|\s+",
]  # fmt: skip
DEEPSEEK1 = ["[\r\n]", r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿ]+",
             r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", "[一-龥ࠀ-一가-퟿]+"]  # fmt: skip
BLOOM = " ?[^(\\s|[.,!?…。，、।۔،])]+"


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def byte_level(use_regex=False):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def sequence(*parts):
    return {"type": "Sequence", "pretokenizers": list(parts)}


DIGITS = {"type": "Digits", "individual_digits": True}
NFC = {"type": "NFC"}
BYTE_KINDS = {
    "llama3": (None, sequence(split(LLAMA3), byte_level())),
    "qwen2": (NFC, sequence(split(QWEN2), byte_level())),
    "qwen3.5": (NFC, sequence(split(QWEN35), byte_level())),
    "o200k": (None, sequence(split(O200K), byte_level())),
    "deepseek3": ({"type": "Sequence", "normalizers": []}, sequence(*map(split, DEEPSEEK3), byte_level())),
    "deepseek1": (None, sequence(*map(split, DEEPSEEK1), DIGITS, byte_level())),
    "bloom": (None, sequence(split(BLOOM), byte_level())),
    "smollm": (None, sequence(DIGITS, byte_level(True))),
    "behaviors": (None, sequence(split(r"\p{Lu}", "MergedWithNext"), split("[.!?]", "MergedWithPrevious"),
                                 split("[a-m]", "Contiguous"), split("(?:x|yz)+|\\d", "Removed"), byte_level())),
    "inverted": (None, sequence(split(r"\p{L}+", "Removed", True), split("e", "MergedWithNext", True), byte_level())),
}  # fmt: skip


def added_tokens(first_id, in_vocabulary=()):
    """With every flag; those of in_vocabulary first, with their ids."""
    base = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    rows = [{**base, "content": text, "id": id} for text, id in in_vocabulary]
    extra = [("<a>", {}), ("<a><b>", {}), ("LEFT", {"lstrip": True}), ("RIGHT", {"rstrip": True}),
             ("BOTH", {"lstrip": True, "rstrip": True}), ("WORD", {"single_word": True}),
             ("ADD ED", {"normalized": True, "special": False}), ("ADD", {"normalized": True, "special": False}),
             ("e\u0301lan", {"normalized": True, "special": False})]  # fmt: skip
    return rows + [{**base, "content": text, "id": first_id + i, **flags} for i, (text, flags) in enumerate(extra)]


def save(folder, name, spec):
    path = os.path.join(folder, name + ".json")
    with open(path, "w") as file:
        json.dump(spec, file, ensure_ascii=False)
    return path


def byte_tokenizers(folder):
    with open(KJV) as file:
        base = json.load(file)
    for name, (normalizer, pre_tokenizer) in BYTE_KINDS.items():
        spec = copy.deepcopy(base)
        spec.update(normalizer=normalizer, pre_tokenizer=pre_tokenizer)
        spec["model"]["ignore_merges"] = name in ("llama3", "o200k")
        spec["added_tokens"] = added_tokens(len(spec["model"]["vocab"]), [("<|endoftext|>", 0)])
        yield name, save(folder, name, spec)


GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
RANK_KINDS = {"gpt2": GPT2, "cl100k": LLAMA3, "o200k": O200K, "qwen": QWEN2}


def bytes_of_characters():
    """GPT-2's: bytes that are no visible character of Latin-1 stand at 256 and on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + i): byte for i, byte in enumerate(others)}


def rank_folders(folder):
    """tiktoken's files, of the KJV vocabulary; its one special token, the first, comes from beside them."""
    with open(KJV) as file:
        vocab = json.load(file)["model"]["vocab"]
    to_byte = bytes_of_characters()
    ranks = {bytes(map(to_byte.get, token)): id for token, id in vocab.items() if id > 0}
    for name, pattern in RANK_KINDS.items():
        path = os.path.join(folder, "ranks-" + name)
        os.mkdir(path)
        with open(os.path.join(path, "kjv.tiktoken"), "w") as file:
            file.writelines(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items())
        special = {"<|endoftext|>": 0, "ADDED": len(ranks) + 1}
        save(path, "tokenizer_config", {
            "pat_str": pattern,
            "added_tokens_decoder": {id: {"content": text, "special": True} for text, id in special.items()},
        })  # fmt: skip
        known = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
        yield "ranks " + name, path, functools.partial(known.encode, allowed_special="all")


def merge_folders(folder):
    """vocab.json and merges.txt as published with GPT-2 and Qwen2, which transformers reads by their class."""
    from transformers import AutoTokenizer

    with open(KJV) as file:
        model = json.load(file)["model"]
    vocab = model["vocab"] | {"<|im_start|>": len(model["vocab"])}
    for kind in ("GPT2Tokenizer", "Qwen2Tokenizer"):
        path = os.path.join(folder, kind)
        os.mkdir(path)
        save(path, "vocab", vocab)
        with open(os.path.join(path, "merges.txt"), "w") as file:
            file.write("#version: 0.2\n")
            file.writelines(" ".join(pair) + "\n" for pair in model["merges"])
        flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
        save(path, "tokenizer_config", {
            "tokenizer_class": kind, "eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>", "unk_token": "<|endoftext|>",
            "added_tokens_decoder": {0: flags | {"content": "<|endoftext|>"},
                                     vocab["<|im_start|>"]: flags | {"content": "<|im_start|>"}},
        })  # fmt: skip
        yield "merges " + kind, path, AutoTokenizer.from_pretrained(path).backend_tokenizer


PREPEND = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
           {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}  # fmt: skip
LLAMA_DECODER = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                 {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}  # fmt: skip


def metaspace(scheme, splits):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": splits}


def character_tokenizers(folder):
    """As Llama-2's and Mistral's tokenizer.json: trained here, by words that begin with a mark."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    words = ("▁" + word for text in bible("train", 400_000) for word in text.split())
    tokenizer.train_from_iterator(words, trainers.BpeTrainer(vocab_size=2000, special_tokens=special, show_progress=False))
    base = json.loads(tokenizer.to_str())
    vocab = base["model"]["vocab"]
    for run in ("▁▁", "▁▁▁▁"):
        vocab[run] = len(vocab)
        half = run[: len(run) // 2]
        base["model"]["merges"].append([half, half])
    base["decoder"] = LLAMA_DECODER
    base["added_tokens"] = added_tokens(len(vocab), [("<unk>", 0), ("<s>", 1), ("</s>", 2)])
    kinds = {
        "llama2": (PREPEND, None, True),
        "metaspace-first": (None, metaspace("first", False), True),
        "metaspace-always": (None, metaspace("always", True), True),
        "metaspace-never": (NFC, metaspace("never", True), True),
        "unknown-fused": (PREPEND, None, False),
        "unknown-each": (None, metaspace("always", False), False),
    }
    for name, (normalizer, pre_tokenizer, byte_fallback) in kinds.items():
        spec = copy.deepcopy(base)
        spec.update(normalizer=normalizer, pre_tokenizer=pre_tokenizer)
        spec["model"].update(byte_fallback=byte_fallback, fuse_unk=name != "unknown-each")
        yield name, save(folder, name, spec)


SPM_KINDS = {
    # as Llama-2 and Mistral
    "bpe-llama": dict(model_type="bpe", byte_fallback=True, normalization_rule_name="identity", add_dummy_prefix=True,
                      remove_extra_whitespaces=False, split_digits=True, allow_whitespace_only_pieces=True),
    "bpe-user": dict(model_type="bpe", byte_fallback=True, normalization_rule_name="nfkc", add_dummy_prefix=False,
                     remove_extra_whitespaces=False, user_defined_symbols=["▁▁", "▁▁▁▁", "<a>", "<a><b>", "1", "\t", "the"],
                     control_symbols=["<mask>", "[INST]"]),
    "bpe-across": dict(model_type="bpe", byte_fallback=False, split_by_whitespace=False, max_sentencepiece_length=12),
    "unigram": dict(model_type="unigram"),
    "unigram-bytes": dict(model_type="unigram", byte_fallback=True, normalization_rule_name="nmt_nfkc_cf",
                          user_defined_symbols=["<sep>", "ADD", "the"]),
    "unigram-suffix": dict(model_type="unigram", treat_whitespace_as_suffix=True, normalization_rule_name="identity"),
}  # fmt: skip


def spm_models(folder):
    text = os.path.join(folder, "train.txt")
    rng = random.Random(2)
    with open(text, "w") as file:
        lines = bible("train", 600_000)[0].split("\n") + [line.replace("\n", " ") for line in mixed_scripts()]
        rng.shuffle(lines)
        file.write("\n".join(line.strip()[:2000] for line in lines) + "\n")
    for name, options in SPM_KINDS.items():
        prefix = os.path.join(folder, name)
        sentencepiece.SentencePieceTrainer.train(
            input=text, model_prefix=prefix, vocab_size=3000, character_coverage=0.99, num_threads=2, minloglevel=2, **options
        )
        yield name, prefix + ".model"
        if name in ("bpe-llama", "bpe-across"):
            yield "unused " + name, with_unused(prefix)


def with_unused(prefix):
    """Every third piece that is merged, but for the very frequent ones, comes out as its parts; so do some single characters."""
    model = sentencepiece_model_pb2.ModelProto()
    with open(prefix + ".model", "rb") as file:
        model.ParseFromString(file.read())
    normal = [piece for piece in model.pieces if piece.type == model.SentencePiece.NORMAL]
    for piece in normal[50::3]:
        piece.type = model.SentencePiece.UNUSED
    with open(prefix + "-unused.model", "wb") as file:
        file.write(model.SerializeToString())
    return prefix + "-unused.model"


def of_model(path):
    """Its pieces with their scores, and its normalizer's rules, as a tokenizer.json has them."""
    model = sentencepiece_model_pb2.ModelProto()
    with open(path, "rb") as file:
        model.ParseFromString(file.read())
    rules = base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()
    return [[piece.piece, piece.score] for piece in model.pieces], {"type": "Precompiled", "precompiled_charsmap": rules}


def unigram_tokenizers(folder, path):
    """As T5's, XLM-R's and a byte fallback's tokenizer.json, of a SentencePiece model."""
    pieces, rules = of_model(path)
    spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}
    strip = {"type": "Strip", "strip_left": False, "strip_right": True}
    missing = [[f"<0x{byte:02X}>", 0.0] for byte in range(256)]
    kinds = {
        "t5": (rules, sequence({"type": "WhitespaceSplit"}, metaspace("always", True)), pieces, False),
        "xlmr": ({"type": "Sequence", "normalizers": [rules, strip, spaces]}, metaspace("always", True), pieces, False),
        "bytes": (None, metaspace("first", False), pieces + missing, True),
    }
    for name, (normalizer, pre_tokenizer, vocab, byte_fallback) in kinds.items():
        yield "unigram json " + name, save(folder, "unigram-" + name, {
            "version": "1.0", "truncation": None, "padding": None, "post_processor": None,
            "added_tokens": added_tokens(len(vocab), [("<unk>", 0), ("<s>", 1), ("</s>", 2)]),
            "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "decoder": metaspace("always", True),
            "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": byte_fallback, "vocab": vocab},
        })  # fmt: skip


def passages():
    """The held-out text in pieces of a few kB."""
    lines = bible("heldout")[0].split("\n")
    return ["\n".join(lines[i : i + 40]) for i in range(0, len(lines), 40)]


# ---- checks ----------------------------------------------------------------------------------------


def our_ids(folder, tokenizer, texts):
    """Ids of each text by one run over a JSONL file."""
    lines, prefix = os.path.join(folder, "in.jsonl"), os.path.join(folder, "out")
    with open(lines, "w") as file:
        for text in texts:
            file.write(json.dumps({"text": text}) + "\n")
    command = [LMTRAIN, "data", "tokenize", lines, "--tokenizer", tokenizer, "--out", prefix, "--no-eod"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with open(prefix + ".idx", "rb") as file:
        index = file.read()
    tokens = array.array({8: "H", 4: "i"}[index[17]])
    with open(prefix + ".bin", "rb") as file:
        tokens.frombytes(file.read())
    n = int.from_bytes(index[18:26], "little")
    lengths = array.array("i", index[34 : 34 + 4 * n])
    assert n == len(texts), f"{n} documents of {len(texts)}"
    start = 0
    for length in lengths:
        yield tokens[start : start + length].tolist()
        start += length


@functools.lru_cache(maxsize=1)  # checks come tokenizer by tokenizer
def library_of(path):
    return Tokenizer.from_file(path) if path.endswith(".json") else sentencepiece.SentencePieceProcessor(model_file=path)


def their_ids(library, texts):
    """By the library, or a function of it."""
    if isinstance(library, Tokenizer):
        return [encoding.ids for encoding in library.encode_batch_fast(texts, add_special_tokens=False)]
    return list(map(library if callable(library) else library.encode, texts))


@functools.lru_cache(maxsize=None)
def texts_of(make):
    return [text for text in make() if text]


def check_texts(folder, path, make, library=None):
    texts = texts_of(make)
    expected = their_ids(library or library_of(path), texts)
    pairs = [(text, ids) for text, ids in zip(texts, expected) if ids]  # a text without ids is left out as empty
    assert len(pairs) > 0.7 * len(texts), f"{make.__name__}: {len(pairs)} texts of {len(texts)} have ids"
    for (text, theirs), ours in zip(pairs, our_ids(folder, path, [text for text, _ in pairs])):
        if ours != theirs:
            at = next((i for i, pair in enumerate(zip(ours, theirs)) if pair[0] != pair[1]), -1)
            before = max(at - 3, 0)
            raise AssertionError(
                f"{make.__name__}: {text[:60]!r}: id {at} of {len(ours)} and {len(theirs)}: {ours[before : at + 4]} and "
                f"{theirs[before : at + 4]}"
            )


def check_golden(path, golden):
    with open(golden) as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    texts = [bytes.fromhex(probe).decode() for probe, _ in rows]
    for text, (_, ids), now in zip(texts, rows, their_ids(library_of(path), texts)):
        assert now == [int(id) for id in ids.split()], f"{text!r} is now {now}"


def heldout():
    return bible("heldout")


def train():
    return bible("train")


def checks(folder):
    """(name, function, arguments)"""
    usual = (heldout, noise, long_words, mixed_scripts, source_code, code_points_briefly)

    def texts(name, path, makers, library=None):
        return [(f"{name} {make.__name__}", check_texts, (folder, path, make, library)) for make in makers]

    yield from texts("kjv", KJV, (train, all_code_points, code_points_at_length, *usual))
    yield from texts("small", os.path.join(GOLDEN, "small.json"), usual)
    for golden in sorted(glob.glob(os.path.join(GOLDEN, "*.txt"))):
        name = os.path.basename(golden)[:-4]
        paths = [KJV] if name == "kjv" else glob.glob(os.path.join(GOLDEN, name + ".json"))
        paths = paths or glob.glob(os.path.join(GOLDEN, name + ".model"))
        if paths[0].endswith(".json") or sentencepiece:
            yield f"golden {name}", check_golden, (paths[0], golden)
    for name, path in byte_tokenizers(folder):
        yield from texts(name, path, usual)
    for name, path in character_tokenizers(folder):
        yield from texts(name, path, usual)
    for name, path, library in merge_folders(folder):
        yield from texts(name, path, usual, library)
    if tiktoken:
        for name, path, library in rank_folders(folder):
            yield from texts(name, path, usual, library)
    else:
        print("skip ranks: there is no tiktoken")
    if sentencepiece:
        for name, path in spm_models(folder):
            yield from texts(name, path, (train, *usual))
        for name, path in unigram_tokenizers(folder, os.path.join(folder, "unigram.model")):
            yield from texts(name, path, (passages, *usual[1:]))
    else:
        print("skip SentencePiece models and Unigram: there is no sentencepiece")
    for path in sorted(glob.glob(os.path.join(os.environ.get("LMTRAIN_TOKENIZERS", "/nowhere"), "*"))):
        yield from texts(os.path.basename(path), path, (train, *usual))


def main():
    failed = n = 0
    wanted = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        for name, check, arguments in checks(folder):
            if wanted and not any(name.startswith(start) for start in wanted):
                continue
            n += 1
            try:
                check(*arguments)
            except (AssertionError, subprocess.CalledProcessError) as error:
                failed += 1
                print(f"FAIL {name}: {error}")
    print(f"{n - failed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
