#!/bin/sh
# test/cli/eval.sh - lmtrain eval --task on a run of test/cli/support/tiny.sh and miniature data
. test/cli/support/check.sh
. test/cli/support/tiny.sh

expect 'a run to use' 0 '^done' pretrain one
mkdir -p "$dir/data/mmlu/test" "$dir/data/mmlu/dev" "$dir/data/boolq" "$dir/data/gsm8k" "$dir/data/humaneval"
for subject in anatomy virology; do
    for i in 1 2 3 4 5 6; do
        echo "\"Who is $i, of $subject?\",Adam,Eve,Cain,Abel,C"
    done >"$dir/data/mmlu/test/${subject}_test.csv"
    head -n 2 "$dir/data/mmlu/test/${subject}_test.csv" >"$dir/data/mmlu/dev/${subject}_dev.csv"
done
for i in 1 2 3; do
    echo '{"question": "did he go", "passage": "And he went.", "answer": true}'
done >"$dir/data/boolq/dev.jsonl"
echo '{"question": "How many?", "answer": "#### 2"}' >"$dir/data/gsm8k/test.jsonl"
cat >"$dir/data/humaneval/HumanEval.jsonl" <<'END'
{"task_id": "0", "prompt": "def f():\n", "canonical_solution": "    return 1\n", "test": "def check(f):\n    assert f() == 1", "entry_point": "f"}
END

# measure ARGUMENTS... - an evaluation with that data
# shellcheck disable=SC2317 # expect calls it
measure() {
    "$lmtrain" eval --model "$dir/one" --data "$dir/data" "$@"
}

# ---- token files of another tokenizer ----

other=test/tokenizer/golden/small.json
expect 'tokens of another tokenizer' 0 tokens "$lmtrain" data tokenize "$dir/held.txt" --tokenizer $other --out "$dir/other" --no-eod
expect 'are not measured' 3 'other was made with another tokenizer than the model.s: .*other.json with 1-.*hint: .*--tokenizer' \
    "$lmtrain" eval --model "$dir/one" --data "$dir/other"
expect 'unless that is meant' 0 'is not the tokenizer that|perplexity' "$lmtrain" eval --model "$dir/one" --data "$dir/other" \
    --tokenizer $other
expect 'nor trained on' 3 'data.train.*other was made with another tokenizer than data.tokenizer data/kjv-tokenizer: .*data.check_tokenizer: false' \
    pretrain other --set "data.train=$dir/other"
expect 'before anything is made' 1 '' test -e "$dir/other/lock"
expect 'nor evaluated on' 3 'eval.data.*other was made with another tokenizer' pretrain other --set "eval.data=$dir/other"
expect 'nor blended' 3 'data.train.*other was made with another tokenizer than that of data.train' pretrain other \
    --set "data.train=[$dir/train, $dir/other]" --set data.tokenizer=
expect 'unless that is meant' 0 'warning: data.train: .*other was made with|^done' pretrain other --set train.steps=4 \
    --set "data.train=[$dir/train, $dir/other]" --set data.check_tokenizer=false
cp "$dir/train.bin" "$dir/bare.bin"
cp "$dir/train.idx" "$dir/bare.idx"
expect 'files of others name none' 0 '^done' pretrain bare --set train.steps=4 --set "data.train=$dir/bare"
cp "$dir/other.json" "$dir/bare.json"
expect 'one that is of other tokens' 0 'bare.json is for [0-9]+ tokens, but .*bare.bin has another number: it is ignored' \
    pretrain bare2 --set train.steps=4 --set "data.train=$dir/bare"

# ---- benchmarks ----

expect 'two tasks, a table' 0 '^ *virology +6 +[01][.][0-9]+ +0[.][0-9]+$' measure --task mmlu,boolq --limit 6 --subjects present
expect 'its whole' 0 '^mmlu +12 +[01][.]' printf '%s\n' "$output"
expect 'and its category' 0 '^  stem +6 ' printf '%s\n' "$output"
expect 'a subject has no part in another task' 2 "has no 'anatomy'" measure --task mmlu,boolq --limit 6 --subjects anatomy
expect 'as JSON, with shots' 0 '"shots":2,' measure --task mmlu --limit 6 --subjects anatomy --shots 2 --json
expect 'the other style' 0 '^modellink, 1 shot ' measure --task mmlu --limit 4 --subjects virology --style modellink --shots 1
expect 'and its tokens' 0 '^boolq +3 ' measure --task boolq --limit 6 --style modellink

