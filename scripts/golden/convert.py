#!/usr/bin/env python3
"""Write the tiny Hugging Face folders of test/convert/golden, and what transformers computes of them.

Made by transformers (those of families that it lacks: from a LLaMA, as test/oracle/convert.py packs them, or by
baichuan.py), fp16, so that files are small and every number is one of fp32 as well. What is computed is the fp32 model's:
logits.safetensors has those behind the last of 16 tokens (i * 7919 + 3) % vocab_size; gradients.safetensors the loss and
the gradients of four sequences of 16 tokens and their next, token i of all being (i * 7919 + i * i // 3) % vocab_size. Needs
what test/oracle needs; --out FOLDER writes elsewhere, names of models choose.
"""
import argparse
import importlib.util
import os

import torch
from safetensors.torch import save_file

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SPEC = importlib.util.spec_from_file_location("oracle", os.path.join(ROOT, "test", "oracle", "convert.py"))
ORACLE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(ORACLE)

SHAPE = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 0}
GPT2 = {"vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32, "bos_token_id": 0, "eos_token_id": 0}
BLOOM = {"vocab_size": 40, "hidden_size": 24, "n_layer": 2, "n_head": 12, "seq_length": 32, "bos_token_id": 0,
         "eos_token_id": 0}
BAICHUAN = ORACLE.baichuan.config(vocab_size=40, hidden_size=12, intermediate_size=24, num_hidden_layers=2,
                                  num_attention_heads=4, model_max_length=32, torch_dtype="float16")
MODELS = {
    "llama": ("Llama", SHAPE | {"head_dim": 6} | ORACLE.rope(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)),
    "qwen2": ("Qwen2", SHAPE | {"tie_word_embeddings": True} | ORACLE.rope(
        "yarn", factor=4.0, original_max_position_embeddings=16)),
    "mistral": ("Mistral", SHAPE | {"sliding_window": 5}),
    "qwen3": ("Qwen3", SHAPE | {"head_dim": 6, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "bloom": ("Bloom", BLOOM),
    "baichuan13b": ("Baichuan", BAICHUAN),
    "baichuan2": ("Baichuan", BAICHUAN | {"z_loss_weight": 0}),
    "internlm2": ("Llama", SHAPE | {"attention_bias": True}),
    "baichuan": ("Llama", SHAPE | {"num_key_value_heads": 4}),
    "gpt2": ("GPT2", GPT2),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=os.path.join(ROOT, "test", "convert", "golden"))
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    for name, (family, fields) in MODELS.items():
        if arguments.names and name not in arguments.names:
            continue
        folder = os.path.join(arguments.out, name)
        model = ORACLE.make(folder, family, fields, torch.float16, "1GB" if name != "qwen2" else "4KB")
        if name in ORACLE.DISGUISED:
            ORACLE.disguise(folder, name, model)
        if family != "Baichuan":
            os.remove(os.path.join(folder, "generation_config.json"))
        ids = torch.tensor([[(i * 7919 + 3) % fields["vocab_size"] for i in range(16)]])
        with torch.no_grad():
            logits = model(ids).logits[0, -1]
        save_file({"logits": logits.contiguous()}, os.path.join(folder, "logits.safetensors"), {"format": "pt"})
        ids = torch.tensor([(i * 7919 + i * i // 3) % fields["vocab_size"] for i in range(4 * 17)]).view(4, 17)
        loss, _, gradients = ORACLE.gradients_of(name, model, ids)
        save_file({"loss": loss} | {key: gradient.contiguous() for key, gradient in gradients.items()},
                  os.path.join(folder, "gradients.safetensors"), {"format": "pt"})


if __name__ == "__main__":
    main()
