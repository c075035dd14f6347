#!/bin/sh
# test/cli/sockets.sh - ranks that talk over sockets (LMTRAIN_COMM=tcp, all there is in a build without MPI): the bits of MPI for
# every way to divide the work, under our server, mpirun and over a network of several hosts; a death, a stall, a wrong word
# shellcheck disable=SC2016,SC2317 # texts of inner shells; functions called by name
. test/cli/support/check.sh
. test/cli/support/tiny.sh
. test/cli/support/hosts.sh
sed -i -e 's/n_kv_heads: 1/n_kv_heads: 2/' -e '/^ranks: 1$/d' "$dir/job.yaml"
plain='--set eval.every_steps=0 --set checkpoint.every_steps=0'
# A build without MPI has nothing to compare with: there the same runs are started twice.
other=mpi
# shellcheck disable=SC2086 # words
LMTRAIN_COMM=mpi pretrain probe --ranks 2 --set train.steps=4 $plain >"$dir/probe.out" 2>&1 || other=tcp
[ $other = mpi ] || expect 'a build without MPI says so' 0 'built without MPI.*LMTRAIN_COMM' cat "$dir/probe.out"

# both NAME RANKS ARGUMENTS...
both() {
    both_name=$1 both_ranks=$2
    shift 2
    # shellcheck disable=SC2086 # words
    LMTRAIN_COMM=$other expect "$both_name" 0 '^done: step 12 in' pretrain "$both_name-mpi" --ranks "$both_ranks" $plain "$@"
    # shellcheck disable=SC2086
    LMTRAIN_COMM=tcp expect "$both_name, over sockets" 0 '^done: step 12 in' pretrain "$both_name-tcp" --ranks "$both_ranks" \
        $plain "$@"
    same_bits 'the same bits' "$both_name-mpi" "$both_name-tcp" 12
}
both dp 2 --set parallel.dp=2
both pp 2 --set parallel.pp=2
both tp 2 --set parallel.tp=2
both 'all three' 8 --set parallel.dp=2 --set parallel.tp=2 --set parallel.pp=2 --set parallel.zero=1
both 'zero 3' 4 --set parallel.zero=3
export LMTRAIN_COMM=tcp
expect 'ranks generate' 0 '' "$lmtrain" generate --model "$dir/tp-tcp" --prompt 'In the' --max-new-tokens 4 --temperature 0 --tp 2

if command -v mpirun >/dev/null; then
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM OMPI_MCA_rmaps_base_oversubscribe
    # shellcheck disable=SC2086
    expect 'mpirun starts ranks, which need no MPI' 0 '^done: step 12' mpirun -n 2 "$lmtrain" pretrain "$dir/job.yaml" \
        --set "output=$dir/mpirun" --set parallel.dp=2 $plain
    same_bits 'the same bits' dp-tcp mpirun 12
    # As rootless containers, one a rank.
    if unshare -Ur true 2>/dev/null; then
        # shellcheck disable=SC2086
        expect 'ranks with a user namespace each' 0 '^done: step 12' mpirun -n 2 unshare -Ur "$lmtrain" pretrain "$dir/job.yaml" \
            --set "output=$dir/spaces" --set parallel.dp=2 $plain
        same_bits 'the same bits' dp-tcp spaces 12
    fi
fi

# ---- GPUs ----

# Ranks that share one have no NCCL: what lies in its memory goes through the host, by either.
emulated() {
    LMTRAIN_COMM=$1 LMTRAIN_EMULATE_DEVICES=1 "$(dirname "$lmtrain")/lmtrain-emulated" pretrain "$dir/job.yaml" --ranks 2 \
        --set "output=$dir/gpu-$1" --set device=cuda --set parallel.dp=2 --set parallel.reductions=fast --set train.steps=4 \
        --set eval.every_steps=0
}
if [ -x "$(dirname "$lmtrain")/lmtrain-emulated" ]; then
    expect 'ranks that share a GPU, and NCCL is asked to add' 0 'parallel.reductions is fixed: fast needs NCCL' emulated $other
    expect 'over sockets, and that they share it is said' 0 '2 ranks share a GPU on this node' emulated tcp
    same_bits 'the same bits' gpu-$other gpu-tcp 4
else
    echo 'skip GPUs: there is no lmtrain-emulated beside this binary'
fi

# ---- what breaks ----

LMTRAIN_FAULT=rank1:step:5:sigkill expect 'a rank is killed: it is named' 5 'rank 1 on .* was killed by signal 9' \
    pretrain killed --ranks 3 --set parallel.dp=3 --set train.global_batch=12
LMTRAIN_FAULT='rank1:op:attention layers.1:5:stall' expect 'a rank that hangs is named, and who waits for it' 5 \
    'rank 0 .*waits in [a-z_]+ tp.*rank 1 has not reached it: it is in attention layers\.1' pretrain hangs --ranks 2 \
    --set parallel.tp=2 --set train.hang_seconds=1 --set train.hang_abort_seconds=3
LMTRAIN_COMM=udp expect 'a word that is none' 2 "LMTRAIN_COMM is 'udp', not mpi or tcp" pretrain word --ranks 2

# ---- several hosts ----

reason=$(hosts_missing)
if [ -n "$reason" ]; then
    echo "skip several hosts: $reason"
    finish
fi
if ! hosts_start a b; then
    echo 'not ok two hosts start:'
    cat "$dir"/*.log
    exit 1
fi
# far RUN ARGUMENTS... - 4 ranks on two hosts
far() {
    far_run=$1
    shift
    # shellcheck disable=SC2086
    on a "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/$far_run" --hosts a:2,b:2 --set parallel.zero=3 $plain "$@"
}
expect 'two hosts' 0 '^done: step 12' far far
same_bits 'the same bits' 'zero 3-tcp' far 12
LMTRAIN_COMM_INTERFACE=$hosts_net.0/24 expect 'on a network that is named' 0 '^done: step 12' far named
LMTRAIN_COMM_INTERFACE=203.0.113.0/24 expect 'one that is not there' 2 \
    "LMTRAIN_COMM_INTERFACE is '203.0.113.0/24': this machine has no such interface" far wrong
finish
