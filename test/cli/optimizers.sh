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

# from_step_4 RUN COPY - a copy of the run that goes on from step 4
from_step_4() {
    cp -r "$dir/$1" "$dir/$2"
    rm -rf "$dir/$2/checkpoints/step-00000012" "$dir/$2/checkpoints/step-00000008"
}
# bits_of RUN STEP - those of the step
bits_of() {
    bits "$1" | grep "^$2 "
}
from_step_4 adamw8 decoded
# shellcheck disable=SC2086
expect 'states of int8 are others' 2 'optimizer.states: there int8 blocks 256, here unset' \
    pretrain decoded $plain --ranks 2
# shellcheck disable=SC2086
expect 'they are converted where that is accepted' 0 'optimizer.states: those of the checkpoint are converted' \
    pretrain decoded $plain --ranks 2 --accept-numerics --set parallel.zero=3
# Numbers are what codes stand for: so the next update is the same, and the one after is not.
expect 'the next update has the bits of codes' 0 '' test "$(bits_of adamw8 5)$(bits_of adamw8 6)" = \
    "$(bits_of decoded 5)$(bits_of decoded 6)"
expect 'the one after has others' 1 '' test "$(bits_of adamw8 7)" = "$(bits_of decoded 7)"
# shellcheck disable=SC2086
expect 'a run with states of fp32' 0 '' pretrain wide $plain --ranks 2
for zero in 0 3; do
    from_step_4 wide "coded$zero"
    # shellcheck disable=SC2086
    expect "goes on with int8, zero $zero" 0 'those of the checkpoint are converted' pretrain "coded$zero" $plain --ranks 2 \
        --set optimizer.states=int8 --accept-numerics --set parallel.zero=$zero
done
same_bits 'converted alike, whoever has which shard' coded0 coded3 12
# shellcheck disable=SC2086
expect 'blocks are of parts' 2 'in blocks of parameters. parts, .*[.]m[.]scale has 1 in the checkpoint and 2 here .hint: resume' \
    pretrain adamw8 $plain --ranks 2 --set parallel.tp=2 --set train.steps=16 --accept-numerics
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
