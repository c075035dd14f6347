#!/bin/sh
# test/cli/operations-data.sh - data at scale: parts of a tokenization and their merge, datasets as load_dataset names them, rows by
# weights
# shellcheck disable=SC2317 # functions that expect calls
. test/cli/support/check.sh
lmtrain=build/lmtrain
tokenizer=data/kjv-tokenizer

in=$dir/in
mkdir -p "$in"
awk 'BEGIN { for (i = 0; i < 3000; i++) { printf "{\"id\": %d, \"text\": \"And it came to pass, verse %d", i, i
    for (j = 0; j < i % 23; j++) printf " of the children of Israel"; print ".\"}"; if (i % 700 == 0) print "" } }' >"$in/a.jsonl"
head -n 40 "$in/a.jsonl" | gzip -n >"$in/b.jsonl.gz"
{ echo 'id,text'; awk 'BEGIN { for (i = 0; i < 200; i++) printf "%d,\"Behold,\nthe %dth day\"\n", i, i }'; } >"$in/c.csv"
cp test/data/golden/flat-snappy.parquet "$in/d.parquet"
: >"$in/e.txt"
echo 'Let there be light' >"$in/f.txt"
sed -n 100,160p "$in/a.jsonl" >"$in/g.jsonl"

tokenize() { $lmtrain data tokenize "$in" --column text --tokenizer $tokenizer "$@"; }
same() { cmp "$dir/$1.bin" "$dir/$2.bin" && cmp "$dir/$1.idx" "$dir/$2.idx" && cmp "$dir/$1.json" "$dir/$2.json"; }

# ---- parts ----

expect 'one run' 0 'tokens in' tokenize --out "$dir/whole"
for n in 1 2 7 40; do
    i=0
    while [ $i -lt $n ]; do
        i=$((i + 1))
        tokenize --out "$dir/n$n" --part "$i/$n" >"$dir/part.out" 2>&1 || expect "part $i of $n" 0 '' cat "$dir/part.out" false
    done
    expect "$n parts are merged" 0 "from $n token file" $lmtrain data merge "$dir/n$n"
    expect 'to the bytes of one run' 0 '' same whole n$n
done
set -- "$dir"/n7.part-*.bin
# shellcheck disable=SC2016 # sh's
expect 'parts are balanced: the largest of 7 has less than a fifth' 0 '' sh -c '
    dir=$1; shift; largest=$(stat -c %s "$@" | sort -n | tail -1); test $((largest * 5)) -lt "$(stat -c %s "$dir/whole.bin")"' sh "$dir" "$@"
