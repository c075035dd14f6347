# shellcheck shell=sh disable=SC2154,SC2034
# slurm.sh - a real Slurm of two nodes on this machine, for one script; sourced after check.sh
#
# slurm_start brings it up in about a second: munged with a key and socket of its own, slurmctld, and slurmd
# for the nodes n1 and n2 of four CPUs each, on the loopback interface at free ports,
# everything in $dir/slurm. A node is a namespace with its own host name and processes, so that nothing that
# ran on it outlives slurm_stop, or this shell. SLURM_CONF points at it.
#
# Returns 1 and sets $slurm_missing where it cannot be: no Slurm, no munge, not root, no namespaces.

slurm_pids=
slurm_missing=
slurm_dir=$dir/slurm

# Not what came from a Slurm or launcher around us.
for slurm_name in $(env | sed -n 's/^\(S[A-Z]*_[A-Za-z0-9_]*\|PMIX_[A-Za-z0-9_]*\)=.*/\1/p'); do
    case $slurm_name in SLURM_* | SBATCH_* | SALLOC_* | SRUN_* | PMIX_*) unset "$slurm_name" ;; esac
done

slurm_check() {
    [ "$(id -u)" = 0 ] || { slurm_missing='not root' && return 1; }
    for slurm_name in munged slurmctld slurmd srun sbatch salloc scontrol setpriv unshare; do
        command -v "$slurm_name" >/dev/null || { slurm_missing="no $slurm_name" && return 1; }
    done
    unshare --uts --pid --mount --fork --mount-proc --kill-child true 2>/dev/null ||
        { slurm_missing='no namespaces' && return 1; }
}

# Three ports that nobody listens at, below those that the kernel gives away.
slurm_ports() {
    cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | awk -v seed="$$" '
        { n = split($2, parts, ":"); used[parts[n]] = 1 }
        END {
            srand(seed + systime())
            for (found = 0; found < 3;) {
                port = 10000 + int(rand() * 20000)
                if (!(sprintf("%04X", port) in used)) { used[sprintf("%04X", port)] = 1; print port; found++ }
            }
        }'
}

slurm_configure() {
    cat >"$slurm_dir/slurm.conf" <<END
ClusterName=lmtrain
SlurmctldHost=$(uname -n)(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$slurm_dir/munge.socket,cred_expire=5
StateSaveLocation=$slurm_dir/state
SlurmdSpoolDir=$slurm_dir/%n
TmpFS=$slurm_dir/%n
SlurmctldPort=$1
SlurmctldPidFile=$slurm_dir/slurmctld.pid
SlurmdPidFile=$slurm_dir/%n.pid
SlurmctldLogFile=$slurm_dir/slurmctld.log
SlurmdLogFile=$slurm_dir/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
InactiveLimit=0
KillWait=30
MinJobAge=300
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,permit_job_expansion
NodeName=n1 NodeAddr=127.0.0.1 Port=$2 CPUs=4 RealMemory=1000
NodeName=n2 NodeAddr=127.0.0.1 Port=$3 CPUs=4 RealMemory=1000
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
}

# slurm_daemon COMMAND... - in the background until slurm_stop, or until this shell is killed
slurm_daemon() {
    setpriv --pdeathsig KILL -- "$@" >>"$slurm_dir/daemons.log" 2>&1 </dev/null &
    slurm_pids="$! $slurm_pids"
}

# slurm_node NAME - its daemon, in namespaces that end with it; the process is $slurm_node_pid
slurm_node() {
    # shellcheck disable=SC2016 # the inner shell's
    slurm_daemon unshare --uts --pid --mount --fork --mount-proc --kill-child sh -c \
        'echo "$1" >/proc/sys/kernel/hostname && exec slurmd -D -f "$2" -N "$1"' sh "$1" "$SLURM_CONF"
    slurm_node_pid=$!
}

slurm_is_up() {
    [ "$(sinfo -h -o %T 2>/dev/null)" = idle ] && [ "$(sinfo -h -o %D)" = 2 ]
}

slurm_start() {
    slurm_check || return 1
    mkdir "$slurm_dir" "$slurm_dir/state" "$slurm_dir/n1" "$slurm_dir/n2"
    head -c 128 /dev/urandom >"$slurm_dir/munge.key"
    chmod 400 "$slurm_dir/munge.key"
    export SLURM_CONF="$slurm_dir/slurm.conf"
    # shellcheck disable=SC2046 # three words
    slurm_configure $(slurm_ports)
    # --force: that only we can enter the socket's folder is just right.
    slurm_daemon munged --force --foreground --key-file="$slurm_dir/munge.key" --socket="$slurm_dir/munge.socket" \
        --pid-file="$slurm_dir/munge.pid" --log-file="$slurm_dir/munge.log" --seed-file="$slurm_dir/munge.seed"
    wait_until 20 test -S "$slurm_dir/munge.socket" || { slurm_missing='munged does not start' && return 1; }
    slurm_daemon slurmctld -D -f "$SLURM_CONF"
    slurm_node n1
    slurm_node n2
    slurm_n2_pid=$slurm_node_pid
    wait_until 60 slurm_is_up && return
    tail -n 20 "$slurm_dir"/*.log | sed 's/^/    /'
    echo 'not ok a Slurm of two nodes: it does not come up'
    n_wrong=$((n_wrong + 1))
    finish
}

# In the order: nodes with all that runs on them, the controller, munge.
slurm_stop() {
    for slurm_pid in $slurm_pids; do
        kill -KILL "$slurm_pid" 2>/dev/null
        wait "$slurm_pid" 2>/dev/null
    done
    slurm_pids=
}
trap 'slurm_stop; rm -rf "$dir"' EXIT
