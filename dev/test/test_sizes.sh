#!/bin/sh
# test_sizes.sh BINARY: large, small and odd, all of which have to work: models of one of everything, files shorter
# than a batch, prime sizes, ten thousand shards, paths of 4,000 bytes, strange names, strange environments.

[ "$TMPDIR" ] || [ ! -w /dev/shm ] || export TMPDIR=/dev/shm   # thousands of files: disks are slow
. "$(dirname "$0")/lib.sh"
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive

# run ARGUMENTS…: runs the binary, output in files stdout and stderr of the folder it is in; it has to succeed.
run() {
    "$binary" "$@" >stdout 2>stderr </dev/null
    status=$?
    check "'$*' succeeds: $(head -c 300 stderr)" [ $status -eq 0 ]
}
# figure NAME: a number that eval has printed.
figure() { awk -v name="$1" '$1 == name { print $2 }' stdout; }
near() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && b != "" && (a - b) ^ 2 < 1e-10) }'; }
same_run() { same_log "$1/log.csv" "$2/log.csv"; }
rows() { echo $(($(wc -l <"$1/log.csv") - 1)); }
# shard TOKEN…: an llm.c shard of them.
shard() { header 20240520 1 $#; little 2 "$@"; }

mkdir plain   # no vocab.bpe beside these
: >vocab.bpe
# shellcheck disable=SC2046
shard $(seq 1 200) >d.bin
cp d.bin plain/d.bin
# shellcheck disable=SC2046
shard $(awk 'BEGIN { for (i = 0; i < 100; i++) print i % 2 }') >plain/bits.bin
head -c 200 /dev/zero >plain/zeros.bin
shard 1 2 3 4 5 6 7 8 9 >nine.bin
one="--layers 1 --heads 1 --channels 1"
small="--layers 1 --heads 1 --channels 8 --vocab-size 257"
eights="$small --block-size 8 --batch 2 --total-batch 16"
eight="$eights --steps 2"
set -f   # patterns go to the program as they are
# shellcheck disable=SC2086  # the lists above are split on purpose
{
# ---------------------------------------------------------------------------------------------
# One of everything

run $one --block-size 1 --vocab-size 1 --batch 1 --total-batch 1 --steps 2 --save-every 1 --data plain/zeros.bin \
    --val-data plain/zeros.bin --val-every 1 --out v1
check "a vocabulary of one: nothing to lose" \
    [ "$(sed 1d v1/log.csv | cut -d, -f3,4,6 | uniq)" = "0.000000000,0.000000000,0.000000000" ]
run eval --model v1 --data plain/zeros.bin
check "perplexity 1" [ "$(figure perplexity)" = 1.0000 ]
run info v1
run $one --block-size 1 --vocab-size 2 --batch 1 --total-batch 1 --steps 2 --save-every 1 --data plain/bits.bin \
    --val-data plain/bits.bin --val-every 1 --out v2
check "a vocabulary of two: a bit a token" [ "$(sed -n 2p v2/log.csv | cut -d, -f3,4)" = "0.693147181,0.693147181" ]
run eval --model v2 --data plain/bits.bin --seq 1 --stride 1 --batch 1
check "each token but the first, by itself" [ "$(figure tokens)" -eq 99 ]
run $small --block-size 1 --batch 1 --total-batch 1 --steps 2 --save-every 1 --sample-every 1 --data d.bin --out t1
check "T = 1 samples" says "sample after update 2" stdout
run sample --model t1 --prompt "longer than one" --tokens 5
run --resume --out t1 --steps 3 --quiet
check "T = 1 resumes" [ "$(rows t1)" -eq 3 ]
run eval --model t1 --data d.bin --windows 1 --batch 1000000
check "one window of one token" [ "$(figure tokens)" -eq 1 ]
run $small --block-size 64 --seq 1 --batch 1 --total-batch 1 --steps 2 --save-every 1 --data d.bin --out t2 --quiet
run sample --model t2 --prompt hello --tokens 200 --top-k 100000
check "text past the block size, --top-k past the vocabulary" [ "$(wc -c <stdout)" -gt 100 ]
a=$(head -c 1000 /dev/zero | tr '\0' a)
run sample --model t2 --prompt "$a" --tokens 3
check "a prompt past the block size comes back whole" says "$a" stdout
run eval --model t2 --data d.bin --seq 1
check "a window of one: each token but the first" [ "$(figure tokens)" -eq 199 ]

# ---------------------------------------------------------------------------------------------
# Shorter than a batch, and none at all

run $small --block-size 8 --batch 4 --total-batch 32 --steps 2 --data nine.bin --val-data nine.bin --val-every 1 \
    --val-batches 1000000000 --save-every 1 --out nine
check "one sample, four times a batch; as validation once" says "validation after update 2" stdout
loss=$(sed -n 3p nine/log.csv | cut -d, -f4)
run eval --model nine --data nine.bin
check "the validation loss of one sample is eval's: $loss" near "$loss" "$(figure loss)"
run $small --block-size 7 --batch 3 --total-batch 21 --steps 2 --data d.bin --val-data d.bin --val-every 2 \
    --val-batches 999999999 --save-every 2 --out huge --quiet
loss=$(sed -n 3p huge/log.csv | cut -d, -f4)
# shellcheck disable=SC2046
shard $(seq 1 197) >plain/whole.bin   # 28 windows of 7 and a token: what validation sees of 200
run eval --model huge --data plain/whole.bin
check "--val-batches past the end: every sample once" near "$loss" "$(figure loss)"
run $eights --steps 0 --save-every 1 --data d.bin --out zero --quiet
run sample --model zero --tokens 4
run eval --model zero --data nine.bin
run $small --block-size 8 --batch 2 --total-batch 16 --steps 5 --save-every 1 --keep 1 --data d.bin --out kept --quiet
check "--keep 1 keeps the last" [ "$(ls kept)" = "log.csv
step_00000005" ]
run --layers 3 --heads 5 --channels 35 --block-size 13 --vocab-size 263 --batch 3 --total-batch 117 --steps 2 \
    --save-every 2 --data d.bin --val-data d.bin --val-every 1 --out prime --quiet
run eval --model prime --data d.bin --seq 11 --stride 7 --batch 5
check "prime sizes: each token but the first" [ "$(figure tokens)" -eq 199 ]
run $eight --data d.bin --save-every 2 --out alone --quiet
if "$binary" $eight --data d.bin --save-every 2 --threads 1000 --out crowd --quiet 2>stderr; then
    check "more threads than cores: the same losses" same_run alone crowd
elif says "built without OpenMP" stderr; then
    skip "--threads: a build without OpenMP"
else
    check "more threads than cores: $(cat stderr)" false
fi

# ---------------------------------------------------------------------------------------------
# A pass of more tokens than an int counts, where the length is the model's

run $one --block-size 2048 --seq 50 --batch 1 --vocab-size 2 --steps 0 --data plain/bits.bin --save-every 1 --quiet \
    --out long
head -c 8192 /dev/zero >plain/long.bin
"$binary" eval --model long --data plain/long.bin --windows 1048576 --batch 1048576 >stdout 2>stderr
check "2^31 tokens in a pass: status 1" [ $? -eq 1 ]
check "it is said: $(cat stderr)" says "--batch 1048576 × --seq 2048 makes 2147483648 tokens in one pass" stderr
run eval --model long --data plain/long.bin --batch 1048576
check "as few as there are windows is no such pass" [ "$(figure tokens)" -eq 4095 ]

# ---------------------------------------------------------------------------------------------
# Many files, long paths, strange names

mkdir many
LC_ALL=C awk 'BEGIN { for (i = 0; i < 80000; i++) printf "%c%c", i * i % 251 + 1, 0 }' >plain/all.bin
(cd many && split -b 16 -a 4 ../plain/all.bin s)
run $small --block-size 7 --batch 2 --total-batch 14 --steps 2 --data 'many/s*' --save-every 2 --out many_run
check "ten thousand shards" says "shards: 10000," stdout
run eval --model many_run --data 'many/s*'
check "all of their tokens" [ "$(figure tokens)" -eq 79999 ]
loss=$(figure loss)
run eval --model many_run --data plain/all.bin
check "the loss of the same tokens in one file" [ "$(figure loss)" = "$loss" ]

deep=$dir/deep d=$(head -c 200 /dev/zero | tr '\0' d)
while [ ${#deep} -lt 3800 ]; do deep=$deep/$d; done
mkdir -p "$deep" && cp d.bin "$deep/d.bin"
run $eight --data "$deep/d.b*" --save-every 2 --out "$deep/out"
check "a path of ${#deep} bytes" same_run alone "$deep/out"
run info "$deep/out"
echo text >"$deep/d.txt"
run tokenize --tokenizer vocab.bpe --out "$deep/t" "$deep/d.txt"
"$binary" $eight --data "$deep/none" --out none >stdout 2>stderr
check "its end is said, though not its middle: $(cat stderr)" \
    grep -q "^$(basename "$binary"): $dir/deep/.* … .*/none: no file matches\$" stderr

odd="it's a
strange \$name ü 語"
mkdir "$odd"
cp d.bin "$odd/-dash d.bin"
cp vocab.bpe "$odd"
run $eight --data "$odd/*.bin" --sample-every 2 --save-every 2 --out "$odd/out"
check "the tokenizer beside is found" says "vocab.bpe: 257 tokens" stdout
sed -n '/^go on/,$p' stdout | sed '1s/^go on *//' >again
sh again >stdout 2>stderr
status=$?
check "what is suggested can be run: $(cat again stderr)" [ $status -eq 0 ]
check "and goes on" [ -f "$odd/out/step_00000004/model.safetensors" ]
run sample --model "$odd/out" --tokens 3
run eval --model "$odd/out" --data "$odd/-dash d.bin" --json "$odd/json"
run info "$odd/out"
cd "$odd" || exit 1
run $eight --data '-dash d.bin' --save-every 2 --out -out --quiet
check "a name that begins with a dash" same_run ../alone ./-out
run info -- -out
run --resume --out -out --steps 3 --quiet
printf 'text' >-text
run tokenize --tokenizer vocab.bpe --out -t -- -text
cd .. || exit 1

# ---------------------------------------------------------------------------------------------
# Strange environments: the same run

# in_environment NAME=VALUE…: with these in the environment; whatever the runtime of OpenMP says to them.
in_environment() {
    rm -rf other
    env "$@" "$binary" $eight --data d.bin --save-every 2 --sample-every 2 --out other >stdout 2>stderr </dev/null
    status=$?
    if grep -q '^OMP: Error' stderr; then   # libomp fails on such a value
        skip "$*: the OpenMP runtime ends every program by itself"
        return
    fi
    check "$*: it runs: $(cat stderr)" [ $status -eq 0 ]
    check "$*: nothing but the runtime's on stderr: $(cat stderr)" [ -z "$(grep -v -i 'omp\|^$' stderr)" ]
    check "$*: the same losses" same_run alone other
    check "$*: points, not commas" [ "$(sed -n 2p other/log.csv | tr -cd , | wc -c)" -eq 7 ]
}
in_environment -u HOME
in_environment HOME=/nowhere TMPDIR=/nowhere
in_environment TERM=dumb COLUMNS=1 LINES=0
in_environment TERM= COLUMNS=-5
in_environment COLUMNS=99999999999999999999
in_environment LC_ALL=de_DE.UTF-8 LANG=de_DE.UTF-8 LC_NUMERIC=de_DE.UTF-8
in_environment TZ=Pacific/Kiritimati
in_environment POSIXLY_CORRECT=1
in_environment OMP_NUM_THREADS=bad
in_environment OMP_NUM_THREADS=0
in_environment OMP_NUM_THREADS=1000
env -i "$binary" info alone >stdout 2>stderr
check "an empty environment" [ $? -eq 0 ]
"$binary" info alone <&- >stdout 2>stderr
check "stdin closed" [ $? -eq 0 ]
"$binary" $eight --data d.bin --out mute >/dev/null 2>&-
check "stderr closed" [ $? -eq 0 ]
check "and nothing of it in its log" same_run alone mute
"$binary" $eight --data d.bin --out deaf >&- 2>stderr
check "stdout closed: the run goes on" [ $? -eq 0 ]
check "and says so" grep -q 'stdout cannot be written: .*; the run goes on' stderr
check "and nothing of what is printed in its log" same_run alone deaf
"$binary" $eight --data d.bin --out deaf --overwrite --quiet <&- >&- 2>&-
check "all closed" [ $? -eq 0 ]
check "and only rows in its log" same_run alone deaf
(ulimit -n 6 && exec "$binary" $eight --data d.bin --save-every 2 --out few) >stdout 2>stderr
status=$?
check "six open files are enough: $(cat stderr)" [ $status -eq 0 ]
}
finish
