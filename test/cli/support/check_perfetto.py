"""check_perfetto.py TRACE_PROCESSOR FILE: Perfetto's trace_processor reads the timeline, drops nothing of it, and has its slices, with
their time, its flows and its values of counters."""
import csv
import json
import re
import subprocess
import sys
import tempfile

QUERY = """select (select count(*) from slice) as slices, (select sum(dur) from slice) as ns, (select count(*) from flow) as flows,
(select count(*) from counter) as counters,
(select coalesce(sum(value), 0) from stats where severity in ('error', 'data_loss')) as errors;
"""


def ask(processor, path):
    """The one row of the answer, which is CSV, or columns of text."""
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as query:
        query.write(QUERY)
        query.flush()
        made = subprocess.run([processor, "-q", query.name, path], stdout=subprocess.PIPE, check=True, text=True)
    rows = [row for row in csv.reader(made.stdout.splitlines()) if row and re.fullmatch(r"[-\d\s]+", "".join(row))]
    assert len(rows) == 1, made.stdout
    return [int(word) for word in " ".join(rows[0]).split()]


def main():
    with open(sys.argv[2], encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    slices, ns, flows, counters, errors = ask(sys.argv[1], sys.argv[2])
    kinds = [event["ph"] for event in events]
    assert errors == 0, errors
    assert slices == kinds.count("X"), (slices, kinds.count("X"))
    # It keeps nanoseconds; numbers of JSON are microseconds.
    assert abs(ns - 1000 * sum(event["dur"] for event in events if event["ph"] == "X")) <= slices, ns
    assert flows == kinds.count("s"), (flows, kinds.count("s"))
    assert counters == kinds.count("C"), (counters, kinds.count("C"))
    print(f"Perfetto has {slices} slices, {flows} flows, {counters} values")


main()
