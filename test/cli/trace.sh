#!/bin/sh
# test/cli/trace.sh - timelines: of a predicted step, of steps that a run records, of both
# PERFETTO_BIN: a trace_processor of Perfetto's, which then reads one, too; skipped without
. test/cli/support/check.sh
. test/cli/support/tiny.sh

# check FILE [PLAN] - what is a timeline
# shellcheck disable=SC2317 # expect calls it
check() {
    python3 test/cli/support/check_timeline.py "$@"
}

plan="$lmtrain plan configs/jobs/llama2-7b.yaml --device h100-sxm --ranks 16 --set train.global_batch=32"
for layout in tp=4,pp=4,zero=0,schedule=zb-h1 pp=4,zero=1,schedule=zb-v tp=2,pp=8,schedule=1f1b zero=2 zero=3; do
    # shellcheck disable=SC2086 # words
    $plan --layout $layout --trace "$dir/predicted.json" --json >"$dir/plan.json"
    case $layout in *pp=*) flows='[1-9][0-9]+' ;; *) flows=0 ;; esac
    expect "a predicted step of $layout is what its table says" 0 \
        "^[0-9]+ tracks, $flows flows, 0 ranks both .*, links add up, [148] ranks' slices add up to their tables of ([89]|1[01]) rows" \
        check "$dir/predicted.json" "$dir/plan.json"
done
expect 'no device' 2 'trace is of a predicted step \(hint: --device NAME' "$lmtrain" plan "$dir/job.yaml" --trace "$dir/none.json"

# Of a job that divides sequences, too, ranks are measured alone first.
expect 'the machine is measured' 0 'here.yaml: [0-9]+ ops and 4 collectives of 2 ranks, contention ' \
    "$lmtrain" bench cluster "$dir/job.yaml" --ranks 2 --steps 1 --set 'parallel={cp: 2}' --to "$dir/here.yaml"
expect 'a run that traces steps' 0 '^done' pretrain traced --ranks 2 --set 'parallel={pp: 2, schedule: zb-h1}' --set 'trace.steps=[3, 5]' \
    --set "cluster=$dir/here.yaml"
expect 'its records' 0 '^step-00000003.rank-0 step-00000003.rank-1 step-00000005.rank-0 step-00000005.rank-1 $' \
    sh -c "ls '$dir/traced/trace' | tr '\n' ' '"
expect 'predicted and measured' 0 'step 5 of 2 ranks, predicted and measured' "$lmtrain" report "$dir/traced" --trace "$dir/both.json"
expect 'have the same ops' 0 ' 2 ranks both predicted and measured, links add up, clocks within 0 us, 0 out of order' check "$dir/both.json"
expect 'with the time of the other' 0 '"ratio":[0-9.]+' cat "$dir/both.json"
expect 'an earlier step' 0 'step 3 of 2 ranks' "$lmtrain" report "$dir/traced" --trace "$dir/both.json" --step 3
expect 'two steps' 0 'step 3 and 5 of 2 ranks, predicted and measured' "$lmtrain" report "$dir/traced" --trace "$dir/both.json" --step 3,5
expect 'have all ops of both' 0 ' 2 ranks both predicted and measured, links add up' check "$dir/both.json"
sed 's/^hbm: .*/hbm: 1 GB\/s/' configs/devices/a100-sxm-80.yaml >"$dir/slow.yaml"
expect 'two that are predicted to take longer' 0 'step 3 and 5 of 2 ranks, predicted and measured' "$lmtrain" report "$dir/traced" \
    --trace "$dir/both.json" --step 3,5 --device "$dir/slow.yaml"
expect 'come one after the other' 0 ' 2 ranks both predicted and measured' check "$dir/both.json"

