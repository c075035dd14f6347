#!/usr/bin/env python3
"""Finetuning and LoRA against transformers, peft and PyTorch in fp32: losses, gradient norms and weights of 20 steps.

Tiny models with random weights learn eight conversations of unequal length, of which only the answers count, so that masks
are uneven over micro-batches and ranks: the loss is a mean over all learned tokens of the step. Each step sees all of them,
so that their order does not matter. Adapters that lmtrain writes begin peft's run and are compared with what it ends with;
adapters that peft writes are evaluated and merged. Prints, last, `N passed, N failed`.
"""
import glob
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import warnings

import numpy
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

warnings.filterwarnings("ignore")
torch.set_num_threads(1)  # nothing here is large
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LMTRAIN = os.environ.get("LMTRAIN", os.path.join(ROOT, "build", "lmtrain"))
TOLERANCE = 1e-4
STEPS, LENGTH, LR, DECAY = 20, 64, 1e-3, 0.1
passed = failed = 0

CONVERSATIONS = [
    [("hello", "good day"), ("who are you?", "a small model")], [("one", "two")], [("count", "one two three four five")],
    [("bye", "see you soon"), ("now", "yes")], [("what is red", "a colour")], [("up", "down"), ("left", "right")],
    [("a long question that has few words of answer", "no")], [("say it", "it is said, again and again")],
]


def check(name, ok, text=""):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    print(f"{'ok' if ok else 'not ok'} {name} {text}", flush=True)


def run(*arguments):
    return subprocess.run([LMTRAIN, *arguments], capture_output=True, text=True)


# ---- what is trained on ----

def write_tokenizer(folder):
    special = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=special,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([text for c in CONVERSATIONS for turn in c for text in turn], trainer)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", bos_token="<|endoftext|>",
                                         pad_token="<|endoftext|>").save_pretrained(folder)
    return tokenizer.get_vocab_size()


def write_rows(path):
    with open(path, "w") as out:
        for c in CONVERSATIONS:
            messages = [{"role": role, "content": text} for turn in c for role, text in zip(("user", "assistant"), turn)]
            out.write(json.dumps({"messages": messages}) + "\n")


def read_samples(prefix):
    """Ids and what is learned of each, from the file that lmtrain made of the rows."""
    with open(prefix + ".idx", "rb") as f:
        f.read(9)
        version, code = struct.unpack("<QB", f.read(9))
        n, _ = struct.unpack("<QQ", f.read(16))
        lengths = numpy.frombuffer(f.read(4 * n), numpy.int32)
    tokens = numpy.fromfile(prefix + ".bin", {8: numpy.uint16, 4: numpy.int32}[code]).astype(numpy.int64)
    ends = numpy.cumsum(lengths)
    return [(torch.tensor(tokens[e - n:e] // 2), torch.tensor(tokens[e - n:e] % 2)) for n, e in zip(lengths, ends)]


# ---- models ----

def build(kind, vocab):
    torch.manual_seed(1)
    if kind == "gpt2":
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=vocab, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, attn_pdrop=0, resid_pdrop=0,
            embd_pdrop=0, bos_token_id=0, eos_token_id=0))
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=vocab, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=LENGTH, tie_word_embeddings=kind == "tied",
            attention_bias=kind == "bias", bos_token_id=0, eos_token_id=0))
    for p in model.parameters():
        p.data.mul_(2)  # gradients of a size that clipping sees, and no chaos yet
    model.float().save_pretrained(f"base-{kind}")
    return model


