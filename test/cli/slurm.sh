#!/bin/sh
# test/cli/slurm.sh - ranks under a real Slurm of two nodes: steps, batch scripts, bare in an allocation, deaths
# shellcheck disable=SC2317 # functions that expect and wait_until call
. test/cli/support/check.sh
. test/cli/support/tiny.sh
. test/cli/support/left.sh
. test/cli/support/slurm.sh

if ! slurm_start; then
    echo "skip slurm: $slurm_missing"
    finish
fi
lmtrain=$(realpath "$lmtrain")
PATH=$(dirname "$lmtrain"):$PATH
# Several ranks share a core here: one that polls by sched_yield would keep those of the other node off it (lib/launch/node/node.c).
export OMPI_MCA_mpi_yield_when_idle=0
# How many ranks there are is for each start to say.
sed -i '/^ranks: 1$/d' "$dir/job.yaml"

# bounded COMMAND... - no Slurm that hangs may hang us
bounded() { timeout --foreground 60 "$@"; }
# step RUN SRUN-ARGUMENTS... -- ARGUMENTS... - the job as a step of ranks that srun starts
step() {
    step_run=$1
    shift
    step_srun=
    while [ "$1" != -- ]; do
        step_srun="$step_srun $1"
        shift
    done
    shift
    # shellcheck disable=SC2086 # words
    bounded srun $step_srun "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/$step_run" "$@"
}
# bare RUN SALLOC-ARGUMENTS... -- ARGUMENTS... - the job in an allocation, as a user types it there
bare() {
    bare_run=$1
    shift
    bare_salloc=
    while [ "$1" != -- ]; do
        bare_salloc="$bare_salloc $1"
        shift
    done
    shift
    # shellcheck disable=SC2086 # words
    bounded salloc --quiet $bare_salloc "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/$bare_run" "$@"
}
# start_bare: the same in the background, as $pid, its output in $dir/RUN.out
start_bare() {
    bare "$@" >"$dir/$1.out" 2>&1 &
    pid=$!
}
# rank_of RUN NUMBER - its process, in our numbers
rank_of() {
    printf 'output=%s/%s' "$dir" "$1" >"$dir/pattern"
    # shellcheck disable=SC2013 # numbers
    for process in $(grep -lsFf "$dir/pattern" /proc/[0-9]*/cmdline | cut -d/ -f3); do
        tr '\0' '\n' 2>/dev/null <"/proc/$process/environ" | grep -qx "PMIX_RANK=$2" && echo "$process" && return
    done
}
# command_of RUN - what was typed: the one lmtrain of it that is no rank nor, with a rank's environment, a watcher
command_of() {
    for process in $(processes "$1"); do
        tr '\0' '\n' 2>/dev/null <"/proc/$process/environ" | grep -q '^PMIX_RANK=' || echo "$process" && return
    done
}
# shellcheck disable=SC2317 # wait_until calls it
has_logged() { [ "$(n_logged "$1")" -ge "$2" ]; }
# shellcheck disable=SC2317
job_is() { [ "$(bounded squeue -h -j "$1" -o %T 2>/dev/null)" = "$2" ]; }
job_of() { bounded squeue -h -o %i | head -n 1; }
# shellcheck disable=SC2317
said() { grep -qE "$2" "$dir/$1"; }

# ---- the same bits, whoever starts the ranks ----

expect 'two ranks of our own server' 0 '^done: step 12 in' pretrain own2 --ranks 2
expect 'four ranks of our own server' 0 '^done: step 12 in' pretrain own4 --ranks 4
expect 'srun --mpi=pmix, two nodes' 0 '^done: step 12 in' step step2 --mpi=pmix -K -n 2 -N 2 --
same_bits 'the bits of our own server' own2 step2 12
expect 'bare in an allocation of two nodes: a rank on each' 0 '^done: step 12 in' bare bare2 -N 2 --
same_bits 'the same bits' own2 bare2 12
expect 'bare in an allocation of four tasks' 0 '^done: step 12 in' bare bare4 -n 4 -N 2 --
expect 'which are three and one, as Slurm deals them' 0 \
    '^lmtrain: warn: sums over ranks do not go by node: nodes have 1 to 3 of the 4 ranks: .*\(hint: as many on each, by --ntasks-per-node' \
    printf '%s\n' "$output"
