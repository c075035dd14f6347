#!/bin/sh
# test/cli/operations-tiers.sh - local checkpoints (checkpoint.local): where a run resumes, with which bits, and what stays
. test/cli/support/check.sh
. test/cli/support/tiny.sh

disk=$dir/disk
keys="--ranks 2 --set checkpoint.every_steps=6"
local="$keys --set checkpoint.local=$disk --set checkpoint.local_every_steps=2"

# said NAME PATTERN RUN
said() { expect "$1" 0 "$2" cat "$dir/$3.out"; }
# run NAME STATUS RUN FAULT ARGUMENTS... - its output is added to $dir/RUN.out; the last one's is $dir/last.out
run() {
    run_name=$1 run_status=$2 run_run=$3 run_fault=$4
    shift 4
    LMTRAIN_FAULT=$run_fault expect "$run_name" "$run_status" '' pretrain "$run_run" "$@"
    printf '%s\n' "$output" | tee -a "$dir/$run_run.out" >"$dir/last.out"
}
# kept RUN - its local checkpoints
# shellcheck disable=SC2317 # expect calls it
kept() { (cd "$disk" && find "$1"-* -name 'step-*' | sed 's/-[0-9a-f]*\//\//' | sort | xargs); }

# shellcheck disable=SC2086 # words, below too
start quiet $keys
quiet=$pid
# shellcheck disable=SC2086
LMTRAIN_FAULT=rank1:save:writing:4:sleep4 start slow $keys --set "checkpoint.local=$dir/other" --set checkpoint.local_every_steps=2
slow=$pid

# ---- keys that do not fit together ----

mistake() {
    mistake_name=$1 mistake_pattern=$2
    shift 2
    expect "$mistake_name" 2 "$mistake_pattern" pretrain mistake "$@"
}
mistake 'no interval' 'checkpoint.local is given, but checkpoint.local_every_steps is not \(hint: local_every_steps: 10\)' \
    --set "checkpoint.local=$disk"
mistake 'no folder' 'checkpoint.local_every_steps is given, but checkpoint.local is not \(hint: a folder on a disk' \
    --set checkpoint.local_every_steps=2
mistake 'not absolute' 'checkpoint.local is disk, not an absolute path' --set checkpoint.local=disk \
    --set checkpoint.local_every_steps=2
mistake 'in the run folder' "checkpoint.local is $dir/mistake/disk, in the run folder" \
    --set "checkpoint.local=$dir/mistake/disk" --set checkpoint.local_every_steps=2
pid=$quiet
ended 'a run without them' 0 quiet

# ---- two jobs with one disk are killed, and go on ----

# shellcheck disable=SC2086
{
    run 'a run is killed' 5 first rank1:step12 $local
    run 'and another' 5 second rank1:step12 $local --set checkpoint.local_keep=2
}
expect 'one has its newest local checkpoint' 0 '^first/rank-00000/step-00000010 first/rank-00001/step-00000010$' kept first
expect 'the other two' 0 'rank-00000/step-00000008 second/rank-00000/step-00000010 .*/step-00000010$' kept second
expect 'which only their owner reads' 0 '' test -z "$(find "$disk" -perm /077)"
# shellcheck disable=SC2086
run 'it goes on' 0 first '' $local
said 'from there' "resuming from the local checkpoints of step 10 \($disk/first-[0-9a-f]* on 1 host\)" last
same_bits 'with the same bits' quiet first 12
expect 'its checkpoints are those of a quiet run' 0 '' cmp "$dir/quiet/checkpoints/step-00000012/rank-00001.safetensors" \
    "$dir/first/checkpoints/step-00000012/rank-00001.safetensors"
expect 'of a run that has ended nothing is left' 0 '' test -z "$(ls -d "$disk/first"* 2>/dev/null)"

