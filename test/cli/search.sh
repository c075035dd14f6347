#!/bin/sh
# test/cli/search.sh - layouts that are searched for this machine: its measured tables, a run with parallel: auto, its resume,
# what was predicted beside what is measured
. test/cli/support/check.sh
. test/cli/support/tiny.sh

# ---- this machine, measured ----

expect 'this machine is measured' 0 '^.*here.yaml: [0-9]+ ops and 4 collectives of 2 ranks, contention ' \
    "$lmtrain" bench cluster "$dir/job.yaml" --ranks 2 --steps 2 --to "$dir/here.yaml"
expect 'its file' 0 '^      cpu: true$' cat "$dir/here.yaml"
expect 'its link to the host' 0 '^  host: \{bandwidth: [0-9.]+ GB/s\}$' cat "$dir/here.yaml"
expect 'its storage' 0 '^  storage: \{read: [0-9.]+ GB/s, write: [0-9.]+ GB/s\}$' cat "$dir/here.yaml"
expect 'and no file is left of that' 1 '' sh -c "ls -A '$dir' | grep lmtrain-bench"
expect 'names its tables' 0 '^tables: here.yaml.tables.json$' cat "$dir/here.yaml"
expect 'which have ops' 0 '"linear [a-z0-9]+\[T x [0-9]+\] .*": \[\[[0-9]+, [0-9]+, [0-9]+\]' cat "$dir/here.yaml.tables.json"
expect 'and collectives' 0 '"all_reduce of 2": \[\[4096, [0-9]+\], ' cat "$dir/here.yaml.tables.json"
expect 'and transfers' 0 '"in a node": \[\[4096, [0-9]+\], ' cat "$dir/here.yaml.tables.json"
expect 'and what coming late costs' 0 '^"late_ns": [0-9]+,$' cat "$dir/here.yaml.tables.json"
expect 'and traveling beside compute' 0 '^"beside_ns": [0-9]+,$' cat "$dir/here.yaml.tables.json"
expect 'what the host takes, and how much slower compute is beside exchanges' 0 \
    '^software: \{host_op: [0-9]+ ns, constant: [0-9]+ ns, jitter: [0-9.]+, overlap: \{fast: (0\.[0-9]{3}|1\.000), nic: ' cat "$dir/here.yaml"
expect 'by default it is of this user' 0 '/lmtrain/cluster.yaml: [0-9]+ ops and 0 collectives of 1 rank$' \
    env XDG_CACHE_HOME="$dir/cache" "$lmtrain" bench cluster "$dir/job.yaml" --steps 1
expect 'a plan is priced with it' 0 '^predicted on 2 cpu: ' "$lmtrain" plan "$dir/job.yaml" --ranks 2 --cluster "$dir/here.yaml"
expect 'and says how much of the time was measured' 0 '\(([4-9][0-9]|100) % of the time from measured tables, ' \
    "$lmtrain" plan "$dir/job.yaml" --ranks 2 --cluster "$dir/here.yaml"
expect 'a layout is searched for it' 0 '^best of [0-9]+ layouts' \
    "$lmtrain" plan "$dir/job.yaml" --ranks 2 --cluster "$dir/here.yaml" --set parallel=auto
expect 'for this machine if none is named' 0 '^predicted on 1 cpu: ' \
    env XDG_CACHE_HOME="$dir/cache" "$lmtrain" plan "$dir/job.yaml" --set parallel=auto
expect 'which was not measured' 2 'or lmtrain bench cluster, which measures this machine' \
    env XDG_CACHE_HOME="$dir/nothing" "$lmtrain" plan "$dir/job.yaml" --set parallel=auto
sed 's/"ops"/"ops": 3, "x"/' "$dir/here.yaml.tables.json" >"$dir/broken.json"
sed 's/^tables: .*/tables: broken.json/' "$dir/here.yaml" >"$dir/broken.yaml"
expect 'tables that are none' 2 'broken.json: not a table of prices: ' \
    "$lmtrain" plan "$dir/job.yaml" --ranks 2 --cluster "$dir/broken.yaml"
