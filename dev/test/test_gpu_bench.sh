#!/bin/sh
# test_gpu_bench.sh BINARY: tests dev/bench/gpu.py without a GPU: its self-test, its error message, and the PyTorch
# models that it measures, on the CPU with tiny sizes. PYTHON: default python3. QUICK=1 skips the models.
. "$(dirname "$0")/lib.sh"
export OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
    skip "$python is not Python 3.9 or later"
    finish
fi
"$python" "$repo/dev/bench/gpu.py" --self-test >"$dir/log" 2>&1
status=$?
grep '^FAILED' "$dir/log"
counts=$(sed -n 's/^gpu_bench: \([0-9]*\) passed, \([0-9]*\) failed.*/\1 \2/p' "$dir/log")
check "the self-test: $(tail -1 "$dir/log")" [ $status -eq 0 ]
[ -z "$counts" ] || passed=$((passed + ${counts%% *})) failed=$((failed + ${counts##* }))

# A PATH without nvidia-smi, in case the machine has a GPU
PATH=$dir "$("$python" -c 'import sys; print(sys.executable)')" "$repo/dev/bench/gpu.py" --out "$dir/results" \
    >"$dir/out" 2>"$dir/err"
status=$?
check "without a GPU: status $status, $(cat "$dir/err")" [ $status -eq 1 ]
check "without a GPU: one line" [ "$(cat "$dir/out" "$dir/err" | wc -l)" -eq 1 ]
check "without a GPU: nothing is written" [ ! -e "$dir/results" ]

if [ -n "${QUICK:-}" ]; then
    skip "the PyTorch models: only in make test_all"
elif has torch safetensors; then
    for model in tost gpt2; do
        "$python" "$repo/dev/bench/gpu_peers.py" $model --device cpu --toy --eager --seq 16 --tokens 32 --steps 1 \
            >"$dir/out" 2>"$dir/err"
        check "PyTorch $model: status $?, $(tail -1 "$dir/err")" grep -q '^tokens_per_s [1-9]' "$dir/out"
    done
else
    skip "the PyTorch models: $python has no torch or safetensors"
fi
finish