# On a CPU no issue of the host's is waited for, so that all of a predicted path is what ran.
"$lmtrain" report "$dir/traced" --json --trace "$dir/one.json" >"$dir/summary.json"
expect 'the path that a step waits for' 0 ', 4 totals, .* paths have 0 ns unexplained' check "$dir/one.json" "$dir/summary.json"
expect 'in words' 0 '^critical path of step 5, predicted, [0-9.]+ ms: products ' "$lmtrain" report "$dir/traced"

# Perfetto's own reader, where there is one.
if [ -n "${PERFETTO_BIN:-}" ]; then
    expect 'Perfetto reads it' 0 '^Perfetto has [1-9][0-9]* slices, [1-9][0-9]* flows, ' \
        python3 test/cli/support/check_perfetto.py "$PERFETTO_BIN" "$dir/both.json"
fi
expect 'and no third' 2 "--step is '3-5', more than 2 " "$lmtrain" report "$dir/traced" --step 3-5
expect 'some ranks' 0 'step 5 of 1 rank, ' "$lmtrain" report "$dir/traced" --trace "$dir/both.json" --ranks 1
expect 'ranks that are not there' 3 'has no trace of rank 2 at step 5 ' "$lmtrain" report "$dir/traced" --ranks 0-2
expect 'ranks that are no numbers' 2 "--ranks is '1-', not numbers such as 8, 0,2,5 or 0-7,16" "$lmtrain" report "$dir/traced" --ranks 1-
expect 'as a table' 0 '^ +5 +1 +1 +measured +[0-9.]+' "$lmtrain" report "$dir/traced"
expect 'with ops that differ from their price' 0 '^[a-z_]+( L[0-9]+)? +[a-z]+ .* ms +[0-9.]+ ms +[-+][0-9.]+ ms$' \
    "$lmtrain" report "$dir/traced"
expect 'the same bits as without' 0 '^done' pretrain plain --ranks 2 --set 'parallel={pp: 2, schedule: zb-h1}'
same_bits 'traced or not' traced plain 12

# A rank as on another machine: its clock is an hour ahead and runs faster.
rank=1
for parallel in '{pp: 2, schedule: 1f1b}' '{zero: 1}'; do
    rm -rf "$dir/other"
    LMTRAIN_FAULT=rank$rank:trace:2:skew expect 'a rank with a clock of its own' 0 '^done' pretrain other --ranks 2 \
        --set "parallel=$parallel" --set 'trace.steps=[2, 3]' --set train.steps=3 --set "cluster=$dir/here.yaml"
    for step in 2 3; do
        expect 'is compared' 0 'clock [0-9]+ -?3(600|599)[0-9]{9} [0-9]{2,8}, [0-9]+ -?3(600|599)[0-9]{9} [0-9]{2,8}$' \
            sed -n 1p "$dir/other/trace/step-0000000$step.rank-1"
        expect 'and its step put in order' 0 'predicted and measured' "$lmtrain" report "$dir/other" --trace "$dir/both.json" --step $step
        expect 'but for what is known of clocks' 0 'clocks within [1-9][0-9]* us, [0-9]+ out of order, 0 beyond that' check "$dir/both.json"
    done
    rank=0
done
cut_clock() {
    LC_ALL=C sed -i '1s/clock \([0-9]*\) [-0-9]* [0-9]*, \([0-9]*\) [-0-9]* [0-9]*$/clock \1 0 5, \2 0 5/' "$1"
}
cut_clock "$dir/other/trace/step-00000003.rank-1"
expect 'clocks that were set' 0 'times something ends before it can, up to 3(600|599)[0-9]{3}\.' \
    "$lmtrain" report "$dir/other" --trace "$dir/both.json" --step 3
expect 'are in the file' 0 'clocks within [0-9]+ us, [1-9][0-9]* out of order, [1-9]' check "$dir/both.json"

