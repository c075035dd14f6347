#!/bin/sh
# test/cli/offload.sh - a job that does not fit its device: the same bits, as it is, resumed and killed; refused below the floor
. test/cli/support/check.sh
. test/cli/support/tiny.sh

small='--set memory.offload=auto --set memory.device_bytes=4MiB'

expect 'the run that has all the memory' 0 '' pretrain one
# shellcheck disable=SC2086 # words
expect 'under a budget' 0 '' pretrain small $small --set recompute=auto --set debug.poison=true
same_bits 'has its bits' one small 12
expect 'all kinds away, updated on the host' 0 '' \
    pretrain away --set 'memory.offload=[activations, optimizer, gradients, weights]' --set memory.update=host
same_bits 'with the same bits' one away 12
mkdir "$dir/disk"
# shellcheck disable=SC2086
expect 'part of it in a file' 0 '' pretrain file $small --set memory.host_bytes=1MiB --set "memory.file=$dir/disk"
same_bits 'and still' one file 12
expect 'which is gone at the end' 0 '' test -z "$(ls -A "$dir/disk")"

# Below the floor: before a step, by name, with what is needed.
expect 'refused' 4 'needs at least [0-9.]+ MiB of the device.s memory, and may take 1.0 MiB: most of it in [a-z_]+ of [a-z0-9 ]+(, layer [0-9]+,)? with .*hint: a smaller train.micro_batch, more ranks' \
    pretrain low --set memory.offload=auto --set memory.device_bytes=1MiB
expect 'and nothing was trained' 1 '' test -e "$dir/low/metrics.jsonl"
expect 'refused, where nothing may leave' 4 'hint: .*memory.offload' pretrain none --set memory.device_bytes=4MiB

# What a plan says is what the run takes.
# shellcheck disable=SC2086
expect 'a plan' 0 '' "$lmtrain" plan "$dir/job.yaml" --json $small
planned=$(printf '%s\n' "$output" | sed -n 's/.*"total_bytes":[^0-9]*\([0-9]*\).*/\1/p' | head -n 1)
# shellcheck disable=SC2086
expect 'a run of it' 0 '' pretrain planned $small
expect "takes $planned bytes" 0 "\"memory_bytes\":$planned," tail -n 2 "$dir/planned/metrics.jsonl"

# Killed while copies are under way, as the link is slow, and gone on with under other budgets.
slow='--set memory.link=30MB/s'
# killed PLACE MORE... - there
killed() {
    killed_place=$1
    shift
    # shellcheck disable=SC2086
    expect "killed at $killed_place" 137 sigkill env "LMTRAIN_FAULT=rank0:$killed_place" \
        "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/broken" $slow "$@"
}
# shellcheck disable=SC2086
killed gradients:2 $small --set debug.poison=true
killed gradients:6 --set 'memory.offload=[optimizer, gradients]' --set memory.update=host
# shellcheck disable=SC2086
killed gradients:10 $small --set recompute=auto --set memory.device_bytes=4500KiB
expect 'to its end' 0 '' pretrain broken --set 'memory.offload=[weights]'
bits broken | sort -n | uniq >"$dir/bits.broken"
bits one >"$dir/bits.one"
expect 'with the same bits' 0 '' cmp "$dir/bits.broken" "$dir/bits.one"
finish
