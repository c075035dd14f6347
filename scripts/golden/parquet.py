#!/usr/bin/env python3
"""scripts/golden/parquet.py - write test/data/golden/*.parquet, and what pyarrow reads in them as .jsonl

Small files of every encoding, compression and shape of column that lib/data/parquet/parquet.h reads; test/oracle/parquet.py
compares far more of them. Needs pyarrow (scripts/venv).
"""
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDER = os.path.join(ROOT, "test", "data", "golden")
N = 30
TURNS = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))


def flat():
    return pa.table({
        "text": pa.array([None if i % 7 == 3 else "verse %d " % i * (i % 5) for i in range(N)], pa.string()),
        "word": pa.array(["In", "the", "beginning"][i % 3] for i in range(N)),
        "small": pa.array([None if i % 4 == 1 else i - 9 for i in range(N)], pa.int8()),
        "whole": pa.array([i * i * 12345678901 - 5 for i in range(N)], pa.int64()),
        "natural": pa.array([2 ** 32 - 1 - i for i in range(N)], pa.uint32()),
        "real": pa.array([i / 4 - 3 for i in range(N)], pa.float64()),
        "half": pa.array([i / 2 for i in range(N)], pa.float32()),
        "yes": pa.array([i % 3 == 0 for i in range(N)], pa.bool_()),
    })


def nested():
    return pa.table({
        "messages": pa.array([None if i % 9 == 5 else [{"role": "user", "content": None if i % 4 == 2 else str(i)},
                                                      None][:i % 3] for i in range(N)], TURNS),
        "lists": pa.array([[[1] * j for j in range(i % 4)] if i % 5 else None for i in range(N)],
                          pa.list_(pa.list_(pa.int16()))),
        "struct": pa.array([{"a": i, "b": {"c": ["x"] * (i % 3)}} if i % 6 else None for i in range(N)],
                           pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.list_(pa.string()))]))])),
        "map": pa.array([[(str(k), k) for k in range(i % 3)] for i in range(N)], pa.map_(pa.string(), pa.int32())),
    })


def plain(value, kind):
    if value is None:
        return None
    if pa.types.is_map(kind):
        return dict(value)
    if pa.types.is_list(kind):
        return [plain(v, kind.value_type) for v in value]
    if pa.types.is_struct(kind):
        return {f.name: plain(value[f.name], f.type) for f in kind}
    return int(value) if isinstance(value, float) and value == int(value) else value


def main():
    os.makedirs(FOLDER, exist_ok=True)
    delta = {"text": "DELTA_BYTE_ARRAY", "word": "DELTA_LENGTH_BYTE_ARRAY", "small": "DELTA_BINARY_PACKED",
             "whole": "DELTA_BINARY_PACKED", "natural": "DELTA_BINARY_PACKED", "real": "BYTE_STREAM_SPLIT",
             "half": "BYTE_STREAM_SPLIT", "yes": "RLE"}
    for name, table, options in (
            ("flat-snappy", flat(), dict(compression="snappy", row_group_size=11)),
            ("flat-plain", flat(), dict(compression="none", use_dictionary=False, write_page_checksum=True)),
            ("flat-delta", flat(), dict(compression="gzip", use_dictionary=False, column_encoding=delta)),
            ("nested-zstd", nested(), dict(compression="zstd", data_page_version="2.0")),
            ("nested-pages", nested(), dict(compression="snappy", data_page_size=20, write_batch_size=4,
                                            use_compliant_nested_type=False))):
        path = os.path.join(FOLDER, name + ".parquet")
        pq.write_table(table, path, store_schema=False, write_statistics=False, **options)
        rows = pq.read_table(path)
        with open(path[:-8] + ".jsonl", "w") as file:
            for row in rows.to_pylist():
                row = {f.name: plain(row[f.name], f.type) for f in rows.schema}
                file.write(json.dumps(row, separators=(",", ":"), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
