#!/bin/sh
# test/cli/pipeline.sh - pipelines as users meet them: the bits of one rank in every schedule, with saves, evaluations,
# data-parallel ranks and zero 1; another layout goes on from their checkpoints; one rank dies; what cannot be is told
# shellcheck disable=SC2016,SC2317 # texts of inner shells; functions called by name
. test/cli/support/check.sh
. test/cli/support/tiny.sh
sed -i 's/n_layers: 2/n_layers: 4/' "$dir/job.yaml"

# piped RUN RANKS PP ARGUMENTS...
piped() {
    piped_run=$1 piped_ranks=$2 piped_pp=$3
    shift 3
    pretrain "$piped_run" --ranks "$piped_ranks" --set "parallel.pp=$piped_pp" "$@"
}
has_logged() { [ "$(n_logged "$1")" -ge "$2" ]; }
evaluations() { sed -n 's/.*"step":\([0-9]*\),.*"eval_loss":\([^,}]*\).*/\1 \2/p' "$dir/$1/metrics.jsonl"; }

expect 'one rank' 0 '^done: step 12' pretrain one
for schedule in gpipe 1f1b zb-h1 zb-h2 zb-v interleaved breadth-first fold3d; do
    expect "$schedule" 0 '^done: step 12' piped "$schedule" 2 2 --set "parallel.schedule=$schedule"
    same_bits 'has its bits' one "$schedule" 12
done
evaluations one >"$dir/one.evaluations"
evaluations zb-v >"$dir/zb-v.evaluations"
expect 'measured three times or more' 0 '' sh -c 'test "$(wc -l <"$1")" -ge 3' sh "$dir/one.evaluations"
expect 'to the same held-out loss' 0 '' cmp "$dir/one.evaluations" "$dir/zb-v.evaluations"
expect 'four stages' 0 '^done: step 12' piped four 4 4
same_bits 'have its bits' one four 12

expect 'two data-parallel ranks' 0 '^done: step 12' pretrain two --ranks 2
expect 'of two stages each, zero 1' 0 '^done: step 12' piped two-piped 4 2 --set parallel.zero=1 --set train.compare_every=2
same_bits 'have the bits of two ranks' two two-piped 12

expect 'stages as one likes them' 0 '^done: step 12' piped given 2 2 --set 'parallel.stages=[1, 3]'
same_bits 'have its bits' one given 12

# Sizes are numerics: the same on one stage and on two, and another run than with equal ones.
sizes='parallel: {schedule: dynamic, micro_batches: [1, 2, 3, 1, 1]}'
sed 's/, micro_batch: 2//' "$dir/job.yaml" >"$dir/sizes.yaml"
echo "$sizes" >>"$dir/sizes.yaml"
sized() {
    sized_run=$1
    shift
    "$lmtrain" pretrain "$dir/sizes.yaml" --set "output=$dir/$sized_run" "$@"
}
expect 'micro-batches of given sizes' 0 '^done: step 12' sized sizes
expect 'on two ranks of two stages each' 0 '^done: step 12' sized sizes-piped --ranks 2 --set parallel.pp=2
same_bits 'have the bits of one rank' sizes sizes-piped 12
bits one >"$dir/wanted.bits"
bits sizes >"$dir/got.bits"
expect 'which are others than of equal ones' 1 'differ' cmp "$dir/wanted.bits" "$dir/got.bits"
expect 'a plan says the sizes' 0 '5 micro-batches of 1, 2, 3, 1, 1 x 32 tokens' "$lmtrain" plan "$dir/sizes.yaml" --ranks 2 \
    --set parallel.pp=2
expect 'and how long ranks wait with them' 0 'pipeline bubble: [0-9.]+ % of a step' printf '%s\n' "$output"
# waits MICRO_BATCHES - what the plan says of them
waits() {
    "$lmtrain" plan "$dir/sizes.yaml" --ranks 2 --set parallel.pp=2 --set "parallel.micro_batches=$1" | grep 'pipeline bubble'
}
waits '[3, 2, 3]' >"$dir/even.waits"
waits '[1, 6, 1]' >"$dir/uneven.waits"
expect 'which follows from them' 1 'differ' cmp "$dir/even.waits" "$dir/uneven.waits"
expect 'as does a plan for programs' 0 '"micro_batches":.*\[1, ?2, ?3, ?1, ?1\]' "$lmtrain" plan "$dir/sizes.yaml" --json
expect 'functions say theirs' 0 'run +backward 1, 3 sequences +micro-batch 2' "$lmtrain" plan "$dir/sizes.yaml" --ranks 2 \
    --set parallel.pp=2 --print-program
mkdir -p "$dir/sizes-on/checkpoints"
cp -r "$dir/sizes-piped/checkpoints/step-00000004" "$dir/sizes-on/checkpoints/"
expect 'one rank goes on from a checkpoint of two' 0 '^resuming from' sized sizes-on
bits sizes | sed '1,4d' >"$dir/wanted.bits"
bits sizes-on >"$dir/got.bits"
expect 'as if it had begun it' 0 '' cmp "$dir/wanted.bits" "$dir/got.bits"
cp -r "$dir/sizes" "$dir/sizes-off"
expect 'without sizes it goes on, and says so' 0 'changed since the checkpoint: parallel.micro_batches is now unset, was 1 2 3 1 1' \
    pretrain sizes-off --set train.steps=13
