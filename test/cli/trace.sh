#!/bin/sh
# test/cli/trace.sh - timelines: of a predicted step, of steps that a run records, of both
. test/cli/support/check.sh
. test/cli/support/tiny.sh

# check FILE [SLACK_US] - what is a timeline
# shellcheck disable=SC2317 # expect calls it
check() {
    python3 test/cli/support/check_timeline.py "$@"
}

plan="$lmtrain plan configs/jobs/llama2-7b.yaml --device h100-sxm --ranks 16 --set train.global_batch=32"
# shellcheck disable=SC2086 # words
expect 'a predicted step' 0 '^fits' $plan --layout tp=4,pp=4,zero=0,schedule=zb-h1 --trace "$dir/predicted.json"
expect 'is a timeline' 0 '^[0-9]+ tracks, [1-9][0-9]+ flows, 0 ranks both' check "$dir/predicted.json"
# shellcheck disable=SC2086
expect 'of gathered weights' 0 '^fits' $plan --layout zero=3 --trace "$dir/predicted.json"
expect 'is one, too' 0 ' tracks, 0 flows' check "$dir/predicted.json"
expect 'no device' 2 'trace is of a predicted step \(hint: --device NAME' "$lmtrain" plan "$dir/job.yaml" --trace "$dir/none.json"

"$lmtrain" bench cluster "$dir/job.yaml" --ranks 2 --steps 1 --to "$dir/here.yaml" >/dev/null
expect 'a run that traces steps' 0 '^done' pretrain traced --ranks 2 --set 'parallel={pp: 2, schedule: zb-h1}' --set 'trace.steps=[3, 5]' \
    --set "cluster=$dir/here.yaml"
expect 'its records' 0 '^step-00000003.rank-0 step-00000003.rank-1 step-00000005.rank-0 step-00000005.rank-1 $' \
    sh -c "ls '$dir/traced/trace' | tr '\n' ' '"
expect 'predicted and measured' 0 'step 5 of 2 ranks, predicted and measured' "$lmtrain" report "$dir/traced" --trace "$dir/both.json"
expect 'have the same ops' 0 ' 2 ranks both predicted and measured' check "$dir/both.json" 1000
expect 'with the time of the other' 0 '"ratio":[0-9.]+' cat "$dir/both.json"
expect 'an earlier step' 0 'step 3 of 2 ranks' "$lmtrain" report "$dir/traced" --trace "$dir/both.json" --step 3
expect 'the same bits as without' 0 '^done' pretrain plain --ranks 2 --set 'parallel={pp: 2, schedule: zb-h1}'
same_bits 'traced or not' traced plain 12

for parallel in '{zero: 1}' '{zero: 3}' '{tp: 2}' '{pp: 2, schedule: interleaved}'; do
    rm -rf "$dir/other"
    expect "a run of $parallel" 0 '^done' pretrain other --ranks 2 --set "parallel=$parallel" --set model.n_layers=4 --set 'trace.steps=[2]' \
        --set train.steps=3 --set "cluster=$dir/here.yaml"
    expect 'its timeline' 0 'predicted and measured' "$lmtrain" report "$dir/other" --trace "$dir/both.json"
    expect 'has the predicted ops' 0 ' 2 ranks both predicted and measured' check "$dir/both.json" 1000
done
rm -rf "$dir/other"
expect 'one rank of them' 0 '^done' pretrain other --ranks 2 --set 'trace={steps: [2], ranks: [1]}'
expect 'is recorded alone' 0 'step 2 of 1 rank ' "$lmtrain" report "$dir/other" --trace "$dir/one.json"
expect 'measured alone' 0 '^[0-9]+ tracks, 0 flows, 0 ranks' check "$dir/one.json" 1000

expect 'nothing was traced' 3 'has no traced steps \(hint: trace.steps: \[10, 11\] in the job\)' "$lmtrain" report "$dir/plain" --trace "$dir/x.json"
expect 'not that step' 3 'has no trace of step 4 ' "$lmtrain" report "$dir/traced" --trace "$dir/x.json" --step 4
expect 'nothing to make' 2 'there is nothing to make \(hint: --trace FILE\)' "$lmtrain" report "$dir/traced"
printf 'cut' >"$dir/traced/trace/step-00000005.rank-1"
expect 'a file that is cut off' 3 'rank-1: not a trace of a step, or cut off' "$lmtrain" report "$dir/traced" --trace "$dir/x.json"
cp "$dir/traced/trace/step-00000003.rank-0" "$dir/other/trace/step-00000009.rank-0"
expect 'of another program' 3 'is of another program than the run' "$lmtrain" report "$dir/other" --trace "$dir/x.json"
finish
