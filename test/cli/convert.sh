#!/bin/sh
# test/cli/convert.sh - lmtrain convert on a run of test/cli/support/tiny.sh: there, back, and what is refused
# shellcheck disable=SC2016,SC2317 # expect calls functions, and scripts for sh are in single quotes
. test/cli/support/check.sh
. test/cli/support/tiny.sh

convert() {
    "$lmtrain" convert --threads 1 "$@"
}
# same NAME FOLDER OTHER - both have the same files
same() {
    expect "$1" 0 '' diff -r "$dir/$2" "$dir/$3"
}
# gone NAME FOLDER - neither it nor what was being written is there
gone() {
    expect "$1" 1 '' sh -c 'ls -d "$1" "$1.partial" 2>/dev/null | grep .' sh "$dir/$2"
}
# loss_of MODEL - its loss on the held-out text, to $output
loss_of() {
    "$lmtrain" eval --model "$dir/$1" --data "$dir/held" --threads 1 --json |
        sed -n 's/.*"loss":\([-+.e0-9]*\).*/\1/p'
}

expect 'a run to use' 0 '^done' pretrain one --set train.dtype=fp32 --set data.seq_len=64 \
    --set train.micro_batch=4

# ---- there and back ----

expect 'a run as a Hugging Face folder' 0 '20 tensors of llama, .* as a Hugging Face folder of 1 file' \
    convert --from "$dir/one" --to "$dir/hf"
for file in config.json model.safetensors tokenizer.json; do
    expect "it has $file" 0 '' test -s "$dir/hf/$file"
done
# by_umask MASK MODES - a conversion under this umask has these modes: of its folder, the weights, config.json, the tokenizer
by_umask() {
    expect "under umask $1" 0 '' sh -c 'umask "$1"; exec "$2" convert --from "$3/one" --to "$3/mode$1"' sh "$1" "$lmtrain" "$dir"
    expect "modes are $2" 0 "^$2\$" sh -c 'cd "$1" && echo $(stat -c %a . model.safetensors config.json tokenizer.json)' sh \
        "$dir/mode$1"
}
by_umask 022 '755 644 644 644'
by_umask 027 '750 640 640 640'
by_umask 077 '700 600 600 600'
for layout in 1x1 2x1 1x2 2x2; do
    expect "as a checkpoint, tp x pp $layout" 0 'as a checkpoint of . file' convert --from "$dir/hf" \
        --to "$dir/ck$layout" --tp "${layout%x*}" --pp "${layout#*x}" --verify
    expect "and back from $layout" 0 'verified: 20 tensors are equal, bit for bit, and so are the logits' \
        convert --from "$dir/ck$layout" --to "$dir/back$layout" --verify
    same "is what it was, $layout" hf "back$layout"
done
# What a run gave to its model must not be lost in the config.json that goes along.
expect 'a checkpoint whose config.json is of another model' 0 '' sh -c 'cp -r "$1/ck1x1" "$1/ckother" &&
    sed -i "s/\"rope_theta\":[^,]*/\"rope_theta\": 500000.0/" "$1/ckother/hf/config.json"' sh "$dir"
expect 'is refused by name' 2 'ckother/hf/config.json is copied with the weights, but its model has no model.rope_theta 10000.0' \
    convert --from "$dir/ckother" --to "$dir/other-hf"
gone 'and nothing is written' other-hf
expect 'shards' 0 'as a Hugging Face folder of [2-9] files' convert --from "$dir/ck2x2" --to "$dir/shards" \
    --max-shard-gb 0.0002 --verify
expect 'have an index' 0 '"model.norm.weight": "model-0000.-of-0000..safetensors"' \
    cat "$dir/shards/model.safetensors.index.json"