cp -r "$dir/second" "$dir/copy"
rm -r "$disk"/second-*/rank-00001/step-00000010
# shellcheck disable=SC2086
run 'without the newest of one rank' 5 second rank1:step12 $local --set checkpoint.local_keep=2
said 'it goes on from the one before' 'rank 1 on .* has no local checkpoint of step 10$' last
said 'which all have' 'resuming from the local checkpoints of step 8 ' last
rm -r "$disk"/second-*/rank-00001
# shellcheck disable=SC2086
run 'without those of one rank' 5 second rank1:step12 $local
said 'from that of the run folder' 'rank 1 on .* has no local checkpoint of step 10: resuming from .*/step-00000006, step 6' last
# shellcheck disable=SC2086
run 'in another layout' 5 second rank1:step12 $local --set parallel.zero=1
said 'likewise' 'has no local checkpoint \(it is of another layout\): resuming from .*/step-00000006, step 6' last
for file in "$disk"/second-*/rank-00001/step-00000010/rank-00000.safetensors; do
    printf x | dd of="$file" bs=1 seek="$(($(wc -c <"$file") - 5))" conv=notrunc 2>/dev/null
done
# shellcheck disable=SC2086
run 'with one that is damaged' 0 second '' $local --set parallel.zero=1
said 'likewise' 'is damaged: its hash differs' last
said 'from the run folder' 'resuming from .*/step-00000006, step 6' last
same_bits 'with the same bits' quiet second 12
# shellcheck disable=SC2086
run 'of a run folder that lies elsewhere' 0 copy '' $local
said 'local checkpoints are not used' 'resuming from .*/step-00000006, step 6' last

# ---- kills while they are written, before any other, and after the run went back ----

# restarted NAME RUN FAULT STEP - it restarts from the local checkpoints of that step
restarted() {
    # shellcheck disable=SC2086
    run "$1" 0 "$2" "$3" $local --set restarts=1
    said 'it resumes' "resuming from the local checkpoints of step $4 " "$2"
    same_bits 'with the same bits' quiet "$2" 12
}
restarted 'a kill in the midst of a local save' writing rank1:save:writing:10 8
restarted 'at its commit' commit rank1:save:before_commit:10 8
restarted 'before the first of the run folder' early rank0:step6 4
# shellcheck disable=SC2086
{
    run 'a run that is new' 5 new rank0:step5 $local
    rm -r "$dir/new"
    run 'in a folder that was removed' 0 new '' $local
}
said 'begins anew' 'starting with random weights' last
spike="--set train.on_spike=rewind --set train.spike_window=3 --set train.spike_z=30 --set train.spike_margin=1"
# shellcheck disable=SC2086
{
    run 'a run goes back' 0 back rank1:gradients:9:spike $keys $spike
    run 'with local checkpoints, and is killed' 0 back2 rank1:gradients:9:spike,rank0:step12 $local $spike --set restarts=1
}
said 'it resumes after that' 'resuming from the local checkpoints of step 10 ' back2
same_bits 'with the same bits' back back2 12
expect 'nothing is left' 0 '' test -z "$(ls -A "$disk")"

# ---- disks that do not take them ----

# shellcheck disable=SC2086
run 'a path that is no folder' 0 file '' $keys --set "checkpoint.local=$dir/train.txt" --set checkpoint.local_every_steps=2
said 'is a warning' 'step 2 is not saved locally: .*train.txt.*; training continues' last
expect 'and an event' 0 '"event":"local save failed"' cat "$dir/file/metrics.jsonl"
same_bits 'of the same bits' quiet file 12
mkdir "$dir/full"
export dir
if [ "$(id -u)" = 0 ] && unshare -m mount -t tmpfs tmpfs "$dir/full" 2>/dev/null; then
    # shellcheck disable=SC2016,SC2086
    expect 'a disk that is full' 0 'step 2 is not saved locally: .*No space left on device; training continues' unshare -m sh -c '
        mount -t tmpfs -o size=1m tmpfs "$dir/full" && "$@"' sh "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/small" $keys \
        --set "checkpoint.local=$dir/full" --set checkpoint.local_every_steps=2
    same_bits 'changes nothing else' quiet small 12
else
    echo 'skip a full disk: a file system cannot be mounted here'
fi
pid=$slow
ended 'a disk that is slow is waited for' 0 slow
said 'a save that is due meanwhile is made up for' \
    'step 6 is not saved yet: the local checkpoint of step 4 is still being written' slow
same_bits 'no bit changes' quiet slow 12
finish
