#!/usr/bin/env python3
"""Mixtures of experts trained for twenty steps of AdamW and then asked for text, by transformers and by lmtrain.

Tiny models of transformers' classes are what both begin with, in fp32. Each step sees all of a text of a few sequences, so
that their order does not matter; losses, gradient norms and, at the end, weights are compared. The balance loss is transformers'
own where config.json asks for it (output_router_logits). The bias of DeepSeek-V3's router (dots1), which transformers does not
train, is changed after each step by a loop over what its routers chose, as Wang et al. 2024 have it. Capacities of experts, which
transformers does not have, are hooks of its routers that take the weights of what is dropped away. What was trained goes to a
Hugging Face folder; greedy texts of it, and of the run, must be those of transformers. Prints, last, `N passed, N failed`.
"""
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile

import numpy
import torch
import transformers

sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # behind all others: its files are called what they test
import moe  # noqa: E402
from moe import convert  # noqa: E402
from convert import LMTRAIN, ROOT, off, write_tokens  # noqa: E402

TOKENIZER = os.path.join(ROOT, "data", "kjv-tokenizer", "tokenizer.json")
PROMPTS = ["In the beginning God created", "And it came to pass", "The words of", "Now"]
N_NEW = 12
STEPS, LENGTH, SEQUENCES = 20, 24, 4
LR, DECAY, RATE = 1e-3, 0.1, 0.01
TOLERANCE, TOLERANCE_OF_NORM, TOLERANCE_OF_WEIGHTS = 1e-5, 1e-4, 1e-3

TINY = {"num_hidden_layers": 3, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
# name: class, fields of its config, ranks, parallel, sequences of a micro-batch
CASES = {
    "mixtral-balance": ("Mixtral", moe.EXPERTS | moe.BALANCE, 1, "", SEQUENCES),
    "mixtral-stages": ("Mixtral", moe.EXPERTS, 2, "pp: 2", 1),
    "qwen3moe-balance-tensor": ("Qwen3Moe", moe.QWEN | moe.BALANCE | {"norm_topk_prob": False}, 2, "tp: 2", SEQUENCES),
    "qwen3moe-experts": ("Qwen3Moe", moe.QWEN, 2, "dp: 2, ep: 2", 2),
    "dots1-tensor": ("Dots1", moe.DOTS, 2, "tp: 2", SEQUENCES),
    "mixtral-capacity-experts": ("Mixtral", moe.EXPERTS | {"num_local_experts": 4}, 2, "dp: 2, ep: 2", 1),
    "qwen3moe-capacity-tensor": ("Qwen3Moe", moe.QWEN, 2, "tp: 2", 1),
}
CAPACITY = {"mixtral-capacity-experts": (0.8, "position"), "qwen3moe-capacity-tensor": (1.1, "probability")}

results = []


def check(name, fine, why=""):
    results.append(bool(fine))
    if not fine:
        print(f"FAIL {name} {why}")


def run(*arguments):
    done = subprocess.run([LMTRAIN, *arguments], capture_output=True, encoding="utf-8", errors="replace", check=False)
    if done.returncode:
        print(done.stdout[-2000:] + done.stderr[-2000:])
    return done.stdout if done.returncode == 0 else None


def balance_biases(model, chosen):
    """After a step: chosen are the experts of all tokens of each router."""
    for gate, experts in chosen.items():
        counts = torch.bincount(experts.flatten(), minlength=len(gate.e_score_correction_bias)).double()
        gate.e_score_correction_bias += RATE * torch.sign(counts.mean() - counts).float()


def limit(experts, weights, factor, drop):
    """What of a sequence's choices is kept, as Megatron Core's apply_router_token_dropping has it."""
    tokens, n_chosen = experts.shape
    n_experts = int(limit.n_experts)
    capacity = math.ceil(tokens * n_chosen / n_experts * factor - 1e-9)
    kept = torch.zeros_like(weights)
    for expert in range(n_experts):
        choices = [(t, i) for t in range(tokens) for i in range(n_chosen) if experts[t, i] == expert]
        if drop == "probability":
            choices.sort(key=lambda c: -float(weights[c]))  # stable: of equal ones the lower token's
        for c in choices[:capacity]:
            kept[c] = 1
    return kept


def limit_gates(model, factor, drop, dropped):
    """In training choices beyond the capacity of a sequence have no weight; dropped: how many, of each gate."""
    for gate in [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "gate")]:
        def hook(gate, _inputs, out):
            logits, weights, experts = out[0], out[1], out[2]
            if not gate.training:
                return None
            kept = torch.cat([limit(e, w.detach(), factor, drop)
                              for e, w in zip(experts.split(LENGTH), weights.split(LENGTH))])
            dropped.setdefault(gate, []).append(int((kept == 0).sum()))
            return logits, weights * kept, experts
        limit.n_experts = gate.weight.shape[0]
        gate.register_forward_hook(hook)


def theirs(model, inputs, targets):
    """Losses and gradient norms of PyTorch's steps."""
    trained = list(model.parameters())
    groups = [{"params": [p for p in trained if p.dim() > 1], "weight_decay": DECAY},
              {"params": [p for p in trained if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), eps=1e-8)
    gates = [module for module in model.modules() if hasattr(module, "e_score_correction_bias")]
    chosen, steps = {}, []
    for gate in gates:
        gate.register_forward_hook(lambda gate, _inputs, out: chosen.__setitem__(gate, out[2]))
    model.train()
    for _ in range(STEPS):
        optimizer.zero_grad()
        out = model(inputs)
        loss = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), targets.flatten())
        balance = getattr(out, "aux_loss", None)
        (loss if balance is None else loss + model.config.router_aux_loss_coef * balance).backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        balance_biases(model, chosen)
        steps.append((loss.item(), norm.item()))
    return steps


