#!/usr/bin/env python3
"""Learning rates of `lmtrain config --lr` against transformers' schedules.

Every schedule, with its shapes, cycles and timescales, with and without warm-up. Ours ends with min_lr at the last step, theirs
one step later, so theirs has one training step fewer; where theirs has no lowest rate, ours is theirs scaled from 0..1 to
min_lr..lr. Warm-up: our step s has (s + 1) / warmup, their next step's. Prints, last, `N passed, N failed`.
"""
import json
import os
import subprocess
import sys

import torch
from transformers import optimization

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LMTRAIN = os.environ.get("LMTRAIN", os.path.join(ROOT, "build", "lmtrain"))
LR, LOW, STEPS = 0.25, 0.015625, 33

# Our keys; their function and its arguments.
CASES = []
for warmup in (0, 5):
    n = {"num_warmup_steps": warmup}
    CASES += [({"schedule": "constant"}, optimization.get_constant_schedule_with_warmup, n),
              ({"schedule": "linear"}, optimization.get_linear_schedule_with_warmup, n | {"num_training_steps": STEPS - 1}),
              ({"schedule": "cosine"}, optimization.get_cosine_schedule_with_warmup, n | {"num_training_steps": STEPS - 1}),
              ({"schedule": "inverse_sqrt"}, optimization.get_inverse_sqrt_schedule, n),
              ({"schedule": "inverse_sqrt", "timescale": 3}, optimization.get_inverse_sqrt_schedule, n | {"timescale": 3})]
    for cycles in (2, 3, 4):
        CASES.append(({"schedule": "cosine", "cycles": cycles}, optimization.get_cosine_with_hard_restarts_schedule_with_warmup,
                      n | {"num_training_steps": STEPS - 1, "num_cycles": cycles}))
    for shape in ("linear", "cosine", "1-sqrt"):
        for decay in (4, 15):
            CASES.append(({"schedule": "wsd", "decay_shape": shape, "decay_steps": decay}, optimization.get_wsd_schedule,
                          n | {"num_stable_steps": STEPS - 1 - decay - warmup, "num_decay_steps": decay, "decay_type": shape}))


def theirs(function, arguments):
    parameter = torch.nn.Parameter(torch.zeros(1))
    schedule = function(torch.optim.SGD([parameter], lr=1.0), **arguments)
    factor = schedule.lr_lambdas[0]
    warmup = arguments["num_warmup_steps"]
    return [factor(step + 1) if step < warmup else factor(step) for step in range(STEPS)]


def ours(keys, warmup):
    sets = {"warmup_steps": warmup, "lr": LR, **keys}
    if keys["schedule"] not in ("constant", "inverse_sqrt"):
        sets["min_lr"] = LOW
    command = [LMTRAIN, "config", "configs/jobs/quickstart.yaml", "--lr", "--json", "--set", f"train.steps={STEPS}"]
    for key, value in sets.items():
        command += ["--set", f"optimizer.{key}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        return done.stderr.strip()
    rows = json.loads(done.stdout)
    if [row["step"] for row in rows] != list(range(1, STEPS + 1)):
        return "not every step"
    return [row["lr"] for row in rows]


def main():
    passed = failed = 0
    for keys, function, arguments in CASES:
        got, low = ours(keys, arguments["num_warmup_steps"]), LOW
        if keys["schedule"] in ("constant", "inverse_sqrt"):
            low = 0
        # Warm-up is from 0 in all of them.
        warmup = arguments["num_warmup_steps"]
        wanted = [f * LR if step < warmup else low + (LR - low) * f for step, f in enumerate(theirs(function, arguments))]
        worst = got if isinstance(got, str) else max(abs(a - b) for a, b in zip(got, wanted))
        if isinstance(worst, str) or worst > 1e-15:
            failed += 1
            print(f"FAIL {keys} {arguments}: {worst}")
        else:
            passed += 1
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
