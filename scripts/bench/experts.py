"""What scripts/bench/experts runs: mixtures of experts, three comparisons whose contenders take turns.

step      whole training steps (forward, backward, AdamW, on random tokens) of a Qwen3-MoE: `lmtrain bench step`, and
          transformers' eager implementation under PyTorch's fused AdamW, which waits in a process of its own
ranks     the same step on two ranks of one thread each: data-parallel, and with the experts divided over them (ep 2)
products  a layer's products with 64 rows an expert, and dense ones of the same FLOPs: the same matrices but for one
          expert, the same rows; op by op, from `lmtrain bench ops`

The first round warms up and counts for nobody; medians of all steps of the others are compared.
"""
import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BATCH, SEQ_LEN = 4, 256
MODEL = {"vocab_size": 8192, "hidden_size": 384, "n_layers": 6, "n_heads": 6, "n_kv_heads": 2, "ffn_size": 1024, "n_experts": 16,
         "n_active_experts": 4, "expert_ffn_size": 384, "qk_norm": True, "tied_embeddings": False, "router_balance": 0.001}
# Of the products: 64 rows of each of 16 experts.
ROWS, EXPERTS = 1024, 16
WANTED = {"step": 2.0, "ranks": 0.85, "products": 0.85}


def job(folder, name, model, dtype, **settings):
    """A job file; settings: seq_len, micro_batch, threads, parallel."""
    path = os.path.join(folder, f"{name}-{dtype}.yaml")
    batch = settings.get("micro_batch", BATCH)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"model: {json.dumps(model)}\n"
                   f"data: {{train: {folder}/none, tokenizer: {folder}/none, seq_len: {settings.get('seq_len', SEQ_LEN)}}}\n"
                   f"train: {{steps: 1, global_batch: {batch * settings.get('ranks', 1)}, micro_batch: {batch}, dtype: {dtype}}}\n"
                   f"parallel: {json.dumps(settings.get('parallel', {}))}\n"
                   f"threads: {settings['threads']}\noutput: {folder}/none\n")
    return path


