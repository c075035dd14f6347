#!/usr/bin/env python3
"""Models between Hugging Face folders and checkpoints: bits there and back; loss, logits and gradients by transformers.

Tiny models with random weights are saved by transformers and converted to checkpoints of several layouts and back. Each
tensor must be the same bits under the same name, and transformers must load the folder. In fp32 `lmtrain eval` of the
folder, and of the checkpoint, must give transformers' loss of a window; and test/oracle/gradients.c, for several layouts
of ranks, its loss and gradients of other text, and over a cache its logits. Prints, last, `N passed, N failed`.
"""
import copy
import glob
import json
import os
import subprocess
import sys
import tempfile
from functools import reduce

import numpy
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LMTRAIN = os.path.abspath(os.environ.get("LMTRAIN", os.path.join(ROOT, "build", "lmtrain")))
GRADIENTS = os.path.join(os.path.dirname(LMTRAIN), "test", "oracle", "gradients")
sys.path.insert(0, os.path.join(ROOT, "scripts", "golden"))
import baichuan  # noqa: E402

TOLERANCE = 1e-5
VOCAB, LENGTH = 101, 64
N_TEXTS, TEXT_LENGTH = 2, 28  # of gradients

SHAPE = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": LENGTH}
GPT2 = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": LENGTH, "bos_token_id": 0,
        "eos_token_id": 0}


def rope(kind, **fields):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0} | fields}


def window(size, first):
    return {"use_sliding_window": True, "sliding_window": size, "max_window_layers": first}


ALTERNATING = ["sliding_attention", "full_attention"] * 2
BLOOM = {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 4, "n_head": 4, "seq_length": LENGTH}
BAICHUAN = baichuan.config(vocab_size=VOCAB, hidden_size=36, intermediate_size=48, num_hidden_layers=4, num_attention_heads=12,
                           model_max_length=LENGTH)

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
    "llama-dynamic-beyond": ("Llama", SHAPE | {"max_position_embeddings": 16} | rope("dynamic", factor=4.0), torch.float32,
                             "5GB"),
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
    "qwen2-window": ("Qwen2", SHAPE | window(7, 1), torch.float32, "5GB"),
    "qwen2-window-everywhere": ("Qwen2", SHAPE | window(16, 0), torch.float32, "20KB"),
    "qwen": ("Qwen2", SHAPE | {"num_key_value_heads": 4}, torch.float32, "5GB"),
    "qwen-bias": ("Llama", SHAPE | {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True}, torch.float32, "5GB"),
    "qwen3": ("Qwen3", SHAPE | {"head_dim": 10}, torch.float32, "5GB"),
    "qwen3-tied-bias-no-groups": ("Qwen3", SHAPE | {"tie_word_embeddings": True, "attention_bias": True, "head_dim": 8,
                                                    "num_key_value_heads": 4}, torch.float32, "5GB"),
    "qwen3-one-kv-head-window": ("Qwen3", SHAPE | {"head_dim": 16, "num_key_value_heads": 1} | window(5, 2), torch.float32,
                                 "20KB"),
    "qwen3-yarn-bf16": ("Qwen3", SHAPE | {"head_dim": 8} | rope("yarn", factor=4.0, original_max_position_embeddings=16),
                        torch.bfloat16, "20KB"),
    "qwen2-window-alternating": ("Qwen2", SHAPE | window(5, 0) | {"layer_types": ["full_attention"] + ALTERNATING[:3]},
                                 torch.float32, "5GB"),
    "qwen3-window-alternating": ("Qwen3", SHAPE | {"head_dim": 8} | window(5, 0) | {"layer_types": ALTERNATING},
                                 torch.float32, "5GB"),
    "mistral-window": ("Mistral", SHAPE | {"sliding_window": 9}, torch.float32, "5GB"),
    "mistral-window-of-two": ("Mistral", SHAPE | {"sliding_window": 2, "head_dim": 6}, torch.float32, "5GB"),
    "bloom": ("Bloom", BLOOM, torch.float32, "5GB"),
    "bloom-six-heads": ("Bloom", BLOOM | {"n_head": 6, "hidden_size": 30, "hidden_dropout": 0.1}, torch.float32, "20KB"),
    "bloom-twelve-heads-untied": ("Bloom", BLOOM | {"n_head": 12, "hidden_size": 36, "tie_word_embeddings": False},
                                  torch.float32, "5GB"),
    "bloom-bf16": ("Bloom", BLOOM, torch.bfloat16, "20KB"),
    "baichuan13b": ("Baichuan", BAICHUAN, torch.float32, ""),
    "baichuan2-7b": ("Baichuan", BAICHUAN | {"num_attention_heads": 6, "max_position_embeddings": LENGTH, "z_loss_weight": 0},
                     torch.float32, ""),
    "baichuan2-13b": ("Baichuan", BAICHUAN | {"z_loss_weight": 0}, torch.float32, ""),
    "described": ("Llama", SHAPE | {"attention_bias": True}, torch.float32, "20KB"),
    "gpt2": ("GPT2", GPT2, torch.float32, "5GB"),
    "gpt2-odd-head-dim": ("GPT2", GPT2 | {"n_embd": 36}, torch.float32, "5GB"),
    "gpt2-bf16-untied": ("GPT2", GPT2 | {"tie_word_embeddings": False, "n_inner": 40}, torch.bfloat16, "20KB"),
}
CAUSAL = {"GPT2": "GPT2LMHeadModel"}
PACKED = ("baichuan", "internlm2", "qwen", "described")
# What transformers lacks, by a description beside where lmtrain is started.
DESCRIBED = """like: llama
keys: {num_hidden_layers: depth, rms_norm_eps: epsilon}
names: {model: base, self_attn.q_proj: attn.wq, embed_tokens: tokens, lm_head: base.output}
model: {attention_bias: all}
"""
DISGUISED = ("described", "aquila", "internlm", "internlm2", "baichuan", "qwen")
LAYOUTS = [(tp, pp) for tp in (1, 2, 4) for pp in (1, 2, 4)]

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


