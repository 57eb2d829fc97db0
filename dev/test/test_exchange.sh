#!/bin/sh
# test_exchange.sh BINARY: what goes over to other programs and comes from them: shards as nanoGPT and llm.c
# write them; the model in PyTorch against the trainer; checkpoints to ckpt.pt and back; loss curves.
# PYTHON names the interpreter (default python3). Where it has no torch or matplotlib, their part is skipped.

binary=$(cd "$(dirname "$1")" 2>/dev/null && pwd)/$(basename "$1")
if [ $# -ne 1 ] || [ ! -x "$binary" ]; then
    echo "usage: test_exchange.sh BINARY" >&2
    exit 2
fi
repo=$(cd "$(dirname "$0")/../.." && pwd)
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
python=$(command -v "${PYTHON:-python3}" || echo "${PYTHON:-python3}")
case $python in /*) ;; */*) python=$PWD/$python ;; esac
cd "$dir" || exit 1
export OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1 MPLCONFIGDIR="$dir"

passed=0 failed=0 skipped=0
# check TEXT COMMAND…: one check, which passes where the command succeeds.
check() {
    what=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED exchange: $what"
    fi
}
skip() { skipped=$((skipped + 1)); echo "skipped exchange: $1"; }
finish() {
    echo "exchange: $passed passed, $failed failed, $skipped skipped"
    [ $failed -eq 0 ] && [ $((passed + skipped)) -gt 0 ]
    exit
}
# run ARGUMENTS…: runs the binary, output in files stdout and stderr; it has to succeed.
run() {
    "$binary" "$@" >stdout 2>stderr </dev/null
    check "'$*' succeeds: $(head -c 300 stderr)" [ $? -eq 0 ]
}
# has PACKAGE…: whether Python finds them all. Importing torch to see would take seconds.
has() {
    "$python" -c 'import sys, importlib.util as u
sys.exit(any(u.find_spec(package) is None for package in sys.argv[1:]))' "$@" 2>/dev/null
}
# The columns of a log that do not tell the time.
same_log() { [ -s "$1" ] && [ "$(cut -d, -f1-6 "$1")" = "$(cut -d, -f1-6 "$2")" ]; }
# The header of a shard: magic, version and count as little-endian int32, then zeros up to 1,024 bytes.
header() {
    for number in "$1" "$2" "$3"; do
        for shift in 0 8 16 24; do
            # shellcheck disable=SC2059  # the format is the byte
            printf "\\$(printf %03o $((number >> shift & 255)))"
        done
    done
    head -c 1012 /dev/zero
}
# Every uint16 followed by two zero bytes: the same ids as uint32.
widen() {
    od -An -v -to1 "$1" | tr -s ' ' '\n' | grep . | paste - - |
        while read -r low high; do printf "\\$low\\$high\\000\\000"; done
}

: >vocab.bpe
awk 'BEGIN { for (i = 0; i < 60; i++) { for (j = 0; j < 6; j++) printf "%d and %d make %d. ", i, j, i + j
             print "\n<|endoftext|>" } }' >text.txt
