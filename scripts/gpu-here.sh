# shellcheck shell=sh
# gpu-here.sh - which GPU is here, and where what is found on it is kept; scripts/gpu-check and gpu-first source it
#
# Sets gpu (the driver's name of it, or emulated), name (that in names of files), and folder, unless that was asked for.
# shellcheck disable=SC2034 # they are for who sources this

if [ -n "${LMTRAIN_EMULATE_DEVICES:-}" ]; then
    gpu=emulated
else
    command -v nvidia-smi >/dev/null || fail 4 'there is no GPU here: nvidia-smi is not installed'
    gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1) || true
    [ -n "$gpu" ] || fail 4 'there is no GPU here: nvidia-smi names none'
fi
name=$(echo "$gpu" | tr 'A-Z ' 'a-z-' | sed 's/^nvidia-//')
# One for each kind of GPU, as machines share home folders; not in what is copied to a machine, which a later copy would replace.
folder=${folder:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/lmtrain/gpu-check/$name}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
