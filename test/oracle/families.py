#!/usr/bin/env python3
"""Families that a file of configs/families/ describes: refused, or the same as transformers.

1. Each decoder of the installed transformers whose tensors are named as those of a family that is built in gets a tiny
   model with random weights, once as its configuration class has it and once with the activation silu, and a description
   `like:` that family. `lmtrain eval` must refuse the folder or give transformers' loss.
2. Of each folder that is not refused, one key of config.json after the other gets another value. Where transformers has
   such a model of the same weights, lmtrain must refuse the key or give its loss; a key that is in `ignore` is not refused.
3. The same for each kind of rope scaling of a LLaMA, also with keys that another kind has.
4. The configuration of each built-in family's class as save_pretrained writes it by default must be read.

Prints, last, `N passed, N failed`.
"""
import importlib.util
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings

import numpy
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SPEC = importlib.util.spec_from_file_location("oracle", os.path.join(ROOT, "test", "oracle", "convert.py"))
ORACLE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(ORACLE)

BUILT_IN = ("llama", "qwen2", "qwen3", "mistral", "mixtral", "qwen3_moe", "gpt2", "bloom", "qwen2_moe", "dots1")
SHAPE = ORACLE.SHAPE | {"head_dim": 8, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
           "moe_intermediate_size": 16, "n_shared_experts": 1, "shared_expert_intermediate_size": 24}
# What classes leave out although their models need it.
NEEDED = {"dots1": {"n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 2}}
MAX_PARAMETERS = 3000000
TOLERANCE = 1e-5
# Of the folders of part 1: these must be read, else the test has become empty.
READ = {("llama", "llama"), ("mistral", "mistral"), ("qwen2", "qwen2"), ("qwen3", "qwen3"),
        ("mixtral", "mixtral"), ("qwen3_moe", "qwen3_moe"), ("qwen2_moe", "qwen2_moe"), ("dots1", "dots1"), ("gpt2", "gpt2"),
        ("bloom", "bloom"), ("internlm3", "llama")}
REFUSED = {"granite": "multiplier", "smollm3": "no_rope_layers", "helium": "not like llama", "ernie4_5": "not like llama",
           "mellum": "rope parameters"}
# Keys of the folder; lengths, which `eval` keeps to; and a tied head beside a head's own weights, which convert.py has.
FIXED = ("architectures", "model_type", "transformers_version", "dtype", "max_position_embeddings", "n_positions",
         "tie_word_embeddings")

results = []


def check(name, fine, why=""):
    results.append(bool(fine))
    if not fine:
        print(f"FAIL {name} {why}")


class Slow(Exception):
    pass


def stop(*_):
    raise Slow


def config_of(kind, **fields):
    """The configuration of a tiny model, of keys that the class has; None where it has no such one."""
    try:
        default = CONFIG_MAPPING[kind]()
        shape = {key: value for key, value in (SHAPE | EXPERTS | fields).items() if hasattr(default, key)}
        return CONFIG_MAPPING[kind](**shape, attn_implementation="eager")
    except Exception:  # noqa: BLE001 - any class may object in its own way
        return None


def model_of(kind, config, device):
    try:
        with torch.device(device):
            return getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind])(config)
    except (Slow, KeyboardInterrupt):
        raise
    except Exception:  # noqa: BLE001
        return None


def parts(model):
    """The names of a layer's tensors and of those outside the layers."""
    return {name for name, _ in model.named_parameters()}


def fill(model):
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = parameter.dim() == 1 and not name.endswith("bias")
            parameter.copy_(1 + 0.1 * noise if is_norm else 0.15 * noise)
    return model.eval()


def loss_of(model, ids):
    try:
        with torch.no_grad():
            return ORACLE.loss_of(model, ids[None])[0].item()
    except Exception:  # noqa: BLE001
        return None


def describe(kind, like, text=""):
    path = f"configs/families/{kind}.yaml"
    if kind == like and not text:
        if os.path.exists(path):
            os.remove(path)
        return
    with open(path, "w", encoding="ascii") as file:
        file.write(f"like: {like}\n{text}")


def measured(folder):
    """lmtrain's loss, or None and why it refuses."""
    done = subprocess.run([ORACLE.LMTRAIN, "eval", "--model", folder, "--data", "window", "--json", "--threads", "1"],
                          capture_output=True, text=True, check=False)
    if done.returncode not in (0, 2, 3):
        check(folder, False, f"ends with {done.returncode}: {done.stderr}")
    return (json.loads(done.stdout)["loss"], "") if done.returncode == 0 else (None, done.stderr)


def is_close(ours, loss):
    return abs(ours - loss) <= TOLERANCE * loss