expect 'says how it starts them' 0 'srun --mpi=pmix .*--nodes=2 --ntasks=4 ' printf '%s\n' "$output"
same_bits 'the same bits as our own server with four' own4 bare4 12
expect 'fewer ranks than tasks' 0 '^done: step 12 in' bare fewer -n 4 -- --ranks 2
same_bits 'the bits of two' own2 fewer 12
expect 'the only task of a step is its own supervisor' 0 '^done: step 12 in' step alone -n 1 -- --ranks 2
same_bits 'the bits of two, again' own2 alone 12

# ---- a node that is excluded, and the spare in its place ----

mkdir "$dir/spare"
echo 'n1 slow' >"$dir/spare/excluded_hosts"
expect 'a rank on the spare node' 0 '^done: step 12 in' bare spare -N 2 -- --set launch.spares=1
printf '%s\n' "$output" >"$dir/spare.out"
expect 'which is named' 0 '' said spare.out 'host n2, a spare, takes the place of n1 \(excluded\)'
expect 'srun leaves the other out' 0 '' said spare.out 'srun .*--nodes=1 --ntasks=1 .*--exclude=n1 -- '
expect 'as many spares as nodes' 2 'launch.spares is 2, but the allocation has 2 hosts' bare wrong -N 2 -- \
    --set launch.spares=2 --ranks 2

# ---- generate and eval ----

. test/cli/support/serving.sh
serving_alone "$dir/own2"
serving_like 'srun --mpi=pmix, two nodes' '--pp 2 --threads 1' bounded srun --quiet --mpi=pmix -K -n 4 -N 2
serving_like 'bare in an allocation of two nodes' '--threads 1' bounded salloc --quiet -n 2 -N 2

# ---- wrongly ----

expect 'a step without PMIx' 2 'one of 2 tasks of a Slurm step without PMIx.*hint: srun --mpi=pmix' step wrong -n 2 --
expect 'PMI-2 is no PMIx' 2 'without PMIx.*hint: srun --mpi=pmix' step wrong -n 2 --mpi=pmi2 --
expect 'more ranks than tasks' 2 'ranks is 4, but the launcher started 2' step wrong --mpi=pmix -K -n 2 -- --ranks 4
expect 'fewer ranks than tasks' 2 'ranks is 2, but the launcher started 3' step wrong --mpi=pmix -K -n 3 -- --ranks 2
expect 'tasks that are not the product of the degrees' 2 '3 ranks' \
    step wrong --mpi=pmix -K -n 3 -- --set parallel.dp=2
expect 'bare, more ranks than tasks' 2 '^lmtrain: 4 ranks are requested, but this Slurm allocation has 2 tasks.*--ntasks=4' \
    bare wrong -n 2 -- --ranks 4
expect 'bare, more ranks than cores' 2 '^lmtrain: 9 ranks are requested, but this Slurm allocation has room for 8' \
    bare wrong -N 2 --exclusive -- --ranks 9 --set train.global_batch=18
expect 'nothing was begun' 0 '' test ! -e "$dir/wrong/metrics.jsonl"

# ---- a batch script, stopped and put back into the queue ----

long='--set train.steps=120 --set eval.every_steps=0 --set checkpoint.every_steps=20'
endless='--set train.steps=100000 --set eval.every_steps=0 --set checkpoint.every_steps=20' # what is ended before
# shellcheck disable=SC2086 # words
expect 'an unbroken run' 0 '^done: step 120' pretrain whole2 --ranks 2 $long

