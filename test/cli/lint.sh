#!/bin/sh
# test/cli/lint.sh - each rule of scripts/lint refuses a small bad tree and accepts a good one
. test/cli/support/check.sh
lint=$PWD/scripts/lint/lint
tree=$dir/tree

# A tree that keeps every rule.
fresh() {
    rm -rf "$tree"
    mkdir -p "$tree/lib/base" "$tree/lib/ops" "$tree/cmd/lmtrain"
    cp .clang-format "$tree/"
    printf 'base\nops   base\ncmd   base ops\n' >"$tree/lib/LAYERS"
    cat >"$tree/lib/base/one.h" <<'END'
/*
 * one.h - the number one
 */
#ifndef BASE_ONE_H
#define BASE_ONE_H

int one(void);

#endif
END
    sed 's/one/two/g; s/BASE_ONE/OPS_TWO/' "$tree/lib/base/one.h" >"$tree/lib/ops/two.h"
    printf '#include "ops/two.h"\n\n#include "base/one.h"\n\nint two(void)\n{\n    return one() + one();\n}\n' \
        >"$tree/lib/ops/two.c"
    printf '#include "cmd.h"\n#include "ops/two.h"\n\nint main(void)\n{\n    return two();\n}\n' \
        >"$tree/cmd/lmtrain/main.c"
    printf '/* the commands */\n#ifndef CMD_H\n#define CMD_H\n#endif\n' >"$tree/cmd/lmtrain/cmd.h"
}

# bad NAME CHECK PATTERN: the check refuses the tree, saying PATTERN.
bad() {
    expect "$1" 1 "$3" "$lint" --root "$tree" "$2"
}

fresh
for check in layers cycles sizes banned axes operands kinds places shell page words names; do
    expect "a good tree: $check" 0 '^[01] passed, 0 failed' "$lint" --root "$tree" $check
done
expect 'an unknown check' 2 'no check is named nonsense' "$lint" --root "$tree" nonsense

fresh
echo '#include "ops/two.h"' >>"$tree/lib/base/one.h"
bad 'an include upwards' layers 'lib/base/one.h:10: base may not include ops'
expect 'a header above is no circle by itself' 0 '' "$lint" --root "$tree" cycles
echo '#include "base/one.h"' >>"$tree/lib/ops/two.h"
bad 'headers in a circle' cycles 'lib/base/one.h'

