#!/bin/sh
# test_gpu_bench.sh BINARY: tests dev/bench/gpu.py without a GPU: its error message, runs with made-up programs in place
# of nvidia-smi, the trainer and its benchmarks, and the PyTorch models that it measures, on the CPU with tiny sizes.
# PYTHON: default python3. QUICK=1 skips the models.
. "$(dirname "$0")/../lib.sh"
export OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
    skip "$python is not Python 3.9 or later"
    finish
fi
restricted=$(grep -n '^[^/#]*__restrict__' "$repo/train_gpt_tost.cu" "$repo"/tost/cuda/*.cuh)
check "__restrict__ instead of RESTRICT: $restricted" [ -z "$restricted" ]

# A PATH without nvidia-smi, in case the machine has a GPU
PATH=$dir "$("$python" -c 'import sys; print(sys.executable)')" "$repo/dev/bench/gpu.py" --out "$dir/results" \
    >"$dir/out" 2>"$dir/err"
status=$?
check "without a GPU: status $status, $(cat "$dir/err")" [ $status -eq 1 ]
check "without a GPU: one line" [ "$(cat "$dir/out" "$dir/err" | wc -l)" -eq 1 ]
check "without a GPU: nothing is written" [ ! -e "$dir/results" ]

# ---- made-up programs; `slow` and `broken` name programs that never end or fail ------------------------------------
python_path=$("$python" -c 'import sys; print(sys.executable)')
mkdir bin built
cat >program <<'END'
#!/bin/sh
name=$(basename "$0")
here=$(dirname "$(readlink -f "$0")")
case " $(cat "$here/slow" 2>/dev/null) " in *" $name "*) echo 'begins'; exec sleep 1000 ;; esac
case " $(cat "$here/broken" 2>/dev/null) " in *" $name "*) echo 'made-up failure'; exit 1 ;; esac
case $name in
    nvidia-smi) echo 'Made Up, 1.0, 100 MiB' ;;
    bench_tssa) echo 'tssa_forward bf16 B 64 T 1024 C 768 50.0 us 4000 GB/s 4000 GB/s copy 1.00 times the minimum' ;;
    bench_*) echo "${name#bench_}_kernel bf16 65536 rows 60000.0 us 716.0 TFLOP/s" ;;
    test_tost) echo 'FAILED a made-up test'; echo 'test_tost: 12 passed, 1 failed, 0 skipped'; exit 1 ;;
    train_gpt_tostcu)
        echo 'model      12 layers, 2 GB of memory'
        echo 'compute    650 MFLOP per token; 100% MFU: 1.52M tokens/s, 989.4 TFLOP/s in bf16 (data sheet)'
        while [ "$1" != --out ]; do shift; done
        mkdir -p "$2/step_00000003" && echo model >"$2/step_00000003/model.safetensors"
        echo 'step,tokens,train_loss,val_loss,lr,grad_norm,ms,tokens_per_s' >"$2/log.csv"
        for step in 0 1 2 3 4 5 6 7; do echo "$step,1,3.0,,1e-4,1,100,1000" >>"$2/log.csv"; done ;;
    compute-sanitizer) echo '========= ERROR SUMMARY: 0 errors' ;;
    ncu) printf '"ID","Kernel Name"\n"",""\n"0","norm_kernel"\n' ;;
esac
END
chmod +x program
for name in nvidia-smi compute-sanitizer ncu; do ln -s "$dir/program" "bin/$name"; done
for name in tssa norm classifier adamw embedding matmul decode; do ln -s "$dir/program" "built/bench_$name"; done
for name in train_gpt_tostcu test_tost; do ln -s "$dir/program" "built/$name"; done

start() {   # start RESULTS ARGUMENTS...: runs gpu.py with the made-up programs in the background
    results=$dir/$1
    shift
    PATH=$dir/bin:$PATH PYTHON=$dir/no_python "$python_path" "$repo/dev/bench/gpu.py" --built built --out "$results" \
        "$@" >"$dir/out" 2>"$dir/err" &
}
bench() {   # sets $status and $table
    start "$@"
    wait $!
    status=$?
    table=$(cat "$results"/*.md)
}
has_line() { check "a line '$1' in: $table" grep -q "^$1" "$results"/*.md; }

bench all
check "all stages: status $status, $(cat "$dir/err")" [ $status -eq 0 ]
for row in '| tssa_forward, bf16 B 64 T 1024 C 768: µs | 50.0 | .* | 1.5 times' \
    '| tests | 12 passed, 1 failed, .*a made-up test' \
    '| norm_kernel' '| embedding_kernel' '| memcheck, bf16, ragged: errors | 0' '| matmul_kernel' '| decode_kernel' \
    '| trainer, T = 1024, tokens/s | 655,360 .* 426 TFLOP/s, MFU 43.1% of 989.4 TFLOP/s (data sheet), 2 GB of memory' \
    '| trainer, T = 65536' '| kernels of one step | 1' '| racecheck' '| synccheck' '| the same checkpoint .* | True' \
    '- loss against PyTorch: after 0 of 300 steps: .*no_python: No such file' '- PyTorch gpt2, T = 65536: '; do
    has_line "$row"
done
check "the output of the programs" grep -q '^tssa_forward bf16' "$results"/*.log
check "the kernels as CSV" grep -q norm_kernel "$results"/*.csv
echo bench_norm >broken
echo bench_classifier >slow
rm built/bench_adamw
bench limit --stages kernels,tests --limit 8
check "a failed, a hanging and a missing program: status $status" [ $status -eq 0 ]
for row in '- bench_norm: exit status 1: made-up failure' '- bench_classifier: took more than' '- bench_adamw: ' \
    '- tests: no time left'; do
    has_line "$row"
done
start killed --stages tssa,kernels
until grep -qs '^begins' "$results"/*.log; do sleep 0.2; done
kill $!
wait $!
status=$?
check "a stopped run: status $status" [ $status -eq 143 ]
has_line '| tssa_forward'

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
    "$binary" --layers 2 --heads 2 --channels 32 --vocab-size 257 --block-size 16 --seq 16 --batch 1 --total-batch 16 \
        --steps 1 --val-every 0 --sample-every 0 --save-every 0 --data "$dir/zeros.bin" --out "$dir/run" \
        >"$dir/out" 2>&1
    check "$per_token MFLOP per token, as the trainer prints: $(grep -a '^compute' "$dir/out")" \
        grep -q "^compute *$per_token MFLOP" "$dir/out"
else
    skip "the PyTorch models: $python has no torch or safetensors"
fi
finish
