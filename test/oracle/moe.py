#!/usr/bin/env python3
"""Mixtures of experts as convert.py does it: bits there and back, loss, logits and every gradient by transformers.

Transformers stacks a layer's experts in one tensor and saves them apart. Where a config asks for the balance loss
(output_router_logits), loss and gradients are transformers' own, whose balance is of all layers together; of a family
that a description says to be per_layer they are held against ours, written here from Fedus et al. 2021, eq. 4 to 6, a sum
over layers; and so is that of each sequence, of DeepSeek's first mixtures, which transformers has not. All are the mean
over micro-batches, which are sequences here. Prints, last, `N passed, N failed`.
"""
import glob
import json
import os
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe

sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # behind all others: its files are called what they test
import convert  # noqa: E402
from convert import SHAPE  # noqa: E402

EXPERTS = {"num_local_experts": 5, "num_experts_per_tok": 2}
QWEN = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "norm_topk_prob": True, "head_dim": 8}
QWEN2 = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "shared_expert_intermediate_size": 28}
DEEPSEEK = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "n_shared_experts": 2,
            "first_k_dense_replace": 1}
DOTS = DEEPSEEK | {"n_group": 4, "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 2.5, "sliding_window": None}
BALANCE = {"output_router_logits": True, "router_aux_loss_coef": 0.2}

MODELS = {
    "mixtral": ("Mixtral", SHAPE | EXPERTS, torch.float32, "5GB"),
    "mixtral-bf16": ("Mixtral", SHAPE | EXPERTS, torch.bfloat16, "20KB"),
    "mixtral-window": ("Mixtral", SHAPE | EXPERTS | {"sliding_window": 9}, torch.float32, "20KB"),
    "mixtral-all-tied": ("Mixtral", SHAPE | EXPERTS | {"num_experts_per_tok": 5, "tie_word_embeddings": True,
                                                       "num_key_value_heads": 4}, torch.float32, "5GB"),
    "mixtral-balance": ("Mixtral", SHAPE | EXPERTS | BALANCE, torch.float32, "5GB"),
    "mixtral-balance-per-layer": ("Mixtral", SHAPE | EXPERTS | BALANCE, torch.float32, "5GB"),
    "qwen3moe": ("Qwen3Moe", SHAPE | QWEN, torch.float32, "5GB"),
    "qwen3moe-sums-bias": ("Qwen3Moe", SHAPE | QWEN | {"norm_topk_prob": False, "attention_bias": True, "head_dim": 12},
                           torch.float32, "20KB"),
    "qwen3moe-one": ("Qwen3Moe", SHAPE | QWEN | {"num_experts_per_tok": 1, "norm_topk_prob": False}, torch.float32, "5GB"),
    "qwen3moe-every-second": ("Qwen3Moe", SHAPE | QWEN | {"decoder_sparse_step": 2}, torch.float32, "5GB"),
    "qwen3moe-listed": ("Qwen3Moe", SHAPE | QWEN | {"mlp_only_layers": [0, 2]}, torch.float32, "5GB"),
    "qwen3moe-first-dense": ("Qwen3Moe", SHAPE | QWEN | {"mlp_only_layers": [0, 1]}, torch.float32, "5GB"),
    "qwen2moe": ("Qwen2Moe", SHAPE | QWEN2, torch.float32, "5GB"),
    "qwen2moe-bf16": ("Qwen2Moe", SHAPE | QWEN2, torch.bfloat16, "20KB"),
    "qwen2moe-sums": ("Qwen2Moe", SHAPE | QWEN2 | {"norm_topk_prob": True, "qkv_bias": False, "mlp_only_layers": [0, 2]},
                      torch.float32, "5GB"),
    "qwen2moe-balance-first-dense": ("Qwen2Moe", SHAPE | QWEN2 | BALANCE | {"mlp_only_layers": [0]}, torch.float32, "20KB"),
    "dots1": ("Dots1", SHAPE | DOTS, torch.float32, "5GB"),
    "dots1-bf16": ("Dots1", SHAPE | DOTS, torch.bfloat16, "20KB"),
    "dots1-one-group-window": ("Dots1", SHAPE | DOTS | {
        "n_group": 1, "topk_group": 1, "norm_topk_prob": False, "attention_bias": True, "sliding_window": 9,
        "max_window_layers": 2, "first_k_dense_replace": 0, "tie_word_embeddings": True}, torch.float32, "5GB"),
    "solar": ("SolarOpen", SHAPE | DOTS | {"head_dim": 10}, torch.float32, "5GB"),
    "deepseek": ("Deepseek", SHAPE | DEEPSEEK | {"aux_loss_alpha": 0.0}, torch.float32, "5GB"),
    "deepseek-balance": ("Deepseek", SHAPE | DEEPSEEK | {"aux_loss_alpha": 0.2, "norm_topk_prob": True}, torch.float32, "5GB"),
    "deepseek-bf16": ("Deepseek", SHAPE | DEEPSEEK | {"aux_loss_alpha": 0.0, "first_k_dense_replace": 0}, torch.bfloat16, "5GB"),
    "qwen3moe-balance": ("Qwen3Moe", SHAPE | QWEN | BALANCE | {"norm_topk_prob": False}, torch.float32, "5GB"),
    "qwen3moe-balance-every-second": ("Qwen3Moe", SHAPE | QWEN | BALANCE | {"decoder_sparse_step": 2}, torch.float32, "5GB"),
}
OWN = {
    "own-mixtral": ("Mixtral", "ffn_size: 48, n_experts: 4, expert_ffn_size: 24, router_balance: 0.1, window: 9"),
    "own-qwen3moe": ("Qwen3Moe", "ffn_size: 48, n_experts: 5, n_active_experts: 3, expert_ffn_size: 20, expert_every: 2, "
                                 "qk_norm: true, router_normalize: false, head_dim: 10"),
    "own-qwen2moe": ("Qwen2Moe", "ffn_size: 48, n_experts: 5, n_active_experts: 3, expert_ffn_size: 20, first_dense_layers: 1, "
                                 "n_shared_experts: 2, shared_gate: true, attention_bias: qkv, window: 9, window_first_layer: 1"),
    "own-dots1": ("Dots1", "ffn_size: 48, n_experts: 6, n_active_experts: 3, expert_ffn_size: 20, first_dense_layers: 1, "
                           "n_shared_experts: 2, router_score: sigmoid, router_bias: true, router_bias_rate: 0.1, "
                           "router_groups: 3, router_groups_kept: 2, router_scaling: 2.5, qk_norm: true, window: 9, "
                           "window_first_layer: 1"),
}


def apart(family, state, config):
    """Experts one by one, under the names of the files."""
    mixtral = family == "mixtral"
    names = {"gate": "w1", "up": "w3", "down": "w2"} if mixtral else {part: part + "_proj" for part in ("gate", "up", "down")}
    found = {}
    for name, tensor in state.items():
        if mixtral:
            name = name.replace(".mlp.", ".block_sparse_moe.")
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            found[name] = tensor
            continue
        stem = name[:name.rindex(".")]
        for expert, one in enumerate(tensor):
            parts = {"down": one} if name.endswith("down_proj") else dict(zip(("gate", "up"), one.chunk(2)))
            found |= {f"{stem}.{expert}.{names[part]}.weight": rows for part, rows in parts.items()}
    return found


def balance(model, logits):
    """Of one sequence, over layers."""
    config, total = model.config, 0
    for layer in logits:
        p = layer.float().softmax(-1)
        chosen = p.topk(config.num_experts_per_tok, -1).indices.flatten()
        share = torch.bincount(chosen, minlength=p.shape[-1]) / chosen.numel()
        total = total + p.shape[-1] * (share * p.mean(0)).sum()
    return config.router_aux_loss_coef * config.num_experts_per_tok / len(logits) * total


plain_loss, plain_off, plain_check, plain_layouts = convert.loss_of, convert.off, convert.check_model, convert.layouts_of
plain_build = convert.build
per_layer = False


def normalise(_gate, _inputs, out):
    return out[0], out[1] / out[1].sum(-1, keepdim=True), out[2]


def build(family, fields):
    """DeepSeek's first mixtures are not in transformers: a LLaMA that has the second ones' block."""
    if family != "Deepseek":
        return plain_build(family, fields)
    model = plain_build("Llama", {key: value for key, value in fields.items() if key in SHAPE})
    config = transformers.DeepseekV2Config(**fields, topk_method="greedy", routed_scaling_factor=1.0)
    config._experts_implementation = "eager"
    for layer in model.model.layers[fields["first_k_dense_replace"]:]:
        layer.mlp = DeepseekV2Moe(config)
        if fields.get("norm_topk_prob"):
            layer.mlp.gate.register_forward_hook(normalise)
    model.deepseek = {key: value for key, value in fields.items() if key not in SHAPE}
    return model


def disguise(folder, family, model):
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config | model.deepseek | {"model_type": family, "architectures": ["DeepseekForCausalLM"]}, file)
    for path in glob.glob(os.path.join(folder, "*.safetensors")):
        found = apart(family, load_file(path), model.config)
        save_file({key: tensor.contiguous() for key, tensor in found.items()}, path, {"format": "pt"})


