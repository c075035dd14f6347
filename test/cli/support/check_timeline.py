"""check_timeline.py FILE [SLACK_US]: slices of a track follow each other, a flow has both its ends, in slices and in order
(measured clocks within SLACK_US), tracks have names, counters are not negative, and of each rank that is predicted and measured the
same ops of the same actions are there."""
import collections
import json
import sys

ROUNDED_US = 0.002


def check(events, slack):
    tracks, flows, names = collections.defaultdict(list), collections.defaultdict(dict), set()
    ops = collections.defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0 and event["ts"] >= 0, event
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
            if "args" in event:
                ops[event["pid"]].append((event["args"]["action"], event["args"]["op"]))
        elif event["ph"] in "sf":
            assert event["ph"] not in flows[event["id"]], event
            flows[event["id"]][event["ph"]] = event
        elif event["ph"] == "M":
            names.add((event["pid"], event.get("tid"), event["name"]))
        else:
            assert event["ph"] == "C" and event["args"]["bytes"] >= 0, event
    for (pid, tid), spans in tracks.items():
        spans.sort()
        assert all(b[0] >= a[1] - ROUNDED_US for a, b in zip(spans, spans[1:])), (pid, tid)
        assert {(pid, tid, "thread_name"), (pid, None, "process_name")} <= names, (pid, tid)
    for ends in flows.values():
        assert set(ends) == {"s", "f"}, ends
        for end in ends.values():
            spans = tracks[end["pid"], end["tid"]]
            assert any(a - ROUNDED_US <= end["ts"] <= b + ROUNDED_US for a, b in spans), end
        assert ends["f"]["ts"] >= ends["s"]["ts"] - slack, ends
    both = [pid for pid in ops if pid % 2 == 0 and pid + 1 in ops]
    for pid in both:
        assert sorted(ops[pid]) == sorted(ops[pid + 1]), pid
    return f"{len(tracks)} tracks, {len(flows)} flows, {len(both)} ranks both predicted and measured"


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        print(check(json.load(file)["traceEvents"], float(sys.argv[2]) if len(sys.argv) > 2 else ROUNDED_US))


main()
