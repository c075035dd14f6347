#!/bin/sh
# test/cli/operations-spikes.sh - a planted spike of the gradient norm (train.on_spike): logged, skipped, gone back from; and
# the same bits where the run was stopped and resumed in between
. test/cli/support/check.sh
. test/cli/support/tiny.sh

keys="--ranks 2 --set eval.every_steps=0 --set eval.data= --set train.steps=14 --set train.spike_window=5
    --set train.spike_z=30 --set train.spike_margin=1"

# spiked NAME STATUS RUN PATTERN RULES ARGUMENTS... - a run with a spike in step 9, and further faults
spiked() {
    spiked_name=$1 spiked_status=$2 spiked_run=$3 spiked_pattern=$4 spiked_rules=$5
    shift 5
    # shellcheck disable=SC2086 # words
    LMTRAIN_FAULT="rank1:gradients:9:spike$spiked_rules" expect "$spiked_name" "$spiked_status" "$spiked_pattern" \
        pretrain "$spiked_run" $keys "$@"
}
norm='gradient norm [0-9.e+]* \(z [0-9.]*\)'

# shellcheck disable=SC2086
pretrain plain $keys >"$dir/plain.out" 2>&1
refuse() { expect "$1" 1 '' grep "$2" "$dir/$3/metrics.jsonl"; }
refuse 'a run without a spike sees none' '"event":"spike"' plain
spiked 'a spike is logged' 0 log "step 9: a spike: loss [0-9.]* \(z .*\), $norm\$" ''
expect 'and an event' 0 '"step":9,"event":"spike","text":"a spike: loss' cat "$dir/log/metrics.jsonl"

spiked 'skip does not update' 0 skip "step 9: a spike: .*, $norm: the step is skipped" '' --set train.on_spike=skip
expect 'which metrics count' 0 '"step":14,.*"skipped":1,' cat "$dir/skip/metrics.jsonl"
spiked 'stopped and resumed' 0 skip2 'resuming from .*, step 12' ',rank0:step:14' --set train.on_spike=skip --set restarts=1
same_bits 'it is the same run' skip skip2 14

spiked 'rewind goes back' 0 rewind "step 9: a spike: .*: back to step 4, without the batches of steps 8 to 10" '' \
    --set train.on_spike=rewind
expect 'which is an event' 0 '"event":"rewind","text":"step 9' cat "$dir/rewind/metrics.jsonl"
expect 'and in checkpoints' 0 '"left_out":\[\[7,3\]\]' cat "$dir/rewind/checkpoints/step-00000012/manifest.json"
spiked 'stopped after it and resumed' 0 rewind2 'resuming from .*, step 12' ',rank0:step:14' \
    --set train.on_spike=rewind --set restarts=1
same_bits 'it is the same run, too' rewind rewind2 14
bits plain | head -n 7 >"$dir/bits.plain"
bits rewind | head -n 7 >"$dir/bits.rewind"
expect 'up to what is left out it is the run without a spike' 0 '' cmp "$dir/bits.plain" "$dir/bits.rewind"
spiked 'no more often than the job says' 1 often 'step 10: a spike: .*, after the run has gone back 1 time, train.spike_rewinds' \
    ',rank1:gradients:10:spike' --set train.on_spike=rewind --set train.spike_rewinds=1

# What is left out and the bits are the same whichever checkpoints there are.
rewind='--set train.on_spike=rewind'
left_out=', without the batches of steps 8 to 10'
# shellcheck disable=SC2086
{
    spiked 'to another checkpoint' 0 other "back to step 6$left_out" '' $rewind --set checkpoint.every_steps=3
    spiked 'to the begin of the run' 0 begin "back to step 0$left_out" '' $rewind --set checkpoint.every_steps=0
    spiked 'to the begin, of bf16 and shards' 0 begin16 "back to step 0$left_out" '' $rewind --set checkpoint.every_steps=0 \
        --set train.dtype=bf16 --set parallel.zero=1
    spiked 'to a checkpoint, of bf16 and shards' 0 rewind16 "back to step 4$left_out" '' $rewind --set train.dtype=bf16 \
        --set parallel.zero=1
    spiked 'to what it began with' 0 origin "back to step 4$left_out" '' $rewind --set checkpoint.every_steps=0 \
        --resume "$dir/plain/checkpoints/step-00000004"
}
for run in other begin; do
    same_bits "it is the same run ($run)" rewind $run 14
done
same_bits 'and of bf16' rewind16 begin16 14
bits rewind | tail -n 10 >"$dir/bits.rewind"
bits origin >"$dir/bits.origin"
expect 'it is the same run, from where it began' 0 '' cmp "$dir/bits.rewind" "$dir/bits.origin"

# shellcheck disable=SC2086
spiked 'an old checkpoint is kept for it' 0 old 'back to step [2-5], without the batches of steps 6 to 12' '' $rewind \
    --set checkpoint.every_steps=1 --set checkpoint.keep=1 --set train.spike_margin=3 --set train.spike_rewinds=1
expect 'later ones are removed' 1 '' grep -E 'damaged|is kept as' "$dir/old/log/rank-0.log"

# A save under way that the run goes back to is a checkpoint like any other.
# shellcheck disable=SC2086,SC2016
spiked 'to one that is being written' 0 slow "back to step 7$left_out" ',rank1:save:writing:7:sleep3' $rewind \
    --set checkpoint.every_steps=7 --set "checkpoint.upload=echo \$LMTRAIN_STEP >>$dir/uploads"
expect 'it is uploaded' 0 '^7$' cat "$dir/uploads"

# Which one is damaged only its reader finds out.
# shellcheck disable=SC2086
spiked 'stopped' 75 damaged 'saved step 8' ',rank0:step:8:sigterm' $rewind --set checkpoint.every_steps=2
printf x | dd of="$dir/damaged/checkpoints/step-00000006/rank-00001.safetensors" bs=1 conv=notrunc status=none seek=9000
# shellcheck disable=SC2086
spiked 'past a damaged one' 0 damaged "back to step 4$left_out" '' $rewind --set checkpoint.every_steps=2
expect 'which is kept' 0 'step-00000006.damaged' ls "$dir/damaged/checkpoints"
expect 'no other one' 1 '' sh -c "ls $dir/damaged/checkpoints | grep -v 00006 | grep damaged"
same_bits 'it is the same run past it' rewind damaged 14
finish