def own_balance(model, row):
    """DeepSeek's, of one sequence: a sum over layers."""
    routed, total = [], 0
    gates = [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "gate")]
    hooks = [gate.register_forward_hook(lambda _gate, _inputs, out: routed.append(out)) for gate in gates]
    model(row[None])
    for hook in hooks:
        hook.remove()
    for logits, _, chosen in routed:
        p = logits.softmax(-1)
        total = total + p.shape[-1] * (torch.bincount(chosen.flatten(), minlength=p.shape[-1]) / chosen.numel() * p.mean(0)).sum()
    return model.deepseek["aux_loss_alpha"] * total


def check_model(name, scratch):
    """Also of a family that a file describes: the folder alone says pooled."""
    global per_layer
    per_layer = name.endswith("-per-layer")
    if per_layer:
        with open("configs/families/mixtral.yaml", "w", encoding="ascii") as file:
            file.write("like: mixtral\nmodel: {router_balance_kind: per_layer}\n")
    plain_check(name, scratch)
    if per_layer:
        os.remove("configs/families/mixtral.yaml")


def layouts_of(name, model):
    """A balance of all layers needs them on each rank. Layouts of the golden ones are law/families_test's."""
    pooled = getattr(model.config, "output_router_logits", False) and not per_layer
    return [layout for layout in plain_layouts(name, model) if not pooled or layout.endswith("x1")][::2]


