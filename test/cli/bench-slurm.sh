#!/bin/sh
# test/cli/bench-slurm.sh - bench cluster as a step of two nodes that srun starts
# shellcheck disable=SC2317 # functions that expect calls
. test/cli/support/check.sh
. test/cli/support/tiny.sh
. test/cli/support/two_nodes.sh
. test/cli/support/left.sh
. test/cli/support/slurm.sh

if ! slurm_start; then
    echo "skip slurm: $slurm_missing"
    finish
fi
lmtrain=$(realpath "$lmtrain")
# As in slurm.sh: ranks share cores.
export OMPI_MCA_mpi_yield_when_idle=0

# step ARGUMENTS... - of four ranks on two nodes
step() { timeout --foreground 300 srun --mpi=pmix -K -n 4 -N 2 "$@"; }

expect 'two nodes are measured' 0 'slurm.yaml: [0-9]+ ops and 12 collectives of 4 ranks, ' \
    step --ntasks-per-node=2 "$lmtrain" bench cluster "$dir/job.yaml" --steps 2 --to "$dir/slurm.yaml"
of_two_nodes slurm
expect 'ranks that take turns on nodes are not' 2 'blocks of neighbours.*--distribution=block' \
    step --ntasks-per-node=2 --distribution=cyclic "$lmtrain" bench cluster "$dir/job.yaml" --steps 1 --to "$dir/cyclic.yaml"
finish
