# shellcheck shell=sh disable=SC2154
# serving.sh - generate and eval by ranks that somebody else starts, against one process; sourced after tiny.sh
#
#   serving_alone MODEL             what one process says: a text, texts of a file, a perplexity, the items of a task
#   serving_like NAME MORE RUN...   RUN lmtrain COMMAND ... MORE says the same; MORE are options, split at blanks

serving_data=$dir/serving
mkdir -p "$serving_data/boolq"
for serving_number in 1 2 3 4 5; do
    printf '{"question": "did %s go", "passage": "And %s went.", "answer": true}\n' "$serving_number" "$serving_number"
done >"$serving_data/boolq/dev.jsonl"
printf 'And God said\nIn the beginning\nAnd it came to pass\nThe LORD\nBehold\n' >"$dir/prompts.txt"

# The items of a file of scores, whatever their order.
serving_items() {
    grep '"item":' "$1" | sed 's/,$//; s/\]}\]}$//' | sort
}

serving_alone() {
    serving_model=$1
    expect 'a text by one process' 0 '.' "$lmtrain" generate --model "$serving_model" --prompt 'And God said' --max-new-tokens 8
    serving_text=$output
    expect 'texts by one process' 0 '.' "$lmtrain" generate --model "$serving_model" --prompts "$dir/prompts.txt" \
        --max-new-tokens 8 --json
    serving_texts=$output
    expect 'a perplexity by one process' 0 '^loss' "$lmtrain" eval --model "$serving_model" --data "$dir/held"
    serving_loss=$output
    expect 'a task by one process' 0 '' "$lmtrain" eval --model "$serving_model" --task boolq --limit 9 --data "$serving_data" \
        --output "$dir/serving-alone.json"
}

# Shows both where they differ.
serving_same() {
    [ "$1" = "$2" ] || { printf 'one process: %s\nthese: %s\n' "$1" "$2"; return 1; }
}

serving_like() {
    serving_name=$1 serving_more=$2
    shift 2
    # shellcheck disable=SC2086 # words
    {
        expect "$serving_name: a text" 0 '.' "$@" "$lmtrain" generate --model "$serving_model" --prompt 'And God said' \
            --max-new-tokens 8 $serving_more
        expect "$serving_name: is that of one process" 0 '' serving_same "$serving_text" "$output"
        expect "$serving_name: texts of a file" 0 '.' "$@" "$lmtrain" generate --model "$serving_model" \
            --prompts "$dir/prompts.txt" --max-new-tokens 8 --json $serving_more
        expect "$serving_name: are those of one process" 0 '' serving_same "$serving_texts" "$output"
        expect "$serving_name: a perplexity" 0 '^loss' "$@" "$lmtrain" eval --model "$serving_model" --data "$dir/held" $serving_more
        expect "$serving_name: is that of one process" 0 '' serving_same "$serving_loss" "$output"
        rm -f "$dir/serving-ranks.json"
        expect "$serving_name: a task" 0 '' "$@" "$lmtrain" eval --model "$serving_model" --task boolq --limit 9 --data "$serving_data" \
            --output "$dir/serving-ranks.json" $serving_more
    }
    serving_items "$dir/serving-alone.json" >"$dir/serving-alone.items"
    serving_items "$dir/serving-ranks.json" >"$dir/serving-ranks.items"
    expect "$serving_name: its items are those of one process" 0 '' cmp "$dir/serving-alone.items" "$dir/serving-ranks.items"
    expect "$serving_name: all of them" 0 '' test "$(wc -l <"$dir/serving-ranks.items")" -ge 5
}
