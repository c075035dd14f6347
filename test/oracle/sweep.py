#!/usr/bin/env python3
"""Decisions of a sweep against optuna's pruners, on recorded curves.

A history is written by hand: curves of losses at rungs, with ties, failed trials and values that are not finite, and for each
trial that is at a rung the decision that optuna makes when all others' values are there: MedianPruner with the others as
completed trials, SuccessiveHalvingPruner's rung with the trial as the last that arrives. `lmtrain sweep DIR --replay` makes all
decisions again from the values, and must find these. What differs by definition: of equal values optuna lets all go on, ours are
taken by number (so halving has no ties here); a failed trial has no value for optuna, with ours it counts as worst (so the median
gets infinity for it). Prints, last, `N passed, N failed`.
"""
import json
import math
import os
import random
import subprocess
import sys
import tempfile

import optuna
from optuna.trial import TrialState, create_trial

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LMTRAIN = os.environ.get("LMTRAIN", os.path.join(ROOT, "build", "lmtrain"))
optuna.logging.set_verbosity(optuna.logging.ERROR)


def completed(values, steps):
    """A trial that ended with these values at steps."""
    return create_trial(state=TrialState.COMPLETE, value=0.0, params={}, distributions={},
                        intermediate_values=dict(zip(steps, values)))


def running(study, values, steps):
    """The same, under way."""
    trial = study.ask()
    for value, step in zip(values, steps):
        trial.report(value, step)
    return trial


def median_goes_on(curves, alive, trial, rung, steps, min_trials):
    study = optuna.create_study(pruner=optuna.pruners.MedianPruner(n_startup_trials=min_trials, n_warmup_steps=0,
                                                                   n_min_trials=min_trials))
    for other in alive:
        if other != trial:
            study.add_trial(completed(curves[other][:rung + 1], steps))
    return not running(study, curves[trial][:rung + 1], steps).should_prune()


def halving_goes_on(curves, alive, trial, rung, steps, eta):
    """Trials that arrive one by one at the first rung of optuna's: this one is last."""
    study = optuna.create_study(pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=eta))
    for other in [o for o in alive if o != trial] + [trial]:
        under_way = study.ask()
        under_way.report(curves[other][rung], 1)
        pruned = under_way.should_prune()
        study.tell(under_way, state=TrialState.PRUNED if pruned else TrialState.COMPLETE,
                   values=None if pruned else curves[other][rung])
    return not pruned


class History:
    """sweep.jsonl as lmtrain writes it."""

    def __init__(self, folder, stop, steps, n_trials, eta, min_trials):
        self.file = open(os.path.join(folder, "sweep.jsonl"), "w")
        self.add("sweep", version=1, command="pretrain", job="job.yaml", search="list", seed=1, metric="loss", goal="minimize",
                 stop=stop, eta=eta, min_trials=min_trials, asynchronous=False, rungs=steps, trials=n_trials, parameters=[])
        for i in range(n_trials):
            self.add("trial", trial=i, settings={})

    def add(self, event, **members):
        self.file.write(json.dumps({"event": event, "time": 0.0, **members}) + "\n")


def write(folder, stop, curves, steps, eta, min_trials, failed):
    """The history of a synchronous sweep with optuna's decisions. failed: {trial: rung on the way to which it fails}."""
    history = History(folder, stop, steps, len(curves), eta, min_trials)
    alive, n_decisions, n_stopped = list(range(len(curves))), 0, 0
    for rung, step in enumerate(steps):
        for trial in alive:
            history.add("start", trial=trial, rung=rung)
        for trial in alive:
            value = curves[trial][rung]
            if failed.get(trial) == rung:
                history.add("fail", trial=trial, rung=rung, text="")
            else:
                history.add("value", trial=trial, rung=rung, step=step, value=value, value_hex=float(value).hex())
        if rung == len(steps) - 1:
            break
        seen = [[math.inf if failed.get(t) == rung and r == rung else v for r, v in enumerate(curve)]
                for t, curve in enumerate(curves)]
        there, after = [t for t in alive if failed.get(t) != rung], []
        for trial in there:
            goes_on = (median_goes_on(seen, alive, trial, rung, steps, min_trials) if stop == "median"
                       else halving_goes_on(seen, alive, trial, rung, steps, eta))
            history.add("go_on" if goes_on else "stop", trial=trial, rung=rung)
            n_decisions += 1
            n_stopped += not goes_on
            after += [trial] if goes_on else []
        alive = after
        if not alive:
            break
    history.file.close()
    return n_decisions, n_stopped


def replay(folder):
    return subprocess.run([LMTRAIN, "sweep", folder, "--replay"], capture_output=True, text=True)


def main():
    passed = failed_cases = 0
    dice = random.Random(7)
    for case in range(60):
        stop = ("median", "asha")[case % 2]
        n, n_rungs, eta = dice.randint(2, 14), dice.randint(2, 4), dice.choice((2, 3, 4))
        curves, level = [], [dice.uniform(2, 4) for _ in range(n)]
        for trial in range(n):
            curve = [level[trial] / (1 + 0.3 * rung) + dice.gauss(0, 0.2) for rung in range(n_rungs)]
            curves.append([round(v, 1) if stop == "median" else v for v in curve])  # rounded: with ties
        failing = {t: dice.randrange(n_rungs) for t in range(n) if dice.random() < 0.15} if case % 3 == 0 else {}
        steps = [4 * eta**rung for rung in range(n_rungs)]
        with tempfile.TemporaryDirectory() as folder:
            n_decisions, n_stopped = write(folder, stop, curves, steps, eta, dice.randint(1, 4), failing)
            result = replay(folder)
        if result.returncode == 0 and f"{n_decisions} decision" in result.stdout:
            passed += 1
        else:
            failed_cases += 1
            print(f"case {case}, {stop}, {n} trials: {result.stdout}{result.stderr}")
        if case < 2:
            print(f"{stop}: {n_decisions} decisions, {n_stopped} of them to stop")
    print(f"{passed} passed, {failed_cases} failed")
    return failed_cases != 0


if __name__ == "__main__":
    sys.exit(main())