def theirs(model, samples):
    """Losses and gradient norms of PyTorch's steps: one conversation at a time, so that nothing is padded or packed."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": [p for p in trained if p.dim() > 1], "weight_decay": DECAY},
              {"params": [p for p in trained if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), eps=1e-8)
    n_learned = sum(int(learned[1:].sum()) for _, learned in samples)
    model.train()
    result = []
    for _ in range(STEPS):
        total = 0.0
        optimizer.zero_grad()
        for ids, learned in samples:
            labels = torch.where(learned[1:] == 1, ids[1:], -100)
            loss = torch.nn.functional.cross_entropy(model(ids[None, :-1]).logits[0], labels, ignore_index=-100,
                                                     reduction="sum") / n_learned
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        result.append((total, float(norm)))
    return result


def train(name, command, kind, extra, batch, steps=STEPS, lr=LR, decay=DECAY):
    job = (f"model: ./base-{kind}\n"
           f"data: {{train: rows.jsonl, tokenizer: tokenizer, template: chatml, seq_len: {LENGTH}, "
           f"packing: {'true' if 'packed' in name else 'false'}}}\n"
           f"train: {{steps: {steps}, global_batch: {batch}, micro_batch: 1, dtype: fp32, log_every: 1}}\n"
           f"optimizer: {{lr: {lr}, schedule: constant, warmup_steps: 0, weight_decay: {decay}, clip: 1.0}}\n"
           f"output: {name}\n{extra}\n")
    with open(name + ".yaml", "w") as out:
        out.write(job)
    return run(command, name + ".yaml")


def worst(a, b):
    return max(abs(x - y) / max(abs(y), 1e-30) for p, q in zip(a, b) for x, y in zip(p, q))


def far(ours, wanted, left_out):
    if set(ours) != set(wanted):
        return float("inf")
    most = 0.0
    for key in ours:
        if not any(re.search(pattern, key) for pattern in left_out):
            most = max(most, float((ours[key] - wanted[key]).abs().max() / wanted[key].abs().max().clamp(min=1e-6)))
    return most


def compare(name, kind, extra, vocab, lora=None, batch=8, left_out=()):
    """lora: the job's line; else all is trained."""
    model = build(kind, vocab)
    if lora:  # the adapters that our run begins with: a step that changes nothing
        first = train(name + "-first", "lora", kind, f"{extra}\n{lora}", batch, 1, 1e-30, 0.0)
        if first.returncode:
            return check(name, False, first.stderr)
        model = PeftModel.from_pretrained(model, name + "-first/adapter", is_trainable=True)
    done = train(name, "lora" if lora else "finetune", kind, f"{extra}\n{lora or ''}", batch)
    if done.returncode:
        return check(name, False, done.stderr)
    samples = read_samples(name + "/samples/train")
    wanted = theirs(model, samples)
    lines = [json.loads(line) for line in open(name + "/metrics.jsonl")]
    ours = [(line["loss"], line["grad_norm"]) for line in lines if "loss" in line]
    off = worst(ours, wanted) if len(ours) == STEPS else float("inf")
    check(name, off < TOLERANCE, f"losses and norms within {off:.1e}, {wanted[0][0]:.3f} to {wanted[-1][0]:.3f}")
    if lora:
        off = far(load_file(name + "/adapter/adapter_model.safetensors"), get_peft_model_state_dict(model), left_out)
    else:
        end = transformers.AutoModelForCausalLM.from_pretrained(name + "/model", dtype=torch.float32)
        off = far(end.state_dict(), model.state_dict(), left_out)
    check(name + " weights", off < 2e-3, f"within {off:.1e}")
    return None


# ---- peft's adapters, here ----

def write_tokens(prefix, ids):
    ids.astype(numpy.uint16).tofile(prefix + ".bin")
    with open(prefix + ".idx", "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QB", 1, 8) + struct.pack("<QQ", 1, 2))
        f.write(numpy.array([len(ids)], numpy.int32).tobytes() + numpy.array([0], numpy.int64).tobytes())
        f.write(numpy.array([0, 1], numpy.int64).tobytes())


def our_loss(*arguments):
    result = run("eval", *arguments, "--data", "tokens", "--json")
    return json.loads(result.stdout)["loss"] if result.returncode == 0 else result.stderr


def load(name, kind, vocab, **config):
    model = build(kind, vocab)
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **config))
    for key, p in adapted.named_parameters():
        if "lora_B" in key or (p.requires_grad and "bias" in key):
            torch.nn.init.normal_(p, std=0.3)
    adapted.save_pretrained(f"peft-{name}")
    ids = torch.tensor(numpy.random.default_rng(3).integers(0, vocab, LENGTH + 1))
    write_tokens("tokens", ids.numpy())
    adapted.eval()
    with torch.no_grad():
        wanted = float(torch.nn.functional.cross_entropy(adapted(ids[None, :-1]).logits[0], ids[1:]))
    for what, arguments in (("loaded", ("--model", f"base-{kind}", "--adapter", f"peft-{name}")),
                            ("merged", ("--model", f"merged-{name}"))):
        if what == "merged":
            result = run("merge", "--base", f"base-{kind}", "--adapter", f"peft-{name}", "--to", f"merged-{name}")
            if result.returncode:
                check(f"{name} merged", False, result.stderr)
                continue
        loss = our_loss(*arguments)
        ok = isinstance(loss, float) and abs(loss - wanted) < 1e-5 * wanted
        check(f"peft's {name} {what}", ok, f"{loss} for {wanted:.6f}")
    theirs_merged = adapted.merge_and_unload().state_dict()
    ours_merged = transformers.AutoModelForCausalLM.from_pretrained(f"merged-{name}", dtype=torch.float32).state_dict()
    off = max(float((ours_merged[k] - theirs_merged[k]).abs().max()) for k in ours_merged)
    check(f"peft's {name} merged by both", off < 1e-5, f"within {off:.1e}")


