#!/bin/sh
# test/cli/data.sh - lmtrain data as people call it, and the script that prepares the King James Bible
. test/cli/support/check.sh
lmtrain=build/lmtrain
tokenizer=data/kjv-tokenizer

printf '{"text": "In the beginning"}\n{"text": "And God said"}\n' >"$dir/in.jsonl"
printf '{"text": "fine"}\n{"txt": "x"}\n' >"$dir/bad.jsonl"
printf 'Let there be light\n' >"$dir/in.txt"

expect 'data of nothing' 2 'give tokenize, merge, inspect, preview or rows' $lmtrain data
expect 'data -h: both' 0 '^usage: lmtrain data inspect' $lmtrain data -h
expect 'tokenize -h' 0 '--no-eod' $lmtrain data tokenize -h
expect 'no input' 2 '' $lmtrain data tokenize --tokenizer $tokenizer --out "$dir/x"
expect 'no tokenizer' 2 '--tokenizer is missing' $lmtrain data tokenize "$dir/in.txt" --out "$dir/x"
expect 'no output' 2 '--out is missing' $lmtrain data tokenize "$dir/in.txt" --tokenizer $tokenizer
expect 'a wrong tokenizer' 3 'tokenizer.json' \
    $lmtrain data tokenize "$dir/in.txt" --tokenizer "$dir" --out "$dir/x"
expect 'a bad line' 3 'bad.jsonl:2: there is no field .text.' \
    $lmtrain data tokenize "$dir/bad.jsonl" --tokenizer $tokenizer --out "$dir/x"
expect 'and nothing was written' 3 'x.idx' $lmtrain data inspect "$dir/x"
expect 'an output that cannot be' 1 '/dev/null' \
    $lmtrain data tokenize "$dir/in.txt" --tokenizer $tokenizer --out /dev/null/x

expect 'text and JSONL' 0 'tokens in 3 documents' \
    $lmtrain data tokenize "$dir/in.jsonl" "$dir/in.txt" --tokenizer $tokenizer --out "$dir/x"
expect 'modes are by the umask' 0 '^644 644$' sh -c "umask 022; $lmtrain data tokenize $dir/in.txt --tokenizer $tokenizer --out $dir/m \
    >/dev/null && echo \$(stat -c %a $dir/m.bin $dir/m.idx)"
expect 'inspect' 0 'documents   3 of' $lmtrain data inspect "$dir/x" --tokenizer $tokenizer
expect 'and its text' 0 'In the beginning<.endoftext.>' \
    $lmtrain data inspect "$dir/x" --tokenizer $tokenizer
expect 'inspect --json' 0 '"documents": 3,' $lmtrain data inspect "$dir/x" --json
promised 'data inspect'
expect 'which tokenizer it was' 0 '"tokenizer": "1-37aa4ec3f6eafdb2-eec1778a", "vocab_size": 4096,' $lmtrain data inspect "$dir/x" --json
expect 'in words' 0 'tokenizer   1-37aa4ec3f6eafdb2-eec1778a, of 4,096 tokens, documents end with 0' $lmtrain data inspect "$dir/x"
expect 'another one' 3 'x was made with another tokenizer than test/.*small.json: .*x.json with 1-37aa4ec3f6eafdb2-eec1778a, of 4096 tokens, not' \
    $lmtrain data inspect "$dir/x" --tokenizer test/tokenizer/golden/small.json
cp "$dir/x.bin" "$dir/bare.bin"
cp "$dir/x.idx" "$dir/bare.idx"
expect 'without its .json' 0 'tokenizer   unknown: there is no .json of lmtrain data tokenize' $lmtrain data inspect "$dir/bare" --tokenizer $tokenizer
echo '[1, 2]' >"$dir/rows.json"
expect 'a .json of something else' 2 'rows.json exists but does not belong to a token file' \
    $lmtrain data tokenize "$dir/in.txt" --tokenizer $tokenizer --out "$dir/rows"
expect 'stays' 0 '^.1, 2.$' cat "$dir/rows.json"
expect 'standard input' 0 '"documents": 2,' \
    sh -c "$lmtrain data tokenize - --format jsonl --tokenizer $tokenizer --out $dir/y --json <$dir/in.jsonl"
promised 'data tokenize'
truncate -s -1 "$dir/x.bin"
expect 'a short file' 3 'x.bin has .* bytes, but its .idx requires' $lmtrain data inspect "$dir/x"

