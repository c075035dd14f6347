"""check_timeline.py FILE [PLAN]: slices of a track follow each other, a flow has both its ends, in slices and in order (of measured ranks
but for what the file itself says is out of order), tracks have names, counters are not negative, what links carry adds up to the bytes
of collectives and transfers, and of each rank that is predicted and measured the same ops of the same actions are there. With PLAN, what
`lmtrain plan --json` says of the same step: slices of a rank add up to its stage's table, to the nanosecond."""
import collections
import json
import sys

ROUNDED_US = 0.002
ARGS = "function action op micro_batch chunk layer shape bytes flops".split()
BOUNDS, SOURCES = {"flops", "bytes", "issue", "link"}, {"measured", "interpolated", "formula"}


def check_args(event):
    args = event["args"]
    assert all(name in args for name in ARGS), event
    if event["pid"] % 2:
        assert args["measured_us"] == event["dur"], event
    else:
        assert args["bound"] in BOUNDS and args["source"] in SOURCES and args["predicted_us"] >= event["dur"] - ROUNDED_US, event
    if "ratio" in args:
        assert abs(args["ratio"] * args["predicted_us"] - args["measured_us"]) <= 1e-4 * args["predicted_us"] + ROUNDED_US, event


def check(events, slack):
    tracks, flows, names = collections.defaultdict(list), collections.defaultdict(dict), set()
    ops = collections.defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0 and event["ts"] >= 0, event
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
            if "args" in event:
                check_args(event)
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


def check_links(events):
    """The integral of the counter is the bytes of all that was under way."""
    moved, carried, last = collections.Counter(), collections.Counter(), {}
    for event in events:
        if event["ph"] == "X" and event["dur"] > 0:
            moved[event["pid"]] += event.get("args", {}).get("link_bytes", 0)
        elif event["ph"] == "C" and event["name"] == "link bytes/s":
            since, rate = last.get(event["pid"], (event["ts"], 0))
            assert event["ts"] >= since, event
            carried[event["pid"]] += (event["ts"] - since) * rate / 1e6
            last[event["pid"]] = (event["ts"], event["args"]["bytes"])
    assert all(rate == 0 for _, rate in last.values()), last
    for pid, n_bytes in moved.items():
        assert abs(carried[pid] - n_bytes) <= 1 + 1e-3 * n_bytes, (pid, n_bytes, carried[pid])
    return sum(moved.values())


def check_table(events, stages):
    """Sums of slices by category, of predicted ranks; what runs beside compute has categories of its own."""
    stage_of, sums = {}, collections.defaultdict(collections.Counter)
    for event in events:
        if event["ph"] == "M" and event["name"] == "process_name":
            stage_of[event["pid"]] = int(event["args"]["name"].split()[3])
        elif event["ph"] == "X" and event["pid"] % 2 == 0 and not event["cat"].endswith(" under way"):
            sums[event["pid"]][event["cat"]] += round(event["dur"] * 1000)
    for pid, categories in sums.items():
        table = {name: ns for name, ns in stages[stage_of[pid]].items() if ns}
        assert dict(categories) == table, (pid, dict(categories), table)
    return f", {len(sums)} ranks' slices add up to their tables of {max(len(c) for c in sums.values())} rows"


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        timeline = json.load(file)
    events, about = timeline["traceEvents"], timeline["otherData"]
    order = about.get("out_of_order", {"count": 0, "beyond_error": 0, "most_us": 0})
    assert (order["count"] > 0) == (order["most_us"] > 0) and order["beyond_error"] <= order["count"], order
    if not order["beyond_error"]:
        assert order["most_us"] <= 2 * about.get("clock_error_us", 0), about
    text = check(events, order["most_us"])
    if check_links(events):
        text += ", links add up"
    if "clock_error_us" in about:
        text += f", clocks within {about['clock_error_us']:.0f} us, {order['count']} out of order, {order['beyond_error']} beyond that"
    if len(sys.argv) > 2:
        with open(sys.argv[2], encoding="utf-8") as file:
            text += check_table(events, json.load(file)["predicted"]["stages_ns"])
    print(text)


main()
