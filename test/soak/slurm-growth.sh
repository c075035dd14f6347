#!/bin/sh
# test/soak/slurm-growth.sh - a Slurm allocation that gets another node while a job runs: a restart takes it in
#
# Slurm lets a job be changed only once its accounting is written, which takes up to half a minute.
# shellcheck disable=SC2016,SC2317 # sh's; functions that expect and wait_until call
. test/cli/support/check.sh
. test/cli/support/tiny.sh
. test/cli/support/slurm.sh

if ! slurm_start; then
    echo "skip slurm: $slurm_missing"
    finish
fi
lmtrain=$(realpath "$lmtrain")
sed -i '/^ranks: 1$/d' "$dir/job.yaml"
has_logged() { [ "$(n_logged "$1")" -ge "$2" ]; }
kill_rank() {
    printf 'output=%s/%s' "$dir" "$1" >"$dir/pattern"
    # shellcheck disable=SC2013 # numbers
    for process in $(grep -lsFf "$dir/pattern" /proc/[0-9]*/cmdline | cut -d/ -f3); do
        tr '\0' '\n' 2>/dev/null <"/proc/$process/environ" | grep -qx "PMIX_RANK=$2" && kill -KILL "$process" && return
    done
    return 1
}

LMTRAIN_FAULT=rank0:step15:stall timeout --foreground 200 salloc --quiet -N 1 "$lmtrain" pretrain "$dir/job.yaml" \
    --set "output=$dir/grow" --set train.steps=40 --set restarts=1 --set eval.every_steps=0 \
    --set checkpoint.every_steps=5 >"$dir/grow.out" 2>&1 &
pid=$!
expect 'a job on one node' 0 '' wait_until 60 has_logged grow 14
job=$(squeue -h -o %i | head -n 1)
# Slurm writes scripts into the current folder.
expect 'a second job gives its node away' 0 '' sh -c 'cd "$0" && timeout 60 salloc --quiet -N 1 -w n2 \
    --dependency=expand:"$1" sh -c "scontrol update jobid=\$SLURM_JOB_ID NumNodes=0"' "$dir" "$job"
expect 'to the first' 0 '' wait_until 120 sh -c 'cd "$0" && scontrol update jobid="$1" NumNodes=ALL
    scontrol show job "$1" | grep -q NumNodes=2' "$dir" "$job"
kill_rank grow 0
wait "$pid"
expect 'the job ends well' 0 '^done: step 40' sh -c 'cat "$0"; exit "$1"' "$dir/grow.out" $?
expect 'on the new node as well' 0 'host n2 is new in the allocation and is used' cat "$dir/grow.out"
expect 'with a rank on it' 0 'restarting \(1 of 1\) with 2 ranks' cat "$dir/grow.out"
finish
