#!/usr/bin/env python3
"""Mixtures whose routers transformers has in blocks of its own: loss, gradients and bias after a step, by transformers.

A tiny model is trained for one step that changes nothing, on text of which the step sees each sequence once, so that its
order does not matter, and its checkpoint read: weights as they were, and Adam's first moments, which are 1 - beta1 times the
gradients. In transformers it is a LLaMA whose layers have DeepSeek-V3's MoE block, or a Qwen2-MoE. Balance losses of
sequences and z-losses, which transformers lacks, are written here from their papers; the bias that balances experts is held
against a loop over what transformers' router chose. Prints, last, `N passed, N failed`.
"""
import glob
import os
import subprocess
import sys
import tempfile

import numpy
import torch
import transformers
from safetensors import safe_open
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # behind all others: its files are called what they test
from convert import LMTRAIN, off, write_tokens  # noqa: E402

TOLERANCE = 1e-5
VOCAB, LENGTH, SEQUENCES, LAYERS, RATE = 101, 24, 4, 3, 0.01
SHAPE = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 40, "max_position_embeddings": LENGTH, "rms_norm_eps": 1e-5,
         "attn_implementation": "eager", "tie_word_embeddings": False}
OURS = {"vocab_size": VOCAB, "hidden_size": 32, "n_layers": LAYERS, "n_heads": 4, "n_kv_heads": 2, "ffn_size": 40,
        "max_seq_len": LENGTH, "norm_eps": "1.0e-5", "init_std": "0.15", "expert_ffn_size": 20}
DEEPSEEK = OURS | {"n_experts": 12, "n_active_experts": 3, "first_dense_layers": 1, "n_shared_experts": 2,
                   "router_score": "sigmoid", "router_scaling": "2.5", "router_groups": 4, "router_groups_kept": 2,
                   "router_bias": "true", "router_bias_rate": RATE}
QWEN = OURS | {"n_experts": 6, "n_active_experts": 2, "attention_bias": "qkv", "n_shared_experts": 1, "shared_ffn_size": 28,
               "shared_gate": "true", "router_normalize": "false"}
# name: model, further keys of the job
CASES = {
    "deepseek": (DEEPSEEK, {}),
    "deepseek-sums": (DEEPSEEK | {"router_normalize": "false", "router_groups": 1, "router_groups_kept": 1}, {}),
    "deepseek-per-sequence": (DEEPSEEK | {"router_balance": 0.3, "router_balance_kind": "per_sequence", "router_z": 0.05},
                              {"recompute": "full"}),
    "deepseek-per-layer": (DEEPSEEK | {"router_balance": 0.3, "router_z": 0.05}, {}),
    "qwen2moe-balance": (QWEN | {"router_balance": 0.2, "router_balance_kind": "pooled"}, {}),
    "qwen2moe": (QWEN, {}),
    "qwen2moe-global": (QWEN | {"router_normalize": "true", "router_balance": 0.2, "router_balance_kind": "global_batch"}, {}),
}
LAYOUTS = [(1, {}), (2, {"tp": 2}), (2, {"pp": 2})]  # one a case, in turn; a pooled balance has all layers on each rank

results = []


def check(name, fine, why=""):
    results.append(fine)
    if not fine:
        print(f"FAIL {name} {why}")


def train(folder, model, more, ranks, parallel):
    """Tensors of the checkpoint after one step whose learning rate rounds to nothing."""
    job = "\n".join([f"model: {{{', '.join(f'{key}: {value}' for key, value in model.items())}}}",
                     f"data: {{train: {folder}/text, seq_len: {LENGTH}}}",
                     f"train: {{steps: 1, global_batch: {SEQUENCES}, micro_batch: {SEQUENCES}, dtype: fp32}}",
                     "optimizer: {lr: 1.0e-30, warmup_steps: 0, schedule: constant, clip: 0.0, weight_decay: 0.0}",
                     f"parallel: {{{', '.join(f'{key}: {value}' for key, value in parallel.items())}}}",
                     *(f"{key}: {value}" for key, value in more.items()), f"output: {folder}/run", ""])
    with open(f"{folder}/job.yaml", "w", encoding="ascii") as file:
        file.write(job)
    done = subprocess.run([LMTRAIN, "pretrain", f"{folder}/job.yaml", "--ranks", str(ranks), "--set", "threads=1"],
                          capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout + done.stderr)
        return {}, float("nan")
    found = {}
    for path in glob.glob(f"{folder}/run/checkpoints/step-00000001/*.safetensors"):
        with safe_open(path, "pt") as file:
            found |= {key: file.get_tensor(key) for key in file.keys()}
    with open(f"{folder}/run/metrics.jsonl", encoding="ascii") as file:
        loss = [float.fromhex(line.split('"loss_hex":"')[1].split('"')[0]) for line in file if "loss_hex" in line][0]
    return found, loss


