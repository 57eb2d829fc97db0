#!/bin/sh
# test_gpu_bench.sh BINARY: tests dev/bench/gpu.py without a GPU, with made-up programs in place of nvidia-smi, the trainer
# and its benchmarks. PYTHON: default python3.
. "$(dirname "$0")/../lib.sh"

"$python" -c '' 2>/dev/null || { skip "dev/bench/gpu.py: $python is not Python"; finish; }
python_path=$("$python" -c 'import sys; print(sys.executable)')

# ---- made-up programs; `slow` and `broken` name programs that never end or fail ------------------------------------
mkdir -p built packages/nvidia/cu13/lib
touch packages/nvidia/cu13/lib/libcublasLt.so.13
cat >program <<'END'
#!/bin/sh
name=$(basename "$0")
here=$(dirname "$(readlink -f "$0")")
case " $(cat "$here/slow" 2>/dev/null) " in
    *" $name "*) echo 'CUDA part 3: 9 passed, 0 failed so far'; echo >"$here/begun"; exec sleep 1000 ;;
esac
case " $(cat "$here/broken" 2>/dev/null) " in *" $name "*) echo 'FAILED as made up'; exit 1 ;; esac
case $name in
    nvidia-smi) echo "Made Up, 1.0, 100 MiB" ;;
    ldd) echo '    libcublasLt.so.13 => not found' ;;   # the trainer needs that of PyTorch's packages
    python)
        case $1 in
            -c) echo "$here/packages" ;;
            *peers.py) echo 'compiled_bf16_tokens_per_s 500 tokens/s' ;;
            *train.py) while [ "$1" != --like ]; do shift; done; mkdir "$4" && cp "$2/log.csv" "$4" ;;
        esac ;;
    bench_tssa) echo 'tssa_forward bf16 B 64 T 1024 C 768 50.0 us 4000 GB/s' ;;
    bench_*) echo "${name#bench_}_kernel bf16 65536 rows 60000.0 us 716.0 TFLOP/s" ;;
    test_tost)
        echo 'CUDA part 0: 12 passed, 0 failed so far'
        echo 'test_tost: 12 passed, 0 failed, 0 skipped' ;;
    train_gpt_tostcu)
        [ "$LD_LIBRARY_PATH" = "$here/packages/nvidia/cu13/lib" ] || exit 127
        [ "$1" != sample ] || { echo '500 tokens, 1234 tokens/s'; exit; }
        [ -z "${NO_CAPTURE:-}" ] || [ "${TOST_NO_GRAPHS:-}" ] || { echo 'made-up capture'; exit 1; }
        echo 'model      12 layers, 2 GB of memory'
        echo 'compute    650 MFLOP per token; 100% MFU: 1.52M tokens/s, 989.4 TFLOP/s in bf16 (data sheet)'
        rate=2000
        while [ "$1" != --out ]; do
            [ "$1" != --batch ] || rate=1000
            [ "$1" != --steps ] || steps=$2
            shift
        done
        mkdir -p "$2/step_00000002" && echo model >"$2/step_00000002/model.safetensors"
        seq "$steps" | sed "1i step,tokens,train_loss,val_loss,lr,grad_norm,ms,tokens_per_s
            s/\$/,1,3.0,,1e-4,1,100,$rate/" >"$2/log.csv" ;;
    compute-sanitizer)
        case $* in *racecheck*'--layers 2'*)
            echo '========= Internal Sanitizer Error: made up'
            echo '========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)'; exit 1 ;;
        esac
        while [ "${1##*/}" != train_gpt_tostcu ]; do shift; done
        "$@" >/dev/null
        echo '========= ERROR SUMMARY: 0 errors' ;;
    ncu)
        while [ "${1##*/}" != train_gpt_tostcu ]; do shift; done
        "$@" >/dev/null
        printf '"ID","Kernel Name"\n"",""\n"0","norm_kernel"\n' ;;
esac
END
chmod +x program
for name in nvidia-smi ldd compute-sanitizer ncu train_gpt_tostcu test_tost bench_tssa bench_norm bench_classifier \
    bench_adamw bench_matmul bench_delta_rule python; do
    ln -s "$dir/program" "built/$name"
done

