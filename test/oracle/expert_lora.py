#!/usr/bin/env python3
"""LoRA on experts against transformers and PyTorch in fp32: losses, gradient norms and adapters of 20 steps; and peft.

Transformers stacks a layer's experts in one parameter, so what each expert's own A and B add is written here, as a
parametrization of it. Each step sees all sequences, so that their order does not matter. Adapters that lmtrain writes
have a pair of A and B an expert, as in models that keep experts apart: peft reads them (of Mixtral) and gives the loss
that our eval gives with them, and that of the model that they are merged into. Prints, last, `N passed, N failed`.
"""
import json
import os
import re
import struct
import subprocess
import tempfile
import warnings

import numpy
import torch
import transformers
from peft import PeftModel
from safetensors.torch import load_file
from torch.nn.utils import parametrize

warnings.filterwarnings("ignore")
torch.set_num_threads(1)  # nothing here is large
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LMTRAIN = os.environ.get("LMTRAIN", os.path.join(ROOT, "build", "lmtrain"))
TOLERANCE = 1e-5
STEPS, LENGTH, BATCH, VOCAB, LR, DECAY, RANK, SCALE = 20, 16, 8, 40, 1e-3, 0.1, 3, 2.0
SHAPE = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "max_position_embeddings": LENGTH, "bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": False}
MODELS = {
    "mixtral": ("Mixtral", {"intermediate_size": 24, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3moe": ("Qwen3Moe", {"intermediate_size": 48, "moe_intermediate_size": 20, "num_experts": 6, "num_experts_per_tok": 3,
                              "head_dim": 8, "norm_topk_prob": True}),
}
GATE, UP, DOWN = r"\.(w1|gate_proj)$", r"\.(w3|up_proj)$", r"\.(w2|down_proj)$"
passed = failed = 0


def check(name, ok, text=""):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    print(f"{'ok' if ok else 'not ok'} {name} {text}", flush=True)


def run(*arguments):
    return subprocess.run([LMTRAIN, *arguments], capture_output=True, text=True)


def write_tokens(prefix, ids):
    ids.astype(numpy.uint16).tofile(prefix + ".bin")
    with open(prefix + ".idx", "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QB", 1, 8) + struct.pack("<QQ", 1, 2))
        f.write(numpy.array([len(ids)], numpy.int32).tobytes() + numpy.array([0], numpy.int64).tobytes())
        f.write(numpy.array([0, 1], numpy.int64).tobytes())


def build(name):
    torch.manual_seed(1)
    family, shape = MODELS[name]
    config = getattr(transformers, family + "Config")(**SHAPE | shape)
    config._experts_implementation = "eager"
    model = getattr(transformers, family + "ForCausalLM")(config)
    for p in model.parameters():
        p.data.mul_(2.5)  # gradients of a size that clipping sees
    model.float().save_pretrained(f"base-{name}")
    return model


def train(name, base, targets, steps, lr, extra=""):
    with open(name + ".yaml", "w") as out:
        out.write(f"model: ./base-{base}\ndata: {{train: tokens, seq_len: {LENGTH}}}\n"
                  f"train: {{steps: {steps}, global_batch: {BATCH}, micro_batch: 2, dtype: fp32, log_every: 1}}\n"
                  f"lora: {{rank: {RANK}, targets: {targets}}}\n"
                  f"optimizer: {{lr: {lr}, schedule: constant, warmup_steps: 0, weight_decay: {DECAY}, clip: 1.0}}\n"
                  f"output: {name}\n{extra}\n")
    return run("lora", name + ".yaml")


class Added(torch.nn.Module):
    """w [m, n, k] of all experts, plus scale B A of each; gate and up lie one below the other."""

    def __init__(self, pairs):
        super().__init__()
        self.a = torch.nn.ParameterList([torch.nn.Parameter(a.clone()) for a, _ in pairs])
        self.b = torch.nn.ParameterList([torch.nn.Parameter(b.clone()) for _, b in pairs])

    def forward(self, w):
        return w + SCALE * torch.cat([b @ a for a, b in zip(self.a, self.b)], dim=1)


def pairs_of(adapter, layer, kinds):
    """A and B of all experts, stacked, of each kind; and their names."""
    found = []
    for kind in kinds:
        names = [key.removesuffix(".lora_A.weight") for key in adapter if key.endswith(".lora_A.weight")]
        names = [n for n in names if f".layers.{layer}." in n and ".experts." in n and re.search(kind, n)]
        names.sort(key=lambda n: int(re.search(r"\.experts\.(\d+)\.", n)[1]))
        found.append((names, torch.stack([adapter[f"{n}.lora_A.weight"] for n in names]),
                      torch.stack([adapter[f"{n}.lora_B.weight"] for n in names])))
    return found


class AddedLinear(torch.nn.Module):
    def __init__(self, linear, a, b):
        super().__init__()
        self.linear, self.a, self.b = linear, torch.nn.Parameter(a.clone()), torch.nn.Parameter(b.clone())

    def forward(self, x):
        return self.linear(x) + SCALE * (x @ self.a.T) @ self.b.T


