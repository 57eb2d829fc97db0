#!/bin/sh
# test_gpu_bench.sh BINARY: tests dev/bench/gpu.py without a GPU: its error message, a run with fake
# programs in place of nvidia-smi, make, the trainer and its benchmarks, and the PyTorch models that it measures, on the
# CPU with tiny sizes. PYTHON: default python3. QUICK=1 skips the models and the runs that end early.
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

# ---- a copy of gpu.py, in a folder in which `make` writes fake programs --------------------------------------------
# Each program adds its name to `calls`; `slow` and `broken` name programs that never end or fail.
python_path=$("$python" -c 'import sys; print(sys.executable)')
fake=$dir/fake
mkdir -p "$fake/bin" "$fake/dev/bench" && cp "$repo/dev/bench/gpu.py" "$fake/dev/bench/"
cat >"$fake/program" <<'END'
#!/bin/sh
name=$(basename "$0")
case " $* " in *' build/cuda/bench_norm '*) name=make_rest ;; *' build/cuda/bench_tssa '*) name=make_tssa ;; esac
fake=$(dirname "$(readlink -f "$0")")
echo "$name $*" >>"$fake/calls"
case " $(cat "$fake/slow" 2>/dev/null) " in *" $name "*) exec sleep 1000 ;; esac
case " $(cat "$fake/broken" 2>/dev/null) " in *" $name "*) echo 'made-up failure'; exit 1 ;; esac
install_fakes() { mkdir -p "$fake/build/cuda" && for to; do ln -sf "$fake/program" "$fake/$to"; done; }
kernel() { echo "$1 bf16 B 64 T 1024 C 768 50.0 us 4000 GB/s 4000 GB/s copy 1.00 times the minimum"; }
case $name in
    nvidia-smi) case "$*" in *compute_cap*) echo 9.0 ;; *) echo 'Made Up, 1.0, 100 MiB' ;; esac ;;
    nvcc) echo 'Cuda compilation tools, release 13.0, V13.0.88' ;;
    make_tssa) install_fakes build/cuda/bench_tssa ;;
    make_rest)
        until grep -q '^bench_tssa' "$fake/calls"; do sleep 0.1; done
        echo 'make_rest ends' >>"$fake/calls"
        install_fakes test_tost train_gpt_tostcu
        for to in norm classifier adamw matmul decode; do install_fakes build/cuda/bench_$to; done ;;
    bench_tssa) kernel tssa_forward; kernel tssa_backward ;;
    bench_norm | bench_classifier | bench_adamw) kernel "${name#bench_}" ;;
    bench_matmul) echo 'step_matmuls bf16 65536 rows 60000.0 us 716.0 TFLOP/s' ;;
    test_tost) echo 'test_tost: 12 passed, 0 failed, 0 skipped' ;;
    train_gpt_tostcu)
        echo 'model      12 layers, 2 GB of memory'
        echo 'compute    650 MFLOP per token; 100% MFU: 1.52M tokens/s, 989.4 TFLOP/s in bf16 (data sheet)'
        while [ "$1" != --out ]; do shift; done
        mkdir -p "$2" && echo 'step,tokens,train_loss,val_loss,lr,grad_norm,ms,tokens_per_s' >"$2/log.csv"
        for step in 0 1 2 3 4 5 6 7; do echo "$step,1,3.0,,1e-4,1,100,1000" >>"$2/log.csv"; done ;;
    compute-sanitizer)
        case "$*" in
            --help) echo '  --kernel-name arg  filters; --kernel-name-exclude arg  filters' ;;
            *) echo '========= ERROR SUMMARY: 0 errors' ;;
        esac ;;
esac
END
chmod +x "$fake/program"
for name in make nvcc nvidia-smi compute-sanitizer; do ln -sf "$fake/program" "$fake/bin/$name"; done

