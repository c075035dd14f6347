"""One contender of scripts/bench/cpu: a decoder in PyTorch, by hand or from transformers, under AdamW.

    cpu_torch.py MODEL.json hand-eager|hand-compile|hf fp32|bf16 THREADS BATCH SEQ_LEN

Prints `ready SECONDS` when the first step is done, counted from the process's start; then, for each line `N` on
standard input, runs N steps and prints their seconds. bf16 is autocast over fp32 parameters, which is what one gets
by following PyTorch's documentation. No dropout, no clipping of gradients; AdamW is the fused one.
"""
import json
import resource
import sys
import time

BEGIN = time.time()

import torch  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from torch_decoder import Decoder  # noqa: E402


def library(m):
    """The same model from transformers."""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
    if m["position"] == "learned":
        return GPT2LMHeadModel(GPT2Config(
            vocab_size=m["vocab_size"], n_positions=m["max_seq_len"], n_embd=m["hidden_size"], n_layer=m["n_layers"],
            n_head=m["n_heads"], n_inner=m["ffn_size"], resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False))
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=m["vocab_size"], hidden_size=m["hidden_size"], intermediate_size=m["ffn_size"],
        num_hidden_layers=m["n_layers"], num_attention_heads=m["n_heads"], num_key_value_heads=m["n_kv_heads"],
        max_position_embeddings=m["max_seq_len"], rms_norm_eps=m["norm_eps"], tie_word_embeddings=True,
        use_cache=False))


def make_step(m, kind, dtype, batch, seq_len):
    """(parameters, a function that runs one step)"""
    torch.manual_seed(1)
    tokens = torch.randint(m["vocab_size"], (batch, seq_len + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    if kind == "hf":
        model = library(m)

        def loss_of():
            logits = model(input_ids=inputs).logits
            return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
    else:
        model = Decoder(m, seq_len)
        forward = torch.compile(model) if kind == "hand-compile" else model

        def loss_of():
            return forward(inputs, targets)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16"):
            loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()
    return sum(p.numel() for p in model.parameters()), step


def main():
    path, kind, dtype, threads, batch, seq_len = sys.argv[1:7]
    torch.set_num_threads(int(threads))
    with open(path, encoding="utf-8") as file:
        m = json.load(file)
    n_parameters, step = make_step(m, kind, dtype, int(batch), int(seq_len))
    assert n_parameters == m["parameters"], f"{n_parameters} parameters, lmtrain has {m['parameters']}"
    loss = step()
    assert 0 < loss < 100, loss
    print(f"ready {time.time() - BEGIN:.2f}", flush=True)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            begin = time.perf_counter()
            step()
            seconds.append(f"{time.perf_counter() - begin:.6f}")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(peak, *seconds, flush=True)


main()
