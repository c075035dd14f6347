# shellcheck shell=sh disable=SC2154
# two_nodes.sh - what `bench cluster` writes of two nodes of two ranks each; sourced after check.sh and tiny.sh

sed -i '/^ranks: 1$/d' "$dir/job.yaml"

# of_two_nodes NAME - of $dir/NAME.yaml: nodes and their NIC, groups in and across them, and a plan that is priced with them
of_two_nodes() {
    expect "$1: two nodes" 0 '^  - nodes: 2$' cat "$dir/$1.yaml"
    expect "$1: of two ranks" 0 '^    per_node: 2$' cat "$dir/$1.yaml"
    expect "$1: and a NIC" 0 '^    nic: [0-9]+\.[0-9]+ GB/s$' cat "$dir/$1.yaml"
    expect "$1: its latency" 0 '^  rail: \{latency: [0-9]+ ns, efficiency: [01]\.[0-9]+\}$' cat "$dir/$1.yaml"
    for group in 'of 2' 'of 2 on 2 nodes' 'of 4 on 2 nodes'; do
        expect "$1: gathers $group" 0 "\"all_gather $group\": \\[\\[4096, [0-9]+\\]" cat "$dir/$1.yaml.tables.json"
    done
    expect "$1: messages across" 0 '"across nodes": \[\[4096, [0-9]+\]' cat "$dir/$1.yaml.tables.json"
    expect "$1: a plan is priced with them" 0 '^predicted on 4 cpu: .* interpolated in them, 0 % by formulas\)$' \
        "$lmtrain" plan "$dir/job.yaml" --ranks 4 --cluster "$dir/$1.yaml"
}
