#!/usr/bin/env python3
"""Where a residual stream of bf16 is rounded: one step of training against the same arithmetic in PyTorch.

A LLaMA of random weights in bf16 is written down here op by op, in fp32 with a rounding wherever lmtrain stores bf16, the
stream's with train.residual bf16 alone. Loss and gradient norm of texts must be those of `lmtrain pretrain`'s first step,
nearer by far than what the other stream gives: that is the proof that sums are rounded, there and nowhere else. lmtrain
uses plain kernels: with VDPBF16PS attention rounds its probabilities as well. Prints, last, `N passed, N failed`.
"""
import json
import math
import os
import sys
import tempfile

import numpy
import torch

sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # behind all others: its files are called what they test
import convert  # noqa: E402
from convert import LENGTH, VOCAB, check, results  # noqa: E402

SHAPE = convert.SHAPE | {"num_hidden_layers": 3, "hidden_size": 64, "intermediate_size": 96}
N_TEXTS = 5
STREAMS = ("fp32", "bf16")


class Round(torch.autograd.Function):
    """To bf16 and back, the gradient likewise."""

    @staticmethod
    def forward(_, x):
        return x.to(torch.bfloat16).float()

    @staticmethod
    def backward(_, gradient):
        return gradient.to(torch.bfloat16).float()


def norm(x, weight, eps):
    return Round.apply(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight)


def product(x, weight):
    return Round.apply(x @ weight.T)


def rotated(x, cosine, sine):
    one, other = x.chunk(2, -1)
    return Round.apply(torch.cat((one * cosine - other * sine, other * cosine + one * sine), -1))


def attention(config, weights, y, angles):
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    q, k, v = (product(y, weights[part + "_proj.weight"]).unflatten(-1, (n, -1)).transpose(0, 1)
               for part, n in (("q", heads), ("k", kv_heads), ("v", kv_heads)))
    q, k = rotated(q, *angles), rotated(k, *angles)
    k, v = (t.repeat_interleave(heads // kv_heads, 0) for t in (k, v))
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
    hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
    out = scores.masked_fill(hidden, -math.inf).softmax(-1) @ v
    return product(Round.apply(out.transpose(0, 1).flatten(1)), weights["o_proj.weight"])


def loss_and_norm(model, ids, stream):
    """Of one text, through a stream of that dtype."""
    config, parameters = model.config, dict(model.named_parameters())
    keep = Round.apply if stream == "bf16" else lambda x: x
    half = config.hidden_size // config.num_attention_heads // 2
    turns = torch.outer(torch.arange(len(ids) - 1.0), 10000.0 ** (-torch.arange(half) / half))
    angles = turns.cos(), turns.sin()

    def of(prefix):
        return {name[len(prefix):]: p for name, p in parameters.items() if name.startswith(prefix)}

    model.zero_grad()
    x = keep(parameters["model.embed_tokens.weight"][ids[:-1]])
    for i in range(config.num_hidden_layers):
        layer, eps = of(f"model.layers.{i}."), config.rms_norm_eps
        y = norm(x, layer["input_layernorm.weight"], eps)
        x = keep(x + attention(config, of(f"model.layers.{i}.self_attn."), y, angles))
        y = norm(x, layer["post_attention_layernorm.weight"], eps)
        gate, up = (product(y, layer[f"mlp.{part}_proj.weight"]) for part in ("gate", "up"))
        x = keep(x + product(Round.apply(torch.nn.functional.silu(gate) * up), layer["mlp.down_proj.weight"]))
    y = norm(x, parameters["model.norm.weight"], config.rms_norm_eps)
    loss = torch.nn.functional.cross_entropy(y @ parameters["lm_head.weight"].T, ids[1:])
    loss.backward()
    return numpy.array([loss.item(), math.sqrt(sum(p.grad.pow(2).sum().item() for p in parameters.values()))])


def ours(folder, prefix, stream, scratch):
    """Loss and gradient norm of the first step."""
    run = os.path.join(scratch, f"run-{os.path.basename(prefix)}-{stream}")
    with open(run + ".yaml", "w", encoding="ascii") as job:
        job.write(f"model: {folder}\ndata: {{train: {prefix}}}\noptimizer: {{lr: 1.0e-12}}\noutput: {run}\nthreads: 1\n"
                  f"train: {{steps: 1, global_batch: 1, log_every: 1, dtype: bf16, residual: {stream}, init: {folder}}}\n")
    if convert.lmtrain("pretrain", run + ".yaml") is None:
        return numpy.array([math.nan, math.nan])
    with open(os.path.join(run, "metrics.jsonl"), encoding="ascii") as file:
        step = next(row for row in map(json.loads, file) if "loss" in row)
    return numpy.array([step["loss"], step["grad_norm"]])


def main():
    os.environ["LMTRAIN_CPU_ISA"] = "plain"
    with tempfile.TemporaryDirectory() as scratch:
        folder = os.path.join(scratch, "llama")
        model = convert.make(folder, "Llama", SHAPE, torch.bfloat16, "5GB")
        far = {(mine, theirs): [] for mine in STREAMS for theirs in STREAMS}
        for seed in range(N_TEXTS):
            prefix = os.path.join(scratch, f"text-{seed}")
            ids = numpy.random.default_rng(seed).integers(0, VOCAB, LENGTH + 1)
            convert.write_tokens(prefix, ids)
            theirs = {stream: loss_and_norm(model, torch.as_tensor(ids), stream) for stream in STREAMS}
            for stream in STREAMS:
                got = ours(folder, prefix, stream, scratch)
                for other in STREAMS:
                    far[stream, other].append(got / theirs[other] - 1)
        far = {pair: numpy.sqrt(numpy.mean(numpy.square(rows), 0)) for pair, rows in far.items()}
        for pair, (loss, gradient) in far.items():
            print(f"stream {pair[0]} against {pair[1]}: loss {loss:.1e}, gradient norm {gradient:.1e}")
        for stream, other in (STREAMS, STREAMS[::-1]):
            for i, what in enumerate(("loss", "gradient norm")):
                near, wrong = far[stream, stream][i], far[stream, other][i]
                check(f"{stream}: {what}", near < 2e-3 and near < 0.5 * wrong, f"is off by {near:.1e}, by {wrong:.1e} of the other")
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