expect 'and are read' 0 'as a checkpoint' convert --from "$dir/shards" --to "$dir/ckshards" --pp 2
expect 'and back' 0 '' convert --from "$dir/ckshards" --to "$dir/backshards"
same 'in one file again' hf backshards
expect 'bf16' 0 'differ by [0-9.e-]+ of the largest' convert --from "$dir/hf" --to "$dir/bf16" --dtype bf16 --verify
expect 'and from there' 0 '' convert --from "$dir/bf16" --to "$dir/bf16-hf"
expect 'is said in config.json' 0 '"torch_dtype":[[:space:]]*"bfloat16"' cat "$dir/bf16-hf/config.json"
expect 'is half as large' 0 '' sh -c 'test "$(wc -c <"$1")" -lt "$(($(wc -c <"$2") * 6 / 10))"' sh \
    "$dir/bf16-hf/model.safetensors" "$dir/hf/model.safetensors"

# ---- what is made of it ----

expect 'the loss of the run' 0 . loss_of one
loss=$output
for model in hf ck1x1 ck2x2 shards; do
    expect "is that of $model" 0 "^$loss\$" loss_of "$model"
done
expect 'text of a run' 0 . "$lmtrain" generate --model "$dir/one" --prompt 'And God' --temperature 0 --max-new-tokens 9
text=$output
for model in hf ck2x2; do
    expect "is that of $model, whose tokenizer came along" 0 '' test "$text" = "$("$lmtrain" generate \
        --model "$dir/$model" --prompt 'And God' --temperature 0 --max-new-tokens 9)"
done
expect 'a run that begins with a folder' 0 'starting with the weights of .*/hf' pretrain two \
    --set train.init="$dir/hf" --set "model=$dir/hf" --set train.dtype=fp32
expect 'with a checkpoint' 0 'starting with the weights of .*/ck2x2' pretrain three \
    --set train.init="$dir/ck2x2" --set train.dtype=fp32
# shellcheck disable=SC2016 # awk's
for weights in hf ck2x2 one; do
    expect "a new run on $weights without train.init" 2 "has weights, but train.init is not given .*hint: train.init: $dir/$weights, or" \
        pretrain unsaid --set "model=$dir/$weights" --set train.dtype=fp32
done
expect 'and leaves nothing' 0 '' test ! -e "$dir/unsaid"
expect 'random' 0 'starting with random weights, train.seed 1$' pretrain unsaid --set "model=$dir/hf" --set train.init=random \
    --set train.dtype=fp32
expect 'which they are' 0 '0x1\.0' sh -c 'grep -m 1 loss_hex "$1"' sh "$dir/unsaid/metrics.jsonl"
expect 'a run that is there goes on' 0 'resuming from' pretrain unsaid --set "model=$dir/hf" --set train.dtype=fp32 --set train.steps=13
expect 'and its job.yaml is a job' 0 'step 14 in' "$lmtrain" pretrain "$dir/unsaid/job.yaml" --set train.steps=14
mkdir "$dir/shape"
cp "$dir/hf/config.json" "$dir/shape/"
expect 'a folder without weights' 0 'starting with random weights' pretrain shape --set "model=$dir/shape" --set train.dtype=fp32
expect 'a plan needs no answer' 0 '' "$lmtrain" plan "$dir/job.yaml" --set "model=$dir/hf"
bits two | cut -d' ' -f2- >"$dir/two.bits"
bits three | cut -d' ' -f2- >"$dir/three.bits"
expect 'do the same' 0 '' cmp "$dir/two.bits" "$dir/three.bits"
expect 'where the run before ended' 0 '' sh -c 'head -n 1 "$1" | cut -d" " -f1 | grep -v "^0x1\.0"' sh "$dir/two.bits"
rm -r "$dir/ck1x1"
expect 'what it began with is not needed to go on' 0 'resuming from' pretrain three \
    --set train.init="$dir/gone" --set train.dtype=fp32 --set train.steps=13
expect 'nothing goes on from a converted one' 3 'hint: give it as train.init' pretrain four --resume "$dir/ck2x2"
expect 'another model' 2 'the job has model.norm_eps 1e-05, .*/other has model.norm_eps 0.001 \(hint: model: ' sh -c 'sed "s/\"rms_norm_eps\":.*/\"rms_norm_eps\": 1e-3,/" \
    "$1/hf/config.json" >"$1/config.other" && mkdir "$1/other" && cp "$1/hf"/* "$1/other" && cp "$1/config.other" "$1/other/config.json" &&
    exec "$2" pretrain "$1/job.yaml" --set "output=$1/five" --set "train.init=$1/other"' sh "$dir" "$lmtrain"

