#!/usr/bin/env python3
"""Muon (optimizer.name: muon) against torch.optim.Muon: one step and a hundred, of one rank and of four.

A tiny LLaMA is trained on one text by lmtrain and by PyTorch, there with torch.optim.Muon on each of transformers' matrices
(so q, k and v, gate and up are apart) and torch.optim.AdamW on all else. After one step momenta must be equal to rounding,
and updates as near to those of steps in double as PyTorch's are, whose products are of bf16, too; after a hundred losses must
have gone the same way, and so must parameters. Prints, last, `N passed, N failed`.
"""
import copy
import glob
import json
import os
import sys
import tempfile

import numpy
import torch
from safetensors import safe_open

sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # behind all others: its files are called what they test
import convert  # noqa: E402
from convert import VOCAB, check, results, write_tokens  # noqa: E402
from routers import LAYERS, names_of, whole  # noqa: E402

LENGTH, LR, DECAY, MOMENTUM = 32, 2e-3, 0.1, 0.95
SHAPE = convert.SHAPE | {"num_hidden_layers": LAYERS}
TOLERANCE = 0.07  # of all updates, by Frobenius' norm: X is in bf16, and its roundings are amplified by the steps
SCALES = {"match_rms_adamw": "match_rms_adamw", "original": "original", "unit_rms": "spectral_unclamped"}


def is_matrix(name):
    return ".layers." in name and name.endswith("_proj.weight")


def theirs(model, ids, steps, scale, nesterov):
    """Losses; the model as it is then; and momenta of its matrices."""
    model = copy.deepcopy(model)
    named = dict(model.named_parameters())
    matrices = {name: p for name, p in named.items() if is_matrix(name)}
    others = [p for name, p in named.items() if not is_matrix(name)]
    muon = torch.optim.Muon(list(matrices.values()), lr=LR, weight_decay=DECAY, momentum=MOMENTUM, nesterov=nesterov,
                            adjust_lr_fn=SCALES[scale])
    adamw = torch.optim.AdamW([{"params": [p for p in others if p.dim() > 1], "weight_decay": DECAY},
                               {"params": [p for p in others if p.dim() == 1], "weight_decay": 0.0}],
                              lr=LR, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for _ in range(steps):
        model.zero_grad()
        loss = convert.loss_of(model, ids[None])[0]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(named.values()), 1.0)
        muon.step()
        adamw.step()
        losses.append(loss.item())
    return numpy.array(losses), model, {name: muon.state[p]["momentum_buffer"] for name, p in matrices.items()}


def exact_update(start, momentum, scale):
    """The first update, of which the direction is the momentum's, with steps in double."""
    rows, cols = start.shape
    factor = {"match_rms_adamw": 0.2 * max(rows, cols) ** 0.5, "original": max(1, rows / cols) ** 0.5,
              "unit_rms": (rows / cols) ** 0.5}[scale]
    x = momentum.double()
    x = (x.T if rows > cols else x) / x.norm()
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return -LR * (DECAY * start + factor * (x.T if rows > cols else x))


def ours(steps, scale, nesterov, ranks, parallel):
    """Losses, and the tensors of the last checkpoint."""
    run = f"./run-{steps}-{scale}-{nesterov}-{ranks}"
    with open("job.yaml", "w", encoding="ascii") as job:
        job.write(f"model: ./base\ndata: {{train: ./text, seq_len: {LENGTH}}}\n"
                  f"train: {{steps: {steps}, global_batch: {ranks}, micro_batch: 1, dtype: fp32, log_every: 1, init: ./base}}\n"
                  f"optimizer: {{name: muon, lr: {LR}, schedule: constant, warmup_steps: 0, weight_decay: {DECAY}, clip: 1.0,"
                  f" beta2: 0.95, momentum: {MOMENTUM}, muon_scale: {scale}, muon_nesterov: {nesterov}}}\n"
                  f"parallel: {{{parallel}}}\nthreads: 1\noutput: {run}\n")
    if convert.lmtrain("pretrain", "job.yaml", "--ranks", str(ranks)) is None:
        return None, {}
    with open(f"{run}/metrics.jsonl", encoding="ascii") as file:
        losses = [float.fromhex(row["loss_hex"]) for row in map(json.loads, file) if "loss_hex" in row]
    found = {}
    for path in glob.glob(f"{run}/checkpoints/step-{steps:08d}/*.safetensors"):
        with safe_open(path, "pt") as file:
            found |= {key: file.get_tensor(key) for key in file.keys()}
    return numpy.array(losses), whole(found)