# A reader that never comes to its end.
mkfifo "$dir/endless"
sleep 600 >"$dir/endless" &
sleeper=$!
trap 'kill $sleeper 2>/dev/null; rm -rf "$dir"' EXIT
$lmtrain data tokenize - --format jsonl --tokenizer $tokenizer --out "$dir/stopped" <"$dir/endless" >"$dir/stopped.out" 2>&1 &
pid=$!
tries=600
until [ -e "$dir/stopped.bin.partial" ] || [ "$tries" = 0 ]; do
    tries=$((tries - 1))
    sleep 0.05
done
expect 'a file that is half written' 0 '' test -e "$dir/stopped.bin.partial"
kill -TERM $pid
wait $pid
# shellcheck disable=SC2016 # sh expands it
expect 'a signal ends it' 143 'interrupted by SIGTERM: PREFIX.bin.partial is removed; the same command starts from the beginning' \
    sh -c 'cat "$1"; exit "$2"' sh "$dir/stopped.out" $?
# shellcheck disable=SC2016
expect 'and nothing is left' 1 '' sh -c 'ls "$1"/stopped.bin* "$1"/stopped.idx* 2>/dev/null | grep .' sh "$dir"
kill $sleeper
mkdir "$dir/rows"
printf '[{"body": "In the beginning"},\n {"body": "And God said"}]' >"$dir/rows/a.json"
printf 'n,body\n1,"Let there be\nlight"\n' >"$dir/rows/b.csv"
expect 'a folder of rows' 0 '"inputs": 2, "documents": 3,' \
    $lmtrain data tokenize "$dir/rows" --column body --tokenizer $tokenizer --out "$dir/z" --workers 2 --json
expect 'a column that is not there' 3 "b.csv: there is no column .text. .hint: it has n, body" \
    $lmtrain data tokenize "$dir/rows/b.csv" --tokenizer $tokenizer --out "$dir/z"
expect 'standard input that is no lines' 3 'standard input is read as text or jsonl alone, not as csv' \
    $lmtrain data tokenize - --format csv --tokenizer $tokenizer --out "$dir/z"
expect 'rows' 0 '{"n":"1","body":"Let there be.nlight"}' $lmtrain data rows "$dir/rows"
expect 'rows of parquet' 0 '^{"text":"verse 1 ","word":"the","small":null,' \
    $lmtrain data rows test/data/golden/flat-snappy.parquet
expect 'the texts of a column' 0 '^"verse 2 verse 2 "$' \
    $lmtrain data rows test/data/golden/flat-delta.parquet --column text --n 3
expect 'tokens of parquet' 0 '"documents": 21, "empty": 9,' \
    $lmtrain data tokenize test/data/golden/flat-snappy.parquet --tokenizer $tokenizer --out "$dir/z" --json

# Where --out leads.
expect '--out of nothing' 2 '--out is missing .hint: --out PREFIX' $lmtrain data tokenize "$dir/rows/b.csv" --tokenizer $tokenizer
expect '--out of no letter' 2 '--out is empty' $lmtrain data tokenize "$dir/rows/b.csv" --tokenizer $tokenizer --out ''
for out in tok/ rows there.bin there.idx; do
    case $out in tok/) prefix=tok/b ;; rows) prefix=rows/b ;; *) prefix=there ;; esac
    rm -f "$dir/$prefix.bin" "$dir/$prefix.idx"
    expect "--out $out" 0 "/$prefix.bin, .idx: [0-9]+ tokens" \
        $lmtrain data tokenize "$dir/rows/b.csv" --column body --tokenizer $tokenizer --out "$dir/$out"
    expect "is $prefix" 0 '' test -s "$dir/$prefix.bin" -a -s "$dir/$prefix.idx"
    rm -f "$dir/$prefix.bin" "$dir/$prefix.idx"
done
expect 'several into a folder' 0 '/tok/tokens.bin, .idx: ' \
    $lmtrain data tokenize "$dir/rows/b.csv" "$dir/rows/b.csv" --column body --tokenizer $tokenizer --out "$dir/tok/"
expect 'standard input into a folder' 0 '/tok/tokens.bin, .idx: ' \
    sh -c "echo hello | $lmtrain data tokenize - --tokenizer $tokenizer --out '$dir/tok'"

printf '{"instruction": "Add", "input": "1+1", "output": "2"}\n{"instruction": "x", "output": ""}\n' >"$dir/chat.jsonl"
expect 'preview: what is learned' 0 '2<.im_end.>' \
    $lmtrain data preview "$dir/chat.jsonl" --tokenizer $tokenizer --template chatml
expect 'preview: what was skipped' 0 'chat.jsonl:2: message 2 .assistant. is empty' \
    $lmtrain data preview "$dir/chat.jsonl" --tokenizer $tokenizer --template chatml
