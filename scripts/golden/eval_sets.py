#!/usr/bin/env python3
"""scripts/golden/eval_sets.py - test/eval/golden/*.parquet: an item or two of each benchmark as the hub's files have them

Columns and types are those of the published files; what they say is made up. test/eval/records_test.c reads them. Needs
pyarrow (scripts/venv).
"""
import os

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDER = os.path.join(ROOT, "test", "eval", "golden")
TEXT, TEXTS, WHOLE = pa.string(), pa.list_(pa.string()), pa.int64()

SETS = {
    "mmlu": ([("question", TEXT), ("subject", TEXT), ("choices", TEXTS), ("answer", WHOLE)],
             [("Two?", "virology", ["1", "2", "3", "4"], 1), ("Bone?", "anatomy", ["a", "b", "c", "d"], 3)]),
    "bbh": ([("input", TEXT), ("target", TEXT)], [("Back?", "(Yes)")]),
    "agieval": ([("query", TEXT), ("choices", TEXTS), ("gold", pa.list_(WHOLE))], [("Q: Which?", ["(A)x", "(B)y"], [1])]),
    "boolq": ([("question", TEXT), ("answer", pa.bool_()), ("passage", TEXT)], [("is it so", True, "It is.")]),
    "super_glue": ([("question", TEXT), ("passage", TEXT), ("idx", pa.int32()), ("label", WHOLE)],
                   [("is it so", "It is.", 0, 1)]),
    "gsm8k": ([("question", TEXT), ("answer", TEXT)], [("How many?", "1+1.\n#### 2")]),
    "ceval": ([("id", pa.int32()), ("question", TEXT), ("A", TEXT), ("B", TEXT), ("C", TEXT), ("D", TEXT), ("answer", TEXT),
               ("explanation", TEXT)], [(0, "问？", "甲", "乙", "丙", "丁", "C", "")]),
    "hellaswag": ([("ind", pa.int32()), ("activity_label", TEXT), ("ctx_a", TEXT), ("ctx_b", TEXT), ("ctx", TEXT),
                   ("endings", TEXTS), ("source_id", TEXT), ("split", TEXT), ("split_type", TEXT), ("label", TEXT)],
                  [(1, "Cooking", "A man cooks.", "he", "A man cooks. he", ["eats.", "flies.", "sings.", "is a pot."], "s",
                    "val", "indomain", "0")]),
    "piqa": ([("goal", TEXT), ("sol1", TEXT), ("sol2", TEXT), ("label", WHOLE)], [("Boil.", "water", "fire", 0)]),
    "humaneval": ([("task_id", TEXT), ("prompt", TEXT), ("canonical_solution", TEXT), ("test", TEXT), ("entry_point", TEXT)],
                  [("HumanEval/0", "def f():\n", "    return 1\n", "def check(f):\n    assert f() == 1\n", "f")]),
}


def main():
    for name, (columns, rows) in SETS.items():
        table = pa.table([pa.array([r[i] for r in rows], kind) for i, (_, kind) in enumerate(columns)],
                         names=[c for c, _ in columns])
        pq.write_table(table, os.path.join(FOLDER, name + ".parquet"), store_schema=False, write_statistics=False)


if __name__ == "__main__":
    main()
