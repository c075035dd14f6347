#!/usr/bin/env python3
"""Products of e4m3 (train.fp8) against PyTorch, and what a run with them learns against one in bf16.

test/oracle/fp8.c runs lmtrain's kernels. With one scale of each operand a product must be torch._scaled_mm's of PyTorch's
own float8_e4m3fn; with scales of blocks it must be the product in fp64 of what codes and scales stand for, each block
rounded by PyTorch's cast. Sums differ by their order alone. Then a small LLaMA learns 300 steps of the King James text, byte
by byte: the loss of the last steps must be that of bf16 within 1.5 %. Prints, last, `N passed, N failed`.
"""
import json
import lzma
import os
import subprocess
import sys
import tempfile

import numpy
import torch

sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # behind all others: its files are called what they test
import convert  # noqa: E402
from convert import LMTRAIN, check, results, write_tokens  # noqa: E402

FP8 = os.path.join(os.path.dirname(LMTRAIN), "test", "oracle", "fp8")
TEXT = os.path.join(os.path.dirname(__file__), "..", "..", "data", "kjv", "train.txt.xz")
BLOCK, MOST = 128, 448.0
SHAPES = ((64, 128, 48), (300, 272, 160), (129, 400, 256))
STEPS, LAST, NEAR = 300, 30, 0.015
RECIPES = {"none": "fp8: none", "blockwise": "fp8: blockwise", "tensor": "fp8: tensor",
           "tensor e5m2": "fp8: tensor, fp8_gradients: e5m2"}


def codes(x, rows, cols):
    """Codes and scales of blocks of so many rows and columns, as numbers of fp64 and fp32, element by element."""
    padded = torch.nn.functional.pad(x.float(), (0, -x.shape[1] % cols, 0, -x.shape[0] % rows))
    blocks = padded.unflatten(1, (-1, cols)).unflatten(0, (-1, rows))
    scale = (blocks.abs().amax((1, 3), keepdim=True) / MOST).expand_as(blocks)
    code = torch.where(scale > 0, (blocks / scale).clamp(-MOST, MOST), 0).to(torch.float8_e4m3fn)
    return tuple(part.flatten(2).flatten(0, 1)[:x.shape[0], :x.shape[1]] for part in (code.double(), scale.double()))


def rounded(x, rows, cols):
    code, scale = codes(x, rows, cols)
    return code * scale


def wanted_blocks(kind, a, b):
    if kind == "linear":
        return rounded(a, 1, BLOCK) @ rounded(b, BLOCK, BLOCK).T
    if kind == "dx":
        return rounded(a, 1, BLOCK) @ rounded(b, BLOCK, BLOCK)
    return rounded(a, BLOCK, 1).T @ rounded(b, BLOCK, 1)


def wanted_tensor(kind, a, b, gradient=torch.float8_e4m3fn):
    """By torch._scaled_mm, whose second operand is column-major; it wants multiples of 16. gradient: dtype of dy."""
    first = torch.float8_e4m3fn if kind == "linear" else gradient
    a, b = {"linear": (a, b.T), "dx": (a, b), "dw": (a.T, b)}[kind]
    a, b = (torch.nn.functional.pad(x, (0, -x.shape[1] % 16, 0, -x.shape[0] % 16)) for x in (a, b))
    most = [torch.finfo(dtype).max for dtype in (first, torch.float8_e4m3fn)]
    scales = [x.float().abs().max() / m for x, m in zip((a, b), most)]
    a8, b8 = ((x.float() / scale).clamp(-m, m).to(dtype)
              for x, scale, m, dtype in zip((a, b), scales, most, (first, torch.float8_e4m3fn)))
    return torch._scaled_mm(a8.contiguous(), b8.T.contiguous().T, *scales, out_dtype=torch.float32)


