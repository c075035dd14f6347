#!/usr/bin/env python3
"""SmolLM2-135M-Instruct, a real model: what it writes here and in transformers.

Greedy and beam search of ten prompts must give transformers' ids, one by one, in fp32; the loss of text must be its loss.
Converted for tp 2 and pp 2 it must answer, go on training, and come back with the bits that it had. The model is made
by scripts/data/smollm2.py; $LMTRAIN_SMOLLM2 names a wheel or a folder that it made in fp32. Where it cannot be had, all
is skipped. Prints, last, `N passed, N failed`.
"""
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LMTRAIN = os.environ.get("LMTRAIN", os.path.join(ROOT, "build", "lmtrain"))
GIVEN = os.environ.get("LMTRAIN_SMOLLM2", "")
CANNOT, N_NEW, N_BEAM_NEW, LENGTH = 77, 12, 7, 256

PROMPTS = [
    "The capital of France is",
    "In 1969, Apollo 11",
    "def fibonacci(n):\n    ",
    "Water boils at 100 degrees",
    "Once upon a time, there was a little girl who",
    "La plus belle ville du monde est",
    "1, 2, 3, 4, 5,",
    "The three primary colors are",
    "To make a cup of tea, first",
    "Q: What is 2 + 2?\nA:",
]

results = []


def check(name, passed, *why):
    results.append(bool(passed))
    if not passed:
        print("FAIL", name, *(str(part)[:1500] for part in why))


def run(*arguments):
    return subprocess.run([LMTRAIN, *arguments], capture_output=True, text=True)


def make(scratch):
    """The folder in fp32, or None with a reason on stdout."""
    if os.path.isdir(GIVEN):
        return GIVEN
    folder = os.path.join(scratch, "fp32")
    command = [sys.executable, os.path.join(ROOT, "scripts", "data", "smollm2.py"), folder, "--dtype", "fp32"]
    made = subprocess.run(command + (["--wheel", GIVEN] if GIVEN else []), capture_output=True, text=True)
    if made.returncode == CANNOT:
        print("skip:", made.stderr.strip().splitlines()[-1])
        return None
    if made.returncode:
        raise SystemExit(made.stderr)
    return folder


def generate(folder, prompts, scratch, *options):
    path = os.path.join(scratch, "prompts.jsonl")
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(prompt) + "\n" for prompt in prompts)
    done = run("generate", "--model", folder, "--prompts", path, "--json", *options)
    if done.returncode:
        return done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def wanted_ids(model, ids, end, **options):
    import torch

    with torch.no_grad():
        out = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                             do_sample=False, pad_token_id=end, eos_token_id=end, **options)[0].tolist()[len(ids):]
    return out[:out.index(end)] if end in out else out


def check_texts(model, tokenizer, folder, scratch):
    end = tokenizer.eos_token_id
    encoded = [tokenizer(prompt, add_special_tokens=False)["input_ids"] for prompt in PROMPTS]
    for name, n, ours, theirs in (
            ("greedy", 10, ["--temperature", "0", "--max-new-tokens", str(N_NEW)], {"max_new_tokens": N_NEW}),
            ("penalised", 3, ["--temperature", "0", "--max-new-tokens", str(N_BEAM_NEW), "--repetition-penalty", "1.3"],
             {"max_new_tokens": N_BEAM_NEW, "repetition_penalty": 1.3}),
            ("beams", 10, ["--beams", "3", "--max-new-tokens", str(N_BEAM_NEW)],
             {"max_new_tokens": N_BEAM_NEW, "num_beams": 3}),
            ("beams, early", 3, ["--beams", "2", "--max-new-tokens", str(N_BEAM_NEW), "--length-penalty", "-1",
                              "--early-stopping", "yes"],
             {"max_new_tokens": N_BEAM_NEW, "num_beams": 2, "length_penalty": -1.0, "early_stopping": True})):
        got = generate(folder, PROMPTS[:n], scratch, *ours)
        for i, ids in enumerate(encoded[:n]):
            wanted = wanted_ids(model, ids, end, **theirs)
            mine = got[i]["ids"] if isinstance(got, list) else got
            check(f"{name}: {PROMPTS[i]!r}", mine == wanted, mine, wanted)


