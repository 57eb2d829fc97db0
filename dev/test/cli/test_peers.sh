#!/bin/sh
# test_peers.sh BINARY: tests the PyTorch models of dev/bench/peers.py on the CPU with tiny sizes. QUICK=1 skips them.
. "$(dirname "$0")/../lib.sh"
export OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1

if [ -n "${QUICK:-}" ]; then
    skip "the PyTorch models: only in make test_all"
elif has torch safetensors; then
    for model in tost gpt2; do
        "$python" "$repo/dev/bench/peers.py" train_bf16 --model $model --toy --seq 16 --tokens 32 --runs 1 \
            >"$dir/out" 2>"$dir/err"
        check "PyTorch $model: status $?, $(tail -1 "$dir/err")" grep -q '^train_bf16_tokens_per_s [1-9]' "$dir/out"
        [ $model = gpt2 ] || per_token=$(awk '$1 ~ "tokens_per_s" { rate = $2 } $1 ~ "model_flops" { flops = $2 }
            END { printf "%.4g", flops * 1e6 / rate }' "$dir/out")
    done
    head -c 4000 /dev/zero >"$dir/zeros.bin"
    "$binary" --layers 2 --heads 2 --channels 32 --vocab-size 257 --block-size 16 --seq 16 --batch 1 --total-batch 16 --conv 0 \
        --steps 1 --val-every 0 --sample-every 0 --save-every 0 --data "$dir/zeros.bin" --out "$dir/run" \
        >"$dir/out" 2>&1
    check "$per_token MFLOP per token, as the trainer prints: $(grep -a '^compute' "$dir/out")" \
        grep -q "^compute *$per_token MFLOP" "$dir/out"
else
    skip "the PyTorch models: $python has no torch or safetensors"
fi
finish
