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
expect 'files are private' 0 '^-rw------- ' ls -l "$dir/hf/model.safetensors"
for layout in 1x1 2x1 1x2 2x2; do
    expect "as a checkpoint, tp x pp $layout" 0 'as a checkpoint of . file' convert --from "$dir/hf" \
        --to "$dir/ck$layout" --tp "${layout%x*}" --pp "${layout#*x}" --verify
    expect "and back from $layout" 0 'verified: 20 tensors are the same, bit for bit, and so are a prompt' \
        convert --from "$dir/ck$layout" --to "$dir/back$layout" --verify
    same "is what it was, $layout" hf "back$layout"
done
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
expect 'a run that begins with a folder' 0 'beginning with the weights of .*/hf' pretrain two \
    --set train.init="$dir/hf" --set "model=$dir/hf" --set train.dtype=fp32
expect 'with a checkpoint' 0 'beginning with the weights of .*/ck2x2' pretrain three \
    --set train.init="$dir/ck2x2" --set train.dtype=fp32
bits two | cut -d' ' -f2- >"$dir/two.bits"
bits three | cut -d' ' -f2- >"$dir/three.bits"
expect 'do the same' 0 '' cmp "$dir/two.bits" "$dir/three.bits"
expect 'where the run before ended' 0 '' sh -c 'head -n 1 "$1" | cut -d" " -f1 | grep -v "^0x1\.0"' sh "$dir/two.bits"
rm -r "$dir/ck1x1"
expect 'what it began with is not needed to go on' 0 'going on from' pretrain three \
    --set train.init="$dir/gone" --set train.dtype=fp32 --set train.steps=13
expect 'nothing goes on from a converted one' 3 'hint: train.init begins with them' pretrain four --resume "$dir/ck2x2"
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
refused 'a truncated shard' "model-00002-of-.*: tensor .*: its data lie beyond the file's end"
broken shards
sed -i 's/"model.norm.weight": "[^"]*"/"model.norm.weight": "..\/hf\/model.safetensors"/' "$dir/bad/model.safetensors.index.json"
refused 'an index that points outside' 'index.json: tensor model.norm.weight is said to be in "../hf/model.safetensors"'
broken shards
sed -i 's/"model.norm.weight": "[^"]*"/"model.norm.weight": "model-00001-of-00002.safetensors"/' "$dir/bad/model.safetensors.index.json"
refused 'an index that is wrong' 'tensor model.norm.weight'
broken hf
LC_ALL=C sed -i 's/"model.norm.weight"/"model.norm.weighs"/' "$dir/bad/model.safetensors"
refused 'a tensor that is missing' 'bad/model.safetensors: tensor model.norm.weight is missing'
broken hf
LC_ALL=C sed -i 's/"num_hidden_layers":[^,]*/"num_hidden_layers": 1/' "$dir/bad/config.json"
refused 'a tensor too many' 'model.safetensors: tensor model.layers.1.* is none that a llama model of this config.json has'
broken hf
LC_ALL=C sed -i 's/"intermediate_size":[^,]*/"intermediate_size": 96/' "$dir/bad/config.json"
refused 'another shape' 'tensor model.layers.0.mlp.gate_proj.weight is \[64, 32\], by config.json it is \[96, 32\]'
broken hf
printf '\377\377\377\177' | dd of="$dir/bad/model.safetensors" bs=1 conv=notrunc status=none \
    seek=$(($(wc -c <"$dir/bad/model.safetensors") - 4))
refused 'a NaN' 'tensor model.norm.weight holds a NaN, at \[31, 0\]'
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
expect 'a target that is there' 2 'ck2x2 is there already' convert --from "$dir/hf" --to "$dir/ck2x2"
expect 'degrees that do not fit' 2 'parallel.tp is 3, does not divide n_heads 2' convert --from "$dir/hf" \
    --to "$dir/new" --tp 3
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
expect 'what a kill left is no hindrance' 0 '' convert --from "$dir/hf" --to "$dir/late"
expect 'and goes' 1 '' test -e "$dir/late.partial"
finish
