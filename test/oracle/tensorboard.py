#!/usr/bin/env python3
"""tensorboard.py - event files of lib/report read with the real TensorBoard

A small C program around lib/report writes a run of 20 steps, "resumes" it at step 11 in a second process
and evaluates on the way; TensorBoard must then show steps 1..20 once each, the later ones from the
second process. Run from the repository's root; exit status 1 at the first difference.
"""
import json
import os
import struct
import subprocess
import sys
import tempfile

# This file has the library's name, and its folder comes first.
sys.path = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))]

from tensorboard.backend.event_processing import event_accumulator
from tensorboard.plugins.hparams import metadata as hparams

PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include "report/metrics.h"

int main(int argc, char **argv)
{
    struct metrics *metrics;
    struct err err = { 0 };
    int first = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 1;

    static const struct events_hparam fields[] = { { "optimizer.lr", "3.0e-4" },
                                                   { "train.dtype", "bf16" },
                                                   { "model.bias", "false" } };

    if (metrics_open(&metrics, argv[1], first, &err) < 0 ||
        metrics_job(metrics, fields, 3, "model:\n  bias: false\n", &err) < 0)
        goto failed;
    for (int step = first; step <= 20; step++) {
        struct metrics_step one = { .step = step, .loss = 10.0 / step + first, .grad_norm = 0.1,
                                    .lr = 3e-4, .tokens = step * 1000ll, .tokens_per_s = 12345.6,
                                    .loss_mean = 10.0 / step, .elapsed_s = step,
                                    .step_s = 0.25, .mfu = 0.4, .memory_bytes = 1 << 30 };
        struct metrics_evaluation eval = { .step = step, .loss = 2.5 + first, .tokens = 100 };

        if (metrics_step(metrics, &one, &err) < 0)
            goto failed;
        if (step % 5 == 0 && metrics_eval(metrics, &eval, &err) < 0)
            goto failed;
    }
    if (first > 1 && metrics_end(metrics, true, &err) < 0)
        goto failed;
    metrics_close(metrics);
    return 0;
failed:
    fprintf(stderr, "%s\n", err.text);
    return 1;
}
"""


def build(folder):
    source, program = os.path.join(folder, "program.c"), os.path.join(folder, "program")
    with open(source, "w") as out:
        out.write(PROGRAM)
    subprocess.check_call([*os.environ.get("CC", "gcc").split(), "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-Ilib",
                           "-pthread", "-o", program, source, "build/liblmtrain.a", "-lcjson", "-lm"])
    return program


def as_float(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def expect(found, wanted, text):
    if found != wanted:
        print("FAILED: %s is %r, not %r" % (text, found, wanted))
        sys.exit(1)


def main():
    with tempfile.TemporaryDirectory() as folder:
        program = build(folder)
        run = os.path.join(folder, "run")
        subprocess.check_call([program, run])
        subprocess.check_call([program, run, "11"])
        events = event_accumulator.EventAccumulator(run, size_guidance={"scalars": 0, "tensors": 0})
        events.Reload()
        tags = ["eval/loss", "eval/perplexity", "memory/bytes", "speed/elapsed_s", "speed/mfu", "speed/step_s",
                "speed/tokens_per_s", "train/grad_norm", "train/loss", "train/loss_mean", "train/lr",
                "train/skipped", "train/tokens"]
        expect(sorted(events.Tags()["scalars"]), tags, "the list of tags")
        loss = events.Scalars("train/loss")
        expect([event.step for event in loss], list(range(1, 21)), "the list of steps")
        wanted = [as_float(10 / step + (1 if step < 11 else 11)) for step in range(1, 21)]
        expect([event.value for event in loss], wanted, "the loss")
        expect([(e.step, e.value) for e in events.Scalars("eval/loss")],
               [(5, 3.5), (10, 3.5), (15, 13.5), (20, 13.5)], "eval/loss")
        expect(events.Scalars("train/lr")[0].value, as_float(3e-4), "lr")
        expect(events.Tensors("job")[0].tensor_proto.string_val[0], b"    model:\n      bias: false\n", "the job")
        expect(events.SummaryMetadata("job").plugin_data.plugin_name, "text", "the job's plugin")
        start = hparams.parse_session_start_info_plugin_data(
            events.SummaryMetadata(hparams.SESSION_START_INFO_TAG).plugin_data.content)
        expect(start.hparams["optimizer.lr"].number_value, 3e-4, "a number")
        expect(start.hparams["train.dtype"].string_value, "bf16", "a text")
        expect(start.hparams["model.bias"].WhichOneof("kind"), "bool_value", "a flag")
        end = hparams.parse_session_end_info_plugin_data(
            events.SummaryMetadata(hparams.SESSION_END_INFO_TAG).plugin_data.content)
        expect(end.status, 1, "success")
        with open(os.path.join(run, "metrics.jsonl")) as lines:
            records = [json.loads(line) for line in lines]
        steps = [record for record in records if "loss" in record]
        expect([record["step"] for record in steps], list(range(1, 21)), "metrics.jsonl's steps")
        for record in steps:
            expect(float.fromhex(record["loss_hex"]), record["loss"], "loss_hex")
        expect([r["step"] for r in records if "eval_loss" in r], [5, 10, 15, 20], "its evaluations")
        print("20 steps, resumed at 11: %d tags agree" % len(tags))


main()
