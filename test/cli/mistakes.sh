#!/bin/sh
# test/cli/mistakes.sh - what newcomers do wrong: each is told what, where, what is allowed; and the exit status
. test/cli/support/check.sh
. test/cli/support/tiny.sh

# wrong NAME STATUS PATTERN ARGUMENTS... - pretrain with these is refused, in few lines that match PATTERN
wrong() {
    wrong_name=$1 wrong_status=$2 wrong_pattern=$3
    shift 3
    expect "$wrong_name" "$wrong_status" "$wrong_pattern" pretrain wrong "$@"
    refuse 'and nothing else happens' '^step 1/'
}

# ---- the command line ----

expect 'no arguments' 2 '^usage: lmtrain COMMAND' "$lmtrain"
expect 'a command that is to come' 2 'serve is not built yet \(hint: lmtrain -h' "$lmtrain" serve
for kind in lora finetune; do
    expect "a job of $kind under pretrain" 2 "kind is $kind, the command is pretrain .hint: lmtrain $kind .*job.yaml" \
        pretrain wrong --set kind=$kind --set train.epochs=auto
done
expect 'a job of pretrain under lora' 2 'kind is pretrain, the command is lora .hint: lmtrain pretrain' \
    "$lmtrain" lora "$dir/job.yaml" --set kind=pretrain --set "output=$dir/wrong"
expect 'more threads than cores' 0 'warn: threads is [0-9]+, but a rank has [0-9]+ cores? here.*hint: threads: auto' pretrain crowded \
    --set threads=$(($(nproc) + 1)) --set train.steps=3
expect 'longer than the positions' 0 'warn: data.seq_len is 96, longer than model.max_seq_len 64.*hint' \
    pretrain long --set data.seq_len=96 --set train.steps=3
expect 'a rate that destroys' 0 'warn: optimizer.lr is 0.5: ' pretrain fast --set optimizer.lr=0.5 --set train.steps=3
expect 'nothing of these for a sound job' 0 '^done' pretrain sound --set train.steps=3 --set threads=1
refuse 'a sound job has no warnings' 'warn:'
expect 'a mistyped command' 2 'unknown command pretrian \(hint: pretrain\)' "$lmtrain" pretrian
for command in pretrain plan; do
    expect "$command without a job" 2 "an argument is missing \(usage: lmtrain $command JOB.yaml\)" "$lmtrain" $command
    expect "$command of no file" 2 'nowhere.yaml: No such file' "$lmtrain" $command nowhere.yaml
    expect "$command of a folder" 2 'is a folder, not a file' "$lmtrain" $command "$dir"
    expect "$command of two" 2 'unexpected argument' "$lmtrain" $command a b
    expect "$command of random bytes" 2 'train.bin:1:[0-9]+: ' "$lmtrain" $command "$dir/train.bin"
done
wrong 'a mistyped option' 2 'unknown option --rnaks \(hint: --ranks\)' --rnaks 2
wrong 'no ranks' 2 'ranks is 0, not a whole number from 1' --ranks 0
wrong 'ranks in words' 2 'ranks is two' --ranks two
wrong '--set without =' 2 'train is not path.to.key=value \(hint: --set train=VALUE\)' --set train
wrong 'a model that no file has' 2 'nothing-in-it, neither .*\(hint: lmtrain config --models' --set "model=$dir/nothing-in-it"
wrong '--resume of a file' 3 'job.yaml is not a folder \(hint: ' --resume "$dir/job.yaml"
wrong 'a GPU' 4 'there is no GPU: .*(make CUDA=1|driver|device)' --set device=cuda
wrong '--resume of nothing' 3 'no checkpoint in .*/nothing' --resume "$dir/nothing"
expect 'a rank that is not' 2 'rank is 3, but the job has ranks 0 to 0' "$lmtrain" plan "$dir/job.yaml" --rank 3 --print-program

