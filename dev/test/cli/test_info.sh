#!/bin/sh
# test_info.sh BINARY: info of runs and of a folder of runs.
# shellcheck disable=SC2086,SC2154  # lists of options are split into words; variables of tiny.sh

. "$(dirname "$0")/tiny.sh"

mkdir runs runs/empty runs/unfinished
: >runs/file
cp straight/log.csv runs/unfinished/
for name in straight other rates broken; do cp -R straight runs/$name; done
head -c 999 straight/step_00000003/model.safetensors >runs/broken/step_00000006/model.safetensors
run $tiny --steps 4 --val-every 2 --sample-every 0 --conv 4 --memory 0 --out runs/memory
run $tiny --steps 3 --val-every 0 --out runs/never
run --resume --out runs/other --steps 9 --val-data tiny_val_000000.bin --quiet
run --resume --out runs/rates --steps 7 --lr 0.004 --quiet
run info runs/ --json runs.json
sed 1,2d stdout >table
check "info DIR: one line per run: $(cat stdout)" [ "$(awk '{ print $1 }' table | sort | tr '\n' ' ')" = \
    "memory never other rates straight " ]
check "by validation loss" [ "$(grep -v ^other table | awk '$4 != "-" { print $4 }')" = \
    "$(grep -v ^other table | awk '$4 != "-" { print $4 }' | sort -g)" ]
check "a run that was not validated is the last" [ "$(tail -n 1 table | awk '{ print $1, $2, $4 }')" = "never 3 -" ]
check "steps, tokens and options" grep -q '^straight  *6  *768 .* 0.003  *muon  1 layer, 2 heads' table
check "warnings name the others: $(cat stderr)" \
    [ "$(grep -c 'runs/unfinished: no complete\|runs/broken/step_00000006' stderr)" -eq 2 -a "$(wc -l <stderr)" -eq 2 ]
check "the seconds are those of the log" near "$(awk '$1 == "straight" { print $5 }' table)" \
    "$(awk -F, 'NR > 1 { s += $7 } END { printf "%.1f", s / 1000 }' straight/log.csv)"
check "by validation data first: $(cat table)" \
    [ "$(sed '$d' table | awk '{ print $1, $NF }' | tail -n 1)" = "other tiny_val_000000.bin" ]
check "although it has a lower loss" \
    [ "$(awk '{ loss[$1] = $4 } END { print loss["other"] < loss["straight"] }' table)" -eq 1 ]
check "a run that was resumed with another rate has both" grep -q '^rates .* 0.003,0.004  *muon  1 layer' table
check "--json has the order of the table" \
    [ "$(grep -o '"run": "[a-z_]*' runs.json | cut -c 9-)" = "$(awk '{ print $1 }' table)" ]
check "--json has exact losses and all options" grep -q '"run": "never", .*"val_loss": null, .*"option' runs.json
prints "info straight" "1 layer, 2 heads, 16 channels, block size 32, vocabulary 257" "768 tokens" \
    "vocab.bpe, CRC-32 00000000"
finish
