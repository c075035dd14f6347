#!/bin/sh
# test/cli/bad_input.sh - each kind of file that is read, spoilt in every way: an error that names it, the right status,
# nothing lost
#
# mistakes.sh has what people do, with what they are told; here a row of readers meets a row of spoilt files: absent, a
# folder, a link to itself, empty, zero bytes, cut off at several places, followed by something, random bytes, not ours
# to read, and some bytes changed (BAD_INPUT_SEED, which is printed).
. test/cli/support/check.sh
. test/cli/support/tiny.sh

seed=${BAD_INPUT_SEED:-$(date +%s)}
echo "# BAD_INPUT_SEED=$seed"

# In front of a command: without root's rights, if we have them.
nobody=
[ "$(id -u)" != 0 ] || nobody='setpriv --reuid 65534 --regid 65534 --clear-groups'

# try COMMAND... - its status in $got, what it said in $output; no time for what waits forever
try() {
    output=$(timeout 60 "$@" 2>&1 </dev/null)
    got=$?
}

# judge NAME TRUTH... - whether the test of that name is passed; if not, what was said
judge() {
    judge_name=$1
    shift
    if "$@"; then
        echo "ok $judge_name"
        return
    fi
    echo "not ok $judge_name: status $got, and it said:"
    printf '%s\n' "$output" | LC_ALL=C tr -c '\n -~' '?' | tail -n 20 | sed 's/^/    /'
    n_wrong=$((n_wrong + 1))
}

# is_clear STATUS FILE - the last command ended so, with at most ten lines of lmtrain's of which one names the file,
# and in them nothing that a terminal would act on
# shellcheck disable=SC2317 # judge calls it
is_clear() {
    said=$(printf '%s\n' "$output" | grep -a '^lmtrain: ')
    [ "$got" = "$1" ] && [ "$(printf '%s\n' "$said" | wc -l)" -le 10 ] && printf '%s\n' "$said" | grep -qaF -e "$2" &&
        ! printf '%s' "$said" | LC_ALL=C tr -d '\n' | LC_ALL=C grep -qa '[[:cntrl:]]'
}

# make KIND FILE - from $dir/whole; status 1 if it is none of these
make() {
    size=$(wc -c <"$dir/whole")
    case $1 in
    absent) ;;
    'a folder') mkdir "$2" ;;
    'a link to itself') ln -s "$(basename "$2")" "$2" ;;
    empty) : >"$2" ;;
    'zero bytes') head -c 100 /dev/zero >"$2" ;;
    'one byte') head -c 1 "$dir/whole" >"$2" ;;
    'a tenth') head -c $((size / 10)) "$dir/whole" >"$2" ;;
    'a half') head -c $((size / 2)) "$dir/whole" >"$2" ;;
    'all but three bytes') head -c $((size - 3)) "$dir/whole" >"$2" ;;
    'more than all') cat "$dir/whole" - >"$2" <"$dir/three" ;;
    'random bytes') head -c 5000 /dev/urandom >"$2" ;;
    esac
}
printf 'x}]' >"$dir/three"

# flip FILE OFFSET BIT
flip() {
    byte=$(od -An -tu1 -j "$2" -N 1 "$1" | tr -d ' ')
    # shellcheck disable=SC2059 # the escape of a byte
    printf "\\$(printf %03o $((byte ^ (1 << $3))))" | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}

