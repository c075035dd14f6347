#!/bin/sh
# test/soak/deb.sh - make deb, then in a bare Debian 12: install it, use it, remove it
#
# As root with debootstrap, dpkg-dev, debhelper and patchelf (scripts/fresh-machine, scripts/deb).
. test/cli/support/check.sh

for program in debootstrap dpkg-buildpackage dh patchelf; do
    if ! command -v "$program" >/dev/null || [ "$(id -u)" != 0 ]; then
        echo "skip a package: this needs root and $program"
        finish
    fi
done
expect 'a package' 0 '^deb: .*/lmtrain_.*_amd64.deb, ' make --no-print-directory deb
# Its files are where fresh-machine mounts this clone, read-only.
# shellcheck disable=SC2016 # the bare machine's variables
expect 'a bare Debian installs it, trains and removes it' 0 'fresh-machine: ok' scripts/fresh-machine '
    set -e
    export DEBIAN_FRONTEND=noninteractive
    cp /mnt/source/build/deb/lmtrain_*_amd64.deb /tmp/
    apt-get install -y -qq --no-install-recommends /tmp/lmtrain_*_amd64.deb >/dev/null
    cd /tmp
    lmtrain --version
    lmtrain doctor || [ $? = 1 ] # warnings of a container are no failure
    lmtrain plan /usr/share/lmtrain/jobs/llama2-7b.yaml --device h100-sxm >/dev/null
    test -s /usr/share/bash-completion/completions/lmtrain
    head -c 400000 /usr/bin/lmtrain | base64 >text.txt
    lmtrain data tokenize text.txt --tokenizer /srv/lmtrain/data/kjv-tokenizer --out tokens
    printf "%s\n" "model: {vocab_size: 4096, hidden_size: 64, n_layers: 2, n_heads: 2, ffn_size: 128, max_seq_len: 64}" \
        "data: {train: tokens, tokenizer: /srv/lmtrain/data/kjv-tokenizer, seq_len: 64}" "train: {steps: 4, global_batch: 4, micro_batch: 2}" "output: run" >job.yaml
    lmtrain pretrain job.yaml --ranks 2
    apt-get remove -y -qq lmtrain >/dev/null
    test ! -e /usr/bin/lmtrain && test ! -e /usr/share/lmtrain'
finish
