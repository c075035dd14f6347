#!/bin/sh
# test/cli/doctor.sh - lmtrain doctor on this machine
. test/cli/support/check.sh
lmtrain=${LMTRAIN:-build/lmtrain}

expect 'the doctor ends with a verdict' 0 '^this machine can train' "$lmtrain" doctor
for part in machine system storage libraries launchers; do
    expect "it looks at: $part" 0 "^$part\$" "$lmtrain" doctor
done
expect 'it names the kernels' 0 'kernels +cpu' "$lmtrain" doctor
expect 'a file system is named' 0 'file system +/dev/shm is tmpfs \(0x1021994\), of this machine alone' \
    "$lmtrain" doctor --folder /dev/shm
for works in 'flock +works' 'write, sync, rename +work'; do
    expect "tried: $works" 0 "$works" "$lmtrain" doctor --folder "$dir"
done
expect 'a folder that is not there' 4 'no/such: No such file' "$lmtrain" doctor --folder /no/such
expect 'nothing is left of the tries' 0 '' test -z "$(find "$dir" -name 'lmtrain-doctor*')"
expect 'as JSON' 0 '"can_train":[[:space:]]true' "$lmtrain" doctor --json
promised doctor
expect 'no room for temporary files is a problem' 4 '^  problem +temporary files' env TMPDIR=/no/such/folder \
    "$lmtrain" doctor
expect 'which JSON says as well' 4 '"can_train":[[:space:]]false' env TMPDIR=/no/such/folder "$lmtrain" doctor --json
expect 'with a PATH of nothing' 0 'no srun in the PATH' env PATH=/nowhere "$lmtrain" doctor
printf '#!/bin/sh\nsleep 60\n' >"$dir/srun"
chmod +x "$dir/srun"
expect 'an srun that hangs does not hang the doctor' 0 'fails or hangs' env PATH="$dir:$PATH" timeout 40 \
    "$lmtrain" doctor
mkdir -p "$dir/cache/lmtrain"
echo '1503238553 NVIDIA H100' >"$dir/cache/lmtrain/gpu-account"
expect "what a GPU's libraries took in the last run" 0 'gpu vendor memory +1.4 GiB beside what was planned, .* on NVIDIA H100$' \
    env XDG_CACHE_HOME="$dir/cache" "$lmtrain" doctor
expect 'which was none' 0 '' env XDG_CACHE_HOME="$dir/none" "$lmtrain" doctor
refuse 'is not said' 'gpu vendor memory'
expect 'help' 0 '^usage: lmtrain doctor' "$lmtrain" doctor -h
expect 'an unknown option' 2 'json' "$lmtrain" doctor --jso
expect 'an argument too many' 2 '' "$lmtrain" doctor now
finish
