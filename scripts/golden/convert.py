#!/usr/bin/env python3
"""Write the tiny Hugging Face folders of test/convert/golden, and the logits that transformers gives of them.

Made by transformers (those of families that it lacks: from a LLaMA, as test/oracle/convert.py packs them), fp16, so that
files are small and every number is one of fp32 as well. logits.safetensors has the fp32 model's, behind the last of 16
tokens (i * 7919 + 3) % vocab_size. Needs what test/oracle needs; --out FOLDER writes elsewhere.
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
MODELS = {
    "llama": ("Llama", SHAPE | {"head_dim": 6} | ORACLE.rope(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)),
    "qwen2": ("Qwen2", SHAPE | {"tie_word_embeddings": True} | ORACLE.rope(
        "yarn", factor=4.0, original_max_position_embeddings=16)),
    "mistral": ("Mistral", SHAPE | {"sliding_window": None}),
    "internlm2": ("Llama", SHAPE | {"attention_bias": True}),
    "baichuan": ("Llama", SHAPE | {"num_key_value_heads": 4}),
    "gpt2": ("GPT2", GPT2),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=os.path.join(ROOT, "test", "convert", "golden"))
    for name, (family, fields) in MODELS.items():
        folder = os.path.join(parser.parse_args().out, name)
        model = ORACLE.make(folder, family, fields, torch.float16, "1GB" if name != "qwen2" else "4KB")
        if name in ORACLE.DISGUISED:
            ORACLE.disguise(folder, name, model)
        os.remove(os.path.join(folder, "generation_config.json"))
        ids = torch.tensor([[(i * 7919 + 3) % fields["vocab_size"] for i in range(16)]])
        with torch.no_grad():
            logits = model.float()(ids).logits[0, -1]
        save_file({"logits": logits.contiguous()}, os.path.join(folder, "logits.safetensors"), {"format": "pt"})


if __name__ == "__main__":
    main()
