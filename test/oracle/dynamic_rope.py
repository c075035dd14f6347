#!/usr/bin/env python3
"""Dynamic NTK in `lmtrain generate` against transformers' greedy generation with its cache.

A tiny random LLaMA in fp32 whose original length is 32: prompts and texts of 20, 48, 64 and 100 positions in all, prompts within and
beyond the original length, alone and side by side. The frequencies are those of the current length and keys keep the
rotation that they were cached with, so ids must be transformers', one by one. Prints, last, `N passed, N failed`.
"""
import copy
import json
import os
import shutil
import subprocess
import sys
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LMTRAIN = os.environ.get("LMTRAIN", os.path.join(ROOT, "build", "lmtrain"))
TOKENIZER = os.path.join(ROOT, "data", "kjv-tokenizer", "tokenizer.json")
TEXT = ("In the beginning God created the heaven and the earth. And the earth was without form, and void; and darkness was "
        "upon the face of the deep. And the Spirit of God moved upon the face of the waters. And God said, Let there be "
        "light: and there was light. And God saw the light, that it was good: and God divided the light from the darkness.")
# Tokens of the prompt, and in all.
CASES = [(12, 20), (12, 48), (12, 64), (12, 100), (31, 48), (32, 40), (33, 48), (40, 64), (48, 56), (64, 72), (70, 100)]


def make(folder):
    torch.manual_seed(5)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=TOKENIZER)
    config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=3,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32, initializer_range=0.3,
                         bos_token_id=None, eos_token_id=None, pad_token_id=None, tie_word_embeddings=False,
                         rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0})
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    shutil.copy(TOKENIZER, folder)
    return tokenizer, model


def expected(model, ids, total):
    model = copy.deepcopy(model)  # it keeps the frequencies of the longest text that it has seen
    with torch.no_grad():
        out = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), do_sample=False,
                             max_new_tokens=total - len(ids), use_cache=True, pad_token_id=0, eos_token_id=None)
    return out[0, len(ids):].tolist()


def ours(folder, prompts, n_new):
    path = os.path.join(folder, "prompts.jsonl")
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts)
    done = subprocess.run([LMTRAIN, "generate", "--model", folder, "--prompts", path, "--temperature", "0", "--json",
                           "--max-new-tokens", str(n_new), "--repetition-penalty", "1"], capture_output=True, encoding="utf-8", errors="replace")
    if done.returncode:
        return done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def main():
    results = []

    def check(name, passed, *why):
        results.append(bool(passed))
        if not passed:
            print("  FAIL", name, *why)

    with tempfile.TemporaryDirectory() as folder:
        tokenizer, model = make(folder)
        ids = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
        prompts = {n: tokenizer.decode(ids[:n]) for n, _ in CASES}
        for n, total in CASES:
            got = ours(folder, [prompts[n]], total - n)
            wanted = expected(model, tokenizer(prompts[n], add_special_tokens=False)["input_ids"], total)
            # What ends a text here goes on there.
            ok = isinstance(got, list) and got[0]["prompt_tokens"] == n and \
                got[0]["ids"] == wanted[:len(got[0]["ids"])] and len(got[0]["ids"]) >= min(4, total - n)
            check(f"{n} tokens, {total} in all", ok, got if isinstance(got, str) else (got[0]["ids"], wanted))
        # Side by side each has its own length.
        several = [12, 33, 64, 31, 48]
        together = ours(folder, [prompts[n] for n in several], 30)
        for i, n in enumerate(several):
            alone = ours(folder, [prompts[n]], 30)
            check(f"{n} tokens among others", isinstance(together, list) and together[i]["ids"] == alone[0]["ids"])
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
