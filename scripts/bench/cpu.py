"""What scripts/bench/cpu runs: contenders take turns, each some steps a round, and the table of what came of it.

Each measures whole training steps: forward, backward, AdamW, on random tokens. lmtrain is `lmtrain bench step`, the
program and executor that train; the others are cpu_torch.py, started once a model and kept waiting between their
turns, so that nothing of theirs but steps is measured. All have the same threads, model and batch. The first round
warms up and counts for nobody.
"""
import argparse
import datetime
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HERE = os.path.join(ROOT, "scripts", "bench")
SEQ_LEN = 256
BATCHES = {"llama-100m": 4, "gpt2": 4, "llama-22m": 8}
CONTENDERS = [f"{kind}-{dtype}" for dtype in ("bf16", "fp32") for kind in ("lmtrain", "hand-compile", "hand-eager", "hf")]
LABELS = {"lmtrain": "lmtrain", "hand-compile": "PyTorch, by hand, torch.compile", "hand-eager": "PyTorch, by hand, eager",
          "hf": "transformers, eager"}
# What issue 5 wants of lmtrain: tokens per second by those of another.
WANTED = {"llama-100m": [("bf16", "hand-compile", 1.5), ("fp32", "hand-compile", 2.2), ("bf16", "hf", 1.7)],
          "gpt2": [("bf16", "hand-compile", 1.4)], "llama-22m": [("bf16", "hand-compile", 1.8)]}


def load():
    with open("/proc/loadavg", encoding="ascii") as file:
        return float(file.read().split()[0])


def fail(text):
    sys.exit(f"cpu: {text}")


def write_job(options, model, dtype, folder):
    path = os.path.join(folder, f"{model}-{dtype}.yaml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"model: {model}\ndata: {{train: {folder}/none, tokenizer: {folder}/none, seq_len: {SEQ_LEN}}}\n"
                   f"train: {{steps: 1, global_batch: {BATCHES[model]}, micro_batch: {BATCHES[model]}, dtype: {dtype}}}\n"
                   f"ranks: 1\nthreads: {options.threads}\noutput: {folder}/none\n")
    return path


class Lmtrain:
    """A process a turn: bench step's own warm-up is not counted."""

    def __init__(self, options, model, dtype, folder):
        path = write_job(options, model, dtype, folder)
        self.command = [options.lmtrain, "bench", "step", path, "--json"]
        if model == "gpt2":
            self.command += ["--set", "model.dropout=0", "--set", "model.attention_dropout=0"]

    def turn(self, n_steps):
        process = subprocess.Popen([*self.command, f"--steps={n_steps}"], stdout=subprocess.PIPE, cwd=ROOT)
        text = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            fail(f"{' '.join(self.command)}: status {process.returncode}")
        self.figures = json.loads(text)
        return usage.ru_maxrss * 1024, self.figures["step_seconds"]

    def end(self):
        pass