def adapt(model, adapter):
    """Adds the adapters to the model. Returns what is trained, by the adapter's names."""
    trained = {}
    for p in model.parameters():
        p.requires_grad_(False)
    for i, layer in enumerate(model.model.layers):
        name = f"base_model.model.model.layers.{i}.self_attn.q_proj"
        q = AddedLinear(layer.self_attn.q_proj, adapter[f"{name}.lora_A.weight"], adapter[f"{name}.lora_B.weight"])
        layer.self_attn.q_proj = q
        trained |= {f"{name}.lora_A.weight": (q.a, None), f"{name}.lora_B.weight": (q.b, None)}
        for parameter, kinds in (("gate_up_proj", (GATE, UP)), ("down_proj", (DOWN,))):
            pairs = pairs_of(adapter, i, kinds)
            added = Added([(a, b) for _, a, b in pairs])
            parametrize.register_parametrization(layer.mlp.experts, parameter, added)
            for k, (names, _, _) in enumerate(pairs):
                for e, n in enumerate(names):
                    trained |= {f"{n}.lora_A.weight": (added.a[k], e), f"{n}.lora_B.weight": (added.b[k], e)}
    return trained


def theirs(model, trained, ids):
    parameters = list({id(p): p for p, _ in trained.values()}.values())
    optimizer = torch.optim.AdamW(parameters, lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=DECAY)
    result = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, ids)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        result.append((loss.item(), float(norm)))
    return result


def loss_of(model, ids):
    inputs, targets = ids[:-1].view(BATCH, LENGTH), ids[1:].view(BATCH, LENGTH)
    return torch.nn.functional.cross_entropy(model(inputs).logits.flatten(0, 1), targets.flatten())


def our_loss(*arguments):
    result = run("eval", *arguments, "--data", "tokens", "--json")
    return json.loads(result.stdout)["loss"] if result.returncode == 0 else result.stderr


def worst(a, b):
    return max(abs(x - y) / max(abs(y), 1e-30) for p, q in zip(a, b) for x, y in zip(p, q))


def check_steps(name, done, wanted):
    if done.returncode:
        return check(name, False, done.stderr)
    lines = [json.loads(line) for line in open(name + "/metrics.jsonl")]
    ours = [(line["loss"], line["grad_norm"]) for line in lines if "loss" in line]
    off = worst(ours, wanted) if len(ours) == STEPS else float("inf")
    return check(name, off < TOLERANCE, f"losses and norms within {off:.1e}, {wanted[0][0]:.4f} to {wanted[-1][0]:.4f}")


def compare(name):
    ids = torch.tensor(numpy.random.default_rng(3).integers(0, VOCAB, BATCH * LENGTH + 1))
    write_tokens("tokens", ids.numpy())
    model = build(name)
    targets = "[q_proj, experts]"
    first = train(f"{name}-first", name, targets, 1, 1e-30)
    if first.returncode:
        return check(name, False, first.stderr)
    trained = adapt(model, load_file(f"{name}-first/adapter/adapter_model.safetensors"))
    wanted = theirs(model, trained, ids)
    check_steps(name, train(name, name, targets, STEPS, LR), wanted)
    check_steps(f"{name}-ep", train(f"{name}-ep", name, targets, STEPS, LR, "ranks: 4\nparallel: {ep: 2, tp: 2, zero: 1}"), wanted)
    ours, off = load_file(f"{name}/adapter/adapter_model.safetensors"), 0.0
    check(f"{name}: its tensors", ours.keys() == trained.keys(), sorted(ours.keys() ^ trained.keys())[:4])
    for key, (p, e) in trained.items():
        p = p.detach() if e is None else p[e].detach()
        off = max(off, float((ours[key] - p).abs().max() / p.abs().max().clamp(min=1e-6)))
    check(f"{name}: adapters", off < 2e-3, f"within {off:.1e}")
    with torch.no_grad():
        wanted = float(loss_of(model, ids))
    merged = run("merge", "--base", f"base-{name}", "--adapter", f"{name}/adapter", "--to", f"{name}-merged")
    check(f"{name}: merge", merged.returncode == 0, merged.stderr.strip())
    losses = [our_loss("--model", f"base-{name}", "--adapter", f"{name}/adapter"), our_loss("--model", name),
              our_loss("--model", f"{name}-merged")]
    ok = all(isinstance(x, float) and abs(x - wanted) < TOLERANCE * wanted for x in losses)
    check(f"{name}: with adapter, run and merged", ok, f"{losses} for {wanted:.6f}")
    theirs_merged = transformers.AutoModelForCausalLM.from_pretrained(f"{name}-merged", dtype=torch.float32)
    with torch.no_grad():
        loss = float(loss_of(theirs_merged, ids))
    check(f"{name}: merged, by transformers", abs(loss - wanted) < TOLERANCE * wanted, f"{loss} for {wanted:.6f}")
    if name == "mixtral":
        base = transformers.AutoModelForCausalLM.from_pretrained(f"base-{name}", dtype=torch.float32)
        with torch.no_grad():
            loss = float(loss_of(PeftModel.from_pretrained(base, f"{name}/adapter").eval(), ids))
        check(f"{name}: by peft", abs(loss - wanted) < TOLERANCE * wanted, f"{loss} for {wanted:.6f}")
    return None


def main():
    folder = tempfile.TemporaryDirectory()
    os.chdir(folder.name)
    for name in MODELS:
        compare(name)
    folder.cleanup()


main()
print(f"{passed} passed, {failed} failed")
raise SystemExit(failed != 0)
