#!/bin/sh
# test/cli/context.sh - context parallel as users meet it: the loss of one rank to the last digits in the first step, one
# loss whatever the pipeline, the shards and the recomputation; saves, evaluations, other layouts going on; one rank dies;
# what cannot be
# shellcheck disable=SC2016,SC2317 # texts of inner shells; functions called by name
. test/cli/support/check.sh
. test/cli/support/tiny.sh
sed -i -e 's/n_layers: 2/n_layers: 4/' -e 's/n_heads: 2, n_kv_heads: 1/n_heads: 4, n_kv_heads: 2/' "$dir/job.yaml"

# parallel RUN RANKS CP KIND ARGUMENTS...
parallel() {
    parallel_run=$1 parallel_ranks=$2 parallel_cp=$3 parallel_kind=$4
    shift 4
    pretrain "$parallel_run" --ranks "$parallel_ranks" --set "parallel.cp=$parallel_cp" \
        --set "parallel.cp_kind=$parallel_kind" "$@"
}
loss_of() { sed -n "s/.*\"step\":$2,.*\"loss\":\\([^,]*\\),.*/\\1/p" "$dir/$1/metrics.jsonl"; }
has_logged() { [ "$(n_logged "$1")" -ge "$2" ]; }
evaluations() { sed -n 's/.*"step":\([0-9]*\),.*"eval_loss":\([^,}]*\).*/\1 \2/p' "$dir/$1/metrics.jsonl"; }
# near A B STEP PARTS - the losses of two runs differ by less than one of so many parts
near() {
    awk -v a="$(loss_of "$1" "$3")" -v b="$(loss_of "$2" "$3")" -v n="$4" \
        'BEGIN { exit !(a > 0 && (a - b < 0 ? b - a : a - b) < b / n) }'
}

expect 'one rank' 0 '^done: step 12' pretrain one
for kind in ulysses gather; do
    expect "two ranks, $kind" 0 '^done: step 12' parallel "$kind" 2 2 "$kind" --set train.compare_every=2
    expect 'have its first loss, but for the order of its sum' 0 '' near one "$kind" 1 1000000000000
    expect 'and its last to rounding' 0 '' near one "$kind" 12 100
    for mode in selective full; do
        expect "$kind, recompute $mode" 0 '^done: step 12' parallel "$kind-$mode" 2 2 "$kind" --set "recompute=$mode"
        same_bits 'changes no bit' "$kind" "$kind-$mode" 12
    done
    for schedule in 1f1b interleaved zb-h1; do
        expect "$kind, two stages, $schedule" 0 '^done: step 12' parallel "$kind-$schedule" 4 2 "$kind" \
            --set parallel.pp=2 --set "parallel.schedule=$schedule"
        same_bits 'have the bits of one' "$kind" "$kind-$schedule" 12
    done
    expect "$kind, two data-parallel ranks" 0 '^done: step 12' parallel "$kind-dp" 4 2 "$kind" --set parallel.dp=2
    for zero in 1 2 3; do
        expect "zero $zero" 0 '^done: step 12' parallel "$kind-zero-$zero" 4 2 "$kind" --set parallel.dp=2 \
            --set "parallel.zero=$zero" --set parallel.gradient_sum=late
        same_bits 'changes no bit' "$kind-dp" "$kind-zero-$zero" 12
    done
    expect "$kind, two tensor-parallel ranks" 0 '^done: step 12' parallel "$kind-tp" 4 2 "$kind" --set parallel.tp=2
    expect 'have the loss of one rank, to rounding' 0 '' near one "$kind-tp" 12 100
done
expect 'keys go round a ring of two' 0 '^done: step 12' parallel ring 2 2 ring
expect 'with the first loss of one rank, to rounding' 0 '' near one ring 1 100000
expect 'and its last' 0 '' near one ring 12 100
expect 'a ring, two stages, recompute full' 0 '^done: step 12' parallel ring-full 4 2 ring --set parallel.pp=2 \
    --set recompute=full
same_bits 'has the bits of one' ring ring-full 12
expect 'a ring of pairs' 0 '^done: step 12' parallel ring-both 4 4 '{ulysses: 2, ring: 2}'
expect 'with the first loss, too' 0 '' near one ring-both 1 100000
expect 'gather, two slices of heads' 0 '^done: step 12' parallel slices 2 2 gather --set parallel.cp_slices=2
same_bits 'change no bit' gather slices 12
expect 'nor do they with two stages and recomputation' 0 '^done: step 12' parallel slices-full 4 2 gather \
    --set parallel.cp_slices=2 --set parallel.pp=2 --set recompute=full
same_bits 'of one stage' gather slices-full 12
# Heads of gathered rows, each rank's matrix of its own; with tp of more kv heads.
expect 'two ranks, fastseq' 0 '^done: step 12' parallel fastseq 2 2 fastseq --set train.compare_every=2
expect 'have the first loss of one rank, but for the order of its sum' 0 '' near one fastseq 1 1000000000000
expect 'and its last to rounding' 0 '' near one fastseq 12 100
expect 'fastseq, recompute full' 0 '^done: step 12' parallel fastseq-full 2 2 fastseq --set recompute=full
same_bits 'changes no bit' fastseq fastseq-full 12
expect 'fastseq, two stages' 0 '^done: step 12' parallel fastseq-pp 4 2 fastseq --set parallel.pp=2 --set parallel.schedule=zb-h1
same_bits 'have the bits of one' fastseq fastseq-pp 12
for zero in 0 1 2 3; do
    expect "fastseq, two data-parallel ranks, zero $zero" 0 '^done: step 12' parallel "fastseq-zero-$zero" 4 2 fastseq \
        --set parallel.dp=2 --set "parallel.zero=$zero" --set parallel.gradient_sum=late --set train.compare_every=2 \
        --set train.recheck_every=2
    same_bits 'changes no bit' fastseq-zero-0 "fastseq-zero-$zero" 12