expect 'preview: and counted' 0 '1 bad row was skipped' \
    $lmtrain data preview "$dir/chat.jsonl" --tokenizer $tokenizer --template chatml
expect 'preview --json' 0 '"samples": 1, .*"bad": 1,.*"packed": {"sequences": 1,' \
    $lmtrain data preview "$dir/chat.jsonl" --model $tokenizer --template chatml --json
expect 'preview in colour' 0 '\[32m2' \
    $lmtrain data preview "$dir/chat.jsonl" --tokenizer $tokenizer --template chatml --colour
cat >"$dir/job.yaml" <<EOF
model: llama-100m
data: {train: $dir/chat.jsonl, tokenizer: $tokenizer, template: chatml, seq_len: 64, mask: none, columns: {output: input}}
train: {steps: 1}
EOF
expect 'preview of a job' 0 '^1.1<.im_end.>' $lmtrain data preview "$dir/job.yaml"
expect 'with a field changed' 0 '^sample 1: 40 tokens' $lmtrain data preview "$dir/job.yaml" --set data.seq_len=40 --set data.mask=prompt
expect 'an option that the job says' 2 'mask is for files of rows.*hint: --set data.mask=VALUE' \
    $lmtrain data preview "$dir/job.yaml" --mask history
expect '--set without a job' 2 '--set overrides a field of a job, but .*chat.jsonl is not a job' \
    $lmtrain data preview "$dir/chat.jsonl" --tokenizer $tokenizer --set data.mask=none
# What finetune takes: no steps, the tokenizer of the model's folder, added tokens, JSON that config printed.
mkdir -p "$dir/hf" "$dir/tmp" && cp $tokenizer/tokenizer* "$dir/hf"
cat >"$dir/hf/config.json" <<EOF
{"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
 "vocab_size": 4096, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "hidden_act": "silu"}
EOF
cat >"$dir/tune.yaml" <<EOF
model: $dir/hf
data: {train: $dir/chat.jsonl, template: chatml, seq_len: 64, added_tokens: ['<|im_start|>', '<|im_end|>']}
EOF
expect 'preview of a job of finetune' 0 '^sample 1: 20 tokens' env TMPDIR="$dir/tmp" $lmtrain data preview "$dir/tune.yaml"
expect 'and of lora' 0 '^sample 1: ' env TMPDIR="$dir/tmp" $lmtrain data preview "$dir/tune.yaml" --set lora.rank=2
expect 'leaves nothing behind' 2 '' ls -d "$dir"/tmp/* runs/tune
$lmtrain config "$dir/tune.yaml" --set kind=finetune --json >"$dir/tune.json"
expect 'and of one in JSON' 0 '^sample 1: ' $lmtrain data preview "$dir/tune.json"
expect 'a job of token files' 2 'a token file, not rows .hint: lmtrain data inspect' \
    $lmtrain data preview "$dir/tune.yaml" --set "data.train=$dir/z"
expect 'its plan has the added rows' 0 '^model.vocab_size = 4098 .grown from 4096' $lmtrain plan "$dir/tune.yaml" --set kind=finetune
expect 'in all its figures' 0 '"parameters":' $lmtrain plan "$dir/tune.yaml" --set kind=finetune --json
grown=$(printf '%s\n' "$output" | sed -n 's/.*"parameters":[^0-9]*\([0-9]*\).*/\1/p')
asis=$($lmtrain plan "$dir/tune.yaml" --set kind=finetune --set data.added_tokens=none --json |
    sed -n 's/.*"parameters":[^0-9]*\([0-9]*\).*/\1/p')
expect 'two rows of 32' 0 '' test $((grown - asis)) = 64
expect 'a plan without a tokenizer' 0 'embeddings of data.added_tokens are not counted' \
    $lmtrain plan "$dir/tune.yaml" --set kind=finetune --set data.tokenizer=nowhere

expect 'preview without a tokenizer' 2 '--tokenizer is missing' $lmtrain data preview "$dir/chat.jsonl"
expect 'preview without a template' 2 'has no chat template .hint: data.template' \
    $lmtrain data preview "$dir/chat.jsonl" --tokenizer $tokenizer
expect 'columns that are none' 2 'not FIELD=COLUMN' \
    $lmtrain data preview "$dir/chat.jsonl" --tokenizer $tokenizer --columns output

expect 'the King James Bible' 0 '' scripts/data/prepare-kjv
expect 'has its tokens' 0 '"tokens": 984235, "documents": 66' \
    $lmtrain data inspect build/data/kjv --tokenizer $tokenizer --json
expect 'and those held out' 0 '"tokens": 52476, "documents": 65' \
    $lmtrain data inspect build/data/kjv-heldout --tokenizer $tokenizer --json
finish
