#!/bin/sh
# test/cli/tensor.sh - tensor and sequence parallel as users meet them: one loss whatever the pipeline, the shards and the
# recomputation; that of one rank to rounding; saves, evaluations, other layouts going on; one rank dies or hangs; what cannot be
# shellcheck disable=SC2016,SC2317 # texts of inner shells; functions called by name
. test/cli/support/check.sh
. test/cli/support/tiny.sh
sed -i -e 's/n_layers: 2/n_layers: 4/' -e 's/n_heads: 2, n_kv_heads: 1/n_heads: 4, n_kv_heads: 2/' "$dir/job.yaml"

# parallel RUN RANKS TP ARGUMENTS...
parallel() {
    parallel_run=$1 parallel_ranks=$2 parallel_tp=$3
    shift 3
    pretrain "$parallel_run" --ranks "$parallel_ranks" --set "parallel.tp=$parallel_tp" "$@"
}
has_logged() { [ "$(n_logged "$1")" -ge "$2" ]; }
last_loss() { sed -n 's/.*"step":12,.*"loss":\([^,]*\),.*/\1/p' "$dir/$1/metrics.jsonl"; }
evaluations() { sed -n 's/.*"step":\([0-9]*\),.*"eval_loss":\([^,}]*\).*/\1 \2/p' "$dir/$1/metrics.jsonl"; }
# near A B - the last losses of two runs differ by less than a part in 200
near() { awk -v a="$(last_loss "$1")" -v b="$(last_loss "$2")" 'BEGIN { exit !(a > 0 && (a - b)^2 < (b / 200)^2) }'; }

expect 'one rank' 0 '^done: step 12' pretrain one
expect 'two tensor-parallel ranks' 0 '^done: step 12' parallel two 2 2 --set train.compare_every=2
expect 'have its loss, to rounding' 0 '' near one two
expect 'without sequence parallel' 0 '^done: step 12' parallel plain 2 2 --set parallel.sequence_parallel=false
expect 'too' 0 '' near one plain
for mode in selective full; do
    expect "recompute $mode" 0 '^done: step 12' parallel "$mode" 2 2 --set "recompute=$mode"
    same_bits 'changes no bit' two "$mode" 12
done
for schedule in 1f1b interleaved zb-h1; do
    expect "two stages of two, $schedule" 0 '^done: step 12' parallel "$schedule" 4 2 --set parallel.pp=2 \
        --set "parallel.schedule=$schedule"
    same_bits 'have the bits of one' two "$schedule" 12
done
evaluations two >"$dir/two.evaluations"
evaluations zb-h1 >"$dir/zb-h1.evaluations"
expect 'measured three times or more' 0 '' sh -c 'test "$(wc -l <"$1")" -ge 3' sh "$dir/two.evaluations"
expect 'to the same held-out loss' 0 '' cmp "$dir/two.evaluations" "$dir/zb-h1.evaluations"

expect 'two times two data-parallel ranks' 0 '^done: step 12' parallel two-by-two 4 2 --set parallel.dp=2
expect 'zero 1' 0 '^done: step 12' parallel zero 4 2 --set parallel.dp=2 --set parallel.zero=1 --set train.compare_every=2
same_bits 'changes no bit' two-by-two zero 12
expect 'and two stages, eight ranks in all, interleaved, selective' 0 '^done: step 12' parallel eight 8 2 --set parallel.dp=2 \
    --set parallel.pp=2 --set parallel.zero=1 --set parallel.schedule=interleaved --set recompute=selective
same_bits 'neither' two-by-two eight 12

# A checkpoint knows no layout: the same tensors, whoever saved them.
for way in 'one 2 2' 'two 1 1' 'eight 1 1' 'two 4 4'; do
    # shellcheck disable=SC2086 # words
    set -- $way
    rm -rf "$dir/from-$1"
    mkdir -p "$dir/from-$1/checkpoints"
    cp -r "$dir/$1/checkpoints/step-00000004" "$dir/from-$1/checkpoints/"
    expect "tp $3 goes on from a checkpoint of $1" 0 '^resuming from' parallel "from-$1" "$2" "$3"
    expect 'as if it had begun it, to rounding' 0 '' near one "from-$1"
done
expect 'the model of two ranks generates' 0 '' "$lmtrain" generate --model "$dir/two" --prompt 'In the' --max-new-tokens 8 \
    --temperature 0

# ---- what breaks ----

start killed --ranks 2 --set parallel.tp=2 --set train.steps=4000
wait_until 60 has_logged killed 5
head=$pid
victim=$(for child in $(children_of "$(children_of "$head")"); do
    tr '\0' '\n' <"/proc/$child/environ" | grep -qx PMIX_RANK=1 && echo "$child"
done)
kill -KILL "$victim"
ended 'a rank is killed: the job ends' 5 killed
expect 'and names it' 0 'rank 1 on .* was killed by signal 9' cat "$dir/killed.out"
LMTRAIN_FAULT='rank1:op:attention layers.3:5:stall' expect 'a rank that hangs is named, and who waits for it' 5 \
    'rank 0 .*waits in [a-z_]+ tp.*rank 1 has not reached it: it is in attention layers\.3' \
    parallel hangs 2 2 --set train.hang_seconds=1 --set train.hang_abort_seconds=3

# ---- what cannot be ----

expect 'heads that do not divide' 2 '--set parallel.tp: parallel.tp is 3, does not divide n_heads' parallel wrong 3 3
expect 'a plan of parts' 0 'split\(rows\) tp' "$lmtrain" plan "$dir/job.yaml" --ranks 2 --set parallel.tp=2 --print-program
finish
