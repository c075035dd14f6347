#!/usr/bin/env python3
"""Gradients in fewer bytes (parallel.compress): the kernels' bits, and training steps of two ranks, by numpy.

Blocks of int8 and e4m3 and top-k are written down here in numpy (e4m3 is PyTorch's float8_e4m3fn), with what each step
loses added to the next one's gradients. test/oracle/codecs.c runs lmtrain's kernels on the same gradients: codes, what is
lost and sums must have the same bits, over several steps and ranks, of lengths around a block's and of numbers from the
least to the largest; over fifty steps all that was sent and what is lost at the end must be all gradients. Then a tiny
LLaMA is trained by two ranks, and by PyTorch with the codecs above on each rank's gradients: losses, norms, moments and
what is lost are compared; so it is with PowerSGD (written down here, too; powersgd.py has its kernels). Prints, last, `N passed, N failed`.
"""
import copy
import glob
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile

import numpy
import torch
from safetensors import safe_open

sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # behind all others: its files are called what they test
import convert  # noqa: E402
from convert import LMTRAIN, VOCAB, check, results, write_tokens  # noqa: E402
from routers import LAYERS, names_of, whole  # noqa: E402

CODECS = os.path.join(os.path.dirname(LMTRAIN), "test", "oracle", "codecs")
BLOCK = 256
MOST = {"int8": numpy.float32(127), "fp8": numpy.float32(448)}

# ---- codecs ----


def block_codes(x, codec):
    """Scales, codes as bytes and what they stand for, of one row."""
    rows = numpy.pad(x, (0, -len(x) % BLOCK)).reshape(-1, BLOCK)
    scales = numpy.where(numpy.isfinite(rows).all(1), numpy.abs(rows).max(1) / MOST[codec], numpy.float32(math.nan))
    scale = scales[:, None]
    parts = numpy.where(scale > 0, numpy.clip(rows / scale, -MOST[codec], MOST[codec]), numpy.float32(0))
    if codec == "int8":
        codes = numpy.rint(parts).astype(numpy.int8)
        values = codes.astype(numpy.float32)
    else:
        eighths = torch.from_numpy(parts).to(torch.float8_e4m3fn)
        codes, values = eighths.view(torch.uint8).numpy(), eighths.float().numpy()
    return scales, codes.view(numpy.uint8).flatten()[:len(x)], (values * scale).flatten()[:len(x)]


def blocks(x, codec, ranks):
    """The bytes that a rank sends of x, and what they stand for; there is a row of each rank's part."""
    rows, values = [], []
    for part in x.reshape(ranks, -1):
        scales, codes, value = block_codes(part, codec)
        rows.append(scales.tobytes() + codes.tobytes() + bytes(-len(codes) % 4))
        values.append(value)
    return b"".join(rows), numpy.concatenate(values)


def largest(x, parts, ratio):
    """Numbers and bits of the largest elements of each part, of equal ones the first; and x without the others."""
    chosen = []
    for begin, length in parts:
        size = numpy.abs(x[begin:begin + length])
        size[numpy.isnan(size)] = math.inf
        first = numpy.argsort(-size, kind="stable")[:max(1, math.ceil(ratio * length))]
        chosen.append(begin + numpy.sort(first))
    chosen = numpy.concatenate(chosen).astype(numpy.int32)
    values = numpy.zeros_like(x)
    values[chosen] = x[chosen]
    return chosen.tobytes() + x[chosen].tobytes(), values


def added(rows):
    """A power of two of the first, and the others: a tree."""
    if len(rows) == 1:
        return rows[0]
    half = 1 << (len(rows) - 1).bit_length() - 1
    return added(rows[:half]) + added(rows[half:])


def same(a, b):
    """Bit for bit, but that one NaN is as good as another."""
    a, b = numpy.frombuffer(a, numpy.float32), numpy.frombuffer(b, numpy.float32)
    return ((a.view(numpy.uint32) == b.view(numpy.uint32)) | (numpy.isnan(a) & numpy.isnan(b))).all()


def steps_of(data, size, ranks, n):
    """Of each step of codecs.c: of each rank (codes, left, sums), and the sum of all."""
    at = 0

    def take(n_bytes):
        nonlocal at
        at += n_bytes
        return data[at - n_bytes:at]
    while at < len(data):
        sent = [(take(size), numpy.frombuffer(take(4 * n), numpy.float32), numpy.frombuffer(take(16), numpy.float64))
                for _ in range(ranks)]
        yield sent, numpy.frombuffer(take(4 * n), numpy.float32)