expect 'and with them again' 0 'changed since the checkpoint: parallel.micro_batches is now 1 2 3 1 1, was unset' \
    sized sizes-off --set train.steps=14

# A checkpoint knows no layout.
for way in 'one 1f1b 2 2' 'zb-v one 1 1' 'interleaved four 4 4'; do
    # shellcheck disable=SC2086 # words
    set -- $way
    mkdir -p "$dir/from-$1/checkpoints"
    cp -r "$dir/$1/checkpoints/step-00000004" "$dir/from-$1/checkpoints/"
    expect "$4 stages go on from a checkpoint of $1" 0 '^resuming from' piped "from-$1" "$3" "$4"
    bits "$2" | sed '1,4d' >"$dir/wanted.bits"
    bits "from-$1" >"$dir/got.bits"
    expect 'as if they had begun it' 0 '' cmp "$dir/wanted.bits" "$dir/got.bits"
done
expect 'the model of a pipeline generates' 0 '' "$lmtrain" generate --model "$dir/zb-v" --prompt 'In the' --max-new-tokens 8 \
    --temperature 0
printf '%s\n' "$output" >"$dir/piped.text"
expect 'as that of one rank' 0 '' "$lmtrain" generate --model "$dir/one" --prompt 'In the' --max-new-tokens 8 --temperature 0
printf '%s\n' "$output" >"$dir/one.text"
expect 'the same text' 0 '' cmp "$dir/one.text" "$dir/piped.text"

# ---- what breaks ----

start killed --ranks 2 --set parallel.pp=2 --set train.steps=4000
wait_until 60 has_logged killed 5
head=$pid
victim=$(for child in $(children_of "$(children_of "$head")"); do
    tr '\0' '\n' <"/proc/$child/environ" | grep -qx PMIX_RANK=1 && echo "$child"
done)
kill -KILL "$victim"
ended 'a stage is killed: the job ends' 5 killed
expect 'and names it' 0 'rank 1 on .* was killed by signal 9' cat "$dir/killed.out"
LMTRAIN_FAULT='rank1:op:attention layers.3:5:stall' expect 'a stage that hangs is named, and who waits for it' 5 \
    'rank 0 .*waits in (send|receive) pp.*rank 1 has not reached it: it is in attention layers\.3' \
    piped hangs 2 2 --set train.hang_seconds=1 --set train.hang_abort_seconds=3

# ---- what cannot be ----

expect 'more stages than layers' 2 'pp is 8, more than the 4 layers' piped wrong 8 8
expect 'zb-v on a model of three layers' 2 '4 stages, the model has 3 layers \(hint: parallel.pp: 1\)' piped wrong 2 2 --set model.n_layers=3 \
    --set parallel.schedule=zb-v
expect 'chunks that the schedule has not' 2 'schedule 1f1b runs 1 chunk on each rank, not 2' piped wrong 2 2 --set parallel.chunks=2
expect 'stages that are not all layers' 2 'parallel.stages: the stages have 5 layers, but the model has 4 \(hint: 2 in the last' \
    piped wrong 2 2 --set 'parallel.stages=[2, 3]'
expect 'stages for another pipeline' 2 'layers are given for 3 stages, but the pipeline has 2' \
    piped wrong 2 2 --set 'parallel.stages=[1, 1, 2]'
expect 'stages that are no numbers' 2 'parallel.stages has an item that is not a whole number from 1 ' \
    piped wrong 2 2 --set 'parallel.stages=[1, many]'
expect 'sizes that are not the batch' 2 \
    'set parallel.micro_batches: parallel.micro_batches add up to 4 sequences, times dp 1 is 4, .*global_batch is 8 \(hint: global_batch: 4, or' \
    sized wrong --set 'parallel.micro_batches=[1, 2, 1]'
expect 'dynamic without sizes' 2 'schedule dynamic needs parallel.micro_batches \(hint: ' piped wrong 2 2 --set parallel.schedule=dynamic
expect 'sizes without dynamic' 2 'schedule 1f1b has micro-batches of one size' piped wrong 2 2 --set 'parallel.micro_batches=[4, 4]'
expect 'another largest than is given' 2 'train.micro_batch is 2, the largest of parallel.micro_batches is 3' \
    sized wrong --set train.micro_batch=2
expect 'a plan of stages' 0 '^ +1  3, head ' "$lmtrain" plan "$dir/job.yaml" --ranks 2 --set parallel.pp=2
expect 'says how long they wait' 0 'pipeline bubble: [0-9.]+ % of a step' printf '%s\n' "$output"
expect 'each rank has its own program' 0 'receive +.*stream f_from_previous|receive' "$lmtrain" plan "$dir/job.yaml" \
    --ranks 2 --set parallel.pp=2 --rank 1 --print-program
finish
