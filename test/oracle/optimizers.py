#!/usr/bin/env python3
"""The optimizers' kernels against the libraries that people know them from.

One step and a hundred of adamw, lion, sgd and cadam by test/oracle/updates.c, against torch.optim.AdamW and SGD,
lion-pytorch, and Cadam as published (ModelLink), written down in numpy with its scale of 256 elements; states of int8
bit for bit by bitsandbytes' map, and near its own on the CPU. Prints, last,
`N passed, N failed`.
"""
import math
import os
import subprocess
import sys

import numpy
import torch

sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # behind all others: its files are called what they test
from convert import LMTRAIN, check, results  # noqa: E402

UPDATES = os.path.join(os.path.dirname(LMTRAIN), "test", "oracle", "updates")
BLOCK = 256
N = 20 * BLOCK + 37


def numbers(n_steps):
    """Parameters and gradients, of several magnitudes, with a block of zeros and elements that are seldom not zero."""
    rng = numpy.random.default_rng(7)
    size = 10.0 ** rng.uniform(-4, 0, N)
    gradients = (rng.standard_normal((n_steps, N)) * size).astype(numpy.float32)
    gradients[:, BLOCK:2 * BLOCK] = 0
    gradients[1:, 2 * BLOCK:2 * BLOCK + 20] = 0
    return rng.standard_normal(N).astype(numpy.float32) * numpy.float32(0.1), gradients


def ours(name, states, start, gradients, lr, betas, eps, decay, nesterov=False):
    """Parameters after each step, and the bytes of the states."""
    n_steps = len(gradients)
    done = subprocess.run([UPDATES, name, states, *map(str, (n_steps, N, lr, *betas, eps, decay, int(nesterov)))],
                          input=start.tobytes() + gradients.tobytes(), capture_output=True, check=True)
    size = 4 * N * n_steps
    return numpy.frombuffer(done.stdout[:size], numpy.float32).reshape(n_steps, N), done.stdout[size:]


def by_library(make, start, gradients):
    p = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer, after = make([p]), []
    for g in gradients:
        p.grad = torch.from_numpy(g.copy())
        optimizer.step()
        after.append(p.detach().numpy().copy())
    return numpy.stack(after), optimizer.state[p]


