#!/bin/sh
# test/cli/report.sh - the page of runs and its data, without a browser (test/soak/report.sh has one)
. test/cli/support/check.sh
. test/cli/support/tiny.sh

# shellcheck disable=SC2317 # expect calls it
check() {
    python3 test/cli/support/check_report.py "$@"
}

expect 'a run' 0 '^done' pretrain one --ranks 2 --set 'parallel={pp: 2}' --set 'trace.steps=[6]'
LMTRAIN_FAULT=rank0:step:7 expect 'another, which died' 0 '^done' pretrain two --ranks 1 --set optimizer.lr=5.0e-3 --set restarts=1
expect 'as its record says' 0 '"event":"died","text":"rank 0 on [^ ]* was killed by signal 9 ' cat "$dir/two/metrics.jsonl"
expect 'beside its saves' 0 '^4 8 12 $' sh -c "sed -n 's/.*\"step\":\([0-9]*\),\"event\":\"saved\".*/\1/p' '$dir/two/metrics.jsonl' | tr '\n' ' '"
echo '{"model":"two","tasks":[{"task":"boolq","style":"lmeval","shots":0,"scores":{"items":4,"acc":0.75,"acc_stderr":0.25}}]}' \
    >"$dir/two/boolq.json"

expect 'a page in the folder of the run' 0 "^$dir/one/report.html: the page " "$lmtrain" report "$dir/one"
expect 'beside the run in a line' 0 '^one +12 +[0-9.]+ +[0-9.]+ ' printf '%s\n' "$output"
expect 'has all of it' 0 '^1 run, 12 steps drawn of 12, 3 evaluations, [0-9]+ events, 2 stages of memory, [0-9]+ lanes, 0 scores$' \
    check "$dir/one/report.html" "$dir/one"
expect 'and what both ranks took at most' 0 '"measured_memory":\{"ranks":\[\{"rank":0,"host":"[^"]*","peak_bytes":[0-9]{7,}\},\{"rank":1,' \
    cat "$dir/one/report.html"
# shellcheck disable=SC2317 # expect calls it
kinds() {
    "$lmtrain" report "$@" --json | tr -d '\n\t' | grep -o '"kinds":.*'
}
# One step of seven is timed, from the second one on: two of two ranks each.
expect 'ops are timed on all ranks' 0 '' python3 -c '
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
longest = max(line["step_s"] for line in lines if "step_s" in line)
times = [line for line in lines if "ops_s" in line]
assert sum(line["rank_steps"] for line in times) == 4, times
assert all(0 < sum(line["ops_s"].values()) < longest for line in times), (longest, times)' "$dir/one/metrics.jsonl"
expect 'where time went by kind of op, of all steps' 0 '^"kinds":\[\{"op":"[a-z_]*","measured_ns":[0-9.]*\},' kinds "$dir/two"
expect 'beside what is predicted' 0 '^"kinds":\[\{"op":"[a-z_]*","predicted_ns":[0-9.e+]*,"measured_ns":' kinds "$dir/two" --device h100-sxm
expect 'a page elsewhere' 0 "^$dir/both.html: the page " "$lmtrain" report "$dir/one" "$dir/two/" --to "$dir/both.html" --device h100-sxm
expect 'predicted, too' 0 '"predicted":{"step_ns":[1-9]' grep -o '"predicted":{"step_ns":[0-9]*' "$dir/both.html"
expect 'has all of both' 0 '^2 runs, 24 steps drawn of 24, 6 evaluations, [0-9]+ events, 3 stages of memory, [0-9]+ lanes, 1 scores; differ: .*optimizer.lr' \
    check "$dir/both.html" "$dir/one" "$dir/two"

expect 'as JSON' 0 '' "$lmtrain" report "$dir/one" --json
promised report
printf '%s\n' "$output" >"$dir/one.json"
expect 'to the bit' 0 '^1 run, 12 steps drawn of 12, .*; exact$' check "$dir/one.json" "$dir/one"
expect 'JSON of two' 0 '"differences"' "$lmtrain" report "$dir/two" "$dir/one" --json
expect 'writes no page' 0 '' test ! -e "$dir/two/report.html"
expect 'but beside --to' 0 "$dir/beside.html: the page" "$lmtrain" report "$dir/two" --json --to "$dir/beside.html"