sed 's/^tables: .*/tables: gone.json/' "$dir/here.yaml" >"$dir/gone.yaml"
sed 's/^"build": .*/"build": "0.0 old",/' "$dir/here.yaml.tables.json" >"$dir/old.json"
sed 's/^tables: .*/tables: old.json/' "$dir/here.yaml" >"$dir/old.yaml"
expect 'tables of this build are no matter' 0 '^predicted on' "$lmtrain" plan "$dir/job.yaml" --ranks 2 --cluster "$dir/here.yaml"
refuse 'and nothing is said' 'measured by|is of a machine'
expect 'those of another are named' 0 'old.json was measured by lmtrain 0.0 old, this is lmtrain .* \(hint: ' \
    "$lmtrain" plan "$dir/job.yaml" --ranks 2 --cluster "$dir/old.yaml"
expect 'and used' 0 '^predicted on 2 cpu: ' printf '%s\n' "$output"
sed 's/^{"machine": "[^"]*"/{"machine": "cpu of old"/' "$dir/here.yaml.tables.json" >"$dir/old.json"
expect 'as are those of another machine' 0 'old.json is of a machine "cpu of old", this one is "cpu ' \
    "$lmtrain" plan "$dir/job.yaml" --ranks 2 --cluster "$dir/old.yaml"
expect 'tables that are not there' 2 'gone.json' "$lmtrain" plan "$dir/job.yaml" --ranks 2 --cluster "$dir/gone.yaml"

# ---- a run ----

# searched NAME OPTION... - a run of 12 steps whose layout is searched
searched() {
    searched_name=$1
    shift
    pretrain "$searched_name" --ranks 2 --set parallel=auto --set "cluster=$dir/here.yaml" "$@"
}
searched one >"$dir/one.txt" 2>&1
expect 'a run searches its layout' 0 '^.*layout: dp [12].*: the best of [0-9]+ \(lmtrain plan shows the others\), [0-9.]+ ms a step' cat "$dir/one.txt"
expect 'a checkpoint has the bytes that plan says' 0 '' sh -c "'$lmtrain' plan '$dir/one/job.yaml' --ranks 2 --cluster '$dir/here.yaml' --json |
    python3 -c '
