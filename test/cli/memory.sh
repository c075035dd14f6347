#!/bin/sh
# test/cli/memory.sh - what lmtrain plan says is what a training process holds: within 3 % and 80 MB
. test/cli/support/check.sh
. test/cli/support/tiny.sh

n_accounts=0

# held PID - its anonymous and shared memory, in bytes
held() {
    awk '/^RssAnon:|^RssShmem:/ { n += $2 } END { printf "%.0f\n", n * 1024 }' "/proc/$1/status"
}

# shellcheck disable=SC2317 # called by name
has_logged() { [ "$(n_logged "$1")" -ge "$2" ]; }
# shellcheck disable=SC2317
is_near() {
    awk -v plan="$1" -v held="$2" \
        'BEGIN { d = held - plan; if (d < 0) d = -d; exit !(plan > 1e8 && d <= 0.03 * plan + 80e6) }'
}

# agrees NAME PROCESS - what that process holds now is near $planned
agrees() {
    now=$(held "$2")
    n_accounts=$((n_accounts + 1))
    expect "$1: $((now / 1000000)) MB held, $((planned / 1000000)) MB planned" 0 '' is_near "$planned" "$now"
}

# memory_of RUN RANKS ARGUMENTS... - after two steps each rank holds what plan says
memory_of() {
    run=$1 ranks=$2
    shift 2
    set -- --set 'model={from: llama-22m, vocab_size: 4096}' --set data.seq_len=64 --set train.global_batch=4 --set train.steps=100000 \
        --set eval.every_steps=0 --set checkpoint.every_steps=0 --set "ranks=$ranks" "$@"
    planned=$("$lmtrain" plan "$dir/job.yaml" --json "$@" | sed -n 's/.*"total_bytes":[^0-9]*\([0-9]*\).*/\1/p')
    start "$run" "$@"
    if ! wait_until 100 has_logged "$run" 2; then
        # shellcheck disable=SC2016
        expect "$run: two steps" 0 '' sh -c 'tail "$1"; exit 1' sh "$dir/$run.out"
        return
    fi
    if [ "$ranks" = 1 ]; then
        process=$pid
        agrees "$run" "$pid"
    else
        # shellcheck disable=SC2013 # numbers
        for process in $(children_of "$(children_of "$pid")"); do # the daemon's
            agrees "$run" "$process"
        done
    fi
    # A killed rank, not a killed supervisor, which could tidy up nothing.
    kill -KILL "$process"
    wait "$pid" 2>/dev/null
}

memory_of one-rank 1
memory_of recompute 1 --set recompute=full --set train.micro_batch=4
memory_of fp32 1 --set train.dtype=fp32
memory_of two-ranks 2
whole=$planned
memory_of zero-1 2 --set parallel.zero=1
expect "a share of the states less: $planned of $whole" 0 '' test "$planned" -lt "$whole"
memory_of zero-1-fp32 2 --set parallel.zero=1 --set train.dtype=fp32
memory_of zero-3 2 --set parallel.zero=3
memory_of tensor 2 --set parallel.tp=2
expect 'one account a process' 0 '' test "$n_accounts" = 13
finish