# ---- what is refused ----

# broken NAME - a copy of the folder of shards to spoil, as $dir/NAME
broken() {
    rm -rf "${dir:?}/bad"
    cp -r "$dir/$1" "$dir/bad"
}
# refused NAME MESSAGE - converting it fails so, and nothing is left
refused() {
    expect "$1" 3 "$2" convert --from "$dir/bad" --to "$dir/new" --verify
    gone "$1: nothing is left" new
}
broken shards
rm "$dir/bad/model-00002-of"*
refused 'a shard that is missing' 'model-00002-of-0000.*No such file'
broken shards
truncate -s -100 "$dir/bad/model-00002-of"*
refused 'a truncated shard' "model-00002-of-.*: tensor .*: its data are beyond the end of the file"
broken shards
sed -i 's/"model.norm.weight": "[^"]*"/"model.norm.weight": "..\/hf\/model.safetensors"/' "$dir/bad/model.safetensors.index.json"
refused 'an index that points outside' 'index.json: tensor model.norm.weight is listed in "../hf/model.safetensors"'
broken shards
sed -i 's/"model.norm.weight": "[^"]*"/"model.norm.weight": "model-00001-of-00002.safetensors"/' "$dir/bad/model.safetensors.index.json"
refused 'an index that is wrong' 'tensor model.norm.weight'
broken hf
LC_ALL=C sed -i 's/"model.norm.weight"/"model.norm.weighs"/' "$dir/bad/model.safetensors"
refused 'a tensor that is missing' 'bad/model.safetensors: tensor model.norm.weight is missing'
broken hf
LC_ALL=C sed -i 's/"num_hidden_layers":[^,]*/"num_hidden_layers": 1/' "$dir/bad/config.json"
refused 'a tensor too many' 'model.safetensors: tensor model.layers.1.* does not belong to a llama model with this config.json'
broken hf
LC_ALL=C sed -i 's/"intermediate_size":[^,]*/"intermediate_size": 96/' "$dir/bad/config.json"
refused 'another shape' 'tensor model.layers.0.mlp.gate_proj.weight is \[64, 32\], but \[96, 32\]'
broken hf
printf '\377\377\377\177' | dd of="$dir/bad/model.safetensors" bs=1 conv=notrunc status=none \
    seek=$(($(wc -c <"$dir/bad/model.safetensors") - 4))
refused 'a NaN' 'tensor model.norm.weight holds a NaN, at \[31, 0\]'
broken hf
printf '\000\000\200\177' | dd of="$dir/bad/model.safetensors" bs=1 conv=notrunc status=none \
    seek=$(($(wc -c <"$dir/bad/model.safetensors") - 8))
refused 'an infinite number' 'bad/model.safetensors: tensor model.norm.weight holds an infinite number, at \[30, 0\]'
broken hf
printf '\000\000\200\110' | dd of="$dir/bad/model.safetensors" bs=1 conv=notrunc status=none \
    seek=$(($(wc -c <"$dir/bad/model.safetensors") - 8))
expect 'a number that fp16 lacks' 3 'tensor model.norm.weight holds an infinite number, at \[30, 0\] as fp16' convert \
    --from "$dir/bad" --to "$dir/new" --verify --dtype fp16
