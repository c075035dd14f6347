"""The table of scripts/bench/net: net.py FOLDER LOAD SETTINGS RATES... -- LAYOUTS..., FOLDER has LAYOUT-RATE.json, a line a turn."""
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys


def turns(folder, layout, rate):
    with open(os.path.join(folder, f"{layout}-{rate}.json"), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def waited_for(all_turns):
    """What rank 0 waited for, milliseconds of a step, the longest first."""
    total = {}
    for turn in all_turns:
        for item in turn["exposed"]:
            name = item["op"] + (f" {item['axis']}" if "axis" in item else "")
            total[name] = total.get(name, 0.0) + 1e3 * item["seconds"] / len(all_turns)
    return ", ".join(f"{name} {ms:.0f}" for name, ms in sorted(total.items(), key=lambda pair: -pair[1]) if ms >= 1)


def spread(values):
    return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def main():
    folder, load, settings = sys.argv[1:4]
    split = sys.argv.index("--")
    rates, layouts = ["none", *sys.argv[4:split]], sys.argv[split + 1:]
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo", encoding="utf-8") if line.startswith("model name")), "?")
    commit = subprocess.run(["git", "describe", "--always", "--dirty", "--exclude=*"], capture_output=True, text=True, check=True).stdout.strip()
    print("# A training step over slow links\n")
    print(f"{datetime.date.today()}, commit {commit}, {os.cpu_count()} cores ({cpu}), Linux {platform.release()}. Load before: {load}. "
          f"Command: `{settings} scripts/bench/net`.\n")
    print("Two ranks of one thread, each on a host (namespace) with a core of its own, over sockets; links shaped at both ends, or not "
          "at all (none). Milliseconds of a step, medians of all turns, in brackets the least and the most; what rank 0 waited for, "
          "means. Steps of one layout do the same work at each rate; layouts are not compared with each other.\n")
    print("| layout | link | step, ms | waiting, ms | of it | waiting for, ms |\n|---|---|---|---|---|---|")
    for layout in layouts:
        for rate in rates:
            all_turns = turns(folder, layout, rate)
            steps = [1e3 * s for turn in all_turns for s in turn["step_seconds"]]
            wait = statistics.median(1e3 * turn["wait_seconds"] for turn in all_turns)
            print(f"| {layout} | {rate} | {spread(steps)} | {wait:.0f} | {100 * wait / statistics.median(steps):.0f} % | "
                  f"{waited_for(all_turns)} |")


main()