fresh
echo '#include "opps/two.h"' >>"$tree/lib/ops/two.c"
bad 'a module that is not' layers 'opps is no module'
fresh
echo '#include "base/three.h"' >>"$tree/lib/ops/two.c"
bad 'a header that is not' layers '"base/three.h" is not in lib/'
fresh
echo '#include "two.h"' >>"$tree/lib/ops/two.c"
bad 'a path that does not start at lib' layers 'does not start at lib'
fresh
mkdir "$tree/lib/extra"
cp "$tree/lib/base/one.h" "$tree/lib/extra/"
bad 'a folder without a layer' layers 'module extra is not in lib/LAYERS'
fresh
printf 'base\nops   base\nextra base\ncmd   base ops\n' >"$tree/lib/LAYERS"
bad 'a layer without a folder' layers 'module extra has no file'
fresh
printf 'base ops\nops   base\ncmd   base ops\n' >"$tree/lib/LAYERS"
bad 'layers in a circle' layers 'base names ops, which is not below it'
fresh
mkdir "$tree/lib/program"
printf 'base\nops   base\nprogram base ops\ncmd   base ops program\n' >"$tree/lib/LAYERS"
printf 'int size(const int *sizes)\n{\n    return sizes[AXIS_CP];\n}\n' >"$tree/lib/program/update.c"
bad 'an axis by its name in a pass' axes 'lib/program/update.c:3: an axis by its name'
sed -i 's/AXIS_CP/axes_stages()/' "$tree/lib/program/update.c"
expect 'and by what it divides' 0 '' "$lint" --root "$tree" axes
fresh
printf 'int first(const struct op *op)\n{\n    return op->in[0];\n}\n' >>"$tree/lib/ops/two.c"
bad 'an operand by its number' operands 'lib/ops/two.c:11: an operand by its number'
sed -i 's/in\[0\]/in[LINEAR_X]/' "$tree/lib/ops/two.c"
expect 'and by its name' 0 '' "$lint" --root "$tree" operands
printf 'struct op op = { .kind = OP_SCALE, .in = { x }, .out = { [SCALE_Y] = y } };\n' >>"$tree/lib/ops/two.c"
bad 'operands in a list without names' operands 'lib/ops/two.c:13: an operand by its number'
fresh
mkdir -p "$tree/lib/kernels/cpu" "$tree/cuda" "$tree/test/kernels"
printf 'enum op_kind {\n    OP_ONE,\n    OP_SEND,\n    N_OP_KINDS\n};\n' >"$tree/lib/ops/kinds.h"
echo '    [OP_SEND] = &send,' >"$tree/lib/ops/collective.c"
echo '    table->entries[OP_ONE].run = one_run;' | tee "$tree/lib/kernels/cpu/one.c" >"$tree/cuda/one.cu"
echo 'check(OP_ONE);' | tee "$tree/test/kernels/one_test.c" >"$tree/test/kernels/reference_ops_test.c"
expect 'a kind with its kernels and their test' 0 '' "$lint" --root "$tree" kinds
sed -i 's/OP_ONE/OP_TWO/' "$tree/cuda/one.cu"
bad 'a kind without a kernel' kinds 'lib/ops/kinds.h:2: OP_ONE has no kernel in cuda'
sed -i 's/OP_TWO/OP_ONE/' "$tree/cuda/one.cu"
sed -i 's/OP_ONE/OP_TWO/' "$tree/test/kernels/one_test.c"
bad 'a kind without a test' kinds 'lib/ops/kinds.h:2: OP_ONE is in no test of test/kernels'
mkdir -p "$tree/test/support/ops"
printf '    [OP_ONE] = {\n        .example = "one",\n    },\n    [OP_TWO] = {\n        .kernels = two,\n    },\n' >"$tree/test/support/ops/one.c"
bad 'facts without kernels are no test of them' kinds 'lib/ops/kinds.h:2: OP_ONE is in no test of test/kernels'
sed -i 's/"one",/"one",\n        .kernels = one,/' "$tree/test/support/ops/one.c"
expect 'with them they are one' 0 '' "$lint" --root "$tree" kinds
fresh
echo '#include <cuda_runtime.h>' >>"$tree/lib/ops/two.c"
bad 'CUDA in lib' layers 'belong in cuda/'
fresh
echo '#include <mpi.h>' >>"$tree/cmd/lmtrain/main.c"
bad 'MPI in cmd' layers 'mpi.h belongs in lib/comm'

fresh
{ printf 'int three(void)\n{\n'; yes '    one();' | head -n 70; echo '}'; } >>"$tree/lib/ops/two.c"
bad 'a long function' sizes 'three has 72 lines, more than 70'
mkdir -p "$tree/scripts/lint"
echo 'lib/ops/two.c:three it is a table' >"$tree/scripts/lint/allow"
expect 'a long function with a reason' 0 '' "$lint" --root "$tree" sizes
fresh
yes '/* one */' | head -n 601 >"$tree/lib/ops/long.c"
bad 'a long file' sizes 'long.c:601: 601 lines, more than 600'
fresh
{ printf '/* '; printf '%097d' 0; echo ' */'; } >>"$tree/lib/ops/two.c"
bad 'a wide comment' sizes 'two.c:9: a comment of 103 columns'
fresh
printf '/* short */\n#ifndef A\n#define A\n#endif\n' >"$tree/lib/base/short.h"
bad 'a header that says nothing' sizes 'a header opens with a comment'
fresh
printf '/*\n * open.h - no guard\n */\nint open_it(void);\n' >"$tree/lib/base/open.h"
bad 'a header without guard' sizes 'no include guard'

for call in 'strcpy(a, b)' 'strcat (a, b)' 'sprintf(a, "x")' 'atoi(a)' 'strtok(a, b)' 'system("ls")' 'alloca(3)'; do
    fresh
    echo "int bad(void) { return $call; }" >>"$tree/lib/ops/two.c"
    bad "banned: $call" banned 'two.c:9: [a-z]+ is banned'
done
fresh
cat >>"$tree/lib/ops/two.c" <<'END'
/* strcpy(a, b) in a comment
 * strcat(a, b) */
const char *text = "system(\"ls\") atoi(x)"; /* sprintf( */ // strtok(
int my_system(void), snprintf_like(void), strtoken(void);
int all(void) { return my_system() + strtoken(); }
END
expect 'banned names in comments, texts and longer names' 0 '' "$lint" --root "$tree" banned

