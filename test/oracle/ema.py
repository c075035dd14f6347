#!/usr/bin/env python3
"""The moving average of weights (train.ema) against torch.optim.swa_utils.

A tiny model is trained for some steps, each of which saves its fp32 weights. AveragedModel with get_ema_multi_avg_fn sees the same
weights one after the other; every tensor of the last checkpoint's averages must be its own. With one rank, and with two that have
shards. Prints, last, `N passed, N failed`.
"""
import glob
import os
import re
import subprocess
import sys
import tempfile

import numpy
import torch
from safetensors.numpy import load_file
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LMTRAIN = os.environ.get("LMTRAIN", os.path.join(ROOT, "build", "lmtrain"))
DECAY, STEPS = 0.9, 8
JOB = """
model: {{vocab_size: 4096, hidden_size: 32, n_layers: 2, n_heads: 2, n_kv_heads: 1, ffn_size: 48, max_seq_len: 32, tied_embeddings: true}}
data: {{train: {folder}/tokens, seq_len: 16}}
train: {{steps: {steps}, global_batch: 4, micro_batch: 1, dtype: {dtype}, ema: {decay}}}
optimizer: {{lr: 1.0e-2, warmup_steps: 2}}
checkpoint: {{every_steps: 1, keep: 0}}
parallel: {{zero: {zero}}}
ranks: {ranks}
threads: 1
output: {folder}/run
"""


def read(folder, step):
    """All tensors of a checkpoint, slices put together."""
    whole = {}
    for path in sorted(glob.glob(os.path.join(folder, "run", "checkpoints", f"step-{step:08d}", "rank-*.safetensors"))):
        for name, part in load_file(path).items():
            match = re.fullmatch(r"(.*)\[(\d+):(\d+),(\d+):(\d+)\]", name)
            if not match:
                whole[name] = part
                continue
            whole.setdefault(match[1], []).append((tuple(map(int, match.groups()[1:])), part))
    for name, parts in whole.items():
        if isinstance(parts, list):
            rows, cols = max(p[0][1] for p in parts), max(p[0][3] for p in parts)
            joined = numpy.zeros((rows, cols), numpy.float32)
            for (r0, r1, c0, c1), part in parts:
                joined[r0:r1, c0:c1] = part.reshape(r1 - r0, c1 - c0)
            whole[name] = joined
    return whole


class Weights(torch.nn.Module):
    def __init__(self, tensors):
        super().__init__()
        self.list = torch.nn.ParameterList([torch.nn.Parameter(torch.from_numpy(t.copy())) for t in tensors])


def check(dtype, ranks, zero):
    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "text.txt")
        with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as readme, open(text, "w", encoding="utf-8") as out:
            out.write(readme.read()[:20000])
        job = os.path.join(folder, "job.yaml")
        tokens = subprocess.run([LMTRAIN, "data", "tokenize", text, "--tokenizer", os.path.join(ROOT, "data", "kjv-tokenizer"),
                                 "--out", os.path.join(folder, "tokens")], capture_output=True, text=True)
        with open(job, "w", encoding="utf-8") as file:
            file.write(JOB.format(folder=folder, steps=STEPS, dtype=dtype, decay=DECAY, zero=zero, ranks=ranks))
        done = subprocess.run([LMTRAIN, "pretrain", job], capture_output=True, text=True)
        if tokens.returncode or done.returncode:
            return tokens.stderr + done.stderr
        names = sorted(name for name in read(folder, 1) if not re.search(r"\.(m|v|ema)$", name))
        averaged = None
        for step in range(1, STEPS + 1):
            state = read(folder, step)
            model = Weights([state[name] for name in names])
            if averaged is None:
                averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
            averaged.update_parameters(model)
        for name, wanted in zip(names, averaged.module.list):
            got, wanted = state[name + ".ema"], wanted.detach().numpy()
            if got.shape != wanted.shape or not numpy.allclose(got, wanted, rtol=1e-6, atol=1e-8):
                return f"{name}: {numpy.abs(got - wanted).max()}"
        return None


def main():
    passed = failed = 0
    for dtype, ranks, zero in (("fp32", 1, 0), ("bf16", 1, 0), ("bf16", 2, 1), ("fp32", 2, 3)):
        why = check(dtype, ranks, zero)
        failed += why is not None
        passed += why is None
        if why is not None:
            print(f"FAIL {dtype}, {ranks} ranks, zero {zero}: {why}")
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
