#!/usr/bin/env python3
"""Rows of a task with a checkable answer: orders in plain sentences, to be answered as one line of fixed form.

    scripts/data/orders.py DIR [SEED]

writes DIR/train.jsonl (500 rows) and DIR/test.jsonl (100 rows of other sentences), each {"instruction": sentence,
"output": "CUSTOMER; COUNT x THING; DAY"}. No sentence is in both. A model that was never shown the form does not hit it;
one that was has to read the sentence to fill it.
"""
import json
import os
import random
import sys

NAMES = ["Mia", "Noah", "Ava", "Liam", "Zoe", "Omar", "Ines", "Kofi", "Lena", "Hugo", "Tara", "Ivan", "Rosa", "Finn",
         "Nina", "Paul", "Emma", "Yuki", "Adam", "Cleo", "Erik", "Gina", "Luis", "Vera"]
THINGS = ["lamp", "chair", "table", "kettle", "blanket", "mirror", "bottle", "basket", "candle", "clock", "pillow",
          "ladder", "bucket", "notebook", "umbrella", "hammer", "teapot", "curtain", "shelf", "carpet"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
WORDS = ["two", "three", "four", "five", "six", "seven", "eight", "nine"]
FORMS = ["Please send {n} {things} to {name} by {day}.",
         "{name} would like {n} {things}, to be delivered on {day}.",
         "On {day}, bring {name} {n} {things}.",
         "We need {n} {things} for {name}, and {day} is the day.",
         "{name} called: {n} {things} for {day}, please.",
         "Could you have {n} {things} ready for {name} on {day}?"]


def plural(thing):
    return "shelves" if thing == "shelf" else thing + "s"


def row(rng):
    name, thing, day, n = rng.choice(NAMES), rng.choice(THINGS), rng.choice(DAYS), rng.randrange(len(WORDS))
    sentence = rng.choice(FORMS).format(n=WORDS[n], things=plural(thing), name=name, day=day)
    return {"instruction": sentence, "output": f"{name}; {n + 2} x {thing}; {day}"}


def main():
    rng = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    rows = {}
    while len(rows) < 600:
        r = row(rng)
        rows[r["instruction"]] = r
    rows = list(rows.values())
    os.makedirs(sys.argv[1], exist_ok=True)
    for name, part in (("train", rows[:500]), ("test", rows[500:])):
        with open(os.path.join(sys.argv[1], name + ".jsonl"), "w") as out:
            out.writelines(json.dumps(r) + "\n" for r in part)


main()
