#!/usr/bin/env python3
"""Models between Hugging Face folders and checkpoints: bits there and back, and the loss by transformers.

Tiny models with random weights are saved by transformers and converted to checkpoints of several layouts and back. Each
tensor must be the same bits under the same name, and transformers must load the folder. In fp32 `lmtrain eval` of the
folder, and of the checkpoint, must give transformers' loss of each window. Prints, last, `N passed, N failed`.
"""
import glob
import json
import os
import subprocess
import sys
import tempfile

import numpy
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LMTRAIN = os.environ.get("LMTRAIN", os.path.join(ROOT, "build", "lmtrain"))
TOLERANCE = 1e-5
VOCAB, LENGTH, N_WINDOWS = 101, 64, 3

SHAPE = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": LENGTH}
GPT2 = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": LENGTH, "bos_token_id": 0,
        "eos_token_id": 0}


def rope(kind, **fields):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0} | fields}


# name: class, fields of its config, dtype, size of a file
MODELS = {
    "llama": ("Llama", SHAPE, torch.float32, "5GB"),
    "llama-bf16": ("Llama", SHAPE, torch.bfloat16, "20KB"),
    "llama-fp16": ("Llama", SHAPE, torch.float16, "5GB"),
    "llama-tied-own-head-dim": ("Llama", SHAPE | {"tie_word_embeddings": True, "head_dim": 10}, torch.float32, "20KB"),
    "llama-bias-no-groups": ("Llama", SHAPE | {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4},
                             torch.float32, "5GB"),
    "llama-theta": ("Llama", SHAPE | {"num_key_value_heads": 1, "rms_norm_eps": 1e-3,
                                      "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
                    torch.float32, "5GB"),
    "llama-attention-bias": ("Llama", SHAPE | {"attention_bias": True}, torch.float32, "5GB"),
    "llama-linear": ("Llama", SHAPE | rope("linear", factor=4.0), torch.float32, "5GB"),
    "llama-dynamic": ("Llama", SHAPE | rope("dynamic", factor=4.0), torch.float32, "5GB"),
    "llama-llama3": ("Llama", SHAPE | rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                           original_max_position_embeddings=32), torch.float32, "5GB"),
    "llama-yarn": ("Llama", SHAPE | rope("yarn", factor=4.0, original_max_position_embeddings=16), torch.float32, "5GB"),
    "llama-yarn-mscale": ("Llama", SHAPE | {"head_dim": 16} | rope(
        "yarn", factor=4.0, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=0.7, beta_fast=8.0,
        beta_slow=2.0, truncate=False), torch.float32, "5GB"),
    "qwen2": ("Qwen2", SHAPE, torch.float32, "5GB"),
    "qwen2-tied-bf16": ("Qwen2", SHAPE | {"tie_word_embeddings": True}, torch.bfloat16, "20KB"),
    "mistral": ("Mistral", SHAPE | {"sliding_window": None}, torch.float32, "5GB"),
    "aquila": ("Llama", SHAPE, torch.float32, "5GB"),
    "internlm": ("Llama", SHAPE | {"attention_bias": True, "num_key_value_heads": 4}, torch.float32, "5GB"),
    "internlm2": ("Llama", SHAPE, torch.float32, "5GB"),
    "internlm2-bias": ("Llama", SHAPE | {"attention_bias": True}, torch.float32, "5GB"),
    "baichuan": ("Llama", SHAPE | {"num_key_value_heads": 4}, torch.float32, "5GB"),
    "gpt2": ("GPT2", GPT2, torch.float32, "5GB"),
    "gpt2-bf16-untied": ("GPT2", GPT2 | {"tie_word_embeddings": False, "n_inner": 40}, torch.bfloat16, "20KB"),
}
CAUSAL = {"GPT2": "GPT2LMHeadModel"}
DISGUISED = ("aquila", "internlm", "internlm2", "baichuan")
LAYOUTS = [(1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (4, 2)]

results = []


def check(name, fine, why=""):
    results.append(fine)
    if not fine:
        print(f"FAIL {name} {why}")


def lmtrain(*arguments):
    """Standard output, or None after its error was shown."""
    done = subprocess.run([LMTRAIN, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr)
    return None if done.returncode else done.stdout


def make(folder, family, fields, dtype, shard):
    """A model whose every tensor matters: norms and biases are not what they begin with."""
    config = getattr(transformers, family + "Config")(**fields)
    model = getattr(transformers, CAUSAL.get(family, family + "ForCausalLM"))(config)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = parameter.dim() == 1 and not name.endswith("bias")
            parameter.copy_(1 + 0.1 * noise if is_norm else 0.15 * noise)
    model.to(dtype).save_pretrained(folder, max_shard_size=shard)
    return model.eval()


def packed(family, state, config):
    """The tensors of a LLaMA as families that transformers lacks name and place them."""
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    names = {"self_attn.o_proj": "attention.wo", "input_layernorm": "attention_norm", "mlp.gate_proj": "feed_forward.w1",
             "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2",
             "post_attention_layernorm": "ffn_norm", "embed_tokens": "tok_embeddings", "lm_head": "output"}
    found = {}
    for name, tensor in state.items():
        if family == "internlm2":
            for theirs, ours in names.items():
                name = name.replace(theirs, ours)
        if "q_proj" in name:
            q, k, v = (state[name.replace("q_proj", f"{part}_proj")] for part in "qkv")
            if family == "baichuan":
                found[name.replace("q_proj", "W_pack")] = torch.cat([q, k, v])
            else:
                rows = [q.view(groups, heads // groups, -1, *q.shape[1:]), k.view(groups, 1, -1, *k.shape[1:]),
                        v.view(groups, 1, -1, *v.shape[1:])]
                found[name.replace("self_attn.q_proj", "attention.wqkv")] = torch.cat(rows, 1).reshape(-1, *q.shape[1:])
        elif "k_proj" not in name and "v_proj" not in name:
            found[name] = tensor.contiguous()
    return found


def disguise(folder, family, model):
    """A LLaMA's folder as one of a family of its shape."""
    path = os.path.join(folder, "config.json")
    config = json.load(open(path))
    config |= {"model_type": family, "bias": model.config.attention_bias, "architectures": [family.title() + "ForCausalLM"]}
    json.dump(config, open(path, "w"))
    if family in ("baichuan", "internlm2"):
        save_file(packed(family, model.state_dict(), model.config), os.path.join(folder, "model.safetensors"),
                  {"format": "pt"})


def tensors(folder):
    found = {}
    for path in glob.glob(os.path.join(folder, "*.safetensors")):
        with safe_open(path, "pt") as file:
            for key in file.keys():
                assert key not in found
                found[key] = file.get_tensor(key)
    return found


def difference(a, b):
    """What is not the same in two folders, or ""."""
    x, y = tensors(a), tensors(b)
    if x.keys() != y.keys():
        return f"tensors {sorted(x.keys() ^ y.keys())}"
    for key, tensor in x.items():
        if (tensor.dtype, tensor.shape) != (y[key].dtype, y[key].shape):
            return f"{key} is {y[key].dtype}{list(y[key].shape)}"
        if not tensor.view(torch.uint8).equal(y[key].view(torch.uint8)):
            return f"{key} has other bits"
    for name in ("config.json", "generation_config.json"):
        if json.load(open(os.path.join(a, name))) != json.load(open(os.path.join(b, name))):
            return name
    return ""


def write_tokens(prefix, ids):
    """A token file of one document (test/oracle/indexed.py has the format from megatron-core)."""
    ids.astype("<u2").tofile(prefix + ".bin")
    with open(prefix + ".idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + (1).to_bytes(8, "little") + bytes([8]))
        file.write((1).to_bytes(8, "little") + (2).to_bytes(8, "little"))
        file.write(numpy.array([len(ids)], "<i4").tobytes() + numpy.array([0, 0, 1], "<i8").tobytes())


def losses(model, ids):
    """Mean nats a token of each window."""
    with torch.no_grad():
        return [model(torch.tensor(window[None, :-1])).logits[0].float().log_softmax(-1)
                .gather(1, torch.tensor(window[1:, None])).neg().double().mean().item()
                for window in (ids[i * LENGTH:(i + 1) * LENGTH + 1] for i in range(N_WINDOWS))]


def measured(folder, prefix):
    out = lmtrain("eval", "--model", folder, "--data", prefix, "--json", "--threads", "1")
    return json.loads(out)["loss"] if out else float("nan")


def check_loss(name, model, folders, scratch):
    ids = numpy.random.default_rng(5).integers(0, VOCAB, N_WINDOWS * LENGTH + 1)
    for i, loss in enumerate(losses(model, ids)):
        prefix = os.path.join(scratch, f"{name}-window-{i}")
        write_tokens(prefix, ids[i * LENGTH:(i + 1) * LENGTH + 1])
        for folder in folders:
            ours = measured(folder, prefix)
            check(f"{name}: loss of window {i} of {os.path.basename(folder)}",
                  abs(ours - loss) <= TOLERANCE * loss, f"is {ours}, transformers' is {loss}")


def check_model(name, scratch):
    family, fields, dtype, shard = MODELS[name]
    folder = os.path.join(scratch, name)
    model = make(folder, family, fields, dtype, shard)
    disguised = name.split("-")[0] in DISGUISED
    if disguised:
        disguise(folder, name.split("-")[0], model)
    checkpoints = []
    for tp, pp in LAYOUTS:
        checkpoint = f"{folder}-{tp}x{pp}"
        there = lmtrain("convert", "--from", folder, "--to", checkpoint, "--tp", str(tp), "--pp", str(pp))
        back = there and lmtrain("convert", "--from", checkpoint, "--to", checkpoint + "-hf",
                                 "--max-shard-gb", "0.00002" if pp == 2 else "5")
        why = difference(folder, checkpoint + "-hf") if back else "failed"
        check(f"{name}: there and back, tp {tp} pp {pp}", not why, why)
        checkpoints.append(checkpoint)
    for back in () if disguised else (checkpoints[0] + "-hf", checkpoints[-1] + "-hf"):
        again, info = type(model).from_pretrained(back, output_loading_info=True)
        check(f"{name}: transformers loads {os.path.basename(back)}", not any(info.values()), str(info))
        same = all(a.equal(b) for a, b in zip(model.state_dict().values(), again.state_dict().values()))
        check(f"{name}: transformers has its weights", same)
    if dtype != torch.bfloat16:
        check_loss(name, model.float(), [folder, checkpoints[0], checkpoints[-1]], scratch)


def main():
    names = sys.argv[1:] or MODELS
    # Every file is made to last: on a busy disk that takes most of the time.
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as scratch:
        for name in names:
            check_model(name, scratch)
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