# is NAME STATUS PATTERN ARGUMENTS... - lmtrain with these says so
is() {
    is_name=$1 is_status=$2 is_pattern=$3
    shift 3
    expect "$is_name" "$is_status" "$is_pattern" "$lmtrain" "$@"
}
: >"$dir/empty.jsonl"
echo '{"title": "a", "body": "b"}' >"$dir/columns.jsonl"
mkdir "$dir/nothing-in-it" "$dir/a-run"
touch "$dir/a-run/job.yaml"
is 'an option that is a field' 2 '^lmtrain pretrain: unknown option --steps \(hint: --set train.steps=5\)' pretrain --steps 5 x
is "another tool's option" 2 'unknown option --learning_rate=1 \(hint: --set optimizer.lr=1\)' finetune --learning_rate=1 x
is 'a field without --set' 2 'unexpected argument train.steps=5 \(hint: --set train.steps=5\)' plan x train.steps=5
is 'convert --output' 2 'unknown option --output \(hint: --to\)' convert --output x
is 'merge --model' 2 'unknown option --model \(hint: --base\)' merge --model x
is 'generate --max-tokens' 2 'unknown option --max-tokens \(hint: --max-new-tokens\)' generate --max-tokens 3
is 'convert without --from' 2 '--from is missing \(hint: --from MODEL --to DIR' convert
is 'merge without --base' 2 '--base is missing \(hint: --base MODEL --adapter DIR' merge
is 'generate without a model' 2 '--model is missing \(hint: --model DIR, a run' generate
is 'eval without a model' 2 '--model is missing \(hint: --model DIR, a run' eval
is 'torch has other dtypes' 2 'dtype is float8, not one of keep, fp32, bf16, fp16, float32' convert --dtype float8
is 'a mistyped subcommand' 2 'give tokenize, merge, inspect, preview or rows \(hint: lmtrain data tokenize\)' data tokenise
is 'a benchmark that is none' 2 'give ops, step, comm, ceilings or cluster \(hint: lmtrain bench step\)' bench stpe
is 'another shell' 2 'tcsh is not bash, zsh or fish' completion tcsh
is 'a field that is none' 2 'no field nothing \(hint: lmtrain config --explain all\)' config --explain nothing
is 'a word for doctor' 2 'doctor: now is for --cluster' doctor now
is "a run for a job" 2 'is a folder, not a file \(hint: .*/a-run/job.yaml\)' plan "$dir/a-run"
is 'a model that is not there' 3 "nowhere does not exist \(hint: a run's folder" generate --model "$dir/nowhere" --prompt a
is 'a folder without a model' 3 'neither a checkpoint nor .*\(hint: ' eval --model "$dir/nothing-in-it"
is 'a job for a model' 3 'job.yaml is a file, not a folder \(hint: for a job give its output folder' generate --model "$dir/job.yaml" --prompt a
is 'tokens that are not there' 3 'there is no .*/nowhere.idx \(hint: lmtrain data tokenize' data inspect "$dir/nowhere"
is 'a file of the pair' 3 'the prefix alone: .*/train\)' data inspect "$dir/train.bin"
is 'a folder for tokens' 3 'it is a folder, but a prefix is expected' data inspect "$dir/nothing-in-it"
is 'rows without the column' 3 "columns.jsonl:1: there is no field 'text' \(hint: it has title, body\)" \
    data tokenize "$dir/columns.jsonl" --tokenizer data/kjv-tokenizer --out "$dir/none"
is 'no text at all' 0 'warn: the input has no text' data tokenize "$dir/empty.jsonl" --tokenizer data/kjv-tokenizer --out "$dir/none"
is 'no rows at all' 3 'empty.jsonl has no rows \(hint: ' data preview "$dir/empty.jsonl" --tokenizer data/kjv-tokenizer --template chatml

# ---- the job ----

