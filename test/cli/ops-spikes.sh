#!/bin/sh
# test/cli/ops-spikes.sh - a planted spike of the gradient norm (train.on_spike): logged, skipped, gone back from; and
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
spiked 'nothing to go back to' 0 none 'step 9: there is no checkpoint to go back to' '' --set train.on_spike=rewind \
    --set checkpoint.every_steps=0
finish
