"""PyTorch's side of `scripts/gpu-check speed`: whole training steps of a decoder written by hand, on one GPU.

    gpu_torch.py MODEL.json --seq-len T --global-batch N --micro-batch N --steps N --weights fp32|bf16 --compile whole|layer
                 [--checkpoint]

The model is GPT-2-like or LLaMA-like, as MODEL.json's fields (those of a job's `model:`) say; compiled by
torch.compile, attention is SDPA, AdamW the fused one, gradients are accumulated over micro-batches and clipped. With
--weights fp32 it is autocast to bf16 over fp32 parameters; with bf16 parameters, gradients and both moments are bf16.
The tokens are random. It prints one line of JSON: the seconds of each step by CUDA events, memory, versions. Where
memory is too small for a micro-batch it says so with status 4.
"""
import argparse
import json
import statistics
import sys

import torch
from torch import nn

from torch_decoder import Decoder, loss_of


def make_model(m, options):
    with torch.device(options.device):
        model = Decoder(m, options.seq_len)
    model.checkpoint = options.checkpoint
    if options.weights == "bf16":
        model.to(torch.bfloat16)
    if options.compile == "layer":
        for layer in model.layers:
            layer.compile()
        model.loss_of = torch.compile(loss_of)
    return torch.compile(model) if options.compile == "whole" else model


def make_step(m, options):
    torch.manual_seed(1)
    model = make_model(m, options)
    model.train()
    tokens = torch.randint(m["vocab_size"], (options.global_batch, options.seq_len + 1), device=options.device)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    n = options.global_batch // options.micro_batch
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    autocast = torch.autocast(options.device, dtype=torch.bfloat16, enabled=options.weights == "fp32")

    def step():
        total = torch.zeros((), device=options.device)
        for x, y in zip(inputs.split(options.micro_batch), targets.split(options.micro_batch)):
            with autocast:
                loss = model(x, y) / n
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total
    return sum(p.numel() for p in model.parameters()), step


def time_steps(step, n_steps):
    """Seconds of each step, between events on the GPU's own clock."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(n_steps + 1)]
    marks[0].record()
    for mark in marks[1:]:
        loss = step()
        mark.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) / 1e3 for a, b in zip(marks, marks[1:])], loss.item()


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="JSON file of the model's fields")
    for name, value in (("seq-len", 1024), ("global-batch", 8), ("micro-batch", 8), ("steps", 5), ("warm", 4)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--weights", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--compile", choices=("whole", "layer", "none"), default="whole")
    parser.add_argument("--checkpoint", action="store_true", help="compute each layer's forward again in the backward")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: one step, to try the program")
    return parser.parse_args()


def main():
    options = parse()
    if options.global_batch % options.micro_batch:
        sys.exit("gpu_torch: the global batch is no multiple of the micro-batch")
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("gpu_torch: PyTorch sees no GPU")
    torch.set_float32_matmul_precision("high")
    with open(options.model, encoding="utf-8") as file:
        m = json.load(file)
    try:
        n_parameters, step = make_step(m, options)
        if options.device == "cpu":
            print(json.dumps({"parameters": n_parameters, "loss": step().item()}))
            return
        for _ in range(options.warm):
            step()
        seconds, loss = time_steps(step, options.steps)
    except torch.cuda.OutOfMemoryError as error:
        print(f"gpu_torch: {str(error).split(' See ')[0].splitlines()[0]}", file=sys.stderr)
        sys.exit(4)
    if not 0 < loss < 100:
        sys.exit(f"gpu_torch: the loss is {loss}")
    print(json.dumps({"parameters": n_parameters, "loss": loss, "step_seconds": seconds,
                      "median_step_seconds": statistics.median(seconds),
                      "memory_bytes": torch.cuda.max_memory_allocated(), "reserved_bytes": torch.cuda.max_memory_reserved(),
                      "torch": torch.__version__, "cuda": torch.version.cuda, "gpu": torch.cuda.get_device_name()}))


main()