def whole(found):
    """Tensors of which ranks have slices, put together: NAME[r0:r1,c0:c1]."""
    tensors = {}
    for key, part in found.items():
        name, _, place = key.partition("[")
        spans = [tuple(map(int, span.split(":"))) for span in place[:-1].split(",") if span]
        tensors.setdefault(name, []).append((spans or [(0, n) for n in part.shape], part))
    joined = {}
    for name, parts in tensors.items():
        joined[name] = torch.full([max(spans[i][1] for spans, _ in parts) for i in range(parts[0][1].dim())], float("nan"))
        for spans, part in parts:
            joined[name][tuple(slice(*span) for span in spans)] = part
    return joined


def names_of(model):
    """Of each of transformers' parameters our name, and its rows in ours (None: all)."""
    found = {"model.embed_tokens.weight": ("embedding.weight", None), "model.norm.weight": ("final_norm.weight", None),
             "lm_head.weight": ("head.weight", None)}
    of_layers = {"self_attn.o_proj.weight": "attention_out.weight", "input_layernorm.weight": "attention_norm.weight",
                 "post_attention_layernorm.weight": "ffn_norm.weight", "mlp.gate.weight": "router.weight",
                 "mlp.experts.gate_up_proj": "experts.gate_up.weight", "mlp.experts.down_proj": "experts.down.weight",
                 "mlp.shared_expert_gate.weight": "shared.gate.weight", "mlp.down_proj.weight": "down.weight",
                 "mlp.shared_expert.down_proj.weight": "shared.down.weight",
                 "mlp.shared_experts.down_proj.weight": "shared.down.weight"}
    packed = {"self_attn.": ("qkv.", "qkv"), "mlp.": ("gate_up.", ("gate", "up")),
              "mlp.shared_expert.": ("shared.gate_up.", ("gate", "up")),
              "mlp.shared_experts.": ("shared.gate_up.", ("gate", "up"))}
    sizes = {key: parameter.shape[0] for key, parameter in model.named_parameters()}
    for n in range(LAYERS):
        stem, own = f"model.layers.{n}.", f"layers.{n}."
        found |= {stem + theirs: (own + ours, None) for theirs, ours in of_layers.items()}
        for theirs, (ours, parts) in packed.items():
            for kind in ("weight", "bias"):
                at = 0
                for part in parts:
                    key = f"{stem}{theirs}{part}_proj.{kind}"
                    found[key] = (own + ours + kind, slice(at, at + sizes.get(key, 0)))
                    at += sizes.get(key, 0)
    return found


def make(name, ours):
    """Transformers' model of the case, without its weights."""
    experts = {"num_experts_per_tok": ours["n_active_experts"], "moe_intermediate_size": ours["expert_ffn_size"],
               "norm_topk_prob": ours.get("router_normalize", "true") == "true"}
    if name.startswith("qwen2moe"):
        return transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(
            **SHAPE, **experts, num_experts=ours["n_experts"], shared_expert_intermediate_size=ours["shared_ffn_size"]))
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE))
    config = transformers.DeepseekV3Config(
        **SHAPE, **experts, n_routed_experts=ours["n_experts"], n_shared_experts=ours["n_shared_experts"],
        routed_scaling_factor=float(ours["router_scaling"]), n_group=ours["router_groups"],
        topk_group=ours["router_groups_kept"])
    config._experts_implementation = "eager"
    for layer in model.model.layers[ours["first_dense_layers"]:]:
        layer.mlp = DeepseekV3MoE(config)
    return model