# spoil READER FILE STATUS NAMED KINDS COMMAND... - the file is spoilt in each of KINDS, and the command refuses it with
# that status and names NAMED; and so it does if we may not read it. Then the file is as it was.
spoil() {
    reader=$1 file=$2 status=$3 named=$4 kinds=$5
    shift 5
    mv "$file" "$dir/whole"
    while [ -n "$kinds" ]; do
        kind=${kinds%%, *}
        kinds=${kinds#"$kind"}
        kinds=${kinds#, }
        make "$kind" "$file"
        try "$@"
        judge "$reader, $kind" is_clear "$status" "$named"
        rm -rf "$file"
    done
    mv "$dir/whole" "$file"
    if [ -n "$may_be_nobody" ]; then
        chmod 000 "$file"
        rm -rf "$dir/open/run"
        # shellcheck disable=SC2086 # words
        try $nobody "$@"
        judge "$reader, not ours to read" is_clear "$status" ': Permission denied'
        chmod 644 "$file"
    fi
}

# is_sane STATUS FILE - it was taken, or refused as it should be
# shellcheck disable=SC2317
is_sane() { [ "$got" = 0 ] || is_clear "$1" "$2"; }

# flips READER FILE N JUDGE STATUS NAMED COMMAND... - with one bit changed somewhere, N times
flips() {
    reader=$1 file=$2 n=$3 verdict=$4 status=$5 named=$6
    shift 6
    cp "$file" "$dir/whole"
    awk -v seed="$seed" -v n="$n" -v size="$(wc -c <"$file")" 'BEGIN {
        srand(seed)
        for (i = 0; i < n; i++) print int(rand() * (i % 2 || size < 64 ? size : 64)), int(8 * rand())
    }' >"$dir/flips"
    while read -r offset bit; do
        flip "$file" "$offset" "$bit"
        try "$@"
        judge "$reader, bit $bit of byte $offset" "$verdict" "$status" "$named"
        cat "$dir/whole" >"$file"
    done <"$dir/flips"
}

usual='absent, a folder, a link to itself, empty, zero bytes, one byte, a tenth, a half, random bytes'

# ---- what is read ----

chmod 755 "$dir"
mkdir "$dir/hf" "$dir/tok"
mkdir -m 777 "$dir/open"
cp data/kjv-tokenizer/* "$dir/tok/"
printf '{"eos_token": "<|endoftext|>", "add_bos_token": false, "model_max_length": 1024}\n' >"$dir/tok/tokenizer_config.json"
printf '%s, %s, %s\n' '{"model_type": "llama", "vocab_size": 4096, "hidden_size": 32, "intermediate_size": 64' \
    '"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64' \
    '"rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": true, "hidden_act": "silu"}' >"$dir/hf/config.json"
awk 'BEGIN { for (i = 0; i < 50; i++) printf "{\"n\": [1, {\"a\": null}], \"text\": \"line %d: \\u00e9 \\ud83d\\ude00\"}\n", i }' \
    >"$dir/lines.jsonl"
cp "$dir/job.yaml" "$dir/spoilt.yaml"
cp "$dir/train.bin" "$dir/spoilt.bin"
cp "$dir/train.idx" "$dir/spoilt.idx"
chmod 644 "$dir"/*.yaml "$dir"/*.bin "$dir"/*.idx "$dir"/*.jsonl "$dir"/*.txt
may_be_nobody=
# shellcheck disable=SC2086
if $nobody test -r "$lmtrain" -a -r "$dir/job.yaml"; then
    may_be_nobody=yes
else
    echo 'skip what is not ours to read: nobody may read the build'
fi

tokenize() { echo "$lmtrain data tokenize --tokenizer $1 --out $dir/open/made $2"; }

# ---- jobs, models ----

spoil 'a job' "$dir/spoilt.yaml" 2 spoilt.yaml "$usual" "$lmtrain" plan "$dir/spoilt.yaml"
flips 'a job' "$dir/spoilt.yaml" 12 is_sane 2 spoilt.yaml "$lmtrain" plan "$dir/spoilt.yaml"
spoil 'a config.json' "$dir/hf/config.json" 2 "$dir/hf" "$usual, all but three bytes, more than all" \
    "$lmtrain" plan "$dir/job.yaml" --set "model=$dir/hf"
flips 'a config.json' "$dir/hf/config.json" 12 is_sane 2 "$dir/hf" "$lmtrain" plan "$dir/job.yaml" --set "model=$dir/hf"

# huge NAME FIELD NUMBER - a field of config.json with that number
huge() {
    sed -i.whole "s/\"$2\": [0-9.e-]*/\"$2\": $3/" "$dir/hf/config.json"
    try "$lmtrain" plan "$dir/job.yaml" --set "model=$dir/hf"
    judge "$1" is_clear 2 "$dir/hf/config.json"
    mv "$dir/hf/config.json.whole" "$dir/hf/config.json"
}
for number in -1 0 1e308 2147483648 99999999999999999999 '"2"' null; do
    huge "num_hidden_layers of $number" num_hidden_layers "$number"
    huge "hidden_size of $number" hidden_size "$number"
