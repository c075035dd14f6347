#!/bin/sh
# test/cli/bench.sh - lmtrain bench: sums, names and JSON; no word about how fast anything is
# shellcheck disable=SC2317,SC2016 # functions that expect calls; what sh and awk expand
. test/cli/support/check.sh
lmtrain=${LMTRAIN:-build/lmtrain}

# No data: bench needs none, and writes nothing.
cat >"$dir/job.yaml" <<END
model: {vocab_size: 512, hidden_size: 32, n_layers: 2, n_heads: 2, n_kv_heads: 1, ffn_size: 64, max_seq_len: 64,
        tied_embeddings: true}
data: {train: $dir/nothing, tokenizer: $dir/nothing, seq_len: 32}
train: {steps: 2, global_batch: 8, micro_batch: 2}
ranks: 1
threads: 1
output: $dir/run
END

# Each line is one figure: `PATH VALUE`, the path made of keys and of indices from 0. Reads what cJSON prints and
# exits with 1 at anything that is not valid JSON.
cat >"$dir/json.awk" <<'AWK'
function fail(why) { print "no JSON: " why " at " substr(text, at, 40); bad = 1; exit 1 }
function blank() { while (substr(text, at, 1) ~ /[ \t\n]/) at++ }
function string(  from) {
    from = ++at
    while (substr(text, at, 1) != "\"") { if (at > length(text)) fail("an open string"); at++ }
    return substr(text, from, at++ - from)
}
function value(path,  c, n, key) {
    blank()
    c = substr(text, at, 1)
    if (c == "{" || c == "[") {
        at++; n = 0; blank()
        if (substr(text, at, 1) == (c == "{" ? "}" : "]")) { at++; return }
        for (;;) {
            blank(); key = n++
            if (c == "{") {
                if (substr(text, at, 1) != "\"") fail("no key")
                key = string(); blank()
                if (substr(text, at++, 1) != ":") fail("no colon")
            }
            value(path (path == "" ? "" : ".") key); blank()
            if (substr(text, at, 1) == ",") { at++; continue }
            if (substr(text, at++, 1) != (c == "{" ? "}" : "]")) fail("no end")
            return
        }
    }
    if (c == "\"") { print path, string(); return }
    if (!match(substr(text, at), /^(-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?|true|false|null)/)) fail("no value")
    print path, substr(text, at, RLENGTH); at += RLENGTH
}
{ text = text $0 "\n" }
END { if (bad) exit 1; at = 1; value(""); blank(); if (at <= length(text)) fail("more than one value") }
AWK
# figures NAME ARGUMENTS... - of `bench ARGUMENTS --json`, in $dir/NAME
figures() {
    figures_name=$1
    shift
    "$lmtrain" bench "$@" --json >"$dir/$figures_name.json" 2>"$dir/$figures_name.err" &&
        awk -f "$dir/json.awk" "$dir/$figures_name.json" >"$dir/$figures_name" && test -s "$dir/$figures_name"
}

# sums NAME LIST - the seconds, FLOPs, bytes of the list (those with a share) add up to the step's, the shares to 1
sums() {
    awk -v list="$2" '
        function same(a, b) { return a - b < 1e-9 * b + 1e-15 && b - a < 1e-9 * b + 1e-15 }
        { n = split($1, path, ".") }
        n == 3 && path[1] == list { figure[path[2], path[3]] = $2; last = path[2] }
        n == 1 { whole[$1] = $2 }
        END {
            for (i = 0; i <= last; i++)
                if ((i, "share") in figure) {
                    n_shares++; share += figure[i, "share"]; s += figure[i, "seconds"]; f += figure[i, "flops"]
                    b += figure[i, "bytes"]; l += figure[i, "light_seconds"]
                    if (!(figure[i, "seconds"] > 0)) { print i ": no time"; exit 1 }
                }
            print n_shares, share, s, whole["ops_seconds"], f, whole["flops"], b, whole["bytes"]
            exit !(n_shares > 3 && same(share, 1) && same(s, whole["ops_seconds"]) && same(f, whole["flops"]) &&
                   same(b, whole["bytes"]) && same(l, whole["light_seconds"]) && whole["peak_flops_per_s"] > 0 &&
                   whole["memory_bytes_per_s"] > 0 && whole["ops_seconds"] <= 100 * whole["median_step_seconds"])
        }' "$dir/$1"
}

