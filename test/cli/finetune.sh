#!/bin/sh
# test/cli/finetune.sh - finetune, lora and merge on a run of test/cli/support/tiny.sh, from rows to folders for others
. test/cli/support/check.sh
. test/cli/support/tiny.sh
umask 022

expect 'a model to begin with' 0 '^done' pretrain one --set train.steps=4 --set train.dtype=fp32
expect 'as a Hugging Face folder' 0 'Hugging Face folder' "$lmtrain" convert --from "$dir/one" --to "$dir/hf"
i=0
while [ $i -lt 12 ]; do
    printf '{"instruction": "Say number %d", "output": "And God said %d%s"}\n' $i $i "$([ $((i % 3)) = 0 ] && echo ', and it was so')"
    i=$((i + 1))
done >"$dir/rows.jsonl"
cat >"$dir/tune.yaml" <<END
model: $dir/hf
data: {train: $dir/rows.jsonl, tokenizer: data/kjv-tokenizer, template: empty, seq_len: 64}
train: {steps: 6, global_batch: 4, micro_batch: 1, dtype: fp32, log_every: 1}
optimizer: {lr: 1.0e-2, schedule: constant, warmup_steps: 0}
checkpoint: {every_steps: 3, keep: 0}
threads: 1
END
# tune COMMAND RUN ARGUMENTS...
# shellcheck disable=SC2317 # expect calls it
tune() {
    tune_command=$1 tune_run=$2
    shift 2
    "$lmtrain" "$tune_command" "$dir/tune.yaml" --set "output=$dir/$tune_run" "$@"
}
loss_of() { "$lmtrain" eval "$@" --data "$dir/held" --json 2>/dev/null | sed -n 's/.*"loss":\([-+.e0-9]*\).*/\1/p'; }
# shellcheck disable=SC2317 # expect calls it
close_to() {
    awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; if (d < 0) d = -d; exit !(b > 0 && d <= 1e-5 * b) }'
}

# ---- adapters ----

expect 'adapters are trained' 0 '12 samples from 12 rows' tune lora lora --set 'lora={rank: 3, dropout: 0.1}'
expect 'the samples are there' 0 '"samples":12' cat "$dir/lora/samples/train.json"
expect "peft's config" 0 '"r": 3' cat "$dir/lora/adapter/adapter_config.json"
expect 'names its modules' 0 '"gate_proj"' cat "$dir/lora/adapter/adapter_config.json"
expect 'has the template of the job' 0 '"chat_template":' cat "$dir/lora/adapter/tokenizer_config.json"
# shellcheck disable=SC2016 # for the inner sh
expect 'and is for others, the run is not' 0 '^755 644 700$' sh -c 'cd "$1" && echo $(stat -c %a adapter adapter/adapter_config.json .)' sh \
    "$dir/lora"
expect 'rows are shown as the run learned them' 0 'And God said 0, and it was so' "$lmtrain" data preview "$dir/rows.jsonl" \
    --model "$dir/lora"
expect 'the run is talked to with it' 0 . "$lmtrain" generate --model "$dir/lora" --chat --prompt 'Say number 3' --max-new-tokens 4
expect 'so is the model with its adapter' 0 . "$lmtrain" generate --model "$dir/hf" --adapter "$dir/lora/adapter" --chat \
    --prompt 'Say number 3' --max-new-tokens 4
expect 'each checkpoint has its own' 0 '' test -f "$dir/lora/checkpoints/step-00000003/adapter/adapter_model.safetensors"
expect 'checkpoints are without the model' 1 '' grep -q '"embedding.weight' "$dir/lora/checkpoints/step-00000006/manifest.json"
run=$(loss_of --model "$dir/lora")
adapted=$(loss_of --model "$dir/hf" --adapter "$dir/lora/adapter")
before=$(loss_of --model "$dir/hf")
expect "the run is the model with its adapter ($run, $adapted)" 0 '' close_to "$run" "$adapted"
expect "which is another than the model ($before)" 1 '' test "$run" = "$before"
expect 'merged' 0 '14 of ' "$lmtrain" merge --base "$dir/hf" --adapter "$dir/lora/adapter" --to "$dir/merged"
merged=$(loss_of --model "$dir/merged")
expect "gives the same ($merged)" 0 '' close_to "$merged" "$run"
expect 'merged into a checkpoint' 0 'merged' "$lmtrain" merge --base "$dir/hf" --adapter "$dir/lora" \
    --to "$dir/merged2" --as checkpoint