done
expect 'four kv heads' 0 '^done: step 12' pretrain four --set model.n_kv_heads=4
expect 'of two tensor-parallel ranks, fastseq' 0 '^done: step 12' parallel fastseq-tp 4 2 fastseq --set parallel.tp=2 \
    --set model.n_kv_heads=4 --set optimizer.states=bf16
expect 'have the loss of one rank, to rounding' 0 '' near four fastseq-tp 12 100
expect 'two ranks exchange heads, and two keys' 0 '^done: step 12' parallel both 4 4 '{ulysses: 2, gather: 2}'
expect 'with the first loss of one rank' 0 '' near one both 1 1000000000000

# Layers with a window fetch their neighbours' keys alone, others all.
expect 'a window, one rank' 0 '^done: step 12' pretrain window --set model.window=4 --set model.window_period=2
for ranks in 2 4; do
    expect "of $ranks ranks, no more than a chunk" 0 '^done: step 12' parallel "window-$ranks" $ranks $ranks gather \
        --set model.window=4 --set model.window_period=2
    expect 'has its first loss' 0 '' near window "window-$ranks" 1 1000000000000
    expect 'and its last to rounding' 0 '' near window "window-$ranks" 12 100
done
expect 'with recomputation' 0 '^done: step 12' parallel window-full 2 2 gather --set model.window=4 \
    --set model.window_period=2 --set recompute=full
same_bits 'it changes no bit' window-2 window-full 12

# A checkpoint knows no layout: the same tensors, whoever saved them.
for way in 'one 2 2 gather' 'gather 1 1 auto' 'both 2 2 ulysses' 'one 2 2 fastseq' 'fastseq-zero-3 1 1 auto' \
    'fastseq-zero-1 4 4 gather'; do
    # shellcheck disable=SC2086 # words
    set -- $way
    rm -rf "$dir/from-$1"
    mkdir -p "$dir/from-$1/checkpoints"
    cp -r "$dir/$1/checkpoints/step-00000004" "$dir/from-$1/checkpoints/"
    expect "cp $3 goes on from a checkpoint of $1" 0 '^resuming from' parallel "from-$1" "$2" "$3" "$4"
    expect 'as if it had begun it, to rounding' 0 '' near one "from-$1" 12 100
done
evaluations gather >"$dir/gather.evaluations"
evaluations gather-zb-h1 >"$dir/zb-h1.evaluations"
expect 'evaluations are of the same held-out loss' 0 '' cmp "$dir/gather.evaluations" "$dir/zb-h1.evaluations"
expect 'and three or more' 0 '' sh -c 'test "$(wc -l <"$1")" -ge 3' sh "$dir/gather.evaluations"
expect 'the model of two ranks generates' 0 '' "$lmtrain" generate --model "$dir/gather" --prompt 'In the' --max-new-tokens 8 \
    --temperature 0

# ---- what breaks ----

start killed --ranks 2 --set parallel.cp=2 --set train.steps=4000
wait_until 60 has_logged killed 5
head=$pid
victim=$(for child in $(children_of "$(children_of "$head")"); do
    tr '\0' '\n' <"/proc/$child/environ" | grep -qx PMIX_RANK=1 && echo "$child"
done)
kill -KILL "$victim"
ended 'a rank is killed: the job ends' 5 killed
expect 'and names it' 0 'rank 1 on .* was killed by signal 9' cat "$dir/killed.out"
LMTRAIN_FAULT='rank1:op:attention layers.3:5:stall' expect 'a rank that hangs is named, and who waits for it' 5 \
    'rank 0 .*waits in [a-z_]+ (cp|ulysses).*rank 1 has not reached it: it is in attention layers\.3' \
    parallel hangs 2 2 gather --set train.hang_seconds=1 --set train.hang_abort_seconds=3

# ---- what cannot be ----

expect 'a length that does not divide' 2 'not a multiple of 6.*hint: 30 or 36' parallel wrong 3 3 gather
expect 'heads that do not divide' 2 '3 ranks exchange heads, but do not divide' parallel wrong 3 3 ulysses \
    --set data.seq_len=33
expect 'fewer kv heads than ranks that divide them' 2 'do not divide 2 kv heads.*hint: cp_kind: gather' \
    parallel wrong 4 4 fastseq
expect 'sizes of another product' 2 'is 2 \* 3 ranks, but parallel.cp is 4 \(hint: cp: 6\)' parallel wrong 4 4 \
    '{ulysses: 2, gather: 3}'
# ops WINDOW - the kinds by which two ranks get keys, of a model with that window
ops() {
    "$lmtrain" plan "$dir/job.yaml" --ranks 2 --set parallel.cp=2 --set parallel.cp_kind=gather --set "model.window=$1" \
        --print-program | grep -o '= gather_[a-z]*' | sort -u
}
expect 'a window of a chunk is fetched' 0 '^= gather_window$' ops 8
expect 'a longer one is not' 0 '^= gather_sequence$' ops 9
expect 'a plan of parts' 0 'split\(rows\) cp' "$lmtrain" plan "$dir/job.yaml" --ranks 2 --set parallel.cp=2 \
    --set parallel.cp_kind=gather --print-program
finish
