#!/bin/sh
# test_exchange.sh BINARY: tests the exchange with other programs: shards in the formats of nanoGPT and llm.c, the
# PyTorch model against the trainer, conversion of checkpoints to ckpt.pt and back, and plots.
#   PYTHON    default python3; tests that need a package it lacks are skipped
#   QUICK=1   only the shards

. "$(dirname "$0")/../lib.sh"
export OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1 MPLCONFIGDIR="$dir"

# full_disk SCRIPT ARGUMENTS...: a script in dev/ that cannot write to stdout must print one line and exit with status
# 1.
full_disk() {
    if [ -c /dev/full ]; then
        "$python" "$repo/dev/$@" >/dev/full 2>stderr
        status=$?
        check "$1 with stdout on a full disk: $(cat stderr)" [ $status -eq 1 -a "$(wc -l <stderr)" -eq 1 ]
        check "$1: the error names stdout and the reason" grep -q 'stdout.*No space left on device' stderr
    fi
}
# widen FILE: uint16 token ids as uint32.
widen() {
    od -An -v -to1 "$1" | tr -s ' ' '\n' | grep . | paste - - |
        while read -r low high; do printf "\\$low\\$high\\000\\000"; done
}

: >vocab.bpe
awk 'BEGIN { for (i = 0; i < 60; i++) { for (j = 0; j < 6; j++) printf "%d and %d make %d. ", i, j, i + j
             print "\n<|endoftext|>" } }' >text.txt
