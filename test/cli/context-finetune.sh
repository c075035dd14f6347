#!/bin/sh
# test/cli/context-finetune.sh - finetuning on long texts over ranks that share each of them: RoPE scaled in each way, from a
# folder, a run and a folder that says so itself; packed and not, adapters, resumes
# shellcheck disable=SC2317 # functions called by name
. test/cli/support/check.sh
. test/cli/support/tiny.sh
sed -i -e 's/n_heads: 2, n_kv_heads: 1/n_heads: 4, n_kv_heads: 2/' "$dir/job.yaml"

expect 'a model of short texts' 0 '^done' pretrain one --set train.steps=4 --set train.dtype=fp32
expect 'as a Hugging Face folder' 0 'Hugging Face folder' "$lmtrain" convert --from "$dir/one" --to "$dir/hf"
# Rows of 10 to 90 tokens: some documents lie across the edge of two ranks' parts, one is longer than a part.
xz -dc data/kjv/train.txt.xz | awk 'NF && !/["\\]/ && NR % 40 == 0 && n < 16 {
    printf "{\"instruction\": \"Say verse %d\", \"output\": \"%s\"}\n", n++, $0 }' >"$dir/rows.jsonl"
cat >"$dir/tune.yaml" <<END
model: $dir/hf
data: {train: $dir/rows.jsonl, tokenizer: data/kjv-tokenizer, template: empty, seq_len: 96}
train: {steps: 4, global_batch: 4, micro_batch: 2, dtype: fp32, log_every: 1}
optimizer: {lr: 1.0e-2, schedule: constant, warmup_steps: 0}
checkpoint: {every_steps: 2, keep: 0}
threads: 1
END
# tune COMMAND RUN KIND ARGUMENTS... - over two ranks of KIND, or one: -
tune() {
    tune_command=$1 tune_run=$2 tune_kind=$3
    shift 3
    [ "$tune_kind" = - ] || set -- --ranks 2 --set parallel.cp=2 --set "parallel.cp_kind=$tune_kind" "$@"
    "$lmtrain" "$tune_command" "$dir/tune.yaml" --set "output=$dir/$tune_run" "$@"
}
loss_of() { sed -n "s/.*\"step\":$2,.*\"loss\":\\([^,]*\\),.*/\\1/p" "$dir/$1/metrics.jsonl"; }
# near A B STEP PARTS - the losses of two runs differ by less than one of so many parts
near() {
    awk -v a="$(loss_of "$1" "$3")" -v b="$(loss_of "$2" "$3")" -v n="$4" \
        'BEGIN { exit !(a > 0 && b > 0 && (a - b < 0 ? b - a : a - b) < b / n) }'
}
# as_one NAME COMMAND RUN ARGUMENTS... - one rank and two of both kinds: the same first loss, and the last to rounding
as_one() {
    as_name=$1 as_command=$2 as_run=$3
    shift 3
    expect "$as_name: one rank" 0 '^done: step 4' tune "$as_command" "$as_run" - "$@"
    for as_kind in ulysses gather; do
        expect "$as_name: $as_kind" 0 '^done: step 4' tune "$as_command" "$as_run-$as_kind" "$as_kind" "$@"
        expect 'has the first loss of one rank' 0 '' near "$as_run" "$as_run-$as_kind" 1 1000000000000
        expect 'and its last to rounding' 0 '' near "$as_run" "$as_run-$as_kind" 4 10000
    done
}

as_one 'packed' finetune packed
as_one 'unpacked, of several lengths' finetune unpacked --set data.packing=false --set 'data.lengths=[48,72]'
as_one 'adapters' lora lora --set 'lora={rank: 3, dropout: 0.1}'
as_one 'RoPE scaled by dynamic' finetune dynamic --set 'model.rope_scaling={type: dynamic, factor: 2}'
for type in linear llama3; do
    as_one "RoPE scaled by $type" finetune "$type" --set model.max_seq_len=96 \
        --set "model.rope_scaling={type: $type, factor: 2, original_max_seq_len: 48}"
    expect 'its folder says so' 0 "\"rope_type\":[[:space:]]*\"$type\"" cat "$dir/$type-gather/model/config.json"
done
# As a user writes it: the model of a run, and what is other for long texts.
sed -i "s|^model: .*|model: {from: $dir/one, max_seq_len: 96, rope_scaling: {type: yarn, factor: 2, original_max_seq_len: 48}}|" "$dir/tune.yaml"
as_one 'RoPE scaled by yarn, a run to begin with' finetune yarn --set data.packing=false
expect 'which is another model' 1 '' near unpacked yarn 1 1000000
expect 'its folder says so' 0 '"rope_type":[[:space:]]*"yarn"' cat "$dir/yarn-gather/model/config.json"
sed -i "s|^model: .*|model: $dir/yarn-gather/model|" "$dir/tune.yaml"
as_one 'adapters of a folder that says so' lora scaled --set 'lora={rank: 3}' --set data.packing=false
expect 'an adapter has the positions of its model' 2 'rope_scaling.factor 3, but .* has .*factor 2 \(hint: rope_scaling in its' \
    tune lora x gather --set model.rope_scaling.factor=3

# ---- resumes ----

for kind in ulysses gather; do
    mkdir -p "$dir/half-$kind/checkpoints"
    cp -r "$dir/scaled-$kind/checkpoints/step-00000002" "$dir/half-$kind/checkpoints/"
    expect "$kind goes on" 0 '^resuming from' tune lora "half-$kind" "$kind" --set 'lora={rank: 3}' --set data.packing=false
    expect 'to the same adapter' 0 '' cmp "$dir/half-$kind/adapter/adapter_model.safetensors" \
        "$dir/scaled-$kind/adapter/adapter_model.safetensors"
done
expect 'one rank goes on with a run of two' 0 '^done: step 6' tune lora scaled-gather - --set 'lora={rank: 3}' \
    --set data.packing=false --set train.steps=6
finish
