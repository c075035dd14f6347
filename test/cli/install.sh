#!/bin/sh
# test/cli/install.sh - make install as an ordinary user, what it leaves, and what bash then offers
# shellcheck disable=SC2317 # functions that expect calls
. test/cli/support/check.sh

# Whoever may not write outside $dir: nobody, where we are root. What is built is not built again.
as_user() {
    if [ "$(id -u)" = 0 ]; then
        setpriv --reuid 65534 --regid 65534 --clear-groups "$@"
    else
        "$@"
    fi
}
# The build must be up to date for `install: all` to have nothing to do; its rules are checked without it.
build=$(dirname "${LMTRAIN:-build/lmtrain}")
sed 's/^install: all$/install:/' Makefile >"$dir/Makefile"
cp -r man configs mk "$dir/"
[ ! -d scripts/slurm ] || { mkdir "$dir/scripts" && cp -r scripts/slurm "$dir/scripts/"; }
mkdir "$dir/build" "$dir/stage"
cp "$build/lmtrain" "$dir/build/lmtrain"
[ "$(id -u)" != 0 ] || chown -R 65534:65534 "$dir"
chmod 755 "$dir"
make_there() {
    (cd "$dir" && umask 077 && as_user make --no-print-directory -f Makefile BUILD=build DESTDIR="$dir/stage" PREFIX=/opt/lm "$@" </dev/null)
}
expect 'install' 0 '' make_there install
root=$dir/stage/opt/lm
for file in bin/lmtrain share/man/man1/lmtrain.1 share/man/man1/lmtrain-pretrain.1 share/man/man5/lmtrain-job.5 \
    share/man/man7/lmtrain-program.7 \
    share/lmtrain/models/llama-tiny.yaml share/lmtrain/jobs/quickstart.yaml share/bash-completion/completions/lmtrain \
    share/zsh/site-functions/_lmtrain share/fish/vendor_completions.d/lmtrain.fish; do
    expect "it brings $file" 0 '' test -s "$root/$file"
done
for file in man/*.1 man/*.5 man/*.7 configs/*/*.yaml scripts/slurm/*.sbatch; do
    [ -e "$file" ] || continue
    [ -n "$(find "$root" -name "$(basename "$file")")" ] || expect "it brings $file" 0 '' false
done
expect 'folders are 0755' 0 '^$' find "$root" -type d ! -perm 755
expect 'the binary is 0755' 0 '^$' find "$root/bin" -type f ! -perm 755
expect 'all else is 0644' 0 '^$' find "$root/share" -type f ! -perm 644
expect 'nothing is outside of PREFIX' 0 '^$' find "$dir/stage" -type f ! -path "$root/*"

# ---- it works where it is, without the repository ----

cat >"$dir/job.yaml" <<END
model: llama-tiny
data: {train: x}
train: {steps: 3}
END
installed() {
    (cd / && as_user "$root/bin/lmtrain" "$@")
}
expect 'it runs' 0 '^lmtrain [0-9]' installed --version
expect 'it knows its models' 0 'model llama-tiny: ' installed plan "$dir/job.yaml"
expect 'and the jobs it brings read' 0 'model:' installed config "$root/share/lmtrain/jobs/quickstart.yaml"

# ---- completion ----

# offers NAME PATTERN WORD... - what bash offers after these words, the last of which is not finished, one a line; as bash
# breaks words at =, so must the caller
offers() {
    offers_name=$1 offers_pattern=$2
    shift 2
    # shellcheck disable=SC2016 # for bash
    expect "completion of $offers_name" 0 "$offers_pattern" env -C "$dir" bash -c '. "$1"; shift
        COMP_WORDBREAKS=" =:"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _lmtrain; printf "%s\n" "${COMPREPLY[@]}"' \
        bash "$root/share/bash-completion/completions/lmtrain" lmtrain "$@"
}
expect 'the completion is bash' 0 '' bash -n "$root/share/bash-completion/completions/lmtrain"
offers 'a command' '^pretrain$' pre
refuse 'and only of that' '^plan$'
offers 'commands' '^doctor$' ''
refuse 'none that is not for people' 'completion|daemon'
offers 'a subcommand' '^tokenize$' data to
offers 'an option' '^--resume$' pretrain --re
offers "a subcommand's option" '^--tokenizer$' data tokenize --to
offers 'a job' '^job.yaml$' pretrain ''
refuse 'which is no other file' '^Makefile$'
offers 'a job after options' '^job.yaml$' pretrain --ranks 2 jo
offers 'a key' '^train.steps=$' plan --set train.st
offers 'a value' '^bf16$' plan --set train.dtype = b
offers 'a yes or no' '^true$' plan --set model.tied_embeddings = tr
offers 'a model' '^llama-tiny$' plan --set model = llama-t
offers 'one of an option' '^jsonl$' data tokenize --format js
offers 'a value after =' '^none$' pretrain --resume = no
offers 'a folder' '^configs$' pretrain --resume con
offers 'a number' '^$' pretrain --ranks ''
mkdir "$dir/set"
: >"$dir/set/a.idx"
: >"$dir/set/a.bin"
offers 'a prefix' '^set/a$' data inspect set/
refuse 'without its suffix' 'set/a[.]'
offers 'a key to explain' '^optimizer.lr$' config --explain optimizer.l

# Of each command, and of each command of a command, all the long options that its -h lists, but for deprecated ones, and no other.
for command in $("${LMTRAIN:-build/lmtrain}" -h | sed -n 's/^  \([a-z]*\) .*/\1/p'); do
    "${LMTRAIN:-build/lmtrain}" "$command" -h
