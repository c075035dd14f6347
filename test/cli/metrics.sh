#!/bin/sh
# test/cli/metrics.sh - what metrics.jsonl says of a run: means of losses, times, over stops
. test/cli/support/check.sh
. test/cli/support/tiny.sh

# means RUN - each logged step with the mean loss since the line before
means() {
    sed -n 's/.*"step":\([0-9]*\),.*"loss_mean":\([^,]*\),.*/\1 \2/p' "$dir/$1/metrics.jsonl"
}

# ---- loss_mean ----

expect 'a line a step' 0 '^done' pretrain every
expect 'a line every 5 steps' 0 '^done' pretrain fifth --set train.log_every=5
expect 'the means of steps 1, 2 to 5, 6 to 10, and the last 2' 0 '' python3 -c '
import json, sys
steps, means = ([json.loads(line) for line in open(path) if "\"loss\":" in line] for path in sys.argv[1:])
loss = [step["loss"] for step in steps]
assert all(step["loss"] == step["loss_mean"] for step in steps)
assert [line["step"] for line in means] == [1, 5, 10, 12]
for line, part in zip(means, (loss[:1], loss[1:5], loss[5:10], loss[10:])):
    assert abs(line["loss_mean"] - sum(part) / len(part)) < 1e-12, line' \
    "$dir/every/metrics.jsonl" "$dir/fifth/metrics.jsonl"
for action in sigterm sigkill; do
    status=$([ $action = sigterm ] && echo 75 || echo 137)
    expect "$action in step 8" "$status" '' env LMTRAIN_FAULT=rank0:step:8:$action \
        "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/$action" --set train.log_every=5 --set checkpoint.every_steps=3
    expect 'it goes on' 0 '^done' pretrain $action --set train.log_every=5 --set checkpoint.every_steps=3
    expect "$action: the same means" 0 '' test "$(means $action)" = "$(means fifth)"
done

# ---- a run that does not learn ----

expect 'a rate of nothing' 0 'warn: step 52: for 50 steps the loss is .*\(hint: optimizer.lr' pretrain flat --set train.steps=60 \
    --set optimizer.lr=1e-9
expect 'an event, once' 0 '^1$' grep -c '"event":"flat loss"' "$dir/flat/metrics.jsonl"

# ---- elapsed_s and time ----

expect 'time runs on over the stop' 0 '' python3 -c '
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
began = min(line["time"] for line in lines if line.get("event") == "started")
timed = [line for line in lines if "elapsed_s" in line]
assert len([line for line in timed if "eval_loss" in line]) == 3
for line in timed:
    assert abs(line["time"] - began - line["elapsed_s"]) <= 2, line
for before, after in zip(timed, timed[1:]):
    assert before["elapsed_s"] <= after["elapsed_s"], (before, after)' "$dir/sigterm/metrics.jsonl"

finish