def ours(name, ranks, parallel, micro_batch):
    factor, drop = CAPACITY.get(name, (0, ""))
    capacity = f"moe: {{capacity_factor: {factor}, drop: {drop}}}\n" if factor else ""
    bias = f", router_bias_rate: {RATE}" if name.startswith("dots1") else ""
    with open("job.yaml", "w", encoding="ascii") as job:
        job.write(f"model: {{from: ./base{bias}}}\n"
                  f"data: {{train: ./text, seq_len: {LENGTH}, tokenizer: ./base}}\n"
                  f"train: {{steps: {STEPS}, global_batch: {SEQUENCES}, micro_batch: {micro_batch}, dtype: fp32, "
                  "log_every: 1, init: ./base}\n"
                  f"optimizer: {{lr: {LR}, schedule: constant, warmup_steps: 0, weight_decay: {DECAY}, clip: 1.0}}\n"
                  f"{capacity}parallel: {{{parallel}}}\noutput: ./run\n")
    if run("pretrain", "job.yaml", "--ranks", str(ranks), "--set", "threads=1") is None:
        return None
    with open("run/metrics.jsonl", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file if "loss_hex" in line]
    return [(float.fromhex(line["loss_hex"]), float.fromhex(line["grad_norm_hex"]), line.get("dropped")) for line in lines]


def check_steps(name, got, wanted):
    check(f"{name}: steps", len(got) == STEPS, f"are {len(got)}")
    for what, i, tolerance in (("loss", 0, TOLERANCE), ("gradient norm", 1, TOLERANCE_OF_NORM)):
        errors = [abs(a[i] - b[i]) / b[i] for a, b in zip(got, wanted)]
        check(f"{name}: {what}", max(errors) <= tolerance, f"off by {max(errors):.2g} in step {numpy.argmax(errors)}")
    check(f"{name}: it learns", got[-1][0] < 0.9 * got[0][0], f"{got[0][0]} to {got[-1][0]}")


def check_texts(name, model, tokenizer):
    """Greedy texts of the run and of the folder made of it."""
    with open("prompts.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS)
    wanted = []
    for prompt in PROMPTS:
        ids = torch.tensor([tokenizer(prompt, add_special_tokens=False)["input_ids"]])
        with torch.no_grad():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=N_NEW, use_cache=True,
                                 pad_token_id=0, eos_token_id=None)
        wanted.append(out[0, ids.shape[1]:].tolist())
    for folder in ("run", "trained"):
        out = run("generate", "--model", folder, "--prompts", "prompts.jsonl", "--temperature", "0", "--json",
                  "--max-new-tokens", str(N_NEW), "--repetition-penalty", "1", "--threads", "1")
        got = [json.loads(line)["ids"] for line in out.splitlines()] if out else []
        # What ends a text here goes on there.
        fine = len(got) == len(wanted) and all(a == b[:len(a)] and a for a, b in zip(got, wanted))
        check(f"{name}: greedy texts of {folder}", fine, f"{got}, wanted {wanted}")


def check_case(name):
    family, fields, ranks, parallel, micro_batch = CASES[name]
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=TOKENIZER)
    shape = convert.SHAPE | {"vocab_size": len(tokenizer)} | TINY
    model = convert.make("base", family, shape | fields, torch.float32, "5GB")
    shutil.copy(TOKENIZER, "base")
    text = tokenizer("In the beginning God created the heaven and the earth. " * 20, add_special_tokens=False)["input_ids"]
    ids = numpy.array(text[:LENGTH * SEQUENCES + 1])
    ids[::5] = numpy.random.default_rng(7).integers(0, len(tokenizer), len(ids[::5]))
    write_tokens("text", ids)
    inputs, targets = (torch.tensor(ids[i:LENGTH * SEQUENCES + i]).view(SEQUENCES, LENGTH) for i in (0, 1))
    dropped = {}
    if name in CAPACITY:
        limit_gates(model, *CAPACITY[name], dropped)
    got, wanted = ours(name, ranks, parallel, micro_batch), theirs(model, inputs, targets)
    check(f"{name}: trains", got is not None)
    if got is None:
        return
    if name in CAPACITY:
        counts = [list(step) for step in zip(*dropped.values())]
        check(f"{name}: dropped", counts == [step[2] for step in got] and sum(map(sum, counts)) > 0,
              f"{[step[2] for step in got]}, wanted {counts}")
    check_steps(name, got, wanted)
    fine = run("convert", "--from", "run", "--to", "trained") is not None
    check(f"{name}: converts", fine)
    if not fine:
        return
    trained, info = type(model).from_pretrained("./trained", output_loading_info=True, attn_implementation="eager")
    check(f"{name}: transformers loads it", not any(info.values()), str(info))
    for (key, own), (_, tensor) in zip(trained.state_dict().items(), model.state_dict().items()):
        error = off(own, tensor)
        check(f"{name}: {key}", error <= TOLERANCE_OF_WEIGHTS, f"off by {error:.2g}")
    check_texts(name, trained.eval(), tokenizer)


def main():
    transformers.utils.logging.disable_progress_bar()
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    for name in sys.argv[1:] or CASES:
        with tempfile.TemporaryDirectory(dir=memory) as scratch:
            os.chdir(scratch)
            check_case(name)
            os.chdir("/")
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
