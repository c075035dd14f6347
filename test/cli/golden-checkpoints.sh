#!/bin/sh
# test/cli/golden-checkpoints.sh - a checkpoint of each released format resumes, converts and is upgraded, for good
#
# scripts/golden/checkpoint.sh made them. Losses are compared to the bit where the kernels are those that made them, else
# (another libc, another version of the arithmetic) to five digits.
# shellcheck disable=SC2154,SC2317 # expect calls functions
. test/cli/support/check.sh
lmtrain=${LMTRAIN:-build/lmtrain}
export LMTRAIN_CPU_ISA=plain

# expected NAME - the value of the format's expected.txt
expected() {
    sed -n "s/^$1 //p" "$dir/$format/expected.txt"
}
# resume RUN ARGUMENTS... - one step of the format's run, or adapter, from $from, in the folder $dir/RUN
resume() {
    resume_run=$1
    shift
    "$lmtrain" pretrain "$dir/$format/$from/job.yaml" --resume "$dir/$format/$from/checkpoints/step-00000002" \
        --set "data.train=$dir/$format/tokens" --set "output=$dir/$resume_run" --accept-numerics "$@"
}
# has_loss RUN NAME - the third step of the run has the loss that is expected
has_loss() {
    has_loss_got=$(sed -n 's/.*"step":3,.*"loss_hex":"\([^"]*\)".*/\1/p' "$dir/$1/metrics.jsonl")
    has_loss_wanted=$(expected "$2")
    has_loss_kernels=$(sed -n 's/.*\\nkernels \([^\\]*\)\\n.*/\1/p' "$dir/$1/checkpoints/step-00000003/manifest.json")
    has_loss_version=$(sed -n 's/.*"numerics_text":"version \([0-9]*\)\\n.*/\1/p' "$dir/$1/checkpoints/step-00000003/manifest.json")
    if [ "$has_loss_kernels $has_loss_version" = "$(expected kernels) $(expected version)" ]; then
        echo "$has_loss_got, $has_loss_wanted to the bit" && [ "$has_loss_got" = "$has_loss_wanted" ]
    else
        python3 - "$has_loss_got" "$has_loss_wanted" <<'END'
import sys
got, wanted = map(float.fromhex, sys.argv[1:])
print(got, wanted, "to five digits")
sys.exit(not abs(got - wanted) <= 1e-5 * abs(wanted))
END
    fi
}

formats=$(ls test/golden/checkpoints)
expect 'there is one of each format' 0 '' test "$(echo "$formats" | wc -w)" = \
    "$("$lmtrain" --version | sed -n 's/.*checkpoint \([0-9]*\),.*/\1/p')"
for format in $formats; do
    cp -r "test/golden/checkpoints/$format" "$dir/$format"
    from=run
    expect "format $format resumes on its two ranks" 0 'resuming from .*step 2' resume "two$format"
    expect 'with its loss' 0 '' has_loss "two$format" run
    expect 'and on one' 0 'parallel.dp is now 1, was 2' resume "one$format" --ranks 1 --set parallel.dp=auto
    expect 'with its loss there' 0 '' has_loss "one$format" alone
    expect 'it becomes a Hugging Face folder' 0 'tensors of llama' "$lmtrain" convert \
        --from "$dir/$format/run/checkpoints/step-00000002" --to "$dir/hf$format" --verify
    expect 'with the same weights' 0 '' cmp "$dir/hf$format/model.safetensors" "$dir/$format/base/model.safetensors"
    expect 'it is upgraded' 0 'as a checkpoint of 1 file' "$lmtrain" convert --as checkpoint --verify \
        --from "$dir/$format/run/checkpoints/step-00000002" --to "$dir/new$format/run/checkpoints/step-00000002"
    expect 'to the format of today' 0 "\"lmtrain_checkpoint\":$(echo "$formats" | wc -w)," \
        head -n 1 "$dir/new$format/run/checkpoints/step-00000002/manifest.json"
    cp "$dir/$format/run/job.yaml" "$dir/new$format/run/"
    cp "$dir/$format"/tokens.* "$dir/$format/expected.txt" "$dir/new$format/"
    old=$format format=new$format
    expect 'from which it resumes' 0 'resuming from .*step 2' resume "up$old"
    expect 'with the loss of before' 0 '' has_loss "up$old" run
    format=$old from=adapter
    expect 'adapters resume' 0 'resuming from .*step 2' resume "lora$format" --set "model=$dir/$format/base" \
        --set "train.init=$dir/$format/base"
    expect 'with their loss' 0 '' has_loss "lora$format" adapter
done
finish
