#!/usr/bin/env python3
"""PowerSGD (parallel.compress: powersgd) against PyTorch's own: powerSGD_hook over gloo, on the same gradients.

test/oracle/factors.c runs lmtrain's kernels for all ranks; here each rank is a process in which the hook is given a bucket with
the same matrices and vectors, in fp64, and begins with the same right factors. Of each step the sum and what each rank has lost of the
matrices are compared, over steps that hang on what the steps before have left. (Of vectors the hook counts as lost what
differs from the mean, of which nothing is left in the sum.) Prints, last, `N passed, N failed`.
"""
import logging
import multiprocessing
import os
import subprocess
import sys
import tempfile

import numpy
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FACTORS = os.path.join(os.path.dirname(os.environ.get("LMTRAIN", f"{ROOT}/build/lmtrain")), "test", "oracle", "factors")
STEPS, RANKS, TOLERANCE = 6, 3, 3e-5
SHAPES = [(1, 40), (48, 70), (96, 33), (1, 7), (20, 500), (64, 64)]
COUNTS = [rows * cols for rows, cols in SHAPES]
N = sum(COUNTS)
results = []


def check(name, passed, text=""):
    results.append(bool(passed))
    if not passed:
        print(f"FAIL {name} {text}")


class Bucket:
    """What the hook takes of torch's GradBucket."""

    def __init__(self, flat):
        self.flat = torch.from_numpy(flat.astype(numpy.float64))

    def buffer(self):
        return self.flat

    def index(self):
        return 0

    def is_last(self):
        return True

    def gradients(self):
        return [part.view(shape if shape[0] > 1 else shape[1:]) for part, shape in zip(self.flat.split(COUNTS), SHAPES)]

    def parameters(self):
        return self.gradients()


def play_rank(rank, folder, factor_rank, right, gradients):
    """All steps of one rank; writes its sums and what it has lost."""
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=factor_rank, start_powerSGD_iter=2, min_compression_rate=1)
    state.iter = 2
    state.p_memory_dict[0] = torch.zeros(sum(rows * factor_rank for rows, _ in SHAPES if rows > 1), dtype=torch.float64)
    state.q_memory_dict[0] = torch.from_numpy(right.astype(numpy.float64))
    found = []
    for step in range(STEPS):
        bucket = Bucket(gradients[step, rank])
        mean = powerSGD_hook.powerSGD_hook(state, bucket).wait()
        found.append((mean.numpy().copy() * RANKS, state.error_dict[0].numpy().copy()))
    numpy.save(f"{folder}/{rank}.npy", numpy.array(found))
    dist.destroy_process_group()


def theirs(factor_rank, right, gradients):
    """[RANKS x STEPS x 2 x N]: sums, and what is lost."""
    with tempfile.TemporaryDirectory() as folder:
        fork = multiprocessing.get_context("fork")
        ranks = [fork.Process(target=play_rank, args=(rank, folder, factor_rank, right, gradients)) for rank in range(RANKS)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        if any(rank.exitcode for rank in ranks):
            return None
        return numpy.array([numpy.load(f"{folder}/{rank}.npy") for rank in range(RANKS)])


def ours(factor_rank, right, gradients):
    """What each step's ranks have lost [STEPS x RANKS x N], and the sums [STEPS x N]."""
    shapes = [str(n) for shape in SHAPES for n in shape]
    done = subprocess.run([FACTORS, *map(str, (factor_rank, STEPS, RANKS, N)), *shapes],
                          input=right.tobytes() + gradients.tobytes(), capture_output=True, check=False)
    if done.returncode:
        print(done.stderr.decode())
        return None
    steps = numpy.frombuffer(done.stdout, numpy.float32).reshape(STEPS, RANKS + 1, N)
    return steps[:, :RANKS], steps[:, RANKS]


def gradients_of(kind, rng):
    """Sums of a few directions that turn from step to step, and noise; or noise alone."""
    gradients = rng.standard_normal((STEPS, RANKS, N)) * (1 if kind == "noise" else 0.01)
    at = 0
    for rows, cols in SHAPES:
        if kind != "noise":
            left, right = rng.standard_normal((rows, 3)), rng.standard_normal((3, cols))
            for step in range(STEPS):
                left += 0.2 * rng.standard_normal(left.shape)
                gradients[step, :, at:at + rows * cols] += ((left * [4, 2, 1]) @ right).flatten()
        at += rows * cols
    return gradients.astype(numpy.float32)


def far(got, wanted, gradients):
    """Relative to what there is, of which little may be lost."""
    return numpy.abs(got - wanted).max() / numpy.abs(gradients).max()


def check_hook(kind, factor_rank, rng):
    gradients = gradients_of(kind, rng)
    right = rng.standard_normal(sum(cols * factor_rank for rows, cols in SHAPES if rows > 1)).astype(numpy.float32)
    name = f"rank {factor_rank}, {kind}"
    got, wanted = ours(factor_rank, right, gradients), theirs(factor_rank, right, gradients)
    check(f"{name}: runs", got is not None and wanted is not None)
    if got is None or wanted is None:
        return
    lost, sums = got
    in_matrix = numpy.concatenate([numpy.full(rows * cols, rows > 1) for rows, cols in SHAPES])
    most = 0
    for step in range(STEPS):
        off = far(sums[step], wanted[0, step, 0], gradients)
        most = max(most, off)
        check(f"{name}: the sum of step {step}", off < TOLERANCE, f"is off by {off:.1e}")
        for rank in range(RANKS):
            off = far(lost[step, rank][in_matrix], wanted[rank, step, 1][in_matrix], gradients)
            most = max(most, off)
            check(f"{name}: what rank {rank} has lost in step {step}", off < TOLERANCE, f"is off by {off:.1e}")
        check(f"{name}: vectors in step {step}", (lost[step][:, ~in_matrix] == 0).all(), "have lost something")
    print(f"{name}: off by {most:.1e} at most")


def main():
    rng = numpy.random.default_rng(1)
    for kind in ("directions", "noise"):
        for factor_rank in (1, 2, 4, 8):
            check_hook(kind, factor_rank, rng)
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
