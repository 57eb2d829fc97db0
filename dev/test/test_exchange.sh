#!/bin/sh
# test_exchange.sh BINARY: what goes over to other programs and comes from them: shards as nanoGPT and llm.c
# write them; the model in PyTorch against the trainer; checkpoints to ckpt.pt and back; loss curves.
# PYTHON names the interpreter (default python3). Where it has no torch or matplotlib, their part is skipped.

. "$(dirname "$0")/lib.sh"
export OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1 MPLCONFIGDIR="$dir"

# run ARGUMENTS…: runs the binary, output in files stdout and stderr; it has to succeed.
run() {
    "$binary" "$@" >stdout 2>stderr </dev/null
    status=$?
    check "'$*' succeeds: $(head -c 300 stderr)" [ $status -eq 0 ]
}
# has PACKAGE…: whether Python finds them all. Importing torch to see would take seconds.
has() {
    "$python" -c 'import sys, importlib.util as u
sys.exit(any(u.find_spec(package) is None for package in sys.argv[1:]))' "$@" 2>/dev/null
}
# unread SCRIPT ARGUMENTS…: nobody reads what the script under dev/ prints: one line and status 1.
unread() {
    if [ -c /dev/full ]; then
        "$python" "$repo/dev/$@" >/dev/full 2>stderr
        status=$?
        check "$1 on a full disk: $(cat stderr)" \
            [ $status -eq 1 -a "$(cat stderr)" = 'stdout cannot be written: No space left on device' ]
    fi
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
    status=$?
    check "dev/test/exchange.py comes to its end: $(tail -n 2 errors)" [ $status -eq 0 ]
    grep '^FAILED' report
    passed=$((passed + $(grep -c '^ok' report)))
    failed=$((failed + $(grep -c '^FAILED' report)))
    "$python" "$repo/dev/reference/convert.py" shuffled cli.pt >stdout 2>stderr
    status=$?
    check "convert.py as a command: $(cat stderr)" [ $status -eq 0 -a -s cli.pt ]
    unread reference/convert.py shuffled unread.pt
    check "convert.py: the file stands all the same" [ -s unread.pt ]
fi

# ---------------------------------------------------------------------------------------------
# Pictures

# inspected MODEL TEXT FILE: what the trainer shows of a text.
inspected() { run inspect --model $1 --text @$2 --tokenizer vocab.bpe --out $3; }
if ! has numpy safetensors matplotlib; then
    skip "$python has no numpy, safetensors or matplotlib: membership.py, coding_rate.py, recall.py"
else
    [ -d start ] || run $sizes --data 'tiny_train_*.bin' --steps 0 --out start --quiet
    [ -d shuffled ] || run --init start --data 'tiny_train_*.bin' --tokenizer vocab.bpe $rates --out shuffled
    # markup, a line end, a tab, what is no text, two characters of UTF-8
    printf 'a <b> & "c"\n\td\001\377\303\251\342\200\256' >seen.txt
    printf 'another one' >other.txt
    inspected shuffled seen.txt trained.safetensors
    inspected start seen.txt start.safetensors
    inspected start other.txt other.safetensors
    # letters as tokens, and room for a story of them
    run --layers 1 --heads 2 --channels 8 --block-size 1024 --vocab-size 257 --data 'tiny_train_*.bin' \
        --tokenizer vocab.bpe --steps 0 --val-every 0 --out letters --quiet
    for part in recall blind; do
        [ $part = blind ] && blind=--blind || blind=
        "$python" "$repo/dev/data/starter.py" --seed 3 --stories 30 --recall $blind --out $part.jsonl
        run eval --model letters --task hellaswag $part.jsonl --json $part.json
    done
    "$python" "$repo/dev/test/pictures.py" >report 2>errors
    status=$?
    check "dev/test/pictures.py comes to its end: $(tail -n 2 errors)" [ $status -eq 0 ]
    grep '^FAILED' report
    passed=$((passed + $(grep -c '^ok' report)))
    failed=$((failed + $(grep -c '^FAILED' report)))
    "$python" "$repo/dev/plot/membership.py" trained.safetensors --out cli.html >stdout 2>stderr
    status=$?
    check "membership.py as a command: $(cat stderr)" [ $status -eq 0 -a -s cli.html ]
    unread plot/membership.py trained.safetensors --out unread.html
    if command -v node >/dev/null; then
        sed -n '/^"use strict";$/,/^<\/script>$/p' cli.html | sed '$d' >page.js
        node --check page.js 2>stderr
        status=$?
        check "the page's script is one: $(head -n 5 stderr)" [ $status -eq 0 -a -s page.js ]
    else
        skip "no node: the script of membership.html"
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
    status=$?
    check "a file that is no log: $(cat stderr)" [ $status -eq 0 ]
    check "it is named on one line, and nothing is written" \
        [ "$(grep -c '^wrong.csv: line 1' stderr)" -eq "$(wc -l <stderr)" -a ! -e wrong.png ]
    # refuses FILE TEXT: one line that names the file, and nothing written
    refuses() {
        ! plot "$1" --out wrong.png
        status=$?
        check "$1: '$2' wanted: $(cat stderr)" [ $status -eq 0 -a "$(cat stderr)" = "$2" -a ! -e wrong.png ]
    }
    mkdir -p no_log
    : >none.csv
    head -c 500 tiny_train_000000.bin >bytes.csv
    refuses no_log "no_log/log.csv: cannot be read: No such file or directory; expected a run's log.csv or its \
folder"
    refuses none.csv "none.csv: line 1: no column grad_norm: not a log.csv"
    refuses bytes.csv "bytes.csv: not a text file; expected a run's log.csv or its folder"
    for row in 0,10 0,10,1,,1,1,1,1,9 0,nan,1,,1,1,1,1 0,-10,1,,1,1,1,1 0,10,x,,1,1,1,1; do
        { head -n 1 own/log.csv; echo $row; } >row.csv
        refuses row.csv "row.csv: line 2 is not a row of numbers"
    done
    head -n 1 own/log.csv >row.csv
    refuses row.csv "row.csv: no rows"
    head -c -4 own/log.csv >row.csv
    plot row.csv --out cut.png
    status=$?
    check "a last row that is still being written is left out: $(cat stderr)" [ $status -eq 0 -a -s cut.png ]
    unread plot/loss.py own --out unread.png
fi
}
finish