def aux_loss(model, row):
    """What the model's class adds to the loss of one sequence."""
    if hasattr(model, "deepseek"):
        return own_balance(model, row)
    out = model(row[None], labels=row[None], output_router_logits=True)
    return balance(model, out.router_logits) if per_layer else model.config.router_aux_loss_coef * out.aux_loss


def off(ours, theirs):
    """Also of experts that no token went to, whose gradients are nothing."""
    return plain_off(ours, theirs) if theirs.abs().max() > 0 else ours.abs().max().item()


def loss_of(model, ids):
    """The loss alone, whose gradient has the balance's."""
    loss, logits = plain_loss(model, ids)
    if not getattr(model.config, "output_router_logits", False) and not hasattr(model, "deepseek"):
        return loss, logits
    ids = torch.as_tensor(ids)[..., :-1]
    more = sum(aux_loss(model, row) for row in ids) / len(ids)
    return loss + (more - more.detach()), logits


def take_over():
    convert.MODELS, convert.OWN, convert.LAYOUTS = MODELS, OWN, [(1, 1), (2, 1), (1, 2), (4, 4)]
    convert.PACKED = ("mixtral", "qwen3moe", "qwen2moe", "dots1", "solar", "deepseek")
    convert.packed = apart
    convert.build, convert.DISGUISED, convert.disguise = build, ("deepseek",), disguise
    convert.loss_of, convert.off, convert.check_model = loss_of, off, check_model
    convert.layouts_of = layouts_of


def main():
    take_over()
    return convert.main()


if __name__ == "__main__":
    sys.exit(main())
