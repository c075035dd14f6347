#!/bin/sh
# test/cli/data.sh - lmtrain data as people call it, and the script that prepares the King James Bible
. test/cli/support/check.sh
lmtrain=build/lmtrain
tokenizer=data/kjv-tokenizer

printf '{"text": "In the beginning"}\n{"text": "And God said"}\n' >"$dir/in.jsonl"
printf '{"text": "fine"}\n{"txt": "x"}\n' >"$dir/bad.jsonl"
printf 'Let there be light\n' >"$dir/in.txt"

expect 'data of nothing' 2 'give tokenize or inspect' $lmtrain data
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
expect 'inspect' 0 'documents   3 of' $lmtrain data inspect "$dir/x" --tokenizer $tokenizer
expect 'and its text' 0 'In the beginning<.endoftext.>' \
    $lmtrain data inspect "$dir/x" --tokenizer $tokenizer
expect 'inspect --json' 0 '"documents": 3,' $lmtrain data inspect "$dir/x" --json
expect 'standard input' 0 '"documents": 2,' \
    sh -c "$lmtrain data tokenize - --format jsonl --tokenizer $tokenizer --out $dir/y --json <$dir/in.jsonl"
truncate -s -1 "$dir/x.bin"
expect 'a short file' 3 'x.bin has .* bytes, its .idx says' $lmtrain data inspect "$dir/x"

expect 'the King James Bible' 0 '' scripts/data/prepare-kjv
expect 'has its tokens' 0 '"tokens": 984235, "documents": 66' \
    $lmtrain data inspect build/data/kjv --tokenizer $tokenizer --json
expect 'and those held out' 0 '"tokens": 52476, "documents": 65' \
    $lmtrain data inspect build/data/kjv-heldout --tokenizer $tokenizer --json
finish
