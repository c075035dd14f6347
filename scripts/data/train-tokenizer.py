#!/usr/bin/env python3
"""Train a byte-level BPE with the GPT-2 split on a text file and write tokenizer.json.

Run by hand; the result is committed:
    xz -dc data/kjv/train.txt.xz > /tmp/train.txt
    python scripts/data/train-tokenizer.py /tmp/train.txt data/kjv-tokenizer
Needs the package tokenizers (0.23.3 made the committed file). Training is deterministic.
"""
import argparse
import os

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text")
    parser.add_argument("folder")
    parser.add_argument("--vocab-size", type=int, default=4096)
    options = parser.parse_args()

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=options.vocab_size,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train([options.text], trainer)
    assert tokenizer.get_vocab_size() == options.vocab_size
    os.makedirs(options.folder, exist_ok=True)
    tokenizer.save(os.path.join(options.folder, "tokenizer.json"))


if __name__ == "__main__":
    main()