def play(name, codec, gradients, parts=(), ratio=0.0):
    """gradients: [steps x ranks x n]. Returns the sums of all steps, and what is lost at the end."""
    steps, ranks, n = gradients.shape
    done = subprocess.run([CODECS, codec, str(ratio), *map(str, (steps, ranks, n)), *(str(i) for part in parts for i in part)],
                          input=gradients.tobytes(), capture_output=True, check=False)
    if done.returncode:
        check(name, False, done.stderr.decode())
        return [], None
    left = numpy.zeros((ranks, n), numpy.float32)
    size = 8 * sum(max(1, math.ceil(ratio * length)) for _, length in parts)
    part = n // ranks
    size = size or ranks * (4 * -(-part // BLOCK) + -(-part // 4) * 4)
    wrong, totals = set(), []
    for step, (sent, total) in enumerate(steps_of(done.stdout, size, ranks, n)):
        decoded = []
        for rank, (codes, ours_left, ours_sums) in enumerate(sent):
            x = gradients[step, rank] + left[rank]
            wanted, value = largest(x, parts, ratio) if codec == "topk" else blocks(x, codec, ranks)
            left[rank] = numpy.where(value != 0, 0, x) if codec == "topk" else numpy.where(numpy.isnan(value), 0, x - value)
            counted = numpy.concatenate([numpy.arange(b, b + length) for b, length in parts or [(0, n)]])
            sums = [numpy.square(y[counted].astype(numpy.float64)).sum() for y in (x, left[rank])]
            decoded.append(value)
            if not (same(codes, wanted) if codec == "topk" or not numpy.isfinite(x).all() else codes == wanted):
                wrong.add("codes")
            if not same(ours_left.tobytes(), left[rank].tobytes()):
                wrong.add("what is lost")
            if not numpy.allclose(ours_sums, sums, rtol=1e-12, atol=0, equal_nan=True):
                wrong.add("sums of squares")
            finite = numpy.isfinite(value)  # nothing is lost, exactly
            if not (value[finite].astype(numpy.float64) + ours_left[finite] == x[finite]).all():
                wrong.add("what is sent and what is lost")
        if not same(total.tobytes(), added(decoded).tobytes()):
            wrong.add("the sum")
        totals.append(total)
    check(name, not wrong and len(totals) == steps, f": {', '.join(sorted(wrong))}")
    return totals, left


def contents(kind, shape, rng):
    x = rng.standard_normal(shape)
    if kind == "gradients":
        x *= 1e-3 * 10.0 ** rng.uniform(-3, 3, shape)
    elif kind == "zeros":
        x *= 0
    elif kind == "tiny":  # below what is normal, some below what a scale can be
        x *= 10.0 ** rng.uniform(-46, -36, shape)
    elif kind == "huge":
        x = numpy.clip(x * 2e38, -3.4028234e38, 3.4028234e38)
    elif kind == "equal":
        x = numpy.round(x)
    elif kind == "outlier":
        x.reshape(-1)[::97] *= 1e6
    elif kind == "halves":  # quotients that lie in the middle between two codes
        x = rng.integers(-254, 255, shape) / 2.0
        x[..., 0] = 127
    elif kind == "eighths":  # likewise of e4m3
        x = rng.choice([-1, 1], shape) * rng.integers(16, 33, shape) * 2.0 ** rng.integers(-15, 4, shape)
        x[..., 0] = 448
    elif kind == "not finite":
        x.reshape(-1)[::1001] = math.nan
        x.reshape(-1)[5::3001] = -math.inf
    return x.astype(numpy.float32)


KINDS = ("gradients", "zeros", "tiny", "huge", "equal", "outlier", "halves", "eighths", "not finite")
LENGTHS = (1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 16 * BLOCK + 3, 20000)


def check_kernels():
    rng = numpy.random.default_rng(1)
    for kind in KINDS:
        steps = 1 if kind in ("huge", "not finite") else 4
        for i, length in enumerate(LENGTHS):
            ranks = 1 + i % 5
            gradients = contents(kind, (steps, ranks, ranks * length), rng)
            for codec in ("int8", "fp8"):
                play(f"{codec}: {kind}, {ranks} ranks of {length}", codec, gradients)
            n = ranks * length
            parts = [(0, n)] if n < 40 else [(0, 1), (2, 17), (20, n // 2 - 20), (n // 2, n - n // 2 - 3)]
            for ratio in (0.01, 0.3, 1.0):
                play(f"topk {ratio}: {kind}, {ranks} ranks of {length}", "topk", gradients, parts, ratio)


def check_long():
    """Fifty steps: what was sent, and is lost at the end, is what there was."""
    rng = numpy.random.default_rng(2)
    gradients = rng.standard_normal((50, 3, 3 * 700)).astype(numpy.float32)
    for codec in ("int8", "fp8", "topk"):
        if codec == "topk":
            gradients = numpy.round(gradients * 1024) / 1024  # sums of which are exact
        totals, left = play(f"{codec}: fifty steps", codec, gradients, [(0, 2100)] if codec == "topk" else (), 0.02)
        if not totals:
            continue
        there = gradients.astype(numpy.float64).sum((0, 1)) - left.astype(numpy.float64).sum(0)
        far = numpy.abs(numpy.sum(totals, 0, numpy.float64) - there).max() / numpy.abs(there).max()
        check(f"{codec}: all of fifty steps", far <= (0 if codec == "topk" else 1e-6), f"is off by {far:.1e}")
        check(f"{codec}: what is lost stays small", numpy.abs(left).max() < (60 if codec == "topk" else 1))


# ---- two ranks ----

# Small updates, so that a code that rounding makes another one is not seen in what follows.
STEPS, LENGTH, LR, DECAY = 3, 32, 1e-5, 0.1
RATIO, RANK = 0.1, 4
SHAPE = convert.SHAPE | {"num_hidden_layers": LAYERS}
RUNS = {"int8": "compress: int8, zero: 0", "fp8": "compress: fp8, zero: 1",
        "topk": f"compress: topk, compress_ratio: {RATIO}, compress_start: 1, zero: 1",
        "powersgd": f"compress: powersgd, compress_rank: {RANK}, compress_start: 0, zero: 1"}


def random_columns(rows, rank):
    """What a run's right factors begin with: Philox4x32-10 of column and row (lib/base/rng.h)."""
    words = [numpy.arange(rows, dtype=numpy.uint64)[:, None] + numpy.zeros(rank, numpy.uint64), numpy.zeros((rows, rank), numpy.uint64),
             numpy.zeros((rows, 1), numpy.uint64) + numpy.arange(rank, dtype=numpy.uint64), numpy.zeros((rows, rank), numpy.uint64)]
    low, half = numpy.uint64(2**32 - 1), numpy.uint64(32)
    key = [0, 10 << 24]  # RNG_BASIS
    for _ in range(10):
        first, second = words[0] * numpy.uint64(0xD2511F53), words[2] * numpy.uint64(0xCD9E8D57)
        words = [second >> half ^ words[1] ^ numpy.uint64(key[0]), second & low,
                 first >> half ^ words[3] ^ numpy.uint64(key[1]), first & low]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return (words[0] >> numpy.uint64(8)) / 2**24 - 0.5


class Rank:
    """What a rank loses of a tensor's gradients."""

    def __init__(self, codec, start):
        self.codec, self.start, self.left = codec, start, {}
        self.factors = {}  # of the first rank: all have the same

    def sent(self, name, gradient, step):
        if step < self.start:
            self.left[name] = numpy.zeros_like(gradient)
            return gradient
        x = gradient + self.left.get(name, numpy.float32(0))
        value = largest(x, [(0, len(x))], RATIO)[1] if self.codec == "topk" else block_codes(x, self.codec)[2]
        self.left[name] = x - value
        return value


def powersgd_sum(ranks, name, gradients, shape):
    """The sum of all ranks' matrices as PowerSGD has it, in fp64, and in each rank what it loses."""
    rows, cols = shape
    if rows * cols <= (rows + cols) * RANK:
        for rank in ranks:
            rank.left[name] = numpy.zeros(rows * cols, numpy.float32)
        return sum(gradients)
    x = [(g.astype(numpy.float64) + rank.left.get(name, 0)).reshape(shape) for rank, g in zip(ranks, gradients)]
    right = numpy.linalg.qr(ranks[0].factors.get(name, random_columns(cols, RANK)))[0]
    left = numpy.linalg.qr(sum(m @ right for m in x))[0]
    right = sum(m.T @ left for m in x)
    ranks[0].factors[name] = right
    total = left @ right.T
    for rank, m in zip(ranks, x):
        rank.left[name] = (m - total / len(ranks)).astype(numpy.float32).flatten()
    return total.astype(numpy.float32).flatten()


def packed(model):
    """Of each of lmtrain's tensors the parameters that it is made of, in order."""
    parameters, found = dict(model.named_parameters()), {}
    for theirs, (name, _) in names_of(model).items():
        if theirs in parameters:
            found.setdefault(name, []).append(parameters[theirs])
    return found


def theirs(model, windows, codec, order):
    """Losses and norms; of order[step] the windows of both ranks. And moments and what is lost, by lmtrain's names."""
    model = copy.deepcopy(model)
    trained, tensors = list(model.parameters()), packed(model)
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in trained if p.dim() > 1], "weight_decay": DECAY},
         {"params": [p for p in trained if p.dim() == 1], "weight_decay": 0.0}], lr=LR, betas=(0.9, 0.95), eps=1e-8)
    ranks = [Rank(codec, 1 if codec == "topk" else 0) for _ in range(2)]
    steps = []
    for step, turn in enumerate(order):
        losses, gradients = [], []
        for window in turn:
            model.zero_grad()
            loss = convert.loss_of(model, windows[window][None])[0] / 2  # its part of the mean
            loss.backward()
            losses.append(loss.item())
            gradients.append({name: torch.cat([p.grad.flatten() for p in parts]).numpy() for name, parts in tensors.items()})
        for name, parts in tensors.items():
            own = [g[name] for g in gradients]
            if codec == "powersgd":
                shape = sum(len(p) if p.dim() > 1 else 1 for p in parts), parts[0].shape[-1]
                total = torch.from_numpy(powersgd_sum(ranks, name, own, shape))
            else:
                total = torch.from_numpy(sum(rank.sent(name, g, step) for rank, g in zip(ranks, own)))
            for p, part in zip(parts, total.split([p.numel() for p in parts])):
                p.grad = part.view_as(p).clone()
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0).item()
        optimizer.step()
        steps.append((sum(losses), norm))
    moments = {name: torch.cat([optimizer.state[p]["exp_avg"].flatten() for p in parts]) for name, parts in tensors.items()}
    return numpy.array(steps), moments, [rank.left for rank in ranks]


