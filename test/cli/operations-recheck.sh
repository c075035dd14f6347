#!/bin/sh
# test/cli/operations-recheck.sh - silent corruption that replicas share (train.recheck_every): flips in a forward, a backward,
# an optimizer and collectives are found, and the rank is named
. test/cli/support/check.sh
. test/cli/support/tiny.sh

plain="--set eval.every_steps=0 --set eval.data= --set train.steps=4 --set checkpoint.every_steps=2"
recheck="--set train.recheck_every=1"

# flipped NAME RULES STATUS RUN PATTERN ARGUMENTS... - the job with these faults ends with STATUS and says PATTERN
flipped() {
    flipped_name=$1 flipped_rules=$2 flipped_status=$3 flipped_run=$4 flipped_pattern=$5
    shift 5
    # shellcheck disable=SC2086 # words
    LMTRAIN_FAULT=$flipped_rules expect "$flipped_name" "$flipped_status" "$flipped_pattern" \
        pretrain "$flipped_run" $plain $recheck "$@"
}
here="\($(hostname)\)"

# shellcheck disable=SC2086
pretrain whole --ranks 2 $plain >"$dir/whole.out" 2>&1
flipped 'a flip in a forward, and a restart' 'rank1:op:linear layers.1:3:flip' 0 forward \
    "step 3: rank 1 $here computed linear layers.1 otherwise than others that computed the same micro-batch" \
    --ranks 2 --set restarts=1
same_bits 'which ends as if nothing had happened' whole forward 4
expect 'the metrics tell' 0 '"step":2,"event":"recheck","text":"step 3: rank 1' cat "$dir/forward/metrics.jsonl"
expect 'the only host is not excluded' 0 '' test ! -e "$dir/forward/excluded_hosts"

flipped 'a flip in a backward, under zero 3' 'rank2:op:linear_dw layers.0:2:flip' 5 backward \
    "step 2: rank 2 $here computed linear_dw layers.0 otherwise" \
    --ranks 3 --set train.global_batch=12 --set parallel.zero=3
flipped 'an optimizer that errs' 'rank1:op:adamw layers.0.qkv.weight.grad:2:flip' 5 optimizer \
    "step 2: rank 1 $here computed adamw layers.0.qkv.weight.grad otherwise than others that computed the same update" \
    --ranks 4
flipped 'an optimizer of a shard, under zero 1' 'rank1:op:adamw bucket.2:shard:2:flip' 5 shard \
    "step 2: rank 1 $here computed adamw bucket.2:shard otherwise than others that computed the same update" \
    --ranks 3 --set train.global_batch=12 --set parallel.zero=1
flipped 'and under zero 3, with states in bf16, of two' 'rank0:op:adamw bucket.2:shard:2:flip' 5 shard3 \
    "step 2: rank 0 $here computed adamw bucket.2:shard otherwise" --ranks 2 --set parallel.zero=3 --set optimizer.states=bf16
flipped 'each time, of two' 'rank0:op:adamw bucket.2:shard:2:flips' 5 shard2 \
    "step 2: rank 0 $here and rank 1 $here computed adamw bucket.2:shard differently.*no third replica" --ranks 2 --set parallel.zero=2
flipped 'of two replicas of shards' 'rank3:op:adamw bucket.2:shard:2:flip' 5 replica \
    "step 2: rank 3 $here computed adamw bucket.2:shard otherwise" --ranks 4 --set parallel.zero=1 --set parallel.zero_group=2
flipped 'a step that is skipped has no update' 'rank1:gradients:2:nan' 0 no_update 'step 2: gradients are not finite: the step is skipped' \
    --ranks 2 --set parallel.zero=1
flipped 'a collective of tensor-parallel ranks' 'rank3:op:reduce_scatter tp layers.1:2:flip' 5 collective \
    "step 2: rank 3 $here received other operands for add_rmsnorm layers.1" --ranks 4 --set parallel.tp=2