def run(command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    # A plan that does not fit says so by its status, and prints it all the same.
    if done.returncode and not done.stdout:
        sys.exit(f"experts: {' '.join(command)}: {done.stderr}")
    return json.loads(done.stdout)


class Lmtrain:
    def __init__(self, options, path, n_ranks=1):
        self.command = [options.lmtrain, "bench", "step", path, "--json", f"--ranks={n_ranks}"]

    def turn(self, n_steps):
        return run([*self.command, f"--steps={n_steps}"])["step_seconds"]


class Transformers:
    """A process that waits for its turns."""

    def __init__(self, options, dtype):
        environment = dict(os.environ, OMP_NUM_THREADS=str(options.threads), TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
        self.process = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--contender", dtype, str(options.threads)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def turn(self, n_steps):
        self.process.stdin.write(f"{n_steps}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def contend(dtype, threads):
    """The process of Transformers."""
    import torch
    from torch.nn import functional as F
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    m = MODEL
    config = Qwen3MoeConfig(
        vocab_size=m["vocab_size"], hidden_size=m["hidden_size"], intermediate_size=m["ffn_size"],
        num_hidden_layers=m["n_layers"], num_attention_heads=m["n_heads"], num_key_value_heads=m["n_kv_heads"],
        head_dim=m["hidden_size"] // m["n_heads"], num_experts=m["n_experts"], num_experts_per_tok=m["n_active_experts"],
        moe_intermediate_size=m["expert_ffn_size"], norm_topk_prob=True, output_router_logits=True,
        router_aux_loss_coef=m["router_balance"], tie_word_embeddings=False, use_cache=False)
    if hasattr(config, "_experts_implementation"):
        config._experts_implementation = "eager"
    model = Qwen3MoeForCausalLM(config).train()
    tokens = torch.randint(m["vocab_size"], (BATCH, SEQ_LEN + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16"):
            out = model(input_ids=inputs)
            loss = F.cross_entropy(out.logits.flatten(0, 1).float(), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            begin = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - begin)
        print(json.dumps(seconds), flush=True)


def take_turns(options, contenders):
    """{name: seconds of all steps but the first round's}"""
    seconds = {name: [] for name in contenders}
    for number in range(options.rounds + 1):
        for name, contender in contenders.items():
            new = contender.turn(options.steps if number else 1)
            if number:
                seconds[name] += new
                print(f"seconds {name} round {number} {statistics.median(new):.4f}", flush=True)
    return seconds


def spread(values):
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def verdict(what, ratio):
    return f"{ratio:.2f}, wanted {WANTED[what]:.2f}: {'reached' if ratio >= WANTED[what] else 'not reached'}"


def section_step(options, folder, dtype):
    threads = options.threads
    seconds = take_turns(options, {
        f"lmtrain {dtype}": Lmtrain(options, job(folder, "step", MODEL, dtype, threads=threads)),
        f"transformers {dtype}": Transformers(options, dtype)})
    own, other = seconds.values()
    return [f"| {dtype} | {spread(own)} | {spread(other)} | {verdict('step', statistics.median(other) / statistics.median(own))} |"]


def section_ranks(options, folder, dtype):
    common = {"threads": 1, "ranks": 2}
    seconds = take_turns(options, {
        f"dp 2 {dtype}": Lmtrain(options, job(folder, "dp", MODEL, dtype, parallel={"dp": 2}, **common), 2),
        f"ep 2 {dtype}": Lmtrain(options, job(folder, "ep", MODEL, dtype, parallel={"dp": 2, "ep": 2}, **common), 2)})
    dense, divided = seconds.values()
    return [f"| {dtype} | {spread(dense)} | {spread(divided)} | "
            f"{verdict('ranks', statistics.median(dense) / statistics.median(divided))} |"]


def rates(options, path, kinds, columns):
    """{kind: FLOP/s} of a layer's products with a matrix that has so many columns."""
    rate = {}
    for op in run([options.lmtrain, "bench", "ops", path, "--json", "--steps=3"])["ops"]:
        if op["op"] in kinds and op["flops"] > 0 and f"x {columns}]" in " ".join(op["in"] + op["out"]):
            total = rate.setdefault(op["op"], [0.0, 0.0])
            total[0] += op["flops"]
            total[1] += op["seconds"]
    return {kind: flops / seconds for kind, (flops, seconds) in rate.items()}


def section_products(options, folder, dtype):
    """Rows of one choice a token; up and down projections of one expert's width."""
    grouped = MODEL | {"n_layers": 2, "n_experts": EXPERTS, "n_active_experts": 1, "hidden_size": 768, "n_heads": 12,
                       "expert_ffn_size": 1536, "n_kv_heads": 4}
    dense = {key: value for key, value in grouped.items() if "expert" not in key and not key.startswith("router")}
    dense["ffn_size"] = 1536
    settings = {"threads": options.threads, "seq_len": 256, "micro_batch": ROWS // 256}
    of_experts = job(folder, "grouped", grouped, dtype, **settings)
    of_all = job(folder, "dense", dense, dtype, **settings)
    pairs = {"expert_linear": "linear", "expert_linear_dx": "linear_dx", "expert_linear_dw": "linear_dw"}
    found = {kind: ([], []) for kind in pairs}
    for number in range(options.rounds + 1):
        ours, theirs = rates(options, of_experts, pairs, 3072), rates(options, of_all, pairs.values(), 3072)
        for kind, other in pairs.items():
            if number:
                found[kind][0].append(ours[kind] / 1e9)
                found[kind][1].append(theirs[other] / 1e9)
    return [f"| {dtype}, {kind} | {spread(ours)} | {spread(theirs)} | "
            f"{verdict('products', statistics.median(ours) / statistics.median(theirs))} |" for kind, (ours, theirs) in found.items()]


def section_memory(options, folder, recompute):
    """What `lmtrain plan` says of a rank's device; here dtypes are ways to recompute."""
    path = os.path.join(folder, f"memory-{recompute}.yaml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"model: qwen3-30b-a3b\ndata: {{train: {folder}/none, tokenizer: {folder}/none, seq_len: 4096}}\n"
                   "train: {steps: 1, global_batch: 64, micro_batch: 1, dtype: bf16}\ncluster: dgx-h100\n"
                   f"parallel: {{dp: 32, pp: 2, ep: 8, zero: 1}}\nrecompute: {recompute}\noutput: {folder}/none\n")
    plans = [run([options.lmtrain, "plan", path, "--json", "--ranks=64", f"--set=moe.stash_factor={factor}"]) for factor in (0, 1.3)]
    all_rows, pages = (plan["device_bytes"] / 2**30 for plan in plans)
    return [f"| recompute {recompute} | {all_rows:.1f} | {pages:.1f} | {pages / all_rows:.2f} |"]


SECTIONS = {
    "step": (section_step, "A training step, against transformers", "lmtrain, s | transformers, s | times as fast",
             f"Qwen3-MoE, {BATCH} x {SEQ_LEN} tokens: " + ", ".join(f"{k} {v}" for k, v in MODEL.items()) + "."),
    "ranks": (section_ranks, "ep 2 against dp 2", "dp 2, s | ep 2, s | dp 2 by ep 2",
              f"The same model, two ranks of one thread, {BATCH} x {SEQ_LEN} tokens each."),
    "products": (section_products, "Products of experts, against dense ones", "experts, GFLOP/s | dense, GFLOP/s | share",
                 f"{ROWS} rows, {EXPERTS} experts: 64 rows each on average (routing of random weights); hidden size 768, gate and up "
                 "of 2 x 1536."),
    "memory": (section_memory, "Rows of experts in pages", "for all rows, GiB | in pages, GiB | share",
               "What `lmtrain plan` says of a device of Qwen3-30B-A3B on 64 H100, pp 2, dp 32, ep 8, zero 1, 4096 tokens a micro-batch, "
               "bf16: memory for all rows of experts that there may be (moe.stash_factor 0), and for 1.3 times the balanced ones."),
}


def head_of(options, before):
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo", encoding="utf-8") if line.startswith("model name")), "?")
    commit = subprocess.run(["git", "describe", "--always", "--dirty", "--exclude=*"], cwd=ROOT, capture_output=True, text=True,
                            check=True).stdout.strip()
    import torch
    import transformers
    return ["# Mixtures of experts on the CPU", "",
            f"{datetime.date.today()}, commit {commit}, {os.cpu_count()} cores ({cpu}), Linux {platform.release()}, "
            f"{options.threads} threads; PyTorch {torch.__version__}, transformers {transformers.__version__}. Load before: {before}. "
            f"Command: `{' '.join(['scripts/bench/experts', *sys.argv[3:]])}`.", "",
            f"Contenders take turns, {options.rounds} rounds of {options.steps} steps after one that counts for nobody; medians, in "
            "brackets the least and the most.", ""]


def main():
    if sys.argv[1:2] == ["--contender"]:
        contend(sys.argv[2], int(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(prog="scripts/bench/experts")
    parser.add_argument("--lmtrain", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--dtypes", default="bf16,fp32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="of each turn")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", default=os.path.join(ROOT, "bench", "results", "experts.md"))
    options = parser.parse_args()
    options.lmtrain = os.path.abspath(options.lmtrain)
    with open("/proc/loadavg", encoding="ascii") as file:
        lines = head_of(options, " ".join(file.read().split()[:3]))
    with tempfile.TemporaryDirectory() as folder:
        for name in options.sections.split(","):
            measure, title, columns, what = SECTIONS[name]
            lines += [f"## {title}", "", what, "", f"| | {columns} |", "|---|---|---|---|"]
            for dtype in ["none", "selective"] if name == "memory" else options.dtypes.split(","):
                lines += measure(options, folder, dtype)
            lines.append("")
    with open(options.out, "w", encoding="utf-8") as file:
        file.write("\n".join(lines).rstrip() + "\n")
    print("\n".join(lines))


main()
