#!/bin/sh
# test/cli/sweep-slurm.sh - lmtrain sweep in a Slurm allocation of two nodes, on a part of one, and as an array
# shellcheck disable=SC2016,SC2317 # sh -c has parameters of its own; functions that expect and wait_until call
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
# As in slurm.sh: ranks share cores.
export OMPI_MCA_mpi_yield_when_idle=0
sed -i '/^ranks: 1$/d' "$dir/job.yaml"

bounded() { timeout --foreground 200 "$@"; }
# job NAME KEYS - $dir/NAME.yaml with sweep: {KEYS}, in $dir/NAME
job() {
    sed "s,^output: .*,output: $dir/$1," "$dir/job.yaml" >"$dir/$1.yaml"
    printf 'sweep: {%s}\n' "$2" >>"$dir/$1.yaml"
}
# in_allocation SALLOC-ARGUMENTS NAME ARGUMENTS... - the sweep of $dir/NAME.yaml, as a user types it there
in_allocation() {
    in_arguments=$1 in_name=$2
    shift 2
    # shellcheck disable=SC2086 # words
    bounded salloc --quiet $in_arguments "$lmtrain" sweep "$dir/$in_name.yaml" "$@"
}
# best NAME - of a sweep
best() { sed -n 's/.*"best": \([0-9]*\).*/\1/p' "$dir/$1/sweep.jsonl"; }

rates='parameters: {optimizer.lr: [1.0e-3, 3.0e-3, 1.0e-2, 3.0e-2]}, search: grid'

job serial "$rates"
expect 'one trial at a time has both nodes' 0 '^4 trials: 4 finished$' in_allocation '-N 2' serial --set train.steps=4
expect 'a rank on each' 0 'srun .*--nodes=2 --ntasks=2 ' cat "$dir/serial/log/trial-000.log"
job paired "$rates, parallel: 2"
expect 'two at a time have a node each' 0 '^4 trials: 4 finished$' in_allocation '-N 2 --ntasks-per-node=2' paired --set train.steps=4
expect 'with its tasks' 0 'srun .*--nodes=1 --ntasks=2 ' cat "$dir/paired/log/trial-000.log"
expect 'both are used' 0 '^n1 n2 $' sh -c 'sed -n "s/.*--exclude=\([^ ]*\) .*/\1/p" "$1"/log/trial-*.log | sort -u | tr "\n" " "' sh "$dir/paired"
expect 'the best is the best of all' 0 '' test "$(best paired)" = "$(best serial)"
job three "$rates, parallel: 3"
expect 'more trials than nodes' 2 'sweep.parallel is 3, but this Slurm allocation has 2 nodes \(hint: parallel: 2, or --nodes=3' \
    in_allocation '-N 2' three
expect 'nothing was begun' 0 '' test ! -e "$dir/three"
LMTRAIN_NODES=n7 expect 'nodes that are not in the allocation' 2 'LMTRAIN_NODES is n7, but the allocation has no such nodes: n\[1-2\]' \
    bounded salloc --quiet -N 2 "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/nowhere"

# A batch script is on its node, whose cores are divided.
job batch "$rates, parallel: 2"
printf '#!/bin/sh\nlmtrain sweep "%s" --set train.steps=4\n' "$dir/batch.yaml" >"$dir/batch.sh"
expect 'a batch script on one node' 0 '' bounded sbatch --wait --quiet -N 1 -c 4 --output="$dir/batch.out" "$dir/batch.sh"
expect 'runs two trials at a time there' 0 '^4 trials: 4 finished$' cat "$dir/batch.out"
expect 'without srun' 0 '^0$' sh -c 'cat "$1"/log/*.log | grep -c "srun "; true' sh "$dir/batch"
expect 'with the same best' 0 '' test "$(best batch)" = "$(best serial)"

# ---- an array ----

job array "$rates"
# As a user does: copy it, change how many trials and what each gets.
sed -e '/--gpus/d' -e '/--mem/d' -e 's/ntasks-per-node=8$/ntasks-per-node=1/' -e 's/cpus-per-task=8$/cpus-per-task=2/' \
    -e 's/^#SBATCH --array=.*/#SBATCH --array=0-2/' -e "s,sweep job.yaml --trial,sweep $dir/array.yaml --set train.steps=4 --trial," \
    scripts/slurm/sweep-array.sbatch >"$dir/array.sbatch"
expect 'three of four trials as an array' 0 '' bounded sbatch --wait --quiet --output="$dir/array-%a.out" "$dir/array.sbatch"
for trial in 0 1 2; do
    expect "task $trial is trial $trial" 0 '^done: step 4' cat "$dir/array-$trial.out"
done
expect 'the sweep takes them, and runs the fourth' 0 '^4 trials: 4 finished$' "$lmtrain" sweep "$dir/array.yaml" --set train.steps=4 --set ranks=1
expect 'it started one process' 0 '^trial-003.log$' ls "$dir/array/log"
expect 'and no other' 0 '^1$' sh -c 'ls "$1" | wc -l' sh "$dir/array/log"

# Trials that are compared: tasks that take them in turn, as the script's head says.
job join "$rates, stop: asha, eta: 2, min_steps: 4, asynchronous: true"
sed -e 's/^#SBATCH --array=.*/#SBATCH --array=0-1/' -e "s,$dir/array.yaml --set train.steps=4 --trial.*,$dir/join.yaml --set train.steps=8 --join," \
    "$dir/array.sbatch" >"$dir/join.sbatch"
expect 'two tasks that join' 0 '' bounded sbatch --wait --quiet --output="$dir/join-%a.out" "$dir/join.sbatch"
expect 'both had trials' 0 '^2$' sh -c 'grep -l "^trial [0-9]: step" "$1"-[01].out | wc -l' sh "$dir/join"
expect 'the later one has the table' 0 '^4 trials: [1-3] finished, [1-3] stopped$' sh -c 'cat "$1"-[01].out' sh "$dir/join"
expect 'of decisions that replay' 0 'all as the rules make them' "$lmtrain" sweep "$dir/join" --replay
finish
