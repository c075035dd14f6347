"""The tables of scripts/bench/net: net.py FOLDER LOAD SETTINGS APPEND RATES... -- LAYOUTS... -- VARIANTS...

FOLDER has LAYOUT-RATE-VARIANT.json, a line a turn, in the order of rounds; relay-RATE.json, if there was a relay.
"""
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys

TITLE = """# A training step over slow links

Ranks of one thread, each on a host (namespace) that is pinned to a core, over sockets; links shaped at both ends, or not at all
(none). Milliseconds of a step, medians of all turns, in brackets the least and the most. `ratio`: the first variant's step by this
one's in the same round, above 1 is faster; median, least and most of the rounds. `computing` is the step without `waiting`, of rank
0; what ranks waited for are means, of rank 0 and of the rank that waited most. Layouts and rates are not compared with each other."""


def read_lines(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def waited_for(turns):
    """Milliseconds of a step, of rank 0 and of the rank with most, the longest first."""
    first, most = {}, {}
    for turn in turns:
        for item in turn.get("exposed_ranks", []):
            name = item["op"] + (f" {item['axis']}" if "axis" in item else "")
            first[name] = first.get(name, 0.0) + 1e3 * item["rank_seconds"][0] / len(turns)
            most[name] = most.get(name, 0.0) + 1e3 * max(item["rank_seconds"]) / len(turns)
    return ", ".join(f"{name} {first[name]:.0f} ({most[name]:.0f})" for name in sorted(most, key=lambda name: -most[name]) if most[name] >= 1)


def spread(values, form="{:.0f}"):
    return f"{form} ({form} to {form})".format(statistics.median(values), min(values), max(values))


def row(turns, base):
    if not turns:
        return "failed | | | | |"
    steps = [1e3 * s for turn in turns for s in turn["step_seconds"]]
    medians = [statistics.median(turn["step_seconds"]) for turn in turns]
    ratios = [b / own for b, own in zip((statistics.median(turn["step_seconds"]) for turn in base), medians)]
    wait = statistics.median(1e3 * turn["wait_seconds"] for turn in turns)
    ratio = "1" if base is turns else spread(ratios, "{:.2f}") if ratios else ""
    return f"{spread(steps)} | {ratio} | {statistics.median(steps) - wait:.0f} | {wait:.0f} | {waited_for(turns)} |"


def relays(folder, rates):
    for rate in rates:
        for relay in read_lines(os.path.join(folder, f"relay-{rate}.json")):
            print(f"\nThe relay of {rate}: {relay['cpu_seconds']:.1f} s of CPU for {relay['frames']:,} frames, {relay['bytes'] / 1e6:,.0f} MB; "
                  f"{relay['dropped']} dropped.")


def main():
    folder, load, settings, append = sys.argv[1:5]
    words = sys.argv[5:]
    first, second = [i for i, word in enumerate(words) if word == "--"]
    rates, layouts, variants = words[:first], words[first + 1:second], words[second + 1:]
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo", encoding="utf-8") if line.startswith("model name")), "?")
    commit = subprocess.run(["git", "describe", "--always", "--dirty", "--exclude=*"], capture_output=True, text=True, check=True).stdout.strip()
    if append != "1":
        print(TITLE)
    print(f"\n## {', '.join(layouts)}{': ' if len(variants) > 1 else ''}{', '.join(variants) if len(variants) > 1 else ''}\n")
    print(f"{datetime.date.today()}, commit {commit}, {os.cpu_count()} cores ({cpu}), Linux {platform.release()}. Load before: {load}. "
          f"Command: `{settings} scripts/bench/net`.\n")
    print("| layout | link | variant | step, ms | ratio | computing, ms | waiting, ms | waiting for, ms |\n|---|---|---|---|---|---|---|---|")
    for layout in layouts:
        for rate in rates:
            turns = {variant: read_lines(os.path.join(folder, f"{layout}-{rate}-{variant}.json")) for variant in variants}
            for variant in variants:
                print(f"| {layout} | {rate} | {variant} | {row(turns[variant], turns[variants[0]])}")
    relays(folder, rates)


main()
