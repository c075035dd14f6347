#!/bin/sh
# test/cli/gpu.sh - what is said of GPUs: the doctor, a run's figures, a GPU that is lost. GPUs are emulated, and what the
# driver says of them is a script's (test/device/nvml_stub.c)
. test/cli/support/check.sh
. test/cli/support/tiny.sh
emulated=build/lmtrain-emulated
export LMTRAIN_NVML="$PWD/build/test/device/libnvidia-ml.so.1" NVML_STUB="$dir/script"

# play LINE... - from now on the GPUs are so
play() {
    printf '%s\n' "$@" >"$dir/script.new"
    mv "$dir/script.new" "$dir/script"
}

healthy='0.sm 1980
0.sm_max 1980
0.watts 412
0.limit 700
0.celsius 61
0.throttle 0
0.used_mib 4096
0.ecc 0
0.links 18'

# ---- the doctor, with no launchers in the PATH: asking them takes seconds ----

# It ends with a problem where the driver has GPUs that CUDA cannot open: so it is the emulated program's, which can.
export LMTRAIN_EMULATE_DEVICES=1
play "$healthy" 'driver 580.65.06' 'cuda 13000'
expect 'a GPU is one line' 0 \
    'ok +gpu +0: NVIDIA H200, 0000:17:00.0, 4.0 GiB of 140 GiB used, 1980 of 1980 MHz, 412 of 700 W, 61 degrees' env PATH=/nowhere "$emulated" doctor
refuse 'and a healthy one no more' 'gpu clocks|gpu memory|nvlink'
expect 'the driver has a number' 0 'ok +gpu driver +580.65.06, CUDA 13.0, 1 device' env PATH=/nowhere "$emulated" doctor
play "$healthy" 'driver 570.86.15' 'cuda -1'
expect 'a driver that does not say its CUDA' 0 'note +gpu driver +570.86.15, CUDA version of the driver unknown, 1 device' env PATH=/nowhere "$emulated" doctor

play "$healthy" 'gpus 2' '1.sm 210' '1.sm_max 1980' '1.throttle 0x40'
expect 'a hot GPU' 0 'warning +gpu clocks +1: throttled by thermal slowdown by hardware' env PATH=/nowhere "$emulated" doctor
refuse 'and only that one' 'gpu clocks +0:'
expect 'with what to do' 0 'thermal limit: check fans' env PATH=/nowhere "$emulated" doctor
play "$healthy" '0.throttle 1'
expect 'one that idles is well' 0 'gpu +0: NVIDIA' env PATH=/nowhere "$emulated" doctor
refuse 'no warning of clocks' 'gpu clocks'
play "$healthy" '0.ecc 2' '0.remap_pending 1'
sed -i '/^0.ecc 0/d' "$dir/script"
expect 'ECC errors' 0 'warning +gpu memory +0: 2 uncorrectable ECC errors' env PATH=/nowhere "$emulated" doctor
expect 'a row that waits for its remapping' 0 'warning +gpu memory +0: a bad row of memory is remapped at the next reset' env PATH=/nowhere "$emulated" doctor
play "$healthy" '0.remap_failed 1'
expect 'a row that cannot be remapped is a problem' 4 'problem +gpu memory +0: a bad row' env PATH=/nowhere "$emulated" doctor
play "$healthy" '0.links_down 2'
expect 'links that are down' 0 'warning +nvlink +0: 2 of 18 links are down' env PATH=/nowhere "$emulated" doctor
play "$healthy" '0.links_down 18'
expect 'a card without a bridge has none up' 0 'note +nvlink +0: none of its 18 links is up' env PATH=/nowhere "$emulated" doctor
play "$healthy" '0.link_errors 77'
expect 'errors of links' 0 'warning +nvlink +0: 77 errors' env PATH=/nowhere "$emulated" doctor
play "$healthy" '0.lost 1'
expect 'a lost GPU is a problem' 4 'problem +gpu +0: 0000:17:00.0: the driver cannot reach it' env PATH=/nowhere "$emulated" doctor
play "$healthy" 'gpus 2' '1.forbidden 1'
expect 'a GPU of another job is none of ours' 0 'note +gpu +1: not visible to this process' env PATH=/nowhere "$emulated" doctor