run tokenize --tokenizer vocab.bpe --out tiny --val-frac 0.2 --shard-tokens 2000 --quiet text.txt
[ $failed -eq 0 ] || finish
set -f   # the trainer expands patterns itself
sizes="--layers 2 --heads 4 --channels 32 --block-size 32 --vocab-size 257"
rates="--batch 2 --seq 32 --total-batch 256 --steps 24 --lr 1e-2 --warmup 5 --val-every 8 --val-batches 5"
rates="$rates --quiet"
# shellcheck disable=SC2086  # the lists above must be split into words
{
# ---------------------------------------------------------------------------------------------
# Shards in other formats with the same token ids must give the same run

mkdir nanogpt llmc llama
for part in train val; do
    tail -c +1025 tiny_${part}_000000.bin >nanogpt/$part.bin
    count=$(($(wc -c <nanogpt/$part.bin) / 2))
    { header 20240520 1 $count; cat nanogpt/$part.bin; } >llmc/tiny_shakespeare_$part.bin
    { header 20240801 7 $count; widen nanogpt/$part.bin; } >llama/fineweb_${part}_000001.bin
done
check "the trainer's shard is identical to llm.c's" cmp -s llmc/tiny_shakespeare_train.bin tiny_train_000000.bin
short="$sizes --batch 2 --total-batch 128 --steps 4 --val-every 2 --val-batches 2 --save-every 0 --quiet"
run $short --data tiny_train_000000.bin --val-data tiny_val_000000.bin --out own
run $short --data nanogpt/train.bin --out by_nanogpt
check "nanoGPT's train.bin and val.bin train and validate unchanged" same_log own/log.csv by_nanogpt/log.csv
run $short --data llmc/tiny_shakespeare_train.bin --out by_llmc
check "llm.c's uint16 shards train unchanged" same_log own/log.csv by_llmc/log.csv
run $short --data 'llama/*_train_*.bin' --out by_llama
check "llm.c's uint32 shards train unchanged" same_log own/log.csv by_llama/log.csv
check "the validation shards are used" [ "$(awk -F, 'NR > 1 && $4 != ""' by_nanogpt/log.csv | wc -l)" -eq 2 ]

# ---------------------------------------------------------------------------------------------
# PyTorch: the trainer's runs, then exchange.py compares

if [ -n "${QUICK:-}" ]; then
    skip "the PyTorch model, convert.py, train.py, plots: only in make test_all"
    finish
fi
if ! has torch safetensors numpy; then
    skip "$python has no torch, safetensors or numpy: the PyTorch model, convert.py, train.py"
else
    run $sizes --data 'tiny_train_*.bin' --steps 0 --out start --quiet
    for order in shuffled sequential; do
        run --init start --data 'tiny_train_*.bin' --tokenizer vocab.bpe --order $order $rates --out $order
    done
    run $sizes --bias 1 --data 'tiny_train_*.bin' --order sequential $rates --out biased
    "$python" "$repo/dev/test/cli/exchange.py" "$binary" >report 2>errors
    status=$?
    check "dev/test/cli/exchange.py completes: $(tail -n 2 errors)" [ $status -eq 0 ]
    counted report
    "$python" "$repo/dev/reference/convert.py" shuffled cli.pt >stdout 2>stderr
    status=$?
    check "convert.py as a command: $(cat stderr)" [ $status -eq 0 -a -s cli.pt ]
    full_disk reference/convert.py shuffled unread.pt
    check "convert.py still writes the file" [ -s unread.pt ]
fi

# ---------------------------------------------------------------------------------------------
# Plots

# inspected MODEL TEXT FILE: runs inspect on a text.
inspected() { run inspect --model $1 --text @$2 --tokenizer vocab.bpe --out $3; }
if ! has numpy safetensors matplotlib; then
    skip "$python has no numpy, safetensors or matplotlib: membership.py, position.py"
else
    [ -d start ] || run $sizes --data 'tiny_train_*.bin' --steps 0 --out start --quiet
    [ -d shuffled ] || run --init start --data 'tiny_train_*.bin' --tokenizer vocab.bpe $rates --out shuffled
    # markup, a newline, a tab, bytes that are not UTF-8, two characters of several bytes
    printf 'a <b> & "c"\n\td\001\377\303\251\342\200\256' >seen.txt
    printf 'another one' >other.txt
    inspected shuffled seen.txt trained.safetensors
    inspected start seen.txt start.safetensors
    inspected start other.txt other.safetensors
    # a model with bytes as tokens and a block size larger than a story
    run --layers 1 --heads 2 --channels 8 --block-size 1024 --vocab-size 257 --data 'tiny_train_*.bin' \
        --tokenizer vocab.bpe --steps 0 --val-every 0 --out letters --quiet
    for part in recall blind; do
        [ $part = blind ] && blind=--blind || blind=
        "$python" "$repo/dev/data/starter.py" --seed 3 --stories 30 --recall $blind --out $part.jsonl
    done
    run eval --model letters --data 'tiny_val_*.bin' --seq 50 --by-position --json position.json
    "$python" "$repo/dev/test/cli/pictures.py" >report 2>errors
    status=$?
    check "dev/test/cli/pictures.py completes: $(tail -n 2 errors)" [ $status -eq 0 ]
    counted report
    "$python" "$repo/dev/plot/membership.py" trained.safetensors --out cli.html >stdout 2>stderr
    status=$?
    check "membership.py as a command: $(cat stderr)" [ $status -eq 0 -a -s cli.html ]
    full_disk plot/membership.py trained.safetensors --out unread.html
    if command -v node >/dev/null; then
        sed -n '/^"use strict";$/,/^<\/script>$/p' cli.html | sed '$d' >page.js
        node --check page.js 2>stderr
        status=$?
        check "the page's script is valid JavaScript: $(head -n 5 stderr)" [ $status -eq 0 -a -s page.js ]
    else
        skip "no node: the script in the page of membership.py"
    fi
fi

plot() { "$python" "$repo/dev/plot/loss.py" "$@" >stdout 2>stderr; }
if ! has matplotlib; then
    skip "$python has no matplotlib: dev/plot/loss.py"
else
    plot own by_llmc --label 'a<b' --label other --difference --published openwebtext \
        --line '1 and 2 make=3' --out loss.svg
    status=$?
    check "two runs as SVG: $(cat stderr)" [ $status -eq 0 ]
    check "the SVG contains labels, published values and lines" \
        [ "$(grep -c -e 'a&lt;b' -e 'ToST-base 3.20' -e '1 and 2 make 3.00' loss.svg)" -ge 3 ]
    check "--difference of equal runs is zero" [ "$(grep -c 'largest difference 0.000e+00' stdout)" -eq 4 ]
    plot own/log.csv --out loss.png
    check "one log as PNG: $(cat stderr)" [ "$(od -An -c -N4 loss.png | tr -d ' ')" = '211PNG' ]
    check "smoothing ignores the loss of a skipped step" "$python" -c "
import math, sys
sys.path.insert(0, '$repo/dev/plot')
import loss
sys.exit(loss.smooth([1, math.nan, 3], 3) != [1, 5 / 3, 3])"
    echo 'a,b' >wrong.csv
    ! plot wrong.csv --out wrong.png
    status=$?
    check "a file that is not a log fails: $(cat stderr)" [ $status -eq 0 ]
    check "the error is one line with the file's name, and nothing is written" \
        [ "$(grep -c '^wrong.csv: line 1' stderr)" -eq "$(wc -l <stderr)" -a ! -e wrong.png ]
    # refuses FILE TEXT: fails with one line that starts with the file and contains TEXT, and writes nothing
    refuses() {
        ! plot "$1" --out wrong.png
        status=$?
        check "$1: expected '$2': $(cat stderr)" [ $status -eq 0 -a "$(wc -l <stderr)" -eq 1 -a ! -e wrong.png ]
        check "$1: expected '$2' on stderr: $(cat stderr)" grep -q "^$1.*$2" stderr
    }
    mkdir -p no_log
    : >none.csv
    head -c 500 tiny_train_000000.bin >bytes.csv
    refuses no_log "/log.csv: .*No such file or directory.*folder"
    refuses none.csv "line 1.*no column grad_norm"
    refuses bytes.csv "log.csv or its folder"
    for row in 0,10 0,10,1,,1,1,1,1,9 0,nan,1,,1,1,1,1 0,-10,1,,1,1,1,1 0,10,x,,1,1,1,1; do
        { head -n 1 own/log.csv; echo $row; } >row.csv
        refuses row.csv "line 2"
    done
    head -n 1 own/log.csv >row.csv
    refuses row.csv "no rows"
    head -c -4 own/log.csv >row.csv
    plot row.csv --out cut.png
    status=$?
    check "an incomplete last row is ignored: $(cat stderr)" [ $status -eq 0 -a -s cut.png ]
    full_disk plot/loss.py own --out unread.png
fi
}
finish
