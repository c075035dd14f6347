"""One rank of PyTorch's data parallelism over gloo, for scripts/bench/net: the decoder of torch_decoder.py under AdamW.

    RANK=R WORLD_SIZE=N MASTER_ADDR=A MASTER_PORT=P net_torch.py MODEL.json ddp|powersgd MICRO_BATCH N_MICRO_BATCHES SEQ_LEN STEPS

One thread; bf16 is autocast over fp32 parameters. DistributedDataParallel as it comes: buckets of 25 MiB, gradients in fp32,
exchanged in the last micro-batch's backward (no_sync before). powersgd is its hook of rank 8, with error feedback and warm start,
from the third step on. Rank 0 prints one line of JSON: seconds of each step, and of steps without any exchange.
"""
import json
import os
import statistics
import sys
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from torch_decoder import Decoder

N_WARM, N_ALONE = 4, 3


def main():
    path, hook, micro_batch, n_micro_batches, seq_len, n_steps = sys.argv[1:7]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with open(path, encoding="utf-8") as file:
        m = json.load(file)
    torch.manual_seed(1)
    decoder = Decoder(m, int(seq_len))
    n_parameters = sum(p.numel() for p in decoder.parameters())
    assert n_parameters == m["parameters"], f"{n_parameters} parameters, lmtrain has {m['parameters']}"
    model = DistributedDataParallel(decoder)
    if hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(process_group=None, matrix_approximation_rank=8, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=1e-4, fused=True)
    torch.manual_seed(2 + dist.get_rank())
    tokens = torch.randint(m["vocab_size"], (int(n_micro_batches), int(micro_batch), int(seq_len) + 1))

    def step(exchanges):
        for i, rows in enumerate(tokens):
            last = exchanges and i + 1 == len(tokens)
            with nullcontext() if last else model.no_sync():
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = model(rows[:, :-1].contiguous(), rows[:, 1:].contiguous()) / len(tokens)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    def timed(exchanges):
        dist.barrier()
        begin = time.perf_counter()
        step(exchanges)
        return time.perf_counter() - begin

    for _ in range(N_WARM):
        assert 0 < step(True) < 100
    seconds = [timed(True) for _ in range(int(n_steps))]
    alone = statistics.median(timed(False) for _ in range(N_ALONE))
    if dist.get_rank() == 0:
        print(json.dumps({"step_seconds": seconds, "wait_seconds": max(0.0, statistics.median(seconds) - alone), "exposed": [],
                          "exposed_ranks": []}), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # the interpreter's end waits for gloo's threads


main()
