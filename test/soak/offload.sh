#!/bin/bash
# test/soak/offload.sh - a run under a byte budget that is killed again and again ends with the bits of one that has it all
#
# One rank, whose copies between device, host and file are slow, so that nearly always some are under way. After a random
# while it gets SIGKILL and is started again, each time with other keys memory.*: SOAK_KILLS (20) times. The seed is
# printed: SOAK_SEED.
. test/cli/support/check.sh
. test/cli/support/tiny.sh
n_kills=${SOAK_KILLS:-20}
seed=${SOAK_SEED:-$(date +%s)}
RANDOM=$seed
echo "# SOAK_SEED=$seed"
mkdir "$dir/disk"

# Budgets, tiers and places of the update, by number.
ways=(
    'memory.offload=auto memory.device_bytes=4MiB recompute=auto'
    'memory.offload=[optimizer] memory.update=host'
    'memory.offload=[activations,optimizer,gradients,weights] memory.update=device'
    'memory.offload=auto memory.device_bytes=4300KiB debug.poison=true'
    "memory.offload=auto memory.device_bytes=4MiB memory.host_bytes=1MiB memory.file=$dir/disk memory.file_link=100MB/s"
    'memory.offload=[gradients,weights]'
    'memory.offload=none'
)
settings=(--set train.steps=1500 --set checkpoint.every_steps=10 --set checkpoint.keep=2)

# begin WAY - in the background; $pid
begin() {
    local sets=() key
    for key in ${ways[$1]}; do sets+=(--set "$key"); done
    [ "$1" = 6 ] || sets+=(--set memory.link=50MB/s)
    start broken "${settings[@]}" "${sets[@]}"
}

expect 'the run that is left alone' 0 '' pretrain whole "${settings[@]}"
hits=0
for try in $(seq 200); do
    begin $((try % ${#ways[@]}))
    if [ $hits -lt "$n_kills" ]; then
        sleep "$((RANDOM % 2)).$((1 + RANDOM % 9))"
        if kill -0 "$pid" 2>/dev/null; then
            # shellcheck disable=SC2046 # numbers
            kill -KILL $(children_of "$(children_of "$pid")") "$pid" 2>/dev/null && hits=$((hits + 1))
        fi
    fi
    wait "$pid"
    status=$?
    case $status in 137 | 75 | 5) ;; *) break ;; esac
done
echo "# $hits kills, $(bits broken | wc -l) lines of $(bits whole | wc -l) steps, at the end status $status"
expect 'it was killed often enough' 0 '' test $hits -ge "$n_kills"
expect 'it ended' 0 '' test "$status" = 0
bits broken | sort -n | uniq >"$dir/bits.broken"
bits whole >"$dir/bits.whole"
expect 'with the same bits' 0 '' cmp "$dir/bits.broken" "$dir/bits.whole"
finish
