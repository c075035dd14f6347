#!/bin/sh
# test/cli/config.sh - lmtrain's own options, and the command config as people call it
. test/cli/support/check.sh
lmtrain=build/lmtrain
job=configs/jobs/quickstart.yaml

expect 'no command: usage' 2 '^usage: lmtrain COMMAND' $lmtrain
expect 'help' 0 '^  config +print a job' $lmtrain --help
expect 'version' 0 '^lmtrain [0-9]+\.[0-9]+' $lmtrain --version
expect 'and those of formats' 0 '^formats: checkpoint 1, numerics [0-9]+, token files 1$' $lmtrain --version
expect 'by -V too' 0 '^lmtrain [0-9]+\.[0-9]+' $lmtrain -V
expect 'help of 60 columns' 0 '^        override a field of the job' env COLUMNS=60 $lmtrain config -h
refuse 'has no line of more' '^.{61}'
expect 'a field for an option' 2 'unknown option --steps .hint: --set train.steps=5.' $lmtrain config --steps 5 $job
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
expect 'what a CPU does not have' 0 '^# parallel.reductions = fixed .fast needs NCCL' \
    $lmtrain config $job --set parallel.reductions=fast --set device=cpu
expect 'a mistake' 2 '--set train.stesp: unknown key train.stesp' \
    $lmtrain config $job --set train.stesp=7
expect 'no such job' 2 'nowhere.yaml' $lmtrain config nowhere.yaml
expect '--explain' 0 'peak learning rate, reached after warm-up' $lmtrain config --explain optimizer.lr
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
# The version names what the program is made of: a hash of what differs from the commit, and nothing else.
version=$PWD/scripts/version
mkdir -p "$dir/repo/lib"
(cd "$dir/repo" && git init -q . && echo a >lib/a.c && echo r >README && git add . &&
    git -c user.name=a -c user.email=a@a commit -q -m a) >"$dir/git.log" 2>&1
# describe - of this tree, without the commit: "" or "+HASH"
describe() {
    (cd "$dir/repo" && "$version" "$dir/version.h") && sed -n 's/.*_DESCRIBE "[0-9a-f]*\(.*\)"/\1/p' "$dir/version.h"
}
expect 'a clean tree' 0 '' test -z "$(describe)"
echo b >"$dir/repo/lib/a.c" && one=$(describe)
expect 'a changed one has a hash' 0 '^\+[0-9a-f]{8}$' echo "$one"
touch -d '2001-01-01' "$dir/version.h"
expect 'which stays' 0 '' test "$one" = "$(describe)"
expect 'and rebuilds nothing' 0 '^2001' date -r "$dir/version.h" +%Y
echo x >"$dir/repo/README" && mkdir "$dir/repo/build" && echo x >"$dir/repo/build/b.c"
expect 'for what is not built too' 0 '' test "$one" = "$(describe)"
echo c >"$dir/repo/lib/a.c" && two=$(describe)
expect 'another change has another' 0 '' test -n "$two" -a "$one" != "$two"
echo n >"$dir/repo/lib/new.c" && three=$(describe)
expect 'so has a file that git does not track' 0 '' test -n "$three" -a "$three" != "$two"
rm "$dir/repo/lib/new.c" "$dir/repo/lib/a.c" && gone=$(describe)
expect 'and one that is gone' 0 '' test -n "$gone" -a "$gone" != "$two"
expect 'a full disk' 1 'standard output' sh -c "$lmtrain config --explain all >/dev/full"
finish