done | awk '/^usage:/ { name = $3 ($4 ~ /^[a-z]+$/ ? " " $4 : "") }
    !/ deprecated since / && match($0, /^  (-[a-z], )?--[-a-z]+/) { option = substr($0, 1, RLENGTH); sub(/.* /, "", option); print name "/" option }' >"$dir/options"
cut -d/ -f1 "$dir/options" | sort -u >"$dir/commands"
expect 'those of commands and of commands of commands' 0 '^pretrain$' cat "$dir/commands"
expect 'are known' 0 '^data inspect$' cat "$dir/commands"
while read -r command; do
    sed -n "s,^$command/,,p" "$dir/options" | sort >"$dir/wanted"
    # shellcheck disable=SC2086 # words
    offers "the options of $command" '^--help$' $command --
    printf '%s\n' "$output" | sort >"$dir/offered"
    expect "which are those of its -h" 0 '' diff "$dir/wanted" "$dir/offered"
done <"$dir/commands"
expect 'another shell' 2 'usage: lmtrain completion bash.zsh.fish' "${LMTRAIN:-build/lmtrain}" completion csh

# in_fish WORDS, in_zsh WORDS - what fish offers after this line; the line that Tab makes of it in zsh, on a terminal of its own
in_fish() {
    # shellcheck disable=SC2016 # for fish
    env -C "$dir" HOME="$dir" fish -N -c 'source $argv[1]; complete -C $argv[2]' "$root/share/fish/vendor_completions.d/lmtrain.fish" \
        "$1"
}
cat >"$dir/tab.zsh" <<'END'
zmodload zsh/zpty
zpty line zsh -f -i
zpty -w line "PS1= PS2=; fpath=($1 \$fpath); autoload -U compinit; compinit -u -D"
zpty -w line 'show() { print -r -- "<$BUFFER>" }; zle -N show; bindkey -e; bindkey "^X" show; print rea""dy'
while zpty -r line text; do [[ $text != *ready* ]] || break; done
zpty -w -n line "$2"$'\t\x18'
zpty -r line text '*<*>*'
print -r -- "${${text##*<}%%>*}"
zpty -d line
END
in_zsh() { env -C "$dir" HOME="$dir" timeout 100 zsh -f "$dir/tab.zsh" "$root/share/zsh/site-functions" "$1"; }
while IFS='|' read -r line fish zsh; do
    if command -v fish >/dev/null; then expect "fish: $line" 0 "^$fish(	|\$)" in_fish "$line"; fi
    if command -v zsh >/dev/null; then expect "zsh: $line" 0 "^$zsh *\$" in_zsh "$line"; fi
done <<'END'
lmtrain pre|pretrain|lmtrain pretrain
lmtrain data to|tokenize|lmtrain data tokenize
lmtrain pretrain --rep|--replan|lmtrain pretrain --replan
lmtrain data tokenize --tok|--tokenizer|lmtrain data tokenize --tokenizer=?
lmtrain pretrain --ranks 2 jo|job.yaml|lmtrain pretrain --ranks 2 job.yaml
lmtrain plan --set train.step|train.steps=|lmtrain plan --set train.steps=
lmtrain plan --set=train.dtype=b|--set=train.dtype=bf16|lmtrain plan --set=train.dtype=bf16
lmtrain plan --set model=llama-ti|model=llama-tiny|lmtrain plan --set model=llama-tiny
lmtrain pretrain --resume no|none|lmtrain pretrain --resume none
lmtrain pretrain --resume con|configs/|lmtrain pretrain --resume configs/?
lmtrain data inspect set/|set/a|lmtrain data inspect set/a
lmtrain config --explain optimizer.eps|optimizer.eps|lmtrain config --explain optimizer.eps
END
if ! command -v fish >/dev/null || ! command -v zsh >/dev/null; then echo 'skip completions: fish or zsh is not installed'; fi

# ---- and away again ----

: >"$root/share/lmtrain/mine"
expect 'uninstall' 0 '' make_there uninstall
expect 'leaves only what is not ours' 0 "^$root/share/lmtrain/mine\$" find "$root" -type f
expect 'of which there is one' 0 '^1$' sh -c "find '$root' -type f | wc -l"
finish
