#!/bin/bash
# test/soak/kills.sh - a run that is killed again and again ends with the bits of one that never was
#
# Two ranks that restart by themselves. Each time after a random while a random rank gets SIGKILL, SIGSEGV or SIGSTOP
# (which the watch ends), sometimes the whole job SIGTERM, or its supervisor SIGKILL; then it is started again by hand. At
# least SOAK_KILLS (20) must have hit, and nothing may be left in /dev/shm or the process table. The seed is printed:
# SOAK_SEED. SOAK_ZERO lists the zero stages to do it with.
. test/cli/support/check.sh
. test/soak/support/ranks.sh
lmtrain=${LMTRAIN:-build/lmtrain}
n_kills=${SOAK_KILLS:-20}
seed=${SOAK_SEED:-$(date +%s)}
RANDOM=$seed
echo "# SOAK_SEED=$seed"

scripts/data/prepare-kjv >/dev/null || exit 1
cat >"$dir/job.yaml" <<END
model: {vocab_size: 4096, hidden_size: 64, n_layers: 2, n_heads: 4, n_kv_heads: 2, ffn_size: 128, max_seq_len: 64}
data: {train: build/data/kjv, tokenizer: data/kjv-tokenizer, seq_len: 64}
train: {steps: ${SOAK_STEPS:-4000}, global_batch: 16, micro_batch: 2, dtype: fp32, seed: 5, log_every: 1,
        compare_every: 10, hang_seconds: 10, hang_abort_seconds: 20}
optimizer: {lr: 1.0e-3, warmup_steps: 10}
ranks: 2
restarts: 1000
checkpoint: {every_steps: 20, keep: 2}
output: runs/none
END

# What is of /dev/shm's folders of jobs, by their names: lmtrain-UID-PROCESS-ITS_START-NAMESPACE.
folders() { (cd /dev/shm && find . -maxdepth 1 -name "lmtrain-$(id -u)-*" -printf '%f\n' | sort); }
# Those that were not there before, and whose process (a daemon, of any attempt) is gone: other jobs may run beside us.
folders_left() {
    local folder process namespace
    namespace=$(stat -L -c %i /proc/self/ns/pid)
    comm -13 "$dir/folders" <(folders) | while read -r folder; do
        process=${folder#"lmtrain-$(id -u)-"}
        if [ "${folder##*-}" = "$namespace" ] && ! kill -0 "${process%%-*}" 2>/dev/null; then echo "$folder"; fi
    done
}
folders >"$dir/folders"

pid=
trap '[ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null; rm -rf "$dir"' EXIT
# start OUTPUT ARGUMENTS... - in the background; $pid
start() {
    start_output=$1
    shift
    "$lmtrain" pretrain "$dir/job.yaml" --set "output=$start_output" "$@" >>"$start_output.log" 2>&1 &
    pid=$!
}
# The last logged step with everything of it that must be equal.
last() {
    grep '"loss_hex"' "$1/metrics.jsonl" | tail -n 1 |
        sed 's/.*"step":\([0-9]*\).*"loss_hex":"\([^"]*\)".*"grad_norm_hex":"\([^"]*\)".*/\1 \2 \3/'
}

# strike OUTPUT - one blow; status 1 if there was nobody to hit
strike() {
    local all one
    mapfile -t all < <(ranks "$1")
    case $((RANDOM % 10)) in
    0) kill -KILL "$pid" ;;
    1) kill -TERM "$pid" ;;
    *)
        [ ${#all[@]} -gt 0 ] || return 1
        one=${all[RANDOM % ${#all[@]}]}
        case $((RANDOM % 8)) in
        0) kill -STOP "$one" ;;
        1) kill -SEGV "$one" ;;
        *) kill -KILL "$one" ;;
        esac 2>/dev/null
        ;;
    esac
}

# soak ZERO
soak() {
    local broken=$dir/broken$1 whole=$dir/whole$1 hits=0 by_hand=0 by_itself status=none
    start "$whole" --set "parallel.zero=$1" --set train.hang_abort_seconds=300
    wait "$pid"
    expect "the run that is left alone, zero $1" 0 '' test $? = 0
    start "$broken" --set "parallel.zero=$1"
    for _ in $(seq 1000); do
        sleep "$((RANDOM % 3)).$((RANDOM % 10))"
        if ! kill -0 "$pid" 2>/dev/null; then
            wait "$pid"
            status=$?
            # Ended, or asked for more by a blow at the whole job: 137, 75, and 5 if a rank was hit while it saved
            # because of SIGTERM, or several died before any step was saved.
            case $status in 137 | 75 | 5) ;; *) break ;; esac
            by_hand=$((by_hand + 1))
            start "$broken" --set "parallel.zero=$1"
        elif [ $hits -lt "$n_kills" ] && strike "$broken"; then
            hits=$((hits + 1))
        fi
    done
    by_itself=$(grep -c 'restarting (' "$broken.log")
    echo "# zero $1: $hits kills, $by_itself restarts by itself, $by_hand by hand, at the end status $status"
    expect "it was killed often enough, zero $1" 0 '' test $hits -ge "$n_kills"
    expect "often it helped itself, zero $1" 0 '' test "$by_itself" -ge $((n_kills / 5))
    expect "it ended, zero $1" 0 '' test "$status" = 0
    echo "# whole $(last "$whole"), broken $(last "$broken")"
    expect "with the same bits, zero $1" 0 '' test -n "$(last "$whole")" -a "$(last "$whole")" = "$(last "$broken")"
    expect "no process is left, zero $1" 0 '' test -z "$(ranks "$broken")"
    [ "$n_wrong" = 0 ] || tail -n 60 "$broken.log"
}

for zero in ${SOAK_ZERO:-0 1}; do
    soak "$zero"
done
left=$(folders_left)
expect "nothing is left in /dev/shm $left" 0 '' test -z "$left"
pid=
finish