def ours(folder, codec):
    with open("job.yaml", "w", encoding="ascii") as job:
        job.write(f"model: {folder}\ndata: {{train: ./text, seq_len: {LENGTH}}}\n"
                  f"train: {{steps: {STEPS}, global_batch: 2, micro_batch: 1, dtype: fp32, log_every: 1, init: {folder}}}\n"
                  f"optimizer: {{lr: {LR}, schedule: constant, warmup_steps: 0, weight_decay: {DECAY}, clip: 1.0}}\n"
                  f"parallel: {{gradient_sum: late, {RUNS[codec]}}}\nthreads: 1\noutput: ./run-{codec}\n")
    if convert.lmtrain("pretrain", "job.yaml", "--ranks", "2") is None:
        return None
    with open(f"run-{codec}/metrics.jsonl", encoding="ascii") as file:
        rows = [row for row in map(json.loads, file) if "loss_hex" in row]
    found = {}
    for path in glob.glob(f"run-{codec}/checkpoints/step-{STEPS:08d}/*.safetensors"):
        with safe_open(path, "pt") as file:
            found |= {key: file.get_tensor(key) for key in file.keys()}
    return numpy.array([[float.fromhex(row[key + "_hex"]) for key in ("loss", "grad_norm")] for row in rows]), whole(found)


