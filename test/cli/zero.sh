#!/bin/sh
# test/cli/zero.sh - zero 1, 2 and 3 as users meet them: the bits of zero 0 with saves, evaluations and comparisons; one goes on
# from the other's checkpoint; a step that is skipped; compressed gradients
# shellcheck disable=SC2016,SC2317 # texts of inner shells; functions called by name
. test/cli/support/check.sh
. test/cli/support/tiny.sh

# ranks RUN ARGUMENTS... - with two ranks
ranks() {
    ranks_run=$1
    shift
    pretrain "$ranks_run" --ranks 2 "$@"
}

# same A B - both runs logged the same bits
same() {
    bits "$1" >"$dir/a.bits"
    bits "$2" >"$dir/b.bits"
    test -s "$dir/a.bits" && cmp "$dir/a.bits" "$dir/b.bits"
}
evaluations() { sed -n 's/.*"step":\([0-9]*\),.*"eval_loss":\([^,}]*\).*/\1 \2/p' "$dir/$1/metrics.jsonl"; }

expect 'zero 0' 0 '' ranks whole
expect 'zero 1' 0 '' ranks sharded --set parallel.zero=1 --set train.compare_every=2
expect 'has its bits' 0 '' same whole sharded
evaluations whole >"$dir/whole.evaluations"
evaluations sharded >"$dir/sharded.evaluations"
expect 'measured three times or more' 0 '' sh -c 'test "$(wc -l <"$1")" -ge 3' sh "$dir/whole.evaluations"
expect 'to the same held-out loss' 0 '' cmp "$dir/whole.evaluations" "$dir/sharded.evaluations"
expect 'a checkpoint of shards' 0 'embedding\.weight\.m\[' cat "$dir/sharded/checkpoints/step-00000012/rank-00001.safetensors"

expect 'zero 0, sums over ranks first' 0 '' ranks early --set parallel.gradient_sum=early
expect 'zero 2, which does so by itself' 0 '' ranks two --set parallel.zero=2
expect 'has its bits' 0 '' same early two
expect 'and holds less' 0 '' sh -c "'$lmtrain' plan '$dir/job.yaml' --ranks 2 --json --set parallel.zero=2 --set parallel.bucket_mb=1 \
    --set model.n_layers=8 --set model.hidden_size=256 | tr -d ' \t' >'$dir/two.json'
    '$lmtrain' plan '$dir/job.yaml' --ranks 2 --json --set parallel.zero=1 --set parallel.bucket_mb=1 \
    --set model.n_layers=8 --set model.hidden_size=256 | tr -d ' \t' >'$dir/one.json'
    test \$(sed -n 's/\"gradients\":\([0-9]*\).*/\1/p' '$dir/two.json') -lt \$(sed -n 's/\"gradients\":\([0-9]*\).*/\1/p' '$dir/one.json')"

for hold in op pass run step; do
    expect "zero 3, weights held for a $hold" 0 '' ranks "three-$hold" --set parallel.zero=3 --set "parallel.hold=$hold" \
        --set train.compare_every=2
    expect 'has its bits' 0 '' same early "three-$hold"
done
for ahead in 0 2; do
    expect "$ahead buckets ahead of each pass" 0 '' ranks "ahead-$ahead" --set parallel.zero=3 --set "parallel.prefetch=$ahead"
    expect 'has its bits' 0 '' same early "ahead-$ahead"
done
evaluations early >"$dir/early.evaluations"
evaluations three-pass >"$dir/three.evaluations"
expect 'and its held-out loss' 0 '' cmp "$dir/early.evaluations" "$dir/three.evaluations"
weights_of() {
    "$lmtrain" plan "$dir/job.yaml" --ranks 2 --json --set model.n_layers=8 --set model.hidden_size=256 "$@" |
        tr -d ' \t' | sed -n 's/^"weights":\([0-9]*\).*/\1/p'
}
whole=$(weights_of)
shard=$(weights_of --set parallel.zero=3 --set parallel.prefetch=0)
expect "half of the weights: $shard of $whole" 0 '' test "$shard" -ge $((whole / 2)) -a "$shard" -lt $((whole * 11 / 20))
ahead=$(weights_of --set parallel.zero=3)
expect "and buckets ahead of their functions: $ahead" 0 '' test "$ahead" -gt "$shard"

