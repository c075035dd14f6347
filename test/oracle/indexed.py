#!/usr/bin/env python3
"""Token files of lmtrain against megatron-core's IndexedDatasetBuilder and IndexedDataset.

Both write the same documents, for several vocabularies: the files must be equal byte for byte. megatron-core must read
ours, and `lmtrain data inspect` must take its files, of every integer type. Prints, last, `N passed, N failed`.
"""
import json
import logging
import os
import random
import subprocess
import sys
import tempfile

import numpy
import torch
from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, IndexedDatasetBuilder
from tokenizers import Tokenizer

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LMTRAIN = os.environ.get("LMTRAIN", os.path.join(ROOT, "build", "lmtrain"))
KJV = os.path.join(ROOT, "data", "kjv-tokenizer", "tokenizer.json")
N_VOCABS = (4096, 65499, 65500, 70000)


def padded_tokenizer(folder, n_vocab):
    """The KJV tokenizer with tokens that never occur, so that its vocabulary has n_vocab."""
    with open(KJV) as file:
        spec = json.load(file)
    vocab = spec["model"]["vocab"]
    vocab.update({f"unused {id}": id for id in range(len(vocab), n_vocab)})
    path = os.path.join(folder, f"{n_vocab}.json")
    with open(path, "w") as file:
        json.dump(spec, file)
    return path


def documents():
    rng = random.Random(7)
    words = "In the beginning God created heaven earth \u4e00 \u00e9t\u00e9 1611".split()
    return [" ".join(rng.choice(words) for _ in range(rng.randrange(1, 400))) for _ in range(57)]


def build(prefix, dtype, ids):
    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=dtype)
    for document in ids:
        builder.add_document(torch.tensor(document, dtype=torch.int64), [len(document)])
    builder.finalize(prefix + ".idx")


def same_file(a, b):
    with open(a, "rb") as x, open(b, "rb") as y:
        return x.read() == y.read()


def check_writer(folder, n_vocab, end_of_text):
    tokenizer = padded_tokenizer(folder, n_vocab)
    hf, texts = Tokenizer.from_file(tokenizer), documents()
    lines = os.path.join(folder, "in.jsonl")
    with open(lines, "w") as file:
        for text in texts:
            file.write(json.dumps({"text": text}) + "\n")
    ours, theirs = os.path.join(folder, "ours"), os.path.join(folder, "theirs")
    command = [LMTRAIN, "data", "tokenize", lines, "--tokenizer", tokenizer, "--out", ours]
    subprocess.run(command + ([] if end_of_text else ["--no-eod"]), check=True, stdout=subprocess.DEVNULL)
    ids = [hf.encode(text).ids + ([hf.token_to_id("<|endoftext|>")] if end_of_text else []) for text in texts]
    build(theirs, DType.optimal_dtype(n_vocab), ids)
    assert same_file(ours + ".bin", theirs + ".bin"), ".bin differs"
    assert same_file(ours + ".idx", theirs + ".idx"), ".idx differs"
    read = IndexedDataset(ours)
    assert [list(map(int, read[i])) for i in range(len(read))] == ids, "megatron-core reads something else"


def check_reader(folder, dtype):
    """Files of types that we never write, several sequences a document, with what inspect says of them."""
    prefix = os.path.join(folder, dtype.__name__)
    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=dtype)
    lengths = [[3, 0, 4], [1], [2, 2]]
    for document in lengths:
        builder.add_document(torch.arange(sum(document)), document)
    builder.finalize(prefix + ".idx")
    command = [LMTRAIN, "data", "inspect", prefix, "--json"]
    got = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert (got["tokens"], got["documents"], got["sequences"]) == (12, 3, 6), got
    assert [first["tokens"] for first in got["first"]] == [list(range(sum(d))) for d in lengths], got


def main():
    logging.disable(logging.INFO)
    cases = [(check_writer, n, eod) for n in N_VOCABS for eod in (True, False)]
    integers = (numpy.uint8, numpy.int8, numpy.int16, numpy.uint16, numpy.int32, numpy.int64)
    cases += [(check_reader, dtype) for dtype in integers]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for check, *arguments in cases:
            try:
                check(folder, *arguments)
            except (AssertionError, subprocess.CalledProcessError) as error:
                failed += 1
                print(f"FAIL {check.__name__}{tuple(arguments)}: {error}")
    print(f"{len(cases) - failed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