# The ops of the step's functions, as the printed program names them: `PHASE KIND`.
program_ops() {
    "$lmtrain" plan "$dir/job.yaml" --print-program |
        awk '/^function evaluate/ || /^function gather/ { skip = 1 } /^function (forward|backward|last|update|step)/ { skip = 0 }
             /^entry/ { skip = 1 } /^[FRBWU]  / && !skip { for (i = 2; i <= NF; i++) if ($i == "=" || $i == "+=") { print $1, $(i + 1); next }
             print $1, $2 }' | sort
}

# ---- ops ----

expect 'bench ops --json is JSON' 0 '' figures ops ops "$dir/job.yaml" --steps 2
output=$(cat "$dir/ops.json")
promised 'bench ops'
expect 'its sums add up' 0 '' sums ops ops
expect 'and each' 0 '' figures each ops "$dir/job.yaml" --steps 2 --each
expect 'its sums add up as well' 0 '' sums each ops
awk '{ n = split($1, path, ".") } path[3] == "op" { op = $2 } path[3] == "phase" { print $2, op }' "$dir/each" |
    sort >"$dir/measured"
program_ops >"$dir/printed"
expect 'the ops are those of the printed program' 0 '' diff "$dir/printed" "$dir/measured"
expect 'FLOPs are those of the plan' 0 '' sh -c '
    plan=$("$1" plan "$2" --json | sed -n "s/.*\"step_flops\":[^0-9]*\([0-9.e+]*\).*/\1/p")
    awk -v plan="$plan" "\$1 == \"flops\" { exit !(\$2 == plan && plan > 0) }" "$3"' sh "$lmtrain" "$dir/job.yaml" "$dir/ops"
expect 'a table for people' 0 '^all compute ops +[0-9]+ .* 100\.0 %' "$lmtrain" bench ops "$dir/job.yaml" --steps 1
expect 'that names products' 0 'linear_dw +W +8 +64x' printf '%s\n' "$output"
expect 'and a line an op' 0 '^attention_grad +B +1 ' "$lmtrain" bench ops "$dir/job.yaml" --steps 1 --each
expect 'in fp32' 0 'GFLOP/s fp32, ' "$lmtrain" bench ops "$dir/job.yaml" --steps 1 --set train.dtype=fp32

# ---- step ----

expect 'bench step --json is JSON' 0 '' figures step step "$dir/job.yaml" --steps 3
output=$(cat "$dir/step.json")
promised 'bench step'
expect 'steps have the time that threads had a core' 0 '' awk '/^step_cpu_seconds/ { n++; if (!($2 > 0)) exit 1 } END { exit n != 3 }' \
    "$dir/step"
expect 'its families add up' 0 '' sums step families
expect 'tokens a second are tokens by seconds' 0 '' awk '{ x[$1] = $2 } END { r = x["tokens"] / x["best_step_seconds"] / x["tokens_per_s"]
    exit !(x["tokens"] == 256 && r > 0.999999 && r < 1.000001 && x["median_step_seconds"] >= x["best_step_seconds"] &&
        x["timed_step_seconds"] > 0 && x["ops_seconds"] <= 2 * x["timed_step_seconds"]) }' "$dir/step"
expect 'a table for people' 0 '^tokens_per_s +[0-9]+ best, [0-9]+ median' "$lmtrain" bench step "$dir/job.yaml" --steps 1
expect 'on two ranks, with zero 1' 0 '^collective .* beside ' "$lmtrain" bench step "$dir/job.yaml" --steps 2 --ranks 2 \
    --set parallel.zero=1
