#!/bin/sh
# test/cli/config.sh - lmtrain's own options, and the command config as people call it
. test/cli/support/check.sh
lmtrain=build/lmtrain
job=configs/jobs/quickstart.yaml

expect 'no command: usage' 2 '^usage: lmtrain COMMAND' $lmtrain
expect 'help' 0 '^  config +show a job' $lmtrain --help
expect 'version' 0 '^lmtrain [0-9]+\.[0-9]+' $lmtrain --version
expect 'an unknown command' 2 'unknown command confg \(hint: config\)' $lmtrain confg
expect 'a far unknown command' 2 'unknown command qqqqqq \(hint: lmtrain -h' $lmtrain qqqqqq

expect 'config -h' 0 '^usage: lmtrain config' $lmtrain config -h
expect 'config of nothing' 2 'give one of JOB.yaml' $lmtrain config
expect 'config of two things' 2 'give one of' $lmtrain config $job --schema
expect 'an unknown option' 2 'unknown option --sett \(hint: --set\)' $lmtrain config $job --sett a=b
expect 'a job' 0 '^# n_micro_batches = 2 ' $lmtrain config $job
expect 'and its model' 0 '^  hidden_size: 256$' $lmtrain config $job
expect '--set' 0 '^  steps: 700$' $lmtrain config $job --set train.steps=700
expect '--ranks' 0 '^# parallel.dp = 4 ' $lmtrain config $job --ranks 4
expect '--ranks that does not divide' 2 'not a multiple of micro_batch' $lmtrain config $job --ranks 3
expect 'what is not built' 0 'not built yet: parallel.reductions fast' \
    $lmtrain config $job --set parallel.reductions=fast
expect 'a mistake' 2 '--set train.stesp: unknown key train.stesp' \
    $lmtrain config $job --set train.stesp=7
expect 'no such job' 2 'nowhere.yaml' $lmtrain config nowhere.yaml
expect '--explain' 0 'learning rate after warm-up' $lmtrain config --explain optimizer.lr
expect '--explain all' 0 '^debug.poison$' $lmtrain config --explain all
expect '--explain something unknown' 2 'hint: optimizer.lr' $lmtrain config --explain learning_rate
expect '--models' 0 '^llama-7b +LLaMA 7B' $lmtrain config --models
expect '--schema' 0 'draft/2020-12' $lmtrain config --schema

# What is printed is a job, in both forms.
$lmtrain config $job >"$dir/printed.yaml"
$lmtrain config $job --json >"$dir/printed.json"
expect 'its print is a job' 0 '' $lmtrain config "$dir/printed.yaml" --json
printf '%s\n' "$output" >"$dir/again.json"
expect 'and the same job' 0 '' cmp "$dir/printed.json" "$dir/again.json"
expect 'its JSON is a job' 0 '' $lmtrain config "$dir/printed.json"
expect 'and the same job too' 0 '' $lmtrain config "$dir/printed.json" --json
expect 'byte for byte' 0 '' sh -c "$lmtrain config '$dir/printed.json' --json | cmp - '$dir/printed.json'"
expect 'a full disk' 1 'standard output' sh -c "$lmtrain config --explain all >/dev/full"
finish
