#!/usr/bin/env python3
"""Parquet files written by pyarrow, as `lmtrain data rows` reads them: every row must be pyarrow's.

Types, nesting and nulls by encodings, compressions, page versions, page and row group sizes, checksums. Damaged files
must be refused or read, never crash. Prints, last, `N passed, N failed`.
"""
import datetime
import decimal
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LMTRAIN = os.environ.get("LMTRAIN", os.path.join(ROOT, "build", "lmtrain"))
N = 700
rng = random.Random(5)


def maybe(make, share):
    return [None if rng.random() < share else make() for _ in range(N)]


def text():
    return rng.choice(["", "a", "In the beginning", 'quote " and \\ and \n', "\u4e2d\u6587 \u00e9",
                       "x" * rng.randrange(300), str(rng.randrange(1000))])


def table(nulls):
    whole = lambda bits: (lambda: rng.randrange(-2 ** (bits - 1), 2 ** (bits - 1)))
    natural = lambda bits: (lambda: rng.randrange(2 ** bits))
    turn = lambda: {"role": rng.choice(["user", "assistant"]), "content": text() if rng.random() < 0.9 else None}
    turns = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    few = lambda make: (lambda: [make() for _ in range(rng.choice([0, 1, 2, 5]))])
    columns = {
        "text": (maybe(text, nulls), pa.string()),
        "large": (maybe(text, nulls), pa.large_string()),
        "bool": (maybe(lambda: rng.random() < 0.5, nulls), pa.bool_()),
        "i8": (maybe(whole(8), nulls), pa.int8()),
        "u8": (maybe(natural(8), nulls), pa.uint8()),
        "i32": (maybe(whole(32), nulls), pa.int32()),
        "u32": (maybe(natural(32), nulls), pa.uint32()),
        "i64": (maybe(whole(64), nulls), pa.int64()),
        "u64": (maybe(natural(64), nulls), pa.uint64()),
        "f32": (maybe(lambda: rng.uniform(-1, 1) * 10.0 ** rng.randrange(-30, 30), nulls), pa.float32()),
        "f64": (maybe(lambda: rng.uniform(-1, 1) * 10.0 ** rng.randrange(-300, 300), nulls), pa.float64()),
        "date": (maybe(lambda: datetime.date(1970, 1, 1) + datetime.timedelta(rng.randrange(-9999, 9999)), nulls),
                 pa.date32()),
        "decimal": (maybe(lambda: decimal.Decimal(rng.randrange(-10 ** 9, 10 ** 9)).scaleb(-4), nulls),
                    pa.decimal128(20, 4)),
        "fixed": (maybe(lambda: "".join(rng.choice("abc") for _ in range(5)).encode(), nulls), pa.binary(5)),
        "list": (maybe(few(whole(32)), nulls), pa.list_(pa.int32())),
        "texts": (maybe(few(lambda: text() if rng.random() < 0.8 else None), nulls), pa.list_(pa.string())),
        "lists": (maybe(few(few(whole(16))), nulls), pa.list_(pa.list_(pa.int16()))),
        "turns": (maybe(few(lambda: turn() if rng.random() < 0.9 else None), nulls), turns),
        "struct": (maybe(lambda: {"a": rng.randrange(9), "b": {"c": few(text)()}}, nulls),
                   pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.list_(pa.string()))]))])),
        "map": (maybe(lambda: [(str(k), rng.randrange(9)) for k in range(rng.choice([0, 1, 3]))], nulls),
                pa.map_(pa.string(), pa.int32())),
        "none": ([None] * N, pa.string()),
    }
    return pa.table({name: pa.array(values, type=kind) for name, (values, kind) in columns.items()})