# As a user does: copy it, change how much of each node, and the job's name.
sed -e 's/ntasks-per-node=2$/ntasks-per-node=1/' -e 's/cpus-per-task=16$/cpus-per-task=2/' \
    -e "s,pretrain job.yaml\$,pretrain $dir/job.yaml --set output=$dir/batch $long," \
    scripts/slurm/cpu-nodes.sbatch >"$dir/batch.sbatch"
job=$(bounded sbatch --parsable --output="$dir/batch.out" "$dir/batch.sbatch")
expect 'a batch script starts ranks' 0 '' wait_until 60 has_logged batch 5
# What --signal brings when the time is nearly up.
bounded scancel --signal=USR1 "$job"
expect 'told that the time is up it saves' 0 '' wait_until 60 said batch.out 'saved step [0-9]+ of 120 on a signal'
expect 'and goes back into the queue' 0 '' wait_until 60 said batch.out 'back into the queue \(restart 1\)'
expect 'it runs again and ends' 0 '' wait_until 100 said batch.out '^done: step 120'
expect 'from where it was' 0 '' said batch.out 'resuming from .*step [0-9]+$'
same_bits 'with the bits of the unbroken run' whole2 batch 120
expect 'and leaves the queue' 0 '' wait_until 60 job_is "$job" ''

for script in one-gpu one-node many-nodes; do
    # This Slurm has no GPUs and only two nodes.
    sed -e '/--gpus/d' -e 's/nodes=4$/nodes=2/' -e 's/per-node=8$/per-node=2/' -e 's/per-task=8$/per-task=2/' \
        -e '/--mem/d' -e "s,pretrain job.yaml\$,pretrain $dir/job.yaml --dry-run," "scripts/slurm/$script.sbatch" \
        >"$dir/$script.sbatch"
    expect "$script.sbatch is for GPUs" 0 'make CUDA=1.*|device: cuda' grep -e 'make CUDA=1' -e 'device: cuda' "scripts/slurm/$script.sbatch"
    expect "and asks for them" 0 '^#SBATCH --gpus-per-node=[18]$' grep -e '^#SBATCH --g' "scripts/slurm/$script.sbatch"
    expect "$script.sbatch" 0 '' bounded sbatch --wait --output="$dir/$script.out" "$dir/$script.sbatch"
    expect "$script.sbatch finds the job" 0 '' said "$script.out" '^memory of a rank'
done

# ---- deaths ----

# shellcheck disable=SC2086
start_bare killed -n 4 -N 2 -- $endless
wait_until 120 has_logged killed 21 || { bounded squeue; sinfo; sed 's/^/    /' "$dir/killed.out"; }
victim=$(rank_of killed 3)
note_shared killed
expect 'with files in shared memory' 0 'lmtrain-.*vader_segment' cat "$dir/shm"
since=$(date +%s)
kill -KILL "$victim"
ended 'a killed rank ends the job on both nodes' 5 killed
expect 'within seconds' 0 '' test $(($(date +%s) - since)) -le 20
expect 'and is named' 0 'n2: task 3: Killed' cat "$dir/killed.out"
expect 'no process is left on either' 0 '' wait_until 25 is_gone killed
left=$(shared_left)
expect "and nothing in /dev/shm: $left" 0 '' test -z "$left"

# In a step that is not ours Slurm gives the other node 30 s to hear of it; its watcher hears at once.
# shellcheck disable=SC2086
step plain --mpi=pmix -K -n 4 -N 2 -- $endless >"$dir/plain.out" 2>&1 &
pid=$!
wait_until 120 has_logged plain 21
victim=$(rank_of plain 3)
since=$(date +%s)
kill -KILL "$victim"
ended 'a rank killed in a plain step ends it on both nodes' 137 plain
expect 'within seconds' 0 '' test $(($(date +%s) - since)) -le 20
expect 'it is named on the one' 0 '' said plain.out 'rank 3 on n2 (was killed|died).* \(last seen: '
expect 'and on the other' 0 '' said plain.out 'rank 3 on n2 (was killed|died).*: terminating the ranks of n1'
expect 'no process is left on either' 0 '' wait_until 25 is_gone plain
expect "the run's record has the death, once" 0 '^1$' grep -c '"event":"died","text":"rank 3 on n2 ' "$dir/plain/metrics.jsonl"
expect 'and no other' 0 '^1$' grep -c '"event":"died"' "$dir/plain/metrics.jsonl"