done

# ---- tokens ----

for end in idx bin; do
    kinds='absent, a folder, a link to itself, empty, zero bytes, one byte, a tenth, a half, all but three bytes, random bytes'
    spoil "an .$end" "$dir/spoilt.$end" 3 "spoilt.$end" "$kinds" "$lmtrain" data inspect "$dir/spoilt"
done
spoil 'an .idx, to train on' "$dir/spoilt.idx" 3 "spoilt.idx" "$usual, more than all" \
    "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/open/run" --set "data.train=$dir/spoilt"
flips 'an .idx' "$dir/spoilt.idx" 16 is_sane 3 spoilt. "$lmtrain" data inspect "$dir/spoilt"
# number NAME OFFSET BYTES - the .idx with these bytes there
number() {
    cp "$dir/spoilt.idx" "$dir/whole"
    # shellcheck disable=SC2059 # bytes
    printf "$3" | dd of="$dir/spoilt.idx" bs=1 seek="$2" conv=notrunc 2>/dev/null
    try "$lmtrain" data inspect "$dir/spoilt"
    judge "an .idx with $1" is_clear 3 spoilt
    cp "$dir/whole" "$dir/spoilt.idx"
}
most='\377\377\377\377\377\377\377\177' minus='\377\377\377\377\377\377\377\377'
number 'no sequences' 18 '\0\0\0\0\0\0\0\0'
number '2^63 - 1 sequences' 18 "$most"
number '-1 sequences' 18 "$minus"
number '2^61 sequences, which is 0 bytes' 18 '\0\0\0\0\0\0\0\040'
number '-1 documents' 26 "$minus"
number 'a length of -1' 34 '\377\377\377\377'
number 'a length of 2^31 - 1' 34 '\377\377\377\177'
number 'a place of -1' 38 "$minus"
number 'a place of 2^63 - 1' 38 "$most"
number 'a document of -1' 46 "$minus"
number 'a type that is none' 17 '\0'

# ---- text, tokenizers ----

# shellcheck disable=SC2046 # words
spoil 'JSONL' "$dir/lines.jsonl" 3 lines.jsonl 'absent, a folder, a link to itself, zero bytes, one byte, a tenth, random bytes' \
    $(tokenize "$dir/tok" "$dir/lines.jsonl")
# shellcheck disable=SC2046
flips 'JSONL' "$dir/lines.jsonl" 12 is_sane 3 lines.jsonl $(tokenize "$dir/tok" "$dir/lines.jsonl")
# shellcheck disable=SC2046
spoil 'text' "$dir/train.txt" 3 train.txt 'absent, a folder, a link to itself, random bytes' \
    $(tokenize "$dir/tok" "$dir/train.txt")
ln -s /dev/zero "$dir/endless.jsonl"
# shellcheck disable=SC2046
try $(tokenize "$dir/tok" "$dir/endless.jsonl")
judge 'a line without end' is_clear 3 'endless.jsonl:1: the line is longer than'
# shellcheck disable=SC2046
spoil 'a tokenizer' "$dir/tok/tokenizer.json" 3 tok/tokenizer.json "$usual, all but three bytes, more than all" \
    $(tokenize "$dir/tok" "$dir/held.txt")
# shellcheck disable=SC2046
flips 'a tokenizer' "$dir/tok/tokenizer.json" 12 is_sane 3 tok/tokenizer.json $(tokenize "$dir/tok" "$dir/held.txt")
# shellcheck disable=SC2046
spoil 'a tokenizer_config.json' "$dir/tok/tokenizer_config.json" 3 tok/tokenizer_config.json \
    'a folder, empty, zero bytes, one byte, a half, random bytes' $(tokenize "$dir/tok" "$dir/held.txt")