def cadam(start, gradients, lr, beta, eps, decay):
    """ModelLink's, 54 lines; its scale is of a row, here of a block."""
    p, q = start.copy(), numpy.zeros(N + -N % BLOCK, numpy.float16)
    scale, after = numpy.ones((len(q) // BLOCK, 1), numpy.float32), []
    f = numpy.float32
    for g in gradients:
        g = numpy.pad(g, (0, len(q) - N)).reshape(-1, BLOCK)
        p = p * f(1 - f(lr).astype(float) * decay)
        m = q.reshape(-1, BLOCK).astype(f) * scale
        m = m * f(beta) + f(1 - beta) * g
        scale = numpy.abs(m).max(1, keepdims=True) / f(65503) + f(eps)
        q = numpy.clip(m * (f(1) / scale), -65503, 65503).astype(numpy.float16).reshape(-1)
        p = p - f(lr) * numpy.sign(m).reshape(-1)[:N]
        after.append(p)
    return numpy.stack(after), q, scale


def near(name, got, wanted, tolerance):
    """Of all but one in a thousand elements: the sign of what is nearly 0 is a matter of the order of operations."""
    off = numpy.abs(got - wanted) > tolerance * numpy.maximum(numpy.abs(wanted), 1e-3)
    check(name, off.mean() <= 1e-3 and numpy.isfinite(got).all(),
          f": {off.sum()} of {off.size} differ, by up to {numpy.abs(got - wanted).max():.2e}")


def floats():
    import lion_pytorch
    for n_steps in (1, 100):
        start, gradients = numbers(n_steps)
        got, _ = ours("adamw", "fp32", start, gradients, 1e-2, (0.9, 0.95), 1e-8, 0.1)
        wanted, _ = by_library(lambda p: torch.optim.AdamW(p, 1e-2, (0.9, 0.95), 1e-8, 0.1), start, gradients)
        near(f"adamw, {n_steps} steps", got[-1], wanted[-1], 2e-5)
        got, _ = ours("lion", "fp32", start, gradients, 1e-3, (0.9, 0.99), 0, 0.3)
        wanted, _ = by_library(lambda p: lion_pytorch.Lion(p, 1e-3, (0.9, 0.99), 0.3), start, gradients)
        near(f"lion, {n_steps} steps", got[-1], wanted[-1], 2e-5)
        for nesterov in (False, True):
            got, _ = ours("sgd", "fp32", start, gradients, 1e-2, (0.9, 0), 0, 0.01, nesterov)
            wanted, _ = by_library(lambda p: torch.optim.SGD(p, 1e-2, 0.9, weight_decay=0.01, nesterov=nesterov),
                                   start, gradients)
            near(f"sgd, nesterov {nesterov}, {n_steps} steps", got[-1], wanted[-1], 2e-5)
        got, states = ours("cadam", "fp32", start, gradients, 1e-3, (0.965, 0), 1e-8, 0.03)
        wanted, q, scale = cadam(start, gradients, 1e-3, 0.965, 1e-8, 0.03)
        check(f"cadam, {n_steps} steps: bits", (got == wanted).all(), f": {(got != wanted).sum()} differ")
        check(f"cadam, {n_steps} steps: states", states == q[:N].tobytes() + scale.tobytes())


def coded(x, values, is_signed):
    """Bytes and scales of the blocks of x, and what they stand for: the nearest value, v not 0 where it was not."""
    rows = numpy.pad(x, (0, -len(x) % BLOCK)).reshape(-1, BLOCK)
    scale = numpy.abs(rows).max(1, keepdims=True)
    part = numpy.abs(rows) / numpy.where(scale > 0, scale, numpy.float32(1))
    edges = numpy.float32(0.5) * (values[:-1] + values[1:])
    k = numpy.searchsorted(edges, part.reshape(-1), "left").reshape(part.shape)
    if is_signed:
        k = numpy.where(rows < 0, -numpy.minimum(k, 127), k)
    else:
        k = numpy.where((k == 0) & (rows > 0), 1, k)
    value = numpy.where(k < 0, -values[-k], values[k]) * scale
    n = len(x)
    return k.reshape(-1)[:n].astype(numpy.int64).astype(numpy.uint8), scale, value.reshape(-1)[:n].astype(numpy.float32)


def by_codes(name, start, gradients, lr, betas, eps, decay, maps):
    """The update in fp32, operation by operation, on states that are coded after each step."""
    f = numpy.float32
    p, m, v, states = start.copy(), numpy.zeros(N, f), numpy.zeros(N, f), b""
    for t, g in enumerate(gradients, 1):
        p = p * f(1 - float(f(lr)) * decay)
        if name == "lion":
            p = p - f(lr) * numpy.sign(m * f(betas[0]) + f(1 - betas[0]) * g)
            m = m * f(betas[1]) + f(1 - betas[1]) * g
        else:
            bias = [f(1 - beta ** t) for beta in betas]
            m = m + f(1 - betas[0]) * (g - m)
            v = v * f(betas[1]) + f(1 - betas[1]) * g * g
            step, root = f(float(f(lr)) / float(bias[0])), f(math.sqrt(float(bias[1])))
            p = p - step * (m / (numpy.sqrt(v) / root + f(eps)))
        codes, scale, m = coded(m, maps[True], True)
        states = codes.tobytes() + scale.tobytes()
        if name != "lion":
            codes, scale, v = coded(v, maps[False], False)
            states += codes.tobytes() + scale.tobytes()
    return p, states


def codes():
    import bitsandbytes
    import bitsandbytes.functional as functional
    maps = {is_signed: functional.create_dynamic_map(is_signed).numpy() for is_signed in (True, False)}
    maps = {is_signed: values[values >= 0] for is_signed, values in maps.items()}
    make = {"adamw": lambda p: bitsandbytes.optim.AdamW8bit(p, 1e-2, (0.9, 0.95), 1e-8, 0.1, min_8bit_size=1),
            "lion": lambda p: bitsandbytes.optim.Lion8bit(p, 1e-3, (0.9, 0.99), 0.3, min_8bit_size=1)}
    settings = {"adamw": (1e-2, (0.9, 0.95), 1e-8, 0.1), "lion": (1e-3, (0.9, 0.99), 0, 0.3)}
    for name in ("adamw", "lion"):
        for n_steps in (1, 100):
            start, gradients = numbers(n_steps)
            got, states = ours(name, "int8", start, gradients, *settings[name])
            wanted, wanted_states = by_codes(name, start, gradients, *settings[name], maps)
            check(f"{name} int8, {n_steps} steps, by bitsandbytes' map: bits", (got[-1] == wanted).all(),
                  f": {(got[-1] != wanted).sum()} differ")
            check(f"{name} int8, {n_steps} steps: codes and scales", states == wanted_states)
        # Its CPU code finds codes by a table of 2^-15 of a block's range, so of gradients alike in size the two are near.
        gradients = numpy.random.default_rng(3).standard_normal((100, N)).astype(numpy.float32) * numpy.float32(1e-2)
        got, _ = ours(name, "int8", start, gradients, *settings[name])
        wanted, _ = by_library(make[name], start, gradients)
        exact, _ = ours(name, "fp32", start, gradients, *settings[name])
        moved, error, loss = (numpy.sqrt(numpy.square(x - y).mean())
                              for x, y in ((wanted[-1], start), (got[-1], wanted[-1]), (got[-1], exact[-1])))
        print(f"{name} int8: 100 steps of {moved:.2e} differ by {error:.1e} from bitsandbytes', by {loss:.1e} from fp32's")
        check(f"{name} int8: near bitsandbytes", error < 0.1 * moved and loss < 0.1 * moved, f": {error:.2e} of {moved:.2e}")


def main():
    floats()
    codes()
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