def check_product(kind, recipe, shape):
    t, k, n = shape
    torch.manual_seed(t)
    a = (torch.randn(t, k if kind == "linear" else n) * torch.logspace(-3, 2, t)[:, None]).bfloat16()
    b = (torch.randn(t if kind == "dw" else n, k) * torch.logspace(-1, 1, k)).bfloat16()
    data = b"".join(x.view(torch.int16).numpy().tobytes() for x in (a, b))
    done = subprocess.run([FP8, kind, recipe, *map(str, shape)], input=data, capture_output=True, check=False)
    name = f"{kind} {recipe} {t}x{k}x{n}"
    check(name, done.returncode == 0, done.stderr)
    if done.returncode:
        return
    wanted = (wanted_blocks(kind, a, b) if recipe == "blockwise" else wanted_tensor(kind, a, b) if recipe == "tensor" else
              wanted_tensor(kind, a, b, torch.float8_e5m2)).double()
    rows, cols = {"linear": (t, n), "dx": (t, k), "dw": (n, k)}[kind]
    dtype = torch.float32 if kind == "dw" else torch.bfloat16
    got = torch.frombuffer(bytearray(done.stdout), dtype=dtype).reshape(rows, cols).double()
    wanted = wanted[:rows, :cols]
    limit = wanted.abs() * (2.0 ** -20 if kind == "dw" else 2.0 ** -8) + 1e-5 * wanted.abs().amax(1, keepdim=True)
    check(name, bool(((got - wanted).abs() <= limit).all()), f"off by {(got - wanted).abs().max():.3g}")
    exact = {"linear": lambda: a.double() @ b.double().T, "dx": lambda: a.double() @ b.double(),
             "dw": lambda: a.double().T @ b.double()}[kind]()
    noise = 10 * torch.log10(exact.pow(2).sum() / (got - exact).pow(2).sum()).item()
    print(f"{name}: {noise:.1f} dB above what rounding loses")
    least = 20 if recipe == "e5m2" else 25  # a bit less of each gradient
    check(f"{name}: signal", noise > least, f"{noise:.1f} dB")


def loss_of(prefix, recipe, scratch):
    """Mean loss of the last steps."""
    run = os.path.join(scratch, f"run-{recipe}".replace(" ", "-"))
    with open(run + ".yaml", "w", encoding="ascii") as job:
        job.write("model: {vocab_size: 256, hidden_size: 64, n_layers: 4, n_heads: 4, n_kv_heads: 4, ffn_size: 192}\n"
                  f"data: {{train: {prefix}, seq_len: 64}}\noptimizer: {{lr: 3.0e-3, warmup_steps: 20}}\noutput: {run}\n"
                  f"train: {{steps: {STEPS}, global_batch: 8, micro_batch: 8, log_every: 1, {RECIPES[recipe]}}}\n")
    if convert.lmtrain("pretrain", run + ".yaml") is None:
        return float("nan")
    with open(os.path.join(run, "metrics.jsonl"), encoding="ascii") as file:
        losses = [row["loss"] for row in map(json.loads, file) if "loss" in row]
    return float(numpy.mean(losses[-LAST:]))


def main():
    for kind in ("linear", "dx", "dw"):
        for recipe in ("blockwise", "tensor", *(["e5m2"] if kind != "linear" else [])):
            for shape in SHAPES:
                check_product(kind, recipe, shape)
    with tempfile.TemporaryDirectory() as scratch, lzma.open(TEXT) as file:
        prefix = os.path.join(scratch, "kjv")
        write_tokens(prefix, numpy.frombuffer(file.read(400000), numpy.uint8).astype(numpy.int32))
        losses = {recipe: loss_of(prefix, recipe, scratch) for recipe in RECIPES}
    for recipe, loss in losses.items():
        print(f"fp8 {recipe}: loss {loss:.4f} ({loss / losses['none'] - 1:+.2%})")
        check(f"loss with fp8 {recipe}", abs(loss / losses["none"] - 1) < NEAR, f"is {loss}, {losses['none']} in bf16")
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
