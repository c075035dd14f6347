# shellcheck shell=sh disable=SC2154,SC2013
# left.sh - what is left of a job that others than we started: processes, files in /dev/shm; sourced after tiny.sh
#
#   processes RUN    of ranks and watchers, by their numbers here
#   is_gone RUN      none is left
#   note_shared RUN  list in $dir/shm what they have open or mapped in /dev/shm now
#   shared_left      what of that list still is there

processes() {
    printf 'output=%s/%s' "$dir" "$1" >"$dir/pattern"
    for process in $(grep -lsaFf "$dir/pattern" /proc/[0-9]*/cmdline | cut -d/ -f3); do
        # Not mpirun, srun or salloc, who have the ranks' arguments.
        case $(readlink "/proc/$process/exe") in */lmtrain) echo "$process" ;; esac
    done
}

is_gone() { [ -z "$(processes "$1")" ]; }

note_shared() {
    for process in $(processes "$1"); do
        grep -o '/dev/shm/.*' "/proc/$process/maps" 2>/dev/null | sed 's/ (deleted)$//'
        readlink "/proc/$process/fd/"* 2>/dev/null | grep '^/dev/shm/'
    done | sort -u >"$dir/shm"
}

shared_left() {
    while read -r file; do [ ! -e "$file" ] || echo "$file"; done <"$dir/shm"
}
