#!/usr/bin/env python3
"""safetensors.py - our reader and writer against the Python library, both ways

Builds a small C program around lib/ckpt (with CC, default gcc), then
  1. has it copy files that the library wrote, tensor by tensor, and compares all bytes of the two files;
  2. gives it files broken in many ways, of which whatever the library refuses must be refused;
  3. has it save a checkpoint of two ranks and reads its files with the library.
Run from the repository's root. Prints what it checked; exit status 1 at the first difference.
"""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

# This file has the library's name, and its folder comes first.
sys.path = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))]

import numpy
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ckpt/safetensors.h"
#include "ckpt/store.h"

static int copy(const char *from, const char *to, struct err *err)
{
    struct safetensors *file;
    struct safetensors_writer *writer;
    uint64_t n_bytes, hash;

    if (safetensors_open(&file, from, err) < 0)
        return -1;
    safetensors_place(file->index.tensors, file->index.n_tensors);
    if (!to) {
        safetensors_close(file);
        return 0;
    }
    /* Reading needs the offsets of the file, writing those of ours: they must be the same. */
    if (safetensors_create(&writer, to, file->index.tensors, file->index.n_tensors, file->index.meta,
                           file->index.n_meta, err) < 0)
        return -1;
    for (int i = 0; i < file->index.n_tensors; i++) {
        const struct safetensors_tensor *tensor = &file->index.tensors[i];
        size_t n = tensor->end - tensor->begin;
        char *data = malloc(n + 1);

        if (safetensors_read(file, tensor, 0, data, n, err) < 0 ||
            safetensors_write(writer, data, n, err) < 0)
            return -1;
        free(data);
    }
    safetensors_close(file);
    return safetensors_finish(writer, &n_bytes, &hash, err);
}

static int save(const char *folder, struct err *err)
{
    static float w[6 * 4];
    int64_t n = 42;
    struct store_save *saves[2];
    struct store_slice slices[2][2] = {
        { { "w", DTYPE_F32, 2, 6, 4, 0, 3, 0, 4, w }, { "n", DTYPE_I64, 1, 1, 1, 0, 1, 0, 1, &n } },
        { { "w", DTYPE_F32, 2, 6, 4, 3, 6, 0, 4, w + 12 } },
    };

    for (int i = 0; i < 24; i++)
        w[i] = (float)i;
    for (int rank = 0; rank < 2; rank++)
        if (store_save_start(&saves[rank], folder, rank, slices[rank], 2 - rank, err) < 0 ||
            store_save_wait(saves[rank], err) < 0)
            return -1;
    return store_commit(folder, 2, 5, "{\"seed\":1}", err);
}

