#!/bin/sh
# test_sizes.sh BINARY: unusual input that must work: sizes of 1, files smaller than a batch, prime sizes, 70,000
# shards, paths of 4,000 bytes, unusual file names and environments. QUICK=1 runs fewer cases.
# shellcheck disable=SC2046,SC2086  # lists are split into words

[ "$TMPDIR" ] || [ ! -w /dev/shm ] || export TMPDIR=/dev/shm   # thousands of files: disks are slow
. "$(dirname "$0")/../lib.sh"

mkdir plain   # shards without a vocab.bpe next to them
: >vocab.bpe
shard $(seq 1 200) >d.bin
cp d.bin plain/d.bin
head -c 200 /dev/zero >plain/zeros.bin
shard 1 2 3 4 5 6 7 8 9 >nine.bin
one="--layers 1 --heads 1 --channels 1"
small="--layers 1 --heads 1 --channels 8 --vocab-size 257"
eight="$small --block-size 8 --batch 2 --total-batch 16 --steps 2"
set -f   # the trainer expands patterns itself
# ---- Sizes of 1 ------------------------------------------------------------------------------------------------------

cp plain/zeros.bin plain/more.bin
zeros=0.000000000,0.000000000,0.000000000
run $one --block-size 1 --vocab-size 1 --batch 1 --total-batch 1 --steps 2 --save-every 1 --data plain/zeros.bin \
    --val-data plain/more.bin --val-every 1 --out v1
check "a vocabulary of one token: a loss of 0, which does not stop the run" \
    [ "$(sed 1,2d v1/log.csv | cut -d, -f1,3,4,6 | tr '\n' ' ')" = "1,$zeros 2,$zeros " ]
run eval --model v1 --data plain/zeros.bin
check "a vocabulary of one token: perplexity 1" [ "$(printed perplexity)" = 1.0000 ]
prints "$small --block-size 1 --batch 1 --total-batch 1 --steps 2 --save-every 1 --sample-every 1 --data d.bin --out t1" \
    'sample after step 2'
run sample --model t1 --prompt "longer than one" --tokens 5
run --resume --out t1 --steps 3 --quiet
check "T = 1: the run resumes" [ "$(wc -l <t1/log.csv)" -eq 4 ]

# ---- Data smaller than a batch ---------------------------------------------------------------------------------------

cp nine.bin ten.bin
run $small --dtype fp32 --block-size 8 --batch 4 --total-batch 32 --steps 2 --data nine.bin \
    --val-data ten.bin --val-every 1 --val-windows 1000000000 --save-every 1 --out nine
loss=$(tail -n 1 nine/log.csv | cut -d, -f4)
run eval --model nine --data nine.bin
check "the validation loss of one sequence equals eval: $loss" near "$loss" "$(printed loss)"
run $eight --data d.bin --save-every 2 --out normal --quiet
execute tost $eight --data d.bin --save-every 2 --threads 1000 --out threads --quiet
if says "built without OpenMP" stderr; then
    skip "--threads: a build without OpenMP"
else
    check "more threads than cores: $(cat stderr)" same_log normal/log.csv threads/log.csv
fi

# ---- Many files, long paths, names that start with a dash ------------------------------------------------------------

shards=70000   # more than the default of vm.max_map_count, 65,530
[ -z "$QUICK" ] || shards=100
mkdir many
LC_ALL=C awk -v n=$shards 'BEGIN { for (i = 0; i < 8 * n; i++) printf "%c%c", i * i % 251 + 1, 0 }' >plain/all.bin
(cd many && split -b 16 -a 4 ../plain/all.bin s)
few() (ulimit -n 20 && exec "$binary" "$@")   # the least file descriptors that POSIX allows
succeeds few $small --block-size 7 --batch 2 --total-batch 14 --steps 2 --data 'many/s*' --save-every 2 --out many_run
check "many shards with 20 open files" says ": $shards shards," stdout
run eval --model many_run --data 'many/s*'
check "all their tokens are scored" [ "$(printed tokens)" -eq $((8 * shards - 1)) ]
loss=$(printed loss)
run eval --model many_run --data plain/all.bin
check "many shards and one file give the same loss" [ "$loss" -a "$(printed loss)" = "$loss" ]

deep=$dir/deep d=$(head -c 200 /dev/zero | tr '\0' d)
while [ ${#deep} -lt 3800 ]; do deep=$deep/$d; done
mkdir -p "$deep" && cp d.bin "$deep/d.bin"
run $eight --data "$deep/d.b*" --save-every 2 --out "$deep/out"
check "a path of ${#deep} bytes" same_log normal/log.csv "$deep/out/log.csv"

mkdir odd
cp d.bin "odd/-dash d.bin"
cd odd || exit 1
run $eight --data '-dash d.bin' --save-every 2 --out -out --quiet
check "a name that starts with a dash" same_log ../normal/log.csv ./-out/log.csv
run info -- -out
cd .. || exit 1

# ---- Unusual environments must not change the run --------------------------------------------------------------------

# in_environment NAME=VALUE…: trains with these variables.
in_environment() {
    rm -rf other
    succeeds env "$@" "$binary" $eight --data d.bin --save-every 2 --sample-every 2 --out other
    check "$*: nothing on stderr: $(cat stderr)" empty stderr
    check "$*: the same losses" same_log normal/log.csv other/log.csv
}
in_environment HOME=/nowhere TMPDIR=/nowhere
localedef -i de_DE -f UTF-8 "$dir/de_DE.UTF-8" >/dev/null 2>&1 && export LOCPATH="$dir"
if [ "$(LC_ALL=de_DE.UTF-8 locale decimal_point 2>/dev/null)" = , ]; then
    in_environment LC_ALL=de_DE.UTF-8
else
    skip 'decimal commas: no locale de_DE.UTF-8'
fi
unset LOCPATH
# Small stacks, also of threads; sanitizers need more.
if ! grep -q __asan_init "$binary"; then
    shallow() (ulimit -s 128 && exec env OMP_STACKSIZE=16k OMP_NUM_THREADS=2 "$binary" "$@")
    succeeds shallow $eight --data d.bin --save-every 2 --sample-every 2 --out shallow
    check "a stack of 128 KiB: the same losses" same_log normal/log.csv shallow/log.csv
    succeeds shallow eval --model shallow --data d.bin
fi
finish
