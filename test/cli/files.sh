#!/bin/sh
# test/cli/files.sh - who may read a run's folder, what is never written through, one job in a folder, room in /dev/shm
. test/cli/support/check.sh
. test/cli/support/tiny.sh

# modes NAME RUN FOLDERS FILES - all folders of the run have this mode, all files that one
modes() {
    # shellcheck disable=SC2016 # for the inner sh
    expect "$1" 0 '' sh -c '[ "$(find "$1" -type d | wc -l)" -ge 3 ] && [ -z "$(find "$1" -type d ! -perm "$2" -o -type f ! -perm "$3")" ] ||
        { find "$1" -printf "%m %p\n"; exit 1; }' sh "$dir/$2" "$3" "$4"
}

# ---- modes, whatever the umask ----

umask 000
expect 'a run for oneself' 0 '^done' pretrain private --set train.steps=4
modes 'is 0600 and 0700' private 700 600
umask 077
expect 'a run for the group, on two ranks' 0 '^done' pretrain group --ranks 2 --set output_mode=group --set train.steps=4
modes 'is 0640 and 0750' group 750 640
expect 'with logs' 0 'rank-1.log' ls "$dir/group/log"
mkdir -m 700 "$dir/all"
expect 'a run for all, in a folder that was private' 0 '^done' pretrain all --set output_mode=all --set train.steps=4
modes 'is 0644 and 0755' all 755 644
umask 022

# ---- links ----

# planted NAME PATH KIND [RANKS] - a link of that path in a run's folder is refused by name; nothing is written where it points
planted() {
    rm -rf "$dir/planted" "$dir/elsewhere"
    mkdir "$dir/planted" "$dir/elsewhere"
    if [ "$3" = file ]; then echo precious >"$dir/elsewhere/x"; else mkdir "$dir/elsewhere/x"; fi
    mkdir -p "$dir/planted/$(dirname "$2")"
    ln -s "$dir/elsewhere/x" "$dir/planted/$2"
    expect "$1" 1 "$2.* is a symbolic link, which is not followed for writing" pretrain planted --ranks "${4:-1}"
    if [ "$3" = file ]; then
        expect "$1: what it points to stays" 0 '^precious$' cat "$dir/elsewhere/x"
    else
        # shellcheck disable=SC2016 # for the inner sh
        expect "$1: where it points stays empty" 0 '^0$' sh -c 'ls -A "$1" | wc -l' sh "$dir/elsewhere/x"
    fi
}
planted 'metrics.jsonl is a link' metrics.jsonl file
planted 'the lock is a link' lock file
planted 'checkpoints is a link' checkpoints folder
planted 'the logs are a link' log folder 2
planted "a rank's log is a link" log/rank-1.log file 2
rm -rf "$dir/planted"
mkdir "$dir/planted"
echo precious >"$dir/elsewhere/x"
ln -s "$dir/elsewhere/x" "$dir/planted/job.yaml"
expect 'job.yaml is a link to what lmtrain did not write' 2 'job.yaml was not written by lmtrain' pretrain planted --set train.steps=2
expect 'what it points to stays' 0 '^precious$' cat "$dir/elsewhere/x"
rm -rf "$dir/planted" "$dir/elsewhere/x"
mkdir "$dir/planted"
ln -s "$dir/elsewhere/x" "$dir/planted/job.yaml"
expect 'a link to nothing is replaced' 0 '^done' pretrain planted --set train.steps=2
expect 'and nothing comes of it' 0 '' test ! -e "$dir/elsewhere/x"
mkdir "$dir/own"
cp "$dir/job.yaml" "$dir/own/job.yaml"
for command in pretrain 'pretrain --dry-run' 'pretrain --ranks 2'; do
    # shellcheck disable=SC2016,SC2086 # for the inner sh; words
    expect "output: . beside one's own job.yaml, $command" 2 'output is \., whose job.yaml was not written by lmtrain.*hint: ' \
        sh -c 'lmtrain=$(realpath "$1") && cd "$2" && shift 2 && exec "$lmtrain" "$@" job.yaml --set output=.' sh "$lmtrain" "$dir/own" $command
done
# shellcheck disable=SC2016 # for the inner sh
expect 'leaves all as it was' 0 '' sh -c 'cmp "$1/job.yaml" "$1/own/job.yaml" && test "$(ls "$1/own")" = job.yaml' sh "$dir"
rm -rf "$dir/planted" "$dir/elsewhere/x"
mkdir -p "$dir/planted/checkpoints" "$dir/elsewhere/x"
ln -s "$dir/elsewhere/x" "$dir/planted/checkpoints/step-00000004.partial"
expect 'a checkpoint under way is a link, which is cleared away' 0 '^done' pretrain planted --set train.steps=4
# shellcheck disable=SC2016 # for the inner sh
expect 'where it points stays empty' 0 '^0$' sh -c 'ls -A "$1" | wc -l' sh "$dir/elsewhere/x"
mkdir "$dir/big-disk"
ln -s "$dir/big-disk" "$dir/linked"
expect 'the output itself may be a link' 0 '^done' pretrain linked --set train.steps=2
mkdir -p "$dir/pipe"
mkfifo "$dir/pipe/metrics.jsonl"
expect 'metrics.jsonl is a pipe' 1 'metrics.jsonl exists and is not a file' timeout 60 "$lmtrain" pretrain "$dir/job.yaml" \
    --set "output=$dir/pipe"

# ---- one job in a folder ----

start held --set train.steps=1000000 --set checkpoint.every_steps=0 --set eval.every_steps=0
holder=$pid
wait_until 60 test -s "$dir/held/metrics.jsonl"
expect 'a second job' 2 "held is in use by another job: process $holder on .* since 20" pretrain held
expect 'a second job of two ranks' 2 'held is in use by another job' pretrain held --ranks 2
expect 'the first goes on' 0 '' kill -0 "$holder"
kill -KILL "$holder"
wait "$holder" 2>/dev/null
expect 'a kill lets go of the folder' 0 '^done' pretrain held --set train.steps=2

start shared --ranks 2 --set train.steps=1000000 --set checkpoint.every_steps=0 --set eval.every_steps=0
holder=$pid
wait_until 60 test -s "$dir/shared/metrics.jsonl"
kill -KILL "$holder"
wait "$holder" 2>/dev/null
# Its ranks save what they have and end, by themselves: so the next job may find the run further than it wants to go.
# shellcheck disable=SC2317 # called by wait_until
free() {
    pretrain shared --set train.steps=2 >"$dir/free.out" 2>&1 || grep -q 'the run is finished' "$dir/free.out"
}
wait_until 30 free
expect 'so does that of a supervisor of ranks' 2 'the run is finished, step [0-9]' pretrain shared --set train.steps=2

# ---- memory that ranks share ----

# shellcheck disable=SC2016 # for the inner sh
small() { unshare -m sh -c 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"' sh "$@"; }
if small true 2>/dev/null; then
    expect 'ranks that shared memory does not hold' 4 \
        '/dev/shm has 64.0 MiB, 32 ranks take 137 MiB there \(hint: in a container: --shm-size=1g' \
        small "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/small" --ranks 32 --set train.global_batch=64
    refuse 'start nothing' 'step 1/'
    expect 'two ranks fit' 0 '^done' small "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/small" --ranks 2 \
        --set train.steps=2
else
    echo 'skip a /dev/shm that is too small: no mount namespaces here'
fi
finish
