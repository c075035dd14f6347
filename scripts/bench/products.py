"""scripts/bench/products [--models NAME,...] [--dtypes bf16,fp32] [--rounds N] [--threads N] [--out FILE]

The products of a training step, by lmtrain and by oneDNN: forward, dX and dW of every kind of layer, at the shapes of the
models of scripts/bench/cpu. oneDNN is the one that PyTorch carries, called through torch.mm; lmtrain's figures are those of
`lmtrain bench ops`. Both take turns; of each product the best round counts. Operands differ from call to call, as a step's
do. dW is not quite the same work: lmtrain adds to fp32 accumulators, torch.mm writes the operands' dtype. Prints a table;
with --out it replaces the section "Products" of that file.
"""
import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time

from cpu import BATCHES, ROOT, write_job

KINDS = {"linear": "forward", "linear_dx": "dX", "linear_dw": "dW"}
N_SETS = 6  # of operands
BEGIN, END = "<!-- products: scripts/bench/products -->\n", "<!-- end of products -->\n"


def own_products(options, job):
    """{(kind, operands' shapes): (seconds of one call, FLOPs)}"""
    command = [options.lmtrain, "bench", "ops", job, "--json", "--steps=3"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result = {}
    for op in json.loads(text)["ops"]:
        if op["op"] in KINDS:
            shapes = tuple(tuple(map(int, re.findall(r"\d+", part.split("]")[0]))) for part in op["in"][:2])
            result[op["op"], shapes] = (op["seconds"] / op["runs"], op["flops"] / op["runs"])
    return result


def library_products(torch, products, dtype):
    """Seconds of one call of each, by the oneDNN of PyTorch."""
    result = {}
    for kind, (first, second) in products:
        a = [torch.randn(first).to(dtype) for _ in range(N_SETS)]
        b = [torch.randn(second).to(dtype) for _ in range(N_SETS)]
        times = []
        for i in range(3 * N_SETS):
            x, y = a[i % N_SETS], b[i % N_SETS]
            begin = time.perf_counter()
            if kind == "linear":      # [rows x k], [n x k]
                torch.mm(x, y.t())
            elif kind == "linear_dx":  # [rows x n], [n x k]
                torch.mm(x, y)
            else:                     # [rows x n], [rows x k]
                torch.mm(x.t(), y)
            times.append(time.perf_counter() - begin)
        result[kind, (first, second)] = sum(times[N_SETS:]) / len(times[N_SETS:])
    return result


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()


def load():
    with open("/proc/loadavg", encoding="ascii") as file:
        return " ".join(file.read().split()[:3])


def measure(options, torch, model, dtype, folder):
    job = write_job(options, model, dtype, folder)
    own, theirs, flops = {}, {}, {}
    for number in range(options.rounds):
        for key, (seconds, n) in own_products(options, job).items():
            own[key], flops[key] = min(seconds, own.get(key, seconds)), n
        for key, seconds in library_products(torch, own, {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype]).items():
            theirs[key] = min(seconds, theirs.get(key, seconds))
        print(f"# {model} {dtype}: round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    lines = [f"| {model} {dtype} | operands | lmtrain, GFLOP/s | oneDNN | ratio |", "|---|---|---|---|---|"]
    for key in sorted(own, key=lambda key: (list(KINDS).index(key[0]), -flops[key])):
        (kind, shapes), n = key, flops[key]
        text = ", ".join(" × ".join(map(str, shape)) for shape in shapes)
        lines.append(f"| {KINDS[kind]} | {text} | {n / own[key] * 1e-9:.0f} | {n / theirs[key] * 1e-9:.0f} | {theirs[key] / own[key]:.2f} |")
    work = sum(flops.values())
    total_own, total_theirs = sum(own.values()), sum(theirs.values())
    lines.append(f"| all | one of each | {work / total_own * 1e-9:.0f} | {work / total_theirs * 1e-9:.0f} | {total_theirs / total_own:.2f} |")
    return lines + [""]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lmtrain", default=os.path.join(ROOT, os.environ.get("BUILD", "build"), "lmtrain"))
    parser.add_argument("--models", default=",".join(BATCHES))
    parser.add_argument("--dtypes", default="bf16,fp32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", help="a file that has the section's marks, or gets them at its end")
    options = parser.parse_args()
    unknown = [model for model in options.models.split(",") if model not in BATCHES]
    if unknown:
        parser.error(f"no model is called {unknown[0]} (there are: {', '.join(BATCHES)})")
    import torch
    torch.set_num_threads(options.threads)
    if not torch.backends.mkldnn.is_available():
        sys.exit("products: this PyTorch has no oneDNN")
    git = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    version = re.search(r"MKL-DNN v(\S+)", torch.__config__.show())
    lines = ["## Products: lmtrain's and oneDNN's", "",
             f"{datetime.date.today()}, commit {commit}, {processor()}, {options.threads} threads, oneDNN "
             f"{version.group(1) if version else '?'} of PyTorch {torch.__version__}; load before: {load()}. Command: "
             f"`scripts/bench/products --rounds {options.rounds}`. The best of {options.rounds} alternating rounds; dW adds to fp32 "
             "accumulators in lmtrain, and is written in the operands' dtype by torch.mm.", ""]
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models.split(","):
            for dtype in options.dtypes.split(","):
                lines += measure(options, torch, model, dtype, folder)
    text = "\n".join(lines)
    print(text)
    if options.out:
        with open(options.out, encoding="utf-8") as file:
            old = file.read()
        before, mark, rest = old.partition(BEGIN)
        after = rest.partition(END)[2] if mark else ""
        with open(options.out, "w", encoding="utf-8") as file:
            file.write(before.rstrip("\n") + "\n\n" + BEGIN + text.rstrip("\n") + "\n" + END + after)


if __name__ == "__main__":
    main()
