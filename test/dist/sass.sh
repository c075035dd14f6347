#!/bin/sh
# test/dist/sass.sh - the machine code of the kernels that train is what it was when someone last looked: scripts/sass
. test/cli/support/check.sh

scripts/sass >"$dir/said" 2>&1
status=$?
if [ $status = 77 ]; then
    echo "skip machine code: $(cat "$dir/said")"
    finish
fi
expect 'machine code is as in test/golden/sass.txt' 0 '' sh -c "cat '$dir/said'; exit $status"

# Of one object, so that it is quick: the same, and with stores of another width.
grep -E '^(#|rope )' test/golden/sass.txt >"$dir/rope.txt"
sed 's/ stg [0-9]*/ stg 77/' "$dir/rope.txt" >"$dir/wider.txt"
expect 'a table of its own' 0 '' scripts/sass --table "$dir/rope.txt" build/obj/cuda/rope.cu.o
expect 'another width of stores is a difference' 1 'stg 77' scripts/sass --table "$dir/wider.txt" build/obj/cuda/rope.cu.o
sed 's/nvcc [0-9.]*/nvcc 1.2.3/' "$dir/rope.txt" >"$dir/old.txt"
expect "another nvcc's table is not compared" 77 'is of nvcc 1.2.3' scripts/sass --table "$dir/old.txt" build/obj/cuda/rope.cu.o
echo nothing >"$dir/broken.cu.o"
expect 'an object that cannot be listed' 2 'broken.cu.o' scripts/sass --update --table "$dir/kept.txt" "$dir/broken.cu.o"
expect 'leaves the table as it was' 1 '' test -e "$dir/kept.txt"
expect 'machine code that is not there' 77 'hint' scripts/sass "$dir/none.o"
finish
