#!/usr/bin/env python3
"""The z-loss of the head (train.z_loss) against PyTorch in fp32: loss, what z adds to it, and every gradient.

The models and conversations of finetune.py, of which only answers are learned: masks are uneven. One step of plain
gradient descent at rate 1, so that a weight's gradient is what it loses. The head is tied or not, whole or divided by its
vocabulary over tensor-parallel ranks, and in chunks or at once. Prints, last, `N passed, N failed`.
"""
import json
import os
import sys
import tempfile

import torch
import transformers

sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # behind all others: its files are called what they test
import finetune  # noqa: E402
from finetune import check  # noqa: E402

Z = 0.02
# Name, model, what else the job says.
CASES = (("tied", "tied", ""), ("untied", "bias", ""), ("gpt2", "gpt2", ""), ("packed", "tied", ""),
         ("tp 2", "tied", "parallel: {tp: 2}\nranks: 2"), ("untied tp 2", "bias", "parallel: {tp: 2}\nranks: 2"),
         ("dp 2 zero 3", "tied", "parallel: {zero: 3}\nranks: 2"))


def ours(name, kind, extra):
    """Loss, what z adds, gradient norm, and each gradient."""
    folder = name.replace(" ", "-")
    with open(folder + ".yaml", "w", encoding="ascii") as job:
        job.write(f"model: ./base-{kind}\n"
                  f"data: {{train: rows.jsonl, tokenizer: tokenizer, template: chatml, seq_len: {finetune.LENGTH}, "
                  f"packing: {'true' if 'packed' in name else 'false'}}}\n"
                  f"train: {{steps: 1, global_batch: {finetune.len_of_packs(finetune.VOCAB) if 'packed' in name else 8}, micro_batch: 1, dtype: fp32, "
                  f"log_every: 1, z_loss: {Z}}}\n"
                  "optimizer: {name: sgd, momentum: 0.0, lr: 1.0, schedule: constant, warmup_steps: 0, weight_decay: 0.0, "
                  f"clip: 1.0e9}}\noutput: {folder}\n{extra}\n")
    done = finetune.run("finetune", folder + ".yaml")
    if done.returncode:
        return check(name, False, done.stderr)
    with open(folder + "/metrics.jsonl", encoding="ascii") as file:
        step = next(line for line in map(json.loads, file) if "loss" in line)
    end = transformers.AutoModelForCausalLM.from_pretrained(folder + "/model", dtype=torch.float32).state_dict()
    start = transformers.AutoModelForCausalLM.from_pretrained(f"base-{kind}", dtype=torch.float32).state_dict()
    return (step["loss"], step["z_loss"], step["grad_norm"]), {key: start[key] - end[key] for key in start}


def theirs(kind, samples, z):
    model = transformers.AutoModelForCausalLM.from_pretrained(f"base-{kind}", dtype=torch.float32)
    n_learned = sum(int(learned[1:].sum()) for _, learned in samples)
    loss, extra = 0.0, 0.0
    for ids, learned in samples:
        labels = torch.where(learned[1:] == 1, ids[1:], -100)
        logits = model(ids[None, :-1]).logits[0]
        plain = torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum") / n_learned
        square = z * logits.logsumexp(-1)[labels >= 0].pow(2).sum() / n_learned
        (plain + square).backward()
        loss, extra = loss + plain.item(), extra + square.item()
    gradients = {name: p.grad for name, p in model.named_parameters(remove_duplicate=False)}
    norm = torch.sqrt(sum(p.grad.pow(2).sum() for p in model.parameters())).item()
    return (loss, extra, norm), gradients


def off(gradients, wanted):
    """The largest difference, of each tensor's largest element."""
    if not set(wanted) <= set(gradients):
        return float("inf")
    return max(float((gradients[key] - wanted[key]).abs().max() / wanted[key].abs().max().clamp(min=1e-6)) for key in wanted)


def compare(name, kind, extra):
    finetune.build(kind, finetune.VOCAB)
    got = ours(name, kind, extra)
    if got is None:
        return
    samples = finetune.read_samples(name.replace(" ", "-") + "/samples/train")
    wanted, without = theirs(kind, samples, Z), theirs(kind, samples, 0.0)
    for what, a, b in zip(("loss", "z_loss", "gradient norm"), got[0], wanted[0]):
        check(f"{name}: {what}", abs(a - b) < 1e-5 * abs(b), f"is {a:.7g}, PyTorch's {b:.7g}")
    near, far = off(got[1], wanted[1]), off(got[1], without[1])
    check(f"{name}: gradients", near < 2e-4 and far > 0.05, f"within {near:.1e}, {far:.1e} of those without z")


def main():
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        finetune.VOCAB = finetune.write_tokenizer("tokenizer")
        finetune.write_rows("rows.jsonl")
        for case in CASES:
            compare(*case)
        os.chdir("/")
    print(f"{finetune.passed} passed, {finetune.failed} failed")
    return 1 if finetune.failed else 0


if __name__ == "__main__":
    sys.exit(main())
