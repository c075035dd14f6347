#!/usr/bin/env python3
"""What convert does to a Hugging Face folder beyond its bits: eight-bit weights, vocabularies that grow.

Weights of eight bits must be what torch makes of them, in fp32 and bf16, with every kind of scale. A grown vocabulary must
have the mean as its new rows and be loaded by transformers. Prints, last, `N passed, N failed`.
"""
import json
import os
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LMTRAIN = os.environ.get("LMTRAIN", os.path.join(ROOT, "build", "lmtrain"))
SHAPE = {"vocab_size": 101, "hidden_size": 144, "intermediate_size": 272, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 36, "max_position_embeddings": 64}
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2

results = []


def check(name, fine, why=""):
    results.append(fine)
    if not fine:
        print(f"FAIL {name} {why}")


def convert(*arguments):
    done = subprocess.run([LMTRAIN, "convert", "--threads", "1", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr)
    return done


def make(folder, dtype, **fields):
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**(SHAPE | fields))).to(dtype)
    model.save_pretrained(folder)
    return model


def tensors(folder):
    found = {}
    with safe_open(os.path.join(folder, "model.safetensors"), "pt") as file:
        for key in file.keys():
            found[key] = file.get_tensor(key)
    return found


def scale_of(kind, shape):
    """A scale's tensor and what each element is multiplied by."""
    rows, cols = shape
    if kind is None:
        return None, torch.ones(shape)
    if kind == "scalar":
        scale = torch.tensor(0.0317)
        return scale, scale.expand(shape)
    if kind == "one":
        scale = torch.tensor([0.0317])
        return scale, scale.expand(shape)
    if kind == "rows":
        scale = torch.rand(rows, 1) + 0.1
        return scale, scale.expand(shape)
    scale = torch.rand(-(-rows // 128), -(-cols // 128)) + 0.1
    if kind == "blocks-bf16":
        scale = scale.bfloat16()
    if kind == "blocks-e8m0":
        scale = scale.to(torch.float8_e8m0fnu)
    every = scale.float().repeat_interleave(128, 0).repeat_interleave(128, 1)[:rows, :cols]
    return scale, every


def check_fp8(scratch, dtype, kind, suffix):
    name = f"fp8-{dtype}-{kind}".replace("torch.", "")
    folder = os.path.join(scratch, name)
    make(folder, torch.bfloat16)
    found, wanted = tensors(folder), {}
    for key in list(found):
        wanted[key] = found[key].float()
        if "_proj" not in key:
            continue
        eight = torch.randn(found[key].shape).mul(3).to(dtype)
        scale, every = scale_of(kind, eight.shape)
        found[key] = eight
        if scale is not None:
            found[key + suffix] = scale
            found[key.replace(".weight", ".input_scale")] = torch.tensor(1.0)
        wanted[key] = eight.float() * every
    save_file(found, os.path.join(folder, "model.safetensors"), {"format": "pt"})
    path = os.path.join(folder, "config.json")
    config = json.load(open(path)) | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    json.dump(config, open(path, "w"))
    for options, kept in ((["--dtype", "fp32"], torch.float32), ([], torch.bfloat16), (["--tp", "2"], torch.bfloat16)):
        there, back = folder + "-there", folder + "-back"
        done = convert("--from", folder, "--to", there, "--verify", *options)
        done = done.returncode or convert("--from", there, "--to", back, "--verify").returncode
        check(f"{name} {options}: is converted", not done)
        if done:
            continue
        got = tensors(back)
        check(f"{name} {options}: names", got.keys() == wanted.keys())
        for key, tensor in wanted.items():
            check(f"{name} {options}: {key}", got[key].dtype == kept and got[key].equal(tensor.to(kept)))
        config = json.load(open(os.path.join(back, "config.json")))
        check(f"{name}: config.json", "quantization_config" not in config and
              config.get("dtype", config.get("torch_dtype")) == str(kept).replace("torch.", ""))
        model, info = transformers.AutoModelForCausalLM.from_pretrained(back, output_loading_info=True)
        check(f"{name}: transformers loads it", not any(info.values()) and model.dtype == kept, str(info))
        subprocess.run(["rm", "-rf", there, back], check=True)


def check_growth(scratch, dtype, tied, options, wanted):
    name = f"grown-{dtype}-{tied}-{wanted}".replace("torch.", "")
    folder = os.path.join(scratch, name)
    make(folder, dtype, tie_word_embeddings=tied)
    before = tensors(folder)
    there, back, again = folder + "-there", folder + "-back", folder + "-again"
    done = convert("--from", folder, "--to", there, "--verify", "--tp", "2", *options)
    done = done.returncode or convert("--from", there, "--to", back, "--verify").returncode
    # The other way: a checkpoint as it is, grown on the way back.
    done = done or convert("--from", folder, "--to", there + "2").returncode
    done = done or convert("--from", there + "2", "--to", again, "--verify", *options).returncode
    check(f"{name}: is converted", not done)
    if done:
        return
    after = tensors(back)
    check(f"{name}: the same from either side", after.keys() == tensors(again).keys() and
          all(after[key].equal(tensor) for key, tensor in tensors(again).items()))
    for key, tensor in before.items():
        if after[key].shape != tensor.shape:
            mean = tensor.double().mean(0).float().to(dtype)
            check(f"{name}: {key} has {wanted} rows", after[key].shape == (wanted, tensor.shape[1]))
            check(f"{name}: {key} old rows", after[key][:len(tensor)].equal(tensor))
            close = (after[key][len(tensor):].float() - mean.float()).abs().max() <= 1e-2 * mean.float().abs().max()
            check(f"{name}: {key} new rows", bool(close))
        else:
            check(f"{name}: {key}", after[key].equal(tensor))
    for folder in (back, again):
        model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        check(f"{name}: transformers loads it", not any(info.values()) and model.config.vocab_size == wanted and
              model.get_output_embeddings().weight.shape[0] == wanted, str(info))


def main():
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as scratch:
        for dtype in (E4M3, E5M2):
            for kind, suffix in ((None, ""), ("scalar", "_scale"), ("one", "_scale_inv"), ("rows", "_scale"),
                                 ("blocks", "_scale_inv"), ("blocks-bf16", "_scale_inv"), ("blocks-e8m0", "_scale_inv")):
                check_fp8(scratch, dtype, kind, suffix)
        for dtype, tied in ((torch.float32, False), (torch.float32, True), (torch.bfloat16, False), (torch.float16, True)):
            check_growth(scratch, dtype, tied, ["--vocab-size", "103", "--pad-vocab", "8"], 104)
        check_growth(scratch, torch.float32, False, ["--vocab-size", "117"], 117)
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