# A long run, with one line that is torn, and one loss that stands out.
python3 - "$dir/one/metrics.jsonl" "$dir/long" <<'END'
import json, os, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
step = next(line for line in lines if "loss" in line)
os.makedirs(sys.argv[2])
with open(sys.argv[2] + "/metrics.jsonl", "w") as file:
    for i in range(1, 100001):
        noise = (i * 7919 % 1009) / 1009
        step.update(step=i, tokens=256 * i, loss=99 if i == 77777 else 2 + 500 / (i + 100) + noise, grad_norm=noise * 3, tokens_per_s=1e4 + 100 * noise)
        file.write(json.dumps(step) + "\n")
        if i % 50 == 0:
            file.write(json.dumps({"step": i, "event": "spike", "text": "a long text " * 5, "time": 1.7e9 + i}) + "\n")
    file.write('{"step":100001,"lo')
END
cp "$dir/one/job.yaml" "$dir/long/job.yaml"
expect '100,000 steps' 0 'the page' "$lmtrain" report "$dir/long" "$dir/one" "$dir/two"
expect 'are thinned to what a page holds' 0 '^3 runs, [0-9]{4} steps drawn of 100024, ' check "$dir/long/report.html" "$dir/long" "$dir/one" "$dir/two"
for n in 1 2 3 4 5 6; do
    set -- "$@" "$dir/long$n"
    cp -r "$dir/long" "$dir/long$n"
done
expect 'of many runs, too' 0 'the page' "$lmtrain" report "$@" --to "$dir/many.html"
expect 'which are drawn with fewer points' 0 '^6 runs, ' check "$dir/many.html" "$@"

rm "$dir/long/job.yaml"
# A sweep's record, as sweep/history.h has it, with two runs.
mkdir "$dir/sweep"
cp -r "$dir/one" "$dir/sweep/trial-000"
cp -r "$dir/two" "$dir/sweep/trial-002"
cat >"$dir/sweep/sweep.jsonl" <<'END'
{"event":"sweep","time":1,"version":1,"metric":"eval.loss","goal":"minimize","rungs":[4,12],"trials":3}
{"event":"trial","trial":0,"settings":{"optimizer.lr":0.01}}
{"event":"trial","trial":1,"settings":{"optimizer.lr":1e9}}
{"event":"trial","trial":2,"settings":{"optimizer.lr":0.005}}
{"event":"value","trial":0,"rung":0,"step":4,"value":6.5}
{"event":"fail","trial":1,"rung":0,"text":"the loss is not finite"}
{"event":"value","trial":2,"rung":1,"step":12,"value":6.75}
{"event":"stop","trial":0,"rung":0}
END
expect 'a sweep' 0 "^$dir/sweep/report.html: the page " "$lmtrain" report "$dir/sweep"
expect 'has its trials, the best first' 0 '2 +finished +12 +6.7500 .* 0 +stopped +4 +6.5000 .* 1 +failed ' sh -c "printf '%s\n' '$output' | tr '\n' ' '"
expect 'and the runs of those that began' 0 '^2 runs, ' check "$dir/sweep/report.html" "$dir/sweep/trial-002" "$dir/sweep/trial-000"
expect 'a timeline of a sweep' 2 'is a sweep \(hint: the run of a trial is in its folder, as ' "$lmtrain" report "$dir/sweep" --trace "$dir/x.json"

expect 'a run without a job' 0 'the page' "$lmtrain" report "$dir/long"
expect 'says what is missing' 0 'job.yaml' sed -n 's/.*"plan_error":"\([^"]*\)".*/\1/p' "$dir/long/report.html"
expect 'no such folder' 3 'none is not a folder \(hint: RUN is what a job names as output\)' "$lmtrain" report "$dir/none"
expect 'a folder of something else' 3 'has no metrics.jsonl \(hint: RUN is the folder' "$lmtrain" report "$dir/two/checkpoints"
expect 'a page that cannot be written' 1 'nowhere/page.html' "$lmtrain" report "$dir/one" --to "$dir/nowhere/page.html"
expect 'a page that is a folder' 2 "--to is $dir, a folder \(hint: --to $dir/report.html\)" "$lmtrain" report "$dir/one" --to "$dir"
expect 'a timeline of two' 2 "--trace is of one run, and these are 2" "$lmtrain" report "$dir/one" "$dir/two" --trace "$dir/x.json"
expect 'nothing' 2 'RUN' "$lmtrain" report
finish