play "$healthy" 'driver 570.86.15' 'cuda 12080'
expect 'a driver that is too old is a problem' 4 \
    'problem +gpu driver +570.86.15 is for CUDA 12.8 and this lmtrain is built with CUDA 13.0' env PATH=/nowhere "$emulated" doctor
expect 'with the driver to install' 4 'install driver 580 or newer' env PATH=/nowhere "$emulated" doctor
play "$healthy"
expect 'libraries have versions' 0 'ok +cuDNN +[0-9]+\.[0-9]+\.[0-9]+ \(libcudnn.so.9\)' env PATH=/nowhere "$emulated" doctor
expect 'a missing one is named' 0 'warning +NCCL +libnccl.so.2 is not found' env PATH=/nowhere LMTRAIN_EMULATE_WITHOUT=nccl "$emulated" doctor

expect 'and one that is too old' 0 'warning +NCCL +libnccl.so.2 is 2.16.5, 2.18.0 or newer is needed' \
    env PATH=/nowhere LMTRAIN_EMULATE_NCCL=21605 "$emulated" doctor

# The program as it is built, where there may be no driver, as on a login node.
play 'init 9'
expect 'no driver, no GPU, whatever was built' 0 'gpu +none: training runs on the CPU' env PATH=/nowhere "$lmtrain" doctor
play "$healthy"
if ! grep -q cudaSetDevice "$lmtrain"; then
    expect 'a build without CUDA says so' 0 'warning +cuda +this lmtrain was built without CUDA' env PATH=/nowhere "$lmtrain" doctor
elif [ ! -e /dev/nvidia0 ]; then
    expect 'a GPU that CUDA cannot open is a problem' 4 'problem +cuda +.*(driver|device|libcuda)' env PATH=/nowhere "$lmtrain" doctor
fi

# ---- a run ----

export LMTRAIN_EMULATE_DEVICES=2 LMTRAIN_EMULATE_PCI=0000:17:00.0,0000:18:00.0
lmtrain=$emulated

# shellcheck disable=SC2317 # wait_until calls it
has_seen_gpu() { grep -q '"gpu_sm_mhz":1980' "$dir/$1/metrics.jsonl"; }

long='--set train.steps=100000 --set eval.every_steps=0 --set checkpoint.every_steps=0'

play "$healthy" 'gpus 2'
# shellcheck disable=SC2086 # words
start two $long --ranks 2
expect 'the figures of a GPU are logged' 0 '' wait_until 120 has_seen_gpu two
play "$healthy" 'gpus 2' 'xid 0 79'
# An emulated GPU computes on: the rank is stopped, as if it hung in the driver.
for rank in $(children_of "$(children_of "$pid")"); do
    if grep -q 'lmtrain\[0\]' "/proc/$rank/cmdline"; then
        kill -STOP "$rank"
    fi
done
ended 'a rank without its GPU is ended' 4 two
expect 'the death is that of the GPU' 0 \
    'error: rank 0 on .* lost its GPU and does not exit .*; GPU 0 \(0000:17:00.0, GPU-.*\): Xid 79, the GPU has fallen off the bus' \
    cat "$dir/two.out"
expect 'with what to do' 0 'hint: drain the node' cat "$dir/two.out"
expect 'logged steps have the GPU' 0 \
    '"gpu_memory_bytes":4294967296,"gpu_sm_mhz":1980,"gpu_power_w":412,"gpu_temperature_c":61,"gpu_throttle":""' \
    cat "$dir/two/metrics.jsonl"

# ---- the algorithms of products: measured once, for all ranks ----

