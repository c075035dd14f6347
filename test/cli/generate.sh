#!/bin/sh
# test/cli/generate.sh - lmtrain generate and lmtrain eval on a run of test/cli/support/tiny.sh
. test/cli/support/check.sh
. test/cli/support/tiny.sh

expect 'a run to use' 0 '^done' pretrain one --set train.steps=60 --set eval.every_steps=20 \
    --set checkpoint.every_steps=20

# ---- eval ----

# The loss that a text says, in key $1.
number_of() {
    sed -n "s/.*\"$1\":\([-+.e0-9]*\).*/\1/p"
}
# shellcheck disable=SC2317 # expect calls it
close_to() {
    awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; if (d < 0) d = -d; exit !(b > 0 && d <= 1e-6 * b) }'
}

expect 'perplexity' 0 '^loss +[0-9.]+ nats/token' "$lmtrain" eval --model "$dir/one"
expect 'as JSON' 0 '"task":"perplexity"' "$lmtrain" eval --model "$dir/one" --json
promised eval
loss=$(printf '%s\n' "$output" | number_of loss)
logged=$(number_of eval_loss <"$dir/one/metrics.jsonl" | tail -n 1)
expect "is the run's last held-out loss ($loss, $logged)" 0 '' close_to "$loss" "$logged"
expect 'two threads' 0 "\"loss\":$loss," "$lmtrain" eval --model "$dir/one" --json --threads 2
expect 'of other data' 0 '"tokens":1258[23]' "$lmtrain" eval --model "$dir/one" --json --data "$dir/train"
expect 'on which it is better' 0 '' awk -v a="$(printf '%s\n' "$output" | number_of loss)" -v b="$loss" \
    'BEGIN { exit !(a < b) }'
expect 'of a checkpoint' 0 'step-00000020' "$lmtrain" eval --model "$dir/one/checkpoints/step-00000020" --json
expect 'which was worse' 0 '' awk -v a="$(printf '%s\n' "$output" | number_of loss)" -v b="$loss" \
    'BEGIN { exit !(a > b) }'
expect 'a limit of windows' 0 '^tokens +64$' "$lmtrain" eval --model "$dir/one" --limit 2

# ---- generate ----

# text ARGUMENTS... - what the run writes, in $output
text() {
    expect "generate $*" 0 '' "$lmtrain" generate --model "$dir/one" --max-new-tokens 24 "$@"
}
# text_is NAME TEXT - the last output is TEXT
text_is() {
    expect "$1" 0 '' test "$output" = "$2"
}

prompt='And God said'
text --prompt "$prompt" --seed 7
seventh=$output
expect 'the prompt comes first' 0 "^$prompt" printf '%s' "$output"
text --prompt "$prompt" --seed 7 --threads 2
text_is 'the same seed, the same text, on two threads' "$seventh"
text --prompt "$prompt" --seed 8
expect 'another seed, another text' 1 '' test "$output" = "$seventh"
text --prompt "$prompt" --temperature 0
greedy=$output
text --prompt "$prompt" --temperature 0 --seed 9
text_is 'greedy has no seed' "$greedy"
text --prompt "$prompt" --top-k 1 --temperature 2
text_is 'the most likely one is greedy' "$greedy"
text --prompt "$prompt" --top-p 0.000001 --temperature 2
text_is 'and so is the least nucleus' "$greedy"
text --prompt "$prompt" --temperature 0 --max-new-tokens 12
# shellcheck disable=SC2016
expect 'fewer tokens are a beginning' 0 '' sh -c 'case $2 in "$1"*) ;; *) exit 1 ;; esac' sh "$output" "$greedy"

# Prompts of many lengths, in batches of eight and a rest, one longer than a piece of the prefill.
long=$(head -n 4 "$dir/held.txt" | tr '\n' ' ')
{
    echo 'In the beginning'
    echo
    echo 'A'
    echo "$long$long"
    head -n 7 "$dir/held.txt"
} >"$dir/prompts"
"$lmtrain" generate --model "$dir/one" --max-new-tokens 12 --temperature 0 --prompts "$dir/prompts" >"$dir/together"
grep . "$dir/prompts" | while IFS= read -r line; do
    "$lmtrain" generate --model "$dir/one" --max-new-tokens 12 --temperature 0 --prompt "$line"
    echo