expect 'gives the same' 0 '' test "$(loss_of --model "$dir/merged2")" = "$merged"

expect 'a checkpoint merged into a checkpoint' 0 'merged' "$lmtrain" merge --base "$dir/one" --adapter "$dir/lora/adapter" \
    --to "$dir/merged3" --as checkpoint
expect 'gives the same' 0 '' close_to "$(loss_of --model "$dir/merged3")" "$run"
expect 'which becomes the same folder' 0 '' "$lmtrain" convert --from "$dir/merged3" --to "$dir/merged4"
expect 'to the bit' 0 '' cmp "$dir/merged4/model.safetensors" "$dir/merged/model.safetensors"
expect 'a run on a checkpoint' 0 '^done' tune lora onrun --set 'lora={rank: 3, dropout: 0.1}' --set "model=$dir/one"
expect 'merged into a checkpoint' 0 'merged' "$lmtrain" merge --base "$dir/one" --adapter "$dir/onrun" --to "$dir/merged5" \
    --as checkpoint --dtype fp32
expect 'gives the same' 0 '' close_to "$(loss_of --model "$dir/merged5")" "$(loss_of --model "$dir/onrun")"
expect 'and is trained further' 0 '^done' tune finetune further --set "model=$dir/merged5" --set train.steps=1

expect 'stopped' 0 '' tune lora half --set 'lora={rank: 3, dropout: 0.1}' --set train.steps=3
expect 'and gone on with' 0 'resuming from' tune lora half --set 'lora={rank: 3, dropout: 0.1}'
expect 'ends with the same adapter' 0 '' cmp "$dir/half/adapter/adapter_model.safetensors" \
    "$dir/lora/adapter/adapter_model.safetensors"
expect 'on two stages with sharded states' 0 '' tune lora ranks --set 'lora={rank: 3, dropout: 0.1}' --set ranks=2 \
    --set parallel.pp=2
expect 'the same adapter too' 0 '' cmp "$dir/ranks/adapter/adapter_model.safetensors" \
    "$dir/lora/adapter/adapter_model.safetensors"

# What is planned is what runs, rows of added tokens included; a dry run leaves nothing.
mkdir "$dir/tmp"
grow="data.added_tokens=['<a>', '<b>', '<a>']"
expect 'tokens are added' 0 '^done' tune finetune growing --set train.steps=1 --set "$grow"
planned() { sed -n 's/.* \([0-9.]* [KMGT]*i*B\) planned per rank.*/\1/p'; }
ran=$(printf '%s\n' "$output" | planned)
expect 'planned with them' 0 "^total +$ran " "$lmtrain" plan "$dir/tune.yaml" --set train.steps=1 --set "$grow"
expect 'a dry run' 0 "^total +$ran " env TMPDIR="$dir/tmp" "$lmtrain" finetune "$dir/tune.yaml" --set train.steps=1 --set "$grow" \
    --set "output=$dir/dry" --dry-run
expect 'shows the tokenizer of the run' 0 'tokenizer: .*/dry/tokenizer' printf '%s\n' "$output"
total_of() { "$@" --set train.steps=1 --set "$grow" --set "output=$dir/dry" 2>/dev/null | grep '^total '; }
for how in packing=true packing=false; do
    expect "the plan is that of the run's programs, $how" 0 '' test "$(total_of "$lmtrain" plan "$dir/tune.yaml" --set kind=finetune --set "data.$how")" = \
        "$(total_of "$lmtrain" finetune "$dir/tune.yaml" --dry-run --set "data.$how")"
