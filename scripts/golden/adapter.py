#!/usr/bin/env python3
"""Write adapters for the tiny models of test/convert/golden to test/ckpt/golden, and the logits of both together.

peft makes and saves them, of torch modules with the families' names; of InternLM2, which neither transformers nor peft has, the
rows of its one matrix are those of a LLaMA's three. logits.safetensors has what comes behind the last of 16 tokens
(i * 7919 + 3) % vocab_size, in fp32. Needs what test/oracle needs; --out FOLDER writes elsewhere, names choose.
"""
import argparse
import importlib.util
import json
import os

import torch
import transformers
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file, save_file

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODELS = os.path.join(ROOT, "test", "convert", "golden")
SPEC = importlib.util.spec_from_file_location("oracle", os.path.join(ROOT, "test", "oracle", "convert.py"))
ORACLE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(ORACLE)

ADAPTERS = {
    "llama": dict(r=3, lora_alpha=12, target_modules="all-linear", rank_pattern={"q_proj": 5},
                  alpha_pattern={"down_proj": 4, "layers.1.self_attn.o_proj": 20}),
    "qwen2": dict(r=4, lora_alpha=4, target_modules=["q_proj", "v_proj"], use_rslora=True, bias="all"),
    "mixtral": dict(r=2, target_modules=["q_proj", "o_proj"]),
    "gpt2": dict(r=3, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True, bias="lora_only"),
    "bloom": dict(r=3, target_modules=["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]),
    "baichuan13b": dict(r=3, target_modules=["W_pack", "gate_proj"], modules_to_save=["norm"]),
}


def numbers(shape, seed, size):
    return size * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def logits_of(model, vocab_size):
    ids = torch.tensor([[(i * 7919 + 3) % vocab_size for i in range(16)]])
    with torch.no_grad():
        out = model(ids)
    return (out.logits if hasattr(out, "logits") else out)[0, -1].contiguous()


def load(name):
    folder = os.path.join(MODELS, name)
    if name.startswith("baichuan"):
        model = ORACLE.baichuan.Baichuan(json.load(open(os.path.join(folder, "config.json"))))
        model.load_state_dict(load_file(os.path.join(folder, "model.safetensors")))
        return model.float().eval()
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def by_peft(name, folder):
    base = load(name)
    vocab_size = json.load(open(os.path.join(MODELS, name, "config.json")))["vocab_size"]
    model = PeftModel(base, LoraConfig(**ADAPTERS[name])).eval()
    for i, (key, p) in enumerate(model.named_parameters()):
        if p.requires_grad:
            p.data += numbers(p.shape, i, 0.3 if "lora_" in key else 0.1)
    model.save_pretrained(folder)
    path = os.path.join(folder, "README.md")
    if os.path.exists(path):
        os.remove(path)
    return logits_of(model, vocab_size)


def internlm2(folder):
    """wqkv's rows, of which `order` says what a LLaMA has them as."""
    path = os.path.join(MODELS, "internlm2", "config.json")
    config = json.load(open(path))
    ours = transformers.LlamaConfig(**{k: v for k, v in config.items() if k not in ("model_type", "architectures", "bias")})
    width, layers = config["hidden_size"], range(config["num_hidden_layers"])
    rows = [p * config["head_dim"] if "head_dim" in config else p * width // config["num_attention_heads"]
            for p in (config["num_attention_heads"], config["num_key_value_heads"], config["num_key_value_heads"])]
    ids = torch.arange(sum(rows), dtype=torch.float32)[:, None].expand(-1, width).split(rows)
    names = ["model.layers.0.self_attn.%s_proj.weight" % p for p in "qkv"]
    order = ORACLE.packed("internlm2", dict(zip(names, (part.contiguous() for part in ids))), ours)
    order = order["model.layers.0.attention.wqkv.weight"][:, 0].long()

    plain = transformers.LlamaForCausalLM(ours).eval()
    state, theirs = plain.state_dict(), load_file(os.path.join(MODELS, "internlm2", "model.safetensors"))
    blank = ORACLE.packed("internlm2", dict(state), ours)
    assert blank.keys() == theirs.keys()
    adapter = {}
    for i in layers:
        wide = theirs[f"model.layers.{i}.attention.wqkv.weight"].float()
        bias = theirs[f"model.layers.{i}.attention.wqkv.bias"].float()
        a, b = numbers((3, width), i, 0.3), numbers((len(wide), 3), i + 10, 0.3)
        adapter[f"base_model.model.model.layers.{i}.attention.wqkv.lora_A.weight"] = a
        adapter[f"base_model.model.model.layers.{i}.attention.wqkv.lora_B.weight"] = b
        plain_rows, plain_bias = torch.empty_like(wide), torch.empty_like(bias)
        plain_rows[order], plain_bias[order] = wide + 2 * b @ a, bias
        for p, part, some in zip("qkv", plain_rows.split(rows), plain_bias.split(rows)):
            state[f"model.layers.{i}.self_attn.{p}_proj.weight"] = part
            state[f"model.layers.{i}.self_attn.{p}_proj.bias"] = some
        for was, now in (("attention.wo", "self_attn.o_proj"), ("feed_forward.w1", "mlp.gate_proj"),
                         ("feed_forward.w3", "mlp.up_proj"), ("feed_forward.w2", "mlp.down_proj"),
                         ("attention_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")):
            for kind in ("weight", "bias"):
                if f"model.layers.{i}.{was}.{kind}" in theirs:
                    state[f"model.layers.{i}.{now}.{kind}"] = theirs[f"model.layers.{i}.{was}.{kind}"].float()
        a, b = numbers((3, config["intermediate_size"]), i + 20, 0.3), numbers((width, 3), i + 30, 0.3)
        adapter[f"base_model.model.model.layers.{i}.feed_forward.w2.lora_A.weight"] = a
        adapter[f"base_model.model.model.layers.{i}.feed_forward.w2.lora_B.weight"] = b
        state[f"model.layers.{i}.mlp.down_proj.weight"] = state[f"model.layers.{i}.mlp.down_proj.weight"] + 2 * b @ a
    state["model.embed_tokens.weight"] = theirs["model.tok_embeddings.weight"].float()
    state["lm_head.weight"], state["model.norm.weight"] = theirs["output.weight"].float(), theirs["model.norm.weight"].float()
    plain.load_state_dict(state)
    os.makedirs(folder, exist_ok=True)
    save_file(adapter, os.path.join(folder, "adapter_model.safetensors"), {"format": "pt"})
    LoraConfig(r=3, lora_alpha=6, target_modules=["wqkv", "w2"]).save_pretrained(folder)
    return logits_of(plain, config["vocab_size"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=os.path.join(ROOT, "test", "ckpt", "golden"))
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    for name in [*ADAPTERS, "internlm2"]:
        if arguments.names and name not in arguments.names:
            continue
        folder = os.path.join(arguments.out, "adapter-" + name)
        logits = internlm2(folder) if name == "internlm2" else by_peft(name, folder)
        save_file({"logits": logits}, os.path.join(folder, "logits.safetensors"))
        path = os.path.join(folder, "adapter_config.json")
        config = json.load(open(path)) | {"base_model_name_or_path": name}  # no folder of this machine's
        for key in ("target_modules", "modules_to_save"):
            config[key] = sorted(config[key]) if config[key] else config[key]
        with open(path, "w") as file:
            file.write(json.dumps(config, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