def build(family, fields):
    if family == "Baichuan":
        return baichuan.Baichuan(fields)
    config = getattr(transformers, family + "Config")(**fields, attn_implementation="eager")
    return getattr(transformers, CAUSAL.get(family, family + "ForCausalLM"))(config)


def balance_biases(model):
    return {name: buffer for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")}


def make(folder, family, fields, dtype, shard):
    """A model whose every tensor matters: norms and biases are not what they begin with. In fp32, of the saved numbers."""
    model = build(family, fields)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = parameter.dim() == 1 and not name.endswith("bias")
            parameter.copy_((1 + 0.1 * noise if is_norm else 0.15 * noise).to(dtype))
        for bias in balance_biases(model).values():
            bias.copy_(0.15 * torch.randn(bias.shape, generator=generator))
    saved, biases = copy.deepcopy(model).to(dtype), balance_biases(model)
    for name in biases:
        saved.get_submodule(name.rpartition(".")[0]).e_score_correction_bias = biases[name]  # fp32, whatever the type
    saved.save_pretrained(folder, max_shard_size=shard)
    return model.eval()


def packed(family, state, config):
    """The tensors of a LLaMA as families that transformers lacks name and place them."""
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    names = {"self_attn.o_proj": "attention.wo", "input_layernorm": "attention_norm", "mlp.gate_proj": "feed_forward.w1",
             "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2",
             "post_attention_layernorm": "ffn_norm", "embed_tokens": "tok_embeddings", "lm_head": "output"}
    if family == "qwen":
        names = {"model.": "transformer.", "layers.": "h.", "self_attn.o_proj": "attn.c_proj", "input_layernorm": "ln_1",
                 "mlp.gate_proj": "mlp.w2", "mlp.up_proj": "mlp.w1", "mlp.down_proj": "mlp.c_proj",
                 "post_attention_layernorm": "ln_2", "embed_tokens": "wte", "transformer.norm": "transformer.ln_f"}
    if family == "described":
        renamed = {"model.": "base.", "self_attn.q_proj": "attn.wq", "embed_tokens": "tokens", "lm_head": "base.output"}
        return {reduce(lambda name, pair: name.replace(*pair), renamed.items(), key): value for key, value in state.items()}
    found = {}
    for key, tensor in state.items():
        name = key
        if family in ("internlm2", "qwen"):
            for theirs, ours in names.items():
                name = name.replace(theirs, ours)
        if "q_proj" in name:
            q, k, v = (state[key.replace("q_proj", f"{part}_proj")] for part in "qkv")
            if family == "baichuan":
                found[name.replace("q_proj", "W_pack")] = torch.cat([q, k, v])
            elif family == "qwen":
                found[name.replace("self_attn.q_proj", "attn.c_attn")] = torch.cat([q, k, v])
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
    config |= {"model_type": family, "architectures": [family.title() + "ForCausalLM"]}
    if family == "described":
        del config["attention_bias"]
        config |= {"depth": config.pop("num_hidden_layers"), "epsilon": config.pop("rms_norm_eps")}
    elif family == "qwen":
        config |= {"intermediate_size": 2 * config["intermediate_size"], "kv_channels": config.pop("head_dim", 8),
                   "seq_length": LENGTH, "layer_norm_epsilon": config.pop("rms_norm_eps"),
                   "no_bias": not config.get("mlp_bias", False)}
        for key in ("rope_parameters", "hidden_act", "num_key_value_heads", "attention_bias", "mlp_bias", "attention_dropout",
                    "max_window_layers", "layer_types", "sliding_window", "use_sliding_window"):
            config.pop(key, None)
    else:
        config["bias"] = model.config.attention_bias
    json.dump(config, open(path, "w"))
    if family == "described":
        for path in glob.glob(os.path.join(folder, "*.safetensors")):
            save_file(packed(family, load_file(path), model.config), path, {"format": "pt"})
        path = os.path.join(folder, "model.safetensors.index.json")
        index = json.load(open(path))
        index["weight_map"] = packed(family, index["weight_map"], model.config)
        json.dump(index, open(path, "w"))
    elif family in PACKED:
        path = os.path.join(folder, "model.safetensors")
        save_file(packed(family, load_file(path), model.config), path, {"format": "pt"})


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
        if os.path.exists(os.path.join(a, name)) and json.load(open(os.path.join(a, name))) != json.load(open(os.path.join(b, name))):
            return name
    return ""


def write_tokens(prefix, ids):
    """A token file of one document (test/oracle/indexed.py has the format from megatron-core)."""
    ids.astype("<u2").tofile(prefix + ".bin")
    with open(prefix + ".idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + (1).to_bytes(8, "little") + bytes([8]))
        file.write((1).to_bytes(8, "little") + (2).to_bytes(8, "little"))
        file.write(numpy.array([len(ids)], "<i4").tobytes() + numpy.array([0, 0, 1], "<i8").tobytes())


def loss_of(model, ids):
    """Mean nats a token."""
    ids = torch.as_tensor(ids)
    logits = model(ids[..., :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, -2).float(), ids[..., 1:].flatten()), logits


def measured(folder, prefix):
    out = lmtrain("eval", "--model", folder, "--data", prefix, "--json", "--threads", "1")
    return json.loads(out)["loss"] if out else float("nan")


def check_loss(name, model, folders, scratch):
    ids = numpy.random.default_rng(5).integers(0, VOCAB, LENGTH + 1)
    prefix = os.path.join(scratch, f"{name}-window")
    write_tokens(prefix, ids)
    with torch.no_grad():
        loss = loss_of(model, ids[None])[0].item()
    for folder in folders:
        ours = measured(folder, prefix)
        check(f"{name}: loss of {os.path.basename(folder)}", abs(ours - loss) <= TOLERANCE * loss,
              f"is {ours}, transformers' is {loss}")


def off(ours, theirs):
    """max|a - b| / max|b|."""
    return ((ours.double() - theirs.double()).abs().max() / theirs.double().abs().max()).item()


def gradients_of(family, model, ids):
    """Loss, logits, and gradients by the names of the folder."""
    loss, logits = loss_of(model, ids)
    loss.backward()
    found = {key: parameter.grad for key, parameter in model.named_parameters()}
    return loss.detach(), logits.detach(), packed(family, found, model.config) if family in PACKED else found


def logits_over_cache(model, ids):
    """Of the second half of each text, token by token: with dynamic rope, each by the length that the text then has."""
    model = copy.deepcopy(model)  # it keeps the frequencies of the longest text that it has seen
    half = TEXT_LENGTH // 2
    rows = []
    with torch.no_grad():
        for text in torch.tensor(ids[:, :TEXT_LENGTH]):
            fresh = copy.deepcopy(model)
            cache = fresh(text[None, :half], use_cache=True).past_key_values
            out = []
            for i in range(half, TEXT_LENGTH):
                step = fresh(text[None, i:i + 1], past_key_values=cache, use_cache=True)
                cache = step.past_key_values
                out.append(step.logits[0, -1])
            rows.append(torch.stack(out))
    return torch.stack(rows)


def heads_of(model):
    return model.config["num_attention_heads"] if isinstance(model.config, dict) else model.config.num_attention_heads


def layouts_of(name, model):
    """TPxPP of the ranks that compute gradients; s: sequence parallel."""
    return ["1x1", "2x1", "2sx1", "1x2", "2sx2"] + (["4x1", "4sx4"] if heads_of(model) % 4 == 0 else [])


def check_gradients(name, model, folder):
    ids = numpy.random.default_rng(7).integers(0, VOCAB, (N_TEXTS, TEXT_LENGTH + 1))
    ids.astype("<i4").tofile(folder + "-text")
    loss, logits, wanted = gradients_of(name.split("-")[0], model, ids)
    late = logits_over_cache(model, ids) if "dynamic" in name else logits[:, TEXT_LENGTH // 2:]
    layouts = layouts_of(name, model)
    done = subprocess.run([GRADIENTS, folder, folder + "-text", str(TEXT_LENGTH), folder + "-ours", *layouts],
                          capture_output=True, text=True, check=False)
    check(f"{name}: gradients", done.returncode == 0, done.stderr)
    if done.returncode:
        return
    with safe_open(folder + "-ours.logits.safetensors", "pt") as file:
        error = off(file.get_tensor("logits"), late)
    check(f"{name}: logits over a cache", error <= TOLERANCE, f"off by {error:.2g}")
    for layout in layouts:
        with safe_open(f"{folder}-ours.{layout}.safetensors", "pt") as file:
            ours = {key: file.get_tensor(key) for key in file.keys()}
        error = off(ours.pop("loss"), loss)
        check(f"{name}: loss by {layout}", error <= TOLERANCE, f"off by {error:.2g}")
        check(f"{name}: names of gradients", ours.keys() == wanted.keys(), str(sorted(ours.keys() ^ wanted.keys())))
        for key in ours.keys() & wanted.keys():
            error = off(ours[key], wanted[key])
            check(f"{name}: gradient of {key} by {layout}", error <= TOLERANCE, f"off by {error:.2g}")


def check_model(name, scratch):
    family, fields, dtype, shard = MODELS[name]
    folder = os.path.join(scratch, name)
    model = make(folder, family, fields, dtype, shard)
    disguised = name.split("-")[0] in DISGUISED
    if disguised:
        disguise(folder, name.split("-")[0], model)
    checkpoints = []
    for tp, pp in [(tp, pp) for tp, pp in LAYOUTS if heads_of(model) % tp == 0]:
        checkpoint = f"{folder}-{tp}x{pp}"
        there = lmtrain("convert", "--from", folder, "--to", checkpoint, "--tp", str(tp), "--pp", str(pp))
        back = there and lmtrain("convert", "--from", checkpoint, "--to", checkpoint + "-hf",
                                 "--max-shard-gb", "0.00002" if pp == 2 else "5")
        why = difference(folder, checkpoint + "-hf") if back else "failed"
        check(f"{name}: there and back, tp {tp} pp {pp}", not why, why)
        checkpoints.append(checkpoint)
    for back in () if disguised or family == "Baichuan" else (checkpoints[0] + "-hf", checkpoints[-1] + "-hf"):
        again, info = type(model).from_pretrained(back, output_loading_info=True)
        check(f"{name}: transformers loads {os.path.basename(back)}", not any(info.values()), str(info))
        same = all(a.equal(b.float()) for a, b in zip(model.state_dict().values(), again.state_dict().values()))
        check(f"{name}: transformers has its weights", same)
    check_gradients(name, model, folder)
    # Behind them: dynamic frequencies stay what the longest text has made them. `eval` cuts text at the longest meant.
    if dtype != torch.bfloat16 and not name.endswith("-beyond"):
        check_loss(name, model, [folder, checkpoints[0], checkpoints[-1]], scratch)


# Trained here, so that config.json is ours: fields of a job's model, and the class that must read it.
OWN = {
    "own-llama": ("Llama", "tied_embeddings: true, rope_scaling: {type: yarn, factor: 2.0, original_max_seq_len: 32}"),
    "own-qwen2": ("Qwen2", "attention_bias: qkv, window: 9, window_first_layer: 1"),
    "own-qwen3": ("Qwen3", "qk_norm: true, head_dim: 10, n_kv_heads: 2"),
    "own-mistral": ("Mistral", "window: 11, n_kv_heads: 1"),
    "own-gpt2": ("GPT2", "norm: layernorm, position: learned, activation: gelu, bias: true"),
    "own-bloom": ("Bloom", "norm: layernorm, position: alibi, activation: gelu, bias: true, embedding_norm: true, "
                           "ffn_size: 128, tied_embeddings: true"),
}


def check_own(name, scratch):
    """A run of one step goes to a folder that transformers loads, and computes the same."""
    family, fields = OWN[name]
    run = os.path.join(scratch, name)
    ids = numpy.random.default_rng(5).integers(0, VOCAB, LENGTH + 1)
    write_tokens(run + "-text", ids)
    with open(run + ".yaml", "w", encoding="ascii") as job:
        job.write(f"model: {{vocab_size: {VOCAB}, hidden_size: 32, n_layers: 2, n_heads: 4, max_seq_len: {LENGTH}, init_std: 0.1, "
                  f"{'' if 'ffn_size' in fields else 'ffn_size: 48, '}{fields}}}\n"
                  f"data: {{train: {run}-text}}\noptimizer: {{lr: 0.1}}\n"
                  "train: {steps: 1, global_batch: 1, dtype: fp32}\n" f"output: {run}\n")
    fine = lmtrain("pretrain", run + ".yaml") is not None
    fine = fine and lmtrain("convert", "--from", run, "--to", run + "-hf", "--verify") is not None
    check(f"{name}: trained and converted", fine)
    if not fine:
        return
    model, info = getattr(transformers, CAUSAL.get(family, family + "ForCausalLM")).from_pretrained(
        run + "-hf", output_loading_info=True, attn_implementation="eager")
    check(f"{name}: transformers loads it", not any(info.values()), str(info))
    with torch.no_grad():
        loss = loss_of(model, ids[None])[0].item()
    for folder in (run, run + "-hf"):
        ours = measured(folder, run + "-text")
        check(f"{name}: loss of {os.path.basename(folder)}", abs(ours - loss) <= TOLERANCE * loss,
              f"is {ours}, transformers' is {loss}")


# config.json says that the head is tied, the weights have one: family, fields, file size, and whether it is a copy.
HEADS = {
    "head-llama": ("Llama", SHAPE, "5GB", False),
    "head-llama-sharded": ("Llama", SHAPE, "20KB", False),
    "head-llama-copy": ("Llama", SHAPE, "5GB", True),
    "head-gpt2": ("GPT2", GPT2, "5GB", False),
    "head-bloom": ("Bloom", BLOOM, "5GB", False),
}
SAID = "the model is read as untied"


def trained_from(folder, prefix, run):
    """A run that begins with the folder's weights and hardly changes them."""
    with open(run + ".yaml", "w", encoding="ascii") as job:
        job.write(f"model: {folder}\ndata: {{train: {prefix}}}\noptimizer: {{lr: 1.0e-12}}\noutput: {run}\n"
                  f"train: {{steps: 1, global_batch: 1, dtype: fp32, init: {folder}}}\n")
    done = subprocess.run([LMTRAIN, "pretrain", run + ".yaml"], capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stdout + done.stderr


def check_head(name, scratch):
    """Every command computes what transformers does, which keeps a head that differs, and says so once."""
    family, fields, shard, is_copy = HEADS[name]
    folder, prefix = os.path.join(scratch, name), os.path.join(scratch, name + "-text")
    model = make(folder, family, fields | {"tie_word_embeddings": False}, torch.float32, shard)
    if is_copy:
        model.get_output_embeddings().weight = model.get_input_embeddings().weight
        state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
        save_file(state, os.path.join(folder, "model.safetensors"), {"format": "pt"})
    path = os.path.join(folder, "config.json")
    config = json.load(open(path))
    json.dump(config | {"tie_word_embeddings": True}, open(path, "w"))
    theirs = type(model).from_pretrained(folder)
    ids = numpy.random.default_rng(5).integers(0, VOCAB, LENGTH + 1)
    write_tokens(prefix, ids)
    with torch.no_grad():
        loss = loss_of(theirs, ids[None])[0].item()
    checkpoint, back, run = folder + "-1x1", folder + "-back", folder + "-run"
    done = subprocess.run([LMTRAIN, "convert", "--from", folder, "--to", checkpoint], capture_output=True, text=True, check=False)
    check(f"{name}: convert", done.returncode == 0 and done.stderr.count(SAID) == (not is_copy), done.stderr)
    check(f"{name}: and back", lmtrain("convert", "--from", checkpoint, "--to", back) is not None)
    fine, text = trained_from(folder, prefix, run)
    check(f"{name}: pretrain", fine and text.count(SAID) == (not is_copy), text)
    for place in (folder, checkpoint, back, run):
        done = subprocess.run([LMTRAIN, "eval", "--model", place, "--data", prefix, "--json", "--threads", "1"],
                              capture_output=True, text=True, check=False)
        ours = json.loads(done.stdout)["loss"] if done.returncode == 0 else float("nan")
        check(f"{name}: loss of {os.path.basename(place)}", abs(ours - loss) <= TOLERANCE * loss,
              f"is {ours}, transformers' is {loss}: {done.stderr}")
        check(f"{name}: said of {os.path.basename(place)}",
              done.stderr.count(SAID) == (place == folder and not is_copy), done.stderr)
    again = json.load(open(os.path.join(back, "config.json")))
    check(f"{name}: config.json", again["tie_word_embeddings"] == is_copy, str(again))
    with torch.no_grad():
        loaded = loss_of(type(model).from_pretrained(back), ids[None])[0].item()
    check(f"{name}: transformers' loss of what went back", abs(loaded - loss) <= TOLERANCE * loss, f"is {loaded}, was {loss}")


def main():
    names = sys.argv[1:] or [*MODELS, *OWN, *HEADS]
    # Every file is made to last: on a busy disk that takes most of the time.
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as scratch:
        os.chdir(scratch)
        os.makedirs("configs/families")
        with open("configs/families/described.yaml", "w", encoding="ascii") as description:
            description.write(DESCRIBED)
        for name in names:
            (check_own if name in OWN else check_head if name in HEADS else check_model)(name, scratch)
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
