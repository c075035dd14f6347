"""check_prometheus.py FILE METRICS - FILE is text that node_exporter's textfile collector takes, and says what METRICS
(metrics.jsonl) ends with

Strictly by the exposition format 0.0.4: each metric has HELP, TYPE and one sample in this order, names and labels are of the
allowed characters, values are numbers; and by promtool's rules: counters end in _total, others do not, units are base units.
"""
import json
import re
import sys

SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)\{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*",?)*)\} (\S+)')


def parse(text):
    assert text.endswith("\n"), "the last line has no end"
    lines = text[:-1].split("\n")
    assert len(lines) % 3 == 0, f"{len(lines)} lines are no triples"
    values = {}
    for help_line, type_line, sample in zip(*[iter(lines)] * 3):
        match = SAMPLE.fullmatch(sample)
        assert match, f"no sample: {sample}"
        name, labels, value = match.groups()
        assert re.fullmatch(rf"# HELP {name} \S.*\.", help_line), help_line
        kind = re.fullmatch(rf"# TYPE {name} (counter|gauge)", type_line)
        assert kind, type_line
        assert (kind[1] == "counter") == name.endswith("_total"), f"{name} is a {kind[1]}"
        assert not re.search(r"(_ms|_milliseconds|_percent|_minutes|_hours)$", name), name
        assert name.startswith("lmtrain_") and name not in values, name
        assert labels.startswith('run="'), labels
        values[name] = float(value)
    return values


values = parse(open(sys.argv[1], encoding="utf-8").read())
steps = [line for line in map(json.loads, open(sys.argv[2], encoding="utf-8")) if "loss" in line]
for name, key in (("step", "step"), ("loss", "loss"), ("grad_norm", "grad_norm"), ("learning_rate", "lr"), ("tokens", "tokens"),
                  ("tokens_per_second", "tokens_per_s"), ("step_seconds", "step_s"), ("mfu_ratio", "mfu"),
                  ("skipped_steps", "skipped"), ("useful_seconds", "useful_s")):
    got, expected = values["lmtrain_" + name], steps[-1][key]
    assert abs(got - expected) <= 1e-12 * abs(expected), f"{name} is {got}, {key} is {expected}"
useful, wall = values["lmtrain_useful_seconds"], values["lmtrain_run_seconds"]
assert 0 < useful < wall, (useful, wall)
assert abs(values["lmtrain_goodput_ratio"] - useful / wall) < 1e-9
assert values["lmtrain_save_seconds"] > 0
print("running %g, restarts %g" % (values["lmtrain_running"], values["lmtrain_restarts_total"]))
