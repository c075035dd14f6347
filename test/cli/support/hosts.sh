# shellcheck shell=sh disable=SC2154
# hosts.sh - hosts that are namespaces of this machine, joined by a switch; sourced after check.sh
#
# A host has a network, a name, processes, /dev/shm, /tmp and /run of its own, an sshd with throwaway keys,
# and shares the rest of the file system, $dir, and this folder wherever it is. Nothing of it has a name outside: when the two processes
# that hold a host end, all of it is gone, and they end with this script, however that ends.
#
#   hosts_missing        why there can be none here, or nothing
#   hosts_start a b c    start them; $LMTRAIN_SSH is set; $lmtrain becomes a copy of the binary
#   on HOST COMMAND...   run it there, in this folder
#   cable HOST down|up   pull its cable out of the switch
#   hosts_processes      the processes of $lmtrain, on any host, by their numbers out here
#   hosts_left           what is left of a job on any host: its processes, /dev/shm, /tmp

hosts=
hosts_net=10.99.1

# shellcheck disable=SC2317 # whoever sources this calls it
hosts_missing() {
    if [ "$(id -u)" != 0 ]; then
        echo 'not root'
        return
    fi
    for hosts_tool in ip unshare nsenter setpriv ssh ssh-keygen; do
        if ! command -v "$hosts_tool" >/dev/null; then
            echo "no $hosts_tool here"
            return
        fi
    done
    if [ ! -x /usr/sbin/sshd ]; then
        echo 'no sshd here'
    elif ! unshare -n -u -m -p --fork sh -c 'ip link add s0 type bridge && ip link add v0 type veth peer name v1 &&
            mount -t tmpfs tmpfs /tmp' 2>/dev/null; then
        echo 'no namespaces, bridges or mounts allowed here'
    fi
}

# The child of a process, once there is one.
hosts_child() {
    hosts_tries=500 hosts_found=
    while [ -z "$hosts_found" ] && [ "$hosts_tries" -gt 0 ]; do
        hosts_tries=$((hosts_tries - 1))
        hosts_found=$(grep -ls "^PPid:[[:space:]]*$1\$" /proc/[0-9]*/status | cut -d/ -f3 | head -n 1)
        [ -n "$hosts_found" ] || sleep 0.02
    done
    echo "$hosts_found"
}

# The first process of a host: what it mounts, and sshd. `wait` also reaps what is left without a parent.
# shellcheck disable=SC2016
hosts_first='
hostname "$1"
mount -t tmpfs tmpfs /run && mkdir /run/sshd /run/dir /run/here && mount --bind "$2" /run/dir &&
mount --bind "$PWD" /run/here && mount -t tmpfs tmpfs /tmp && mkdir -p "$2" "$PWD" &&
mount --bind /run/dir "$2" && { [ -e "$PWD/Makefile" ] || mount --bind /run/here "$PWD"; } &&
mount -t tmpfs -o size=512m tmpfs /dev/shm || exit 1
ip link set lo up
until ip link set eth0 up 2>/dev/null; do sleep 0.02; done
ip address add "$3/24" dev eth0
/usr/sbin/sshd -D -f "$2/sshd_config" -o "ListenAddress=$3" -E "$2/sshd-$1.log" &
while :; do wait; sleep 0.1; done'

hosts_start_one() {
    hosts_ip=$hosts_net.$2
    setpriv --pdeathsig KILL unshare -n -u -m -p --fork --mount-proc --kill-child=KILL sh -c "$hosts_first" sh "$1" "$dir" \
        "$hosts_ip" >"$dir/host-$1.log" 2>&1 &
    eval "hosts_holder_$1=$! hosts_number_$1=$2"
    eval "hosts_pid_$1=$(hosts_child $!)"
    eval "hosts_pid=\$hosts_pid_$1"
    nsenter -t "$hosts_switch" -n ip link add "to-$1" type veth peer name eth0 netns "$hosts_pid" &&
        nsenter -t "$hosts_switch" -n ip link set "to-$1" master s0 up || return 1
    printf 'Host %s\n    HostName %s\n    HostKeyAlias lmtrain\n' "$1" "$hosts_ip" >>"$dir/ssh_config"
}

hosts_start() {
    hosts=$*
    ssh-keygen -q -t ed25519 -N '' -f "$dir/key" && ssh-keygen -q -t ed25519 -N '' -f "$dir/host_key" || return 1
    printf 'lmtrain %s\n' "$(cut -d' ' -f1,2 "$dir/host_key.pub")" >"$dir/known_hosts"
    cat >"$dir/sshd_config" <<END
Port 22
HostKey $dir/host_key
AuthorizedKeysFile $dir/key.pub
PidFile none
UsePAM no
UseDNS no
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
END
    cat >"$dir/ssh_config" <<END
IdentityFile $dir/key
IdentitiesOnly yes
UserKnownHostsFile $dir/known_hosts
GlobalKnownHostsFile /dev/null
User root
END
    cp "$lmtrain" "$dir/lmtrain" || return 1
    lmtrain=$dir/lmtrain
    LMTRAIN_SSH="ssh -F $dir/ssh_config"
    export LMTRAIN_SSH
    trap 'hosts_stop; rm -rf "$dir"' EXIT
    # shellcheck disable=SC2016
    setpriv --pdeathsig KILL unshare -n sh -c 'ip link add s0 type bridge && ip link set s0 up && touch "$1"; exec sleep 3600' \
        sh "$dir/switch" &
    hosts_switch=$!
    wait_until 10 test -f "$dir/switch" || return 1
    hosts_number=0
    for hosts_name in $hosts; do
        hosts_number=$((hosts_number + 1))
        hosts_start_one "$hosts_name" $hosts_number || return 1
    done
    for hosts_name in $hosts; do
        # shellcheck disable=SC2086 # words
        wait_until 30 on "${hosts%% *}" $LMTRAIN_SSH -o BatchMode=yes "$hosts_name" true || return 1
    done
}

# End a host at once, with all its processes, as a power cut would; its cable stays.
host_kill() {
    eval "kill -KILL \$hosts_holder_$1 2>/dev/null; wait \$hosts_holder_$1 2>/dev/null"
}

hosts_stop() {
    for hosts_name in $hosts; do
        host_kill "$hosts_name"
    done
    kill "$hosts_switch" 2>/dev/null
    hosts=
}

on() {
    eval "on_pid=\$hosts_pid_$1"
    shift
    # shellcheck disable=SC2016
    nsenter -t "$on_pid" -n -u -m -p sh -c 'cd "$0" && exec "$@"' "$PWD" "$@"
}

cable() {
    nsenter -t "$hosts_switch" -n ip link set "to-$1" "$2"
}

hosts_processes() {
    for hosts_process in /proc/[0-9]*; do
        [ "$(readlink "$hosts_process/exe" 2>/dev/null)" != "$lmtrain" ] || echo "${hosts_process#/proc/}"
    done
}

# hosts_left [HOST...] - all of them, or these
hosts_left() {
    hosts_processes
    # shellcheck disable=SC2086 # words
    [ $# -gt 0 ] || set -- $hosts
    for hosts_name in "$@"; do
        # What is in $dir and here, and the folders that these are in, are not the job's.
        on "$hosts_name" find /dev/shm /tmp -mindepth 1 -not -path "$dir/*" -not -path "$PWD/*" |
            awk -v host="$hosts_name" -v dir="$dir/" -v here="$PWD/" \
                'index(dir, $0 "/") != 1 && index(here, $0 "/") != 1 { print host ":" $0 }'
    done
}