# Stalls are seen by the watcher of the node.
# shellcheck disable=SC2086
LMTRAIN_FAULT='rank3:op:attention layers.1:5:stall' expect 'a rank that stalls ends the job' 5 '' \
    bare stall -n 4 -N 2 -- $long --set train.hang_seconds=2 --set train.hang_abort_seconds=5
printf '%s\n' "$output" >"$dir/stall.out"
expect 'it is named, with op, layer and micro-batch' 0 '' \
    said stall.out 'rank 3 on n2 .*: in attention layers\.1, step 5, micro-batch 0 since'
expect 'on the other node, that it waits for this' 0 '' said stall.out "on n1 .*waits for a rank of another node"
expect "the run's record has the hang" 0 '"event":"hung","text":".*rank 3 on n2 .*attention layers.1' cat "$dir/stall/metrics.jsonl"
expect 'and the end' 0 '^1$' grep -c '"event":"died","text":"rank 3 on n2 made no progress' "$dir/stall/metrics.jsonl"
expect 'and why it ended' 0 '' said stall.out 'rank 3 on n2 made no progress for [0-9]+ s: terminating the ranks of n2'

# shellcheck disable=SC2086
start_bare again -n 2 -N 2 -- $long --set restarts=2
wait_until 60 has_logged again 21
kill -KILL "$(rank_of again 1)"
ended 'with restarts it goes on in place' 0 again
expect 'and says so' 0 'restarting .1 of 2. with 2 ranks' cat "$dir/again.out"
same_bits 'with the bits of the unbroken run, too' whole2 again 120

# shellcheck disable=SC2086
start_bare stopped -n 2 -N 2 -- $endless
wait_until 60 has_logged stopped 5
kill -TERM "$(command_of stopped)"
ended 'SIGTERM to the bare command saves' 75 stopped

# As a time limit that was short: srun is there, and its ranks hardly are.
# shellcheck disable=SC2086
start_bare early -n 2 -N 2 -- $endless
wait_until 60 said early.out 'srun --mpi=pmix'
kill -TERM "$(command_of early)"
ended 'SIGTERM while ranks start is no failure either' 75 early

# All ranks stopped together are no hang, however long; five seconds without a step are none on a busy machine either.
# shellcheck disable=SC2086
start_bare suspended -n 2 -N 2 -- $long --set train.hang_seconds=5 --set train.hang_abort_seconds=10
wait_until 60 has_logged suspended 5
job=$(job_of)
bounded scontrol suspend "$job"
sleep 12
bounded scontrol resume "$job"
ended 'a job that was suspended goes on' 0 suspended
refuse 'and was not taken for one that hangs' 'no progress|stall'
same_bits 'with the same bits' whole2 suspended 120

# A node is lost, with all that runs on it: the last, for it is gone then.
# shellcheck disable=SC2086
start_bare lost -n 2 -N 2 --no-kill -- $long --set restarts=1 --set train.hang_seconds=2 \
    --set train.hang_abort_seconds=4
wait_until 60 has_logged lost 21
kill -KILL "$slurm_n2_pid"
bounded scontrol update nodename=n2 state=down reason=lost
ended 'a job whose node is lost goes on with the other' 0 lost
expect 'and says so' 0 '1 of 2 ranks is left: parallel.dp is now 1' cat "$dir/lost.out"
finish
