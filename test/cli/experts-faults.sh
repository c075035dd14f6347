#!/bin/sh
# test/cli/experts-faults.sh - experts over ranks that are processes, over MPI and sockets; and what breaks in their exchange
. test/cli/support/check.sh
. test/cli/support/tiny.sh

experts="--set model.n_experts=4 --set model.n_active_experts=2 --set model.expert_ffn_size=32 --set train.micro_batch=1
    --set eval.every_steps=0 --set eval.data= --set checkpoint.every_steps=0 --set train.steps=4"

# divided RUN EP ARGUMENTS... - four ranks
divided() {
    divided_run=$1 divided_ep=$2
    shift 2
    # shellcheck disable=SC2086
    pretrain "$divided_run" --ranks 4 --set "parallel.ep=$divided_ep" $experts "$@"
}

# ---- the exchange between processes ----

# Where there is no MPI it is sockets once more.
other=mpi
LMTRAIN_COMM=mpi divided whole 1 >"$dir/whole.out" 2>&1 || other=tcp
[ $other = mpi ] || expect 'no MPI' 0 '^done' divided whole 1
for ep in 2 4; do
    LMTRAIN_COMM=$other expect "ep $ep over $other" 0 '^done' divided mpi$ep $ep --set parallel.zero=1
    LMTRAIN_COMM=tcp expect "ep $ep over sockets" 0 '^done' divided tcp$ep $ep
    same_bits "the same bits, ep $ep" mpi$ep tcp$ep 4
    # The loss alone: gradients of experts are other sums.
    first_loss() { bits "$1" | sed -n 's/^1 \([^ ]*\) .*/\1/p'; }
    expect "the first loss is that without ep, ep $ep" 0 '' test "$(first_loss whole)" = "$(first_loss tcp$ep)"
done

expect 'each layer tells what its experts have got' 0 \
    '"expert_layers":\[\{"layer":0,"balance":[0-9.]+,"load":\[[0-9.]+(,[0-9.]+){3}\]\},\{"layer":1,.*\]\}\]' cat "$dir/tcp2/metrics.jsonl"

# ---- what breaks in it ----

# broken NAME TRANSPORT RULES PATTERN - a run of ep 2 with these faults ends with status 5, and says that
broken() {
    rm -rf "$dir/broken"
    LMTRAIN_COMM=$2 LMTRAIN_FAULT=$3 expect "$1 ($2)" 5 "$4" divided broken 2 --set train.hang_seconds=1 \
        --set train.hang_abort_seconds=3
}

for transport in "$other" tcp; do
    for op in send_rows return_rows; do
        broken "a rank that is killed in $op is named" "$transport" "rank1:op:$op ep layers.1:2" \
            "rank 1 on .* was killed by signal 9 .*in $op ep layers\.1, step 2, micro-batch [01]"
    done
done
broken 'a rank that stalls in send_rows is named' tcp 'rank1:op:send_rows ep layers.1:2:stall' \
    'rank 1 .*: in send_rows ep layers\.1, step 2, micro-batch 0 since'
expect 'and who waits for it there' 0 'rank 0 .*: waits in send_rows ep layers\.1, step 2, micro-batch 0 .*all other ranks have reached it' \
    printf '%s\n' "$output"
broken 'a rank that stalls before it is named' "$other" 'rank3:op:dispatch layers.0:2:stall' 'rank 3 .*: in dispatch layers\.0'
expect 'and who waits for it in the exchange behind' 0 \
    'rank 2 .*: waits in return_rows ep layers\.0, step 2.*rank 3 has not reached it: it is in dispatch layers\.0' \
    printf '%s\n' "$output"

# ---- killed before a step is run again ----

# shellcheck disable=SC2317 # expect calls it
paged() { divided "$@" --set checkpoint.every_steps=1 --set parallel.zero=2; }
expect 'memory for all rows of experts' 0 '^done' paged roomy 2 --set moe.stash_factor=0
expect 'memory for half of them: each step is run again' 0 'step 4: more rows of experts than moe.stash_factor 0.5 .*4 so far' \
    paged tight 2 --set moe.stash_factor=0.5
same_bits 'the same bits' roomy tight 4
expect 'reruns are counted' 0 '"reruns":4' grep '"step":4,"loss"' "$dir/tight/metrics.jsonl"
LMTRAIN_FAULT=rank2:rerun:3 expect 'a rank is killed before the rerun' 5 'rank 2 at rerun:3: sigkill' \
    paged killed 2 --set moe.stash_factor=0.5
expect 'the run goes on' 0 'resuming from .*, step 2' paged killed 2 --set moe.stash_factor=0.5
same_bits 'and has the bits of a run that was not' roomy killed 4
finish