gone 'leaves nothing either' new
broken shards
truncate -s -30 "$dir/bad/model.safetensors.index.json"
refused 'an index that is cut' 'bad/model.safetensors.index.json: byte [0-9]*: '
broken shards
sed -i 's/"weight_map"/"weights"/' "$dir/bad/model.safetensors.index.json"
refused 'an index without its map' 'index.json has no weight_map'
broken shards
sed -i 's/model-00002-of-/model-00012-of-/' "$dir/bad/model.safetensors.index.json"
refused 'an index of files that are not there' 'bad/model-00012-of-0000..safetensors: No such file'
broken shards
sed -i '/"model.norm.weight"/d; s/\(.*model.layers.1.self_attn.v_proj.weight.*\),$/\1/' "$dir/bad/model.safetensors.index.json"
refused 'an index that leaves one out' 'holds tensor model.norm.weight, which model.safetensors.index.json does not list'
broken hf
rm "$dir/bad/model.safetensors"
mkdir "$dir/bad/model.safetensors"
refused 'a folder in the place of a file' 'bad/model.safetensors is not a regular file'
rmdir "$dir/bad/model.safetensors"
ln -s /nowhere/else "$dir/bad/model.safetensors"
refused 'a link to nowhere' 'bad has no model.safetensors'
rm "$dir/bad/model.safetensors"
touch "$dir/bad/model-Q4_K_M.gguf"
refused 'GGUF' 'bad/model-Q4_K_M.gguf: weights in GGUF format are not supported .hint: the original safetensors'
rm "$dir/bad/config.json"
refused 'GGUF alone' 'bad/model-Q4_K_M.gguf: weights in GGUF format'
expect 'a file of weights' 3 'model.safetensors is a file .hint: give its folder' convert \
    --from "$dir/hf/model.safetensors" --to "$dir/new"
if [ "$(id -u)" != 0 ]; then
    broken hf
    chmod 0 "$dir/bad/model.safetensors"
    refused 'a file that may not be read' 'bad/model.safetensors: Permission denied'
fi
broken ck2x2
printf x | dd of="$dir/bad/rank-00001.safetensors" bs=1 conv=notrunc status=none seek=9000
refused 'a damaged checkpoint' 'bad/rank-00001.safetensors: tensor .* is damaged'
mkdir "$dir/pickles"
touch "$dir/pickles/pytorch_model.bin"
expect 'a pickle' 3 'pickles/pytorch_model.bin is a pickle, which can run code .*save_pretrained' \
    convert --from "$dir/pickles" --to "$dir/new"
cp "$dir/hf/config.json" "$dir/pickles"
expect 'a pickle beside config.json' 3 'pytorch_model.bin is a pickle' "$lmtrain" eval --model "$dir/pickles"
expect "a hub's name" 3 'hint: .*hf download meta-llama/Llama-3.2-1B --local-dir Llama-3.2-1B' \
    convert --from meta-llama/Llama-3.2-1B --to "$dir/new"
expect "a hub's name to generate" 3 'hf download' "$lmtrain" generate --model org/name --prompt x
expect 'no folder' 3 'does not exist' convert --from "$dir/none" --to "$dir/new"
expect 'something else' 3 'neither a checkpoint nor a folder with config.json' convert --from /etc --to "$dir/new"
expect 'a target that is there' 2 'ck2x2 exists already' convert --from "$dir/hf" --to "$dir/ck2x2"
expect 'itself' 2 'from and --to are both .*/hf' convert --from "$dir/hf" --to "$dir/hf/"
expect 'a HF folder as one' 2 'as hf: .*hf is a Hugging Face folder already' convert --from "$dir/hf" --to "$dir/new" --as hf
expect 'fewer tokens' 2 'vocab-size is 4000, but .*hf has 4096: rows are never removed' convert --from "$dir/hf" \
    --to "$dir/new" --vocab-size 4000
expect 'degrees that do not fit' 2 'parallel.pp is 3, ' convert --from "$dir/hf" --to "$dir/new" --tp 3 --pp 3
expect 'files for ranks that cannot be' 0 'parallel.tp is 3, does not divide n_heads 2 .* files are divided by rows' convert \
    --from "$dir/hf" --to "$dir/ck3x2" --tp 3 --pp 2 --verify