fresh
printf 'const char *text = "the same command "\n                   "goes on from here";\n' >>"$tree/lib/ops/two.c"
bad 'a quaint message, on two lines' words "lib/ops/two.c:9: 'the same command goes on' .write: the same command continues"
fresh
printf 'const char *path = "by-the-umask";\n' >>"$tree/lib/ops/two.c"
expect 'no words' 0 '' "$lint" --root "$tree" words
printf 'int x;\n/*\n * Whatever: the caller is\n * told.\n */\n' >"$tree/lib/base/one.c"
bad 'a quaint word in a source' words "lib/base/one.c:4: 'told'"
# shellcheck disable=SC2016 # it is text
printf '/* root becomes "nobody"; a kind is told apart by `theirs` */\n' >"$tree/lib/base/one.c"
expect 'a user, an identifier and what is told apart' 0 '' "$lint" --root "$tree" words
sed -i '2s/.*/ * one.h - nobody waits/' "$tree/lib/base/one.h"
bad 'a quaint word in a public header' words "lib/base/one.h:2: 'nobody'"
fresh
mkdir "$tree/man"
printf 'It begins\nanew.\n' >"$tree/man/x.1"
bad 'one in a manual page' words "man/x.1:2: 'anew' .write: again"

fresh
mkdir "$tree/test"
cp "$tree/lib/base/one.h" "$tree/test/one.h"
bad 'two headers of one name' names 'test/one.h:1: a header file of this name is also lib/base/one.h'
fresh
echo 'struct pair { int x; };' >>"$tree/lib/ops/two.c"
echo 'static const struct pair { int y; } pairs[1];' >>"$tree/cmd/lmtrain/main.c"
bad 'two types of one name' names "lib/ops/two.c:9: a type of the name 'pair' is also in cmd/lmtrain/main.c:8"
sed -i 's/struct pair/struct point/; $a /* struct pair { */ struct pair *p; enum pair_kind { PAIR };' "$tree/lib/ops/two.c"
expect 'types of other names, comments and uses' 0 '' "$lint" --root "$tree" names

# The bad words are put together here, so that this file keeps the rule.
fresh
echo "int x; /* see /wo""rk/here */" >>"$tree/lib/ops/two.c"
bad 'a folder of one machine' places 'name folders of one machine'
fresh
echo "/* http""s://packages.example.net/simple */" >>"$tree/lib/ops/two.c"
bad 'a package host' places 'packages.example.net'
fresh
echo "/* 10.""1.2.3 */" >>"$tree/lib/ops/two.c"
bad 'an address' places 'look like addresses'
fresh
echo '/* https://arxiv.org/abs/1706.03762, 127.0.0.1, lib/work/x */' >>"$tree/lib/ops/two.c"
expect 'a paper, the loopback, a path of ours' 0 '' "$lint" --root "$tree" places

if scripts/lint/page | grep -q 'cannot be fetched'; then
    echo 'skip bad pages: no oxlint'
else
    fresh
    mkdir -p "$tree/lib/report/page"
    printf '%s\n' '<script>' '{{a.js}}' '{{b.js}}' '</script>' >"$tree/lib/report/page/report.html"
    printf '%s\n' '// a.js' 'const one = 1;' >"$tree/lib/report/page/a.js"
    printf '%s\n' '// b.js' 'document.title = one;' >"$tree/lib/report/page/b.js"
    expect 'a good page' 0 '^1 passed, 0 failed$' "$lint" --root "$tree" page
    printf '%s\n' '// b.js' 'document.title = two;' >"$tree/lib/report/page/b.js"
    bad 'a page with a name that is not declared' page "lib/report/page/b.js:2:18: 'two' is not defined"
    bad 'and one that is not used' page "lib/report/page/a.js:2:7: .*'one' is declared but never used"
    printf '%s\n' '// b.js' 'document.title = (one;' >"$tree/lib/report/page/b.js"
    bad 'a page that is no JavaScript' page 'lib/report/page/b.js:2:'
    printf '%s\n' 'one;' >"$tree/lib/report/page/c.js"
    bad 'a part that the page does not have' page 'c.js: is not in report.html'
fi

if command -v shellcheck >/dev/null; then
    fresh
    # shellcheck disable=SC2016 # it is text
    printf '#!/bin/sh\ncat $1\n' >"$tree/bad"
    bad 'a script with an unquoted variable' shell 'SC2086'
fi
if command -v clang-format >/dev/null; then
    fresh
    expect 'a good tree: format' 0 '' "$lint" --root "$tree" format
    echo 'int  x ;' >>"$tree/lib/ops/two.c"
    bad 'a line out of form' format 'two.c:9: not formatted'
fi
finish