int main(int argc, char **argv)
{
    struct err err = { 0 };
    int failed = !strcmp(argv[1], "save") ? save(argv[2], &err)
                                          : copy(argv[2], argc > 3 ? argv[3] : NULL, &err);

    if (failed)
        fprintf(stderr, "%s\n", err.text);
    return failed ? 1 : 0;
}
"""

DTYPES = [torch.bool, torch.uint8, torch.int8, torch.float8_e5m2, torch.float8_e4m3fn, torch.int16,
          torch.uint16, torch.float16, torch.bfloat16, torch.int32, torch.uint32, torch.float32,
          torch.float64, torch.int64, torch.uint64]


def build(folder):
    source = os.path.join(folder, "program.c")
    program = os.path.join(folder, "program")
    with open(source, "w") as out:
        out.write(PROGRAM)
    subprocess.check_call([*os.environ.get("CC", "gcc").split(), "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g",
                           "-Ilib", "-pthread", "-o", program, source, "build/liblmtrain.a",
                           "-lxxhash", "-lm"])
    return program


def run(program, *arguments):
    return subprocess.run([program, *arguments], capture_output=True, text=True)


def expect(condition, text):
    if not condition:
        print("FAILED:", text)
        sys.exit(1)


def random_tensors(rng):
    tensors = {}
    for i in range(rng.randrange(0, 12)):
        shape = [rng.randrange(0, 5) for _ in range(rng.randrange(0, 4))]
        dtype = rng.choice(DTYPES)
        data = torch.randint(0, 2 if dtype is torch.bool else 100, shape, dtype=torch.int64)
        name = rng.choice(["a", "B.weight", "é", '"quoted"', "tab\t", "😀", "x/y", ""]) + str(i)
        tensors[name] = data.to(torch.float32).to(dtype) if "float8" in str(dtype) else data.to(dtype)
    return tensors


def check_copies(program, folder, rng):
    theirs, ours = os.path.join(folder, "theirs"), os.path.join(folder, "ours")
    for _ in range(100):
        metadata = rng.choice([None, {"format": "pt"}])
        safetensors.torch.save_file(random_tensors(rng), theirs, metadata)
        result = run(program, "copy", theirs, ours)
        expect(result.returncode == 0, result.stderr)
        with open(theirs, "rb") as a, open(ours, "rb") as b:
            expect(a.read() == b.read(), "the copy differs: " + theirs)
    print("100 files of the library copied, byte for byte")


def broken(good, rng):
    n = struct.unpack("<Q", good[:8])[0]
    header, data = bytearray(good[8:8 + n]), good[8 + n:]
    kind = rng.randrange(6)
    if kind == 0:
        return good[:rng.randrange(len(good))]
    if kind == 1:
        return good + b"x"
    if kind == 2:
        return struct.pack("<Q", rng.choice([0, 1, n - 1, n + 1, 2**63, 2**64 - 1])) + good[8:]
    if kind == 3:
        header[rng.randrange(n)] = rng.randrange(256)
        return good[:8] + bytes(header) + data
    if kind == 4:
        at = rng.randrange(n)
        header[at:at + 1] = header[at:at + 1] * 2
        return struct.pack("<Q", n + 1) + bytes(header) + data
    at = rng.randrange(n)
    del header[at]
    return struct.pack("<Q", n - 1) + bytes(header) + data


def check_broken(program, folder, rng):
    path = os.path.join(folder, "broken")
    n_refused = n_taken = n_stricter = 0
    good = safetensors.torch.save({"a": torch.zeros(2, 3), "b": torch.zeros(3, dtype=torch.int16),
                                   "c": torch.zeros(0)}, {"format": "pt"})
    for _ in range(600):
        content = broken(good, rng)
        with open(path, "wb") as out:
            out.write(content)
        try:
            safetensors.deserialize(content)
            theirs = True
        except safetensors.SafetensorError:
            theirs = False
        result = run(program, "check", path)
        expect(result.returncode in (0, 1), "the program died: " + result.stderr)
        ours = result.returncode == 0
        if ours and not theirs:
            keep = os.path.join(tempfile.gettempdir(), "safetensors-difference")
            with open(keep, "wb") as out:
                out.write(content)
            expect(False, "the library refuses what we take: " + keep)
        n_refused += not theirs
        n_taken += ours
        n_stricter += theirs and not ours
    print("600 broken files: %d refused by both, %d harmless to both, %d by us alone" %
          (n_refused, n_taken, n_stricter))


def check_checkpoint(program, folder):
    checkpoint = os.path.join(folder, "step-00000005")
    result = run(program, "save", checkpoint)
    expect(result.returncode == 0, result.stderr)
    rows = []
    with open(os.path.join(checkpoint, "manifest.json")) as text:
        manifest = json.load(text)
    for file, r0, r1, c0, c1, _ in manifest["tensors"]["w"]["slices"]:
        name = manifest["files"][file]["name"]
        with safetensors.safe_open(os.path.join(checkpoint, name), "numpy") as tensors:
            expect(tensors.metadata() == {"format": "pt"}, "metadata")
            rows.append(tensors.get_tensor("w[%d:%d,%d:%d]" % (r0, r1, c0, c1)))
    whole = numpy.concatenate(rows)
    expect((whole == numpy.arange(24, dtype=numpy.float32).reshape(6, 4)).all(), "w differs")
    n = safetensors.numpy.load_file(os.path.join(checkpoint, "rank-00000.safetensors"))["n"]
    expect(n.tolist() == [42] and n.dtype == numpy.int64, "n differs")
    print("a checkpoint of two ranks read by the library")


def main():
    seed = int(os.environ.get("LMTRAIN_TEST_SEED", random.randrange(1 << 30)))
    print("LMTRAIN_TEST_SEED=%d, safetensors %s" % (seed, safetensors.__version__))
    rng = random.Random(seed)
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        program = build(folder)
        check_copies(program, folder, rng)
        check_broken(program, folder, rng)
        check_checkpoint(program, folder)


main()