for way in 'whole sharded 1' 'sharded whole 0' 'early two 3' 'three-pass two 2'; do
    # shellcheck disable=SC2086 # words
    set -- $way
    mkdir -p "$dir/from-$1/checkpoints"
    cp -r "$dir/$1/checkpoints/step-00000004" "$dir/from-$1/checkpoints/"
    sum=early
    test "$3" -ge 2 || sum=late
    expect "zero $3 goes on from a $1 checkpoint" 0 '' ranks "from-$1" --set "parallel.zero=$3" --set "parallel.gradient_sum=$sum"
    bits "$2" | sed '1,4d' >"$dir/wanted.bits"
    bits "from-$1" >"$dir/got.bits"
    expect "as if it had begun it" 0 '' cmp "$dir/wanted.bits" "$dir/got.bits"
done

expect 'four ranks' 0 '' pretrain four --ranks 4
for zero in 1 3; do
    expect "zero $zero in groups of two" 0 '' pretrain "groups-$zero" --ranks 4 --set "parallel.zero=$zero" \
        --set parallel.zero_group=2 --set parallel.gradient_sum=late --set train.compare_every=2
    expect 'has their bits' 0 '' same four "groups-$zero"
done
expect 'a group that is no power of two' 2 'zero_group is 3, not a power of two' pretrain wrong --ranks 6 \
    --set 'parallel={zero: 1, zero_group: 3}'

LMTRAIN_FAULT=rank1:gradients:6:nan
export LMTRAIN_FAULT
for zero in 0 1 3; do
    expect "zero $zero with a NaN in one rank's gradients" 0 'step 6: gradients are not finite' ranks "nan-$zero" \
        --set "parallel.zero=$zero" --set parallel.gradient_sum=late
done
expect 'skips the same step and no other' 0 '' same nan-0 nan-1
expect 'under zero 3, too' 0 '' same nan-0 nan-3
expect 'and only that' 0 '"step":12,.*"skipped":1,' cat "$dir/nan-1/metrics.jsonl"
# The norms, which share their blocks with nothing, are where a NaN could stay.
for zero in 0 1; do
    expect "compressed, zero $zero" 0 'step 6: gradients are not finite' ranks "nan-int8-$zero" --set "parallel.zero=$zero" \
        --set parallel.compress=int8
done
expect 'skips the same step' 0 '' same nan-int8-0 nan-int8-1
expect 'and only that' 0 '"step":12,.*"skipped":1,' cat "$dir/nan-int8-1/metrics.jsonl"
unset LMTRAIN_FAULT

# lost RUN - what the codec has lost in each step
lost() { sed -n 's/.*"grad_norm".*"compress_error":\([^,}]*\).*/\1/p' "$dir/$1/metrics.jsonl"; }
expect 'compressed, and nothing is NaN' 0 '' ranks int8 --set parallel.compress=int8
lost int8 >"$dir/int8.lost"
expect 'what each step loses is little' 0 '^12 steps$' awk '$1 > 0 && $1 < 0.02 { n++ } END { print n " steps" }' "$dir/int8.lost"
lost whole >"$dir/whole.lost"
expect 'and is told of such steps alone' 0 '' test ! -s "$dir/whole.lost"

# Where the codec starts does not move with train.steps.
topk() {
    topk_run=$1
    shift
    ranks "$topk_run" --set parallel.compress=topk --set parallel.compress_ratio=0.1 --set optimizer.schedule=constant "$@"
}
expect 'the largest elements alone, after 10 % of 40 steps' 75 '' topk forty --set train.steps=40 --stop-at 8
lost forty >"$dir/forty.lost"
expect 'so not in the first four' 0 '^4 steps$' awk '$1 > 0 { n++ } END { print n " steps" }' "$dir/forty.lost"
expect 'the same run, stopped' 75 '' topk eighty --set train.steps=40 --stop-at 4
expect 'goes on for 80 steps' 75 'compress_start=4, as in the run that is resumed' topk eighty --set train.steps=80 --stop-at 6
expect 'and again' 75 'compress_start=4, as in the run' topk eighty --set train.steps=200 --stop-at 8
expect 'and has its bits' 0 '' same forty eighty
finish
