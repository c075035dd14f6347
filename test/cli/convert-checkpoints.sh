#!/bin/sh
# test/cli/convert-checkpoints.sh - lmtrain convert from checkpoint to checkpoint: a run goes on as if nothing had been
# shellcheck disable=SC2016,SC2317 # expect calls functions, and scripts for sh are in single quotes
. test/cli/support/check.sh
. test/cli/support/tiny.sh

convert() {
    "$lmtrain" convert --threads 1 "$@"
}
# later RUN - the bits of its steps after the eighth
later() {
    bits "$1" | awk '$1 > 8' >"$dir/$1.bits"
    test -s "$dir/$1.bits"
}
# state FOLDER - what its manifest says of the run
state() {
    sed -n 's/.*"state"://p' "$dir/$1/manifest.json" | head -n 1 >"$dir/state.$2"
    test -s "$dir/state.$2"
}

for zero in 0 1 3; do
    run=zero$zero
    step=$run/checkpoints/step-00000008
    expect "a run with zero $zero" 0 '^done' pretrain $run --ranks 2 --set parallel.zero=$zero
    later $run
    expect "cut for 2 x 2, zero $zero" 0 'as a checkpoint of 4 files \(tp 2 x pp 2\)' convert \
        --from "$dir/$step" --to "$dir/cut$zero" --tp 2 --pp 2 --verify
    refuse 'nothing is left out' 'stay behind'
    expect "in one file, zero $zero" 0 'of 1 file ' convert --from "$dir/$step" --to "$dir/one$zero" --as checkpoint
    expect "and from the other, zero $zero" 0 'of 1 file ' convert --from "$dir/cut$zero" --to "$dir/again$zero" \
        --tp 1 --verify
    expect "are the same bits, zero $zero" 0 '' diff -r "$dir/one$zero" "$dir/again$zero"
    expect "has the run's state, zero $zero" 0 '' state $step a
    expect "as it was, zero $zero" 0 '' state cut$zero b
    expect "to the byte, zero $zero" 0 '' cmp "$dir/state.a" "$dir/state.b"
    expect "a run goes on from it, zero $zero" 0 "resuming from .*/cut$zero, step 8" pretrain on$zero --ranks 2 \
        --set parallel.zero=$zero --resume "$dir/cut$zero"
    later on$zero
    expect "with the same bits, zero $zero" 0 '' cmp "$dir/$run.bits" "$dir/on$zero.bits"
done
expect 'the newest of a run, cut' 0 'of 2 files' convert --from "$dir/zero3" --to "$dir/newest" --pp 2
expect 'is of the last step' 0 '"step": *12' grep -o '"step": *[0-9]*' "$dir/newest/manifest.json"
expect 'a Hugging Face folder has no optimizer state' 0 '^28 tensors of optimizer state were not copied' convert \
    --from "$dir/cut3" --to "$dir/hf"
expect 'is the same from both' 0 '' convert --from "$dir/zero3/checkpoints/step-00000008" --to "$dir/hf2" --as hf
expect 'to the bit' 0 '' cmp "$dir/hf/model.safetensors" "$dir/hf2/model.safetensors"
expect 'types stay' 2 'dtype: not available from checkpoint to checkpoint .hint: convert to a Hugging Face folder first' convert \
    --from "$dir/cut0" --to "$dir/new" --tp 1 --dtype bf16
expect 'tokens too' 2 'vocab-size: not available from checkpoint to checkpoint' convert --from "$dir/cut0" --to "$dir/new" --tp 1 \
    --vocab-size 5000
expect 'a HF folder cannot be cut' 2 'tp and --pp divide the files of a checkpoint' convert --from "$dir/cut0" --to "$dir/new" --tp 2 --as hf
expect 'files for ranks that cannot be' 0 'divided by rows' convert --from "$dir/cut0" --to "$dir/odd" --tp 3 --verify
expect 'and back' 0 '' convert --from "$dir/odd" --to "$dir/even" --tp 2 --pp 2
expect 'to the bit' 0 '' cmp "$dir/cut0/rank-00001.safetensors" "$dir/even/rank-00001.safetensors"
printf x | dd of="$dir/cut0/rank-00002.safetensors" bs=1 conv=notrunc status=none seek=20000
expect 'a damaged checkpoint' 3 'rank-00002.safetensors: tensor .* is damaged' convert --from "$dir/cut0" --to "$dir/new" \
    --as checkpoint
expect 'nothing is left' 1 '' sh -c 'ls -d "$1" "$1.partial" 2>/dev/null | grep .' sh "$dir/new"
finish
