#!/bin/sh
# test/cli/bench-hosts.sh - bench cluster and comm on several hosts through ssh
# shellcheck disable=SC2317 # functions that expect calls
. test/cli/support/check.sh
. test/cli/support/hosts.sh
reason=$(hosts_missing)
if [ -n "$reason" ]; then
    echo "skip several hosts: $reason"
    exit 0
fi
. test/cli/support/tiny.sh
. test/cli/support/two_nodes.sh
if ! hosts_start a b; then
    echo 'not ok two hosts start:'
    cat "$dir"/*.log
    exit 1
fi

# bench SUBCOMMAND ARGUMENTS... - of the job, its head on host a
bench() {
    bench_command=$1
    shift
    on a "$lmtrain" bench "$bench_command" "$dir/job.yaml" "$@"
}

expect 'two hosts are measured' 0 'ssh.yaml: [0-9]+ ops and 12 collectives of 4 ranks, ' \
    bench cluster --hosts a:2,b:2 --ranks 4 --steps 2 --to "$dir/ssh.yaml"
of_two_nodes ssh
expect 'hosts with different numbers of ranks are not' 2 'nodes have [0-9] to [0-9] of the [0-9] ranks: .*\(hint: ' \
    bench cluster --hosts a:2,b:1 --ranks 3 --set train.global_batch=12 --steps 1 --to "$dir/uneven.yaml"
expect 'and no file is written' 0 '' test ! -e "$dir/uneven.yaml"
expect 'their collectives are' 0 '^all_gather +3 +1 ' \
    bench comm --hosts a:2,b:1 --ranks 3 --set train.global_batch=12 --rounds 1 --max-mb 1
expect 'which say how many nodes they span' 0 '^all_gather +4 +2 ' bench comm --hosts a:2,b:2 --ranks 4 --rounds 1 --max-mb 1
finish