def plain(value, kind):
    """A value of pyarrow's as our JSON has it."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {k: plain(v, kind.item_type) for k, v in value}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [plain(v, kind.value_type) for v in value]
    if pa.types.is_struct(kind):
        return {f.name: plain(value[f.name], f.type) for f in kind}
    if isinstance(value, datetime.date):
        return (value - datetime.date(1970, 1, 1)).days
    if isinstance(value, decimal.Decimal):
        return float(value)
    return value.decode() if isinstance(value, bytes) else value


def ours(path):
    done = subprocess.run([LMTRAIN, "data", "rows", path], capture_output=True)
    if done.returncode:
        return done.stderr.decode()
    return [json.loads(line) for line in done.stdout.decode().splitlines()]


def same(a, b, kind):
    if pa.types.is_float32(kind) and a is not None and b is not None:
        return abs(a - b) <= 1e-7 * abs(a)
    return a == b


def check(path):
    want = pq.read_table(path, use_threads=False)
    got = ours(path)
    if isinstance(got, str):
        return got
    rows = want.to_pylist(maps_as_pydicts=None)
    if len(rows) != len(got):
        return f"{len(got)} rows of {len(rows)}"
    for i, (row, mine) in enumerate(zip(rows, got)):
        for field in want.schema:
            value = plain(row[field.name], field.type)
            if not same(value, mine[field.name], field.type):
                return f"row {i + 1}, {field.name}: {mine[field.name]!r}, expected {value!r}"
    return None


def damage(path, folder):
    """Bytes turned and files cut: an exit status of 0 or 3, nothing else."""
    with open(path, "rb") as file:
        data = file.read()
    for i in range(60):
        bad = bytearray(data)
        if i % 3:
            for _ in range(rng.choice([1, 3, 20])):
                bad[rng.randrange(len(bad)) if i % 2 else len(bad) - 1 - rng.randrange(3000)] = rng.randrange(256)
        else:
            bad = bad[:rng.randrange(len(bad))]
        name = os.path.join(folder, "bad.parquet")
        with open(name, "wb") as file:
            file.write(bad)
        status = subprocess.run([LMTRAIN, "data", "rows", name], capture_output=True).returncode
        if status not in (0, 3):
            return f"status {status} at damage {i}"
    return None


def main():
    passed = failed = 0
    whole = {"nulls": table(0.2), "dense": table(0), "rare": table(0.97)}
    cases = []
    for (name, t), version, codec in itertools.product(whole.items(), ("1.0", "2.0"),
                                                       ("none", "snappy", "gzip", "zstd")):
        cases.append((f"{name} pages {version} {codec}", t, dict(data_page_version=version, compression=codec)))
    for version, dictionary, page in itertools.product(("1.0", "2.0"), (True, False), (64, 1000, 1 << 20)):
        cases.append((f"pages of {page}, {version}, dictionary {dictionary}", whole["nulls"],
                      dict(data_page_version=version, use_dictionary=dictionary, data_page_size=page,
                           write_batch_size=17, row_group_size=251, write_page_checksum=True)))
    encodings = {
        "DELTA_BINARY_PACKED": ["i8", "i32", "u32", "i64", "u64", "date"],
        "DELTA_LENGTH_BYTE_ARRAY": ["text", "large", "none"],
        "DELTA_BYTE_ARRAY": ["text", "large", "fixed"],
        "BYTE_STREAM_SPLIT": ["f32", "f64", "i32", "i64", "fixed"],
        "RLE": ["bool"],
        "PLAIN": ["text", "i32", "bool", "f64"],
    }
    for (encoding, columns), version, t in itertools.product(encodings.items(), ("1.0", "2.0"), ("nulls", "dense")):
        cases.append((f"{encoding} {t} {version}", whole[t].select(columns),
                      dict(use_dictionary=False, column_encoding=dict.fromkeys(columns, encoding),
                           data_page_version=version, data_page_size=900, write_batch_size=64)))
    cases.append(("old lists", whole["nulls"], dict(use_compliant_nested_type=False, version="1.0")))
    cases.append(("no rows", whole["nulls"].slice(0, 0), {}))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "t.parquet")
        for name, t, options in cases:
            pq.write_table(t, path, **options)
            wrong = check(path)
            passed, failed = passed + (not wrong), failed + bool(wrong)
            if wrong:
                print(f"  FAIL {name}: {wrong[:300]}")
        for codec in ("none", "snappy", "zstd"):
            pq.write_table(whole["nulls"].slice(0, 60), path, compression=codec)
            wrong = damage(path, folder)
            passed, failed = passed + (not wrong), failed + bool(wrong)
            if wrong:
                print(f"  FAIL damaged, {codec}: {wrong}")
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
