#!/bin/sh
# test_exchange.sh BINARY: tests the exchange with other programs: shards in the formats of nanoGPT and llm.c, the
# PyTorch model against the trainer, conversion of checkpoints to ckpt.pt and back, and plots.
#   PYTHON    default python3; tests that need a package it lacks are skipped
#   QUICK=1   only the shards
# shellcheck disable=SC2086  # lists of options are split into words

. "$(dirname "$0")/../lib.sh"

# by_command FILE SCRIPT ARGUMENTS…: a script in dev/ writes FILE, although it cannot write to stdout, which is an error
# of one line.
by_command() {
    file=$1 script=$repo/dev/$2
    shift 2
    [ -c /dev/full ] || { succeeds "$python" "$script" "$@"; return; }
    "$python" "$script" "$@" >/dev/full 2>stderr
    check "$script with stdout on a full disk: $(cat stderr)" [ $? -eq 1 -a "$(wc -l <stderr)" -eq 1 -a -s "$file" ]
    check "$script: the error names stdout and the reason" grep -q 'stdout.*No space left on device' stderr
}

: >vocab.bpe
sums 60 >text.txt
run tokenize --tokenizer vocab.bpe --out tiny --val-frac 0.2 --shard-tokens 2000 --quiet text.txt
[ $failed -eq 0 ] || finish
set -f   # the trainer expands patterns itself
sizes="--layers 2 --heads 4 --channels 32 --block-size 32 --vocab-size 257 --conv 0 --memory 0 --optimizer adamw"
rates="--batch 2 --seq 32 --total-batch 256 --steps 24 --lr 1e-2 --warmup 5 --val-every 8 --val-windows 10"
rates="$rates --dtype fp32 --quiet"
# ---- Shards in other formats with the same token ids must give the same run ------------------------------------------

mkdir nanogpt llmc llama
for part in train val; do
    tail -c +1025 tiny_${part}_000000.bin >nanogpt/$part.bin
    count=$(($(wc -c <nanogpt/$part.bin) / 2))
    { header 20240520 1 $count; cat nanogpt/$part.bin; } >llmc/tiny_shakespeare_$part.bin
    {   # the same ids as uint32
        header 20240801 7 $count
        od -An -v -to1 nanogpt/$part.bin | tr -s ' ' '\n' | grep . | paste - - |
            while read -r low high; do printf "\\$low\\$high\\000\\000"; done
    } >llama/fineweb_${part}_000001.bin
done
check "the trainer's shard is identical to llm.c's" cmp -s llmc/tiny_shakespeare_train.bin tiny_train_000000.bin
short="$sizes --batch 2 --total-batch 128 --steps 4 --val-every 2 --val-windows 4 --save-every 0 --quiet"
run $short --data tiny_train_000000.bin --val-data tiny_val_000000.bin --out own
for data in nanogpt/train.bin llmc/tiny_shakespeare_train.bin 'llama/*_train_*.bin'; do
    run $short --data "$data" --out by_${data%%/*}
    check "$data trains and validates unchanged" same_log own/log.csv by_${data%%/*}/log.csv
done
check "the validation shards are used" [ "$(awk -F, 'NR > 1 && $4 != ""' by_nanogpt/log.csv | wc -l)" -eq 3 ]

slow_tests "the PyTorch model, convert.py, train.py, plots"
run $sizes --data 'tiny_train_*.bin' --steps 0 --out start --quiet
for order in shuffled sequential; do
    run --init start --data 'tiny_train_*.bin' --tokenizer vocab.bpe --order $order $rates --out $order
done
run --init start --data 'tiny_train_*.bin' --tokenizer vocab.bpe --optimizer muon $rates --out muon
if has torch safetensors numpy; then
    run $sizes --bias 1 --data 'tiny_train_*.bin' --order sequential $rates --out biased
    checks_of "$repo/dev/test/cli/exchange.py" "$binary"
    by_command cli.pt reference/convert.py shuffled cli.pt
else
    skip "$python has no torch, safetensors or numpy: the PyTorch model, convert.py, train.py"
fi
if has numpy matplotlib; then
    run eval --model start --data 'tiny_val_*.bin' --by-position --json position.json
    checks_of "$repo/dev/test/cli/pictures.py" "$binary"
    has torch tiktoken && by_command cli.html plot/membership.py shuffled "some text" --out cli.html
    by_command loss.png plot/loss.py own --out loss.png
else
    skip "$python has no numpy or matplotlib: membership.py, position.py, loss.py"
fi
if [ -s cli.html ] && command -v node >/dev/null; then
    sed -n '/^"use strict";$/,/^<\/script>$/p' cli.html | sed '$d' >page.js
    succeeds node --check page.js
    check "the page has a script" [ -s page.js ]
else
    skip "no node: the script in the page of membership.py"
fi
finish