play "$healthy"
expect 'products are measured, and the fastest taken' 0 'done: step 4' env LMTRAIN_CUBLASLT_CHOICE=measured LMTRAIN_EMULATE_SLOW=1 \
    "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/chosen" --set train.steps=4 --set eval.every_steps=0 \
    --ranks 2 --set parallel.pp=2
# shellcheck disable=SC2016 # sh's own
expect 'of both stages' 0 '' sh -c 'test "$(grep -c "^product " "$1/kernels.txt")" -ge 8' sh "$dir/chosen"
mv "$dir/chosen/kernels.txt" "$dir/kernels.before"
expect 'a run goes on with those of its checkpoint' 0 'done: step 8' env LMTRAIN_CUBLASLT_CHOICE=measured LMTRAIN_EMULATE_SLOW=2 \
    "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/chosen" --set train.steps=8 --set eval.every_steps=0 \
    --ranks 2 --set parallel.pp=2
expect 'and not with what is the fastest now' 0 '' cmp "$dir/kernels.before" "$dir/chosen/kernels.txt"

# ---- a sweep divides the GPUs among its trials ----

play "$healthy" 'gpus 4'
{
    sed '/^ranks: 1$/d' "$dir/job.yaml"
    printf '%s\n' 'sweep: {search: grid, parameters: {train.seed: [1, 2, 3, 4]}, parallel: 2}'
} >"$dir/sweep.yaml"
# four LIST ARGUMENTS... - with four GPUs, of which these are visible
# shellcheck disable=SC2317 # expect calls it
four() {
    visible=$1
    shift
    env LMTRAIN_EMULATE_DEVICES=4 LMTRAIN_EMULATE_PCI=0000:17:00.0,0000:18:00.0,0000:19:00.0,0000:1a:00.0 \
        CUDA_VISIBLE_DEVICES="$visible" "$emulated" sweep "$dir/sweep.yaml" --set train.steps=2 --set eval.every_steps=0 "$@"
}
# gpus_of TRIAL - the addresses of the GPUs that its ranks computed on
# shellcheck disable=SC2317 # expect calls it
gpus_of() {
    grep -oh '"gpu":"GPU [0-9]* ([^)]*' "$dir/sweep/trial-00$1/status/"ranks*.json | sed 's/.*(//' | sort | tr '\n' ' '
}
uuid=GPU-00000000-0000-0000-0000-00000000000 # with a GPU's number behind it (nvml_stub.c)
expect 'four GPUs, two trials of two ranks at a time' 0 '^4 trials: 4 finished$' \
    four "${uuid}3,${uuid}0,${uuid}2,${uuid}1" --set "output=$dir/sweep"
for trial in 0 1 2 3; do
    gpus_of $trial
    echo
done >"$dir/gpus"
expect 'no two that ran at once share one' 0 '^0000:17:00.0 0000:1a:00.0  0000:18:00.0 0000:19:00.0  $' sh -c "sort -u '$dir/gpus' | tr '\n' ' '"
expect 'trials of more GPUs than there are' 2 'parallel is 2 and each trial has 3 ranks, but there are 4 GPUs \(hint: parallel: 1\)' \
    four 0,1,2,3 --set "output=$dir/no" --set ranks=3 --set train.global_batch=12
expect 'a list ends where it names none' 2 'parallel is 2 and each trial has 2 ranks, but there are 2 GPUs \(hint: parallel: 1\)' \
    four 3,0,7,1 --set "output=$dir/no" --set ranks=2

# A kernel that fails, in a run that nobody watches.
play "$healthy" 'xid 0 48'
export LMTRAIN_EMULATE_FAIL=sumsq
expect 'a process alone says what its GPU has' 4 'GPU 0 \(0000:17:00.0, GPU-.*\): Xid 48, a double-bit ECC error.*cudaErrorIllegalAddress' \
    pretrain alone --set eval.every_steps=0

finish