# ---- ModelLink's shots and chat template ----

for i in 1 2 3; do
    printf '%s\n' '{"question": "What?", "answer": "1<<1=1>>.\n#### 1"}'
done >"$dir/data/gsm8k/train.jsonl"
# shellcheck disable=SC2317 # expect calls it
ask() {
    "$lmtrain" eval --data "$dir/data" --print-prompts --style modellink "$@"
}
expect 'what stands in for shots is said' 0 'no gsm8k_3shot_template.json: the first of the training set' ask --task gsm8k --limit 1
expect 'one of them' 0 '"prompt":"Q: What.*A:1. The answer is 1.*How many' ask --task gsm8k --limit 1 --shots 1
refuse 'not where a number was asked for' 'stand in'
rm "$dir/data/gsm8k/train.jsonl"
expect 'it takes a file for it' 3 'no few-shot file' ask --task gsm8k --limit 1
printf '%s\n' '{"few_shot": "Q: One?\n\nA:The answer is 1."}' >"$dir/data/gsm8k/gsm8k_3shot_template.json"
expect 'shots of a file' 0 '"prompt":"Q: One.\\n\\nA:The answer is 1.\\n\\nHow many.","target":"2"' ask --task gsm8k --limit 1
expect 'which is named' 0 'shots of .*/gsm8k_3shot_template.json' ask --task gsm8k --limit 1
cp -r data/kjv-tokenizer "$dir/chatty"
printf '%s' '{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<a>{% endif %}' \
    >"$dir/chatty/chat_template.jinja"
expect 'through a chat template' 0 '"prompt":"<user>And he went.*Answer:</s>"' ask --task boolq --limit 1 --tokenizer "$dir/chatty"
expect 'or not' 0 '"prompt":"And he went' ask --task boolq --limit 1 --tokenizer "$dir/chatty" --no-chat-template
expect 'a chat model is asked so' 0 'prompts use the chat template of .*/chatty' measure --task boolq --limit 3 --style modellink \
    --tokenizer "$dir/chatty"
expect 'but in the other style' 0 '^boolq +3 ' measure --task boolq --limit 3 --tokenizer "$dir/chatty"
refuse 'it is not' 'chat template'
expect 'so many tokens' 0 '^gsm8k +1 ' measure --task gsm8k --limit 1 --shots 0 --max-new-tokens 4
rm "$dir/data/gsm8k/gsm8k_3shot_template.json"

expect 'prompts, without a model' 0 '"prompt":"And he went.*"choices":\[" no"," yes"\]' \
    "$lmtrain" eval --task boolq --data "$dir/data" --limit 1 --print-prompts

# ---- over ranks: the same scores, whoever computes them ----

# items FILE - what was found of each item
items() {
    grep '"item":' "$1" | sed 's/,$//; s/\]}\]}$//' | sort
}
expect 'two tasks to a file' 0 '' measure --task mmlu,boolq --subjects present --limit 6 --output "$dir/alone.json"
items "$dir/alone.json" >"$dir/alone.items"
for layout in '--pp 2' '--ranks 3'; do
    # shellcheck disable=SC2086 # words
    expect "over ranks, $layout" 0 '^boolq +3 ' measure --task mmlu,boolq --subjects present --limit 6 --threads 1 \
        --output "$dir/ranks.json" $layout
    # shellcheck disable=SC2016 # sh expands it
    expect 'what was found is told once' 0 '^1$' sh -c 'printf "%s\n" "$1" | grep -c "^boolq: 3 items, 0 shots"' sh "$output"
    items "$dir/ranks.json" >"$dir/ranks.items"
    expect 'the same comes of it, to the bit' 0 '' cmp "$dir/alone.items" "$dir/ranks.items"
done
head -n 5 "$dir/alone.items" >"$dir/ranks.json.journal"
expect 'over ranks, going on, --tp 2' 0 '; 2 items were known$' measure --task mmlu,boolq --subjects present --limit 6 \
    --threads 1 --output "$dir/ranks.json" --tp 2