expect 'each rank for these' 0 'waiting for, ms +rank 0 +rank 1' printf '%s\n' "$output"
expect 'which waited for collectives over dp' 0 '^waiting +[0-9.]+ ms for collectives: .*(all_gather|reduce_scatter) over (dp|data) [0-9.]+' printf '%s\n' "$output"

# ---- comm ----

expect 'bench comm --json is JSON' 0 '' figures comm comm "$dir/job.yaml" --ranks 3 --rounds 2 --max-mb 1 \
    --set train.global_batch=12
expect 'for 2 and for all 3 ranks, of each kind and size' 0 '' sh -c 'test "$(grep -c " all_gather" "$1")" = 10 &&
    test "$(grep -c " reduce_scatter" "$1")" = 10 && test "$(grep -c " all_reduce\"*$" "$1")" = 10 &&
    test "$(grep -c " all_reduce_scalar" "$1")" = 2 && test "$(grep -c "\.ranks 3" "$1")" = 16' sh "$dir/comm"
expect 'each took some time' 0 '' awk '/best_seconds|bus_bytes/ { n++; if (!($2 > 0)) exit 1 } END { exit n != 64 }' "$dir/comm"
expect 'one rank has nobody to talk to' 2 'a job of one rank.*hint: --ranks 2' "$lmtrain" bench comm "$dir/job.yaml"

# ---- ceilings ----

expect 'bench ceilings --json is JSON' 0 '' figures ceilings ceilings "$dir/job.yaml" --seconds 1
expect 'a product for a second, its best and last part, and memory' 0 '' awk '{ x[$1] = $2 }
    END { exit !(x["product_size"] == 512 && x["product_seconds"] >= 1 && x["product_flops_per_s"] > 0 && x["memory_bytes_per_s"] > 0 &&
          x["product_best_flops_per_s"] >= x["product_last_flops_per_s"] && x["product_last_flops_per_s"] > 0 &&
          x["product_best_flops_per_s"] >= x["product_flops_per_s"]) }' "$dir/ceilings"
expect 'for people' 0 '^product 512 x 512 x 512 fp32: [0-9.]+ GFLOP/s over ' "$lmtrain" bench ceilings "$dir/job.yaml" \
    --seconds 1 --set train.dtype=fp32
expect 'each rank for itself' 0 '^memory [0-9.]+ GB/s' "$lmtrain" bench ceilings "$dir/job.yaml" --seconds 1 --ranks 2
expect 'seconds are whole and at least one' 2 'seconds' "$lmtrain" bench ceilings "$dir/job.yaml" --seconds 0

# ---- cluster ----

# Of short steps at least 20 are measured; test/train/bench_steps_test.c has long ones.
expect 'bench cluster, whose ranks compute together for --steps' 0 'of 2 ranks, contention [0-9.]+ in 23 steps$' \
    "$lmtrain" bench cluster "$dir/job.yaml" --ranks 2 --steps 23 --to "$dir/cluster.yaml"

# ---- wrongly ----

expect 'no subcommand' 2 'give ops, step, comm, ceilings or cluster' "$lmtrain" bench
expect 'an unknown one' 2 'give ops, step, comm, ceilings or cluster' "$lmtrain" bench opps "$dir/job.yaml"
expect 'no job' 2 'JOB.yaml' "$lmtrain" bench ops
expect 'no step' 2 'steps' "$lmtrain" bench step "$dir/job.yaml" --steps 0
expect 'each is for ops' 2 'each' "$lmtrain" bench step "$dir/job.yaml" --each
expect 'a job that is none' 2 'nothing.yaml' "$lmtrain" bench ops "$dir/nothing.yaml"
expect 'a bad key' 2 'train.dtipe' "$lmtrain" bench ops "$dir/job.yaml" --set train.dtipe=fp32
expect 'a model too large for memory' 4 'the plan needs .* \(hint: ' "$lmtrain" bench ops "$dir/job.yaml" \
    --set model.hidden_size=65536 --set model.ffn_size=262144 --set model.n_heads=512 --set model.n_kv_heads=512
expect 'nothing was written' 0 '' test ! -e "$dir/run"
finish