def apart(pairs):
    """The share of elements that are others by more than rounding: a code is now and then."""
    off_by, n = 0, 0
    for got, wanted in pairs:
        off_by += (numpy.abs(got - wanted) > 1e-3 * numpy.abs(wanted).max()).sum()
        n += len(wanted)
    return off_by / n


def lost_apart(left, found):
    """Of what both ranks have lost, by the order of ranks that is nearer."""
    return min(apart([(found[name + ".error"].numpy().flatten(), numpy.concatenate([rank[name] for rank in ranks]))
                      for name in left[0]]) for ranks in (left, left[::-1]))


def check_steps(codec, model, windows):
    run = ours("./base", codec)
    check(f"{codec}: a run", run is not None)
    if run is None:
        return
    got, found = run
    # Each step sees both windows. Which rank has which one is what fits best, but for what both ranks are called while
    # they have lost nothing; any other is far from it.
    orders = [((0, 1), *rest) for rest in itertools.product(((0, 1), (1, 0)), repeat=STEPS - 1)]
    runs = [theirs(model, windows, codec, order) for order in orders]
    shares = [lost_apart(left, found) for _, _, left in runs]
    best = int(numpy.argmin(shares))
    wanted, moments, _ = runs[best]
    print(f"{codec}: what is lost differs in {min(shares):.1e} of the elements, in another order of windows in "
          f"{sorted(shares)[2]:.1e}")
    check(f"{codec}: what is lost", shares[best] < 2e-3 and sorted(shares)[2] > 0.1, f"is another: {sorted(shares)}")
    for i, (what, tolerance) in enumerate((("loss", 1e-6), ("gradient norm", 1e-5))):
        far = numpy.abs(got[:, i] / wanted[:, i] - 1).max()
        check(f"{codec}: {what}", far <= tolerance, f"is off by {far:.1e}")
    far = apart([(found[name + ".m"].numpy().flatten(), m.numpy()) for name, m in moments.items()])
    check(f"{codec}: first moments", far < 2e-3, f"differ in {far:.1e} of the elements")


def main():
    torch.set_num_threads(1)  # tensors are small
    check_kernels()
    check_long()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        model = convert.make("./base", "Llama", SHAPE, torch.float32, "5GB")
        ids = numpy.random.default_rng(3).integers(0, VOCAB, 2 * LENGTH + 1)
        write_tokens("text", ids)
        for codec in RUNS:
            check_steps(codec, model, [ids[:LENGTH + 1], ids[LENGTH:]])
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    with numpy.errstate(all="ignore"):
        sys.exit(main())