expect 'are read' 0 '' convert --from "$dir/ck3x2" --to "$dir/hf3x2"
expect 'to the bit' 0 '' cmp "$dir/hf/model.safetensors" "$dir/hf3x2/model.safetensors"
expect 'more stages than layers' 2 '3' convert --from "$dir/hf" --to "$dir/new" --pp 3
expect 'no --to' 2 '--to is missing' convert --from "$dir/hf"
gone 'none of them left anything' new
expect 'a disk that is full' 1 'cannot write' sh -c 'ulimit -f 16; exec "$1" convert --from "$2/hf" --to "$2/new"' sh \
    "$lmtrain" "$dir"
gone 'leaves nothing' new
mkdir "$dir/empty"
expect 'an empty folder is taken' 0 '' convert --from "$dir/hf" --to "$dir/empty"
expect 'whole' 0 '' test -s "$dir/empty/manifest.json"
mkdir "$dir/late.partial"
touch "$dir/late.partial/rank-00007.json"
expect 'what something else left is no hindrance' 0 'late.partial: left by an interrupted conversion without a journal: starting from the beginning' \
    convert --from "$dir/hf" --to "$dir/late"
expect 'and goes' 1 '' test -e "$dir/late.partial"

# ---- interrupted, and started again ----

# interrupted PLACE WORDS ARGUMENTS... - killed there it leaves nothing under the final name, and goes on to the same bits
interrupted() {
    place=$1 words=$2
    shift 2
    expect "killed at $place" 137 '' env "LMTRAIN_FAULT=rank0:$place" "$lmtrain" convert --threads 1 --to "$dir/again" "$@"
    # What a process that was killed within file_write leaves.
    touch "$dir/again.partial/config.json.part-$(sh -c 'echo $$')"
    expect "$place: it has no name yet" 1 '' test -e "$dir/again"
    expect "$place: it goes on" 0 'again.partial: continuing an interrupted' convert --to "$dir/again" "$@"
    [ -z "$words" ] || expect "$place: with what is whole" 0 "$words" printf '%s\n' "$output"
    expect "$place: no notes remain" 1 '' sh -c 'ls "$1.partial" "$1"/*.done "$1/convert.notes" "$1"/*.part-* 2>/dev/null | grep .' sh "$dir/again"
}

for place in convert:begun save:writing:-1 convert:writing:2 convert:file:0 convert:file:2 convert:carried \
    save:before_manifest convert:sealed; do
    case $place in
    convert:writing:2) words='2 of the files (was|were) already complete' ;;
    convert:file:0) words='1 of the files (was|were) already complete' ;;
    convert:file:2) words='3 of the files (was|were) already complete' ;;
    convert:carried | save:before_manifest | convert:sealed) words='4 of the files (was|were) already complete' ;;
    *) words= ;;
    esac
    interrupted "${place%:-1}" "$words" --from "$dir/hf" --tp 2 --pp 2
    same "$place: the same bits" ck2x2 again
    rm -r "$dir/again"
done
for place in convert:begun convert:writing:1 convert:file:0 convert:carried convert:sealed; do
    interrupted "$place" '' --from "$dir/ck2x2" --max-shard-gb 0.0002 --verify
    same "$place: the same folder" shards again
    rm -r "$dir/again"
done
expect 'a signal is answered' 143 '^lmtrain: interrupted by SIGTERM: the same command continues after the last complete file$' \
    env LMTRAIN_FAULT=rank0:convert:file:1:sigterm "$lmtrain" convert --threads 1 --to "$dir/again" --from "$dir/hf" --tp 2 --pp 2
expect 'and it does' 0 '2 of the files were already complete' convert --to "$dir/again" --from "$dir/hf" --tp 2 --pp 2
rm -r "$dir/again"
# left ARGUMENTS... - what a kill behind the first file leaves
left() {
    rm -rf "$dir/again.partial"
    expect 'killed' 137 '' env LMTRAIN_FAULT=rank0:convert:file:0 "$lmtrain" convert --to "$dir/again" "$@"
}
left --from "$dir/hf" --pp 2
expect 'with other arguments' 0 'but it was made with --dtype keep, not with --dtype bf16: starting from the beginning' convert \
    --from "$dir/hf" --to "$dir/again" --pp 2 --dtype bf16