def changed(value):
    """Other values of a key's kind."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        return [type(value)(value * 2 + 1), type(value)(value / 2)] if value else [1, 0.5]
    if value is None:
        return [3, True]
    if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
        return [[1 - item for item in value], value[::-1]]
    if isinstance(value, list) and value and set(value) <= {"full_attention", "sliding_attention"}:
        return [["sliding_attention"] * len(value), ["full_attention"] * len(value), value[::-1]]
    return []


def variants(config):
    """Every config.json with one key changed: its name, the key that decides, and it."""
    for key, value in config.items():
        if key in FIXED or key.endswith("token_id"):
            continue
        if isinstance(value, dict):
            for inner, number in value.items():
                for other in changed(number):
                    yield f"{key}.{inner}={other}", key, config | {key: value | {inner: other}}
            continue
        for other in changed(value):
            yield f"{key}={other}", key, config | {key: other}


def check_keys(kind, like, folder, model, ids):
    """Part 2."""
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as file:
        before = json.load(file)
    if before.get("sliding_window") is not None:
        before["sliding_window"] = 9  # short enough to count
    for name, key, after in variants(before):
        with open(path, "w", encoding="utf-8") as file:
            json.dump(after, file)
        try:
            config = CONFIG_MAPPING[kind](**after, attn_implementation="eager")
            other = model_of(kind, config, "cpu")
            other.load_state_dict(model.state_dict())
            loss = loss_of(other.eval(), ids)
        except Exception:  # noqa: BLE001
            continue
        ours, why = measured(folder)
        if loss is None or loss != loss:
            continue
        check(f"{kind} like {like}, {name}: refused, or the same",
              ours is None or is_close(ours, loss), f"{ours}, transformers: {loss}")
        if ours is None and f"{key} is " in why and "ignore: [" in why:
            describe(kind, like, f"ignore: [{key}]\n")
            _, why = measured(folder)
            check(f"{kind} like {like}, {name}: ignored", f"{key} is " not in why, why)
            describe(kind, like)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(before, file)


def families():
    """The names of the tensors of each built-in family, with and without biases."""
    found = {}
    for like in BUILT_IN:
        for bias in ({}, {"attention_bias": True}):
            config = config_of(like, **bias)
            found.setdefault(like, []).append(parts(model_of(like, config, "meta")))
    return found


def check_type(kind, likes, ids, read):
    """Part 1."""
    for fields in ({}, {"hidden_act": "silu"}):
        config = config_of(kind, **fields)
        model = config and model_of(kind, config, "meta")
        if model is None or sum(parameter.numel() for parameter in model.parameters()) > MAX_PARAMETERS:
            continue
        names = parts(model)
        for like in [like for like, sets in likes.items() if names in sets]:
            model = fill(model_of(kind, config, "cpu"))
            loss = loss_of(model, ids)
            if loss is None:
                continue
            folder = f"{kind}-{like}"
            model.save_pretrained(folder)
            describe(kind, like)
            ours, why = measured(folder)
            check(f"{kind} like {like} {fields}: refused, or the same", ours is None or is_close(ours, loss),
                  f"{ours}, transformers: {loss}")
            if kind in REFUSED and not fields and like != "mistral":
                check(f"{kind}: why it is refused", REFUSED[kind] in why, why)
            if ours is not None and (kind, like) not in read:
                read.add((kind, like))
                check_keys(kind, like, folder, model, ids)
            shutil.rmtree(folder)


ROPES = (ORACLE.rope("linear", factor=4.0), ORACLE.rope("dynamic", factor=4.0),
         ORACLE.rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32),
         ORACLE.rope("yarn", factor=4.0, original_max_position_embeddings=16))
ROPE_KEYS = {"attention_factor": 1.5, "beta_fast": 8.0, "beta_slow": 2.0, "mscale": 0.7, "mscale_all_dim": 0.4,
             "truncate": False, "original_max_position_embeddings": 24, "partial_rotary_factor": 0.5,
             "low_freq_factor": 2.0, "high_freq_factor": 8.0, "long_factor": [2.0] * 4}


def check_ropes(ids):
    """Part 3: keys of each kind of rope, those that it has and those of others."""
    describe("llama", "llama")
    for rope in ROPES:
        kind = rope["rope_parameters"]["rope_type"]
        model = fill(model_of("llama", config_of("llama", **rope), "cpu"))
        model.save_pretrained("rope")
        check_keys("llama", "llama", "rope", model, ids)
        with open("rope/config.json", encoding="utf-8") as file:
            before = json.load(file)
        for key, value in ROPE_KEYS.items():
            after = before | {"rope_parameters": before["rope_parameters"] | {key: value}}
            with open("rope/config.json", "w", encoding="utf-8") as file:
                json.dump(after, file)
            loss = None
            try:
                other = model_of("llama", CONFIG_MAPPING["llama"](**after, attn_implementation="eager"), "cpu")
                other.load_state_dict(model.state_dict())
                loss = loss_of(other.eval(), ids)
            except Exception:  # noqa: BLE001
                pass
            ours, why = measured("rope")
            check(f"{kind} with {key}: refused, or the same",
                  ours is None or (loss is not None and is_close(ours, loss)), f"{ours}, transformers: {loss} {why}")


def check_defaults():
    """Part 4."""
    for kind in BUILT_IN:
        describe(kind, kind)
        CONFIG_MAPPING[kind](**NEEDED.get(kind, {})).save_pretrained("default-" + kind)
        with open("job.yaml", "w", encoding="ascii") as file:
            file.write(f"model: ./default-{kind}\ndata: {{train: window}}\ntrain: {{steps: 1}}\n")
        done = subprocess.run([ORACLE.LMTRAIN, "config", "job.yaml"], capture_output=True, text=True, check=False)
        check(f"{kind}: its default configuration", done.returncode == 0, done.stderr)


def main():
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity(logging.CRITICAL)
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, stop)
    ids = numpy.random.default_rng(5).integers(0, ORACLE.VOCAB, ORACLE.LENGTH + 1)
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    read = set()
    with tempfile.TemporaryDirectory(dir=memory) as scratch:
        os.chdir(scratch)
        os.makedirs("configs/families")
        ORACLE.write_tokens("window", ids)
        check_defaults()
        check_ropes(ids)
        likes = families()
        for kind in sys.argv[1:] or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
            signal.alarm(60)
            try:
                check_type(kind, likes, ids, read)
            except Slow:
                print(f"skip {kind}: takes too long")
            signal.alarm(0)
        check("what is read", len(sys.argv) > 1 or READ <= read, f"lacks {sorted(READ - read)}")
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
