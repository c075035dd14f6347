"""check_timeline.py FILE: slices of a track follow each other, a flow has both its ends, in slices and in order (of measured ranks but
for what the file itself says is out of order), tracks have names, counters are not negative, and of each rank that is predicted and
measured the same ops of the same actions are there."""
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
        early = ends["s"]["ts"] - ends["f"]["ts"]
        assert early <= (slack if ends["s"]["pid"] % 2 else 0) + ROUNDED_US, ends
    both = [pid for pid in ops if pid % 2 == 0 and pid + 1 in ops]
    for pid in both:
        assert sorted(ops[pid]) == sorted(ops[pid + 1]), pid
    return f"{len(tracks)} tracks, {len(flows)} flows, {len(both)} ranks both predicted and measured"


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        timeline = json.load(file)
    about = timeline["otherData"]
    order = about.get("out_of_order", {"count": 0, "beyond_error": 0, "most_us": 0})
    assert (order["count"] > 0) == (order["most_us"] > 0) and order["beyond_error"] <= order["count"], order
    if not order["beyond_error"]:
        assert order["most_us"] <= 2 * about.get("clock_error_us", 0), about
    text = check(timeline["traceEvents"], order["most_us"])
    if "clock_error_us" in about:
        text += f", clocks within {about['clock_error_us']:.0f} us, {order['count']} out of order, {order['beyond_error']} beyond that"
    print(text)


main()
