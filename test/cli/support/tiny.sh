# shellcheck shell=sh disable=SC2154,SC2016
# tiny.sh - a model of 150 thousand parameters on 400 verses, for scripts that train; sourced after check.sh
#
# $dir/job.yaml is its job: 12 steps, evaluated and saved every 4, one rank of one thread, in $dir/one.
# Its data are $dir/train and $dir/held.

lmtrain=${LMTRAIN:-build/lmtrain}

xz -dc data/kjv/train.txt.xz | head -n 400 >"$dir/train.txt"
xz -dc data/kjv/heldout.txt.xz | head -n 40 >"$dir/held.txt"
for part in train held; do
    expect "tokens of $part" 0 'tokens in 1 document,' "$lmtrain" data tokenize "$dir/$part.txt" \
        --tokenizer data/kjv-tokenizer --out "$dir/$part"
done
cat >"$dir/job.yaml" <<END
model: {vocab_size: 4096, hidden_size: 32, n_layers: 2, n_heads: 2, n_kv_heads: 1, ffn_size: 64, max_seq_len: 64,
        tied_embeddings: true}
data: {train: $dir/train, tokenizer: data/kjv-tokenizer, seq_len: 32}
train: {steps: 12, global_batch: 8, micro_batch: 2, log_every: 1}
eval: {every_steps: 4, data: $dir/held}
optimizer: {lr: 1.0e-2, warmup_steps: 2}
checkpoint: {every_steps: 4, keep: 0}
ranks: 1
threads: 1
output: $dir/one
END

# pretrain RUN ARGUMENTS... - the job, in the folder $dir/RUN
pretrain() {
    pretrain_run=$1
    shift
    "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/$pretrain_run" "$@"
}

# start RUN ARGUMENTS... - the same in the background, as $pid, its output in $dir/RUN.out
start() {
    start_run=$1
    shift
    "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/$start_run" "$@" >"$dir/$start_run.out" 2>&1 &
    pid=$!
}

# children_of PROCESS - a head's one child is its daemon, whose children are the ranks
children_of() {
    grep -ls "^PPid:[[:space:]]*$1\$" /proc/[0-9]*/status | cut -d/ -f3
}

# ended NAME STATUS RUN - what was started ends with that status
ended() {
    wait "$pid"
    ended_got=$?
    expect "$1" "$2" '' sh -c 'tail -n 20 "$1"; exit "$2"' sh "$dir/$3.out" $ended_got
}

# bits RUN - each logged step with its loss and gradient norm, exactly
bits() {
    sed -n 's/.*"step":\([0-9]*\),.*"loss_hex":"\([^"]*\)".*"grad_norm_hex":"\([^"]*\)".*/\1 \2 \3/p' "$dir/$1/metrics.jsonl"
}

# n_logged RUN - how many steps are logged
n_logged() {
    grep -cs grad_norm_hex "$dir/$1/metrics.jsonl" || true
}

# same_bits NAME RUN OTHER N - both have the same N steps, and the same bits in them
same_bits() {
    bits "$2" >"$dir/bits.a"
    bits "$3" >"$dir/bits.b"
    if [ "$(wc -l <"$dir/bits.a")" = "$4" ] && cmp -s "$dir/bits.a" "$dir/bits.b"; then
        echo "ok $1"
    else
        echo "not ok $1: $2 and $3 differ, or are not $4 steps:"
        diff "$dir/bits.a" "$dir/bits.b" | head -n 10 | sed 's/^/    /'
        n_wrong=$((n_wrong + 1))
    fi
}

# wait_until SECONDS COMMAND... - until it succeeds; status 1 if it never does
wait_until() {
    wait_end=$(($(date +%s) + $1 + 1))
    shift
    while ! "$@" >/dev/null 2>&1; do
        [ "$(date +%s)" -lt "$wait_end" ] || return 1
        sleep 0.02
    done
}
