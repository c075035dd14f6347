#!/bin/sh
# test/dist/sass.sh - the machine code of the kernels that train is what it was when someone last looked: scripts/sass
. test/cli/support/check.sh

output=$(scripts/sass 2>&1)
if [ $? = 77 ]; then
    echo "skip machine code: $output"
    finish
fi
expect 'machine code is as in test/golden/sass.txt' 0 '' scripts/sass
sed 's/ stg [0-9]*/ stg 77/' test/golden/sass.txt >"$dir/other.txt"
expect 'another width of a store is a difference' 1 'rmsnorm' scripts/sass --table "$dir/other.txt"
expect 'machine code that is not there' 77 'hint' scripts/sass "$dir/none.o"
finish