# What was made by an earlier call is not lost by one that fails.
# shellcheck disable=SC2046
expect 'tokens are made' 0 'tokens in 1 document,' $(tokenize "$dir/tok" "$dir/held.txt")
before=$(cksum <"$dir/open/made.bin")
printf '{"text": "fine"}\n{"text": 1}\n' >"$dir/lines.jsonl"
# shellcheck disable=SC2046
expect 'what fails later' 3 'lines.jsonl:2: ' $(tokenize "$dir/tok" "$dir/lines.jsonl")
expect 'leaves them as they were' 0 '' test "$before" = "$(cksum <"$dir/open/made.bin")"
expect 'and nothing half done' 0 '' test -z "$(find "$dir/open" -name '*.partial')"

# ---- prompts, checkpoints ----

expect 'a run' 0 '^done' pretrain one --set checkpoint.every_steps=12
step=$dir/one/checkpoints/step-00000012
[ "$(id -u)" != 0 ] || chown -R 65534 "$dir/one"
printf 'In the beginning\nbad: \377\n' >"$dir/prompts"
chmod 644 "$dir/prompts"
# shellcheck disable=SC2046
spoil 'prompts' "$dir/prompts" 3 prompts 'absent, a folder, a link to itself, random bytes' \
    "$lmtrain" generate --model "$dir/one" --max-new-tokens 1 --prompts "$dir/prompts"
try "$lmtrain" generate --model "$dir/one" --max-new-tokens 1 --prompts "$dir/prompts"
judge 'a prompt that is not valid UTF-8' is_clear 3 'prompts:2: byte 5 (0xff) is not valid UTF-8'
# But for what was logged of the attempts.
sums() { find "$dir/one" -type f ! -name lock ! -name '*.log' -exec cksum {} + | sort; }
sums >"$dir/before"
go_on="$lmtrain pretrain $dir/job.yaml --set output=$dir/one --set train.steps=14"
for name in manifest.json rank-00000.safetensors; do
    # shellcheck disable=SC2086 # words
    spoil "$name of a checkpoint" "$step/$name" 3 step-00000012 "$usual, all but three bytes, more than all" $go_on
done
# shellcheck disable=SC2086
flips 'manifest.json of a checkpoint' "$step/manifest.json" 8 is_clear 3 step-00000012 $go_on
# What stands in front of the tensors names and places them; a name that nobody asks for is no harm.
flips 'rank-00000.safetensors of a checkpoint' "$step/rank-00000.safetensors" 8 is_sane 3 step-00000012 \
    "$lmtrain" generate --model "$dir/one" --prompt a --max-new-tokens 1
# The tensors themselves.
for part in 3 5 9; do
    cp "$step/rank-00000.safetensors" "$dir/whole"
    offset=$(($(wc -c <"$dir/whole") * part / 10))
    flip "$step/rank-00000.safetensors" $offset $((part % 8))
    # shellcheck disable=SC2086
    try $go_on
    judge "rank-00000.safetensors, bit $((part % 8)) of byte $offset" is_clear 3 'rank-00000.safetensors'
    cat "$dir/whole" >"$step/rank-00000.safetensors"
done
# header LENGTH BYTES - the length of the header, as its first eight bytes say
header() {
    cp "$step/rank-00000.safetensors" "$dir/whole"
    # shellcheck disable=SC2059 # bytes
    printf "$2" | dd of="$step/rank-00000.safetensors" bs=1 conv=notrunc 2>/dev/null
    try "$lmtrain" generate --model "$dir/one" --prompt a
    judge "a header of $1 bytes" is_clear 3 rank-00000.safetensors
    cat "$dir/whole" >"$step/rank-00000.safetensors"
}
header 0 '\0\0\0\0\0\0\0\0'
header 1 '\001\0\0\0\0\0\0\0'
header 2^32 '\0\0\0\0\001\0\0\0'
header '2^63 - 1' "$most"
header '2^64 - 1' "$minus"
sums >"$dir/after"
expect 'after all of it the run is as it was' 0 '' cmp "$dir/before" "$dir/after"
# shellcheck disable=SC2086
expect 'and goes on' 0 '^done' $go_on
finish