run tokenize --tokenizer vocab.bpe --out tiny --val-frac 0.2 --shard-tokens 2000 --quiet text.txt
[ $failed -eq 0 ] || finish
set -f   # patterns go to the program as they are
sizes="--layers 2 --heads 4 --channels 32 --block-size 32 --vocab-size 257"
rates="--batch 2 --seq 32 --total-batch 256 --steps 24 --lr 1e-2 --warmup 5 --val-every 8 --val-batches 5"
rates="$rates --quiet"
# shellcheck disable=SC2086  # the lists above are split on purpose
{
# ---------------------------------------------------------------------------------------------
# Shards of others: the same ids in their formats and under their names give the same run.

mkdir nanogpt llmc llama
for part in train val; do
    tail -c +1025 tiny_${part}_000000.bin >nanogpt/$part.bin
    count=$(($(wc -c <nanogpt/$part.bin) / 2))
    { header 20240520 1 $count; cat nanogpt/$part.bin; } >llmc/tiny_shakespeare_$part.bin
    { header 20240801 7 $count; widen nanogpt/$part.bin; } >llama/fineweb_${part}_000001.bin
done
check "our shard is llm.c's to the byte" cmp -s llmc/tiny_shakespeare_train.bin tiny_train_000000.bin
short="$sizes --batch 2 --total-batch 128 --steps 4 --val-every 2 --val-batches 2 --save-every 0 --quiet"
run $short --data tiny_train_000000.bin --val-data tiny_val_000000.bin --out own
run $short --data nanogpt/train.bin --out by_nanogpt
check "nanoGPT's train.bin and val.bin train and validate unchanged" same_log own/log.csv by_nanogpt/log.csv
run $short --data llmc/tiny_shakespeare_train.bin --out by_llmc
check "llm.c's shards of uint16 train unchanged" same_log own/log.csv by_llmc/log.csv
run $short --data 'llama/*_train_*.bin' --out by_llama
check "llm.c's shards of uint32 train unchanged" same_log own/log.csv by_llama/log.csv
check "validation took part" [ "$(awk -F, 'NR > 1 && $4 != ""' by_nanogpt/log.csv | wc -l)" -eq 2 ]

# ---------------------------------------------------------------------------------------------
# PyTorch: the trainer's part of the comparison, then Python's.

if ! has torch safetensors numpy; then
    skip "$python has no torch, safetensors or numpy: the model in PyTorch, convert.py, train.py"
else
    run $sizes --data 'tiny_train_*.bin' --steps 0 --out start --quiet
    for order in shuffled sequential; do
        run --init start --data 'tiny_train_*.bin' --tokenizer vocab.bpe --order $order $rates --out $order
    done
    run $sizes --bias 1 --data 'tiny_train_*.bin' --order sequential $rates --out biased
    "$python" "$repo/dev/test/exchange.py" "$binary" >report 2>errors
    check "dev/test/exchange.py comes to its end: $(tail -n 2 errors)" [ $? -eq 0 ]
    grep '^FAILED' report
    passed=$((passed + $(grep -c '^ok' report)))
    failed=$((failed + $(grep -c '^FAILED' report)))
    "$python" "$repo/dev/reference/convert.py" shuffled cli.pt >stdout 2>stderr
    check "convert.py as a command: $(cat stderr)" [ $? -eq 0 -a -s cli.pt ]
fi

# ---------------------------------------------------------------------------------------------
# Pictures

plot() { "$python" "$repo/dev/plot/loss.py" "$@" >stdout 2>stderr; }
if ! has matplotlib; then
    skip "$python has no matplotlib: dev/plot/loss.py"
else
    plot own by_llmc --label 'a<b' --label other --difference --published openwebtext \
        --line '1 and 2 make=3' --out loss.svg
    check "two runs as SVG: $(cat stderr)" [ $? -eq 0 ]
    check "labels, published values and lines are in it" \
        [ "$(grep -c -e 'a&lt;b' -e 'ToST-base 3.20' -e '1 and 2 make 3.00' loss.svg)" -ge 3 ]
    check "--difference of equal runs is zero" [ "$(grep -c 'largest difference 0.000e+00' stdout)" -eq 4 ]
    plot own/log.csv --out loss.png
    check "one log as PNG: $(cat stderr)" [ "$(od -An -c -N4 loss.png | tr -d ' ')" = '211PNG' ]
    check "the loss of an update that was skipped does not spread" "$python" -c "
import math, sys
sys.path.insert(0, '$repo/dev/plot')
import loss
sys.exit(loss.smooth([1, math.nan, 3], 3) != [1, 5 / 3, 3])"
    echo 'a,b' >wrong.csv
    ! plot wrong.csv --out wrong.png
    check "a file that is no log: $(cat stderr)" [ $? -eq 0 ]
    check "it is named on one line, and nothing is written" \
        [ "$(grep -c '^wrong.csv: line 1' stderr)" -eq "$(wc -l <stderr)" -a ! -e wrong.png ]
fi
}
finish