# ---- families that pack their matrices ----

def tensors(folder):
    found = {}
    for path in glob.glob(os.path.join(folder, "model*.safetensors")):
        found |= {k: v.float() for k, v in load_file(path).items()}
    return found


def family(name, modules, targets="all"):
    """Adapters by the family's own names; what they add to its own tensors is what merge adds."""
    base = os.path.join(ROOT, "test", "convert", "golden", name)
    write_tokens("few", numpy.random.default_rng(4).integers(0, 40, 2000))
    write_tokens("tokens", numpy.random.default_rng(5).integers(0, 40, 17))
    with open(f"{name}.yaml", "w") as out:
        out.write(f"model: {base}\ndata: {{train: few, seq_len: 16}}\n"
                  f"train: {{steps: 3, global_batch: 4, micro_batch: 2, dtype: fp32}}\nlora: {{rank: 3, targets: {targets}}}\n"
                  f"optimizer: {{lr: 3.0e-2, schedule: constant, warmup_steps: 0}}\noutput: family-{name}\nranks: 2\n"
                  "parallel: {tp: 2}\n")
    done = run("lora", f"{name}.yaml")
    if done.returncode:
        return check(f"family {name}", False, done.stderr)
    config = json.load(open(f"family-{name}/adapter/adapter_config.json"))
    adapter = load_file(f"family-{name}/adapter/adapter_model.safetensors")
    check(f"family {name}: target modules", sorted(config["target_modules"]) == sorted(modules), config["target_modules"])
    result = run("merge", "--base", base, "--adapter", f"family-{name}/adapter", "--to", f"family-merged-{name}", "--dtype", "fp32")
    if result.returncode:
        return check(f"family {name} merged", False, result.stderr)
    before, after, most = tensors(base), tensors(f"family-merged-{name}"), 0.0
    for key, was in before.items():
        module = "base_model.model." + key.removesuffix(".weight")
        if f"{module}.lora_A.weight" in adapter:
            delta = 2 * adapter[f"{module}.lora_B.weight"] @ adapter[f"{module}.lora_A.weight"]
            was = was + (delta.T if config["fan_in_fan_out"] else delta)
        most = max(most, float((after[key] - was).abs().max()))
    check(f"family {name}: what is added", before.keys() == after.keys() and most < 1e-6, f"within {most:.1e}")
    losses = [our_loss(*arguments) for arguments in (("--model", f"family-{name}"), ("--model", f"family-merged-{name}"),
                                                     ("--model", base, "--adapter", f"family-{name}/adapter"))]
    # The last computes in what the base is stored in, which for some is fp16; the others are fp32.
    ok = all(isinstance(x, float) and abs(x - losses[0]) < most * losses[0]
             for x, most in zip(losses, (1e-5, 1e-5, 1.2e-4)))
    return check(f"family {name}: run, merged and with adapter", ok and losses[0] != our_loss("--model", base), losses)


# ---- where texts end ----

TEMPLATE = ("{% for m in messages %}{{ '<|im_start|>' + m.role + ':' + m.content + '<|im_end|>' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant:' }}{% endif %}")


