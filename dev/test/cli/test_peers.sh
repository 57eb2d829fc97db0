#!/bin/sh
# test_peers.sh BINARY: tests the PyTorch models of dev/bench/peers.py on the CPU with tiny sizes. QUICK=1 skips them.
. "$(dirname "$0")/../lib.sh"

slow_tests "the PyTorch models" torch safetensors
for model in tost gpt2; do
    "$python" "$repo/dev/bench/peers.py" train_bf16 --model $model --toy --seq 16 --tokens 32 --runs 1 \
        >out 2>err
    check "PyTorch $model: status $?, $(tail -1 err)" grep -q '^train_bf16_tokens_per_s [1-9]' out
    [ $model = gpt2 ] || per_token=$(awk '$1 ~ "tokens_per_s" { rate = $2 } $1 ~ "model_flops" { flops = $2 }
        END { printf "%.4g", flops * 1e6 / rate }' out)
done
head -c 4000 /dev/zero >zeros.bin
run --layers 2 --heads 2 --channels 32 --vocab-size 257 --block-size 16 --seq 16 --batch 1 --total-batch 16 \
    --conv 0 --memory 0 --steps 1 --val-every 0 --sample-every 0 --save-every 0 --data zeros.bin --out run
check "$per_token MFLOP per token, as the trainer prints: $(grep '^compute' stdout)" \
    grep -q "^compute *$per_token MFLOP" stdout
finish