other_python=$dir/built/python
start() {   # start RESULTS ARGUMENTS...: runs gpu.py with the made-up programs in the background
    results=$dir/$1
    shift
    PATH=$dir/built:$PATH LD_LIBRARY_PATH='' PYTHON=$other_python "$python_path" "$repo/dev/bench/gpu.py" --built built \
        --out "$results" "$@" >"$dir/out" 2>"$dir/err" &
}
ends() {   # ends STATUS: the process that was started last
    wait $!
    status=$?
    check "exit status $status, expected $1: $(cat "$dir/err" "$results"/*.md)" [ $status -eq "$1" ]
}
bench() {   # bench STATUS RESULTS ARGUMENTS...
    wanted=$1
    shift
    start "$@"
    ends "$wanted"
}
has_lines() { for row; do check "a line '$row' in: $(cat "$results"/*.md)" grep -q "^$row" "$results"/*.md; done; }

# In the background, a program that never ends: its stage has 15 of 20 s. The next stage still runs.
echo test_tost >slow
start hang --stages tests train --limit 20
hanging=$! hanging_results=$results
until_true [ -e begun ]
rm slow begun

bench 0 first --short 1 --commit abc123
has_lines '- commit: abc123' '| tssa_forward, bf16 B 64 T 1024 C 768: µs | 50.0 | 4000 GB/s |  |' \
    '| tests | 12 passed, 0 failed' '| norm_kernel' '| adamw_kernel' '| matmul_kernel' '| delta_rule_kernel' \
    '| memcheck, bf16, 94 KiB' '| memcheck, bf16, ragged, all options: errors | 0' \
    '| trainer, T = 1024, bf16: tokens/s | 655,360 .* 426 TFLOP/s, MFU 43.1% of 989.4 .* (data sheet), 2 GB .* |  |' \
    '| trainer, --preset tost-base: tokens/s | 2,000' '| trainer, --preset tost-base --batch 60: tokens/s | 1,000' \
    "| README's command against --batch 1 | 2.00 ×"
bench 0 second --short 2
has_lines '| loss of 300 steps .* | 0.0000' '| trainer, T = 65536, bf16 --chunk 16384: tokens/s' \
    '| trainer, T = 65536, bf16 --memory 1: tokens/s' '| the same weights .* --memory 1 .* | True' \
    '| PyTorch gpt2, compiled, T = 1024: tokens_per_s | 500' "| README's command against PyTorch | 4.00 ×"
bench 1 rest --stages small long_peers sampling profile racecheck synccheck
has_lines '| trainer, --preset small: tokens/s | 2,000' '| PyTorch tost, compiled, T = 4096' '| racecheck, fp32' \
    '| sampling, 32 texts: tokens/s | 1234' '| profile: kernels of one step | 1' '| synccheck' \
    '- racecheck, bf16, whole tiles: compute-sanitizer failed: Internal .* made up$' \
    '- to be repeated: --stages racecheck$'
check "an error of compute-sanitizer is not a hazard" [ "$(grep -c '^| racecheck, bf16, whole' "$results"/*.md)" -eq 0 ]
check "the kernels as CSV" grep -q norm_kernel "$results"/*.csv

# Without TOST_NO_GRAPHS=1, the trainer fails.
export NO_CAPTURE=1
bench 1 graphs --stages train batches
unset NO_CAPTURE
has_lines '- trainer, T = 1024, bf16: exit status 1: made-up capture' '| trainer, T = 1024, bf16: tokens/s' \
    '- trainer, T = 1024, bf16: ran with TOST_NO_GRAPHS=1' '| trainer, --preset tost-base: ' \
    '- to be repeated: --stages train$'

echo bench_norm test_tost >broken
rm built/bench_adamw
other_python=$dir/no_python
bench 1 failures --stages kernels tests curve peers
has_lines '- bench_norm: exit status 1: FAILED as' '- bench_adamw: .*: No such file' '| classifier_kernel' \
    '| tests | none | as made up; no CUDA part ran; exit status 1' '| memcheck, fp32' \
    '- loss against PyTorch: after 0 of 300 steps: .*no_python: No such file' '- PyTorch gpt2, T = 1024: ' \
    '- to be repeated: --stages kernels tests curve peers$'
wait $hanging
status=$? results=$hanging_results
check "a program that never ends: status $status" [ $status -eq 1 ]
has_lines '| tests | 9 passed, 0 failed so far | stopped after .* s: CUDA part 3' '- tests: ' '| memcheck, fp32' \
    '| trainer, T = 1024, bf16: tokens/s'
echo test_tost >slow
other_python=$dir/built/python
start killed --stages train tests kernels
until_true [ -e begun ]
kill $!
ends 1
has_lines '| trainer, T = 1024, bf16: tokens/s' '| tests | 9 passed, 0' '- bench_tssa: no time left' \
    '- to be repeated: --stages tests kernels$'

succeeds "$python_path" -c "import sys; from pathlib import Path; sys.path.append('$repo/dev/bench'); import gpu
assert gpu.seconds(gpu.SHORT[0]) <= 330 and gpu.seconds(gpu.SHORT[1]) <= 300
assert gpu.Table({}, Path(), 'name').path != gpu.Table({}, Path(), 'name').path   # of two runs of the same second"
finish
