"""check_timeline.py FILE [PLAN]: slices of a track follow each other, a flow has both its ends, in slices and in order (of measured ranks
but for what the file itself says is out of order), tracks have names, counters are not negative, what links carry adds up to the bytes
of collectives and transfers, and of each rank that is predicted and measured the same ops of the same actions are there. With PLAN, what
`lmtrain plan --json` says of the same step: slices of a rank add up to its stage's table, to the nanosecond. With what `lmtrain report
--json` says of the same run as PLAN: totals, ops and the slowest ranks are what the slices say."""
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
    stage_of, sums = stages_of(events), collections.defaultdict(collections.Counter)
    for event in events:
        if event["ph"] == "X" and event["pid"] % 2 == 0 and not event["cat"].endswith(" under way"):
            sums[event["pid"]][event["cat"]] += round(event["dur"] * 1000)
    for pid, categories in sums.items():
        table = {name: ns for name, ns in stages[stage_of[pid]].items() if ns}
        assert dict(categories) == table, (pid, dict(categories), table)
    return f", {len(sums)} ranks' slices add up to their tables of {max(len(c) for c in sums.values())} rows"


COMPUTE = {"products", "attention", "memory bound", "recompute", "update", "overlap"}
EXPOSED = {"tensor parallel", "gradients", "gathers", "copies"}


def stages_of(events):
    return {event["pid"]: int(event["args"]["name"].split()[3]) for event in events
            if event["ph"] == "M" and event["name"] == "process_name"}


def check_totals(slices, ranks):
    """Of one step."""
    sums = collections.defaultdict(collections.Counter)
    ends = collections.defaultdict(list)
    for event in slices:
        begin, ns = round(event["ts"] * 1000), round(event["dur"] * 1000)
        sums[event["pid"]][event["cat"]] += ns
        ends[event["pid"] % 2] += [begin, begin + ns]
    for rank in ranks:
        pid = 2 * rank["rank"] + (rank["kind"] == "measured")
        of = sums[pid]
        assert all(of[name] == ns for name, ns in rank["ns"].items()), (rank, of)
        assert all(of[f"{name} under way"] == ns for name, ns in rank["beside_ns"].items()), (rank, of)
        assert rank["compute_ns"] == sum(of[name] for name in COMPUTE) and rank["exposed_ns"] == sum(of[name] for name in EXPOSED), rank
        assert rank["step_ns"] == max(ends[pid % 2]) - min(ends[pid % 2]), rank
        assert rank["step_ns"] - rank["compute_ns"] - rank["exposed_ns"] - rank["waits_ns"] == rank["idle_ns"] >= 0, rank
    assert len(ranks) == len(sums), (len(ranks), len(sums))
    return sums


def check_slowest(sums, stages, slowest):
    compute = collections.defaultdict(dict)
    for pid, of in sums.items():
        if pid % 2:
            compute[stages[pid]][pid // 2] = sum(of[name] for name in COMPUTE)
    compute = {stage: ranks for stage, ranks in compute.items() if len(ranks) > 1}
    assert len(slowest) == len(compute), (slowest, compute)
    for found in slowest:
        ranks = compute[found["stage"]]
        assert found["compute_ns"] == ranks[found["rank"]] == max(ranks.values()), (found, ranks)
        others = sorted(ns for rank, ns in ranks.items() if rank != found["rank"])
        assert found["peers_compute_ns"] == others[(len(others) - 1) // 2] and found["peers"] == len(others), (found, ranks)


def check_ops(slices, stages, ops):
    """Means over ranks of a stage, of all runs of an op; the 20 that differ most."""
    times, ranks = collections.defaultdict(lambda: [0, 0]), collections.defaultdict(set)
    for event in slices:
        if event["pid"] % 2 and event["tid"] == 0 and "args" in event:
            key = stages[event["pid"]], event["args"]["function"], event["args"]["op"]
            ranks[key[0]].add(event["pid"])
            if "predicted_us" in event["args"]:
                times[key][0] += event["args"]["predicted_us"]
                times[key][1] += event["args"]["measured_us"]
    gaps = sorted((abs(b - a) * 1000 / len(ranks[key[0]]) for key, (a, b) in times.items()), reverse=True)
    assert len(ops) == min(20, len(gaps)), (len(ops), len(gaps))
    for op, gap in zip(ops, gaps):
        predicted, measured = times[op["stage"], op["function"], op["op"]]
        n = len(ranks[op["stage"]])
        assert abs(op["predicted_ns"] - 1000 * predicted / n) < 1 and abs(op["measured_ns"] - 1000 * measured / n) < 1, (op, predicted, measured)
        assert abs(abs(op["measured_ns"] - op["predicted_ns"]) - gap) < 1, (op, gap)


def check_paths(paths, ranks):
    """They add up to their steps. Returns what predicted ones wait for unexplained, and no rank is idle in them."""
    assert {path["kind"] for path in paths} == {rank["kind"] for rank in ranks}, paths
    for path in paths:
        assert path["step_ns"] == next(rank["step_ns"] for rank in ranks if rank["kind"] == path["kind"]), path
        assert sum(path["ns"].values()) + path["idle_ns"] == path["step_ns"] == sum(rank["ns"] for rank in path["ranks_ns"]), path
        if path["kind"] == "predicted":
            assert path["idle_ns"] == 0 and path["unexplained_ns"] < path["step_ns"] / 4, path


    return sum(path["unexplained_ns"] for path in paths if path["kind"] == "predicted")


def check_summary(events, summary):
    unexplained = check_paths(summary["critical_paths"], summary["ranks"])
    slices, stages = [event for event in events if event["ph"] == "X"], stages_of(events)
    check_slowest(check_totals(slices, summary["ranks"]), stages, summary["slowest"])
    check_ops(slices, stages, summary["ops"])
    return f", {len(summary['ranks'])} totals, {len(summary['ops'])} ops and {len(summary['slowest'])} slowest ranks are theirs, paths have {unexplained} ns unexplained"


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
            said = json.load(file)
        text += check_summary(events, said) if "ranks" in said else check_table(events, said["predicted"]["stages_ns"])
    print(text)


main()