done >"$dir/alone"
expect 'prompts side by side are as alone' 0 '' cmp "$dir/together" "$dir/alone"
expect 'all of them' 0 '' test "$(grep -c '^$' "$dir/together")" -ge 10
printf '%s' "$prompt" >"$dir/prompt"
text --prompts "$dir/prompt" --seed 7
text_is 'also when they are drawn, and without a last newline' "$seventh"
text --prompt ''
expect 'an empty prompt begins a document' 0 '.' printf '%s' "$output"
text --prompt 'Ünïcode — 主'
expect 'a prompt of any bytes' 0 '^Ünïcode — 主' printf '%s' "$output"
text --prompt "$prompt" --temperature 0 --tokenizer data/kjv-tokenizer/tokenizer.json
text_is 'the tokenizer as a file' "$greedy"
# Drawn at random, tokens of bytes are no UTF-8: what is written is, on a screen and as JSON.
wild() {
    "$lmtrain" generate --model "$dir/one" --prompt "$prompt" --temperature 100 --top-p 1 --max-new-tokens 400 --seed 3 "$@"
}
wild --json >"$dir/wild.json"
wild >"$dir/wild.text"
expect 'characters that are none are U+FFFD' 0 '' grep -q "$(printf '\357\277\275')" "$dir/wild.json"
expect 'so that JSON is UTF-8' 0 '' iconv -f UTF-8 -t UTF-16 "$dir/wild.json"
expect 'as is the text' 0 '' iconv -f UTF-8 -t UTF-16 "$dir/wild.text"

expect 'a full disk' 1 'standard output' sh -c "'$lmtrain' generate --model '$dir/one' --prompt a >/dev/full"

# ---- what else there is ----

# A tokenizer and a template beside each other; the tokenizer is the run's.
mkdir "$dir/chat"
cp data/kjv-tokenizer/tokenizer.json "$dir/chat/"
printf '%s\n' '{% for m in messages %}{{ m.role }}: {{ m.content }}' '{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}' \
    >"$dir/chat/chat_template.jinja"
text --chat --tokenizer "$dir/chat" --system 'Be brief.' --prompt 'Who?' --print-prompt
text_is 'a conversation by its template' 'system: Be brief.
user: Who?
assistant:'
expect 'needs no model' 0 '"prompt":"<|im_start|>user.nWho' "$lmtrain" generate --chat --template chatml --prompt 'Who?' \
    --tokenizer "$dir/chat" --print-prompt --json
