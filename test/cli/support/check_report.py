"""check_report.py FILE RUN... - what `lmtrain report` wrote, a page or JSON, holds what metrics.jsonl has"""
import json
import math
import re
import sys

PAGE_BYTES = 2000000


def load(path):
    """The data and whether they are a page's."""
    text = open(path, encoding="utf-8").read()
    if not text.startswith("<!doctype html>"):
        return json.loads(text), False
    if len(text.encode()) > PAGE_BYTES:
        sys.exit(f"{path} has {len(text.encode())} bytes")
    # Nothing is loaded from elsewhere: addresses are in comments and messages of Chart.js alone.
    if re.search(r'<(script|link|img)[^>]*\b(src|href)=|url\(|@import', text.replace("data:", "")):
        sys.exit(f"{path} loads something")
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    return json.loads(data.group(1)), True


def records(run):
    for line in open(f"{run}/metrics.jsonl", encoding="utf-8"):
        try:
            yield json.loads(line)
        except ValueError:
            pass


def near(a, b, is_page):
    if a is None or b is None:
        return a is None and b is None
    return math.isclose(a, b, rel_tol=1e-6) if is_page else a == b


def check_rows(table, lines, is_page, run):
    """Each row is a line with all its numbers. Of a thinned table the extremes of each column are there."""
    columns = table["columns"]
    if table["lines"] != len(lines):
        sys.exit(f"{run}: {table['lines']} lines, not {len(lines)}")
    by_step = {line["step"]: line for line in lines}
    for i, step in enumerate(columns["step"]):
        for name, column in columns.items():
            value = by_step[step].get(name)
            if isinstance(value, dict):
                value = sum(v for v in value.values()) if name == "exposed_s" else None
            elif name == "exposed_max_s":
                value = by_step[step].get("exposed_max", {}).get("seconds")
            if name != "exposed_s" and not near(column[i], value, is_page):
                sys.exit(f"{run}: {name} at step {step} is {column[i]}, not {value}")
    for name, column in columns.items():
        all_values = [line[name] for line in lines if isinstance(line.get(name), (int, float))]
        drawn = [v for v in column if v is not None]
        if all_values and not (near(min(drawn), min(all_values), is_page) and near(max(drawn), max(all_values), is_page)):
            sys.exit(f"{run}: extremes of {name} are {min(drawn)}, {max(drawn)}, not {min(all_values)}, {max(all_values)}")
    return len(columns["step"])


def main():
    data, is_page = load(sys.argv[1])
    folders = sys.argv[2:]
    drawn = lines = evaluations = events = stages = lanes = scores = 0
    if len(data["runs"]) != len(folders):
        sys.exit(f"{len(data['runs'])} runs")
    for run, folder in zip(data["runs"], folders):
        of = list(records(folder))
        steps = [line for line in of if "loss" in line]
        drawn += check_rows(run["steps"], steps, is_page, folder)
        lines += len(steps)
        for table in run["evaluations"]:
            evaluations += check_rows(table, [line for line in of if "eval_loss" in line and line.get("eval_set", "") == table.get("set", "")],
                                      is_page, folder)
        texts = [line["text"] for line in of if "event" in line][run["events_left_out"]:]
        if [e["text"] for e in run["events"]] != texts or (run["events_left_out"] and not (is_page and texts)):
            sys.exit(f"{folder}: other events")
        events += len(run["events"])
        stages += len(run.get("memory", []))
        for stage in run.get("memory", []):
            if not any(s["segment"] == "weights" and s["bytes"] > 0 for s in stage["segments"]):
                sys.exit(f"{folder}: no weights")
        lanes += len(run.get("timeline", {}).get("lanes", []))
        scores += len(run["scores"])
    print(f"{len(folders)} run{'s' if len(folders) > 1 else ''}, {drawn} steps drawn of {lines}, {evaluations} evaluations, {events} events, "
          f"{stages} stages of memory, {lanes} lanes, {scores} scores"
          + ("; differ: " + " ".join(d["key"] for d in data["differences"]) if data["differences"] else "") + ("" if is_page else "; exact"))


main()
