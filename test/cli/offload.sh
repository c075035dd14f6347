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

filed="$small --set memory.host_bytes=1KiB"
# shellcheck disable=SC2086
expect 'refused, where the host has too little' 4 'sends .* to the host, which may take 1.0 KiB \(hint: a larger memory.host_bytes or memory.device_bytes' \
    pretrain none $filed
# shellcheck disable=SC2086
expect 'a folder that is not there' 2 'memory.file: no file of .* in .*/gone: No such file .*hint: make the folder' \
    pretrain none $filed --set "memory.file=$dir/gone"
# shellcheck disable=SC2016,SC2086 # of the inner shell
expect 'a limit of sizes of files' 4 'memory.file: no file of .*: File too large .*ulimit -f' \
    sh -c 'ulimit -f 1000; exec "$@"' sh "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/none" $filed --set "memory.file=$dir/disk"

# What a plan says is what the run takes.
# shellcheck disable=SC2086
expect 'a plan' 0 '' "$lmtrain" plan "$dir/job.yaml" --json $small
planned=$(printf '%s\n' "$output" | sed -n 's/.*"total_bytes":[^0-9]*\([0-9]*\).*/\1/p' | head -n 1)
# shellcheck disable=SC2086
expect 'a run of it' 0 '' pretrain planned $small
expect "takes $planned bytes" 0 "\"memory_bytes\":$planned," cat "$dir/planned/metrics.jsonl"

# Killed while copies are under way, as the link is slow, and gone on with under other budgets.
slow='--set memory.link=30MB/s'
# killed RUN PLACE MORE... - there
killed() {
    killed_run=$1 killed_place=$2
    shift 2
    # shellcheck disable=SC2086
    expect "killed at $killed_place" 137 sigkill env "LMTRAIN_FAULT=rank0:$killed_place" \
        "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/$killed_run" $slow "$@"
}
# shellcheck disable=SC2086
killed broken gradients:2 $small --set debug.poison=true
killed broken gradients:6 --set 'memory.offload=[optimizer, gradients]' --set memory.update=host
# shellcheck disable=SC2086
killed broken gradients:10 $small --set recompute=auto --set memory.device_bytes=4500KiB
expect 'to its end' 0 '' pretrain broken --set 'memory.offload=[weights]'
# same_in_the_end RUN OTHER - of steps that a run did twice, too
same_in_the_end() {
    bits "$1" | sort -n | uniq >"$dir/bits.a"
    bits "$2" >"$dir/bits.b"
    expect 'with the same bits' 0 '' cmp "$dir/bits.a" "$dir/bits.b"
}
same_in_the_end broken one

# Split masters in a file, and gone on with whole ones that the host updates.
half='--set optimizer.weight_rounding=half_away'
# shellcheck disable=SC2086
expect 'rounded half away' 0 '' pretrain half $half
# shellcheck disable=SC2086
killed masters gradients:7 $half $filed --set optimizer.masters=split --set "memory.file=$dir/disk"
# shellcheck disable=SC2086
expect 'to its end' 0 '' pretrain masters $half --set 'memory.offload=[optimizer, weights]' --set memory.update=host
same_in_the_end masters half
finish