start() {   # start RESULTS ARGUMENTS...: runs the copy of gpu.py in the background
    rm -rf "$fake/calls" "$fake/build" "$fake/test_tost" "$fake/train_gpt_tostcu"
    results=$dir/$1
    shift
    PATH=$fake/bin:$PATH PYTHON=$python_path "$python_path" "$fake/dev/bench/gpu.py" --out "$results" "$@" \
        >"$dir/out" 2>"$dir/err" &
}
bench() {   # sets $status and $table
    start "$@"
    wait $!
    status=$?
    table=$(cat "$results"/*.md)
}
has_row() { echo "$table" | grep -q "^| $1"; }
line_of() { grep -n "^$1" "$fake/calls" | head -1 | cut -d: -f1; }
calls_before() { [ "$(line_of "$1")" -lt "$(line_of "$2")" ]; }

if [ -n "${QUICK:-}" ]; then
    bench all --limit 100 --stages tssa,tests,kernels,sanitizers
else
    bench all --limit 100 --stages tssa,tests,kernels,matmuls,trainer,decode,sanitizers
    check "trainer: $table" has_row 'trainer, T = 65536, tokens/s | 655,360'
    check "MFU: $table" has_row 'trainer, T = 1024, tokens/s | .*, 426 TFLOP/s, MFU 43.1% of 989.4 TFLOP/s (data sheet)'
fi
check "fake run: status $status, $(cat "$dir/err")" [ $status -eq 0 ]
check "TSSA is measured before the build ends" calls_before bench_tssa 'make_rest ends'
check "the tests run after the build" calls_before 'make_rest ends' test_tost
check "the kernels are measured after the tests" calls_before test_tost bench_norm
check "the sanitizers run last" calls_before bench_adamw 'compute-sanitizer --tool'
check "TSSA is measured once" [ "$(grep -c '^bench_tssa' "$fake/calls")" -eq 1 ]
check "the GPU's architecture" grep -q '^make_tssa .* BENCH_ARCH=sm_90 ' "$fake/calls"
grep '^compute-sanitizer --tool' "$fake/calls" | grep -v -e '--kernel-name kns=_kernel --kernel-name-exclude' >"$dir/all_kernels"
check "cuBLASLt's kernels are excluded" [ ! -s "$dir/all_kernels" ]
for row in tssa_forward tssa_backward 'build, s' tests norm classifier adamw 'compute-sanitizer memcheck'; do
    check "a row of $row in: $table" has_row "$row"
done
check "the output of the programs" grep -q '^tssa_backward bf16' "$results"/*.log
if [ -z "${QUICK:-}" ]; then
    echo bench_norm >"$fake/slow"
    bench limit --limit 12
    check "a program that never ends: status $status" [ $status -eq 0 ]
    check "rows before the limit: $table" has_row tests
    check "what the limit left out: $table" grep -q '^- build/cuda/bench_norm: took more than' "$results"/*.md
    check "stages past the limit: $table" grep -q '^- sanitizers: no time left' "$results"/*.md
    start killed --limit 100
    until grep -qs '^bench_norm' "$fake/calls"; do sleep 0.2; done
    kill $!
    wait $!
    status=$?
    table=$(cat "$results"/*.md)
    check "a stopped run: status $status" [ $status -eq 143 ]
    check "its rows: $table" has_row tests
    echo make_rest >"$fake/broken"
    rm -f "$fake/slow"
    bench broken --limit 100
    check "a failed build: status $status, $(cat "$dir/err")" [ $status -eq 1 ]
    check "rows before a failed build: $table" has_row tssa_forward
    check "the reason: $table" grep -q '^- build: exit status 1: made-up failure' "$results"/*.md
fi

if [ -n "${QUICK:-}" ]; then
    skip "the PyTorch models: only in make test_all"
elif has torch safetensors; then
    for model in tost gpt2; do
        "$python" "$repo/dev/bench/gpu_peers.py" $model --device cpu --toy --eager --seq 16 --tokens 32 --steps 1 \
            >"$dir/out" 2>"$dir/err"
        check "PyTorch $model: status $?, $(tail -1 "$dir/err")" grep -q '^tokens_per_s [1-9]' "$dir/out"
        [ $model = gpt2 ] || per_token=$(awk '$1 == "tokens_per_s" { rate = $2 } $1 == "model_flops" { flops = $2 }
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