import glob, json, sys
said = json.load(sys.stdin)[\"predicted\"][\"run\"][\"checkpoint_bytes\"]
found = 0
for name in glob.glob(sys.argv[1]):
    with open(name, \"rb\") as file:
        file.seek(int.from_bytes(file.read(8), \"little\"), 1)
        found += len(file.read())
assert found == said, (found, said)' '$dir/one/checkpoints/step-00000012/*.safetensors'"
expect 'its job has the layout' 0 '^  mode: manual$' cat "$dir/one/job.yaml"
expect 'and what was predicted' 0 '^  predicted_ms: [0-9.]+$' cat "$dir/one/job.yaml"
expect 'it is compared after 10 steps' 0 'a step takes [0-9.]+ ms, [0-9.]+ ms were predicted for .*here.yaml' cat "$dir/one/log/rank-0.log"
expect 'once' 0 '^1$' grep -c 'were predicted' "$dir/one/log/rank-0.log"
expect 'as an event, too' 0 '"event": ?"predicted"' cat "$dir/one/metrics.jsonl"
layout=$(sed -n '/^parallel:/,/^[a-z]/p' "$dir/one/job.yaml")
expect 'the same layout by hand' 0 '^done' pretrain by_hand --ranks 2 --set "parallel=$(printf '%s\n' "$layout" | awk '
    /^  (tp|pp|dp|zero|zero_group|chunks|bucket_mb|schedule|hold):/ { printf "%s%s %s", n++ ? ", " : "{", $1, $2 } END { print "}" }')" \
    --set "recompute=$(sed -n 's/^recompute: //p' "$dir/one/job.yaml")"
same_bits 'has the same bits' one by_hand 12

expect 'a run that is stopped' 0 '^done: step 6 ' searched two --set train.steps=6 --set 'parallel={mode: semi, pp: 2}'
expect 'goes on' 0 '^done: step 12 ' searched two
expect 'with the layout that it has' 0 '^  pp: 2$' cat "$dir/two/job.yaml"
refuse 'without a search' 'layout: '
expect 'parts of sequences are kept' 0 'layout: dp 1, cp 2 gather.*the best of ' searched parts --set train.steps=6 \
    --set 'parallel={mode: semi, cp: 2, cp_kind: gather}'
expect 'in the job' 0 '^  cp_kind: gather$' cat "$dir/parts/job.yaml"
expect 'and by who goes on' 0 '^done: step 12 ' searched parts
expect 'with them' 0 '^  cp: 2$' cat "$dir/parts/job.yaml"
expect 'on other ranks it is searched again' 0 'layout: dp 1.*the best of ' pretrain two --ranks 1 --set parallel=auto \
    --set "cluster=$dir/here.yaml" --set train.steps=14
expect 'and again if that is wanted' 0 'layout: dp 1.*the best of ' pretrain two --ranks 1 --set parallel=auto \
    --set "cluster=$dir/here.yaml" --set train.steps=16 --replan
expect 'the bits of the run can be kept' 0 'layout: dp 1, .*the best of ' pretrain two --ranks 2 --set parallel=auto \
    --set "cluster=$dir/here.yaml" --set train.steps=18 --set search.keep_numerics=true --replan
expect 'with its data-parallel ranks' 0 '^  dp: 1$' cat "$dir/two/job.yaml"
expect 'where that is possible' 2 'no layout of 2 ranks is possible' pretrain two --ranks 2 --set 'parallel={mode: semi, pp: 1}' \
    --set "cluster=$dir/here.yaml" --set train.steps=20 --set search.keep_numerics=true --replan

# ---- sizes of micro-batches ----

# sized NAME OPTION... - a run of two stages whose sizes are chosen
# shellcheck disable=SC2317 # expect calls it
sized() {
    sized_name=$1
    shift
    sed 's/, micro_batch: 2//' "$dir/job.yaml" >"$dir/sized.yaml"
    "$lmtrain" pretrain "$dir/sized.yaml" --set "output=$dir/$sized_name" --ranks 2 --set "cluster=$dir/here.yaml" \
        --set 'parallel={pp: 2, schedule: dynamic, chunks: 1, micro_batches: auto}' "$@"
}
expect 'a run chooses its sizes' 0 'micro-batches: [0-9x ]+, the best of [0-9]+ lists? \([0-9]+ simulated\): ' \
    sized sized --set train.steps=6
expect 'its job has them' 0 '^  micro_batches: \[[0-9, ]+\]$' cat "$dir/sized/job.yaml"
grep micro_batch "$dir/sized/job.yaml" >"$dir/sizes.wanted"
expect 'it goes on' 0 '^done: step 12 ' sized sized
refuse 'without another choice' 'the best of'
grep micro_batch "$dir/sized/job.yaml" >"$dir/sizes.got"
expect 'with the same' 0 '' cmp "$dir/sizes.wanted" "$dir/sizes.got"
list=$(sed -n 's/^  \(micro_batches: .*\)/\1/p' "$dir/sized/job.yaml")
for steps in 6 12; do
    expect "the same list by hand, to step $steps" 0 "^done: step $steps " pretrain by_hand_sized --ranks 2 \
        --set train.micro_batch=auto --set "parallel={pp: 2, schedule: dynamic, chunks: 1, $list}" --set "train.steps=$steps"
done
same_bits 'has the same bits' sized by_hand_sized 12
expect 'a plan chooses them, too' 0 '^micro-batches: [0-9x ]+, the best of .*; all of [0-9]+: ' "$lmtrain" plan "$dir/sized.yaml" \
    --ranks 2 --cluster "$dir/here.yaml" --set 'parallel={pp: 2, schedule: dynamic, chunks: 1, micro_batches: auto}'
expect 'for a cluster alone' 2 'parallel.micro_batches is auto, which needs the devices that they are for' \
    env XDG_CACHE_HOME="$dir/nothing" "$lmtrain" plan "$dir/sized.yaml" --ranks 2 \
    --set 'parallel={pp: 2, schedule: dynamic, micro_batches: auto}'

# ---- ranks that are idle ----

sed 's/per_node: 2/per_node: 3/' "$dir/here.yaml" >"$dir/three.yaml"
# idle RUN OPTION... - two ranks of three devices
# shellcheck disable=SC2317 # expect calls it
idle() {
    idle_run=$1
    shift
    pretrain "$idle_run" --ranks 3 --set 'parallel={mode: data, dp: 2}' --set "cluster=$dir/three.yaml" "$@"
}
expect 'ranks that no layout has' 2 'no layout of 3 ranks is possible: .*search.allow_idle: true leaves' idle idle
expect 'may be idle' 0 '^done: step 6 ' idle idle --set search.allow_idle=true --set train.steps=6
expect 'two are started' 0 '^  dp: 2$' cat "$dir/idle/job.yaml" "$dir/idle/log/rank-1.log"
expect 'not three' 1 '' test -e "$dir/idle/log/rank-2.log"
expect 'and go on alike' 0 '^done: step 12 ' idle idle --set search.allow_idle=true
expect 'a plan says so' 0 '^ranks: 2 of 3 devices, the others are idle \(search.allow_idle\)$' "$lmtrain" plan "$dir/job.yaml" \
    --ranks 3 --set 'parallel={mode: data, dp: 2}' --cluster "$dir/three.yaml" --set search.allow_idle=true
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
if command -v mpirun >/dev/null; then
    expect 'ranks that are started already cannot be' 2 'best layout has 2 ranks, but the launcher started 3 \(hint: start 2' \
        mpirun --oversubscribe -n 3 "$lmtrain" pretrain "$dir/job.yaml" --set ranks=3 --set 'parallel={mode: data, dp: 2}' \
        --set "cluster=$dir/three.yaml" --set search.allow_idle=true --set "output=$dir/started"
else
    echo 'skip ranks that are started already: there is no mpirun'
fi

# ---- memory is short ----

# needs RECOMPUTE - the bytes of the largest rank
wide="--set model.n_layers=8 --set model.ffn_size=512 --set model.max_seq_len=64 --set data.seq_len=64 --set train.micro_batch=4 --set memory.recompute_early=0"
# shellcheck disable=SC2086 # words
needs() {
    "$lmtrain" plan "$dir/job.yaml" --ranks 2 --cluster "$dir/here.yaml" $wide --set parallel.pp=2 --set "recompute=$1" --json |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["predicted"]["needed_bytes"])'
}
limited="--set memory.device_bytes=$((($(needs none) + $(needs selective)) / 2)) --set search.within=0"
# short OPTION... - a plan of the layout that is searched under that limit
# shellcheck disable=SC2086,SC2317 # words; expect calls it
short() {
    "$lmtrain" plan "$dir/job.yaml" --ranks 2 --cluster "$dir/here.yaml" $wide $limited --set 'parallel={mode: semi, pp: 2, schedule: 1f1b}' "$@"
}
expect 'some layers are recomputed' 0 '^ *1 .* auto: [0-9.]+ % ' short
expect 'a plan says which ops' 0 '^[0-9].*(rmsnorm|swiglu|layer.s input)' printf '%s\n' "$output"
short --json >"$dir/short.json"
expect 'and takes as long as the search says' 0 '' python3 -c '
import json, sys
said = json.load(open(sys.argv[1], encoding="ascii"))
first = said["search"]["layouts"][0]
assert first["step_ns"] == said["predicted"]["step_ns"], said
assert first["recompute"] == "auto" and first["recompute_ns"] > 0 and first["moved_bytes"] == 0, first
' "$dir/short.json"
# shellcheck disable=SC2086 # words
expect 'a run chooses as the plan does' 0 'layout: .* recompute auto.*the best of ' pretrain mixed --ranks 2 $wide $limited \
    --set 'parallel={mode: semi, pp: 2, schedule: 1f1b}' --set "cluster=$dir/here.yaml"
# shellcheck disable=SC2086 # words
expect 'none of them' 0 '^done' pretrain unmixed --ranks 2 $wide --set parallel.pp=2
same_bits 'changes no bit' mixed unmixed 12
expect 'a manual run on a cluster is predicted, too' 0 'were predicted for ' pretrain manual --set "cluster=$dir/here.yaml"
# ---- experts over ranks ----

cat >"$dir/experts.yaml" <<END
model: qwen3-30b-a3b
data: {train: $dir/train, seq_len: 4096}
train: {steps: 4, global_batch: 256, micro_batch: 1, dtype: bf16}
parallel: {mode: semi, tp: 1, pp: 4, schedule: 1f1b}
device: cuda
END
expect 'experts are divided where that is faster' 0 '^# +tp +pp +dp +ep +zero ' \
    "$lmtrain" plan "$dir/experts.yaml" --cluster dgx-h100 --ranks 32 --top 3
expect 'the best layout is printed' 0 'dp 8, ep [24], ' printf '%s\n' "$output"
expect 'why others are not there' 0 'ep 1 (is slower|does not fit), by ' printf '%s\n' "$output"
expect 'no other ep where it is given' 0 '^1 +1 +4 +8 +8 ' "$lmtrain" plan "$dir/experts.yaml" --cluster dgx-h100 --ranks 32 --top 1 \
    --set parallel.ep=8
finish