def text_of(name, prompt, end):
    """What transformers generates behind the prompt's ids with nothing said but the export's own files, to the token `end`."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    model = transformers.AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    ids = prompt(tokenizer)
    out = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=40)[0].tolist()[len(ids):]
    ended = out and len(out) < 40 and out[-1] == tokenizer.convert_tokens_to_ids(end)
    return tokenizer.decode(out[:-1], skip_special_tokens=True) if ended else f"no {end} in {out}"


def our_text(*arguments):
    result = run("generate", "--temperature", "0", "--max-new-tokens", "40", "--json", *arguments)
    return json.loads(result.stdout)["text"] if result.returncode == 0 else result.stderr


def ends(vocab):
    """Exports of a model that was trained here, and of one finetuned with a template of its own: both end where they learned to."""
    os.mkdir("bare")
    os.link("tokenizer/tokenizer.json", "bare/tokenizer.json")
    with open("verses.jsonl", "w") as out:
        out.write('{"text": "one two three four five"}\n{"text": "up down left right"}\n' * 20)
    done = run("data", "tokenize", "verses.jsonl", "--tokenizer", "bare", "--out", "verses")
    with open("own.yaml", "w") as out:
        out.write(f"model: {{vocab_size: {vocab}, hidden_size: 32, n_layers: 2, n_heads: 2, ffn_size: 64, max_seq_len: {LENGTH}}}\n"
                  f"data: {{train: verses, tokenizer: bare, seq_len: {LENGTH}}}\n"
                  "train: {steps: 60, global_batch: 4, micro_batch: 4, dtype: fp32}\n"
                  "optimizer: {lr: 1.0e-2, warmup_steps: 2}\noutput: own\n")
    done = done.returncode and done or run("pretrain", "own.yaml")
    done = done.returncode and done or run("convert", "--from", "own", "--to", "own-hf")
    if done.returncode:
        return check("ends", False, done.stderr)
    config = json.load(open("own-hf/config.json"))
    check("ends: ids of an export", [config[k + "_token_id"] for k in ("bos", "eos", "pad")] == [None, 2, None], config)
    text = text_of("own-hf", lambda t: t.encode("one two", add_special_tokens=False), "<|endoftext|>")
    check("ends: transformers ends a text", text == " three four five", text)
    ours = our_text("--model", "own", "--prompt", "one two")
    check("ends: so do we", ours.endswith("three four five"), ours)

    with open("own.jinja", "w") as out:
        out.write(TEMPLATE)
    with open("chat.yaml", "w") as out:
        out.write(f"model: ./own-hf\ndata: {{train: rows.jsonl, template: ./own.jinja, seq_len: {LENGTH}}}\n"
                  "train: {steps: 60, global_batch: 2, micro_batch: 2, dtype: fp32}\n"
                  "optimizer: {lr: 1.0e-2, schedule: constant, warmup_steps: 0, weight_decay: 0}\noutput: chat\n")
    done = run("finetune", "chat.yaml")
    if done.returncode:
        return check("ends: finetuned", False, done.stderr)
    os.remove("own.jinja")
    messages = [{"role": "user", "content": "what is red"}]
    config = json.load(open("chat/model/generation_config.json"))
    check("ends: answers end at two tokens", config["eos_token_id"] == [2, 1], config)
    text = text_of("chat/model", lambda t: t.apply_chat_template(messages, add_generation_prompt=True, return_dict=False),
                   "<|im_end|>")
    check("ends: transformers ends an answer", text == "a colour", text)
    for model in ("chat", "chat/model", "chat/checkpoints/step-00000060"):
        ours = our_text("--model", model, "--chat", "--prompt", "what is red")
        check(f"ends: so do we with the template of {model}", ours == text, ours)
    return None
def refuse_made(name, vocab, words, convert=False, **config):
    """An adapter that peft made, which is refused as it is; and as peft converts it, computes the same."""
    model = build("llama", vocab)
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, **config))
    init = adapted.peft_config["default"].init_lora_weights
    adapted.peft_config["default"].init_lora_weights = True
    adapted.save_pretrained(f"initial-{name}")
    adapted.peft_config["default"].init_lora_weights = init
    for key, p in adapted.named_parameters():
        if p.requires_grad:
            p.data += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(len(key)))
    adapted.save_pretrained(f"made-{name}")
    result = run("eval", "--model", "base-llama", "--adapter", f"made-{name}", "--data", "tokens")
    check(f"refused: {name} of peft", result.returncode == 3 and words in result.stderr, result.stderr.strip())
    if not convert:
        return
    ids = torch.tensor(numpy.random.default_rng(3).integers(0, vocab, LENGTH + 1))
    write_tokens("tokens", ids.numpy())
    adapted.eval()
    with torch.no_grad():
        wanted = float(torch.nn.functional.cross_entropy(adapted(ids[None, :-1]).logits[0], ids[1:]))
    adapted.save_pretrained(f"converted-{name}", path_initial_model_for_weight_conversion=f"initial-{name}")
    loss = our_loss("--model", "base-llama", "--adapter", f"converted-{name}")
    check(f"{name} converted by peft", isinstance(loss, float) and abs(loss - wanted) < 1e-5 * wanted, f"{loss} for {wanted:.6f}")


def refuse(name, change, words):
    config = json.load(open("peft-plain/adapter_config.json"))
    os.makedirs(f"bad-{name}", exist_ok=True)
    json.dump(config | change, open(f"bad-{name}/adapter_config.json", "w"))
    os.link("peft-plain/adapter_model.safetensors", f"bad-{name}/adapter_model.safetensors")
    result = run("eval", "--model", "base-llama", "--adapter", f"bad-{name}", "--data", "tokens")
    check(f"refused: {name}", result.returncode == 3 and words in result.stderr, result.stderr.strip())


def main():
    folder = tempfile.TemporaryDirectory()
    os.chdir(folder.name)
    vocab = write_tokenizer("tokenizer")
    write_rows("rows.jsonl")
    two = "ranks: 2"
    # A key's bias has no gradient but rounding's, which Adam makes as large as any other.
    key_bias = (r"c_attn.*bias",)

    compare("full", "llama", "", vocab)
    compare("full-two-ranks", "llama", two, vocab)
    compare("full-gpt2", "gpt2", two, vocab, left_out=key_bias)
    compare("full-tied-tp", "tied", "ranks: 2\nparallel: {tp: 2}", vocab)
    compare("full-stages-zero", "tied", "ranks: 4\nparallel: {pp: 2, schedule: zb-h1, zero: 3}", vocab)
    n_packs = len_of_packs(vocab)
    compare("full-packed", "llama", "", vocab, batch=n_packs)
    compare("lora-packed", "llama", "", vocab, "lora: {rank: 4}", batch=n_packs)
    compare("lora", "llama", "", vocab, "lora: {rank: 4, targets: [q_proj, v_proj]}")
    compare("lora-all-ranks", "llama", "ranks: 4\nparallel: {tp: 2, zero: 1}", vocab, "lora: {rank: 3}")
    compare("lora-stages", "tied", "ranks: 2\nparallel: {pp: 2}", vocab,
            "lora: {rank: 5, rslora: true, targets: [o_proj, gate_proj, down_proj], modules_to_save: [input_layernorm]}")
    compare("lora-saved", "bias", two, vocab, "lora: {rank: 4, targets: [q_proj, k_proj, v_proj], bias: all, "
            "modules_to_save: [embed_tokens, lm_head, norm]}", left_out=(r"k_proj.*bias",))
    compare("lora-gpt2", "gpt2", "ranks: 2\nparallel: {tp: 2}", vocab, "lora: {rank: 4, bias: lora_only}",
            left_out=key_bias)

    load("plain", "llama", vocab, r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    load("patterns", "llama", vocab, r=4, lora_alpha=16, target_modules="all-linear", rank_pattern={"q_proj": 7},
         alpha_pattern={"down_proj": 3, "layers.1.self_attn.o_proj": 40})
    load("rslora", "tied", vocab, r=8, lora_alpha=4, use_rslora=True, target_modules=["up_proj", "o_proj"])
    for init in ("gaussian", "eva", "orthogonal", False):
        load(f"init-{init}", "llama", vocab, r=4, target_modules=["q_proj"], init_lora_weights=init)
    load("conv1d", "gpt2", vocab, r=4, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True, bias="all")
    load("saved", "llama", vocab, r=2, target_modules=["q_proj"], modules_to_save=["lm_head"])
    family("gpt2", ["c_attn", "attn.c_proj", "c_fc", "mlp.c_proj"])
    family("bloom", ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"])
    family("baichuan", ["W_pack", "o_proj", "gate_proj", "up_proj", "down_proj"])
    family("baichuan2", ["W_pack", "up_proj"], "[W_pack, up_proj]")
    family("internlm2", ["wqkv", "wo", "w1", "w2", "w3"])
    family("mixtral", ["q_proj", "k_proj", "v_proj", "o_proj"])
    family("qwen3moe", ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])  # of its dense layers
    ends(vocab)
    refuse("dora", {"use_dora": True}, "use_dora")
    refuse("kind", {"peft_type": "IA3"}, "IA3")
    for init in ("pissa", "olora", "pissa_niter_4"):
        refuse_made(init, vocab, f"init_lora_weights is {init}", True, init_lora_weights=init, target_modules=["q_proj", "o_proj"])
    for init in ("loftq", "corda", "lora_ga"):
        refuse(init, {"init_lora_weights": init}, f"init_lora_weights is {init}")
    refuse_made("made-dora", vocab, "does not support DoRA", use_dora=True, target_modules=["q_proj"])
    refuse_made("head", vocab, "does not support LoRA of the head", target_modules=["q_proj", "lm_head"])
    refuse_made("embedding", vocab, "does not support LoRA of the embedding", target_modules=["q_proj", "embed_tokens"])
    refuse_made("rows", vocab, "does not support training some rows", target_modules=["q_proj"], trainable_token_indices=[1, 2])
    refuse("pattern", {"alpha_pattern": {"(q|v)_proj": 3}}, "alpha_pattern")
    folder.cleanup()


def len_of_packs(vocab):
    build("llama", vocab)
    result = train("count-packed", "finetune", "llama", "", 1, 1)
    found = re.search(r"samples in (\d+) sequences", result.stderr)
    if not found:
        check("packs", False, result.stderr)
        sys.exit(1)
    return int(found[1])


if __name__ == "__main__":
    main()
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed != 0)
