#!/bin/sh
# test/cli/operations-containers.sh - ranks in containers: with stand-ins for srun and apptainer, whose PMIx is mpirun's
# shellcheck disable=SC2016,SC2317 # sh's; functions that expect calls
. test/cli/support/check.sh
. test/cli/support/tiny.sh
lmtrain=$(realpath "$lmtrain")
sed -i '/^ranks: 1$/d' "$dir/job.yaml"
plain='--set eval.every_steps=0 --set checkpoint.every_steps=0'

# in_allocation COMMAND... - as in a batch script of Slurm, one node of four CPUs
in_allocation() {
    env SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=1 SLURM_JOB_CPUS_PER_NODE=4 SLURM_JOB_NODELIST=n1 "$@"
}

# ---- other launchers ----

# shellcheck disable=SC2086 # words
for variables in 'PMI_FD=9 PMI_RANK=0 PMI_SIZE=2' 'PMI_FD=9 PMI_RANK=1' 'MV2_COMM_WORLD_RANK=0 MV2_COMM_WORLD_SIZE=2' \
    'MPI_LOCALRANKID=1' 'MPIRUN_NPROCS=2'; do
    expect "refused, not trained as a job of its own: $variables" 2 \
        'this launcher \(Hydra of MPICH or Intel MPI, MVAPICH, .*\(hint: Open MPI.s mpirun, srun --mpi=pmix, or lmtrain by itself' \
        env $variables "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/hydra" $plain
done
expect 'no run was begun' 1 '' test -e "$dir/hydra/metrics.jsonl"

# as_rank VERSION - a rank of a server that is not there
as_rank() { env PMIX_NAMESPACE=x PMIX_RANK=0 PMIX_VERSION="$1" "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/pmix"; }
expect 'a PMIx of another version is named' 2 \
    "PMIx_Init: .*; the launcher's PMIx is version 9.0.1, lmtrain's is [0-9.a-z]*, .*\(hint: build lmtrain, or its container, with PMIx 9" \
    as_rank 9.0.1
expect 'one of which nothing is known, too' 5 "launcher's PMIx does not say its version, lmtrain's is [0-9]" as_rank ''

# ---- arguments of srun ----

expect 'an argument that contradicts ours' 2 \
    "job.yaml: launch.srun_args: --ntasks=4 contradicts what lmtrain tells srun \(hint: --ranks N, or ranks in the job\)" \
    pretrain wrong --set 'launch.srun_args=[--container-image=a.sqsh, --ntasks=4]'
expect 'one without its dashes' 2 "launch.srun_args: 'a.sqsh' is no option \(hint: an option and its value are one item" \
    pretrain wrong --set 'launch.srun_args=[--container-image, a.sqsh]'

# ---- inside sbatch, in a container without srun ----

mkdir "$dir/empty"
expect 'no srun in the container' 1 \
    'srun --version. does not work here \(hint: .*srun --mpi=pmix apptainer exec /images/a.sif lmtrain .*--hosts with the allocation' \
    in_allocation env PATH="$dir/empty" APPTAINER_CONTAINER=/images/a.sif "$lmtrain" pretrain "$dir/job.yaml" \
    --set "output=$dir/without" --ranks 2

# ---- srun --container-image, and srun apptainer ----

if ! command -v mpirun >/dev/null; then
    echo 'skip srun: no mpirun for its stand-in'
    finish
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=0
mkdir "$dir/bin"
cat >"$dir/bin/srun" <<'END'
#!/bin/sh
case $1 in
--version) echo 'slurm-wlm 22.05.8' && exit ;;
--mpi=list) echo pmix && exit ;;
esac
printf '%s ' "$@" >"$0.argv"
while [ "$1" != -- ]; do
    case $1 in --ntasks=*) n=${1#*=} ;; esac
    shift
done
shift
unset SLURM_JOB_ID SLURM_JOB_NUM_NODES SLURM_JOB_CPUS_PER_NODE SLURM_JOB_NODELIST
exec mpirun --oversubscribe -n "$n" "$@"
END
cat >"$dir/bin/apptainer" <<'END'
#!/bin/sh
[ "$1" = exec ] || exit 1
shift
while [ "$1" != image.sif ]; do shift; done
shift
APPTAINER_CONTAINER=image.sif exec "$@"
END
chmod +x "$dir/bin/srun" "$dir/bin/apptainer"
PATH=$dir/bin:$PATH

# shellcheck disable=SC2086 # words
{
    expect 'two ranks' 0 '^done' pretrain two --ranks 2 $plain
    expect 'srun --container-image' 0 '^done' in_allocation "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/image" \
        $plain --ranks 2 \
        --set 'launch.srun_args=[--container-image=a.sqsh, --gpus-per-task=1, --network=single_node_vni]'
    expect 'has them behind ours, before the command' 0 \
        "^--mpi=pmix .*--ntasks=2 .* --container-image=a.sqsh --gpus-per-task=1 --network=single_node_vni -- $lmtrain pretrain" \
        cat "$dir/bin/srun.argv"
    same_bits 'with the same bits' two image 12
    expect "srun apptainer, with the host's PMIx" 0 '^done' in_allocation srun --mpi=pmix --ntasks=2 -- \
        apptainer exec --bind /tmp image.sif "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/apptainer" $plain
    same_bits 'with the same bits, too' two apptainer 12
}
finish
