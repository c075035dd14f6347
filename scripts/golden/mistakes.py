#!/usr/bin/env python3
"""What common mistakes would do to the goldens: are they far outside the tolerances?

Each mistake is made in the float64 decoder or its training, and its loss, gradients and steps are set
against the right ones. The last lines move the right weights by 1e-7 of themselves: noise, for scale.
test/golden/README.md keeps the result.
"""
from unittest import mock

import torch
import torch.nn.functional as F

import fill
import model as golden
import plain


def rope_interleaved(x, theta):
    half = x.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, dtype=x.dtype) / half)
    angle = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * frequency
    a, b = x[..., 0::2], x[..., 1::2]
    turned = [a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()]
    return torch.stack(turned, -1).flatten(-2)


def gelu_by_erf(w, layer, x, m):
    return plain.linear(w, layer + "down", F.gelu(plain.linear(w, layer + "up", x)))


def gate_up_swapped(w, layer, x, m):
    up, gate = plain.linear(w, layer + "gate_up", x).chunk(2, dim=-1)
    return plain.linear(w, layer + "down", gate * torch.sigmoid(gate) * up)


def mean_of_means(model, suffix=""):
    tokens, targets = (torch.from_numpy(a) for a in fill.batch(model.m["vocab"], suffix))
    means = []
    for x, y in zip(tokens, targets):
        logits = model.logits(x).flatten(0, 1)
        means.append(F.cross_entropy(logits, y.flatten(), ignore_index=fill.IGNORED) / len(tokens))
        means[-1].backward()
    means = torch.stack(means).detach()
    return means.sum(), means, (targets != fill.IGNORED).sum(dim=(1, 2))


class DecayEverything(torch.optim.AdamW):
    def __init__(self, groups, **options):
        super().__init__([dict(g, weight_decay=golden.WEIGHT_DECAY) for g in groups], **options)


@torch.no_grad()
def clip_by_norm_alone(parameters, clip):
    gradients = [p.grad for p in parameters]
    norm = torch.stack([g.pow(2).sum() for g in gradients]).sum().sqrt()
    for g in gradients:
        g *= min(1.0, clip / float(norm))
    return norm


def adamw(**changes):
    return {(golden, "ADAMW"): dict(golden.ADAMW, **changes)}


# text, models, what is put in whose place, changed fields of the model
MISTAKES = [
    ("RoPE interleaved", ["llama"], {(plain, "rope"): rope_interleaved}, {}),
    ("RoPE theta 500000", ["llama"], {}, {"theta": 500000.0}),
    ("KV heads tiled instead of repeated", ["llama"],
     {(torch.Tensor, "repeat_interleave"): lambda x, n, dim: torch.cat([x] * n, dim)}, {}),
    ("gate and up swapped", ["llama"], {(plain, "feed_forward"): gate_up_swapped}, {}),
    ("norm eps 1e-6", ["llama", "gpt2"], {}, {"eps": 1e-6}),
    ("GELU by erf", ["gpt2"], {(plain, "feed_forward"): gelu_by_erf}, {}),
    ("mean of micro-batch means", ["llama"], {(golden, "forward_backward"): mean_of_means}, {}),
    ("no clipping", ["llama", "gpt2"], {(golden, "CLIP"): 1e9}, {}),
    ("no weight decay", ["llama", "gpt2"], {(golden, "WEIGHT_DECAY"): 0.0}, {}),
    ("decay on 1-D tensors too", ["llama", "gpt2"], {(torch.optim, "AdamW"): DecayEverything}, {}),
    ("AdamW eps 1e-6", ["llama", "gpt2"], adamw(eps=1e-6), {}),
    ("beta2 0.999", ["llama", "gpt2"], adamw(betas=(0.9, 0.999)), {}),
    ("clip by 1 / norm (ours)", ["llama", "llama-tied", "gpt2"],
     {(torch.nn.utils, "clip_grad_norm_"): clip_by_norm_alone}, {}),
]


def run(m, moved=0.0):
    truth = golden.Plain(m)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in truth.parameters():
            p *= 1 + moved * (2 * torch.rand(p.shape, generator=generator, dtype=p.dtype) - 1)
    results, gradients = golden.evaluate(truth)
    return results["loss"], gradients, *golden.train(truth)


def show(text, name, wrong, right):
    gradient = max(golden.distance(wrong[1][key], right[1][key]) for key in right[1])
    loss, step_loss, step_norm = (golden.distance(wrong[i], right[i]) for i in (0, 2, 3))
    print(f"| {text} | {name} | {loss:.1e} | {gradient:.1e} | {step_loss:.1e} | {step_norm:.1e} |")


def main():
    torch.set_num_threads(1)
    right = {name: run(m) for name, m in golden.MODELS.items()}
    print("| mistake | model | loss | gradient | step loss | step norm |\n|---|---|---|---|---|---|")
    for text, names, replaced, fields in MISTAKES:
        for name in names:
            patches = [mock.patch.object(*place, value) for place, value in replaced.items()]
            for patch in patches:
                patch.start()
            wrong = run(dict(golden.MODELS[name], **fields))
            for patch in patches:
                patch.stop()
            show(text, name, wrong, right[name])
    for name, m in golden.MODELS.items():
        show("none: weights moved by 1e-7", name, run(m, moved=1e-7), right[name])


if __name__ == "__main__":
    main()