def with_windows(folder, scratch):
    """The folder with max_position_embeddings of LENGTH, which is how long eval's windows are then."""
    short = os.path.join(scratch, "short")
    os.makedirs(short)
    for name in os.listdir(folder):
        if name == "config.json":
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                config = json.load(file) | {"max_position_embeddings": LENGTH}
            with open(os.path.join(short, name), "w", encoding="utf-8") as file:
                json.dump(config, file)
        else:
            os.symlink(os.path.abspath(os.path.join(folder, name)), os.path.join(short, name))
    return short


def check_loss(model, tokenizer, folder, scratch):
    import torch

    with open(os.path.join(ROOT, "lib", "README.md"), encoding="utf-8") as file:
        text = file.read()[:9000]
    path, prefix = os.path.join(scratch, "text.txt"), os.path.join(scratch, "text")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    done = run("data", "tokenize", path, "--tokenizer", folder, "--out", prefix)
    check("tokens", done.returncode == 0, done.stderr)
    done = run("eval", "--model", with_windows(folder, scratch), "--data", prefix, "--json", "--limit", "2")
    check("eval", done.returncode == 0, done.stderr)
    if done.returncode:
        return
    result = json.loads(done.stdout)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"][:result["tokens"] + 1]
    total = 0.0
    for begin in range(0, len(ids) - 1, LENGTH):
        window = torch.tensor([ids[begin:begin + LENGTH + 1]])
        with torch.no_grad():
            logits = model(window[:, :-1]).logits[0].double()
        total += torch.nn.functional.cross_entropy(logits, window[0, 1:], reduction="sum").item()
    wanted = total / (len(ids) - 1)
    check("loss", len(ids) > LENGTH and abs(result["loss"] - wanted) < 1e-4, result, wanted)


def same_tensors(a, b):
    from safetensors import safe_open
    import torch

    with safe_open(os.path.join(a, "model.safetensors"), "pt") as x, \
            safe_open(os.path.join(b, "model.safetensors"), "pt") as y:
        if set(x.keys()) != set(y.keys()):
            return False
        return all(torch.equal(x.get_tensor(name), y.get_tensor(name)) for name in x.keys())


def check_checkpoint(folder, scratch):
    sharded, back = os.path.join(scratch, "ck"), os.path.join(scratch, "back")
    done = run("convert", "--from", folder, "--to", sharded, "--tp", "2", "--pp", "2")
    check("convert to a sharded checkpoint", done.returncode == 0, done.stderr)
    done = run("generate", "--model", sharded, "--chat", "--temperature", "0", "--prompt",
               "What is the capital of France?")
    check("the answer", "Paris" in done.stdout and "France?" not in done.stdout, done.stdout, done.stderr)
    job = os.path.join(scratch, "job.yaml")
    with open(job, "w", encoding="utf-8") as file:
        file.write(f"""model: {folder}
data: {{train: {scratch}/text, tokenizer: {folder}, seq_len: 32}}
train: {{steps: 3, global_batch: 2, micro_batch: 2, log_every: 1, dtype: fp32, init: {sharded}}}
optimizer: {{lr: 1.0e-5, warmup_steps: 0}}
checkpoint: {{every_steps: 0}}
ranks: 1
output: {scratch}/run
""")
    done = run("pretrain", job)
    losses = []
    if os.path.exists(f"{scratch}/run/metrics.jsonl"):
        with open(f"{scratch}/run/metrics.jsonl", encoding="utf-8") as file:
            losses = [row["loss"] for row in map(json.loads, file) if "loss" in row]
    # One that had to begin anew would be at log(49152) = 10.8.
    check("it goes on training", done.returncode == 0 and losses and losses[0] < 8, done.stderr, losses)
    done = run("convert", "--from", sharded, "--to", back)
    check("convert back", done.returncode == 0, done.stderr)
    check("the bits that it had", done.returncode == 0 and same_tensors(folder, back))


def main():
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as scratch:
        folder = make(scratch)
        if folder is None:
            return 0
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(1)  # products of one row: threads would wait for each other
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        check_texts(model, tokenizer, folder, scratch)
        check_loss(model, tokenizer, folder, scratch)
        del model
        check_checkpoint(folder, scratch)
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