text --chat --tokenizer "$dir/chat" --prompt 'Who?' --temperature 0
answer=$output
text --chat --tokenizer "$dir/chat" --prompt 'Who?'
text_is 'answers are not drawn' "$answer"
mkdir "$dir/says"
cp "$dir"/chat/* "$dir/says/"
echo '{"do_sample": true, "temperature": 1.5, "top_p": 1.0, "top_k": 7}' >"$dir/says/generation_config.json"
text --chat --tokenizer "$dir/chat" --prompt 'Who?' --temperature 1.5 --top-p 1 --top-k 7
drawn=$output
expect 'drawn ones are others' 1 '' test "$drawn" = "$answer"
text --chat --tokenizer "$dir/says" --prompt 'Who?'
text_is 'unless generation_config.json says how' "$drawn"
text --chat --tokenizer "$dir/says" --prompt 'Who?' --temperature 0
text_is 'and the command line does not' "$answer"
printf 'Who?\n/quit\n' >"$dir/turns"
# shellcheck disable=SC2016
expect 'turns from standard input' 0 '.' sh -c '"$0" generate --chat --model "$1" --tokenizer "$2" --temperature 0 \
    --max-new-tokens 24 <"$3"' "$lmtrain" "$dir/one" "$dir/chat" "$dir/turns"
text_is 'are answered alike' "$answer"
printf 'Who?\nAnd then?\n\n/clear\nWho?\n' >"$dir/turns"
# shellcheck disable=SC2016
expect 'a conversation' 0 '.' sh -c '"$0" generate --chat --model "$1" --tokenizer "$2" --temperature 0 \
    --max-new-tokens 24 <"$3"' "$lmtrain" "$dir/one" "$dir/chat" "$dir/turns"
# shellcheck disable=SC2016
expect 'that begins again' 0 '' sh -c 'case $1 in "$2"*"$2") ;; *) exit 1 ;; esac' sh "$output" "$answer"
# typed KEYS... - a conversation on a terminal, in $output: each of them at a prompt of its own. A
# shell beside the command would die of its Ctrl-C: dash does.
# shellcheck disable=SC2317 # expect calls them
prompts() { [ "$(grep -ac '^> ' "$dir/typed")" -ge "$1" ]; }
# shellcheck disable=SC2317
typed() {
    n_typed=0
    : >"$dir/typed"
    for keys in "$@"; do
        n_typed=$((n_typed + 1))
        wait_until 60 prompts "$n_typed"
        # shellcheck disable=SC2059 # keys are escapes
        printf "$keys"
    done | XDG_STATE_HOME="$dir/state" script -qefc \
        "exec $lmtrain generate --chat --model $dir/one --tokenizer $dir/chat --temperature 0 --max-new-tokens 4" "$dir/typed"
}
if command -v script >/dev/null; then
    expect 'keys on a terminal' 0 '.' typed 'Whx\177o?\n' 'an\303\244\177d\n' 'dropped\003' '/quit\n'
    expect 'the history has what was edited, for its owner alone' 0 '' \
        test "$(tail -n +2 "$dir/state/lmtrain/chat_history" | tr '\n' ,)" = 'Who?,and,/quit,'
    expect 'who alone can read it' 0 '^-rw-------' ls -l "$dir/state/lmtrain/chat_history"
    expect 'keys of the history' 0 'Who.*' typed '\033[A\033[A\033[A\n' '/quit\n'
    expect 'the next conversation adds to it' 0 '' \
        test "$(tail -n +2 "$dir/state/lmtrain/chat_history" | tr '\n' ,)" = 'Who?,and,/quit,Who?,/quit,'
else
    echo 'skip a conversation on a terminal: no script (util-linux)'
fi
expect 'no such template' 2 "no chat template 'chatmel' .hint: chatml." "$lmtrain" generate --model "$dir/one" --chat \
    --template chatmel --prompt a
expect 'a model without a template' 2 'has no chat template' "$lmtrain" generate --model "$dir/one" --chat --prompt a
expect 'a template without --chat' 2 'needs --chat' "$lmtrain" generate --model "$dir/one" --template chatml --prompt a
rest=${greedy#"$prompt"}
stop=$(printf '%s' "$rest" | cut -c 12-15)
text --prompt "$prompt" --temperature 0 --stop "$stop"
text_is "up to '$stop'" "$prompt${rest%%"$stop"*}"
text --prompt "$prompt" --temperature 0 --json --stop "$stop"
expect 'and why' 0 '"finish":"stop"' printf '%s' "$output"
promised generate
text --prompt "$prompt" --beams 3
beams=$output
text --prompts "$dir/prompt" --beams 3 --json
expect 'beams' 0 '"score":-' printf '%s' "$output"
text --prompt "$prompt" --beams 3 --threads 2 --batch 2
text_is 'beams are the same on two threads' "$beams"
text --prompt "$prompt" --beams 3 --temperature 1 --seed 5
drawn=$output
text --prompt "$prompt" --beams 3 --temperature 1 --seed 5 --threads 2
text_is 'drawn ones, too' "$drawn"
text --prompts "$dir/prompts" --seed 3 --batch 1
one=$output
text --prompts "$dir/prompts" --seed 3 --batch 5
text_is 'draws are the same side by side' "$one"
text --prompt "$prompt" --temperature 0 --repetition-penalty 5
expect 'a penalty changes the text' 1 '' test "$output" = "$greedy"

# ---- over ranks: the same texts, whoever computes them ----

# ranks NAME ARGUMENTS... - the last text's command as ranks says the same, and nothing else
# shellcheck disable=SC2317 # expect calls it
quietly() {
    "$lmtrain" generate --model "$dir/one" --max-new-tokens 24 --threads 1 "$@" 2>"$dir/said"
}
text --prompts "$dir/prompts" --seed 3 --batch 2
one=$output
for layout in '--pp 2' '--ranks 3' '--pp 2 --ranks 4'; do
    # shellcheck disable=SC2086 # words
    expect "drawn texts, $layout" 0 '.' quietly --prompts "$dir/prompts" --seed 3 --batch 2 $layout
    text_is 'are the same' "$one"
    expect 'and nothing else is said' 0 '' cmp "$dir/said" /dev/null
done
expect 'a greedy text, --tp 2' 0 '.' quietly --prompt "$prompt" --temperature 0 --tp 2
text_is 'is the same' "$greedy"
expect 'beams, --pp 2 --tp 2' 0 '.' quietly --prompt "$prompt" --beams 3 --pp=2 --tp=2 --ranks=4
text_is 'are the same' "$beams"
expect 'a rank that dies' 5 'rank 1 on .* was killed by signal 9' env LMTRAIN_FAULT=rank1:joined "$lmtrain" generate \
    --model "$dir/one" --prompt a --pp 2

# ---- mistakes ----

expect 'too many stages' 2 'pp is 3, the model has 2 layers' "$lmtrain" generate --model "$dir/one" --prompt a --pp 3
expect 'heads that do not divide' 2 'tp is 3, does not divide n_heads 2 .hint: 1, 2.' "$lmtrain" generate \
    --model "$dir/one" --prompt a --tp 3
expect 'ranks that are left over' 2 '3 ranks are not a multiple of the 2 .*--tp 1 . --pp 2' "$lmtrain" generate \
    --model "$dir/one" --prompt a --pp 2 --ranks 3
expect 'talking to ranks' 2 'chat without a prompt reads standard input' "$lmtrain" generate --model "$dir/one" --chat --pp 2 \
    --tokenizer "$dir/chat"
printf '%s\n' '"a"' '{"prompt": 1}' >"$dir/bad.jsonl"
expect 'a bad prompt is told once, before anything starts' 3 '^lmtrain: .*bad.jsonl:2: not a JSON string' "$lmtrain" generate \
    --model "$dir/one" --prompts "$dir/bad.jsonl" --pp 2
# shellcheck disable=SC2016 # sh expands it
expect 'and alone' 0 '^1$' sh -c 'printf "%s\n" "$1" | wc -l' sh "$output"

expect 'eval without model' 2 'model is missing' "$lmtrain" eval
expect 'eval of nothing' 3 'nowhere' "$lmtrain" eval --model "$dir/nowhere"
expect 'an unknown task' 2 'perplexity' "$lmtrain" eval --model "$dir/one" --task glue
expect 'data that is not there' 3 'nowhere.idx' "$lmtrain" eval --model "$dir/one" --data "$dir/nowhere"
expect 'generate without model' 2 'model is missing' "$lmtrain" generate --prompt a
expect 'generate without prompt' 2 'give --prompt TEXT or --prompts FILE' "$lmtrain" generate --model "$dir/one"
expect 'generate with two' 2 'give --prompt TEXT or' "$lmtrain" generate --model "$dir/one" --prompt a --prompts b
expect 'prompts that are not there' 3 'nowhere' "$lmtrain" generate --model "$dir/one" --prompts "$dir/nowhere"
expect 'a tokenizer that is not there' 3 'nowhere' \
    "$lmtrain" generate --model "$dir/one" --prompt a --tokenizer "$dir/nowhere"
expect 'a folder that is no run' 3 'lmtrain-cli' "$lmtrain" generate --model "$dir" --prompt a
expect 'a temperature below zero' 2 'temperature is -1' \
    "$lmtrain" generate --model "$dir/one" --prompt a --temperature -1
finish
