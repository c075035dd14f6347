#!/bin/sh
# test/cli/fp8-folder.sh - a folder of weights in e4m3 with a scale of each 128 x 128 trains on, in fp8
# shellcheck disable=SC2317 # expect calls functions
. test/cli/support/check.sh
. test/cli/support/tiny.sh

expect 'a model to begin with' 0 '^done' pretrain one --set train.steps=2 --set train.dtype=bf16 --set model.n_layers=3 \
    --set model.hidden_size=144 --set model.ffn_size=272
expect 'as a Hugging Face folder of bf16' 0 'Hugging Face folder' "$lmtrain" convert --from "$dir/one" --to "$dir/hf" --dtype bf16
expect 'in codes, and what these stand for' 0 '' python3 test/cli/support/fp8_folder.py "$dir/hf" "$dir/coded" "$dir/plain"
i=0
while [ $i -lt 8 ]; do
    printf '{"instruction": "Say number %d", "output": "And God said %d"}\n' $i $i
    i=$((i + 1))
done >"$dir/rows.jsonl"
cat >"$dir/tune.yaml" <<END
data: {train: $dir/rows.jsonl, tokenizer: data/kjv-tokenizer, template: empty, seq_len: 64}
train: {steps: 4, global_batch: 4, micro_batch: 2, dtype: bf16, fp8: blockwise, log_every: 1}
optimizer: {lr: 1.0e-2, schedule: constant, warmup_steps: 0}
threads: 1
END
# tune RUN MODEL ARGUMENTS...
tune() {
    tune_run=$1 tune_model=$2
    shift 2
    "$lmtrain" finetune "$dir/tune.yaml" --set "model=$dir/$tune_model" --set "output=$dir/$tune_run" "$@"
}
# same_losses RUN OTHER
same_losses() {
    for losses_run; do
        sed -n 's/.*"loss_hex":"\([^"]*\)".*/\1/p' "$dir/$losses_run/metrics.jsonl" >"$dir/$losses_run.losses"
    done
    test "$(wc -l <"$dir/$1.losses")" = 4 && cmp "$dir/$1.losses" "$dir/$2.losses"
}
expect 'codes are trained' 0 '^done' tune coded-run coded
expect 'so is what they stand for' 0 '^done' tune plain-run plain
expect 'with the same losses, to the bit' 0 '' same_losses coded-run plain-run
expect 'bf16 is another run' 0 '^done' tune bf16-run plain --set train.fp8=none
expect 'of other losses' 1 '' same_losses coded-run bf16-run
# Zero 0 gathers no weights, the others codes; saving compares what ranks have gathered.
for zero in 0 1 2 3; do
    expect "on two ranks, zero $zero" 0 '^done' tune "zero$zero" coded --set ranks=2 --set "parallel.zero=$zero" \
        --set parallel.gradient_sum=early --set checkpoint.every_steps=2
    expect 'with the same losses' 0 '' same_losses zero0 "zero$zero"
done
expect 'what was trained becomes a folder' 0 'Hugging Face folder' "$lmtrain" convert --from "$dir/coded-run" --to "$dir/back"
expect 'of bf16, without codes' 1 '' grep -q quantization_config "$dir/back/config.json"
finish