for parallel in '{zero: 1}' '{zero: 3}' '{tp: 2}' '{pp: 2, schedule: interleaved}'; do
    rm -rf "$dir/other"
    expect "a run of $parallel" 0 '^done' pretrain other --ranks 2 --set "parallel=$parallel" --set model.n_layers=4 --set 'trace.steps=[2]' \
        --set train.steps=3 --set "cluster=$dir/here.yaml"
    expect 'its timeline' 0 'predicted and measured' "$lmtrain" report "$dir/other" --trace "$dir/both.json"
    expect 'has the predicted ops' 0 ' 2 ranks both predicted and measured' check "$dir/both.json"
done
rm -rf "$dir/other"
expect 'one rank of them' 0 '^done' pretrain other --ranks 2 --set 'trace={steps: [2], ranks: [1]}'
expect 'is a table without prices' 0 '^ +2 +1 +0 +measured' "$lmtrain" report "$dir/other"
refuse 'and without ops' 'predicted'
expect 'is recorded alone' 0 'step 2 of 1 rank ' "$lmtrain" report "$dir/other" --trace "$dir/one.json"
expect 'measured alone' 0 '^[0-9]+ tracks, 0 flows, 0 ranks' check "$dir/one.json"

# On a GPU events are read: a rank alone, and two that share it.
for n in 1 2; do
    LMTRAIN_EMULATE_DEVICES=1 expect "$n ranks on a GPU" 0 '^done' "$(dirname "$lmtrain")/lmtrain-emulated" pretrain "$dir/job.yaml" --ranks $n \
        --set "output=$dir/gpu$n" --set device=cuda --set train.steps=3 --set eval.every_steps=0 --set 'trace.steps=[2, 3]'
    expect 'recorded' 0 'step 3 of .* predicted and measured' "$lmtrain" report "$dir/gpu$n" --trace "$dir/both.json" --device h100-sxm
    expect 'all of it' 0 " $n ranks both predicted and measured, .* 0 out of order" check "$dir/both.json"
done

expect 'nothing was traced' 3 'has no traced steps \(hint: trace.steps: \[10, 11\] in the job\)' "$lmtrain" report "$dir/plain" --trace "$dir/x.json"
expect 'not that step' 3 'has no trace of step 4 ' "$lmtrain" report "$dir/traced" --trace "$dir/x.json" --step 4
printf 'cut' >"$dir/traced/trace/step-00000005.rank-1"
expect 'a file that is cut off' 3 'rank-1: not a trace of a step, or cut off' "$lmtrain" report "$dir/traced" --trace "$dir/x.json"
cp "$dir/traced/trace/step-00000003.rank-0" "$dir/other/trace/step-00000009.rank-0"
# Totals, ops and slow ranks are those of the slices.
expect 'two ranks a stage' 0 '^done' pretrain four --ranks 4 --set 'parallel={pp: 2, zero: 1, schedule: zb-h1}' --set 'trace.steps=[2, 3]' \
    --set train.steps=3
for step in 2 3; do
    "$lmtrain" report "$dir/four" --device h100-sxm --step $step --trace "$dir/both.json" >/dev/null
    "$lmtrain" report "$dir/four" --device h100-sxm --step $step --json >"$dir/summary.json"
    expect 'the numbers of a step' 0 ', 8 totals, 20 ops and 2 slowest ranks are theirs' check "$dir/both.json" "$dir/summary.json"
done
expect 'the rank that is slower than its peers' 0 '^stage 1, step 3: rank [23] computes longest, [0-9.]+ ms, \+[0-9.]+ % of the median of 1 other' \
    "$lmtrain" report "$dir/four"
expect 'more stages than a file has' 0 'a timeline has at most 64 ranks: these are of stages 0 to 63 of 96' \
    "$lmtrain" plan configs/jobs/gpt3-175b.yaml --device h100-sxm --ranks 768 --layout tp=8,pp=96,schedule=1f1b --set train.global_batch=16 \
    --trace "$dir/both.json"

expect 'of another program' 3 'is of another program than the run' "$lmtrain" report "$dir/other" --trace "$dir/x.json"
finish
