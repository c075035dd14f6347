# shellcheck shell=bash
# ranks.sh - the processes of a run; scripts in test/soak source it

# ranks OUTPUT - the processes of its ranks
ranks() {
    local process
    # shellcheck disable=SC2013 # numbers
    for process in $(grep -lsaF "output=$1" /proc/[0-9]*/cmdline | cut -d/ -f3); do
        grep -qsaE '(^|.)PMIX_RANK=' "/proc/$process/environ" && echo "$process"
    done
}