class Torch:
    """A process that waits for its turns."""

    def __init__(self, options, model, kind, dtype, folder):
        environment = dict(os.environ, OMP_NUM_THREADS=str(options.threads), TOKENIZERS_PARALLELISM="false",
                           TORCHINDUCTOR_CACHE_DIR=os.path.join(os.path.dirname(options.lmtrain), "inductor"), HF_HUB_OFFLINE="1")
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "cpu_torch.py"), os.path.join(folder, f"{model}.json"), kind, dtype,
             str(options.threads), str(BATCHES[model]), str(SEQ_LEN)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self.first_seconds = float(self.read(f"{kind} {dtype}").split()[1])

    def read(self, what):
        line = self.process.stdout.readline()
        if not line:
            fail(f"{what} ended: status {self.process.wait()}")
        return line

    def turn(self, n_steps):
        self.process.stdin.write(f"{n_steps}\n")
        self.process.stdin.flush()
        peak, *seconds = self.read("a contender").split()
        return int(peak), [float(s) for s in seconds]

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def describe_model(options, model, folder):
    """The model's fields, for those who are not lmtrain, with its number of parameters."""
    def ask(command):
        return json.loads(subprocess.run([options.lmtrain, command, "--json", os.path.join(folder, f"{model}-bf16.yaml")],
                                         cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    fields = ask("config")["model"] | {"parameters": ask("plan")["parameters"]}
    with open(os.path.join(folder, f"{model}.json"), "w", encoding="utf-8") as file:
        json.dump(fields, file)


def measure(options, model, names, folder):
    """{name: {"seconds": [...], "peak": bytes, ...}}, and the load before each round"""
    Lmtrain(options, model, "bf16", folder)
    describe_model(options, model, folder)
    contenders, results, loads = {}, {}, []
    for name in names:
        kind, dtype = name.rsplit("-", 1)
        print(f"# {model}: starting {name}", flush=True)
        contenders[name] = Lmtrain(options, model, dtype, folder) if kind == "lmtrain" else \
            Torch(options, model, kind, dtype, folder)
        results[name] = {"seconds": [], "peak": 0}
    for number in range(options.rounds + 1):
        loads.append(load())
        for name, contender in contenders.items():
            peak, seconds = contender.turn(options.steps if number else 1)
            results[name]["peak"] = max(results[name]["peak"], peak)
            if number:
                results[name]["seconds"] += seconds
                print(f"tokens_per_s {model} {name} round {number} {BATCHES[model] * SEQ_LEN / min(seconds):.1f}", flush=True)
    for name, contender in contenders.items():
        contender.end()
        results[name]["figures"] = getattr(contender, "figures", None)
    return results, loads


def speeds(model, result):
    tokens = BATCHES[model] * SEQ_LEN
    return tokens / min(result["seconds"]), tokens / statistics.median(result["seconds"])


def table_of(model, results, loads):
    lines = [f"## {model}, {BATCHES[model]} × {SEQ_LEN} tokens", "",
             f"Load before the rounds: {' '.join(f'{value:.1f}' for value in loads)}.", "",
             "| | dtype | tokens/s, best | median | peak memory, GB | lmtrain is, best by best | median by median |",
             "|---|---|---|---|---|---|---|"]
    for name, result in results.items():
        kind, dtype = name.rsplit("-", 1)
        best, median = speeds(model, result)
        print(f"tokens_per_s {model} {name} best {best:.1f} median {median:.1f}", flush=True)
        ratios = ["", ""]
        own = results.get(f"lmtrain-{dtype}")
        if own and kind != "lmtrain":
            ratios = [f"{mine / theirs:.2f}×" for mine, theirs in zip(speeds(model, own), (best, median))]
        lines.append(f"| {LABELS[kind]} | {dtype} | {best:.0f} | {median:.0f} | {result['peak'] / 1e9:.2f} | {ratios[0]} | {ratios[1]} |")
    lines.append("")
    for dtype, kind, wanted in WANTED[model]:
        own, other = results.get(f"lmtrain-{dtype}"), results.get(f"{kind}-{dtype}")
        if own and other:
            reached = speeds(model, own)[0] / speeds(model, other)[0]
            lines.append(f"- {dtype} by {LABELS[kind]}: {reached:.2f}× (wanted: {wanted}×, "
                         f"{'reached' if reached >= wanted else 'not reached'})")
    for name, result in results.items():
        figures = result["figures"]
        if figures:
            lines.append(f"- {name}: {100 * figures['mfu']:.0f} % of the machine's best product over the whole step "
                         f"({figures['peak_flops_per_s'] / 1e9:.0f} GFLOP/s, {figures['memory_bytes_per_s'] / 1e9:.0f} GB/s measured), "
                         f"{100 * figures['reached']:.0f} % of the floor")
    return lines + [""]


def head_of(options, before):
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo", encoding="utf-8") if line.startswith("model name")), "?")
    commit = subprocess.run(["git", "describe", "--always", "--dirty", "--exclude=*"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = subprocess.run([sys.executable, "-c", "import torch, transformers; print(torch.__version__, transformers.__version__)"],
                              capture_output=True, text=True).stdout.split()
    return ["# Training on the CPU, against PyTorch and transformers", "",
            f"{datetime.date.today()}, commit {commit}, {os.cpu_count()} cores ({cpu}), {memory:.0f} GiB, Linux {platform.release()}, "
            f"{options.threads} threads each; PyTorch {' and transformers '.join(versions)}. "
            f"Load before: {before}. Command: `scripts/bench/cpu`.", "",
            f"Whole steps with AdamW on random tokens, no dropout; the contenders take turns, {options.rounds} rounds of "
            f"{options.steps} steps each, after a round that counts for nobody. bf16 of PyTorch is autocast over fp32 parameters. "
            "lmtrain also computes and clips the gradient's norm, the others do not.", ""]


def names_of(text, known, what):
    names = text.split(",") if text else list(known)
    for name in names:
        if name not in known:
            fail(f"no {what} is called {name} (there are: {', '.join(known)})")
    return names


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench/cpu")
    parser.add_argument("--lmtrain", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--only", help="contenders: " + ", ".join(CONTENDERS))
    parser.add_argument("--models", help="models: " + ", ".join(BATCHES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="of each turn")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", help="bench/results/cpu.md; with --only or --models nothing is written without it")
    options = parser.parse_args()
    options.lmtrain = os.path.abspath(options.lmtrain)
    names, models = names_of(options.only, CONTENDERS, "contender"), names_of(options.models, BATCHES, "model")
    out = options.out or (None if options.only or options.models else os.path.join(ROOT, "bench", "results", "cpu.md"))
    with open("/proc/loadavg", encoding="ascii") as file:
        before = " ".join(file.read().split()[:3])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    lines = head_of(options, before)
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            lines += table_of(model, *measure(options, model, names, folder))
    if out:
        with open(out, "w", encoding="utf-8") as file:
            file.write("\n".join(lines).rstrip() + "\n")
        print(f"# written: {out}")


if __name__ == "__main__":
    main()