# job NAME PATTERN TEXT - a job file of this text is refused
job() {
    printf '%s' "$3" >"$dir/wrong.yaml"
    expect "$1" 2 "wrong.yaml:$2" "$lmtrain" pretrain "$dir/wrong.yaml"
}
job 'an empty job' ' model is missing' ''
job 'a bracket that is open' '3:' 'model: llama-tiny
data: {train: [x
train: {steps: 3}
'
job 'a tab' '2:1: found a tab' "$(printf 'model: llama-tiny\n\tdata: x\n')"
job 'a key twice' '2:1: .*model.*twice' 'model: llama-tiny
model: gpt2
'
job 'no data' '.*data.train.*missing' 'model: llama-tiny
train: {steps: 3}
'
wrong 'an unknown key' 2 'unknown key train.stesp \(hint: train.steps\)' --set train.stesp=3
wrong "another tool's key" 2 'hint: train.micro_batch' --set train.per_device_train_batch_size=4
wrong 'a word for a number' 2 'train.steps is many, not a whole number' --set train.steps=many
wrong 'negative steps' 2 'train.steps is -5, not a whole number from 1' --set train.steps=-5
wrong 'a dtype that is not' 2 'train.dtype is fp8, not one of fp32, bf16' --set train.dtype=fp8
wrong 'two dtypes' 2 'optimizer.states is float16, not one of fp32, bf16' --set optimizer.states=float16
wrong 'a model that is not' 2 'model is lama-tiny.*hint: llama-tiny' --set model=lama-tiny
wrong 'heads that do not divide' 2 'model.n_heads is 3, does not divide' --set model.n_heads=3
wrong "a hub's model" 2 'hint: .*hf download org/a-model --local-dir a-model, then' --set model=org/a-model
wrong "a hub's data" 3 'hf download org/rows --repo-type dataset --local-dir rows' --set data.train=org/rows
wrong "a hub's tokenizer" 3 'data.tokenizer: .*hf download org/a-model --local-dir a-model' --set data.tokenizer=org/a-model
wrong "a hub's model to begin with" 3 'hf download org/a-model --local-dir a-model' --set train.init=org/a-model
wrong 'a batch that does not divide' 2 'train.global_batch is 7, not a multiple of micro_batch 2 \(hint: 6 or 8\)' \
    --set train.global_batch=7
wrong 'ranks that do not divide' 2 'train.global_batch is 16, not a multiple of .*hint: 12 or 18' \
    --ranks 3 --set train.global_batch=16
# shellcheck disable=SC2016 # for lmtrain
wrong 'a variable that is not set' 2 'environment variable NO_SUCH is not set' --set 'data.train=${NO_SUCH}/x'
wrong 'two kinds of held-out data' 2 'eval.split is given together with eval.data' --set eval.split=0.1
wrong 'an lr beyond reason' 2 'optimizer.lr is 1e6, not a number above 0' --set optimizer.lr=1e6
wrong 'experts of a model that has none' 2 'parallel.ep is 2, but the model has no experts' --set parallel.ep=2
whole='--ranks 2 --set parallel.tp=2 --set moe.expert_tp=1'
# shellcheck disable=SC2086 # options
wrong 'whole experts of a model that has none' 2 'moe.expert_tp is 1, but the model has no experts' $whole
whole="$whole --set model.n_active_experts=2 --set model.expert_ffn_size=32"
# shellcheck disable=SC2086 # options
wrong 'whole experts that do not divide' 2 'tp \* ep = 2 ranks do not divide model.n_experts 3 \(hint: expert_tp: tp' \
    $whole --set model.n_experts=3
# shellcheck disable=SC2086 # options
wrong 'whole experts without rows' 2 'without parallel.sequence_parallel tp ranks have the same rows' \
    $whole --set model.n_experts=4 --set parallel.sequence_parallel=false

wrong 'heads too wide for attention' 2 'model.head_dim is 512, more than 256' --set model.head_dim=512
wrong 'and heads that became so' 2 'model.head_dim is 32768, more than 256 \(hint: more heads' --set model.hidden_size=65536
wrong 'numbers beyond numbers' 2 'train.steps is 99999999999999999999, not a whole number' --set train.steps=99999999999999999999
wrong 'not a number' 2 'optimizer.lr is .nan, not a number above 0' --set optimizer.lr=.nan

# ---- job files that are none ----

printf '\357\273\277model: llama-tiny\r\ndata: {train: x}\r\ntrain: {steps: 3}\r\n' >"$dir/windows.yaml"
expect 'a mark and line ends of Windows are read' 0 'model llama-tiny: ' "$lmtrain" plan "$dir/windows.yaml"
job 'UTF-16' '1:1: invalid .* UTF-8' "$(printf '\377\376m')"
job 'Latin-1' '1:[0-9]+: (invalid|incomplete) .*UTF-8' "$(printf 'output: caf\351')"
job 'an anchor' '1:[0-9]+: anchor &a' 'a: &a [x, x]
b: [*a, *a]
'
job 'two documents' '[0-9]:1: a second document' "$(printf -- '---\nmodel: gpt2\n---\nmodel: gpt2')"
job 'brackets without end' '1:[0-9]+: nested deeper than' "model: $(head -c 100000 /dev/zero | tr '\000' '[')"
head -c 1000 /dev/zero >"$dir/zeros.yaml"
truncate -s 2G "$dir/sparse.yaml"
expect 'zero bytes' 2 'zeros.yaml:1:1: ' "$lmtrain" plan "$dir/zeros.yaml"
expect '2 GiB' 2 'has 2147483648 bytes, at most' "$lmtrain" plan "$dir/sparse.yaml"
expect 'no end at all' 2 '/dev/zero is longer than' "$lmtrain" plan /dev/zero
expect 'nothing at all' 2 '/dev/null:1:1: a job is a map' "$lmtrain" plan /dev/null

# ---- what may not be read ----

# as_nobody COMMAND... - without root's rights, if we have them
as_nobody() {
    if [ "$(id -u)" = 0 ]; then
        setpriv --reuid 65534 --regid 65534 --clear-groups "$@"
    else
        "$@"
    fi
}
chmod 755 "$dir"
mkdir "$dir/closed"
mkdir -m 777 "$dir/open"
cp "$dir/job.yaml" "$dir/closed.yaml"
cp data/kjv-tokenizer/* "$dir/closed/"
cp "$dir/train.idx" "$dir/closed.idx"
cp "$dir/train.bin" "$dir/closed.bin"
chmod 644 "$dir/job.yaml" "$dir/closed.idx" "$dir"/train.* "$dir"/held.*
chmod 000 "$dir/closed" "$dir/closed.yaml" "$dir/closed.bin"
if as_nobody test -r "$lmtrain" -a -r "$dir/job.yaml"; then
    nobody() {
        nobody_name=$1 nobody_status=$2 nobody_pattern=$3
        shift 3
        expect "$nobody_name" "$nobody_status" "$nobody_pattern" as_nobody "$lmtrain" pretrain "$@"
    }
    nobody 'a job that may not be read' 2 'closed.yaml: Permission denied' "$dir/closed.yaml"
    nobody 'tokens that may not be read' 3 'closed.bin: Permission denied' "$dir/job.yaml" --set "output=$dir/open/x" \
        --set "data.train=$dir/closed"
    nobody 'a tokenizer that may not be read' 3 'tokenizer.json: Permission denied' "$dir/job.yaml" \
        --set "output=$dir/open/x" --set "data.tokenizer=$dir/closed"
    expect 'a job for plan' 2 'closed.yaml: Permission denied' as_nobody "$lmtrain" plan "$dir/closed.yaml"
    expect 'tokens to look at' 3 'closed.bin: Permission denied' as_nobody "$lmtrain" data inspect "$dir/closed"
    expect 'a folder of tokens' 1 'closed/x.*: Permission denied' as_nobody "$lmtrain" data tokenize "$dir/job.yaml" \
        --tokenizer data/kjv-tokenizer --out "$dir/closed/x"
    nobody 'an output that may not be written' 1 'output: cannot make folder .*/closed/x: Permission denied' \
        "$dir/job.yaml" --set "output=$dir/closed/x"
else
    echo 'skip what may not be read: nobody may read the build'
fi
chmod 755 "$dir/closed"

# ---- data, tokenizer, output ----

mkdir "$dir/folder.idx" "$dir/folder.bin"
mkfifo "$dir/pipe.idx" "$dir/pipe.bin"
: >"$dir/empty.idx"
: >"$dir/empty.bin"
ln -s /dev/zero "$dir/zero.idx"
ln -s /dev/zero "$dir/zero.bin"
for kind in folder pipe zero; do
    wrong "data that are a $kind" 3 "$kind.idx is not a regular file" --set "data.train=$dir/$kind"
done
wrong 'data that are empty' 3 'empty.idx is not a token index' --set "data.train=$dir/empty"

# tokenizer NAME PATTERN - the folder $dir/tokenizer is none
tokenizer() {
    expect "$1" 3 "tokenizer.json$2" timeout 60 "$lmtrain" data tokenize "$dir/held.txt" --tokenizer "$dir/tokenizer" --out "$dir/out"
    refuse 'and nothing is left of it' 'tokens in'
    rm -rf "$dir/tokenizer"
    mkdir "$dir/tokenizer"
}
mkdir -p "$dir/tokenizer/tokenizer.json"
tokenizer 'a folder for a tokenizer' ' is a folder'
: >"$dir/tokenizer/tokenizer.json"
tokenizer 'an empty tokenizer' ': not a JSON object'
head -c 5000 data/kjv-tokenizer/tokenizer.json >"$dir/tokenizer/tokenizer.json"
tokenizer 'a tokenizer that was cut off' ': not a JSON object; reading stopped at byte 4999'
head -c 200000 /dev/zero | tr '\000' '[' >"$dir/tokenizer/tokenizer.json"
tokenizer 'a tokenizer of brackets' ': not a JSON object'
truncate -s 2G "$dir/tokenizer/tokenizer.json"
tokenizer 'a tokenizer of 2 GiB' ' has 2147483648 bytes'
ln -s /dev/zero "$dir/tokenizer/tokenizer.json"
tokenizer 'a tokenizer without end' ' is longer than'
expect 'no tokens were written' 2 '' ls "$dir/out.bin" "$dir/out.idx"

wrong 'data that is not there' 3 'data.train: there is no .*/nowhere.idx \(hint: lmtrain data tokenize' \
    --set "data.train=$dir/nowhere"
wrong 'held-out data that is not there' 3 'eval.data: there is no .*/nowhere.idx' --set "eval.data=$dir/nowhere"
wrong 'a file for a prefix' 3 'no .*/train.bin.idx \(hint: the prefix alone: .*/train\)' --set "data.train=$dir/train.bin"
wrong 'text for tokens' 3 'there is no .*/train.txt.idx \(hint: not a token file: make one with lmtrain data tokenize' \
    --set "data.train=$dir/train.txt"
wrong 'a folder for a prefix' 3 'nothing-in-it.idx \(hint: it is a folder, but a prefix is expected' --set "data.train=$dir/nothing-in-it"
wrong 'on two ranks too' 3 'data.train: there is no' --ranks 2 --set "data.train=$dir/nowhere"
cp "$dir/train.idx" "$dir/short.idx"
head -c 1000 "$dir/train.bin" >"$dir/short.bin"
wrong 'tokens that were cut off' 3 'short.bin has 1000 bytes, but its .idx requires 25166' --set "data.train=$dir/short"
cp "$dir/train.bin" "$dir/garbage.bin"
cp "$dir/train.txt" "$dir/garbage.idx"
wrong 'an index that is none' 3 'garbage.idx is not a token index' --set "data.train=$dir/garbage"
wrong 'a window longer than the data' 3 'too few for one window of seq_len 20000' --set data.seq_len=20000
wrong 'a tokenizer that is not there' 3 'data.tokenizer: .*nowhere' --set "data.tokenizer=$dir/nowhere"
wrong 'a tokenizer larger than the model' 2 'model.vocab_size is 512, but data.tokenizer .* has 4096 tokens' \
    --set model.vocab_size=512
wrong 'tokens beyond the vocabulary' 3 'train.bin: token [0-9]+ at position [0-9]+ is not in 0..511' \
    --set model.vocab_size=512 --set data.tokenizer=
wrong 'an output that is a file' 1 'output: .*job.yaml exists and is not a folder' --set "output=$dir/job.yaml"
wrong 'an output that cannot be' 1 'output: .*nowhere' --set output=/proc/nowhere/x
wrong 'a model that no memory holds' 4 'the plan needs [0-9.]+ TiB per rank, but [0-9.]+ [KMGT]iB are free \(hint: ' \
    --set model=gpt3-175b --set data.tokenizer=
wrong 'on two ranks too' 4 'the plan needs [0-9.]+ TiB' --ranks 2 --set model=gpt3-175b --set data.tokenizer=
wrong 'nor a smaller plan of it' 4 'hint: even recompute: full with train.gradient_dtype: bf16 with train.micro_batch: 1 needs [0-9.]+ TiB: use a smaller model' \
    --set model=gpt3-175b --set data.tokenizer=
wrong 'a batch that no memory holds' 4 'hint: (recompute: full needs [0-9.]+ [GM]iB, or )?train.micro_batch: [0-9]+ needs' \
    --set train.micro_batch=1048576 --set train.global_batch=1048576
fits=$(printf '%s\n' "$output" | sed -n 's/.*train.micro_batch: \([0-9]*\) needs \([^;,)]*\).*/\1 \2/p')
room=$(printf '%s\n' "${fits#* }" | awk '{ print 1.02 * $1, $2 }')
expect 'what would fit was really planned' 0 '^total ' "$lmtrain" plan "$dir/job.yaml" --set memory.device_bytes="$room" \
    --set "train.micro_batch=${fits%% *}" --set train.global_batch=1048576
expect 'which can be planned' 0 'model gpt3-175b: 17[0-9,]+ parameters' \
    "$lmtrain" plan "$dir/job.yaml" --set model=gpt3-175b

# ---- checkpoints ----

# damage NAME PATTERN - what was done to $copy is noticed by all who read it
damage() {
    expect "$1" 3 "$2" pretrain copy --set train.steps=14
    expect "$1, for generate" 3 "$2" "$lmtrain" generate --model "$dir/copy" --prompt a
    expect "$1, for eval" 3 "$2" "$lmtrain" eval --model "$dir/copy"
}
fresh_copy() {
    rm -rf "$dir/copy"
    mkdir "$dir/copy"
    cp -r "$dir/one/checkpoints" "$dir/copy/"
    newest=$dir/copy/checkpoints/step-00000012
}
expect 'a run to spoil' 0 '^done' pretrain one
is 'no prompts at all' 3 'empty.jsonl has no prompts \(hint: ' generate --model "$dir/one" --prompts "$dir/empty.jsonl"
fresh_copy
middle=$(($(wc -c <"$newest/rank-00000.safetensors") / 2))
printf '\377\376\375' | dd of="$newest/rank-00000.safetensors" bs=1 seek=$middle conv=notrunc 2>/dev/null
rm -rf "$dir"/copy/checkpoints/step-0000000*
expect 'a byte was changed, and no other is there' 3 'step-00000012.*rank-00000.safetensors.*damaged' pretrain copy --set train.steps=14
fresh_copy
rm -rf "$dir"/copy/checkpoints/step-0000000*
head -c 1000 "$dir/one/checkpoints/step-00000012/rank-00000.safetensors" >"$newest/rank-00000.safetensors"
damage 'weights were cut off' 'rank-00000.safetensors'
fresh_copy
rm -rf "$dir"/copy/checkpoints/step-0000000*
echo '{"version": 1' >"$newest/manifest.json"
damage 'the manifest was cut off' 'manifest.json'
fresh_copy
rm -rf "$dir"/copy/checkpoints/step-0000000* "$newest/rank-00000.safetensors"
damage 'the weights are gone' 'rank-00000.safetensors'
# alone - only the newest checkpoint is there, to be spoilt
alone() {
    fresh_copy
    rm -rf "$dir"/copy/checkpoints/step-0000000*
}
alone
sed -i '1s/"lmtrain_checkpoint":1/"lmtrain_checkpoint":2/; 2s/"lmtrain":"[^"]*"/"lmtrain":"9.8.7"/' "$newest/manifest.json"
damage 'a checkpoint of a later version' 'format 2, written by lmtrain 9.8.7: .* reads formats 1 to 1 \(hint: use lmtrain 9.8.7 or newer'
alone
sed -i 's/"step":12/"step":13/' "$newest/manifest.json"
damage 'a manifest that was edited' 'manifest.json is damaged: it says hash'
alone
sed -i 's|rank-00000.safetensors|../../../../../etc/passwd|' "$newest/manifest.json"
damage 'a manifest that names another file' 'manifest.json is damaged'
for kind in folder pipe; do
    for name in manifest.json rank-00000.safetensors; do
        alone
        rm "$newest/$name"
        if [ $kind = pipe ]; then mkfifo "$newest/$name"; else mkdir "$newest/$name"; fi
        damage "$name is a $kind" "$name is not a regular file"
    done
done
alone
mv "$newest/rank-00000.safetensors" "$dir/copy/elsewhere"
ln -s "$dir/copy/elsewhere" "$newest/rank-00000.safetensors"
damage 'the weights are a link' 'rank-00000.safetensors is a symbolic link, which is not followed'
alone
truncate -s 5G "$newest/manifest.json"
damage 'a manifest of 5 GiB' 'manifest.json is larger than'
alone
rm -r "$newest"
echo x >"$newest"
damage 'a file for a checkpoint' 'step-00000012: Not a directory'
expect 'and all of them are still there' 0 '^x$' cat "$newest"
rm -r "$dir/copy"
fresh_copy
head -c 1000 "$dir/one/checkpoints/step-00000012/rank-00000.safetensors" >"$newest/rank-00000.safetensors"
expect 'an older whole one is taken, with a warning' 0 'warn: .*step-00000012' pretrain copy --set train.steps=14
expect 'from where it goes on' 0 'resuming from .*step-00000008, step 8' printf '%s\n' "$output"

# ---- a Slurm without PMIx ----

mkdir "$dir/slurm"
cat >"$dir/slurm/srun" <<'END'
#!/bin/sh
case $1 in
--version) echo 'slurm-wlm 22.05.8' ;;
--mpi=list) printf 'MPI plugin types are...\n\tnone\n\tcray_shasta\n\tpmi2\n' >&2 ;;
*) echo 'srun: error: started ranks' && exit 99 ;;
esac
END
chmod +x "$dir/slurm/srun"
# in_slurm NAME PATTERN VARIABLES... - the job where Slurm has set these is refused
in_slurm() {
    in_slurm_name=$1 in_slurm_pattern=$2
    shift 2
    expect "$in_slurm_name" 2 "$in_slurm_pattern" env "PATH=$dir/slurm:$PATH" SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=1 \
        SLURM_JOB_NODELIST="$(hostname)" SLURM_JOB_CPUS_PER_NODE=2 SLURM_NTASKS=2 "$@" "$lmtrain" pretrain "$dir/job.yaml" \
        --set "output=$dir/wrong" --set ranks=2
    refuse 'and nothing else happens' 'started ranks|^step 1/'
}
in_slurm 'bare in an allocation' "^lmtrain: this cluster's Slurm lacks the PMIx plugin.*hint: --hosts.*ask the administrator for the plugin" \
    SLURM_TASKS_PER_NODE=2
in_slurm 'a task of a step' "^lmtrain: .*one of 2 tasks of a Slurm step without PMIx.* Slurm lacks the plugin: srun --mpi=list does not list pmix" \
    SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0
sed -i 's/pmi2/pmix/' "$dir/slurm/srun"
in_slurm 'a task of a step where there is the plugin' 'hint: srun --mpi=pmix lmtrain' \
    SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0
finish