done
expect 'and leaves nothing behind' 2 '' ls -d "$dir/dry" "$dir"/tmp/*
expect 'nor do adapters' 0 '^total' env TMPDIR="$dir/tmp" "$lmtrain" lora "$dir/tune.yaml" --set "output=$dir/dry" --dry-run --set lora.rank=2
expect 'leaves nothing behind either' 2 '' ls -d "$dir/dry" "$dir"/tmp/*

# ---- the model itself ----

expect 'a part is trained' 0 'the model in Hugging Face format is in' tune finetune part --set 'train.only=[layers.1.*]'
expect 'the tokenizer came along' 0 '' test -f "$dir/part/model/tokenizer.json"
# shellcheck disable=SC2016 # for the inner sh
expect 'its modes are by the umask' 0 '^755 644$' sh -c 'cd "$1" && echo $(stat -c %a model model/model.safetensors)' sh "$dir/part"
expect 'what is left in the run and for others is one model' 0 '' \
    close_to "$(loss_of --model "$dir/part")" "$(loss_of --model "$dir/part/model")"
expect 'by epochs, unpacked, from a run' 0 'step 9/9' tune finetune epochs --set train.steps=auto --set train.epochs=3 \
    --set data.packing=false --set "model=$dir/one"
expect 'frozen parameters have no states' 0 '^states +2[0-9]{2} B' \
    "$lmtrain" plan "$dir/tune.yaml" --set 'train.only=[final_norm.weight]'


# Samples are of 10 or 16 tokens: a step has micro-batches of both lengths.
# shellcheck disable=SC2317 # expect calls it
short() {
    short_run=$1
    shift
    tune finetune "$short_run" --set data.packing=false --set 'data.lengths=[12,16]' "$@"
}
model_of() { cksum <"$dir/$1/model/model.safetensors"; }
expect 'unpacked, of one length' 0 '1[0-9].[0-9] % of the positions are tokens' tune finetune long --set data.packing=false \
    --set 'data.lengths=[2]'
expect 'of several' 0 '[89][0-9].[0-9] % of the positions are tokens' short short
expect 'is the same model' 0 '' close_to "$(loss_of --model "$dir/short")" "$(loss_of --model "$dir/long")"
expect 'with dead values poisoned, threads' 0 '^done' short dead --set debug.poison=true --set threads=2
expect 'to the bit' 0 '' test "$(model_of dead)" = "$(model_of short)"
expect 'on two stages' 0 '^done' short stages --set ranks=2 --set parallel.pp=2 --set parallel.schedule=zb-h1 --set debug.poison=true
expect 'to the bit' 0 '' test "$(model_of stages)" = "$(model_of short)"
expect 'a length that parts of rows do not divide' 2 'data.lengths has 13, not a multiple' tune finetune x \
    --set data.packing=false --set 'data.lengths=[13]' --set ranks=2 --set parallel.tp=2

printf 'model: %s\ndata: {train: %s, seq_len: 64}\ntrain: {epochs: 2}\n' "$dir/hf" "$dir/rows.jsonl" >"$dir/epochs.yaml"
expect 'epochs are planned' 0 'as many as 2 epochs take' "$lmtrain" plan "$dir/epochs.yaml"
expect 'and shown' 0 'kind = finetune .auto: train.epochs' "$lmtrain" config "$dir/epochs.yaml"
expect 'adapters by epochs too' 0 'lmtrain lora JOB.yaml --dry-run' "$lmtrain" plan "$dir/epochs.yaml" --set lora.rank=2

# ---- tokens that the model does not have ----

mkdir "$dir/more"
awk '{ print } /"content": "<.endoftext.>"/ { first = 1 }
    first && /^ +}/ { first = 0
        for (i = 4096; i < 4098; i++)
            printf ",{\"id\": %d, \"content\": \"<x%d>\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}\n", i, i
    }' data/kjv-tokenizer/tokenizer.json >"$dir/more/tokenizer.json"
sed 's/And God/<x4097>/' "$dir/rows.jsonl" >"$dir/marked.jsonl"
# shellcheck disable=SC2317 # expect calls it
marked() {
    marked_command=$1 marked_run=$2
    shift 2
    tune "$marked_command" "$marked_run" --set "data.train=$dir/marked.jsonl" --set "data.tokenizer=$dir/more" "$@"
}
expect 'the embedding grows' 0 '4098 tokens, the model 4096: embedding and head grow' marked finetune grown \
    --set optimizer.lr=1.0e-30 --set train.steps=1
expect 'and says so' 0 '"vocab_size":.4098' cat "$dir/grown/model/config.json"
expect 'as convert does it' 0 '' "$lmtrain" convert --from "$dir/one" --to "$dir/grown2" --vocab-size 4098
expect 'to the bit' 0 '' cmp "$dir/grown/model/model.safetensors" "$dir/grown2/model.safetensors"
expect 'in parts of two ranks' 0 '^done' marked finetune parts --set optimizer.lr=1.0e-30 --set train.steps=1 \
    --set ranks=2 --set parallel.tp=2
expect 'too' 0 '' cmp "$dir/parts/model/model.safetensors" "$dir/grown2/model.safetensors"
expect 'and is trained further' 0 'step 3/3' marked finetune grown --set train.steps=3
expect 'adapters have no such tokens' 3 'vocabulary|4097' marked lora x

# ---- data.added_tokens ----

# shellcheck disable=SC2317 # expect calls it
added() {
    added_command=$1 added_run=$2
    shift 2
    tune "$added_command" "$added_run" --set "data.train=$dir/marked.jsonl" \
        --set 'data.added_tokens=["<x4096>", "<x4097>", "God"]' "$@"
}
expect 'tokens are added' 0 '2 of 3 data.added_tokens are new to the tokenizer' added finetune added --set train.steps=3
expect 'saved with the tokenizer' 0 '"id": 4097, "content": "<x4097>"' cat "$dir/added/model/tokenizer.json"
expect 'and with rows of the model' 0 '"vocab_size":.4098' cat "$dir/added/model/config.json"
expect 'the run goes on with them' 0 'step 6/6' added finetune added
expect 'as if it had not ended' 0 '' added finetune whole
expect 'to the bit' 0 '' test "$(model_of added)" = "$(model_of whole)"
expect 'adapters with them' 0 'embedding and head grow' added lora tokens --set lora.rank=3 --set optimizer.lr=3.0e-2
expect 'bring the table along' 0 '"embed_tokens"' cat "$dir/tokens/adapter/adapter_config.json"
expect 'and the tokenizer' 0 '"<x4097>"' cat "$dir/tokens/adapter/tokenizer.json"
expect 'on two tensor-parallel ranks' 0 '^done' added lora tokens2 --set lora.rank=3 --set ranks=2 --set parallel.tp=2
run=$(loss_of --model "$dir/tokens")
adapted=$(loss_of --model "$dir/hf" --adapter "$dir/tokens/adapter")
expect "the run is the model with its adapter ($run, $adapted)" 0 '' close_to "$run" "$adapted"
expect 'merged' 0 'merged' "$lmtrain" merge --base "$dir/hf" --adapter "$dir/tokens/adapter" --to "$dir/merged-tokens"
expect 'it has the rows' 0 '"vocab_size":.4098' cat "$dir/merged-tokens/config.json"
expect 'and the tokens' 0 '"<x4097>"' cat "$dir/merged-tokens/tokenizer.json"
expect 'and the same loss' 0 '' close_to "$(loss_of --model "$dir/merged-tokens")" "$run"
talk() { "$lmtrain" generate --prompt 'Say number 3' --temperature 0 --max-new-tokens 6 "$@" 2>/dev/null; }
expect 'it says something' 0 '^[^ ]' talk --model "$dir/tokens"
expect 'all three say the same' 0 '' test "$(talk --model "$dir/tokens")" = "$(talk --model "$dir/merged-tokens")"
expect 'with the adapter too' 0 '' test "$(talk --model "$dir/hf" --adapter "$dir/tokens/adapter")" = \
    "$(talk --model "$dir/merged-tokens")"
for layout in '--pp 2' '--tp 2' '--pp 2 --ranks 4'; do
    # shellcheck disable=SC2086 # words
    expect "and over ranks, $layout" 0 '' test "$(talk --model "$dir/hf" --adapter "$dir/tokens/adapter" --threads 1 $layout)" = \
        "$(talk --model "$dir/merged-tokens")"
done
expect 'and the loss is the same' 0 '' test "$(loss_of --model "$dir/tokens" --pp 2 --threads 1)" = "$run"
expect 'an empty token' 2 'data.added_tokens has an item that is empty or not a string' tune finetune x --set 'data.added_tokens=[""]'

# ---- what was there, and what is missing ----

mkdir "$dir/used"
cp -r "$dir/hf" "$dir/used/model"
expect 'a model that is not of this run is not replaced' 2 'used, whose model is not of this run' tune finetune used \
    --set "model=$dir/used/model"
expect 'nor made beside' 0 '^model$' ls "$dir/used"
mkdir "$dir/words"
cp -r data/kjv-tokenizer "$dir/words/tokenizer"
expect 'nor a tokenizer' 2 'words, whose tokenizer is not of this run' tune finetune words \
    --set "data.tokenizer=$dir/words/tokenizer" --set 'data.added_tokens=[<new>]'
expect 'a run' 0 '^done' tune finetune ended --set train.steps=2
expect 'is finished' 2 'the run is finished' tune finetune ended --set train.steps=2
mv "$dir/ended/model" "$dir/ended.model"
expect 'whose model is missing, as after a kill, makes it' 0 'the model in Hugging Face format is in ' tune finetune ended --set train.steps=2
expect 'the same' 0 '' cmp "$dir/ended.model/model.safetensors" "$dir/ended/model/model.safetensors"

# ---- mistakes ----

expect 'a warm-up longer than the epochs' 2 'more than the 6 steps' tune finetune x --set train.steps=auto \
    --set train.epochs=2 --set data.packing=false --set optimizer.warmup_steps=7

expect 'no such module' 2 'lora.targets has nope' tune lora x --set 'lora.targets=[q_proj, nope]'
expect 'a module of another family' 2 'keep qkv in parts' tune lora x --set 'lora.targets=[c_attn]'
expect 'a pattern without meaning' 2 'matches no parameter' tune finetune x --set 'train.freeze=[embed.*]'
expect 'epochs and steps' 2 'are both given' tune lora x --set train.epochs=2 --set train.steps=3
expect 'an adapter of nothing' 3 'neither a folder with adapter_config.json' "$lmtrain" merge --base "$dir/hf" \
    --adapter "$dir/hf/none" --to "$dir/x"
expect 'nothing is replaced' 2 'exists already' "$lmtrain" merge --base "$dir/hf" --adapter "$dir/lora" --to "$dir/merged"
sed 's/"use_dora": false/"use_dora": true/' "$dir/lora/adapter/adapter_config.json" >"$dir/lora/adapter/new"
mv "$dir/lora/adapter/new" "$dir/lora/adapter/adapter_config.json"
expect 'DoRA is not LoRA' 3 'use_dora' "$lmtrain" eval --model "$dir/hf" --adapter "$dir/lora/adapter" --data "$dir/held"
expect 'ranks that read token files take the tokenizer with added tokens for their own' 0 '^done' tune finetune files --ranks 2 --set train.steps=1 --set "$grow" \
    --set "data.train=$dir/held"
finish