def balance(ours, logits, chosen):
    """m sum_e f_e P_e of these tokens: Fedus et al. 2021, eq. 4 to 6; of sigmoids DeepSeek-AI 2024, eq. 17 to 20."""
    p = logits.float().sigmoid() if ours.get("router_score") == "sigmoid" else logits.float().softmax(-1)
    p = p / p.sum(-1, keepdim=True)
    share = torch.bincount(chosen.flatten(), minlength=p.shape[-1]) / chosen.numel()
    return p.shape[-1] * (share * p.mean(0)).sum()


def losses(ours, routed):
    """What is added to the loss: routed has of each layer the logits, weights and choices of all tokens."""
    kind, total = ours.get("router_balance_kind", "per_layer"), 0
    parts = SEQUENCES if kind == "per_sequence" else 1
    if kind == "pooled":
        total = len(routed) * balance(ours, *(torch.cat([layer[i] for layer in routed]) for i in (0, 2)))
    else:
        for logits, _, chosen in routed:
            total = total + sum(map(balance, [ours] * parts, logits.chunk(parts), chosen.chunk(parts))) / parts
    z = sum(layer[0].float().logsumexp(-1).square().mean() for layer in routed)
    return ours.get("router_balance", 0) * total + ours.get("router_z", 0) * z


def check_bias(what, ours, routed, tensors):
    """It was 0: a loop over how often each expert was chosen."""
    for n, (_, _, chosen) in enumerate(routed if ours.get("router_bias") else []):
        counts = [0] * ours["n_experts"]
        for expert in chosen.flatten().tolist():
            counts[expert] += 1
        mean = sum(counts) / len(counts)
        bias = torch.tensor([RATE * float(numpy.sign(mean - count)) for count in counts])
        own = tensors[f"layers.{n + ours['first_dense_layers']}.router.bias"]
        check(f"{what}: bias of layer {n}", torch.equal(own, bias), f"is {own}, wanted {bias}")


def check_layout(what, ours, more, text, layout):
    folder, inputs, targets = text
    tensors, loss = train(folder, ours, more, *layout)
    tensors, model, routed = whole(tensors), make(what, ours), []
    names, theirs = names_of(model), dict(model.named_parameters())
    with torch.no_grad():
        for key, parameter in theirs.items():
            own, rows = names[key]
            parameter.copy_((tensors[own] if rows is None else tensors[own][rows]).view(parameter.shape))
    for key, module in model.named_modules():
        if key.endswith("mlp.gate"):
            module.register_forward_hook(lambda _module, _inputs, out: routed.append(out))
    wanted = torch.nn.functional.cross_entropy(model(inputs).logits.flatten(0, 1), targets.flatten())
    (wanted + losses(ours, routed)).backward()
    check(f"{what}: loss", abs(loss - wanted.item()) <= TOLERANCE * wanted.item(), f"is {loss}, transformers' {wanted.item()}")
    for key, parameter in theirs.items():
        own, rows = names[key]
        gradient = tensors[own + ".m"] / 0.1 if rows is None else tensors[own + ".m"][rows] / 0.1
        error = off(gradient.reshape(parameter.shape), parameter.grad)
        check(f"{what}: gradient of {key}", error <= TOLERANCE, f"is off by {error}")
    check_bias(what, ours, routed, tensors)


def main():
    """The step is one micro-batch: a balance is of all its tokens, in whatever order."""
    ids = numpy.random.default_rng(7).integers(0, VOCAB, LENGTH * SEQUENCES + 1)
    text = torch.tensor(ids)
    inputs, targets = (text[i:LENGTH * SEQUENCES + i].view(SEQUENCES, LENGTH) for i in (0, 1))
    for i, (name, (ours, more)) in enumerate(CASES.items()):
        with tempfile.TemporaryDirectory() as folder:
            write_tokens(f"{folder}/text", ids)
            check_layout(name, ours, more, (folder, inputs, targets), LAYOUTS[i % len(LAYOUTS)])
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
