#!/bin/sh
# test/cli/hooks.sh - hooks of a run: what they get, how the run ends, ones that fail and hang
# shellcheck disable=SC2016,SC2317 # of the shells of hooks; expect calls hooked
. test/cli/support/check.sh
. test/cli/support/tiny.sh

# hooked RUN ARGUMENTS... - each event becomes a line of $dir/RUN.KIND
hooked() {
    hooked_run=$1
    shift
    pretrain "$hooked_run" --set "hooks={on_step: cat >>$dir/$hooked_run.step, on_eval: cat >>$dir/$hooked_run.eval,
        on_save: cat >>$dir/$hooked_run.save, on_end: cat >>$dir/$hooked_run.end}" "$@"
}

expect 'a run with hooks' 0 '^done' hooked one
expect 'each event is an object' 0 '' python3 -c '
import json, os, sys
run = sys.argv[1]
kinds = {kind: [json.loads(line) for line in open(run + "." + kind)] for kind in ("step", "eval", "save", "end")}
lines = [json.loads(line) for line in open(run + "/metrics.jsonl")]
for kind, events in kinds.items():
    for event in events:
        assert event["hook"] == "on_" + kind and os.path.samefile(event["run"], run), event
steps = kinds["step"]
assert len(steps) + sum(event["left_out"] for event in steps) == 12 and steps[-1]["step"] == 12, steps
for event in steps + kinds["eval"]:
    line = {key: value for key, value in event.items() if key not in ("hook", "run", "left_out")}
    assert line in lines, line
assert [event["step"] for event in kinds["eval"]] == [4, 8, 12]
assert [event["step"] for event in kinds["save"]] == [4, 8, 12]
assert all(os.path.exists(event["checkpoint"] + "/manifest.json") for event in kinds["save"])
assert [(event["status"], event["step"], event["exit_status"]) for event in kinds["end"]] == [("done", 12, 0)]' "$dir/one"
expect 'without' 0 '^done' pretrain plain
same_bits 'the same bits' one plain 12
expect 'a signal' 75 '' env LMTRAIN_FAULT=rank0:step:6:sigterm "$lmtrain" pretrain "$dir/job.yaml" \
    --set "output=$dir/saved" --set "hooks.on_end=cat >$dir/saved.end" --ranks 2
expect 'is an end, too, of rank 0 alone' 0 '"status":"saved","exit_status":75,' cat "$dir/saved.end"
expect 'a failure' 1 'not finite' pretrain wild --set train.steps=60 --set optimizer.lr=100 --set train.max_skipped=2 \
    --set optimizer.weight_decay=100 --set "hooks.on_end=cat >$dir/wild.end"
expect 'is one' 0 '"status":"failed","exit_status":1,"text":"3 steps in a row' cat "$dir/wild.end"
expect 'a hook that fails' 0 'warn: hooks.on_eval: it exits with status 1 \(hint: its output is in .*hooks.log' pretrain bad \
    --set 'hooks={on_eval: echo no; exit 1}'
expect 'ends no run' 0 '^done' printf '%s\n' "$output"
expect 'one that hangs' 0 'hooks.on_step: it takes more than 0.2 s' pretrain hung --set 'hooks={on_step: sleep 1000, seconds: 0.2}'
expect 'does not, either' 0 '^done' printf '%s\n' "$output"
expect 'their output is in the log' 0 '^no$' cat "$dir/bad/log/hooks.log"
same_bits 'nor change a bit' bad plain 12

# ---- mistakes ----

expect 'a hook of no event' 2 'unknown key hooks.on_stop \(hint: hooks.on_step\)' pretrain wrong --set hooks.on_stop=true
expect 'no time' 2 'hooks.seconds' pretrain wrong --set hooks.seconds=0
expect 'a list' 2 'hooks.on_end' pretrain wrong --set 'hooks.on_end=[a, b]'
finish