flipped 'a sum of gradients, under zero 2' 'rank1:op:reduce_scatter dp bucket.0:1:flip' 5 sum \
    "step 1: rank 1 $here has another sum of the gradients in bucket.0 over ranks" --ranks 2 --set parallel.zero=2 \
    --set parallel.gradient_sum=late
flipped 'stages of a pipeline' 'rank0:op:linear layers.0:2:flip' 5 stages \
    "step 2: rank 0 $here computed linear layers.0 otherwise" --ranks 4 --set parallel.pp=2 --set train.micro_batch=1
flipped 'what errs each time, of four' 'rank3:op:rope layers.0:2:flips' 5 lasting \
    "step 2: rank 3 $here computed rope layers.0 otherwise" --ranks 4
flipped 'of two' 'rank1:op:rope layers.0:2:flips' 5 lasting2 \
    "step 2: rank 0 $here and rank 1 $here computed rope layers.0 differently.*no third replica" --ranks 2
experts='--set model.n_experts=2 --set model.n_active_experts=2 --set model.expert_ffn_size=32 --set parallel.ep=2'
# shellcheck disable=SC2086
flipped 'the product of an expert that has fewer rows than there is room for' \
    'rank2:op:expert_linear layers.1:2:flip' 5 expert "step 2: rank 2 $here computed expert_linear layers.1 otherwise" \
    --ranks 4 --set model.n_experts=4 --set model.n_active_experts=2 --set model.expert_ffn_size=32 --set parallel.ep=2
# shellcheck disable=SC2086
flipped 'rows that were sent to experts' 'rank1:op:send_rows ep layers.1:2:flip' 5 sent \
    "step 2: rank 1 $here received other operands for dispatch layers.1" --ranks 4 $experts
flipped 'one replica computes it twice itself' 'rank1:op:linear layers.1:2:flip' 5 alone \
    "step 2: rank 1 $here computed linear layers.1 otherwise" --ranks 2 --set parallel.pp=2

# shellcheck disable=SC2086
expect 'the plan tells its price' 0 'recheck .*in one of 500 steps in addition: [0-9.]* % of all work' \
    "$lmtrain" plan "$dir/job.yaml" --ranks 2 --set train.recheck_every=500
# shellcheck disable=SC2086
expect 'and its memory for shards' 0 'recheck .*and has [0-9.]* [KM]iB of device memory and [0-9.]* [KM]iB of host memory for updates of others' \
    "$lmtrain" plan "$dir/job.yaml" --ranks 2 --set train.recheck_every=500 --set parallel.zero=1
LMTRAIN_FAULT=rank0:step:2:flips expect 'flips are for ops' 2 'flips, which is for op:TEXT' \
    "$lmtrain" pretrain "$dir/job.yaml" --ranks 2

# ---- over hosts, with a spare ----

. test/cli/support/hosts.sh
reason=$(hosts_missing)
if [ "$reason" ]; then
    echo "skip several hosts: $reason"
    finish
fi
if ! hosts_start a b c d; then
    echo 'not ok four hosts start'
    n_wrong=$((n_wrong + 1))
    finish
fi
three="--ranks 3 --set train.global_batch=12"
# shellcheck disable=SC2086
pretrain whole3 $three $plain >"$dir/whole3.out" 2>&1
# shellcheck disable=SC2086
LMTRAIN_FAULT='rank1:op:linear layers.1:3:flip' expect 'a host that errs once' 0 'step 3: rank 1 \(b\) computed linear layers.1' \
    on a "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/spared" --hosts a,b,c,d $three --set launch.spares=1 \
    --set restarts=1 $plain $recheck
expect 'is excluded' 0 '^b	.*	step 3: rank 1 \(b\) computed' cat "$dir/spared/excluded_hosts"
same_bits 'and a spare goes on, with the same bits' whole3 spared 4
finish
