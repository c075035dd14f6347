#!/bin/sh
# test/cli/plan-memory.sh - lmtrain plan: what is kept, remade and sent away, and the ladder of budgets
. test/cli/support/check.sh
lmtrain=${LMTRAIN:-build/lmtrain}
cat >"$dir/job.yaml" <<END
model: {from: llama-tiny, vocab_size: 4096}
data: {train: nowhere, seq_len: 256}
train: {steps: 10, global_batch: 8, micro_batch: 2}
recompute: auto
memory: {offload: auto}
device: cpu
threads: 1
ranks: 1
output: nowhere
END

# plan ARGUMENTS...
plan() {
    "$lmtrain" plan "$dir/job.yaml" "$@"
}

# holds PYTHON - it holds of the JSON on standard input, as d
# shellcheck disable=SC2317 # called by name
holds() {
    python3 -c "
import json, sys
d = json.load(sys.stdin)
assert $1, json.dumps(d)[:2000]"
}

plan --ladder --json >"$dir/ladder.json"
expect 'ten budgets, all fit' 0 '' holds 'len(d["ladder"]) == 10 and all(r["fits"] and r["device_bytes"] <= r["limit_bytes"] for r in d["ladder"])' <"$dir/ladder.json"
expect 'more is never slower' 0 '' holds 'all(a["added_ns"] >= b["added_ns"] for a, b in zip(d["ladder"], d["ladder"][1:]))' <"$dir/ladder.json"
expect 'the last adds nothing' 0 '' holds 'd["ladder"][-1]["added_ns"] == 0' <"$dir/ladder.json"
expect 'as a table' 0 '^memory.device_bytes +taken ' plan --ladder
filed='--set memory.host_bytes=1KiB --set memory.file=/tmp'
# shellcheck disable=SC2086
expect 'states in a file, ' 0 'states' plan --ladder $filed
refuse 'are not updated on the host' 'update on the host'
limit=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["ladder"][3]["limit_bytes"])' "$dir/ladder.json")
floor=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["ladder"][0]["limit_bytes"])' "$dir/ladder.json")

expect 'a choice' 0 '^what is kept, computed again and sent away$' plan --set "memory.device_bytes=$limit"
plan --set "memory.device_bytes=$limit" --json >"$dir/plan.json"
expect 'within its limit, and equal to the segments' 0 '' holds \
    'd["device_bytes"] == d["memory_choice"]["pipeline_ranks"][0]["device_bytes"] <= d["memory_choice"]["device_limit_bytes"]' <"$dir/plan.json"
expect 'whose contents add up' 0 '' holds \
    'all(sum(c[k] for c in r["contents"].values()) == r[k] for r in d["memory_choice"]["pipeline_ranks"] for k in ("device_bytes", "host_bytes", "file_bytes"))' <"$dir/plan.json"
expect 'memory without the file' 0 '' holds 'd["total_bytes"] == d["device_bytes"] + d["host_bytes"] + d["file_buffer_bytes"]' <"$dir/plan.json"
expect 'below the floor: the op and its bytes' 4 "needs at least [0-9.]+ [KM]iB of the device's memory, and may take .*: most of it in [a-z_]+ of [a-z0-9_. ]+(, layer [0-9]+,)? with [0-9.]+ [KM]iB .*hint: a smaller train.micro_batch, more ranks" \
    plan --set "memory.device_bytes=$((floor / 2))"
finish
