#!/usr/bin/env python3
"""A Hugging Face folder whose layers' matrices are e4m3 with a scale of each 128 x 128, as DeepSeek publishes them.

    fp8_folder.py FROM CODED PLAIN

FROM has weights of bf16 in model.safetensors. CODED has q_proj.weight and the others as F8_E4M3 beside weight_scale_inv (fp32),
and says so in its config.json; PLAIN has what these stand for, in fp32. All other files are FROM's.
"""
import json
import math
import os
import shutil
import struct
import sys

BLOCK, MOST = 128, 448.0
NUMBERS = [math.ldexp(c, -9) if c < 8 else math.ldexp(8 + c % 8, c // 8 - 10) for c in range(127)]


def read(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    header.pop("__metadata__", None)
    return {k: (v["dtype"], v["shape"], data[slice(*v["data_offsets"])]) for k, v in header.items()}


def write(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def fp32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def code_of(x):
    low, high = 0, 126  # the nearest number; a tie goes to the lower one, which is as good here
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if NUMBERS[middle] <= x else (low, middle)
    return high if NUMBERS[high] - x < x - NUMBERS[low] else low


def coded(shape, data):
    """Codes, scales, and what they stand for."""
    rows, cols = shape
    bits = struct.unpack(f"<{rows * cols}H", data)
    values = struct.unpack(f"<{rows * cols}f", b"".join(struct.pack("<I", b << 16) for b in bits))
    codes, plain, scales = bytearray(rows * cols), [0] * (rows * cols), []
    for top in range(0, rows, BLOCK):
        for left in range(0, cols, BLOCK):
            block = [r * cols + c for r in range(top, min(top + BLOCK, rows)) for c in range(left, min(left + BLOCK, cols))]
            scale = fp32(max(abs(values[i]) for i in block) / MOST) or 1.0
            scales.append(scale)
            for i in block:
                code = code_of(abs(values[i]) / scale)
                sign = values[i] < 0
                codes[i] = code | 0x80 * sign
                plain[i] = -NUMBERS[code] * scale if sign else NUMBERS[code] * scale
    shape = [-(-rows // BLOCK), -(-cols // BLOCK)]
    return bytes(codes), (shape, struct.pack(f"<{len(scales)}f", *scales)), struct.pack(f"<{len(plain)}f", *plain)


def main():
    source, to_coded, to_plain = sys.argv[1:]
    tensors = {to_coded: {}, to_plain: {}}
    for name, (dtype, shape, data) in read(os.path.join(source, "model.safetensors")).items():
        if "_proj.weight" not in name:
            tensors[to_coded][name] = tensors[to_plain][name] = (dtype, shape, data)
            continue
        assert dtype == "BF16", name
        codes, (blocks, scales), plain = coded(shape, data)
        tensors[to_coded][name] = ("F8_E4M3", shape, codes)
        tensors[to_coded][name + "_scale_inv"] = ("F32", blocks, scales)
        tensors[to_plain][name] = ("F32", shape, plain)
    for folder, content in tensors.items():
        shutil.copytree(source, folder)
        write(os.path.join(folder, "model.safetensors"), content)
    path = os.path.join(to_coded, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [BLOCK, BLOCK],
                                     "activation_scheme": "dynamic"}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)


main()