rm -r "$dir/again"
left --from "$dir/hf" --pp 2
expect 'from elsewhere' 0 'but it was made with --from .*/hf, not with --from .*/shards: starting from the beginning' convert \
    --from "$dir/shards" --to "$dir/again" --pp 2
same 'is that of elsewhere' ckshards again
rm -r "$dir/again"
cp -r "$dir/hf" "$dir/moving"
left --from "$dir/moving" --pp 2
touch "$dir/moving/model.safetensors"
expect 'of what has changed' 0 'the source has changed since: starting from the beginning' convert --from "$dir/moving" \
    --to "$dir/again" --pp 2
rm -r "$dir/again"
left --from "$dir/hf" --pp 2
printf x | dd of="$dir/again.partial/rank-00000.safetensors" bs=1 conv=notrunc status=none seek=9000
expect 'with a file that was damaged' 0 'continuing' convert --from "$dir/hf" --to "$dir/again" --pp 2
refuse 'which is not believed' 'were whole'
same 'and made anew' ck1x2 again
rm -r "$dir/again"
left --from "$dir/ck2x2" --max-shard-gb 0.0002
truncate -s -1 "$dir/again.partial/model-00001"*.safetensors
expect 'with a file that was cut' 0 'continuing' convert --from "$dir/ck2x2" --to "$dir/again" --max-shard-gb 0.0002
refuse 'which is not believed either' 'were whole'
same 'and is made anew' shards again
mkdir "$dir/held.partial"
expect 'two at once' 2 'held.partial is being written by another lmtrain convert' flock "$dir/held.partial" \
    "$lmtrain" convert --from "$dir/hf" --to "$dir/held"
expect 'nothing of the other is lost' 0 '' test -d "$dir/held.partial"

# ---- what goes along, and a vocabulary that grows ----

cp -r "$dir/hf" "$dir/full"
for file in generation_config.json special_tokens_map.json added_tokens.json vocab.json merges.txt tokenizer.model \
    qwen.tiktoken chat_template.jinja LICENSE modeling_own.py; do
    echo "$file" >"$dir/full/$file"
done
mkdir "$dir/full/additional_chat_templates"
echo t >"$dir/full/additional_chat_templates/tool_use.jinja"
cp -r "$dir/full" "$dir/more"
echo x >"$dir/more/training_args.txt"
echo x >"$dir/more/.hidden"
expect 'a folder with all that belongs to a model' 0 '' convert --from "$dir/more" --to "$dir/ckmore"
expect 'back' 0 '' convert --from "$dir/ckmore" --to "$dir/backmore"
same 'has what it had, but for what does not belong' full backmore
expect 'a vocabulary made a multiple of 1000' 0 'embedding and head have 5000 rows, of which 904 are new' convert \
    --from "$dir/hf" --to "$dir/grown" --tp 2 --pad-vocab 1000 --verify
expect 'back' 0 '"vocab_size":[[:space:]]*5000' sh -c '"$1" convert --from "$2/grown" --to "$2/grown-hf" && cat "$2/grown-hf/config.json"' sh \
    "$lmtrain" "$dir"
cp -r "$dir/hf" "$dir/added"
sed -i 's/"added_tokens": \[/&{"id": 4098, "content": "<|new|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},/' \
    "$dir/added/tokenizer.json"
expect 'a token more than rows' 0 'its tokenizer has 4099 tokens, but its embedding 4096 rows: the embedding grows' convert \
    --from "$dir/added" --to "$dir/ckadded" --verify
expect 'is known' 0 . "$lmtrain" generate --model "$dir/ckadded" --prompt 'And God <|new|>' --temperature 0 --max-new-tokens 2
expect 'or kept out' 0 '' convert --from "$dir/added" --to "$dir/ckkept" --vocab-size 4096
refuse 'without new rows' 'new'

# ---- a run is whole wherever it lies ----