expect 'a part is a token file' 0 'documents' $lmtrain data inspect "$dir/n7.part-3-of-7" --tokenizer $tokenizer
expect 'other options make other bytes, in parts too' 0 '' sh -c "
    set -e
    t() { $lmtrain data tokenize $in/a.jsonl --tokenizer $tokenizer --no-eod \"\$@\" >/dev/null; }
    t --out $dir/bare; t --out $dir/bp --part 1/2; t --out $dir/bp --part 2/2; $lmtrain data merge $dir/bp >/dev/null
    cmp $dir/bare.bin $dir/bp.bin; cmp $dir/bare.json $dir/bp.json; ! cmp -s $dir/bare.bin $dir/whole.bin"

# ---- a task of a Slurm array ----

slurm() { SLURM_ARRAY_TASK_ID=$1 SLURM_ARRAY_TASK_MIN=$2 SLURM_ARRAY_TASK_COUNT=$3 SLURM_ARRAY_TASK_STEP=$4 tokenize --out "$dir/s" --part auto; }
expect 'an array from 0 on' 0 's.part-1-of-2.bin' slurm 0 0 2 1
expect 'by its step' 0 's.part-2-of-2.bin' slurm 14 10 2 4
expect 'merged' 0 'from 2 token files' $lmtrain data merge "$dir/s"
expect 'to the same' 0 '' same whole s
expect 'an array with gaps' 2 'task 7 of an array of 3 from 1 on has no place in it .hint: sbatch --array=1-N' slurm 7 1 3 1
expect 'no array' 2 '--part auto needs SLURM_ARRAY_TASK_ID' tokenize --out "$dir/s" --part auto
for part in 0/4 5/4 3 x/y 1/ 1/0; do
    expect "--part $part" 2 "--part is $part, not I/N with I from 1 to N" tokenize --out "$dir/s" --part $part
done
expect 'standard input has no parts' 3 'standard input cannot be divided into parts.*without --part' \
    $lmtrain data tokenize - --format jsonl --tokenizer $tokenizer --out "$dir/s" --part 1/2

# ---- killed, and done again ----

stamp() { stat -c '%Y %Z %i' "$dir/n7.part-3-of-7.bin"; }
before=$(stamp)
expect 'a complete part is not done again' 0 'n7.part-3-of-7.bin, .idx: complete already' tokenize --out "$dir/n7" --part 3/7
expect 'nor touched' 0 "^$before\$" stamp
for place in tokenize:writing tokenize:renamed; do
    rm "$dir"/n7.part-4-of-7.*
    LMTRAIN_FAULT=rank0:$place tokenize --out "$dir/n7" --part 4/7 >/dev/null 2>&1
    expect "killed at $place it is missing" 3 'of its 7 parts 1 is missing or not complete: 4 .hint: .*--part 4/7' $lmtrain data merge "$dir/n7"
    expect 'and done again' 0 'tokens in' tokenize --out "$dir/n7" --part 4/7
done
LMTRAIN_FAULT=rank0:merge:copied $lmtrain data merge "$dir/n7" >/dev/null 2>&1
expect 'a merge that is killed leaves an older file' 0 '' same whole n7
rm "$dir"/n7.bin "$dir"/n7.idx "$dir"/n7.json
for place in merge:copied merge:renamed; do
    LMTRAIN_FAULT=rank0:$place $lmtrain data merge "$dir/n7" >/dev/null 2>&1
    expect "or, killed at $place, no .json" 1 '' test -e "$dir/n7.json"
    expect 'and is repeated' 0 '"files": 7,' $lmtrain data merge "$dir/n7" --json
    promised 'data merge'
    expect 'to the same bytes' 0 '' same whole n7
done
expect 'nothing half is left' 2 '' sh -c "ls $dir/*.partial"

# ---- what does not belong together ----

expect 'no parts at all' 3 'there is no complete part of .*/none, such as' $lmtrain data merge "$dir/none"
tokenize --out "$dir/n2" --part 1/3 >/dev/null
expect 'parts of two divisions' 3 'n2 has parts of [23] and parts of [23] .hint: --parts' $lmtrain data merge "$dir/n2"
expect 'one of them' 0 'from 2 token files' $lmtrain data merge "$dir/n2" --parts 2
tokenize --out "$dir/n2" --part 2/2 --no-eod >/dev/null
expect 'a part of other options' 3 'n2.part-2-of-2 does not belong to the other parts: it is of end-of-text token -1, not 0' $lmtrain data merge "$dir/n2" --parts 2
touch "$in/f.txt"
expect 'an input that changed: the part is made again' 0 'tokens in' tokenize --out "$dir/n2" --part 2/2
expect 'and does not fit the other' 3 'n2.part-2-of-2 does not belong to the other parts: it is of other inputs of the same size' $lmtrain data merge "$dir/n2" --parts 2
expect 'parts in a wrong order' 3 'is part 2 of 7, but part 1 is expected' $lmtrain data merge "$dir/x" "$dir/n7.part-2-of-7" "$dir/n7.part-1-of-7"
expect 'not all parts' 3 'parts 2 to 7 of 7 are missing' $lmtrain data merge "$dir/x" "$dir/n7.part-1-of-7"
$lmtrain data tokenize "$in/f.txt" --tokenizer $tokenizer --out "$dir/f" >/dev/null
expect 'any token files' 0 'tokens in .* documents, from 2 token files' $lmtrain data merge "$dir/two" "$dir/whole" "$dir/f"
expect 'one behind the other' 0 '' sh -c "cat $dir/whole.bin $dir/f.bin | cmp - $dir/two.bin && $lmtrain data inspect $dir/two >/dev/null"
expect 'not onto an input' 2 'f is an input and the output' $lmtrain data merge "$dir/f" "$dir/whole" "$dir/f"
printf '{"text": "a"}\n{"text": "b"}\n{"text": "c"}\n{"text": "d"}\n{"txt": "e"}\n' >"$dir/bad.jsonl"
expect 'a bad line is named by its number in the file' 3 'bad.jsonl:5: there is no field' \
    $lmtrain data tokenize "$dir/bad.jsonl" --tokenizer $tokenizer --out "$dir/bad" --part 2/2

# ---- load_dataset's arguments ----

set=$dir/set
mkdir -p "$set/data" "$set/en/train" "$set/en/validation" "$set/plain"
sed -n 1,100p "$in/g.jsonl" >"$set/data/train-00000-of-00002.jsonl"
sed -n 200,249p "$in/a.jsonl" >"$set/data/train-00001-of-00002.jsonl"
head -n 5 "$in/a.jsonl" >"$set/data/validation-00000-of-00001.jsonl"
echo '{}' >"$set/dataset_infos.json"
sed -n 300,309p "$in/a.jsonl" >"$set/en/train/x.jsonl"
sed -n 310,314p "$in/a.jsonl" >"$set/en/validation/x.jsonl"
sed -n 320,322p "$in/a.jsonl" >"$set/plain/my_dev.jsonl"
sed -n 330,333p "$in/a.jsonl" >"$set/plain/my_train.jsonl"

# hf JSON [OPTIONS]: tokenizes what JSON says, with $set for SET, to $dir/hf
hf() {
    echo "$1" | sed "s#SET#$set#" >"$dir/hf.json.in"
    shift
    $lmtrain data tokenize --hf-dataset "$dir/hf.json.in" --tokenizer $tokenizer --out "$dir/hf" "$@"
}
# from FILES...: $dir/hf is what their lines make
from() { cat "$@" >"$dir/from.jsonl" && $lmtrain data tokenize "$dir/from.jsonl" --tokenizer "$tokenizer" --out "$dir/from" >/dev/null && same hf from; }

expect "a split's shards" 0 'streaming has no effect' hf '{"path": "SET", "split": "train", "streaming": true}'
expect 'in their order' 0 '' from "$set/data/train-00000-of-00002.jsonl" "$set/data/train-00001-of-00002.jsonl"
expect 'a configuration by folder, with splits by folders' 0 'in 10 documents' hf '{"path": "SET", "name": "en", "split": "train"}'
expect 'its files' 0 '' from "$set/en/train/x.jsonl"
expect 'splits by file names' 0 'in 3 documents' hf '{"path": "SET/plain", "split": "validation"}'
expect 'a slice in rows' 0 'in 20 documents' hf '{"path": "SET", "split": "train[50:70]"}'
expect 'over the edge of two files' 0 '' sh -c "cat $set/data/train-*.jsonl | sed -n 51,70p >$dir/cut.jsonl"
expect 'has their rows' 0 '' from "$dir/cut.jsonl"
expect 'a slice in percents and another split' 0 'in 13 documents' hf '{"path": "SET", "split": "train[:10%]+validation[-2:]"}'
for i in 1 2 3; do hf '{"path": "SET", "split": "train[25%:]"}' --part "$i/3" >/dev/null 2>&1 || echo "not ok part $i"; done
hf '{"path": "SET", "split": "train[25%:]"}' >/dev/null 2>&1
cp "$dir/hf.bin" "$dir/sliced.bin"
expect 'a slice in parts' 0 'from 3 token files' $lmtrain data merge "$dir/hf"
expect 'is the slice' 0 '' cmp "$dir/hf.bin" "$dir/sliced.bin"
rm "$dir"/hf.part-*
printf -- '---\nlicense: mit\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: "en/**/x.jsonl"\n- config_name: small\n  data_files:\n  - split: test\n    path: ["plain/my_[dt]*.jsonl"]\n---\n# A set\n' >"$set/README.md"
expect 'configurations of README.md: the default one' 0 'in 15 documents' hf '{"path": "SET"}'
expect 'by name, under another split' 0 'in 7 documents' hf '{"path": "SET", "name": "small", "split": "test"}'
expect 'an unknown one' 2 'has no configuration "big" .hint: default, small' hf '{"path": "SET", "name": "big"}'
expect 'data_files' 0 'in 4 documents' hf '{"path": "SET", "data_files": {"held": ["plain/*train*"]}, "split": "held"}'
expect 'json is no folder' 0 'in 3 documents' hf '{"path": "json", "data_dir": "SET/plain", "data_files": "my_dev.jsonl"}'
rm "$set/README.md"
expect 'an unknown split' 2 'has no split "test" .hint: train, validation' hf '{"path": "SET", "split": "test"}'
expect 'no split, but several' 2 '"split" is missing, and .* has several .hint: train, validation' hf '{"path": "SET"}'
expect 'a split that is none' 2 '"split" is train.5., not NAME, NAME.a:b.' hf '{"path": "SET", "split": "train[5]"}'
expect 'a name on the hub' 3 'folder allenai/c4 does not exist, and nothing is downloaded.*hf download' hf '{"path": "allenai/c4", "split": "train"}'
expect 'an argument that is unknown' 2 '"nam" is not supported .hint: name' hf '{"path": "SET", "nam": "en"}'
expect 'no JSON' 2 'hf.json.in' hf '{"path": "SET", "streaming: True}'
expect 'both kinds of input' 2 'are both given' hf '{"path": "SET"}' "$in/f.txt"

# ---- rows by weights ----

. test/cli/support/tiny.sh
expect "a model to begin with" 0 "^done" pretrain base --set train.steps=4 --set train.dtype=fp32
expect "as a folder" 0 "" "$lmtrain" convert --from "$dir/base" --to "$dir/model"
for kind in often rarely; do
    for i in 1 2 3 4 5 6; do
        printf '{"instruction": "Say %s %d", "output": "And God said %d"}\n' $kind $i $i
    done >"$dir/$kind.jsonl"
done
cat >"$dir/blend.yaml" <<END
model: $dir/model
data: {train: [{path: $dir/often.jsonl, weight: 3}, {path: $dir/rarely.jsonl, weight: 1}], tokenizer: $tokenizer, template: empty, seq_len: 64, packing: false}
train: {epochs: 2, global_batch: 4, micro_batch: 1, dtype: fp32, log_every: 1}
optimizer: {lr: 1.0e-2, schedule: constant, warmup_steps: 0}
checkpoint: {every_steps: 3, keep: 0}
threads: 1
END
blended() { run=$1 && shift && "$lmtrain" finetune "$dir/blend.yaml" --set "output=$dir/$run" "$@"; }
expect 'rows are blended by weights' 0 '12 samples in 12 sequences' blended blend1
expect 'each input has its own samples' 0 '"samples":6' cat "$dir/blend1/samples/train-0.json" "$dir/blend1/samples/train-1.json"
expect 'two epochs are 24 sequences, 6 steps' 0 '^6$' n_logged blend1
expect 'on two ranks' 0 '^done' blended blend2 --ranks 2
LMTRAIN_FAULT=rank0:step:5 blended blend3 >/dev/null 2>&1
expect 'killed and resumed' 0 '^done' blended blend3
same_bits 'to the same bits' blend1 blend3 6
blended blend4 --set "data.train=[$dir/often.jsonl,$dir/rarely.jsonl]" >/dev/null 2>&1
expect 'without weights they are shuffled together' 0 '"samples":12' cat "$dir/blend4/samples/train.json"
bits blend1 >"$dir/bits.blended"
expect 'and learned in another order' 1 '' sh -c "sed -n 's/.*\"loss_hex\":\"\([^\"]*\)\".*/\1/p' $dir/blend4/metrics.jsonl | grep . | tail -n 1 | grep -qF -f - $dir/bits.blended"
expect 'a weight of 0' 2 'data.train.weight is 0, not a number above 0' blended blend5 --set "data.train=[{path: $dir/often.jsonl, weight: 0}]"
finish
