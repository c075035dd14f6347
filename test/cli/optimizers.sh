#!/bin/sh
# test/cli/optimizers.sh - optimizers of a job: they learn, processes have the bits of one rank's stops, other states are refused
. test/cli/support/check.sh
. test/cli/support/tiny.sh

plain="--set eval.every_steps=0 --set eval.data= --set checkpoint.every_steps=4 --set parallel.gradient_sum=early"

# learns NAME ARGUMENTS... - 12 steps on two ranks, and the same under zero 1 and, from step 4, zero 3, have equal bits
learns() {
    learns_name=$1
    shift
    # shellcheck disable=SC2086 # words
    expect "$learns_name trains" 0 '' pretrain "$learns_name" $plain --ranks 2 "$@"
    # shellcheck disable=SC2086
    expect "$learns_name trains under zero 1" 0 '' pretrain "$learns_name.stop" $plain --ranks 2 "$@" --set parallel.zero=1
    rm -rf "$dir/$learns_name.stop/checkpoints/step-00000012" "$dir/$learns_name.stop/checkpoints/step-00000008"
    # shellcheck disable=SC2086
    expect "$learns_name goes on from step 4 under zero 3" 0 '' pretrain "$learns_name.stop" $plain --ranks 2 "$@" \
        --set parallel.zero=3
    same_bits "$learns_name: which changes no bit" "$learns_name" "$learns_name.stop" 12
}
learns lion8 --set optimizer.name=lion --set optimizer.states=int8 --set optimizer.lr=3e-3
learns cadam --set optimizer.name=cadam --set optimizer.lr=3e-3
learns adamw8 --set optimizer.states=int8

# shellcheck disable=SC2086
expect 'a resume with another optimizer is refused' 2 \
    'optimizer.name is adamw, but the run was started with cadam blocks 256 .hint: set it back, or begin with new states: train.init' \
    pretrain cadam $plain --ranks 2 --accept-numerics
# shellcheck disable=SC2086
expect 'and one from int8' 2 'optimizer.states is unset, but the run was started with int8 blocks 256 .hint' \
    pretrain adamw8 $plain --ranks 2 --accept-numerics --set train.steps=16
# shellcheck disable=SC2086
expect 'and one whose tensor-parallel ranks have other blocks' 2 \
    'kept in blocks of parameters. parts, of which .*[.]scale has 1 in the checkpoint and 2 here .hint: the parallel.tp' \
    pretrain adamw8 $plain --ranks 2 --set optimizer.states=int8 --set parallel.tp=2 --set train.steps=16 --accept-numerics
# shellcheck disable=SC2086
expect 'new states begin from the weights of a checkpoint' 0 '' pretrain fresh $plain --ranks 1 --set optimizer.name=lion \
    --set optimizer.lr=1e-3 --set "train.init=$dir/cadam/checkpoints/step-00000012"

expect 'plan lists what each keeps' 0 'cadam +fp32 +split +4[.]016 +6[.]016' "$lmtrain" plan "$dir/job.yaml" --optimizers
expect 'the job has one of them' 0 'adamw [*] +fp32 +whole +12 +14' printf '%s\n' "$output"
expect 'as JSON' 0 '"is_job":[[:space:]]*true' "$lmtrain" plan "$dir/job.yaml" --optimizers --json
finish