# From a folder of its own, with paths that are relative to it, all of which go then.
program=$(realpath "$lmtrain")
mkdir "$dir/desk"
cp -r data/kjv-tokenizer "$dir/desk/tok"
cp "$dir/train.bin" "$dir/train.idx" "$dir/desk"
expect 'a run of relative paths' 0 '^done' sh -c 'cd "$1/desk" && exec "$2" pretrain "$1/job.yaml" --set data.train=./train --set eval.data=train \
    --set data.tokenizer=tok --set train.steps=2 --set output=run' sh "$dir" "$program"
expect 'its job.yaml has them absolute' 0 '^4$' grep -cE "(train|tokenizer|data|path): .*$dir/desk/(tok|train|run)|^output: $dir/desk/run" \
    "$dir/desk/run/job.yaml"
mkdir "$dir/away"
mv "$dir/desk/run" "$dir/away/run"
rm -r "$dir/desk"
cp -r "$dir/away/run/checkpoints/step-00000002" "$dir/alone"
for model in away/run alone; do
    expect "$model has its tokenizer" 0 . sh -c 'cd / && exec "$1" generate --model "$2" --prompt "And God" --max-new-tokens 2' sh \
        "$program" "$dir/$model"
    expect "so has its export" 0 'as a Hugging Face folder' convert --from "$dir/$model" --to "$dir/alone-hf"
    expect "the very same" 0 '' cmp "$dir/alone-hf/tokenizer.json" data/kjv-tokenizer/tokenizer.json
    rm -r "$dir/alone-hf"
done
expect 'checkpoints share its file within the run' 0 '^[2-9]$' stat -c %h "$dir/away/run/checkpoints/step-00000002/hf/tokenizer.json"
sed -i '0,/"God": /s//"Gud": /' "$dir/alone/hf/tokenizer.json"
expect 'one that was damaged' 3 'alone/hf is not the tokenizer that .*alone was trained with|tokenizer.json: ' convert \
    --from "$dir/alone" --to "$dir/new"
expect 'which is said' 0 'warn: .*alone/hf/tokenizer.json has changed since it was saved' printf '%s\n' "$output"
expect 'is refused to generate, too' 3 'alone/hf' "$lmtrain" generate --model "$dir/alone" --prompt x
expect 'another one can be given' 0 'as a Hugging Face folder' convert --from "$dir/alone" --to "$dir/alone-hf" \
    --tokenizer data/kjv-tokenizer
expect 'and goes along' 0 '' cmp "$dir/alone-hf/tokenizer.json" data/kjv-tokenizer/tokenizer.json
rm -r "$dir/alone/hf" "$dir/alone-hf"
expect 'an old checkpoint whose tokenizer is gone' 3 \
    'alone has no tokenizer, and that of its job, .*/desk/tok, is not there .hint: --tokenizer DIR, or --no-tokenizer' \
    convert --from "$dir/alone" --to "$dir/new"
gone 'leaves nothing' new
expect 'is converted without one if asked' 0 'as a Hugging Face folder' convert --from "$dir/alone" --to "$dir/bare" --no-tokenizer
expect 'and has none' 0 '^config.json model.safetensors $' sh -c 'ls "$1" | tr "\n" " "' sh "$dir/bare"
expect 'which config.json says' 0 '"eos_token_id":[[:space:]]*null' cat "$dir/bare/config.json"
expect 'as a file' 0 '' convert --from "$dir/alone" --to "$dir/filed" --tokenizer data/kjv-tokenizer/tokenizer.json
expect 'it is found in the folder' 0 . "$lmtrain" generate --model "$dir/filed" --prompt 'And God' --max-new-tokens 2
expect 'an export knows what ends a text' 0 '"eos_token_id":[[:space:]]*0' cat "$dir/filed/generation_config.json"
expect 'by name too' 0 '"eos_token":[[:space:]]*"<.endoftext.>"' cat "$dir/filed/tokenizer_config.json"
expect 'both options' 2 'tokenizer and --no-tokenizer are both given' convert --from "$dir/alone" --to "$dir/new" \
    --tokenizer x --no-tokenizer
expect 'a tokenizer that is none' 3 '/nowhere' convert --from "$dir/alone" --to "$dir/new" --tokenizer /nowhere
gone 'nothing is left' new
finish