def far(got, wanted):
    return ((got - wanted).norm() / wanted.norm()).item()


def check_run(model, ids, steps, scale, nesterov, ranks=1, parallel=""):
    what = f"{steps} steps, {scale}, nesterov {nesterov}, {ranks} ranks"
    losses, found = ours(steps, scale, str(nesterov).lower(), ranks, parallel)
    check(f"{what}: a run", losses is not None)
    if losses is None:
        return
    wanted, after, momenta = theirs(model, ids, steps, scale, nesterov)
    names, before = names_of(model), dict(model.named_parameters())
    moved = {True: [0.0, 0.0], False: [0.0, 0.0]}
    worst = {True: 0.0, False: 0.0}
    for name, p in after.named_parameters():
        own, rows = names[name]
        got = found[own] if rows is None else found[own][rows]
        got, start = got.view(p.shape).double(), before[name].detach().double()
        update, other = got - start, p.detach().double() - start
        worst[is_matrix(name)] = max(worst[is_matrix(name)], far(update, other))
        moved[is_matrix(name)][0] += (update - other).square().sum().item()
        moved[is_matrix(name)][1] += other.square().sum().item()
        if is_matrix(name) and steps == 1:
            exact = exact_update(start, momenta[name], scale)
            mine, limit = far(update, exact), 1.5 * far(other, exact) + 0.01
            check(f"{what}: update of {name}", mine < limit, f"is off by {mine:.1e} of exact steps, limit {limit:.1e}")
            m = found[own + ".m"] if rows is None else found[own + ".m"][rows]
            error = far(m.view(p.shape), momenta[name])
            check(f"{what}: momentum of {name}", error < 1e-5, f"is off by {error:.1e}")
    off = numpy.abs(losses / wanted - 1).max()
    total = {kind: (a / b) ** 0.5 for kind, (a, b) in moved.items()}
    print(f"{what}: loss {wanted[0]:.3f} to {wanted[-1]:.3f}, off by {off:.1e}; updates of matrices by {worst[True]:.1e} at "
          f"most, all by {total[True]:.1e}, of others by {worst[False]:.1e}")
    if steps == 1:
        check(f"{what}: loss", off < 1e-6, f"is off by {off:.1e}")
        check(f"{what}: matrices", total[True] < TOLERANCE, f"are off by {total[True]:.1e}")
        check(f"{what}: others", worst[False] < 2e-3, f"are off by {worst[False]:.1e}")
    else:
        check(f"{what}: losses", off < 0.02 and wanted[-1] < 0.6 * wanted[0], f"are off by {off:.1e}")
        check(f"{what}: parameters", total[True] < 0.02 and total[False] < 0.02, f"are off by {total}")


def main():
    torch.set_num_threads(1)  # tensors are small
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        model = convert.make("./base", "Llama", SHAPE, torch.float32, "5GB")
        ids = numpy.random.default_rng(3).integers(0, VOCAB, LENGTH + 1)
        write_tokens("text", ids)
        for scale in SCALES:
            check_run(model, ids, 1, scale, True)
        check_run(model, ids, 1, "match_rms_adamw", False)
        check_run(model, ids, 1, "match_rms_adamw", True, 4, "tp: 2, zero: 1, gradient_sum: late")
        check_run(model, ids, 100, "match_rms_adamw", True)
        check_run(model, ids, 100, "original", True, 2, "zero: 2")
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