expect 'texts, alone' 0 '' measure --task boolq --limit 6 --style modellink --output "$dir/alone.json"
expect 'texts over ranks' 0 '' measure --task boolq --limit 6 --style modellink --output "$dir/ranks.json" --ranks 2 --threads 1
items "$dir/alone.json" >"$dir/alone.items"
items "$dir/ranks.json" >"$dir/ranks.items"
expect 'are the same' 0 '' cmp "$dir/alone.items" "$dir/ranks.items"
expect 'perplexity' 0 '^loss' "$lmtrain" eval --model "$dir/one"
alone=$output
expect 'over ranks' 0 '^loss' "$lmtrain" eval --model "$dir/one" --pp 2 --ranks 4 --threads 1
expect 'is the same' 0 '' test "$output" = "$alone"

# ---- interrupted ----

LMTRAIN_FAULT=rank1:joined:stall "$lmtrain" eval --model "$dir/one" --ranks 2 --threads 1 >"$dir/stopped.out" 2>&1 &
pid=$!
wait_until 60 grep -q 'LMTRAIN_FAULT: rank 1 at joined' "$dir/stopped.out"
kill -TERM "$pid"
wait "$pid"
# shellcheck disable=SC2016 # sh expands it
expect 'a signal ends all ranks at once' 143 \
    'interrupted by signal 15 .Terminated.: no result is kept; the same command starts from the beginning' \
    sh -c 'cat "$1"; exit "$2"' sh "$dir/stopped.out" $?

# ---- going on ----

expect 'an evaluation to a file' 0 '' measure --task mmlu --subjects present --limit 6 --output "$dir/whole.json"
expect 'leaves no journal' 1 '' test -e "$dir/whole.json.journal"
grep '"item":' "$dir/whole.json" | sed 's/,$//; s/\]}\]}$//' | head -n 7 >"$dir/again.json.journal"
printf '{"task":"mmlu","par' >>"$dir/again.json.journal"
expect 'half of it is known' 0 '; 7 items were known$' measure --task mmlu --subjects present --limit 6 --output "$dir/again.json"
for name in whole again; do
    grep '"item":' "$dir/$name.json" | sort >"$dir/$name.items"
done
expect 'the same comes of it' 0 '' cmp "$dir/whole.items" "$dir/again.items"
head -n 3 "$dir/whole.items" | sed 's/,$//' >"$dir/other.json.journal"
sed 's/"log_likelihoods":\[[^]]*\]/"log_likelihoods":[[],{},null,"x"]/' "$dir/whole.items" | sed 's/,$//' >"$dir/kinds.json.journal"
sed 's/"item":[0-9]*/"item":9223372036854775807/; s/,$//' "$dir/whole.items" >>"$dir/kinds.json.journal"
sed 's/"choice":[0-9]*/"choice":[]/; s/,$//' "$dir/whole.items" | head -n 2 >>"$dir/kinds.json.journal"
expect 'nor what is of other kinds' 0 '; 2 items were known$' measure --task mmlu --subjects present --limit 6 --output "$dir/kinds.json"
expect 'other prompts are not taken' 0 '[^n]$' measure --task mmlu --subjects present --limit 6 --shots 1 --output "$dir/other.json"
refuse 'nothing was known' 'were known'

# ---- mistakes ----

expect 'no data' 2 'data DIR is missing' "$lmtrain" eval --model "$dir/one" --task mmlu
expect 'no such task' 2 "no task 'mmlo' \(hint: mmlu\)" measure --task mmlo
expect "a hub's name" 2 'hint: --task mmlu .*hf download cais/mmlu --repo-type dataset --local-dir DATA/mmlu' \
    measure --task cais/mmlu
expect 'no folder of data' 3 'is not a folder .hint: .*hf download openai/gsm8k ' \
    "$lmtrain" eval --model "$dir/one" --task gsm8k --data openai/gsm8k
expect 'no files' 3 'searched valid.jsonl, .* in .*/piqa and in .*hint: .*curl ' measure --task piqa
expect 'a short set' 3 'mmlu has 14,?042 items|no files of abstract_algebra' measure --task mmlu
expect 'less than there are' 3 'boolq has 3270 items' measure --task boolq
expect 'no shots' 3 'no few-shot file' measure --task boolq --limit 2 --shots 1
expect 'a model that is too short' 2 'needs 256 new tokens, but the model has 64 positions' measure --task gsm8k --limit 1 --shots 0
expect 'a subject that the style leaves out' 2 'style modellink excludes tracking_' measure --task bbh --style modellink \
    --subjects tracking_shuffled_objects_three_objects
expect 'programs need leave' 2 'hint: --allow-code-execution' measure --task humaneval --limit 1
finish
