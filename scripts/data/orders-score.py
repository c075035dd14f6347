#!/usr/bin/env python3
"""scripts/data/orders-score.py TEST.jsonl ANSWERS - how many answers are those of the rows, all of it right.

ANSWERS is what `lmtrain generate --json` printed, an object a line, in the order of the rows.
"""
import json
import sys

rows = [json.loads(line) for line in open(sys.argv[1])]
answers = [json.loads(line)["text"] for line in open(sys.argv[2])]
if len(rows) != len(answers):
    sys.exit(f"{len(rows)} rows, {len(answers)} answers")
right = sum(answer.strip() == row["output"] for row, answer in zip(rows, answers))
print(f"{right} of {len(rows)}")
